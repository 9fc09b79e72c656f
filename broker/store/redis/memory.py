# How full Redis is: the memory of its data, and its `maxmemory`, beyond which it refuses what has to be stored.
#
# Each worker asks each second: a reply takes the server some ten microseconds, and a worker that had it from another
# one would know nothing when that one ends. One question is under way at a time, and an answer that is older than OLD
# counts as not known.
#
# A server without maxmemory has no limit that anybody could tell: INFO knows the memory of the machine, and not that of
# its container, nor what else runs there. So its fill is not known. `used_memory` has buffers of replicas and of the
# append-only file in it, which the server does not count when it compares with maxmemory.
from typing import Final, cast

from broker.reasons import StoreFailure
from broker.store.redis.connection import READY, packed
from broker.store.redis.pipeline import Command, CommandPipeline

PERIOD: Final = 1.0  # seconds
TIMEOUT: Final = 5.0  # seconds; nothing waits for it
OLD: Final = 5.0  # seconds
FIELDS: Final = (b"used_memory", b"mem_not_counted_for_evict", b"maxmemory")


class RedisMemory:
    def __init__(self, commands: CommandPipeline) -> None:
        self.used = 0  # bytes that count for maxmemory
        self.limit = 0  # bytes; 0: none, or not known
        self._commands = commands
        self._known = 0.0  # when it was answered last
        self._asked = False  # and not answered
        self._next = 0.0

    def tick(self, now: float) -> float:
        """Ask if it is time; return when it will be."""
        if now >= self._next:
            self._next = now + PERIOD
            if not self._asked and self._commands.state == READY:
                self._asked = True
                self._commands.submit(_Ask(self), now)
            if now - self._known > OLD:
                self.used = self.limit = 0
        return self._next

    def fill(self) -> float:
        """The share of its maxmemory that Redis uses; 0.0: not known, or there is no limit."""
        return self.used / self.limit if self.limit else 0.0

    def told(self, text: bytes, now: float) -> None:
        """The reply to INFO. A field that is missing or no number counts as 0."""
        self._asked = False
        values = dict.fromkeys(FIELDS, 0)
        for line in text.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name in values and value.isdigit():
                values[name] = int(value)
        used, not_counted, self.limit = [values[name] for name in FIELDS]
        self.used = max(0, used - not_counted)
        self._known = now

    def not_told(self) -> None:
        self._asked = False


class _Ask(Command):
    def __init__(self, memory: RedisMemory) -> None:
        super().__init__(packed("INFO", "memory"), TIMEOUT)
        self._memory = memory

    def replied(self, reply: object, now: float) -> None:
        self._memory.told(cast(bytes, reply), now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._memory.not_told()
