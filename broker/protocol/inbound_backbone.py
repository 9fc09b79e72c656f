# The inbound backbone of a worker: has the topic made, the publishes appended and dispatched, and says how far behind
# the node is.
#
#   accepted    publishing.py: what a client publishes, once it may be
#   appended    store/inbound/log.py: acknowledged when the log has it
#   owned       store/inbound/ownership.py: each partition is dispatched by one worker at a time
#   dispatched  inbound_dispatch.py: to the receivers in the whole node, by the ordinary ways
#
# Nothing is accepted before the topic is there, and it is stored where the node begins to dispatch: else what is
# acknowledged could be passed over. Nothing is dispatched before this worker serves clients, as stored sessions have
# to be here.
#
# The lag is the age of the oldest publish that waits to be dispatched here. What waits in partitions that this worker
# should dispatch, and cannot read yet, is not known: it is taken to be as old as that state. The lag is a signal of the
# level, under one name in the whole node: whatever a client publishes may have to wait for any worker.
#
# A publish that is dispatched does not count in the lag: its receivers have it, but for one that may take long, such as
# a service whose log takes nothing. Such a partition goes on, but all from there on is dispatched again by whoever
# follows. So it is told if a position stands still for STANDS seconds.
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final

from broker.log import Log
from broker.overload.level import Signal
from broker.protocol.inbound_dispatch import InboundDispatch
from broker.reasons import StoreFailure
from broker.store.inbound.log import InboundLog
from broker.store.inbound.ownership import PartitionOwnership
from broker.store.inbound.positions import PartitionPositions
from broker.store.logs.port import LogLink
from broker.store.logs.records import Position
from broker.store.logs.topics import LogError, TopicDescription, TopicProperties

RETRY: Final = 5.0  # seconds until the topic is made, or looked for, again
SOON: Final = 0.01  # seconds until it is tried again to dispatch
MEASURE: Final = 0.1  # seconds between two measurements of the lag
LOOK: Final = 5.0  # seconds between two looks at the ends of the log
LOSSES: Final = 1.0  # seconds between two lines about what was lost
STANDS: Final = 30.0  # seconds until it is told that a position stands still


class InboundStatistics:
    def __init__(self) -> None:
        self.appended = 0  # publishes that the log has
        self.dispatched = 0  # publishes
        self.left_out = 0  # publishes of QoS 0 that a former worker may have dispatched
        self.deleted = 0  # records that retention has deleted before they were dispatched
        self.damaged = 0  # records and packs that could not be decoded
        self.lag = 0.0  # seconds
        self.behind = 0  # records that are not done
        self.unfinished = 0  # publishes that are under way
        self.partitions = 0  # that this worker dispatches
        self.trouble = ""  # why nothing is accepted; "": nothing is known to be wrong


class Standing:
    """A position at *offset*, before a record of which something is under way *since* then."""

    def __init__(self, offset: int, since: float) -> None:
        self.offset: Final = offset
        self.since: Final = since
        self.told = False


class InboundBackbone:
    def __init__(
        self,
        link: LogLink,
        log: InboundLog,
        positions: PartitionPositions,
        ownership: PartitionOwnership,
        dispatch: InboundDispatch,
        properties: TopicProperties,
        signal: Signal,
        clock: Callable[[], float],
        wall: Callable[[], float],
        lines: Log,
    ) -> None:
        """*properties*: of the topic, if it has to be made. *signal*: of the lag. *wall*: Unix time."""
        self.log: Final = log
        self._link = link
        self._positions = positions
        self._ownership = ownership
        self._dispatch = dispatch
        self._properties = properties
        self._signal = signal
        self._clock = clock
        self._wall = wall
        self._lines = lines
        self._serving = False
        self._serves_since = inf
        self._trouble = ""  # why the topic cannot be used
        self._asking = False
        self._ask_at = 0.0
        self._measure_at = 0.0
        self._look_at = 0.0
        self._losses_at = 0.0
        self._lag = 0.0
        self._standing: dict[int, Standing] = {}  # by partition
        self._left_out = 0
        self._deleted = 0
        self._damaged = 0

    def serve(self) -> None:
        """This worker serves clients from now on, and may dispatch."""
        self._serving = True
        self._serves_since = self._clock()

    def busy(self) -> bool:
        """Whether `work()` may have something to do."""
        if self.log.has_work():
            return True
        return any(feed.has_more() for feed in self._ownership.feeds.values())

    def work(self, until: float) -> bool:
        """Append what was offered, and dispatch until the time *until*; whether more can be dispatched at once."""
        if self.log.has_work():
            self.log.flush(self._clock())
        left = self._dispatch.work(self._ownership.feeds, until)
        self._ownership.save(self._clock())
        return left

    def tick(self, now: float) -> float:
        """Do what is due; when the next thing is. To be called between two publishes.

        What was offered is appended, so that the gate of the log may be marked then.
        """
        if self.log.has_work():
            self.log.flush(now)
        if now >= self._measure_at:
            self._measure_at = now + MEASURE
            self._measure(now)
        if not self.log.open:
            if now >= self._ask_at and not self._asking:
                self._ask()
            return self._measure_at if self._asking else min(self._ask_at, self._measure_at)
        due = self._ownership.tick(now) if self._serving else inf
        if now >= self._look_at and not self._asking:
            self._look_at = now + LOOK
            self._asking = True
            self._link.describe(self.log.topic, self._looked)
        if self.busy():  # until a gate opens
            due = min(due, now + SOON)
        return min(due, self._measure_at)

    def settled(self) -> bool:
        """Whether nothing is left to do; to be asked when no client is left: partitions are given up from then on."""
        self._ownership.leave()
        return not self._ownership.feeds and not self.log.unstored and not self.log.has_work()

    # The topic.

    def _ask(self) -> None:
        self._asking = True
        self._link.create(self.log.topic, self._properties, self._created)

    def _created(self, error: LogError | None) -> None:
        if error is not None:
            self._failed(str(error))
        else:
            self._link.describe(self.log.topic, self._described)

    def _described(self, description: TopicDescription | None, error: LogError | None) -> None:
        if error is not None:
            self._failed(str(error))
        elif description is None:  # it was deleted meanwhile
            self._ask()
        else:
            ends = list(description.next)
            positions = {number: Position(end) for number, end in enumerate(ends)}
            self._positions.begin(positions, partial(self._begun, ends))

    def _begun(self, ends: list[int], failure: StoreFailure | None) -> None:
        if failure is not None:
            self._failed(failure.words)
            return
        self._asking = False
        if self._trouble:
            self._trouble = ""
            self._lines.info("backbone_recovered", topic=self.log.topic)
        self.log.begin(ends, self._clock())

    def _failed(self, why: str) -> None:
        self._asking = False
        self._ask_at = self._clock() + RETRY
        if why != self._trouble:
            self._trouble = why
            self._lines.error("backbone_unusable", topic=self.log.topic, why=why)

    def _looked(self, description: TopicDescription | None, error: LogError | None) -> None:
        self._asking = False
        if description is not None:
            for partition, end in zip(self.log.partitions, description.next, strict=False):
                partition.end = end
            self._begin_without_position(list(description.next))

    def _begin_without_position(self, ends: list[int]) -> None:
        """Have partitions whose positions Redis has lost go on at the end of the log, which is at *ends*."""
        numbers = [number for number in self._ownership.without_position(self._clock()) if number < len(ends)]
        if numbers:
            self._lines.error("backbone_positions_lost", topic=self.log.topic, partitions=len(numbers))
            self._positions.begin({number: Position(ends[number]) for number in numbers}, _ignore)

    # How far behind.

    def _measure(self, now: float) -> None:
        wall = self._wall()
        lag = max(0.0, now - (self._ownership.unclaimed_since if self.log.open else self._serves_since))
        for feed in self._ownership.feeds.values():
            oldest = feed.oldest()
            if oldest:
                lag = max(lag, wall - oldest)
        self._lag = lag
        self._signal.measure(lag, now)
        if now >= self._losses_at:
            self._losses_at = now + LOSSES
            self._tell_losses()
            self._look_what_stands(now)

    def _look_what_stands(self, now: float) -> None:
        feeds, standing = self._ownership.feeds, self._standing
        self._standing = {}
        for feed in feeds.values():
            if not feed.unfinished:
                continue
            one = standing.get(feed.number)
            if one is None or one.offset != feed.position.offset:
                one = Standing(feed.position.offset, now)
            elif now - one.since >= STANDS and not one.told:
                one.told = True
                self._lines.warning(
                    "backbone_partition_stands", partition=feed.number, offset=one.offset, publishes=feed.unfinished
                )
            self._standing[feed.number] = one

    def _tell_losses(self) -> None:
        for feed in self._ownership.feeds.values():
            missing, damages, left_out = feed.take_losses()
            self._left_out += left_out
            self._deleted += missing
            self._damaged += len(damages)
            if missing:
                self._lines.error("backbone_records_deleted", partition=feed.number, records=missing)
            if damages:
                offset, why = damages[0]
                self._lines.error(
                    "backbone_record_damaged", partition=feed.number, offset=offset, records=len(damages), why=why
                )

    def trouble(self) -> str:
        """Why nothing is accepted now; "": nothing is known to be wrong."""
        return self._trouble or self._link.append_trouble(self.log.topic)

    def unread(self) -> str:
        """What is wrong with a partition here: it cannot be read, or stands still; "": nothing is known to be."""
        for feed in self._ownership.feeds.values():
            if feed.trouble:
                return f"partition {feed.number} cannot be read: {feed.trouble}"
        for number, one in self._standing.items():
            if one.told:
                waited = self._clock() - one.since
                where = f"partition {number} stands at record {one.offset}"
                return f"{where}: a receiver has not been done with it for {waited:.0f} s"
        return ""

    def statistics(self) -> InboundStatistics:
        found = InboundStatistics()
        found.appended, found.dispatched = self.log.appended, self._dispatch.dispatched
        found.left_out, found.deleted, found.damaged = self._left_out, self._deleted, self._damaged
        found.lag, found.trouble = self._lag, self.trouble()
        feeds = self._ownership.feeds
        found.partitions = len(feeds)
        for feed in feeds.values():
            found.unfinished += feed.unfinished
            end = max(feed.read_to, self.log.partitions[feed.number].end)
            found.behind += max(0, end - feed.position.offset)
        return found


def _ignore(failure: StoreFailure | None) -> None:
    """What has not begun is found again at the next look."""
