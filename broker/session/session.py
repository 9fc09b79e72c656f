# A session: what MQTT remembers for one client id, with a connection or without.
#
# Towards the client it is a window (packet ids of QoS 1 and 2 that are not yet acknowledged) with a list of
# waiting messages behind it; only acknowledgements and a drained outbox move messages from the list into the
# window, nothing polls. From the client it is the set of QoS 2 packet ids that wait for their PUBREL.
#
# A session that is connected and not persistent holds little for a slow reader (`pending`); one that outlives
# its connections holds much (`queue`) and then lets the oldest go. Empty containers are not made: most of the
# sessions of a large fleet are idle.
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.delivery.outbox import Outbox
from broker.metrics.counters import Counters
from broker.mqtt.packets import PUBCOMP, PUBREL, V5
from broker.mqtt.topics import SHARE_PREFIX
from broker.reasons import DropReason
from broker.session.decisions import Decisions
from broker.session.message import NEVER, Message, SharedMessage
from broker.session.origin import NOWHERE, Origin, TransferFilter
from broker.session.packet_ids import PacketIds
from broker.session.principal import NOBODY, Principal
from broker.session.run import GROWTH, Run
from broker.session.subscriber import Subscriber
from broker.session.will import Will

RELEASED: Final = Message(b"", b"", 2, False, b"", NEVER)  # stands in the window for a message after its PUBREC
NO_LIMIT: Final = 1 << 60  # bytes
ALL: Final = 1 << 60  # messages
PUBREL_3: Final = b"\x62\x02"
PUBCOMP_3: Final = b"\x70\x02"
PACKET_ID_NOT_FOUND: Final = b"\x92"


class QueueBudget:
    """The bytes that may wait in all sessions of a worker together, and what does."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.messages = 0

    def take(self, message: Message) -> None:
        self.used += message.size
        self.messages += 1

    def give_back(self, message: Message) -> None:
        self.used -= message.size
        self.messages -= 1


class SessionLimits:
    """How much one session may hold; counts of messages, and bytes. They share *budget*."""

    def __init__(
        self,
        *,
        inflight: int,
        pending: int,
        queue: int,
        queue_bytes: int,
        budget: QueueBudget,
        origin: Origin | None = None,
    ) -> None:
        """*origin*: of what is delivered, where there are several workers."""
        self.origin = origin or Origin(NOWHERE)
        self.inflight = inflight
        self.pending = pending
        self.queue = queue
        self.queue_bytes = queue_bytes
        self.window_bytes = queue_bytes or NO_LIMIT  # unacknowledged; what may not wait may be sent
        self.budget = budget


class Subscription(Subscriber):
    """One filter of one session, with its options (3.8.3). *share* is the share name, b"" if it is not shared."""

    def __init__(self, session: "Session", filter: bytes, share: bytes) -> None:
        self.session = session
        self.filter = filter
        self.share = share
        self.qos = 0
        self.no_local = False
        self.retain_as_published = False
        self.identifiers = b""  # its subscription identifier as an encoded property, if it has one [MQTT-3.3.4-3]

    def key(self) -> bytes:
        """The filter as it was subscribed to, by which its session finds it."""
        return b"%b%b/%b" % (SHARE_PREFIX, self.share, self.filter) if self.share else self.filter


class Session:
    def __init__(self, client_id: str, limits: SessionLimits, counters: Counters) -> None:
        self.client_id = client_id
        self.principal: Principal = NOBODY  # set where somebody decides by it
        self.expiry = 0  # seconds it outlives its connection
        self.ended = False
        self.subscriptions: dict[bytes, Subscription] = {}
        self.incoming: PacketIds | None = None  # QoS 2 packet ids received and not yet released
        self._carried: PacketIds | None = None  # those of them that came over a former connection; 5.0 counts the rest
        self.will: Will | None = None
        self.decisions: Decisions | None = None  # what was done with what it asked lately
        self.drops: dict[str, int] | None = None  # messages that it did not get, by the label of a DropReason
        self.transfer_filter: TransferFilter | None = None  # while it goes from one worker to another
        self.expiry_timer = 0  # keys of its timers, 0 = none
        self.will_timer = 0
        # Of the connection it has now:
        self.outbox: Outbox | None = None
        self.version = 0
        self.maximum_packet = 0  # bytes the client takes; 0 = any
        self.window = 0  # QoS 1 and 2 that may be unacknowledged
        self.alias_maximum = 0  # topic aliases we may set
        self._aliases: dict[bytes, int] | None = None
        self._inflight: dict[int, Message] | None = None
        self._inflight_bytes = 0
        self._unsent: deque[tuple[int, Message]] | None = None  # in flight when the last connection ended
        self._waiting: deque[Message] | None = None
        self._waiting_bytes = 0
        self.last_id = 0  # the packet id that was given last, 0 before the first
        self._limits = limits
        self._counters = counters

    # The connection comes and goes.

    def attach(
        self, outbox: Outbox, version: int, receive_maximum: int, maximum_packet: int, alias_maximum: int
    ) -> None:
        """A connection is there: from now on it is written to *outbox*; `resume()` sends what it is owed."""
        self.outbox = outbox
        self.version = version
        self.window = min(receive_maximum, self._limits.inflight)  # the send quota [MQTT-4.9.0-1]
        self.maximum_packet = maximum_packet
        self.alias_maximum = alias_maximum
        self._aliases = None  # [MQTT-3.3.2-7]
        self._carried = None
        if version == V5 and self.incoming is not None and self.incoming.count:
            self._carried = self.incoming.copy()

    def resume(self, now: float) -> None:
        """Send again all that was not acknowledged, in its order [MQTT-4.6.0-1], under its packet ids [MQTT-4.4.0-1].

        What was a PUBREL is one again, not a PUBLISH [MQTT-4.3.3-6]; what was sent does not expire [MQTT-4.3.3-7].
        """
        if self._inflight:
            self._unsent = deque(self._inflight.items())
            self._inflight = None
            self._inflight_bytes = 0
        self.pump(now)

    def detach(self) -> None:
        """The connection is gone."""
        if self._unsent:  # what was not sent again yet comes after what was
            inflight = self._inflight or {}
            for packet_id, message in self._unsent:
                inflight[packet_id] = message
            self._inflight = inflight
            self._unsent = None
        self.outbox = None

    def take_shared(self) -> list[SharedMessage]:
        """What waits and may go to another member of its group instead: all that has never been sent.

        It waits here no longer; its place in the budget is the caller's to give back. What was sent stays, though for
        QoS 1 another member should get that, too (4.8.2): each shared message would need a mark of its own, also where
        nothing waits. QoS 2 must stay [MQTT-4.8.2-5].
        """
        waiting = self._waiting
        if not waiting:
            return []
        shared = [message for message in waiting if isinstance(message, SharedMessage)]
        if shared:
            self._waiting = deque([message for message in waiting if not isinstance(message, SharedMessage)])
            for message in shared:
                self._waiting_bytes -= message.size
        return shared

    def withhold(self, may_receive: Callable[[bytes], bool]) -> int:
        """While it is without a connection: forget what is not to be received any more, by its topic; how many."""
        kept: deque[Message] = deque()
        withheld = 0
        for message in self._waiting or ():
            if may_receive(message.topic):
                kept.append(message)
            else:
                withheld += 1
                self._waiting_bytes -= message.size
                self._limits.budget.give_back(message)
        self._waiting = kept or None
        inflight: dict[int, Message] = {}
        for packet_id, message in (self._inflight or {}).items():
            if message is RELEASED or may_receive(message.topic):
                inflight[packet_id] = message
            else:
                withheld += 1
        self._inflight = inflight or None
        self._inflight_bytes = 0  # resume() counts it anew
        if withheld:
            self._dropped(DropReason.MAY_NOT_READ, withheld)
        return withheld

    def end(self) -> int:
        """Nothing of it will be delivered any more; the number of messages that were waiting."""
        self.ended = True
        self.detach()
        undelivered = [message for message in (self._inflight or {}).values() if message is not RELEASED]
        lost = self.waiting() + len(undelivered)
        for message in self._waiting or ():
            self._limits.budget.give_back(message)
        self._inflight = self._waiting = self.incoming = self._carried = None
        if lost:
            self._dropped(DropReason.SESSION_ENDED, lost)
        return lost

    # Without a connection, it may be handed over to another worker: see handover.py.

    def unacknowledged(self) -> dict[int, Message]:
        """What was sent and not acknowledged, in its order, by packet id; RELEASED after a PUBREC."""
        return self._inflight or {}

    def restore(self, unacknowledged: dict[int, Message]) -> None:
        """The same at its new place."""
        self._inflight = unacknowledged or None  # resume() counts its bytes

    def take_waiting(self) -> deque[Message]:
        """What waits. It does so here no longer, and its place in the budget is the caller's to give back."""
        waiting = self._waiting
        self._waiting = None
        self._waiting_bytes = 0
        return deque() if waiting is None else waiting

    def put_before(self, earlier: deque[Message]) -> None:
        """*earlier*, which have their place in the budget, wait before all that do already."""
        for message in earlier:
            self._waiting_bytes += message.size
        if self._waiting:
            earlier.extend(self._waiting)
        self._keep_within_limits(earlier)
        self._waiting = earlier or None

    # Messages towards the client.

    def offer_run(self, run: Run, identifiers: bytes, now: float) -> None:
        """Deliver a run of QoS 0 packets in one piece; skipped when there is no reader for it."""
        out = self.outbox
        counters = self._counters
        if out is None:
            self._dropped(DropReason.OFFLINE_QOS0, run.count)
        elif not out.writable:
            reason = out.begin_delivery(counters.publishes_sent)
            if reason is None:
                self.offer_run(run, identifiers, now)
                out.end_delivery(counters.publishes_sent)
            else:
                self._dropped(reason, run.count)
        elif self.maximum_packet and run.longest + len(identifiers) + GROWTH > self.maximum_packet:
            for message in run.messages(identifiers):
                self.offer(message, now)
        else:
            out.write(run.encoded(self.version, identifiers))
            out.further += run.count - 1
            counters.publishes_sent += run.count
            counters.publish_bytes_sent += run.payload_bytes

    def offer(self, message: Message, now: float) -> None:
        """Deliver *message* at its QoS: now, later, or not at all with a reason that is counted.

        QoS 1 and 2 are the session's from now on [MQTT-4.5.0-1], whether its client is there, 3.1.1 [MQTT-3.1.2-5], or
        not; they wait while the window is full [MQTT-3.3.4-9], [MQTT-4.9.0-2]. QoS 0 may be kept for who is away, and
        clients do not expect it: it is not.
        """
        out = self.outbox
        if out is None or not out.writable:
            self._offer_aside(message, now)
            return
        if message.qos == 0:
            self._send_once(message, out, now)
            return
        if self._waiting:
            self._wait(message)
            return
        inflight = self._inflight
        if inflight is None:
            inflight = {}
            self._inflight = inflight
        if len(inflight) >= self.window or self._unsent or self._inflight_bytes > self._limits.window_bytes:
            self._wait(message)
            return
        self._send(message, inflight, out, now)

    def _offer_aside(self, message: Message, now: float) -> None:
        """The same where there is no reader, a slow one, or one that may be sent only so much."""
        out = self.outbox
        counters = self._counters
        reason = DropReason.OFFLINE_QOS0 if out is None else out.begin_delivery(counters.publishes_sent)
        if out is not None and reason is None:
            self.offer(message, now)
            out.end_delivery(counters.publishes_sent)
        elif message.qos:
            self._wait(message)
        elif reason is not None:
            self._dropped(reason, 1)

    def writable(self) -> bool:
        """It has a connection that would take a QoS 0 message."""
        out = self.outbox
        return out is not None and (out.writable or out.accepts_delivery())

    def ready(self) -> bool:
        """It has a connection that would take a QoS 1 or 2 message at once."""
        out = self.outbox
        return (
            out is not None
            and not self._waiting
            and not self._unsent
            and (self._inflight is None or len(self._inflight) < self.window)
            and self._inflight_bytes <= self._limits.window_bytes
            and (out.writable or out.accepts_delivery())
        )

    def has_room(self) -> bool:
        """A QoS 1 or 2 message that cannot be sent at once would wait here instead of being refused."""
        return not self.ended and (self.expiry != 0 or self.waiting() < self._limits.pending)

    def pump(self, now: float) -> None:
        """Move what waits into the window, as far as the window and the outbox allow."""
        out = self.outbox
        if out is None or (not self._unsent and not self._waiting):
            return
        if out.writable:
            self._move(ALL, out, now)
            return
        counters = self._counters
        moved = True
        while moved and (self._unsent or self._waiting) and out.begin_delivery(counters.publishes_sent) is None:
            moved = self._move(1, out, now)
            out.end_delivery(counters.publishes_sent)

    def _move(self, most: int, out: Outbox, now: float) -> bool:
        """The same for at most *most* messages; whether that did not stop at the window or the outbox before."""
        inflight = self._inflight
        if inflight is None:
            inflight = self._inflight = {}
        while most and self._unsent and out.writable and len(inflight) < self.window:
            most -= 1
            packet_id, message = self._unsent.popleft()
            if message is RELEASED:
                out.answer(PUBREL_3 + packet_id.to_bytes(2, "big"))
                self._counters.answers_sent += 1
            elif self.maximum_packet and message.length(self.version, now) > self.maximum_packet:
                self._dropped(DropReason.TOO_LARGE, 1)  # the client takes less now than when it was first sent
                continue
            else:
                out.write(message.again(self.version, packet_id, now))
                self._counters.publishes_sent += 1
                self._counters.publish_bytes_sent += len(message.payload)
            inflight[packet_id] = message
            self._inflight_bytes += message.size
        waiting = self._waiting
        window_bytes = self._limits.window_bytes
        while most and waiting and out.writable:  # what is sent again goes first: what keeps it keeps these
            if len(inflight) >= self.window or self._inflight_bytes > window_bytes:
                break
            most -= 1
            message = waiting.popleft()
            self._waiting_bytes -= message.size
            self._limits.budget.give_back(message)
            if message.expired(now):
                self._dropped(DropReason.EXPIRED, 1)
            else:
                self._send(message, inflight, out, now)
        if not waiting:
            self._waiting = None
        return most == 0

    def _send_once(self, message: Message, out: Outbox, now: float) -> None:
        """Write *message*, which is of QoS 0."""
        counters = self._counters
        packet = self._aliased(message, 0, now) if self.alias_maximum else message.whole(self.version, now)
        if self.maximum_packet and len(packet) > self.maximum_packet:
            self._dropped(DropReason.TOO_LARGE, 1)  # never sent [MQTT-3.1.2-24]
            return
        out.write(packet)
        counters.publishes_sent += 1
        counters.publish_bytes_sent += len(message.payload)

    def _send(self, message: Message, inflight: dict[int, Message], out: Outbox, now: float) -> None:
        """Give *message* a packet id that is free [MQTT-2.2.1-4], [MQTT-4.3.2-1], [MQTT-4.3.3-1], and write it."""
        counters = self._counters
        if self.maximum_packet and message.length(self.version, now) > self.maximum_packet:
            self._dropped(DropReason.TOO_LARGE, 1)  # we go on as if it were delivered [MQTT-3.1.2-25]
            return
        packet_id = self.last_id % 65535 + 1
        while packet_id in inflight:
            packet_id = packet_id % 65535 + 1
        self.last_id = packet_id
        inflight[packet_id] = message  # until PUBACK [MQTT-4.3.2-3] or PUBREC [MQTT-4.3.3-3]
        self._inflight_bytes += message.size
        if self.alias_maximum:
            out.write(self._aliased(message, packet_id, now))
        else:
            out.write(message.packet(self.version, packet_id, now))
        counters.publishes_sent += 1
        counters.publish_bytes_sent += len(message.payload)

    def _aliased(self, message: Message, packet_id: int, now: float) -> bytes:
        """The packet with the topic's alias, which the client learns with the first.

        From 1 [MQTT-3.3.2-8] to the client's maximum [MQTT-3.3.2-11].
        """
        aliases = self._aliases
        if aliases is None:
            aliases = self._aliases = {}
        known = aliases.get(message.topic, 0)
        alias = known or len(aliases) + 1
        if alias <= self.alias_maximum:
            packet = message.aliased(b"" if known else message.topic, alias, packet_id, now)
            if not self.maximum_packet or len(packet) <= self.maximum_packet:  # an alias is longer than a short topic
                aliases[message.topic] = alias
                return packet
        return message.packet(V5, packet_id, now) if packet_id else message.whole(V5, now)

    def _wait(self, message: Message) -> None:
        """Keep *message* for later, in order [MQTT-4.6.0-6], if the kind of session and its limits allow."""
        if self.ended:
            self._dropped(DropReason.SESSION_ENDED, 1)
            return
        limits = self._limits
        if self.transfer_filter is not None and not isinstance(
            message, SharedMessage
        ):  # who is chosen for one has it alone
            if not self.transfer_filter.takes(limits.origin.worker):
                return
        if not self.has_room():
            self._dropped(DropReason.PENDING_FULL, 1)
            return
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = deque()
        waiting.append(message)
        self._waiting_bytes += message.size
        limits.budget.take(message)
        self._keep_within_limits(waiting)

    def _keep_within_limits(self, waiting: deque[Message]) -> None:
        """Let the oldest of what waits go while it is too much."""
        limits = self._limits
        budget = limits.budget
        while waiting and (
            self._waiting_bytes > limits.queue_bytes
            or budget.used > budget.limit
            or (self.expiry != 0 and len(waiting) > limits.queue)
        ):
            oldest = waiting.popleft()
            self._waiting_bytes -= oldest.size
            budget.give_back(oldest)
            self._dropped(DropReason.QUEUE_FULL, 1)

    # Acknowledgements from the client. Each is answered, if at all, into the outbox: at once, so in the order in which
    # they came [MQTT-4.6.0-4], and whatever the window holds [MQTT-4.9.0-3].

    def puback(self, packet_id: int, now: float) -> bool:
        """PUBACK: the message is delivered, or refused: it is over in any case [MQTT-4.4.0-2].

        False if no QoS 1 message waits under that id.
        """
        inflight = self._inflight
        if inflight is None:
            return False
        message = inflight.get(packet_id)
        if message is None or message.qos != 1:
            return False
        del inflight[packet_id]
        self._inflight_bytes -= message.size
        if self._waiting or self._unsent:
            self.pump(now)
        return True

    def pubrec(self, packet_id: int, code: int, now: float) -> bool:
        """PUBREC: the client holds the message, or refuses it with a *code* from 0x80.

        Held: PUBREL [MQTT-4.3.3-4], until there is a PUBCOMP [MQTT-4.3.3-5]. Refused: it is over [MQTT-4.4.0-2].
        """
        inflight = self._inflight
        out = self.outbox
        message = None if inflight is None else inflight.get(packet_id)
        if out is None:
            return False
        if inflight is None or message is None or message.qos != 2:
            if code < 0x80:
                self._counters.answers_sent += 1
                self._unknown(out, PUBREL, packet_id)
            return False
        self._inflight_bytes -= message.size
        if code >= 0x80:
            del inflight[packet_id]
            if self._waiting or self._unsent:
                self.pump(now)
            return True
        inflight[packet_id] = RELEASED
        self._counters.answers_sent += 1
        out.answer(PUBREL_3 + packet_id.to_bytes(2, "big"))
        return True

    def pubcomp(self, packet_id: int, now: float) -> bool:
        """PUBCOMP: the exchange is over and its packet id free."""
        inflight = self._inflight
        if inflight is None or inflight.get(packet_id) is not RELEASED:
            return False
        del inflight[packet_id]
        if self._waiting or self._unsent:
            self.pump(now)
        return True

    def holds(self, packet_id: int) -> bool:
        """A QoS 2 publish with that id was received and not released."""
        return self.incoming is not None and self.incoming.holds(packet_id)

    def receive(self, packet_id: int) -> bool:
        """A QoS 2 publish came in; false if it is one that we have already [MQTT-4.3.3-10]."""
        incoming = self.incoming
        if incoming is None:
            incoming = self.incoming = PacketIds()
        return incoming.add(packet_id)

    def pubrel(self, packet_id: int) -> bool:
        """PUBREL: forget the id, which may be a new message's next [MQTT-4.3.3-12], and confirm [MQTT-4.3.3-11].

        Whatever became of the message meanwhile [MQTT-4.3.3-13].
        """
        out = self.outbox
        incoming = self.incoming
        self._counters.answers_sent += 1
        known = incoming is not None and incoming.discard(packet_id)
        if known and self._carried is not None:
            self._carried.discard(packet_id)
        if out is not None:
            if known:
                out.answer(PUBCOMP_3 + packet_id.to_bytes(2, "big"))
            else:
                self._unknown(out, PUBCOMP, packet_id)
        return known

    def _unknown(self, out: Outbox, kind: int, packet_id: int) -> None:
        """Answer an acknowledgement that fits nothing we know, so that both sides get rid of the id.

        No properties, so that it fits any maximum packet size: [MQTT-3.6.2-2] to [MQTT-3.6.2-3], [MQTT-3.7.2-2] to
        [MQTT-3.7.2-3].
        """
        first = kind << 4 | (2 if kind == PUBREL else 0)
        if self.version == V5:
            out.answer(bytes((first, 3)) + packet_id.to_bytes(2, "big") + PACKET_ID_NOT_FOUND)
        else:
            out.answer(bytes((first, 2)) + packet_id.to_bytes(2, "big"))

    # What becomes of what it asks, and of what it should get, for whoever asks why.

    def note(self, kind: int, reason: str, now: float) -> bool:
        """Something was decided about it, *kind* as in overload/admit.py; whether it is news."""
        if self.decisions is None:
            self.decisions = Decisions()
        return self.decisions.add(kind, reason, now)

    def _dropped(self, reason: DropReason, count: int) -> None:
        self._counters.dropped(reason, count)
        if self.drops is None:
            self.drops = {}
        self.drops[reason.label] = self.drops.get(reason.label, 0) + count

    # What it holds.

    def inflight(self) -> int:
        """Messages sent and not acknowledged to the end."""
        return (len(self._inflight) if self._inflight else 0) + (len(self._unsent) if self._unsent else 0)

    def unreleased(self) -> int:
        """QoS 2 messages from the client that came over this connection and wait for their PUBREL.

        A new connection begins with the whole receive maximum, whatever was left of the former one (4.9).
        """
        return (self.incoming.count if self.incoming else 0) - (self._carried.count if self._carried else 0)

    def waiting(self) -> int:
        """Messages that have not been sent yet."""
        return len(self._waiting) if self._waiting else 0
