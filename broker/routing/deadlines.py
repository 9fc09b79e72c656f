# A heap of deadlines from which any key can be removed.
#
# heapq with stale entries left inside is shorter, but a topic that is replaced ten thousand times a second with an
# expiry of a day would leave 864 million of them, and removing them all at times is a pause. So the place of each key
# in the heap is known, and the heap contains exactly the keys that have a deadline.
class Deadlines:
    def __init__(self) -> None:
        self._heap: list[tuple[float, bytes]] = []
        self._place: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, key: bytes, when: float) -> None:
        """Set the deadline of *key*, which may have had another one. O(log n)."""
        place = self._place.get(key, len(self._heap))
        if place == len(self._heap):
            self._heap.append((when, key))
        self._settle(place, (when, key))

    def discard(self, key: bytes) -> None:
        """Remove *key*, which may be unknown. O(log n)."""
        place = self._place.pop(key, -1)
        if place < 0:
            return
        last = self._heap.pop()
        if place < len(self._heap):
            self._settle(place, last)

    def pop_due(self, now: float) -> bytes | None:
        """Remove and return the key with the earliest deadline, if that has come; else None. O(log n)."""
        if not self._heap or self._heap[0][0] > now:
            return None
        key = self._heap[0][1]
        self.discard(key)
        return key

    def _settle(self, place: int, entry: tuple[float, bytes]) -> None:
        """Put *entry* at *place*, and move it up or down until the heap is in order."""
        heap = self._heap
        while place > 0:
            above = (place - 1) >> 1
            if heap[above] <= entry:
                break
            self._put(place, heap[above])
            place = above
        while True:
            below = 2 * place + 1
            if below + 1 < len(heap) and heap[below + 1] < heap[below]:
                below += 1
            if below >= len(heap) or entry <= heap[below]:
                break
            self._put(place, heap[below])
            place = below
        self._put(place, entry)

    def _put(self, place: int, entry: tuple[float, bytes]) -> None:
        self._heap[place] = entry
        self._place[entry[1]] = place
