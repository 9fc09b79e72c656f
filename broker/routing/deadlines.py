# A heap that can forget: what expires next, when what expires is often replaced.
#
# heapq with stale entries left inside is shorter, but a topic that is replaced ten thousand times a second with an
# expiry of a day would leave 864 million of them; and clearing them out now and then is a pause. So each key
# knows its place in the heap, and the heap holds exactly the keys that have a deadline.
class Deadlines:
    def __init__(self) -> None:
        self._heap: list[tuple[float, bytes]] = []
        self._place: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, key: bytes, when: float) -> None:
        """*key* is due at *when*, and at no other time. O(log n)."""
        place = self._place.get(key, len(self._heap))
        if place == len(self._heap):
            self._heap.append((when, key))
        self._settle(place, (when, key))

    def discard(self, key: bytes) -> None:
        """Forget *key*, which may be unknown. O(log n)."""
        place = self._place.pop(key, -1)
        if place < 0:
            return
        last = self._heap.pop()
        if place < len(self._heap):
            self._settle(place, last)

    def pop_due(self, now: float) -> bytes | None:
        """Take the key whose deadline is the earliest, if that has come; None if there is none. O(log n)."""
        if not self._heap or self._heap[0][0] > now:
            return None
        key = self._heap[0][1]
        self.discard(key)
        return key

    def _settle(self, place: int, entry: tuple[float, bytes]) -> None:
        """Put *entry* at *place*, or as far above or below it as the order wants."""
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
