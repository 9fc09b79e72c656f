# A session: what MQTT remembers for one client id, with a connection or without.
#
# Towards the client it is a window (packet ids of QoS 1 and 2 messages that are not acknowledged) and a queue of
# messages that wait for the window (queue.py). Only an acknowledgement or a drained outbox moves messages from the
# queue into the window; nothing polls. incoming.py has what comes from the client.
#
# A session that ends with its connection keeps few messages for a slow reader (`pending`) and refuses more. A session
# that outlives its connections keeps many (`queue`) and drops the oldest. Containers are made when they are needed.
from collections import deque
from collections.abc import Callable

from broker.delivery.outbox import Outbox
from broker.metrics.counters import Counters
from broker.mqtt.fields import protocol_error
from broker.mqtt.packets import PUBREL, V5
from broker.reasons import DropReason
from broker.session.aliases import TopicAliases
from broker.session.answers import PUBREL_3, unknown_id
from broker.session.gap import OwedGap
from broker.session.incoming import IncomingMessages
from broker.session.limits import SessionLimits
from broker.session.losses import QUIET, Losses
from broker.session.message import RELEASED, Message, marked
from broker.session.origin import TransferFilter
from broker.session.principal import NOBODY, Principal
from broker.session.queue import FIRST_INFLIGHT, INFLIGHT, MESSAGE, UNLIMITED, MessageQueue
from broker.session.run import GROWTH, Run
from broker.session.storage import new_queue
from broker.session.subscription import Backlog, Subscription
from broker.session.will import Will


class Session(IncomingMessages):
    def __init__(
        self, client_id: str, limits: SessionLimits, counters: Counters, queue: MessageQueue | None = None
    ) -> None:
        """*queue*: the queue of a session that does not keep its messages in memory."""
        super().__init__(limits, counters)
        # Of the current connection:
        self.window = 0  # QoS 1 and 2 messages that may be unacknowledged
        self.aliases: TopicAliases | None = None  # None: the broker may set none
        self._inflight: dict[int, Message] | None = None
        self._inflight_bytes = 0
        self._unsent: deque[tuple[int, Message]] | None = None  # in flight when the last connection ended
        self._queue = queue  # None: no message waits
        self.last_id = 0  # the packet id that was given last, 0 before the first
        self.backlog: Backlog | None = None  # None until the session is a member of a shared subscription
        # Of the session:
        self.client_id = client_id
        self.principal: Principal = NOBODY  # of its user; NOBODY without a user and without access rules
        self.expiry = 0  # seconds that the session outlives its connection
        self.ended = False
        self.subscriptions: dict[bytes, Subscription] = {}
        self.will: Will | None = None
        self.replayed = 0  # retained messages and messages sent again, which the client has not paid for yet
        self.transfer_filter: TransferFilter | None = None  # while the session moves from one worker to another
        self.expiry_timer = self.will_timer = 0  # keys of its timers, 0 = none
        if queue is not None:
            queue.bind(self)

    # The connection comes and goes.

    def attach(
        self, outbox: Outbox, version: int, receive_maximum: int, maximum_packet: int, alias_maximum: int
    ) -> None:
        """Deliver to *outbox*, that of a new connection, from now on; `resume()` sends what the client is owed."""
        self.outbox, self.version, self.maximum_packet = outbox, version, maximum_packet
        self.window = min(receive_maximum, self._limits.inflight)  # the send quota [MQTT-4.9.0-1]
        self.aliases = TopicAliases(alias_maximum) if alias_maximum else None  # [MQTT-3.3.2-7]
        self._carried = None
        if version == V5 and self.incoming is not None and self.incoming.count:
            self._carried = self.incoming.copy()

    def limit(self, limits: SessionLimits) -> None:
        """Apply *limits*. What waits beyond them is dropped when the next message is to wait."""
        self._limits = limits
        if self._queue is not None:
            self._queue.limit(limits.queue_bytes)

    def may_wait(self) -> int:
        """How many messages may wait for a place in the window."""
        return self._limits.queue if self.expiry else self._limits.pending

    def resume(self, now: float) -> None:
        """Send again all that was not acknowledged, in its order [MQTT-4.6.0-1], under its packet ids [MQTT-4.4.0-1].

        After PUBREC, PUBREL is sent again and not PUBLISH [MQTT-4.3.3-6]. What was sent does not expire [MQTT-4.3.3-7].
        """
        if self._queue is not None:
            self._queue.wake()
        if self._inflight:
            self._unsent = deque(self._inflight.items())
            self._inflight, self._inflight_bytes = None, 0
        self.pump(now)

    def detach(self) -> None:
        """The connection has ended."""
        if self._unsent:  # messages that were not sent again yet come after those that were
            self._inflight = (self._inflight or {}) | dict(self._unsent)
            self._inflight_bytes += sum([message.size for _, message in self._unsent])
            self._unsent = None
        self.outbox, self._inflight = None, self._inflight or None
        if self._queue is not None:
            self._queue.rest()
            self._forget_empty_queue()

    def withhold(self, may_receive: Callable[[bytes], bool], now: float) -> int:
        """Without a connection: drop the messages whose topic the client may not read any more; return how many."""
        return self._drop_unless(lambda message: may_receive(message.topic), DropReason.MAY_NOT_READ, now)

    def drop_all(self, now: float) -> int:
        """Without a connection: drop all messages, as they fill the memory of the worker; return how many."""
        return self._drop_unless(lambda message: False, DropReason.MESSAGE_BUDGET, now)

    def _drop_unless(self, keep: Callable[[Message], bool], reason: DropReason, now: float) -> int:
        queue = self._queue
        dropped = 0 if queue is None else queue.remove_unless(keep)
        inflight: dict[int, Message] = {}
        for packet_id, message in (self._inflight or {}).items():
            if message is RELEASED or keep(message):
                inflight[packet_id] = message
            else:
                dropped += 1
                self._limits.budget.release(message)
                if queue is not None:
                    queue.done(packet_id, message, now)
        self._inflight = inflight or None
        self._inflight_bytes = sum([message.size for message in inflight.values()])
        self._forget_empty_queue()
        if dropped:
            self._dropped(reason, dropped)
        return dropped

    def end(self) -> int:
        """End the session; return the number of messages that will not be delivered."""
        self.ended = True
        self.detach()
        lost = len([message for message in (self._inflight or {}).values() if message is not RELEASED])
        size = self._inflight_bytes
        self.restore({})
        self._limits.budget.forget(self)
        if self._queue is not None:
            lost = self._queue.end(lost, size)
        self._queue = self.incoming = self._carried = None
        if lost:
            self._dropped(DropReason.SESSION_ENDED, lost)
        return lost

    # A session without a connection may move to another worker: see transfer/.

    def unacknowledged(self) -> dict[int, Message]:
        """The messages that were sent and not acknowledged, in order, by packet id; RELEASED after a PUBREC."""
        return self._inflight or {}

    def restore(self, unacknowledged: dict[int, Message]) -> None:
        """Set the messages that were sent and not acknowledged, for a session that comes from another worker."""
        budget = self._limits.budget
        for message in (self._inflight or {}).values():
            budget.release(message)
        for message in unacknowledged.values():
            budget.hold(message)
        self._inflight = unacknowledged or None
        self._inflight_bytes = sum([message.size for message in unacknowledged.values()])

    def take_waiting(self) -> deque[Message]:
        """Take all messages that wait, in order. The caller gives their places in the budget back."""
        messages: deque[Message] = deque() if self._queue is None else self._queue.take_all()
        self._forget_empty_queue()
        return messages

    def put_before(self, earlier: deque[Message]) -> None:
        """Have *earlier*, which count in the budget already, wait before all messages that wait."""
        if earlier:
            most = self._limits.queue if self.expiry else UNLIMITED
            self.queue_dropped(DropReason.QUEUE_FULL, self._queue_to_fill().prepend(earlier, most))

    # Messages towards the client.

    def offer_run(self, run: Run, identifiers: bytes, now: float) -> None:
        """Deliver a run of QoS 0 packets in one piece, if the client is connected and reads as quickly."""
        out = self.outbox
        counters = self._counters
        if out is None or not out.writable:
            self._offer_run_aside(run, out, identifiers, now)
        elif self.maximum_packet and run.longest + len(identifiers) + GROWTH > self.maximum_packet:
            for message in run.messages(identifiers):
                self.offer(message, now)
        else:
            out.write(run.encoded(self.version, identifiers))
            out.further += run.count - 1
            counters.publishes_sent += run.count
            counters.publish_bytes_sent += run.payload_bytes

    def _offer_run_aside(self, run: Run, out: Outbox | None, identifiers: bytes, now: float) -> None:
        """Deliver the parts of *run* that a client may have for which `_offer_aside()` is."""
        if self._queues_qos0():
            for message in run.kept_messages(identifiers):
                self.offer(message, now)
            return
        if out is None:
            self._dropped(DropReason.OFFLINE_QOS0, run.count)
            return
        reason: DropReason | None = None
        for part in [run] if out.egress_limit is None and not out.aside else run.parts():
            if out.aside and not out.full:  # one by one, until what is to be said is said
                for message in part.messages(identifiers):
                    self.offer(message, now)
                continue
            reason = reason or out.begin_delivery(self._counters.publishes_sent)
            if reason is None:
                self.offer_run(part, identifiers, now)
                out.end_delivery(self._counters.publishes_sent)
            else:
                self._dropped(reason, part.count, run.topic)

    def offer(self, message: Message, now: float) -> None:
        """Deliver *message* at its QoS: now, later, or not at all with a reason that is counted.

        A message of QoS 1 or 2 belongs to the session from now on [MQTT-4.5.0-1], whether its client is connected,
        3.1.1 [MQTT-3.1.2-5], or not. It waits while the window is full [MQTT-3.3.4-9], [MQTT-4.9.0-2]. QoS 0 waits
        only for a client that is not connected, and only if the configuration says so.
        """
        out = self.outbox
        if out is None or not out.writable:
            self._offer_aside(message, now)
            return
        if message.qos == 0:
            self._send_once(message, out, now)
            return
        queue = self._queue
        if queue is None and self.storage is not None:  # idle until now
            queue = self._queue_to_fill()
        if queue is not None and (queue.count or message.qos == 2):
            self._wait(message, now)
            return
        inflight = self._inflight
        if inflight is None:
            inflight = self._inflight = {}
        budget, held = self._limits.budget, self._inflight_bytes
        if len(inflight) >= self.window or self._unsent or (held > budget.window and not budget.allows(self, held)):
            self._wait(message, now)
            return
        if queue is not None and not queue.keep(message, now):
            self._wait(message, now)
            return
        holders = message.holders
        message.holders = holders + 1
        used = budget.used + (INFLIGHT if holders else FIRST_INFLIGHT + message.size)
        budget.used = used
        if used > budget.mark:
            budget.adapt()
        self._send(message, inflight, out, now)

    def _offer_aside(self, message: Message, now: float) -> None:
        """Deliver *message* to a client that is not connected, reads too slowly, has an egress limit or catches up."""
        out, moves = self.outbox, self.transfer_filter
        if moves is not None and moves.refuses(message, self._limits.origin.worker):
            return
        if self._queues_qos0() or (message.qos and (out is None or (out.aside and self.waiting()))):  # behind others
            self._wait(message, now)
        elif out is None:
            self._dropped(DropReason.OFFLINE_QOS0, 1)
        elif (reason := out.begin_delivery(self._counters.publishes_sent)) is None:
            if out.aside:
                self._limits.listener.tell(self, now)
            self.offer(message, now)
            out.end_delivery(self._counters.publishes_sent)
        elif message.qos:
            self._wait(message, now)
        else:
            self._dropped(reason, 1, message.topic)

    def _queues_qos0(self) -> bool:
        """Whether QoS 0 waits, as all else does: for a client that is away, or behind what waited until it came."""
        out = self.outbox
        return self._limits.queue_qos0 and (out is None or (out.pace is not None and self.waiting() > 0))

    def writable(self) -> bool:
        """Whether a QoS 0 message would be sent at once."""
        out = self.outbox
        return out is not None and (out.writable or out.accepts_delivery())

    def ready(self) -> bool:
        """Whether a QoS 1 or 2 message would be sent at once."""
        out, budget = self.outbox, self._limits.budget
        return (
            out is not None
            and not self.unsent()
            and (self._inflight is None or len(self._inflight) < self.window)
            and (self._inflight_bytes <= budget.window or budget.allows(self, self._inflight_bytes))
            and (out.writable or out.accepts_delivery())
        )

    def has_room(self) -> bool:
        """Whether a QoS 1 or 2 message that cannot be sent at once would wait instead of being dropped."""
        return not self.ended and (self.expiry != 0 or self.waiting() < self._limits.pending)

    def pump(self, now: float) -> None:
        """Move messages that wait into the window, as far as the window and the outbox allow."""
        out = self.outbox
        if self.backlog is not None and self.backlog.lists:
            self.backlog.writable(self)
        if out is None or (not self._unsent and self._queue is None and not out.aside):
            return
        more = not out.writable or self._move(UNLIMITED, out, now)
        while more and (self._unsent or self._queue or out.aside) and out.begin_queued(self._counters.publishes_sent):
            if out.aside:
                self._limits.listener.tell(self, now)
            more = self._move(1, out, now)
            out.end_queued(self._counters.publishes_sent, self.unsent())

    def _move(self, most: int, out: Outbox, now: float) -> bool:
        """Move at most *most* messages into the window; true if it was the number that ended it."""
        budget = self._limits.budget
        inflight = self._inflight
        if inflight is None:
            inflight = self._inflight = {}
        while most and self._unsent and out.writable and len(inflight) < self.window:
            most -= 1
            packet_id, message = self._unsent.popleft()
            if message is RELEASED:
                self._release(packet_id, out)
            elif self.maximum_packet and message.length(self.version, now) > self.maximum_packet:
                self._dropped(DropReason.TOO_LARGE, 1, message.topic)  # it takes less now than when it was first sent
                budget.release(message)
                continue
            else:
                out.write(message.again(self.version, packet_id, now))
                self.replayed += 1  # those from the queue are not: their publishers have paid for the delivery
                self._counters.publishes_sent += 1
                self._counters.publish_bytes_sent += len(message.payload)
            inflight[packet_id] = message
            self._inflight_bytes += message.size
        queue = self._queue
        if queue is None:
            return most == 0
        while most and out.writable:  # messages that are sent again go first: what keeps them keeps these
            if self._inflight_bytes > budget.window and not budget.allows(self, self._inflight_bytes):
                break
            waiting = queue.pop() if len(inflight) < self.window else None
            if waiting is None:
                break
            most -= 1
            if waiting.expired(now):
                self._dropped(DropReason.EXPIRED, 1, waiting.topic)
                budget.release(waiting)
                if waiting.qos == 2 and queue.duplicate:  # the client may have it: its packet id has to become free
                    budget.hold(RELEASED)
                    inflight[queue.packet_id] = RELEASED
                    self._release(queue.packet_id, out)
                else:
                    queue.done(queue.packet_id, waiting, now)
            elif waiting.qos:
                self._send(waiting, inflight, out, now)
            else:
                budget.release(waiting)
                self._send_once(waiting, out, now)
        self._forget_empty_queue()
        return most == 0

    def _send_once(self, message: Message, out: Outbox, now: float) -> None:
        """Write *message*, which is of QoS 0."""
        counters = self._counters
        aliases = self.aliases
        if aliases is None:
            packet = message.whole(self.version, now)
        else:
            packet = aliases.packet(message, 0, self.maximum_packet, now)
        if self.maximum_packet and len(packet) > self.maximum_packet:
            self._dropped(DropReason.TOO_LARGE, 1, message.topic)  # never sent [MQTT-3.1.2-24]
            return
        out.write(packet)
        counters.publishes_sent += 1
        counters.publish_bytes_sent += len(message.payload)

    def _send(self, message: Message, inflight: dict[int, Message], out: Outbox, now: float) -> None:
        """Give *message*, which counts as in flight, a packet id that is free, and write it.

        [MQTT-2.2.1-4], [MQTT-4.3.2-1], [MQTT-4.3.3-1]
        """
        counters = self._counters
        queue = self._queue
        packet_id = 0 if queue is None else queue.packet_id
        if self.maximum_packet and message.length(self.version, now) > self.maximum_packet:
            self._dropped(DropReason.TOO_LARGE, 1, message.topic)  # as if it were delivered [MQTT-3.1.2-25]
            self._limits.budget.release(message)
            if queue is not None:
                queue.done(packet_id, message, now)
            return
        packet_id = packet_id or self.last_id % 65535 + 1
        # It is in flight until PUBACK [MQTT-4.3.2-3] or PUBREC [MQTT-4.3.3-3].
        while inflight.setdefault(packet_id, message) is not message:
            packet_id = packet_id % 65535 + 1
        self.last_id = packet_id
        self._inflight_bytes += message.size
        aliases = self.aliases
        if aliases is None:
            packet = message.packet(self.version, packet_id, now)
        else:
            packet = aliases.packet(message, packet_id, self.maximum_packet, now)
        out.write(packet if queue is None or not queue.duplicate else marked(packet))
        counters.publishes_sent += 1
        counters.publish_bytes_sent += len(message.payload)

    def send_ahead(self, message: Message, now: float) -> bool:
        """Send *message* before all that waits, which may be a full queue; false if it cannot be sent now.

        To be called during a delivery, with a message that the client accepts. In a durable session it is sent at QoS 1
        at most, and at QoS 0 while others wait, as their packet ids belong to their places in the queue.
        """
        out, held, budget = self.outbox, self._inflight_bytes, self._limits.budget
        if out is None or not out.writable:
            return False
        queue = self._queue_to_fill() if self.storage is not None and message.qos else self._queue
        if message.qos:
            inflight = self._inflight = self._inflight or {}
            if self._unsent or len(inflight) >= self.window or (held > budget.window and not budget.allows(self, held)):
                return False
            if message.qos == 2 and self.storage is not None:
                message = message.variant(1, False, b"")
            if queue is None or self.storage is None or queue.keep(message, now):
                budget.hold(message)
                self._send(message, inflight, out, now)
                return True
        self._send_once(message.variant(0, False, b"") if message.qos else message, out, now)
        return True

    def _wait(self, message: Message, now: float) -> None:
        """Queue *message*, in order [MQTT-4.6.0-6], if the kind of session and its limits allow."""
        if self.ended:
            self._dropped(DropReason.SESSION_ENDED, 1)
            return
        if not self.has_room():
            self._dropped(DropReason.PENDING_FULL, 1, message.topic)
            return
        dropped = self._queue_to_fill().append(message, self._limits.queue if self.expiry else UNLIMITED, now)
        if dropped:
            self.queue_dropped(DropReason.QUEUE_FULL, dropped)

    def _queue_to_fill(self) -> MessageQueue:
        self._queue = self._queue or new_queue(self, self._limits, self.storage, self.outbox is not None)
        return self._queue

    def renew_queue(self) -> None:
        """Use the queue that the storage has now."""
        self._queue = new_queue(self, self._limits, self.storage, self.outbox is not None)

    def queue_dropped(self, reason: DropReason, count: int) -> None:
        if count:
            self._dropped(reason, count)
        self._forget_empty_queue()

    def unloaded(self) -> int:
        size = self._inflight_bytes
        self.restore({packet_id: sent for packet_id, sent in self.unacknowledged().items() if sent is RELEASED})
        return size

    def _forget_empty_queue(self) -> None:
        queue = self._queue
        if queue is not None and queue.count == 0 and not queue.permanent:
            self._queue = None
            if self.storage is not None:
                self.storage.forget_queue()

    # Acknowledgements from the client. An answer is written to the outbox at once, so answers leave in the order of the
    # acknowledgements [MQTT-4.6.0-4], whatever the window holds [MQTT-4.9.0-3].

    def puback(self, packet_id: int, now: float) -> bool:
        """PUBACK: the message was delivered or refused, and is removed in both cases [MQTT-4.4.0-2].

        False if nothing is unacknowledged under that id. ProtocolError: a message of QoS 2 is.
        """
        inflight = self._inflight
        if inflight is None:
            return False
        message = inflight.get(packet_id)
        if message is None:
            return False
        if message.qos != 1:
            raise protocol_error("PUBACK for a QoS 2 message")  # 4.3.3
        del inflight[packet_id]
        size = message.size
        self._inflight_bytes -= size
        holders = message.holders = message.holders - 1
        self._limits.budget.used -= INFLIGHT if holders else FIRST_INFLIGHT + size
        queue = self._queue
        if queue is not None:
            queue.done(packet_id, message, now)
            self.pump(now)
        elif self._unsent or (self.backlog is not None and self.backlog.lists):
            self.pump(now)
        return True

    def pubrec(self, packet_id: int, code: int, now: float) -> bool:
        """PUBREC: the client has stored the message, or refuses it with a *code* from 0x80.

        Stored: PUBREL is sent [MQTT-4.3.3-4], until there is a PUBCOMP [MQTT-4.3.3-5]. Refused: the message is removed
        [MQTT-4.4.0-2]. False if nothing is unacknowledged under that id. ProtocolError: a message of QoS 1 is.
        """
        inflight, out = self._inflight, self.outbox
        message = None if inflight is None else inflight.get(packet_id)
        if out is None:
            return False
        if inflight is None or message is None:
            if code < 0x80:
                self._counters.answers_sent += 1
                out.answer(unknown_id(self.version, PUBREL, packet_id))
            return False
        if message.qos != 2:
            raise protocol_error("PUBREC for a QoS 1 message")  # 4.3.2
        self._inflight_bytes -= message.size
        message.holders -= 1
        if not message.holders:
            self._limits.budget.used -= MESSAGE + message.size
        if code >= 0x80:
            if self._queue is not None:
                self._queue.done(packet_id, message, now)
            self._limits.budget.used -= INFLIGHT
            del inflight[packet_id]
            if self._queue is not None or self._unsent or (self.backlog is not None and self.backlog.lists):
                self.pump(now)
            return True
        inflight[packet_id] = RELEASED
        self._release(packet_id, out)
        return True

    def _release(self, packet_id: int, out: Outbox) -> None:
        """Send PUBREL, now or when the queue has stored that the client has the message."""
        if self._queue is None or self._queue.release(packet_id):
            self._counters.answers_sent += 1
            out.answer(PUBREL_3 + packet_id.to_bytes(2, "big"))

    def released(self, packet_id: int) -> None:
        if self.outbox is not None and self._inflight and self._inflight.get(packet_id) is RELEASED:
            self._counters.answers_sent += 1
            self.outbox.answer(PUBREL_3 + packet_id.to_bytes(2, "big"))

    def pubcomp(self, packet_id: int, now: float) -> bool:
        """PUBCOMP: the packet id is free again.

        False if nothing is unacknowledged under that id. ProtocolError: a message without PUBREC is.
        """
        inflight = self._inflight
        message = None if inflight is None else inflight.get(packet_id)
        if inflight is None or message is None:
            return False
        if message is not RELEASED:
            raise protocol_error(f"PUBCOMP for a QoS {message.qos} message without PUBREC")  # 4.3.2, 4.3.3
        del inflight[packet_id]
        self._limits.budget.used -= INFLIGHT
        if self._queue is not None:
            self._queue.done(packet_id, message, now)
        if self._queue is not None or self._unsent or (self.backlog is not None and self.backlog.lists):
            self.pump(now)
        return True

    def missed(self, reason: DropReason, count: int, topic: bytes = b"") -> None:
        """Remember that *count* messages did not reach the client, which are counted elsewhere. *topic*: if known."""
        losses, label = self.losses or Losses(), reason.label
        self.losses = losses
        losses.add(label, count, topic, self._limits.listener.at)
        if losses.state == QUIET and losses.begins(label):
            self._limits.listener.note(self)

    def _dropped(self, reason: DropReason, count: int, topic: bytes = b"") -> None:
        """Do as `missed()` and Counters.dropped(), without calling them: for the sake of floods."""
        counters, losses, label = self._counters, self.losses, reason.label
        counters.publishes_dropped += count
        counters.dropped_by_reason[label] += count
        if losses is None:
            losses = self.losses = Losses()
        losses.add(label, count, topic, self._limits.listener.at)
        if losses.state == QUIET and losses.begins(label):
            self._limits.listener.note(self)

    def owed_gap(self) -> OwedGap:
        """What the client lost and has not been told, for the worker that the session moves to."""
        return self._limits.listener.owed(self)

    # Sizes.

    def inflight(self) -> int:
        """Messages that were sent and whose exchange is not finished."""
        return (len(self._inflight) if self._inflight else 0) + (len(self._unsent) if self._unsent else 0)

    def unsent(self) -> int:
        """Messages that `pump()` has still to send, or to send again."""
        return self.waiting() + (len(self._unsent) if self._unsent else 0)

    def queue(self) -> MessageQueue | None:
        """The messages that wait, for operators to look at; None: none waits."""
        return self._queue

    def held_bytes(self) -> int:
        """Bytes of the messages that are in flight, and not to be sent again, or wait in the memory of this worker."""
        return self._inflight_bytes + (self._queue.size if self._queue is not None else 0)

    def waiting(self) -> int:
        """Messages that wait for a place in the window."""
        return self._queue.count if self._queue is not None else 0
