# One connection to one broker of Kafka, with one fetch at a time, and the readings that are fetched over it.
#
# Sources of one partition at different offsets take turns: a fetch names a partition once.
import time
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Final, Protocol
from uuid import UUID

from kafka import errors

from broker.carrier.kafka_errors import error_of
from broker.carrier.kafka_session import Entry, FetchSession
from broker.carrier.log import Reading
from broker.reasons import LogFailure
from broker.store.logs.topics import LogError, Partition

AHEAD: Final = 16 * 1024 * 1024  # bytes that readers have not taken
# Kafka looks at all partitions of a session for each fetch, which costs it 15 us a partition, even if one has a record.
PACE: Final = 50e-6  # seconds between two fetches, for each partition in them
LEAST_PACE: Final = 0.003  # seconds: a fetch costs Kafka and its client a millisecond of CPU, however much it brings
LEAST_PAUSE: Final = 0.0005  # seconds
REFUSED: Final = 0.05  # seconds until the next fetch when the broker has not understood one


class LaneOwner(Protocol):
    """What a lane asks the reader for (kafka_reader.py)."""

    ahead: int
    closed: bool

    def guarded(self, work: Callable[..., None], *arguments: Any) -> None: ...

    def later(self, seconds: float, work: Callable[[], None]) -> None: ...

    def entry_of(self, source: "Source") -> Entry | None: ...

    def lose_leader(self, source: "Source", error: LogError) -> None: ...

    def recovered(self, source: "Source") -> None: ...

    def has_come(self, sources: list["Source"], entry: Entry, data: Any) -> None: ...

    def settle(self, lane: "Lane") -> None: ...


class Source:
    """A reading, as the thread sees it."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.partition = reading.partition
        self.offset = reading.position.offset  # of the next fetch
        self.log = reading.position.log  # the topic that the offset is of; b"": any
        self.epoch = -1  # of the last record that was fetched
        self.paused = reading.paused
        self.stopped = False
        self.untaken = 0  # bytes of pages that the reader has not taken
        self.lane: Lane | None = None
        self.since = 0.0  # when it was added or resumed, or had records
        self.attempts = 0  # to find its leader, or to fetch from it, since it was fetched last
        self.again = 0.0  # when its leader is looked for
        self.told: LogFailure | None = None  # the failure that its reader knows
        self.located = False  # `log` is the topic that there is, as far as is known
        self.leader = -1  # the broker that it is, or was, fetched from
        self.leader_epoch = -1  # of its leadership
        self.fed = False  # it is not fetched, as what is appended here is given to it
        # Of the thread of the log, which reads the four above, too; that of the loop reads the first two.
        self.fed_to = 0  # the offset behind the last record that it was given so
        self.fed_at = -inf  # when that was
        self.astray = False  # the log is not what it was before the position


class Topic:
    def __init__(self, identity: UUID, leaders: dict[int, tuple[int, int]]) -> None:
        self.identity = identity
        self.leaders = leaders  # partition -> broker, and the epoch of its leadership


class Lane:
    """One connection to one broker, and the sources that are fetched over it."""

    def __init__(self, reader: LaneOwner, node: int, client: Any, wait: int) -> None:
        self.sources: dict[Partition, list[Source]] = {}  # the first one is fetched, and those with the same offset
        self.under_way = False
        self.node = node
        self._reader = reader
        self._manager = client._manager
        self._session = FetchSession(wait)
        self._not_before = 0.0
        self._pausing = False

    def add(self, source: Source) -> None:
        source.lane = self
        sources = self.sources.setdefault(source.partition, [])
        sources.append(source)
        if sources[0] is source:
            self._put(source)

    def remove(self, source: Source) -> None:
        source.lane = None
        sources = self.sources[source.partition]
        first = sources[0] is source
        sources.remove(source)
        if not sources:
            del self.sources[source.partition]
            self._session.drop(source.partition)
        elif first:
            self._put(sources[0])

    def fits(self, source: Source) -> bool:
        """Whether *source* is fetched at the offset of its partition's others."""
        sources = self.sources.get(source.partition)
        return not sources or sources[0].offset == source.offset

    def pump(self) -> None:
        """Send a fetch, unless one is under way or there is nothing to fetch."""
        reader = self._reader
        if self.under_way or not self.sources or reader.ahead >= AHEAD or reader.closed:
            return
        now = time.monotonic()
        if self._not_before - now > LEAST_PAUSE:
            if not self._pausing:
                self._pausing = True
                reader.later(self._not_before - now, self._go_on)
            return
        self.under_way = True
        self._not_before = now + max(LEAST_PACE, PACE * len(self.sources))
        try:
            future = self._manager.send(self._session.request(), node_id=self.node)
        except errors.KafkaError as error:
            self._failed(error)
        else:
            future.add_callback(partial(reader.guarded, self._answered))
            future.add_errback(partial(reader.guarded, self._failed))

    def _go_on(self) -> None:
        self._pausing = False
        self.pump()

    def _put(self, source: Source) -> None:
        entry = self._reader.entry_of(source)
        if entry is not None:
            self._session.put(source.partition, entry)

    def _failed(self, error: BaseException) -> None:
        """The broker cannot be reached, or the fetch was not understood."""
        self.under_way = False
        self._session.reset()
        for source in [one for sources in self.sources.values() for one in sources]:
            self._reader.lose_leader(source, error_of(error))

    def _answered(self, response: Any) -> None:
        self.under_way = False
        if response.error_code:
            self._not_before = time.monotonic() + REFUSED
        for sources in self.sources.values():
            if any(one.offset != sources[0].offset for one in sources):
                sources.append(sources.pop(0))
                self._put(sources[0])
        for key, entry, data in self._session.answered(response):
            sources = [one for one in self.sources.get(key, ()) if one.offset == entry.offset]
            if sources:
                self._reader.has_come(sources, entry, data)
        for key, sources in self.sources.items():
            if key in self._session.known:  # it was fetched, and did not fail, or it would not be here
                sources[0].attempts = 0
                if sources[0].told is not None:
                    self._reader.recovered(sources[0])
        self._reader.settle(self)
