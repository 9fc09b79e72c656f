# A log that is a model, and the links of workers to it: it stores, tells and gives when the test says so.
#
# What it may do is what the real one may (broker/carrier): packs of a partition are stored in their order, and so are
# they told; one that was stored and not told is stored again by the next carrier, with all behind it; a pack of a
# worker that has ended may be stored later, or never. Who reads gets no pack twice, whatever the log has.
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

from broker.reasons import LogFailure
from broker.store.durable.log_topics import SHARED
from broker.store.logs.port import Appender, LogReader
from broker.store.logs.records import LOG_BYTES, Pack, Position, Record
from broker.store.logs.topics import LogError, TopicDescription, TopicProperties

MANY: Final = 1 << 30
WINDOW: Final = 3  # records that a reader has and has not taken

DAMAGED: Final[list[Pack]] = []  # a record that cannot be decoded


IDENTITIES: Final = count(1)


def name_of(topic: str, partition: int) -> str:
    """The name of a partition in the model: the first one has that of its topic."""
    return f"{topic}/{partition}" if partition else topic


class ModelTopic:
    def __init__(self, identity: bytes = b"") -> None:
        """All partitions of a topic have the same *identity*; b"": a new one."""
        self.identity = identity or next(IDENTITIES).to_bytes(LOG_BYTES, "big")
        self.first = 0  # the offset of the first record
        self.records: list[list[Pack]] = []

    @property
    def end(self) -> int:
        return self.first + len(self.records)

    def delete(self, count: int) -> None:
        """Retention deletes the first *count* records."""
        del self.records[:count]
        self.first += count


class ModelLog:
    def __init__(self) -> None:
        self.topics: dict[str, ModelTopic] = {}
        self.late: deque[tuple[str, Pack]] = deque()  # packs of workers that have ended, on their way
        self.late_deletions: deque[tuple[str, bytes]] = deque()  # and what they wanted deleted
        self.links: list[ModelLink] = []
        self.deleted: list[str] = []  # topics
        self.groups: dict[str, list[ModelMembership]] = {}  # consumer groups, as Kafka would have them

    def bodies(self, topic: str) -> list[bytes]:
        return [pack.body for packs in self.topics[topic].records for pack in packs]

    def store_late(self, most: int) -> None:
        """Store up to *most* packs of workers that have ended."""
        for _ in range(min(most, len(self.late))):
            topic, pack = self.late.popleft()
            if topic in self.topics:
                self.topics[topic].records.append([pack])
        for _ in range(min(most, len(self.late_deletions))):
            self.delete(*self.late_deletions.popleft())

    def delete(self, topic: str, identity: bytes) -> None:
        """Delete *topic*, if it has that *identity*: what waits for it is refused."""
        found = self.topics.get(topic)
        if found is not None and found.identity == identity:
            number = 0
            while self.topics.pop(name_of(topic, number), None) is not None:
                for link in self.links:
                    link.drop(name_of(topic, number))
                number += 1
            self.deleted.append(topic)


class Unstored:
    """*offset*: where it is stored; -1: it is not, as far as the carrier knows."""

    def __init__(self, topic: str, pack: Pack, appender: Appender) -> None:
        self.topic = topic
        self.pack = pack
        self.appender = appender
        self.offset = -1
        self.refused: LogError | None = None


class ModelReading:
    def __init__(self, link: "ModelLink", topic: str, position: Position, reader: LogReader) -> None:
        self.topic = topic
        self.position = position
        self.reader = reader
        self.held: list[Record] = []
        self._link = link

    def taken(self, record: Record) -> None:
        self.held.remove(record)

    def stop(self) -> None:
        self._link.readings.remove(self)


class ModelMembership:
    """A member of a consumer group: the members have the partitions in turns."""

    def __init__(self, link: "ModelLink", group: str, partitions: int, told: Callable[[list[int], str], None]) -> None:
        self.link = link
        self.told = told
        self.given: list[int] | None = None  # what it was told
        self._members = link.log.groups.setdefault(group, [])
        self._partitions = partitions
        self._members.append(self)

    def share(self) -> list[int]:
        members = self._members
        return [number for number in range(self._partitions) if members[number % len(members)] is self]

    def tell(self) -> None:
        self.given = self.share()
        self.told(self.given, "")

    def leave(self) -> None:
        self._members.remove(self)
        self.link.memberships.remove(self)


class ModelLink:
    """A `GroupLink`."""

    def __init__(self, log: ModelLog, source: int) -> None:
        self.log = log
        self.unstored: deque[Unstored] = deque()
        self.readings: list[ModelReading] = []
        self.requests: deque[Callable[[], None]] = deque()
        self.refuse: LogError | None = None  # why the next packs are refused
        self.away = False  # requests are not answered
        self.trouble = ""  # why nothing is appended
        self.forbids = False  # to delete topics
        self.deletions: deque[tuple[str, bytes]] = deque()  # that are asked for
        self.carriers = 1
        self.memberships: list[ModelMembership] = []
        self.reached: list[tuple[str, str, int, int]] = []  # what is done: group, topic, partition, offset
        log.links.append(self)
        self._source = source
        self._sequence = 0

    # The worker's end.

    def append(self, topic: str, partition: int, body: bytes, appender: Appender, now: float) -> None:
        topic = name_of(topic, partition)
        assert topic in self.log.topics, "nobody has made it"
        self._sequence += 1
        self.unstored.append(Unstored(topic, Pack(self._source, self._sequence, body), appender))

    def read(self, topic: str, partition: int, position: Position, reader: LogReader) -> ModelReading:
        topic = name_of(topic, partition)
        same = [each for each in self.readings if each.topic == topic and isinstance(reader, type(each.reader))]
        same = [] if topic.startswith(SHARED) else same  # each group reads by itself
        assert not same, "it is read twice"
        own = Position.decode(position.encode())
        reading = ModelReading(self, topic, own, reader)
        self.readings.append(reading)
        return reading

    def create(self, topic: str, properties: TopicProperties, then: Callable[[LogError | None], None]) -> None:
        self.requests.append(lambda: self._create(topic, properties.partitions, then))

    def _create(self, topic: str, partitions: int, then: Callable[[LogError | None], None]) -> None:
        for number in range(partitions):
            first = self.log.topics.get(topic)
            made = ModelTopic(b"" if first is None else first.identity)
            self.log.topics.setdefault(name_of(topic, number), made)
        then(None)

    def describe(self, topic: str, then: Callable[[TopicDescription | None, LogError | None], None]) -> None:
        self.requests.append(lambda: self._describe(topic, then))

    def _describe(self, topic: str, then: Callable[[TopicDescription | None, LogError | None], None]) -> None:
        found: list[ModelTopic] = []
        while (one := self.log.topics.get(name_of(topic, len(found)))) is not None:
            found.append(one)
        if not found:
            then(None, None)
            return
        first, following = [one.first for one in found], [one.end for one in found]
        properties = TopicProperties(partitions=len(found))
        then(TopicDescription(properties=properties, log=found[0].identity, first=first, next=following), None)

    def delete(self, topic: str, log: bytes, then: Callable[[LogError | None], None]) -> None:
        self.deletions.append((topic, log))
        self.requests.append(lambda: self._delete(then))

    def _delete(self, then: Callable[[LogError | None], None]) -> None:
        topic, log = self.deletions.popleft()
        if self.forbids:
            then(LogError(LogFailure.FORBIDDEN, topic))
            return
        self.log.delete(topic, log)
        then(None)

    def unusable(self) -> str:
        return self.trouble

    def append_trouble(self, topic: str) -> str:
        return self.trouble

    def join(self, group: str, topic: str, partitions: int, told: Callable[[list[int], str], None]) -> ModelMembership:
        self.memberships.append(ModelMembership(self, group, partitions, told))
        return self.memberships[-1]

    def done(self, group: str, topic: str, partition: int, offset: int) -> None:
        self.reached.append((group, topic, partition, offset))

    # The test's end.

    def idle(self) -> bool:
        """Whether it has nothing to do."""
        told = all(each.given == each.share() for each in self.memberships)
        return told and not self.unstored and not (self.requests and not self.away) and not self._to_give()

    def _to_give(self) -> bool:
        topics = self.log.topics
        readings = [each for each in self.readings if each.topic in topics]
        return any(len(each.held) < WINDOW and each.position.offset != topics[each.topic].end for each in readings)

    def answer(self, most: int = MANY) -> None:
        """Answer requests, and tell members what they are to read."""
        for membership in list(self.memberships):
            if membership in self.memberships and membership.given != membership.share():
                membership.tell()
        while self.requests and most and not self.away:
            most -= 1
            self.requests.popleft()()

    def store(self, most: int = MANY, together: int = 1) -> None:
        """Store up to *most* packs, records of *together* packs at most."""
        last: dict[str, list[Pack]] = {}
        for unstored in self.unstored:
            if unstored.offset >= 0 or unstored.refused is not None:
                continue
            if not most:
                break
            most -= 1
            if self.refuse is not None:
                unstored.refused, self.refuse = self.refuse, None
                continue
            topic = self.log.topics.get(unstored.topic)
            if topic is None:
                continue
            packs = last.get(unstored.topic)
            if packs is None or len(packs) == together:
                packs = last[unstored.topic] = []
                topic.records.append(packs)
            packs.append(unstored.pack)
            unstored.offset = topic.end - 1

    def drop(self, topic: str) -> None:
        """*topic* is deleted."""
        for unstored in self.unstored:
            if unstored.topic == topic and unstored.offset < 0:
                unstored.refused = LogError(LogFailure.UNKNOWN_TOPIC, topic)

    def tell(self, now: float, most: int = MANY) -> None:
        """Tell of up to *most* packs what became of them."""
        while self.unstored and most and (self.unstored[0].offset >= 0 or self.unstored[0].refused is not None):
            most -= 1
            told = self.unstored.popleft()
            if told.refused is not None:
                told.appender.refused(told.refused, now)
            else:
                told.appender.stored(told.offset, now)

    def give(self, now: float, most: int = MANY) -> None:
        """Give each reader up to *most* records."""
        for reading in list(self.readings):
            left = most
            while left and reading in self.readings and len(reading.held) < WINDOW:
                left -= 1
                if not self._give(reading, now):
                    break

    def _give(self, reading: ModelReading, now: float) -> bool:
        topic, position = self.log.topics.get(reading.topic), reading.position
        if topic is None:
            return False
        expected = position.offset
        if position.log not in (b"", topic.identity) and expected > 0:
            position.log = topic.identity
            position.offset = 0
            reading.reader.jumped(expected, 0, now)
            return True
        position.log = topic.identity
        if not topic.first <= expected <= topic.end:
            position.offset = topic.first
            reading.reader.jumped(expected, topic.first, now)
            return True
        if expected == topic.end:
            return False
        packs = topic.records[expected - topic.first]
        if packs is DAMAGED:
            position.offset += 1
            reading.reader.damaged(expected, b"?", "it is damaged", now)
            return True
        record = position.take(expected, packs)
        reading.held.append(record)
        reading.reader.received(record, now)
        return True

    def restart(self) -> None:
        """The carrier ends, and the next one is sent all again that was not told; what was stored is stored again."""
        self.carriers += 1
        for unstored in self.unstored:
            unstored.offset = -1
            unstored.refused = None

    def end(self, most: int, late: int) -> None:
        """The worker ends: up to *most* packs are stored all the same, *late* ones behind them later, and no others."""
        self.readings = []
        for membership in list(self.memberships):
            membership.leave()
        self.requests.clear()
        self.log.links.remove(self)
        self.log.late_deletions.extend(list(self.deletions)[:late])
        rest = [each for each in self.unstored if each.offset < 0]
        self.unstored = deque(rest[:most])
        self.store()
        self.unstored.clear()
        self.log.late.extend((each.topic, each.pack) for each in rest[most : most + late])


def refusal() -> LogError:
    return LogError(LogFailure.TOO_LARGE, "by the test")
