# When the messages of queues end: a schedule of queues, each by the time at which something in it ends, or may end.
#
# A message that has ended is not sent, as its session looks at its time before it does. The schedule frees the memory
# of what nobody looks at. It knows each queue once, however many messages it has, and each by whole seconds: what ends
# within the same second is dropped in one pass.
#
# It is a heap that moves the queues themselves: each knows its place, so that a queue which has ended leaves at once.
# That takes 16 bytes of a queue, and 8 while it has messages. Rejected: timers (protocol/timers.py), whose entry takes
# 100 bytes; lists by time, in which a queue that fills and drains again and again would be many times.
from typing import Final

NEVER_DUE: Final = float("inf")
NOWHERE: Final = -1
WEEK: Final = 7 * 86_400.0


class Expiring:
    """A queue whose messages may end. ExpirySchedule keeps track of it by two attributes, which no one else sets."""

    def __init__(self) -> None:
        self.due = NEVER_DUE  # when something in it ends, at the earliest; or NEVER_DUE
        self.place = NOWHERE


class ExpirySchedule:
    def __init__(self, ttl: float = WEEK) -> None:
        """*ttl*: seconds that a message may wait."""
        self.ttl = ttl
        self.offset = 0.0  # the time of this schedule, less that of the worker's clock, in seconds
        self.sweeps = 0  # under way: passes over messages of queues that are due
        self._heap: list[Expiring] = []

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, queue: Expiring, end: float) -> None:
        """Something in *queue* ends at the time *end* of this schedule."""
        if end < queue.due:
            due = float(int(end) + 1)
            if due < queue.due:
                self._set_due(queue, due)

    def discard(self, queue: Expiring) -> None:
        """*queue* has nothing that ends."""
        place = queue.place
        if place < 0:
            return
        queue.place = NOWHERE
        queue.due = NEVER_DUE
        last = self._heap.pop()
        if last is not queue:
            self._settle(place, last)

    def pop_due(self, time: float) -> Expiring | None:
        """Take the queue that has been due for longest at the time *time* of this schedule; None if none is."""
        if not self._heap or self._heap[0].due > time:
            return None
        queue = self._heap[0]
        self.discard(queue)
        return queue

    def next_due(self) -> float:
        """The time of this schedule at which the next queue is due; NEVER_DUE if there is none."""
        return self._heap[0].due if self._heap else NEVER_DUE

    def _set_due(self, queue: Expiring, due: float) -> None:
        queue.due = due
        place = queue.place
        if place < 0:
            place = len(self._heap)
            self._heap.append(queue)
        self._settle(place, queue)

    def _settle(self, place: int, queue: Expiring) -> None:
        """Put *queue* at *place*, and move it up or down until the heap is in order."""
        heap, due = self._heap, queue.due
        while place > 0:
            above = (place - 1) >> 1
            if heap[above].due <= due:
                break
            self._put(place, heap[above])
            place = above
        while True:
            below = 2 * place + 1
            if below + 1 < len(heap) and heap[below + 1].due < heap[below].due:
                below += 1
            if below >= len(heap) or due <= heap[below].due:
                break
            self._put(place, heap[below])
            place = below
        self._put(place, queue)

    def _put(self, place: int, queue: Expiring) -> None:
        self._heap[place] = queue
        queue.place = place
