# A session seen from its client's end: what was written to its outbox comes out as packets.

from broker.delivery.outbox import OutboundBudget, Outbox
from broker.delivery.ring import Ring
from broker.metrics.counters import Counters
from broker.mqtt.packets import V311, Packet, Publish
from broker.mqtt.stream import PacketReader
from broker.reasons import DropReason
from broker.session.limits import SessionLimits
from broker.session.message import NEVER, Message
from broker.session.queue import MessageBudget
from broker.session.session import Session

PLENTY = 1 << 28  # a limit that nothing here reaches
NOW = 1000.0  # seconds; any time will do


def message(
    payload: bytes = b"", qos: int = 0, *, topic: bytes = b"t", properties: bytes = b"", expires: float = NEVER
) -> Message:
    return Message(topic, payload, qos, False, properties, expires)


def sent(payload: bytes, qos: int, packet_id: int, *, topic: bytes = b"t", dup: bool = False) -> Publish:
    """What the client should read of `message(payload, qos)`."""
    return Publish(topic, payload, qos, False, dup, packet_id)


class Receiver:
    """A session that outlives its connections if *expiry* says so, connected by `connect()`."""

    def __init__(
        self,
        client_id: str = "client",
        *,
        expiry: int = 0,
        inflight: int = 65535,
        pending: int = 1000,
        queue: int = 1000,
        queue_bytes: int = PLENTY,
        budget: MessageBudget | None = None,
    ) -> None:
        self.counters = Counters()
        self.now = NOW  # when it connects and reads
        limits = SessionLimits(
            inflight=inflight,
            pending=pending,
            queue=queue,
            queue_bytes=queue_bytes,
            budget=budget or MessageBudget(PLENTY),
        )
        self.session = Session(client_id, limits, self.counters)
        self.session.expiry = expiry
        self.outbox = _outbox()
        self._reader = PacketReader(V311, PLENTY)

    def connect(
        self, version: int = V311, *, window: int = 65535, maximum_packet: int = 0, aliases: int = 0, high: int = PLENTY
    ) -> "Receiver":
        """Attach a new connection and resume; a former one is gone. *high*: bytes before it counts as slow."""
        if self.session.outbox is not None:
            self.session.detach()
        self.outbox = _outbox(high)
        self._reader = PacketReader(version, PLENTY)
        self.session.attach(self.outbox, version, window, maximum_packet, aliases)
        self.session.resume(self.now)
        return self

    def offer(self, *messages: Message, now: float = NOW) -> "Receiver":
        for offered in messages:
            self.session.offer(offered, now)
        return self

    def take_bytes(self) -> bytes:
        """All that was written since the last time, as the network would take it; the session goes on if it can."""
        taken = []
        while self.outbox.size:
            data = bytes(self.outbox.gather())
            taken.append(data)
            if self.outbox.sent(len(data), 0.0):
                self.session.pump(self.now)
        return b"".join(taken)

    def take(self) -> list[Packet]:
        """The same as packets."""
        return list(self._reader.feed(self.take_bytes()))

    def payloads(self) -> list[bytes]:
        """The same, of what was published."""
        return [packet.payload for packet in self.take() if isinstance(packet, Publish)]

    def acknowledge(self) -> list[bytes]:
        """Take what is there and acknowledge it to the end, until nothing comes any more; the payloads."""
        payloads = []
        while packets := self.take():
            for packet in packets:
                if isinstance(packet, Publish):
                    payloads.append(packet.payload)
                    self._acknowledge(packet)
        return payloads

    def dropped(self, reason: DropReason) -> int:
        return self.counters.dropped_by_reason[reason.label]

    def _acknowledge(self, packet: Publish) -> None:
        if packet.qos == 1:
            assert self.session.puback(packet.packet_id, NOW)
        elif packet.qos == 2:
            assert self.session.pubrec(packet.packet_id, 0, NOW)
            assert self.session.pubcomp(packet.packet_id, NOW)


def _outbox(high: int = PLENTY) -> Outbox:
    return Outbox(0, high, high // 2, OutboundBudget(1 << 40), Ring())
