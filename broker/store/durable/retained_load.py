# Reads all retained messages at the start of a worker, before it serves clients.
#
# They are read in pages, by HSCAN of one slice after the other. A page may have as many messages as a slice of the
# reactor has time for, and about PAGE_BYTES; how many messages that are is learnt from the page before. The next page
# is on its way while one is taken. A scan may miss what is written meanwhile: the other workers tell that. A slice is
# read from its beginning after a failure: a cursor means nothing to a server that was started again.
#
# - The greater stamp wins, here as well: a peer may have told a later change before.
# - The clock of stamps goes on from the greatest stamp that is stored, also if the wall clock was set back.
# - What cannot be read is set aside in Redis, and counted; a start never fails because of it.
# - What does not fit into `retained.messages` and `retained.bytes` is counted and stays in Redis. Nobody gets it before
#   the limits are raised and the worker starts again; a change of its topic replaces it.
# - What has expired, and deletions whose time has passed, are removed from Redis: their workers may have ended before.
#   If Redis does not carry that out, the next start does.
from collections.abc import Callable
from typing import Any, Final, cast

from broker.reasons import StoreFailure
from broker.routing.hybrid_clock import WRITER_BITS, HybridClock
from broker.routing.retained import TOMBSTONE, Retained
from broker.session.message import NEVER, Message
from broker.store.durable.group_commit import PAUSE
from broker.store.durable.retained import ASIDE, FORGET, SCRIPT
from broker.store.durable.retained_value import STAMP_BYTES, decode_value, encode_stamp
from broker.store.redis.connection import packed
from broker.store.redis.keys import SLICES, Keys
from broker.store.redis.pipeline import WRONG_TYPE, Command, CommandPipeline

TIMEOUT: Final = 60.0  # seconds
PAGE: Final = 256  # messages: 2 ms of this worker, compiled less
PAGE_BYTES: Final = 256 * 1024
FIRST_PAGE: Final = 16  # messages; if each has 256 KiB, a page of them is 4 MiB
UNITS: Final = 5  # of the reactor's quantum, for each message
LAST_CURSOR: Final = b"0"


class RetainedLoad:
    def __init__(
        self,
        commands: CommandPipeline,
        keys: Keys,
        retained: Retained,
        stamps: HybridClock,
        wall: Callable[[], float],
    ) -> None:
        """*wall*: Unix time in seconds."""
        self.done = False
        self.messages = 0  # that are in memory because of it
        self.left = 0  # messages for which there was no room, about: a scan may repeat some
        self.largest_page = 0  # messages
        self.damaged = 0  # values that cannot be read, and slices that are no hash
        self.damaged_topic = b""  # of the first one
        self.damaged_why = ""
        self._commands = commands
        self._keys = keys
        self._retained = retained
        self._stamps = stamps
        self._wall = wall
        self._slice = 0
        self._cursor = LAST_CURSOR
        self._page = FIRST_PAGE
        self._left_before = 0  # `left` when the slice was begun
        self._moved = -1  # the slice that was moved out of the way, if it was the last one
        self._again_at = 0.0  # when the slice is begun again, after a failure

    def begin(self, now: float) -> None:
        self._scan(now)

    def tick(self, now: float) -> float:
        """Go on after a failure; the time at which that is due."""
        if not self._again_at:
            return float("inf")
        if now < self._again_at:
            return self._again_at
        self._again_at = 0.0
        if not self.done:
            self._scan(now)
        return float("inf")

    def _scan(self, now: float) -> None:
        """Ask for the next page."""
        words = packed("HSCAN", self._keys.retained(self._slice), self._cursor, "COUNT", self._page)
        self._commands.submit(_Scan(self, words), now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._again_at = now + PAUSE
        self._cursor = LAST_CURSOR
        self.left = self._left_before
        if detail.startswith(WRONG_TYPE):
            if self._moved != self._slice:
                self._moved = self._slice
                self._note_damage(self._keys.retained(self._slice), "the key is no hash")
                self._clean(self._slice, [], now)  # which moves it out of the way
            else:  # that was refused
                self._next_slice()
                self.done = self._slice == SLICES

    def _next_slice(self) -> None:
        self._slice += 1
        self._left_before = self.left

    def scanned(self, reply: list[Any], now: float) -> int:
        """Take a page; return how many messages it has."""
        number, values = self._slice, cast(list[bytes], reply[1])
        self._cursor = reply[0]
        last = self._cursor == LAST_CURSOR
        self._learn_page(sum([len(value) for value in values]), len(values) // 2)
        if not last:
            self._scan(now)
        words: list[bytes] = []
        wall = self._wall()
        for at in range(0, len(values), 2):
            self._take(values[at], values[at + 1], words, now, wall)
        if words:
            self._clean(number, words, now)
        if last:
            self._next_slice()
            self.done = self._slice == SLICES
            if not self.done:
                self._scan(now)
        return len(values) // 2

    def _learn_page(self, size: int, count: int) -> None:
        """The last page had *size* bytes and *count* messages."""
        self.largest_page = max(self.largest_page, count)
        if size > 2 * PAGE_BYTES:
            self._page = max(1, self._page * PAGE_BYTES // size)
        elif size < PAGE_BYTES // 2 and count >= self._page // 2:
            self._page = min(PAGE, 2 * self._page)

    def _take(self, topic: bytes, value: bytes, words: list[bytes], now: float, wall: float) -> None:
        """Take one field of the hash; add what is to be done about it in Redis to *words*."""
        try:
            stored = decode_value(topic, value, now, wall)
        except ValueError as error:
            self._note_damage(topic, str(error))
            words += (ASIDE, topic, value[:STAMP_BYTES])
            return
        message, stamp = stored.message, stored.stamp
        self._stamps.resume(stamp)
        retained = self._retained
        if message is None:
            # A stamp of the future, from a clock that was set back, counts as one of now.
            if wall - (stamp >> WRITER_BITS) / 1e6 >= TOMBSTONE:
                words += (FORGET, topic, encode_stamp(stamp))
            else:
                retained.merge(Message(topic, b"", 0, True, b"", NEVER), now, "", stamp, deleted_before=True)
        elif message.expired(now):
            words += (FORGET, topic, encode_stamp(stamp))
        elif stamp > retained.stamp_of(topic):
            if retained.has_room(message):
                self.messages += 1
                retained.merge(message, now, stored.client_id, stamp)
            else:
                self.left += 1

    def _note_damage(self, topic: bytes, why: str) -> None:
        if not self.damaged:
            self.damaged_topic, self.damaged_why = topic, why
        self.damaged += 1

    def _clean(self, number: int, words: list[bytes], now: float) -> None:
        """Have retained.lua carry out *words* in slice *number*."""
        command = packed("EVAL", SCRIPT, 2, self._keys.retained(number), self._keys.unreadable(number), *words)
        self._commands.submit(_Clean(command, TIMEOUT), now)


class _Scan(Command):
    def __init__(self, load: RetainedLoad, words: bytes) -> None:
        super().__init__(words, TIMEOUT)
        self._load = load

    def replied(self, reply: object, now: float) -> None:
        self.units += UNITS * self._load.scanned(cast(list[Any], reply), now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._load.failed(failure, detail, now)


class _Clean(Command):
    def replied(self, reply: object, now: float) -> None:
        pass

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        pass  # see above: the next start does it
