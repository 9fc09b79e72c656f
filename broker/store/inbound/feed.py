# The feed of a partition of the inbound backbone: what was read of it, and is on its way to its receivers.
#
# Publishes are dispatched in the order of the log, and are done in any order. `position` is before the first record of
# which one is not done: it is what is saved (positions.py), and what the next worker goes on from. So a publish of QoS
# 1 or 2 may be dispatched again, by another worker, or by this one if a receiver may have lost it. For a durable
# receiver a QoS 2 publish has a token (store/durable/tokens.py), that of its publisher or else one that follows from
# its place in a pack, so it is stored once.
#
# A publish of QoS 0 is dispatched once at most. So before a record with such publishes is dispatched, its offset is
# saved as begun; who goes on from an earlier position leaves out the QoS 0 of records up to there. Records of a topic
# that was deleted and made anew need no such care, as nobody can read them again.
#
# If a receiver may have lost a publish, all from there on that are not done are dispatched again, in order, ahead of
# what follows. A client whose publishes had not been answered would send the same ones again: the queues of receivers
# rely on that order (store/durable/tokens.py, cluster/forced_takeovers.py).
import hashlib
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.delivery.completion import Completion, CompletionListener
from broker.delivery.outbox import Outbox
from broker.session.message import Message
from broker.store.durable.pack import DamagedPack
from broker.store.durable.tokens import NUMBER, ORIGIN
from broker.store.inbound.pack import AcceptedPublish, accepted_at, decode_accepted, has_unrepeated
from broker.store.logs.port import LogReader, LogReading
from broker.store.logs.records import SOURCES, Pack, Position, Record
from broker.store.logs.topics import LogError

INDEX_BITS: Final = 16  # of the place of a publish in its pack, in the number of its token
NOTHING: Final[list[AcceptedPublish]] = []  # never changed


class RecordUnderWay:
    """A record of which publishes are under way, or a place where records are missing: *record* is None then.

    *following*: the offset behind it.
    """

    def __init__(self, record: Record | None, following: int) -> None:
        self.record: Final = record
        self.following: Final = following
        self.former = False  # it was read of a topic of this name that does not exist any more
        self.dispatched = record is None  # as a whole
        self.waiting: dict[Dispatched, None] = {}  # publishes that are not done, in order

    def done(self) -> bool:
        return self.dispatched and not self.waiting


class Dispatched(CompletionListener):
    """A publish of QoS 1 or 2, or one of QoS 0 that goes out in pages, which is on its way to its receivers."""

    def __init__(self, feed: "PartitionFeed", record: RecordUnderWay, publish: AcceptedPublish) -> None:
        self.record: Final = record
        self.publish = publish
        self._feed = feed

    def advance(self, now: float) -> None:
        self._feed.settled(self)

    def abandoned(self, now: float) -> Outbox | None:
        self._feed.lost(self)
        return None


class PartitionFeed(LogReader):
    def __init__(self, number: int, position: Position, begun: int, arrived: Callable[[], None]) -> None:
        """*position*: where it goes on, which is the feed's. *begun*: QoS 0 of records before it may have come already.

        *arrived* is called when something has been read, or is to be dispatched again.
        """
        self.number: Final = number
        self.position = position
        self.begun = begun  # what is to be saved as such
        self.confirmed = begun  # of that, what is saved: records before it may be dispatched
        self.changed = False  # there is something to save
        self.reading: LogReading | None = None
        self.unfinished = 0  # publishes that are under way
        self.ending = False  # no further record is to be begun
        self.trouble = ""  # why nothing can be read; "": nothing is known to be wrong
        self.missing = 0  # records that were deleted before they were read, since `take_losses()`
        self.damages: list[tuple[int, str]] = []  # offsets of what could not be decoded since then, and why
        self.left_out = 0  # publishes of QoS 0 that may have been dispatched before, since then
        self._arrived = arrived
        self._unrepeatable = begun  # QoS 0 of records before this offset is left out
        self._entries: deque[RecordUnderWay] = deque()  # that were read, and not begun
        self.read_to = position.offset  # the offset behind what was read
        self._begun: deque[RecordUnderWay] = deque()  # of which not all is done, in order
        self._record: RecordUnderWay | None = None  # the one that is being dispatched, the last of those
        self._pack = 0  # the index of its next pack
        self._accepted_at = 0.0  # when the one before that was accepted
        self._publishes = NOTHING  # of it
        self._at = 0  # the index of the next one
        self._lost = False  # a publish is to be dispatched again
        self._again: deque[Dispatched] = deque()
        self._origins: dict[int, bytes] = {}  # of tokens, by the source of packs

    # The reader.

    def received(self, record: Record, now: float) -> None:
        self.trouble = ""
        self._read(RecordUnderWay(record, record.offset + 1))

    def jumped(self, expected: int, offset: int, now: float) -> None:
        self.missing += max(1, offset - expected)
        if offset < expected:  # the topic was made anew
            self.begun = self.confirmed = self._unrepeatable = 0
            self.changed = True
            for entry in self._entries:
                entry.former = True
        self._read(RecordUnderWay(None, offset))

    def damaged(self, offset: int, record: bytes, why: str, now: float) -> None:
        self.damages.append((offset, why))
        self._read(RecordUnderWay(None, offset + 1))

    def failed(self, error: LogError | None, now: float) -> None:
        self.trouble = "" if error is None else str(error)

    def _read(self, entry: RecordUnderWay) -> None:
        self._entries.append(entry)
        self.read_to = entry.following
        self._arrived()

    # Whoever dispatches.

    def next(self, now: float, wall: float) -> AcceptedPublish | None:
        """What is to be dispatched next, until `passed()` is called; None: nothing is, or it has to be saved first."""
        if self._lost:
            self._begin_again()
        if self._again:
            return self._again[0].publish
        while self._at >= len(self._publishes):
            if not self._take_pack(now, wall):
                return None
        return self._publishes[self._at]

    def passed(self, completion: Completion | None) -> None:
        """What `next()` has returned is dispatched; *completion*: of its receivers, None if all are done with it."""
        if self._again:
            self._wait_for(self._again.popleft(), completion)
            return
        publish = self._publishes[self._at]
        self._at += 1
        record = self._record
        assert record is not None
        if completion is not None and completion.pending:
            dispatched = Dispatched(self, record, publish)
            record.waiting[dispatched] = None
            self.unfinished += 1
            self._wait_for(dispatched, completion)

    def _wait_for(self, dispatched: Dispatched, completion: Completion | None) -> None:
        if completion is None or not completion.pending:
            self.settled(dispatched)
            return
        completion.queue = dispatched
        if completion.abandoned:  # while it was dispatched
            self.lost(dispatched)

    def settled(self, dispatched: Dispatched) -> None:
        """All receivers of *dispatched* are done with it."""
        record = dispatched.record
        del record.waiting[dispatched]
        self.unfinished -= 1
        self._end_if_done(record)

    def lost(self, dispatched: Dispatched) -> None:
        """A receiver of *dispatched* may have lost it."""
        message = dispatched.publish.message
        if message is not None and message.completion is not None:
            message.completion.queue = None
        self._lost = True
        self._arrived()

    def has_more(self) -> bool:
        """Whether `next()` may return something."""
        if self._lost or self._again or self._record is not None:
            return True
        return len(self._entries) > 0 and not self.ending

    def repeats(self) -> bool:
        """Whether what `next()` returns was dispatched before, and lost."""
        return self._lost or len(self._again) > 0

    def quiet(self) -> bool:
        """Whether nothing is under way, or is to be dispatched now."""
        return not self.unfinished and not self.has_more()

    def span(self) -> int:
        """Records from the first that is not done to the last that was begun."""
        return len(self._begun)

    def oldest(self) -> float:
        """When the first publish that waits to be dispatched was accepted, in Unix time; 0.0: none waits."""
        if self._at < len(self._publishes):
            return self._accepted_at
        record = self._record
        pack = self._pack
        if record is None or record.record is None or pack >= len(record.record.packs):
            record = self._entries[0] if self._entries else None
            pack = 0
        if record is None or record.record is None or pack >= len(record.record.packs):
            return 0.0
        try:
            return accepted_at(record.record.packs[pack].body)
        except DamagedPack:
            return 0.0

    def take_losses(self) -> tuple[int, list[tuple[int, str]], int]:
        """Since the last call: (records that were deleted, what was damaged, publishes of QoS 0 that were left out)."""
        missing, damages, left_out = self.missing, self.damages, self.left_out
        self.missing, self.damages, self.left_out = 0, [], 0
        return missing, damages, left_out

    def stop(self) -> None:
        """Read no more, and forget what is under way: it is dispatched again by whoever goes on."""
        reading, self.reading = self.reading, None
        self._arrived = _nobody
        for record in self._begun:
            for dispatched in record.waiting:
                _forget(dispatched)
            record.waiting = {}
        self._entries.clear()
        self._begun.clear()
        self._again.clear()
        self._record = None
        self._publishes, self._at = NOTHING, 0
        self._lost = False
        self.unfinished = 0
        if reading is not None:
            reading.stop()

    # Records and packs.

    def _take_pack(self, now: float, wall: float) -> bool:
        """Decode the next pack; false: there is none, or what is begun has to be saved before."""
        under_way = self._record
        if under_way is None or under_way.record is None:
            return self._take_record()
        packs = under_way.record.packs
        if self._pack < len(packs):
            pack = packs[self._pack]
            self._pack += 1
            self._publishes, self._at = self._decode(pack, under_way, now, wall), 0
            return True
        self._record = None
        self._publishes, self._at = NOTHING, 0
        under_way.dispatched = True
        self._end_if_done(under_way)
        return True

    def _take_record(self) -> bool:
        entries = self._entries
        if not entries or self.ending:
            return False
        entry = entries[0]
        record = entry.record
        if record is not None and not entry.former and record.offset >= self.confirmed and _has_unrepeated(record):
            if self.begun < self.read_to:  # together with all that was read behind it
                self.begun = self.read_to
                self.changed = True
            return False
        entries.popleft()
        self._begun.append(entry)
        if record is None:
            self._end_if_done(entry)
        else:
            self._record = entry
            self._pack = 0
        return True

    def _decode(self, pack: Pack, under_way: RecordUnderWay, now: float, wall: float) -> list[AcceptedPublish]:
        try:
            publishes = decode_accepted(pack.body, now, wall)
            self._accepted_at = accepted_at(pack.body)
            leaves_out = under_way.following <= self._unrepeatable and has_unrepeated(pack.body)
        except DamagedPack as error:
            self.damages.append((under_way.following - 1, str(error)))
            return NOTHING
        for index, publish in enumerate(publishes):
            message = publish.message
            if message is not None and message.qos == 2 and message.completion is None:
                completion = message.completion = Completion()
                completion.token = self._token(pack, index)
        return self._repeatable(publishes) if leaves_out else publishes

    def _repeatable(self, publishes: list[AcceptedPublish]) -> list[AcceptedPublish]:
        """Those of QoS 1 and 2; the others are counted."""
        found: list[AcceptedPublish] = []
        for publish in publishes:
            if publish.message is None or publish.message.qos == 0:
                self.left_out += publish.count()
            else:
                found.append(publish)
        return found

    def _token(self, pack: Pack, index: int) -> bytes:
        """Of a publish that has none: the same whenever it is read, and above those before it in the partition."""
        origin = self._origins.get(pack.source)
        if origin is None:
            if len(self._origins) >= SOURCES:
                self._origins.clear()
            name = pack.source.to_bytes(8, "big") + self.number.to_bytes(4, "big")
            origin = self._origins[pack.source] = hashlib.blake2b(name, digest_size=ORIGIN).digest()
        return origin + (pack.sequence << INDEX_BITS | index).to_bytes(NUMBER, "big")

    def _end_if_done(self, under_way: RecordUnderWay) -> None:
        if not under_way.done():
            return
        reading = self.reading
        if under_way.record is not None and reading is not None:
            reading.taken(under_way.record)
        begun = self._begun
        while begun and begun[0].done():
            first = begun.popleft()
            if first.record is not None:
                self.position.advance(first.record)
            self.position.offset = first.following
            self.changed = True

    # What is dispatched again.

    def _begin_again(self) -> None:
        """Have all be dispatched again that is not done, from the first publish on that may be lost."""
        self._lost = False
        again: list[Dispatched] = []
        unrepeated: list[Dispatched] = []
        for record in self._begun:
            for dispatched in record.waiting:
                if again or _was_lost(dispatched):
                    _forget(dispatched)
                    message = dispatched.publish.message
                    if message is None or message.qos == 0:
                        unrepeated.append(dispatched)
                    else:
                        dispatched.publish = _copy_of(dispatched.publish, message)
                        again.append(dispatched)
        if again:  # what is still to be dispatched again is among them
            self._again = deque(again)
        for dispatched in unrepeated:
            self.settled(dispatched)


def _has_unrepeated(record: Record) -> bool:
    for pack in record.packs:
        try:
            if has_unrepeated(pack.body):
                return True
        except DamagedPack:
            pass  # it is found when it is decoded
    return False


def _was_lost(dispatched: Dispatched) -> bool:
    message = dispatched.publish.message
    return message is not None and message.completion is not None and message.completion.abandoned


def _forget(dispatched: Dispatched) -> None:
    """Let nobody be told any more that the receivers of *dispatched* are done."""
    message = dispatched.publish.message
    if message is not None and message.completion is not None:
        message.completion.queue = None


def _copy_of(publish: AcceptedPublish, message: Message) -> AcceptedPublish:
    """*publish*, to be dispatched again: former receivers may still settle its message."""
    copy = Message(message.topic, message.payload, message.qos, message.retain, message.properties, message.expires)
    copy.ends = message.ends
    if message.completion is not None and message.completion.token:
        completion = copy.completion = Completion()
        completion.token = message.completion.token
    return AcceptedPublish(copy, None, publish.publisher, publish.retained_at)


def _nobody() -> None:
    pass
