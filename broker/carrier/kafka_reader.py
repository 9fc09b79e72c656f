# Reads all partitions of a Kafka log, in one thread: the loop of kafka-python, to which callbacks are given.
#
# KafkaConsumer is not used. It looks at all its partitions at each poll; an error of one partition ends the poll of
# all, without its name; what it has fetched of a partition that is paused stays in memory; and whatever is added waits
# until Kafka answers the fetch that is under way, half a second for partitions that are idle. Of kafka-python remain
# the connections and the protocol.
#
# So each broker has two connections (kafka_lane.py):
# - quick: partitions that were added or resumed, or had records lately. Kafka waits QUICK_WAIT at most, so that one
#   that is added is not kept waiting; each record is another fetch, for few partitions.
# - idle: all others, which are most. Kafka waits IDLE_WAIT. A partition that has been silent for SILENT changes to this
#   one when the broker has answered its last fetch, and back when it has records.
# What this process has appended itself is given to the readings at that offset when Kafka has it: nearly all logs are
# appended to where they are read. While that goes on, the partition is not fetched at all. If others append to it, too,
# an offset is not that of the position, and the partition is fetched again; what only others append, after FED.
# So it is with another leader: a fetch tells what that has lost, by the epoch of the leader that wrote the last record.
# Memory: a partition is fetched again before its reader has taken the last page, but not before it has taken the one
# before that, and nothing is fetched while AHEAD bytes have not been taken. A reading that is paused holds nothing:
# what was under way for it is dropped, and fetched again when it is resumed.
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any, Final

from kafka import errors
from kafka.net.compat import KafkaNetClient
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer import ListOffsetsRequest, OffsetSpec
from kafka.protocol.metadata import MetadataRequest

from broker.carrier.inbox import Inbox
from broker.carrier.kafka_clients import CLIENT, MOST_ANSWER
from broker.carrier.kafka_errors import error_of
from broker.carrier.kafka_lane import AHEAD, Lane, Source, Topic
from broker.carrier.kafka_session import PARTITION_BYTES, Entry, Page, page_of
from broker.carrier.log import Reading
from broker.reasons import LogFailure
from broker.store.logs.records import decode
from broker.store.logs.topics import LogError, Partition

QUICK_WAIT: Final = 20  # milliseconds
IDLE_WAIT: Final = 1000  # milliseconds
SILENT: Final = 0.1  # seconds
FED: Final = 0.05  # seconds without a record from here, after which a partition is fetched again
AGAIN: Final = 1.0  # seconds until a connection, or what people have to mend, is tried again
FIRST_PAUSE: Final = 0.05  # seconds until leaders are looked for again; it doubles, up to AGAIN
PATIENT: Final = 5  # attempts, about 2 s, until it is told that a partition has no leader: an election may take as long
KNOWN: Final = 10_000  # topics whose leaders are remembered, beside those that are read
TOLD: Final = (LogFailure.AUTHENTICATION_FAILED, LogFailure.CLIENT_REFUSED, LogFailure.REFUSED)  # of a connection
NOWHERE: Final = -1  # the leader of a partition that has none


class KafkaReader:
    def __init__(self, options: Mapping[str, Any], inbox: Inbox) -> None:
        """*options*: of all clients of kafka-python. What is found is put into *inbox*."""
        self._options = {
            **CLIENT,
            "slow_task_threshold_secs": 0,
            "receive_message_max_bytes": MOST_ANSWER,
            **options,
        }
        self._inbox = inbox
        self._sources: dict[Reading, Source] = {}  # for the thread of the log
        self._sources_of: dict[Partition, list[Source]] = {}  # the same
        self._net = NetworkSelector(**self._options)
        self._closer: threading.Thread | None = None
        # All that follows is for the thread of the loop only.
        self.closed = False
        self.ahead = 0  # bytes in pages that readers have not taken
        self._all: set[Source] = set()
        self._quick_client: Any = None
        self._idle_client: Any = None
        self._connected = False
        self._quick: dict[int, Lane] = {}  # by broker
        self._idle: dict[int, Lane] = {}
        self._topics: dict[str, Topic] = {}
        self._uses: Counter[str] = Counter()  # sources of a topic
        self._pages: list[tuple[Source, Page]] = []  # of the answer that is handled
        self._fed: set[Source] = set()  # that are not fetched, as what is appended here is given to them
        self._looking = False  # `_look_who_is_fed()` is about to be called
        self._leaderless: set[Source] = set()  # those that would be fetched if their leader were known
        self._asking = False  # a request for leaders is under way
        self._look_next = 0.0  # when `_look_for_leaders()` is called
        self._net.start()
        self._call(self._connect)

    # In the thread of the log.

    def add(self, reading: Reading) -> None:
        source = self._sources[reading] = Source(reading)
        self._sources_of.setdefault(source.partition, []).append(source)
        self._call(self._add, source)

    def change(self, reading: Reading) -> None:
        """*reading* was paused, resumed or stopped."""
        source = self._sources[reading]
        if reading.stopped:
            del self._sources[reading]
            sources = self._sources_of[source.partition]
            sources.remove(source)
            if not sources:
                del self._sources_of[source.partition]
            self._call(self._remove, source)
        else:
            self._call(self._turn, source, reading.paused, reading.position.offset, reading.position.log)

    def appended(self, partition: Partition, leader: int | None, offset: int, record: bytes) -> None:
        """This process has appended *record* at *offset*: give it to the readings that wait for it.

        *leader*: the broker that has got it, as far as is known.
        """
        for source in [*self._sources_of.get(partition, ())]:
            if not source.reading.paused and not self._closer:
                self._feed(source, leader, offset, record)

    def _feed(self, source: Source, leader: int | None, offset: int, record: bytes) -> None:
        reading = source.reading
        position = reading.position
        if offset == position.offset and leader == source.leader and not source.astray:
            if source.located and position.log == source.log:
                now = time.monotonic()
                often, source.fed_at = now - source.fed_at < FED, now
                reading.take([(offset, record)])
                source.fed_to = offset + 1
                if often and not source.fed:
                    self._call(self._begin_feeding, source)
        elif offset >= position.offset or not position.has_passed(decode(record)):
            # Others have appended before it, or it has another leader, has lost its end, or was made anew.
            source.astray = source.astray or offset < position.offset
            source.fed_at = -inf
            if source.fed:
                self._call(self._end_feeding, source)

    def stop(self) -> None:
        self._call(self._close)
        # It waits for the loop, which may have to finish a page.
        self._closer = threading.Thread(target=self._end, name="kafka-reader-end", daemon=True)
        self._closer.start()

    def is_alive(self) -> bool:
        return self._closer is None or self._closer.is_alive()

    def _end(self) -> None:
        self._net.stop()
        self._net.close()

    def _call(self, work: Callable[..., None], *arguments: Any) -> None:
        """Have *work* done in the thread of the loop, behind what was called before."""
        if self._closer is None:
            self._net.call_soon_threadsafe(lambda: self.guarded(work, *arguments))

    def _take(self, pages: list[tuple[Source, Page]]) -> None:
        """Give the readers what was fetched."""
        for source, page in pages:
            reading = source.reading
            # A page behind one that was dropped, as the reading was paused, is dropped as well.
            if not reading.paused and page.first <= reading.position.offset:
                reading.take(page.records)
                source.astray = False
                if not reading.paused and reading.position.offset < page.next:
                    reading.jump(page.next)
        self._call(self._taken, [(source, page.bytes) for source, page in pages])

    # In the thread of the loop.

    def guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do *work*. After an exception that nobody expects all connections begin anew: kafka-python would hide it."""
        if not self.closed:
            try:
                work(*arguments)
            except Exception as exception:
                self._begin_anew(error_of(exception))

    def soon(self, work: Callable[[], None]) -> None:
        """Do *work* when what is ready now has been done: many sources that are added share a fetch."""
        self._net.call_soon(lambda: self.guarded(work))

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        self._net.call_later(seconds, lambda: self.guarded(work))

    def entry_of(self, source: Source) -> Entry | None:
        """What to fetch for *source*; None: its topic has just been lost, which its next fetch will say."""
        topic = self._topics.get(source.partition.topic)
        if topic is None or source.partition.number not in topic.leaders:
            return None
        _, epoch = topic.leaders[source.partition.number]
        return Entry(topic.identity, source.offset, epoch, source.epoch)

    def lose_leader(self, source: Source, error: LogError) -> None:
        """*source* cannot be fetched where it was: find out where it can."""
        if error.failure in TOLD or error.failure is LogFailure.FORBIDDEN:
            self._tell(source, error)
        self._put_off(source)

    def has_come(self, sources: list[Source], entry: Entry, data: Any) -> None:
        """Handle *data*, which was fetched for *sources*."""
        kind = errors.for_code(data.error_code)
        if kind is errors.OffsetOutOfRangeError:
            for source in sources:
                self._find_oldest(source, entry)
        elif kind is not errors.NoError:
            for source in sources:
                self.lose_leader(source, error_of(kind(source.partition.topic)))
        elif data.diverging_epoch is not None and data.diverging_epoch.end_offset >= 0:
            for source in sources:
                self._go_on_at(source, data.diverging_epoch.end_offset)
        elif data.records:
            self._give(sources, data.records)

    def settle(self, lane: Lane) -> None:
        """A fetch was answered: tell the readers, move what has been silent to the idle lane, and go on."""
        if self._pages:
            self._inbox.put(partial(self._take, self._pages))
            self._pages = []
        if lane not in (self._quick.get(lane.node), self._idle.get(lane.node)):
            return  # all has begun anew
        quick, idle = self._quick[lane.node], self._idle[lane.node]
        if not idle.under_way:
            long_ago = time.monotonic() - SILENT
            for source in [one for sources in quick.sources.values() for one in sources if one.since < long_ago]:
                if idle.fits(source):
                    quick.remove(source)
                    idle.add(source)
        idle.pump()
        quick.pump()

    def _give(self, sources: list[Source], records: bytes) -> None:
        try:
            page = page_of(records, sources[0].offset)
        except (errors.UnsupportedCodecError, ValueError) as error:
            for source in sources:
                self._tell(source, LogError(LogFailure.OTHER_TOPIC, f"{source.partition.topic}: {error}"))
                self._put_off(source)
            return
        for source in sources:
            self.recovered(source)
            self._pages.append((source, page))
            source.untaken += page.bytes
            self.ahead += page.bytes
            source.offset, source.epoch = page.next, page.epoch
            self._take_out(source)
            self._place(source)

    def _add(self, source: Source) -> None:
        self._all.add(source)
        self._uses[source.partition.topic] += 1
        self._place(source)

    def _begin_feeding(self, source: Source) -> None:
        if not source.paused and not source.stopped and time.monotonic() - source.fed_at < FED:
            if not self._looking:
                self._looking = True
                self.later(FED, self._look_who_is_fed)
            source.fed = True
            self._fed.add(source)
            self._take_out(source)

    def _look_who_is_fed(self) -> None:
        self._looking = len(self._fed) > 0
        if self._looking:
            self.later(FED, self._look_who_is_fed)
        long_ago = time.monotonic() - FED
        for source in [one for one in self._fed if one.fed_at < long_ago]:
            self._end_feeding(source)

    def _end_feeding(self, source: Source) -> None:
        """Fetch *source* again, behind what it was given."""
        self._forget_feeding(source)
        self._place(source)

    def _forget_feeding(self, source: Source) -> None:
        if source.fed:
            source.fed = False
            self._fed.discard(source)
            if source.fed_to > source.offset:
                source.offset, source.epoch = source.fed_to, source.leader_epoch

    def _remove(self, source: Source) -> None:
        source.stopped = True
        self._forget_feeding(source)
        self._all.discard(source)
        self._take_out(source)
        self._uses[source.partition.topic] -= 1
        if not self._uses[source.partition.topic]:
            del self._uses[source.partition.topic]
            if len(self._topics) > KNOWN:  # otherwise a client that comes back need not wait for its leader
                self._topics.pop(source.partition.topic, None)

    def _turn(self, source: Source, paused: bool, offset: int, log: bytes) -> None:
        source.paused = paused
        self._forget_feeding(source)
        self._take_out(source)
        source.offset, source.log, source.epoch = offset, log, -1
        self._place(source)

    def _taken(self, pages: list[tuple[Source, int]]) -> None:
        full = self.ahead >= AHEAD
        for source, size in pages:
            self.ahead -= size
            source.untaken -= size
        for source, _ in pages:
            self._place(source)
        if full and self.ahead < AHEAD:
            for lane in [*self._quick.values(), *self._idle.values()]:
                lane.pump()

    def _place(self, source: Source) -> None:
        """Have *source* fetched from now on, unless it is not to be."""
        if (
            source.fed
            or source.lane is not None
            or source.paused
            or source.stopped
            or source.untaken >= PARTITION_BYTES
        ):
            self._leaderless.discard(source)
            return
        topic = self._topics.get(source.partition.topic)
        node, epoch = (NOWHERE, -1) if topic is None else topic.leaders.get(source.partition.number, (NOWHERE, -1))
        if topic is None or node == NOWHERE or not self._connected or source.again > time.monotonic():
            self._leaderless.add(source)
            if not time.monotonic() < self._look_next <= source.again:
                self._look_for_leaders()
            return
        self._leaderless.discard(source)
        if source.log != topic.identity.bytes:
            if source.log:
                source.offset, source.epoch = 0, -1
            source.log = topic.identity.bytes
            self._inbox.put(partial(_identify, source.reading, source.log))
        source.leader, source.leader_epoch, source.located = node, epoch, True
        if node not in self._quick:
            self._quick[node] = Lane(self, node, self._quick_client, QUICK_WAIT)
            self._idle[node] = Lane(self, node, self._idle_client, IDLE_WAIT)
        source.since = time.monotonic()
        self._quick[node].add(source)
        self.soon(self._quick[node].pump)

    def _take_out(self, source: Source) -> None:
        self._leaderless.discard(source)
        if source.lane is not None:
            source.lane.remove(source)

    def _put_off(self, source: Source) -> None:
        """Look for the leader of *source* again, after a pause that becomes longer."""
        self._take_out(source)
        source.located = False
        source.again = time.monotonic() + min(FIRST_PAUSE * 2 ** min(source.attempts, PATIENT), AGAIN)
        source.attempts += 1
        self._place(source)

    def _go_on_at(self, source: Source, offset: int) -> None:
        """The log is not what it was where *source* goes on: go on at *offset*."""
        self._inbox.put(partial(_jump, source, source.offset, offset))
        self._take_out(source)
        source.offset, source.epoch = offset, -1
        self._place(source)

    def _tell(self, source: Source, error: LogError) -> None:
        if error.failure is not source.told:
            source.told = error.failure
            self._inbox.put(partial(_fail, source.reading, error))

    def recovered(self, source: Source) -> None:
        """*source* was fetched."""
        if source.told is not None:
            source.told = None
            self._inbox.put(partial(_fail, source.reading, None))

    def _find_oldest(self, source: Source, entry: Entry) -> None:
        """The log has no record at the offset: go on with its oldest one."""
        assert source.lane is not None
        node = source.lane.node
        self._take_out(source)
        part = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
            partition_index=source.partition.number,
            current_leader_epoch=entry.leader_epoch,
            timestamp=OffsetSpec.EARLIEST.value,
        )
        topic = ListOffsetsRequest.ListOffsetsTopic(name=source.partition.topic, partitions=[part])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic], min_version=4, max_version=6)
        found = partial(self._found_oldest, source, source.offset)
        self._ask(request, node, found, lambda error: self.lose_leader(source, error_of(error)))

    def _found_oldest(self, source: Source, missing: int, response: Any) -> None:
        found = response.topics[0].partitions[0]
        kind = errors.for_code(found.error_code)
        if source.lane is not None or source.offset != missing:
            return  # it was paused and resumed meanwhile
        if kind is not errors.NoError:
            self.lose_leader(source, error_of(kind(source.partition.topic)))
        elif found.offset == missing:  # a record was appended there meanwhile
            self._place(source)
        else:
            self._go_on_at(source, found.offset)

    def _ask(
        self, request: Any, node: int | None, then: Callable[[Any], None], failed: Callable[[BaseException], None]
    ) -> None:
        try:
            future = self._quick_client._manager.send(request, node_id=node)
        except errors.KafkaError as error:
            failed(error)
        else:
            future.add_callback(partial(self.guarded, then))
            future.add_errback(partial(self.guarded, failed))

    # Brokers and leaders.

    def _connect(self) -> None:
        """Find the brokers, over both clients."""
        waiting: list[Any] = []
        if self._quick_client is None:
            self._quick_client = KafkaNetClient(net=self._net, **self._options)
            self._idle_client = KafkaNetClient(net=self._net, **self._options)
        for client in (self._quick_client, self._idle_client):
            if not client._manager.bootstrapped:
                waiting.append(client._manager.bootstrap_async(self._options["bootstrap_timeout_ms"]))
        for future in waiting[:1]:  # one after the other: if one cannot, the other one cannot either
            future.add_callback(lambda _: self.guarded(self._connect))
            future.add_errback(partial(self.guarded, self._not_connected))
        if not waiting:
            self._connected = True
            self._look_for_leaders()

    def _not_connected(self, exception: BaseException) -> None:
        error = error_of(exception)
        if error.failure in TOLD:
            for source in self._all:
                self._tell(source, error)
        self.later(AGAIN, self._connect)

    def _look_for_leaders(self) -> None:
        """Ask for the leaders of all sources for which it is time, or see to it that this is done then."""
        if self._asking or not self._leaderless or not self._connected:
            return
        now = time.monotonic()
        due = min(source.again for source in self._leaderless)
        if due <= now:
            self._ask_for_leaders({one.partition.topic for one in self._leaderless if one.again <= now})
        elif due < self._look_next or self._look_next <= now:
            self._look_next = due
            self.later(due - now, self._look_for_leaders)

    def _ask_for_leaders(self, topics: set[str]) -> None:
        self._asking = True
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=topic) for topic in sorted(topics)],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        self._ask(request, None, partial(self._found_leaders, topics), partial(self._found_none, topics))

    def _found_none(self, topics: set[str], exception: BaseException) -> None:
        # Meanwhile `_asking` stays: what is put off would ask for the others at once, and each failure for the next.
        for source in [one for one in self._leaderless if one.partition.topic in topics]:
            self._not_found(source, error_of(exception))
        self._asking = False
        self._look_for_leaders()

    def _found_leaders(self, topics: set[str], response: Any) -> None:
        for client in (self._quick_client, self._idle_client):
            client.cluster.update_metadata(response)  # where the brokers are
        failures: dict[str, LogError] = {}
        for found in response.topics:
            kind = errors.for_code(found.error_code)
            if kind is errors.UnknownTopicOrPartitionError:
                self._topics.pop(found.name, None)
            elif kind is errors.NoError:
                leaders = {part.partition_index: (part.leader_id, part.leader_epoch) for part in found.partitions}
                self._topics[found.name] = Topic(found.topic_id, leaders)
            else:
                failures[found.name] = error_of(kind(found.name))
        for source in [one for one in self._leaderless if one.partition.topic in topics]:
            name, number = source.partition
            topic = self._topics.get(name)
            if name in failures:
                self._not_found(source, failures[name])
            elif topic is None or number not in topic.leaders:
                detail = name if topic is None else f"{name} has no partition {number}"
                self._not_found(source, LogError(LogFailure.UNKNOWN_TOPIC, detail))
            elif topic.leaders[number][0] == NOWHERE:
                self._not_found(source, LogError(LogFailure.NO_LEADER, f"{name}, partition {number}"))
            else:
                source.again = 0.0
                self._place(source)
        self._asking = False
        self._look_for_leaders()

    def _not_found(self, source: Source, error: LogError) -> None:
        lasts = error.failure in (LogFailure.UNKNOWN_TOPIC, LogFailure.FORBIDDEN) or error.failure in TOLD
        if lasts or source.attempts >= PATIENT:
            self._tell(source, error)
        self._put_off(source)

    def _begin_anew(self, error: LogError) -> None:
        for lane in [*self._quick.values(), *self._idle.values()]:
            lane.sources.clear()
        self._quick.clear()
        self._idle.clear()
        self._topics.clear()
        self._asking = True  # as in `_found_none()`
        for source, page in self._pages:
            self.ahead -= page.bytes
            source.untaken -= page.bytes
        self._pages = []
        for source in self._all:
            source.lane = None
            self._forget_feeding(source)
            self._tell(source, error)
            self._put_off(source)
        self._asking, self._look_next = False, 0.0
        self._look_for_leaders()

    def _close(self) -> None:
        self.closed = True
        for client in (self._quick_client, self._idle_client):
            if client is not None:
                client._manager.close()


def _identify(reading: Reading, log: bytes) -> None:
    if not reading.paused:
        reading.identify(log)


def _jump(source: Source, missing: int, offset: int) -> None:
    """Have the reading go on at *offset*, if it is at *missing*, or behind that by what was appended here."""
    reading = source.reading
    here = reading.position.offset
    if not reading.paused and (here == missing or (missing < here == source.fed_to != offset)):
        reading.jump(offset)


def _fail(reading: Reading, error: LogError | None) -> None:
    if not reading.stopped:
        reading.reader.failed(error)
