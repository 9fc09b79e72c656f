# The log in streams of Redis or Valkey: each partition is a stream, whose entries are records (records.py).
#
# Scripts number the records of a partition from 0 without gaps, as Kafka does; the ids that Redis would choose do not
# say how many records lie between two. So a reader sees by the offsets alone that retention has overtaken it. A stream
# costs 4 KB even with one short record, so streams are few and long, and their records are packs.
#
# Appending, and reading what is there, are commands on one connection. For readings that have read all, one XREAD waits
# for more in all their streams, on a connection of its own, as it blocks. It also has a stream that only this process
# writes to: an entry ends the wait when there is another stream to wait for.
#
# Retention is kept to the record by trim.lua, a few partitions each second.
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any, Final, cast

from broker.carrier.appends import MOST_BYTES, Appends, Done
from broker.carrier.log import LogStatistics, Reader, Reading
from broker.carrier.redis_keys import LogKeys
from broker.reasons import LogFailure, StoreFailure
from broker.store.logs.records import LOG_BYTES, Pack, Position
from broker.store.logs.topics import LogError, Partition, TopicDescription, TopicProperties
from broker.store.redis.connection import READY, packed
from broker.store.redis.pipeline import CallbackCommand, CommandPipeline
from broker.store.redis.script import Script

TIMEOUT: Final = 5.0  # seconds for a command
COMMAND_BYTES: Final = MOST_BYTES  # without a reply: all that may wait to be appended, and once only if it is late
BLOCK: Final = 1000  # milliseconds of one wait; the connection would be taken for dead after 3 seconds of silence
COUNT: Final = 8  # records of one reply, for one stream: at most 4 MiB
COUNT_WAITED: Final = 512  # records of one reply, for all streams that are waited for, but one for each stream
READS: Final = 16  # replies with records that are under way
AGAIN: Final = 0.2  # seconds until what failed is read again
TURN: Final = 1.0  # seconds between two turns of trimming, and of looking whether topics have been made anew
TURNS: Final = 60  # in which each partition is trimmed, and each reading looked at, once
UNKNOWN: Final = -1  # what scripts return for a topic that does not exist

FAILURES: Final = {
    StoreFailure.TIMEOUT: LogFailure.TIMEOUT,
    StoreFailure.AUTHENTICATION_FAILED: LogFailure.AUTHENTICATION_FAILED,
    StoreFailure.FORBIDDEN: LogFailure.FORBIDDEN,
    StoreFailure.MEMORY_FULL: LogFailure.CANNOT_STORE,
    StoreFailure.CANNOT_WRITE: LogFailure.CANNOT_STORE,
    StoreFailure.REPLICAS: LogFailure.TOO_FEW_REPLICAS,
    StoreFailure.REFUSED: LogFailure.REFUSED,
    StoreFailure.MALFORMED_REPLY: LogFailure.REFUSED,
}
TOLD: Final = (LogFailure.UNKNOWN_TOPIC, LogFailure.FORBIDDEN, LogFailure.REFUSED)  # to readers: it does not pass

Then = Callable[[object, StoreFailure | None], None]
Entries = list[tuple[bytes, list[bytes]]]  # id, fields and values


def error_of(failure: StoreFailure) -> LogError:
    return LogError(FAILURES.get(failure, LogFailure.UNREACHABLE), failure.words)


class _Source:
    """A reading, and what is under way for it."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.asked = False  # a command for it has no reply yet
        self.checked = False  # its position is within the log
        self.at_end = False  # it has read all that there was: XREAD waits for more
        self.again = 0.0  # when it is to be read again after a failure; 0.0: there was none
        self.told: LogFailure | None = None  # the failure that its reader knows


class RedisLog:
    """A `Log`."""

    def __init__(
        self,
        commands: CommandPipeline,
        waits: CommandPipeline,
        prefix: str,
        identity: str,
        clock: Callable[[], float],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """*commands* takes COMMAND_BYTES. *waits*: a connection that is used for nothing else.

        *identity*: no other process has the same.
        """
        self._commands = commands
        self._waits = waits
        self._keys = LogKeys(prefix)
        self._clock = clock
        self._statistics = LogStatistics()
        self._appends = Appends(self._send, clock, self._statistics, most_bytes)
        script = files("broker.carrier")
        self._append = Script(commands, script.joinpath("append.lua").read_bytes())
        self._create = Script(commands, script.joinpath("create.lua").read_bytes())
        self._head = Script(commands, script.joinpath("head.lua").read_bytes())
        self._trim = Script(commands, script.joinpath("trim.lua").read_bytes())
        self._delete_text = script.joinpath("delete.lua").read_bytes()
        self._made: dict[str, TopicProperties] = {}  # topics that were made, or found, by this process
        self._sources: dict[Reading, _Source] = {}
        self._failing: set[_Source] = set()  # that are to be read again
        self._reads = 0  # XRANGE that have no reply yet
        self._queued: deque[_Source] = deque()  # that wait for one of those
        self._reading_queued = False
        self._waiting = False  # XREAD has no reply yet
        self._woken = False  # and is about to end
        self._wake_key = self._keys.wake(identity)
        self._wake_id = b"0-0"
        self._times_ready = 0  # of the connection, when all positions were last checked
        self._untrimmed: deque[tuple[Partition, TopicProperties]] = deque()
        self._trims = 0  # of one turn
        self._checks = 0  # of one turn
        self._unchecked: deque[_Source] = deque()
        self._turn_next = 0.0
        self._stopped = False

    def start(self) -> None:
        for script in (self._append, self._create, self._head, self._trim):
            script.load(self._clock())

    def stop(self) -> None:
        self._stopped = True

    def statistics(self) -> LogStatistics:
        return self._statistics

    def tick(self, now: float) -> float:
        if self._commands.times_ready != self._times_ready and self._commands.state == READY:
            self._times_ready = self._commands.times_ready
            for source in [*self._sources.values()]:  # before anything is appended: the log may have become shorter
                source.checked = False
                source.at_end = False
                self._go_on(source)
        due = min(self._appends.tick(now), self._turn_next)
        if now >= self._turn_next:
            due = self._turn_next = now + TURN
            self._trim_some()
            self._check_some()
        for source in [one for one in self._failing if one.again <= now]:
            self._failing.discard(source)
            source.again = 0.0
            self._go_on(source)
        for source in self._failing:
            due = min(due, source.again)
        self._wait()
        return due

    # Appending.

    def append(self, partition: Partition, pack: Pack, done: Done) -> bool:
        return self._appends.append(partition, pack, done)

    def flush(self) -> float:
        return self._appends.flush()

    def _send(self, partition: Partition, record: bytes, number: int) -> None:
        if self._commands.state != READY:  # in place of a time-out later
            self._appends.failed(partition, number, error_of(StoreFailure.UNREACHABLE))
            return
        self._call(self._append, self._keys_of(partition), [record], partial(self._sent, partition, number))

    def _sent(self, partition: Partition, number: int, reply: object, failure: StoreFailure | None) -> None:
        if failure is not None:
            self._appends.failed(partition, number, error_of(failure))
        elif reply == UNKNOWN:
            properties = self._made.get(partition.topic)
            if properties is not None:  # somebody has deleted it, or Redis has lost its data
                self.create(partition.topic, properties, lambda error: None)
            self._appends.failed(partition, number, LogError(LogFailure.UNKNOWN_TOPIC, partition.topic))
        else:
            self._appends.stored(partition, number, cast("int", reply))

    # Reading.

    def read(self, partition: Partition, position: Position, reader: Reader) -> Reading:
        reading = Reading(partition, position, reader, self._statistics, self._changed)
        source = self._sources[reading] = _Source(reading)
        self._go_on(source)
        return reading

    def _changed(self, reading: Reading) -> None:
        if reading.stopped:
            self._failing.discard(self._sources.pop(reading))
        elif not reading.paused:
            source = self._sources[reading]
            source.at_end = False
            source.checked = False  # the topic may have been made anew meanwhile
            self._go_on(source)

    def _go_on(self, source: _Source) -> None:
        """Read what is there, unless that is known to be nothing, or is under way."""
        reading = source.reading
        if reading.paused or source.asked or source.at_end or source.again or self._stopped:
            return
        source.asked = True
        if not source.checked:
            self._call(self._head, self._keys_of(reading.partition), [], partial(self._check, source))
        elif self._reads < READS:
            self._read(source)
        else:
            self._queued.append(source)

    def _read(self, source: _Source) -> None:
        self._reads += 1
        first = f"{source.reading.position.offset + 1}-0"
        words = packed("XRANGE", self._records(source), first, "+", "COUNT", COUNT)
        self._submit(self._commands, words, partial(self._found, source))

    def _read_queued(self) -> None:
        if not self._reading_queued:  # a command may fail at once, and bring us here again
            self._reading_queued = True
            while self._queued and self._reads < READS:
                self._read(self._queued.popleft())
            self._reading_queued = False

    def _check(self, source: _Source, reply: object, failure: StoreFailure | None) -> None:
        """The offsets of the oldest and the next record have come."""
        source.asked = False
        if failure is not None:
            self._failed(source, error_of(failure))
            return
        oldest, following, log = cast("tuple[int, int, bytes]", reply)
        reading = source.reading
        if oldest == UNKNOWN:
            self._failed(source, LogError(LogFailure.UNKNOWN_TOPIC, reading.partition.topic))
            return
        source.checked = True
        if not reading.stopped:
            if source.told is not None:
                source.told = None
                reading.reader.failed(None)
            reading.identify(log)
            if reading.position.offset > following:
                reading.jump(oldest)
        self._go_on(source)

    def _check_some(self) -> None:
        """Look whether topics have been deleted, or made anew, since their readings were looked at last."""
        if not self._unchecked:
            self._unchecked.extend(self._sources.values())
            self._checks = 1 + len(self._unchecked) // TURNS
        for _ in range(min(self._checks, len(self._unchecked))):
            source = self._unchecked.popleft()
            if source.at_end and not source.reading.paused:
                self._call(self._head, self._keys_of(source.reading.partition), [], partial(self._look, source))
            else:
                source.checked = False

    def _look(self, source: _Source, reply: object, failure: StoreFailure | None) -> None:
        if failure is None and source.at_end and not source.reading.paused:
            oldest, following, log = cast("tuple[int, int, bytes]", reply)
            position = source.reading.position
            if oldest == UNKNOWN or log != position.log or position.offset > following:
                source.checked = False
                source.at_end = False
                self._go_on(source)

    def _found(self, source: _Source, reply: object, failure: StoreFailure | None) -> None:
        source.asked = False
        self._reads -= 1
        self._read_queued()
        if failure is not None:
            self._failed(source, error_of(failure))
            return
        source.at_end = self._give(source, cast("Entries", reply), COUNT)
        if source.at_end:
            self._wake()
        else:
            self._go_on(source)

    def _give(self, source: _Source, entries: Entries, count: int) -> bool:
        """Give *entries* to the reader; whether there may be no more now."""
        source.reading.take([(int(key.partition(b"-")[0]) - 1, fields[1]) for key, fields in entries])
        return len(entries) < count

    def _failed(self, source: _Source, error: LogError) -> None:
        if not source.reading.stopped:
            source.again = self._clock() + AGAIN
            self._failing.add(source)
        source.checked = False
        if error.failure in TOLD and error.failure is not source.told and not source.reading.stopped:
            source.told = error.failure
            source.reading.reader.failed(error)

    # Waiting for more.

    def _wait(self) -> None:
        """Have XREAD wait for records behind those that were read."""
        if self._waiting or self._stopped or self._waits.state != READY:
            return
        at_end = [one for one in self._sources.values() if one.at_end and not one.reading.paused]
        furthest: dict[Partition, int] = {}
        for source in at_end:
            reading = source.reading
            furthest[reading.partition] = max(reading.position.offset, furthest.get(reading.partition, 0))
        waiting: dict[bytes, list[_Source]] = {}
        for source in at_end:
            if source.reading.position.offset < furthest[source.reading.partition]:  # another has read more meanwhile
                source.at_end = False
                self._go_on(source)
            else:
                waiting.setdefault(self._records(source), []).append(source)
        if not waiting:
            return
        self._waiting = True
        self._woken = False
        ids = [f"{sources[0].reading.position.offset}-0" for sources in waiting.values()]
        streams: list[str | bytes | int] = [*waiting, self._wake_key, *ids, self._wake_id]
        count = max(1, min(COUNT, COUNT_WAITED // len(waiting)))
        words = packed("XREAD", "COUNT", count, "BLOCK", BLOCK, "STREAMS", *streams)
        asked = {key: sources[0].reading.position.offset for key, sources in waiting.items()}
        self._submit(self._waits, words, partial(self._came, waiting, asked, count))

    def _wake(self) -> None:
        """End the wait, as there is another stream to wait for."""
        if self._waiting and not self._woken:
            self._woken = True
            words = packed("XADD", self._wake_key, "MAXLEN", 1, "*", "woken", "")
            self._submit(self._commands, words, lambda reply, failure: None)
        else:
            self._wait()

    def _came(
        self,
        waiting: dict[bytes, list[_Source]],
        asked: dict[bytes, int],
        count: int,
        reply: object,
        failure: StoreFailure | None,
    ) -> None:
        self._waiting = False
        for key, entries in cast("list[tuple[bytes, Entries]]", reply or []):
            if key == self._wake_key:
                self._wake_id = entries[-1][0]
                continue
            for source in waiting[key]:
                if source.at_end and source.reading.position.offset >= asked[key]:  # or it has begun anew
                    source.at_end = self._give(source, entries, count)
                    self._go_on(source)
        if failure is None:
            self._wait()

    # Topics.

    def create(self, topic: str, properties: TopicProperties, then: Callable[[LogError | None], None]) -> None:
        wanted = f"{properties.partitions} {properties.retention} {properties.retention_bytes}"
        heads = [self._keys.head(Partition(topic, number)) for number in range(properties.partitions)]

        def made(reply: object, failure: StoreFailure | None) -> None:
            error = None if failure is None else error_of(failure)
            if isinstance(reply, bytes):
                has = int(reply.split()[0])
                if has == properties.partitions:
                    self._made[topic] = properties
                else:
                    detail = f"{topic} has partitions: {has}, and not {properties.partitions}"
                    error = LogError(LogFailure.OTHER_TOPIC, detail)
            then(error)

        self._call(self._create, [self._keys.topics, *heads], [topic, wanted, os.urandom(LOG_BYTES)], made)

    def delete(self, topic: str, log: bytes, then: Callable[[LogError | None], None]) -> None:
        made = self._made.pop(topic, None)

        def deleted(reply: object, failure: StoreFailure | None) -> None:
            if failure is None and reply == 1:
                self._appends.drop(topic, LogError(LogFailure.UNKNOWN_TOPIC, topic))
            elif made is not None:
                self._made.setdefault(topic, made)
            then(None if failure is None else error_of(failure))

        # With its text: a script that Redis does not know would be sent again, behind what came after it.
        words = packed("EVAL", self._delete_text, 1, self._keys.topics, topic, log, *self._keys.around(topic))
        self._submit(self._commands, words, deleted)

    def try_out(self, topic: str, properties: TopicProperties, then: Callable[[LogError | None], None]) -> None:
        self.describe(topic, lambda description, error: then(error))

    def describe(self, topic: str, then: Callable[[TopicDescription | None, LogError | None], None]) -> None:
        def found(reply: object, failure: StoreFailure | None) -> None:
            if failure is not None or reply is None:
                then(None, None if failure is None else error_of(failure))
                return
            properties = properties_of(reply)
            heads: list[list[Any]] = []

            def head(reply: object, failure: StoreFailure | None) -> None:
                heads.append(cast("list[Any]", reply) if failure is None else [])
                if len(heads) < properties.partitions:
                    return
                if [] in heads:
                    then(None, error_of(failure or StoreFailure.LOST))
                elif any(one[0] < 0 for one in heads):  # it was deleted meanwhile
                    then(None, None)
                else:
                    first, following = [one[0] for one in heads], [one[1] for one in heads]
                    log = heads[0][2]
                    then(TopicDescription(properties=properties, log=log, first=first, next=following), None)

            for number in range(properties.partitions):
                self._call(self._head, self._keys_of(Partition(topic, number)), [], head)

        self._submit(self._commands, packed("HGET", self._keys.topics, topic), found)

    # Retention.

    def _trim_some(self) -> None:
        if self._untrimmed:
            for _ in range(min(self._trims, len(self._untrimmed))):
                partition, properties = self._untrimmed.popleft()
                limits: list[str | bytes | int] = [1000 * properties.retention, properties.retention_bytes]
                self._call(self._trim, self._keys_of(partition), limits, lambda reply, failure: None)
        else:
            self._submit(self._commands, packed("HGETALL", self._keys.topics), self._to_trim)

    def _to_trim(self, reply: object, failure: StoreFailure | None) -> None:
        words = cast("list[bytes]", reply or [])
        for topic, text in zip(words[::2], words[1::2], strict=True):
            properties = properties_of(text)
            for number in range(properties.partitions):
                self._untrimmed.append((Partition(topic.decode(), number), properties))
        self._trims = 1 + len(self._untrimmed) // TURNS

    # Commands.

    def _records(self, source: _Source) -> bytes:
        return self._keys.records(source.reading.partition)

    def _keys_of(self, partition: Partition) -> list[bytes]:
        return [self._keys.records(partition), self._keys.head(partition)]

    def _call(self, script: Script, keys: list[bytes], words: list[str | bytes | int], then: Then) -> None:
        """Call *script*, and once more when Redis did not have it."""

        def called(reply: object, failure: StoreFailure | None) -> None:
            if failure is StoreFailure.SCRIPT_UNKNOWN:
                script.load(self._clock())
                self._submit(self._commands, script.call(keys, words), then)
            else:
                then(reply, failure)

        self._submit(self._commands, script.call(keys, words), called)

    def _submit(self, commands: CommandPipeline, words: bytes, then: Then) -> None:
        def answered(reply: object, failure: StoreFailure | None) -> None:
            if not self._stopped:
                then(reply, failure)

        commands.submit(CallbackCommand(words, TIMEOUT, answered), self._clock())


def properties_of(text: object) -> TopicProperties:
    """The properties in a value of the hash of topics."""
    partitions, retention, retention_bytes = map(int, cast("bytes", text).split())
    return TopicProperties(partitions=partitions, retention=retention, retention_bytes=retention_bytes)
