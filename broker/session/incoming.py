# What a session knows of the messages that its client publishes: the packet ids of QoS 2 that wait for their PUBREL.
from broker.delivery.completion import Completion, CompletionListener
from broker.delivery.outbox import Outbox
from broker.metrics.counters import Counters
from broker.mqtt.packets import PUBCOMP
from broker.session.answers import PUBCOMP_3, unknown_id
from broker.session.diagnostics import SessionDiagnostics
from broker.session.limits import SessionLimits
from broker.session.packet_ids import PacketIds
from broker.session.storage import SessionStorage


class IncomingMessages(SessionDiagnostics):
    """The part of a session that concerns what comes from its client; session.py has the rest."""

    def __init__(self, limits: SessionLimits, counters: Counters) -> None:
        super().__init__(limits, counters)
        # Of the current connection. What each message of a fan-out needs lies side by side in memory, in the order in
        # which attributes are set first: the processor fetches it at once.
        self.outbox: Outbox | None = None
        self.version = 0
        self.maximum_packet = 0  # bytes that the client accepts; 0 = any number
        self.storage: SessionStorage | None = None  # None: the session ends with its worker
        self.incoming: PacketIds | None = None  # QoS 2 packet ids received and not released
        self.unanswered: dict[int, Completion] | None = None  # of them, by id: those of connections that have ended
        self._carried: PacketIds | None = None  # those from former connections; the receive maximum counts the rest

    def holds(self, packet_id: int) -> bool:
        """Whether a QoS 2 publish with that id was received and not released."""
        return self.incoming is not None and self.incoming.holds(packet_id)

    def receive(self, packet_id: int) -> bool:
        """Remember a QoS 2 publish; false if it was received before [MQTT-4.3.3-10]."""
        incoming = self.incoming
        if incoming is None:
            incoming = self.incoming = PacketIds()
        return incoming.add(packet_id)

    def pubrel(self, packet_id: int) -> bool:
        """PUBREL: forget the id, as the next publish with it is a new one [MQTT-4.3.3-12], and confirm [MQTT-4.3.3-11].

        It is confirmed whatever became of the message meanwhile [MQTT-4.3.3-13]; if the id is stored, once it is not.
        """
        out = self.outbox
        incoming = self.incoming
        self._counters.answers_sent += 1
        known = incoming is not None and incoming.discard(packet_id)
        if known and self._carried is not None:
            self._carried.discard(packet_id)
        if self.storage is not None:
            released = self.storage.release(packet_id)
            if released is not None:
                released.queue = None if out is None else StoredRelease(self, out, packet_id)
                return True
        if out is not None:
            answer = PUBCOMP_3 + packet_id.to_bytes(2, "big")
            out.answer(answer if known else unknown_id(self.version, PUBCOMP, packet_id))
        return known

    def unreleased(self) -> int:
        """QoS 2 messages that the client sent over this connection and that wait for their PUBREL.

        A new connection begins with the whole receive maximum (4.9), so ids of former connections do not count.
        """
        return (self.incoming.count if self.incoming else 0) - (self._carried.count if self._carried else 0)


class StoredRelease(CompletionListener):
    """Sends PUBCOMP once it is stored that a packet id is released, unless the connection has ended."""

    def __init__(self, session: IncomingMessages, outbox: Outbox, packet_id: int) -> None:
        """*outbox*: of the connection that PUBREL came over."""
        self._session = session
        self._outbox = outbox
        self._packet_id = packet_id

    def advance(self, now: float) -> None:
        if self._session.outbox is self._outbox:
            self._outbox.answer(PUBCOMP_3 + self._packet_id.to_bytes(2, "big"))

    def abandoned(self, now: float) -> Outbox | None:
        return self._outbox
