# The feed of an APPLICATION session: what was read of its log, and has not been passed on to its queue.
#
# It knows how far the queue has come: all records before `position`, and `passed` messages of the record there. So a
# record may be passed on in part, and be read again: what is left out then is what was passed on. That relies on a
# record having the same new packs whenever it is read from the same position.
#
# Records are decoded pack by pack, when the queue has places: what waits here are bytes, within the window of the
# reading.
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.store.durable.log_pack import LogMessage, decode_log_pack
from broker.store.durable.pack import DamagedPack
from broker.store.logs.port import LogReader, LogReading
from broker.store.logs.records import Position, Record
from broker.store.logs.topics import LogError

STEPS: Final = 1000  # messages and packs that one turn looks at

NOTHING: Final[list[LogMessage]] = []  # never changed


class _Skip:
    """Reading goes on at *offset*. *deleted*: records that retention has deleted; *damaged*: ones that are damaged."""

    def __init__(self, offset: int, deleted: int, damaged: int) -> None:
        self.offset = offset
        self.deleted = deleted
        self.damaged = damaged


class LogFeed(LogReader):
    def __init__(self, era: bytes, position: Position, passed: int, arrived: Callable[[float], None]) -> None:
        """*position*, *passed*: where it goes on; the position is that of the feed. *arrived*: something has."""
        self.position = position
        self.passed = passed
        self.deleted = 0  # records that were lost, since `take_losses()`
        self.damages = 0  # records and packs that could not be decoded, since then
        self.reading: LogReading | None = None
        self.trouble = ""  # why nothing can be read; "": nothing is known to be wrong
        self.end = position.offset  # behind the last record that was read
        self._era = era
        self._arrived = arrived
        self._entries: deque[Record | _Skip] = deque()
        self._record: Record | None = None  # the first one, while it is passed on
        self._pack = 0  # the index of its next pack
        self._messages = NOTHING  # of the pack before that
        self._message = 0  # the index of the next one
        self._left_out = passed  # messages of the first record that were passed on before

    # The reader.

    def received(self, record: Record, now: float) -> None:
        self.trouble = ""
        self.end = record.offset + 1
        self._entries.append(record)
        self._arrived(now)

    def jumped(self, expected: int, offset: int, now: float) -> None:
        self.end = offset
        self._entries.append(_Skip(offset, max(1, offset - expected), 0))
        self._arrived(now)

    def damaged(self, offset: int, record: bytes, why: str, now: float) -> None:
        self.end = offset + 1
        self._entries.append(_Skip(offset + 1, 0, 1))
        self._arrived(now)

    def failed(self, error: LogError | None, now: float) -> None:
        self.trouble = "" if error is None else str(error)

    # The queue.

    def stop(self) -> None:
        """Read no more, and forget what was not passed on."""
        reading, self.reading = self.reading, None
        self._arrived = _nobody
        self._entries.clear()
        self._record = None
        self._messages = NOTHING
        if reading is not None:
            reading.stop()

    def has_more(self) -> bool:
        """Whether there is something to look at, perhaps a message."""
        return self._record is not None or len(self._entries) > 0

    def step(self, now: float, wall: float) -> LogMessage | None:
        """Look at what comes next, if `has_more()`; if that is a message, it counts as passed on from now on."""
        if self._message < len(self._messages):
            found = self._messages[self._message]
            self._message += 1
            if self._left_out:
                self._left_out -= 1
                return None
            self.passed += 1
            return found
        record = self._record
        if record is None:
            self._begin()
        elif self._pack < len(record.packs):
            pack = record.packs[self._pack]
            self._pack += 1
            self._message = 0
            try:
                self._messages = decode_log_pack(pack.body, self._era, pack.source, now, wall)
            except DamagedPack:
                self._messages = NOTHING
                self.damages += 1
        else:
            self._end(record)
        return None

    def take_losses(self) -> tuple[int, int]:
        """What was lost since the last call: (records that were deleted, records and packs that were damaged)."""
        losses = self.deleted, self.damages
        self.deleted = self.damages = 0
        return losses

    def _begin(self) -> None:
        entry = self._entries.popleft()
        if isinstance(entry, Record):
            self._record = entry
            self._pack = 0
            return
        self.deleted += entry.deleted
        self.damages += entry.damaged
        self.position.offset = entry.offset
        self.passed = self._left_out = 0

    def _end(self, record: Record) -> None:
        self.position.advance(record)
        self.passed = self._left_out = 0
        self._record = None
        self._messages = NOTHING
        if self.reading is not None:
            self.reading.taken(record)


def _nobody(now: float) -> None:
    pass
