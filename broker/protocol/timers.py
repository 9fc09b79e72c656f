# Timers of connections and sessions: hundreds of thousands of them, at little cost.
#
# Timers stand in buckets by time, each TICK wide, so that setting or cancelling one makes or removes a dict entry. The
# timer of a keep alive is not moved with every packet: when it fires, it is set again if the client was heard
# meanwhile. A bucket goes with its last timer, as the expiry of a session may be days away and its client back in a
# second. The key of such a bucket stays in the heap until most keys of the heap are of that kind. No timer fires early.
# It fires at most TICK late, or later when thousands are due together: they come in pages.
#
# Clients that are away for days have left one by one, so most of their sessions have a bucket of their own: a bucket of
# one timer is its owner, without a dict, which would take 232 bytes.
import heapq
from typing import Final

TICK: Final = 0.1  # seconds
IDLE: Final = 3600.0  # seconds until the next look while no timer is set
STALE: Final = 1000  # the heap may hold so many keys without a bucket, and as many as there are buckets

CONNECT_DEADLINE: Final = 1  # of a Connection without a session
KEEP_ALIVE: Final = 2  # of a Connection with a session
SESSION_EXPIRY: Final = 3  # of a Session
WILL: Final = 4  # of a Session: its will delay
PENDING_WILL: Final = 5  # of a PendingWill: it is published again
KINDS: Final = 8


class Timers:
    def __init__(self) -> None:
        self._buckets: dict[int, object] = {}  # by tick and kind: the owner of one timer, or a dict of several owners
        self._keys: list[int] = []  # a heap of the buckets' keys

    def set(self, when: float, kind: int, owner: object) -> int:
        """Fire (*kind*, *owner*) at the time *when*; the key to cancel it with."""
        key = (int(when / TICK) + 1) * KINDS + kind
        bucket = self._buckets.get(key)
        if bucket is None:
            self._buckets[key] = owner
            heapq.heappush(self._keys, key)
        elif isinstance(bucket, dict):
            bucket[owner] = None
        elif bucket is not owner:
            self._buckets[key] = {bucket: None, owner: None}
        return key

    def when(self, key: int) -> float:
        """The time that *key* stands for: a timer that any worker sets for that time gets the same key."""
        return (key // KINDS - 0.5) * TICK

    def cancel(self, key: int, owner: object) -> None:
        """Cancel the timer of *owner* with *key*, if it has not fired; *key* 0 stands for none."""
        bucket = self._buckets.get(key)
        if isinstance(bucket, dict):
            bucket.pop(owner, None)
            if bucket:
                return
        elif bucket is None or bucket is not owner:
            return
        del self._buckets[key]
        if len(self._keys) > 2 * len(self._buckets) + STALE:
            self._keys = list(self._buckets)
            heapq.heapify(self._keys)

    def next_due(self, now: float) -> float:
        """The time of the next timer, at the latest IDLE from *now*."""
        latest = now + IDLE
        return min(latest, self._keys[0] // KINDS * TICK) if self._keys else latest

    def pop_due(self, now: float, limit: int) -> list[tuple[int, object]]:
        """Remove up to *limit* of the timers that are due at *now*; (kind, owner) of each."""
        due: list[tuple[int, object]] = []
        while self._keys and self._keys[0] // KINDS * TICK <= now:
            key = self._keys[0]
            bucket = self._buckets.get(key)
            if isinstance(bucket, dict):
                while bucket and len(due) < limit:
                    due.append((key % KINDS, bucket.popitem()[0]))
                if bucket:
                    break
            elif bucket is not None:
                if len(due) >= limit:
                    break
                due.append((key % KINDS, bucket))
            heapq.heappop(self._keys)
            self._buckets.pop(key, None)
        return due

    def statistics(self) -> tuple[int, int]:
        """(timers that are set, keys in the heap)."""
        timers = sum(len(each) if isinstance(each, dict) else 1 for each in self._buckets.values())
        return timers, len(self._keys)
