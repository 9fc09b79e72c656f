# Timers: what must happen later, a hundred thousand of them at little cost.
#
# Buckets by time, TICK wide, so that setting a timer and cancelling it are a dict entry made and removed. A keep
# alive that was refreshed is not moved with every packet: it fires, sees that it was refreshed, and is set again.
# A bucket goes with its last timer: a session's expiry may be days away, and its client back in a second. Its key
# stays in the heap, for nothing, until such keys are the most of it.
# Nothing fires early, and at most TICK late (later only when thousands fall due together: they come in pages).
import heapq
from typing import Final

TICK: Final = 0.1  # seconds
NOTHING: Final = 3600.0  # seconds until we look again when there is nothing to wait for
STALE: Final = 1000  # keys without a bucket that the heap may hold beside as many as there are buckets

CONNECT_DEADLINE: Final = 1  # whom: a Connection
KEEP_ALIVE: Final = 2  # a Connection
SESSION_EXPIRY: Final = 3  # a Session
WILL: Final = 4  # a Session
KINDS: Final = 8


class Timers:
    def __init__(self) -> None:
        self._buckets: dict[int, dict[object, None]] = {}  # by tick and kind
        self._keys: list[int] = []  # a heap of the buckets' keys

    def set(self, when: float, kind: int, whom: object) -> int:
        """Fire (*kind*, *whom*) at the time *when*; the key to cancel it with."""
        key = (int(when / TICK) + 1) * KINDS + kind
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = {}
            heapq.heappush(self._keys, key)
        bucket[whom] = None
        return key

    def when(self, key: int) -> float:
        """The time that *key* stands for: whoever sets a timer for it, here or in another worker, gets the same key."""
        return (key // KINDS - 0.5) * TICK

    def cancel(self, key: int, whom: object) -> None:
        """Forget what was set under *key*; 0, or one that has fired, is nothing."""
        bucket = self._buckets.get(key)
        if bucket is None:
            return
        bucket.pop(whom, None)
        if not bucket:
            del self._buckets[key]
            if len(self._keys) > 2 * len(self._buckets) + STALE:
                self._keys = list(self._buckets)
                heapq.heapify(self._keys)

    def next_due(self, now: float) -> float:
        """When something may be due, at the latest NOTHING from *now*."""
        latest = now + NOTHING
        return min(latest, self._keys[0] // KINDS * TICK) if self._keys else latest

    def pop_due(self, now: float, limit: int) -> list[tuple[int, object]]:
        """Up to *limit* of what is due at *now*, as (kind, whom)."""
        due: list[tuple[int, object]] = []
        while self._keys and self._keys[0] // KINDS * TICK <= now:
            key = self._keys[0]
            bucket = self._buckets.get(key)
            while bucket and len(due) < limit:
                due.append((key % KINDS, bucket.popitem()[0]))
            if bucket:
                break
            heapq.heappop(self._keys)
            self._buckets.pop(key, None)
        return due

    def statistics(self) -> tuple[int, int]:
        """(timers that are set, keys that are held for them and for former ones)."""
        return sum(len(bucket) for bucket in self._buckets.values()), len(self._keys)
