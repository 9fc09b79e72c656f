# The partitions of the inbound backbone that this worker dispatches: which ones, from where on, and how far it is.
#
# Each partition has a home, a shard of the node, by its number. While that shard has no worker, one of the others
# dispatches it, and gives it back later: it begins no further record, and gives the partition up when nothing is under
# way any more. If that takes long, as a receiver is not done with something, it goes on and tries again later.
# Rendezvous hashing was rejected: it moves no more partitions, but of 16 one of two workers may have 11.
#
# Positions are saved some times a second. What may not be dispatched before it is saved (feed.py) is saved at once.
#
# If Redis does not answer, it may have carried out the command, or may do so later. So a partition whose claim was not
# answered is claimed until it is known whose it is, and given up then if another worker is to have it: else that worker
# would wait for this one for ever. And a partition that may have been given up is never dispatched again from what was
# read before, as another worker may dispatch it.
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Final

from broker.log import Log
from broker.reasons import StoreFailure
from broker.store.inbound.feed import PartitionFeed
from broker.store.inbound.positions import PartitionPositions, SavedPosition
from broker.store.logs.port import LogLink
from broker.worker_id import WorkerId

LOOK: Final = 0.1  # seconds between two looks at who dispatches what
SAVE: Final = 0.05  # seconds between two saves of positions; what is done behind them comes again after a crash
PAUSE: Final = 0.1  # seconds until positions are saved again, after a failure
# Seconds for what is under way to be done, before a partition is not given up; and for an owner to save again what
# Redis has lost.
PATIENCE: Final = 1.0
RETRY: Final = 10.0  # seconds until that is tried again


def home_of(number: int, shards: int, living: Sequence[int]) -> int:
    """The shard that dispatches the partition *number*; *living*: those of *shards* that have a worker, rising."""
    home = number % shards
    return home if home in living else living[number // shards % len(living)]


class PartitionOwnership:
    def __init__(
        self,
        link: LogLink,
        topic: str,
        partitions: int,
        positions: PartitionPositions,
        worker: WorkerId,
        workers: int,
        living: Callable[[], list[WorkerId]],
        arrived: Callable[[], None],
        clock: Callable[[], float],
        log: Log,
    ) -> None:
        """*worker* is one of *workers* of its node; *living*: the others that live. *arrived*: see `PartitionFeed`."""
        self.feeds: dict[int, PartitionFeed] = {}  # by number: the partitions that this worker dispatches
        self.unclaimed_since = inf  # since when partitions that it should dispatch are not its own
        self._link = link
        self._topic = topic
        self._partitions = partitions
        self._positions = positions
        self._worker = worker
        self._workers = workers
        self._living = living
        self._arrived = arrived
        self._clock = clock
        self._log = log
        self._look_at = 0.0
        self._save_at = 0.0
        self._leaving = False  # all partitions are to be given up
        self._saving = False
        self._connections = positions.connections()  # to Redis, when all was saved
        self._failed = False  # what was to be saved last is not
        self._claiming = False
        self._unanswered: set[int] = set()  # partitions that may be this worker's: their claims were not answered
        self._unknown: dict[int, float] = {}  # partitions of which Redis has no position, and since when
        self._ending: dict[int, float] = {}  # partitions that are to be given up, and since when
        self._given_up: set[int] = set()  # those of which Redis was told so
        self._kept: dict[int, float] = {}  # those that could not be given up, and until when

    def tick(self, now: float) -> float:
        """Do what is due; when the next thing is."""
        if now >= self._look_at:
            self._look_at = now + LOOK
            self._look(now)
        return min(self._look_at, self.save(now))

    def leave(self) -> None:
        """Give all partitions up: this worker is about to end."""
        if not self._leaving:
            self._leaving = True
            self._look_at = 0.0

    # Whose they are.

    def _look(self, now: float) -> None:
        others = self._living()
        mine = self._worker.shard
        living = sorted([mine, *[worker.shard for worker in others]])
        wanted: list[int] = []
        for number in range(self._partitions):
            feed = self.feeds.get(number)
            if self._leaving or home_of(number, self._workers, living) != mine:
                if feed is not None:
                    self._give_up(feed, now)
            elif feed is None:
                wanted.append(number)
            else:
                self._keep(feed)
        self.unclaimed_since = min(self.unclaimed_since, now) if wanted else inf
        wanted += [number for number in self._unanswered if number not in wanted]
        if not wanted:
            self._unknown.clear()
        if wanted and not self._claiming:
            self._claiming = True
            self._positions.claim(wanted, others, partial(self._claimed, wanted))

    def _claimed(
        self, wanted: list[int], claimed: list[SavedPosition], unknown: list[int], failure: StoreFailure | None
    ) -> None:
        self._claiming = False
        if failure is None:
            self._unanswered.difference_update(wanted)
            now = self._clock()
            self._unknown = {number: self._unknown.get(number, now) for number in unknown}
        else:
            self._unanswered.update(wanted)
        for one in claimed:
            if one.number not in self.feeds:
                feed = PartitionFeed(one.number, one.position, one.begun, self._arrived)
                self.feeds[one.number] = feed
                feed.reading = self._link.read(self._topic, one.number, one.position, feed)
        if claimed:
            self._log.info("backbone_partitions_taken", partitions=len(claimed), all=len(self.feeds))

    def without_position(self, now: float) -> list[int]:
        """The partitions of which Redis has had no position for a while, and which nobody here can claim."""
        return [number for number, since in self._unknown.items() if now - since > PATIENCE]

    def _give_up(self, feed: PartitionFeed, now: float) -> None:
        number = feed.number
        since = self._ending.get(number)
        if since is None:
            if self._leaving or now >= self._kept.get(number, 0.0):
                self._ending[number] = now
                feed.ending = True
        elif now - since > PATIENCE and not feed.quiet() and not self._leaving:
            self._kept[number] = now + RETRY
            self._keep(feed)

    def _keep(self, feed: PartitionFeed) -> None:
        """Go on with *feed*, unless it may have been given up."""
        if feed.ending and feed.number not in self._given_up:
            feed.ending = False
            self._ending.pop(feed.number, None)
            self._arrived()

    # How far they have come.

    def save(self, now: float) -> float:
        """Save positions, if it is time, or if something must not wait for that; when it will be time."""
        if self._saving:
            return inf
        connections = self._positions.connections()
        if connections != self._connections:
            self._connections = connections
            for feed in self.feeds.values():
                feed.changed = True
        due: list[PartitionFeed] = []
        urgent = False
        for feed in self.feeds.values():
            given_up = feed.ending and feed.quiet()
            if feed.changed or given_up:
                due.append(feed)
                urgent = urgent or given_up or feed.begun > feed.confirmed
        if not due:
            return inf
        if now < self._save_at and (not urgent or self._failed):
            return self._save_at
        self._save_at = now + SAVE
        self._saving = True
        saved: list[SavedPosition] = []
        for feed in due:
            feed.changed = False
            given_up = feed.ending and feed.quiet()
            if given_up:
                self._given_up.add(feed.number)
            saved.append(SavedPosition(feed.number, feed.position, feed.begun, given_up))
        self._positions.save(saved, partial(self._saved, due, saved))
        return inf

    def _saved(
        self, feeds: list[PartitionFeed], saved: list[SavedPosition], lost: list[int], failure: StoreFailure | None
    ) -> None:
        self._saving = False
        self._failed = failure is not None
        if failure is not None:
            self._save_at = self._clock() + PAUSE
            for feed in feeds:
                feed.changed = True
            return
        for feed, one in zip(feeds, saved, strict=True):
            if one.number in lost:
                self._log.warning("backbone_partition_lost", partition=one.number)
                self._drop(feed)
            elif one.given_up:
                self._drop(feed)
            elif one.begun > feed.confirmed:
                feed.confirmed = min(one.begun, feed.begun)  # which is less if the topic was made anew meanwhile
                self._arrived()

    def _drop(self, feed: PartitionFeed) -> None:
        self._ending.pop(feed.number, None)
        self._given_up.discard(feed.number)
        del self.feeds[feed.number]
        feed.stop()
