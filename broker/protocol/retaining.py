# Retaining: a PUBLISH with the retain flag changes what is retained, here, at the other workers, and in Redis.
from broker.log import Log
from broker.metrics.counters import Counters
from broker.overload.admit import DROP
from broker.reasons import DropReason
from broker.routing.hybrid_clock import WRITER_BITS, HybridClock, time_of
from broker.routing.neighbour import Neighbours
from broker.routing.retained import Retained
from broker.session.message import Message
from broker.session.session import Session
from broker.store.durable.retained import RetainedStore


class Retaining:
    def __init__(
        self,
        retained: Retained,
        stamps: HybridClock,
        neighbours: Neighbours,
        counters: Counters,
        log: Log,
        store: RetainedStore | None,
    ) -> None:
        """*store*: None: retained messages are in memory only."""
        self._retained = retained
        self._store = store
        self._stamps = stamps
        self._neighbours = neighbours
        self._counters = counters
        self._log = log

    def retain(self, message: Message, publisher: Session | None, now: float) -> DropReason | None:
        """Retain *message*, whose retain flag is set [MQTT-3.3.1-8], at any QoS, 3.1.1 [MQTT-3.3.1-7].

        A message without a payload deletes what is retained [MQTT-3.3.1-5] to [MQTT-3.3.1-7]. Returns None, or the
        limit that forbids it, which is counted. If it is to be stored, its publish is not done before it is.
        """
        owner = "" if publisher is None else publisher.client_id
        stamp = self._stamps.stamp(self._retained.stamp_of(message.topic))
        return self._retain_as(message, owner, publisher, stamp, now)

    def accept(self, topic: bytes) -> int:
        """When a message that is to be retained on *topic* later was accepted, in microseconds of Unix time.

        It is later than what is retained there now, and than what was accepted here before.
        """
        return self._stamps.stamp(self._retained.stamp_of(topic)) >> WRITER_BITS

    def retain_accepted(
        self, message: Message, owner: str, publisher: Session | None, accepted_at: int, now: float
    ) -> None:
        """Retain *message*, which the client *owner* has published, and which was accepted at *accepted_at*.

        Something that was retained later stays; then, or if a limit forbids it, the message is only delivered.
        *publisher* is the session of *owner*, if it is at this worker.
        """
        stamp = self._stamps.at(accepted_at)
        outdated = stamp <= self._retained.stamp_of(message.topic)
        if outdated or self._retain_as(message, owner, publisher, stamp, now) is not None:
            self._neighbours.not_retained(message)

    def _retain_as(
        self, message: Message, owner: str, publisher: Session | None, stamp: int, now: float
    ) -> DropReason | None:
        store = self._store
        refusal: DropReason | None = None
        if store is not None and not store.takes(message.topic):
            refusal = DropReason.RETAINED_UNWRITTEN
        else:
            if not message.payload:
                if self._retained.delete(message.topic, stamp, now):
                    self._counters.retained_deleted += 1
            else:
                refusal = self._retained.put(message, now, owner, stamp)
                if refusal is None:
                    self._counters.retained_set += 1
            if refusal is None:
                if store is not None:
                    store.changed(message, stamp)
                self._neighbours.retained(message, owner, stamp)
        if refusal is not None:
            self._counters.dropped(refusal, 1)
            if publisher is not None and publisher.note(DROP, refusal.label, now):
                self._log.info("message_not_retained", client=owner, reason=refusal.label)
        return refusal

    def has_later(self, topic: bytes, than: float) -> bool:
        """Whether something was retained on *topic*, or deleted, later *than* that Unix time in seconds."""
        return time_of(self._retained.stamp_of(topic)) > than

    def retain_here(self, message: Message, now: float) -> None:
        """Retain *message* of the broker's own, which every worker makes for itself."""
        if self._retained.put(message, now) is None:
            self._counters.retained_set += 1
