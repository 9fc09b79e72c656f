# How far logs are read, for the tools of Kafka: offsets of consumer groups, with the names that TBMQ gives them.
#
# Weir never reads them. Where reading goes on is in Redis, stored with the messages that were passed on
# (application_queue.py, leases.py). Kafka forgets the offset of a group that was idle for a week, and an offset alone
# does not say which packs come twice.
#
# What is told of a log is done: whoever trusts an offset loses no message that its client has not acknowledged (TBMQ,
# issue 320). Nothing is noted for that with records or messages. A queue is looked at each EVERY seconds: how far its
# logs were passed on by then, and which message was the last one. Once that and all before it are done, so are the
# logs up to there. So what tools see is up to two looks behind.
#
# A partition of a shared log is told of by the member that has leased it. What it was passed on before it left the
# partition to another member is its own: the offset may pass that.
from collections import deque
from collections.abc import Iterable
from math import inf
from typing import Final

from broker.store.durable.application_queue import UNREAD, ApplicationQueue
from broker.store.durable.leases import Lease
from broker.store.durable.log_topics import group_of
from broker.store.logs.port import GroupLink

EVERY: Final = 5.0  # seconds between two looks at a queue
TOGETHER: Final = 100  # queues that are looked at in one turn: a millisecond
NEXT: Final = 0.05  # seconds until the next ones are
AFRESH: Final = 86_400.0  # seconds after which all is told again: before Kafka forgets it


class _Reached:
    """How far the logs of a queue were passed on at some time."""

    def __init__(self, last: int, own: int, leased: list[tuple[Lease, int]]) -> None:
        self.last: Final = last  # the position of the last message by then
        self.own: Final = own  # the offset in its own log
        self.leased: Final = leased  # and in partitions of shared ones


class _Mirrored:
    """What was told of the logs of a queue."""

    def __init__(self) -> None:
        self.own = UNREAD
        self.leased: dict[Lease, int] = {}
        self.reached: _Reached | None = None  # what is told next, once it is done


class LogMirror:
    def __init__(self, link: GroupLink) -> None:
        self._link = link
        self._carriers = link.carriers
        self._afresh_at = -inf
        self._look_at = -inf
        self._queues: dict[ApplicationQueue, _Mirrored] = {}
        self._round: deque[ApplicationQueue] = deque()  # queues that are looked at next

    def tick(self, now: float, queues: Iterable[ApplicationQueue]) -> float:
        """Look at some of *queues*, of clients that are connected, if that is due; when it is the next time."""
        if self._link.carriers != self._carriers or now >= self._afresh_at:
            self._carriers, self._afresh_at = self._link.carriers, now + AFRESH
            for mirrored in self._queues.values():
                mirrored.own = UNREAD
                mirrored.leased.clear()
        if now >= self._look_at:
            if not self._round:
                self._round.extend(queues)
            for _ in range(min(TOGETHER, len(self._round))):
                queue = self._round.popleft()
                if not queue.is_resting():
                    self._look(queue)
            self._look_at = now + (NEXT if self._round else EVERY)
        return self._look_at

    def rests(self, queue: ApplicationQueue) -> None:
        """The client of *queue* is not connected any more. To be called before its leases end."""
        self._look(queue)
        del self._queues[queue]

    def _look(self, queue: ApplicationQueue) -> None:
        mirrored = self._queues.get(queue)
        if mirrored is None:
            mirrored = self._queues[queue] = _Mirrored()
        first = queue.first_unfinished()
        reached = mirrored.reached
        if reached is not None and reached.last < first:
            self._tell(queue, mirrored, reached)
            reached = None
        if reached is None:
            leased = [
                (lease, lease.position.offset)
                for lease in queue.leases.all.values()
                if lease.feed is not None and lease.reader is not None
            ]
            reached = _Reached(queue.last_position(), queue.log_position(), leased)
            if reached.last < first:
                self._tell(queue, mirrored, reached)
                reached = None
        mirrored.reached = reached

    def _tell(self, queue: ApplicationQueue, mirrored: _Mirrored, reached: _Reached) -> None:
        if reached.own not in (UNREAD, mirrored.own):
            mirrored.own = reached.own
            self._link.done(group_of(queue.topic), queue.topic, 0, reached.own)
        told = mirrored.leased
        mirrored.leased = {}
        for lease, offset in reached.leased:
            reader = lease.reader
            if lease.feed is None or reader is None:
                continue  # another member may have read on
            mirrored.leased[lease] = offset
            if told.get(lease) != offset:
                group, topic = reader.mirrored_as()
                self._link.done(group, topic, lease.partition, offset)
