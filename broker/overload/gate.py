# A gate: how much may be under way to one resource that can fall behind, such as a store or another worker.
#
# The limit is what the resource completes in its own latency L0 and 100 ms more: then the resource always has something
# to do, and nothing waits in it for longer than 100 ms. The limit follows from two measurements: R, its completions a
# second, and L0, the least latency of an answer since the resource was connected.
#
# R is counted over a second in which something was under way, from an answer to an answer, so neither answers that come
# in batches nor pauses without work change R. R grows by itself from next to nothing, as each answer lets more in, and
# falls when answers fail to come.
#
# The signal is the mean latency of the last 100 to 200 ms, less L0. (The least latency of that time, which would tell a
# queue from a batch that fills, was tried: with batched answers the level stays too low and modest clients lose.) While
# no answer comes, the signal is the age of the oldest publish under way.
from collections import deque
from typing import Any, Final

from broker.config.schema import Overload

WINDOW: Final = 0.5  # seconds over which completions are counted
LONGEST: Final = 2.0  # seconds: a longer gap between answers counts as this long
GRAIN: Final = 0.01  # seconds: answers closer together are one point of the window
SAME: Final = 0.001  # seconds: publishes that are taken within this time are one batch
TELLING: Final = 0.1  # seconds over which latencies are averaged, together with as many before them
GAP_SMOOTHING: Final = 0.125
EACH: Final = 512  # bytes: the work of a publish beside that for its bytes, where publishes of many sizes share a gate
SHORT: Final = 3  # publishes of at most EACH bytes may exceed the bytes of a gate by this power of a half
NONE: Final = -1.0


class Rate:
    """Completions a second, over the time in which something is under way."""

    def __init__(self, now: float) -> None:
        self.value = 0.0
        self._completed = 0
        self._points: deque[tuple[float, int]] = deque([(0.0, 0)])  # (time, completions until then)
        self._idle_until = now  # minus the seconds in which something was under way
        self._idle_since = now

    def begin(self, now: float) -> None:
        """Something is under way from now on."""
        self._idle_until += now - self._idle_since

    def end(self, now: float) -> None:
        """Nothing is under way from now on."""
        self._idle_since = now

    def completed(self, n: int, now: float) -> None:
        self._completed += n
        at = now - self._idle_until
        points = self._points
        while len(points) > 1 and points[1][0] <= at - WINDOW:
            points.popleft()
        seconds = min(LONGEST, at - points[0][0])
        if seconds >= GRAIN:
            self.value = (self._completed - points[0][1]) / seconds
        if at - points[-1][0] >= GRAIN:
            points.append((at, self._completed))

    def state(self) -> list[object]:
        return [self.value, self._completed, list(self._points), self._idle_until, self._idle_since]

    def restore(self, state: list[Any]) -> None:
        self.value, self._completed, points, self._idle_until, self._idle_since = state
        self._points = deque([(float(at), int(count)) for at, count in points])


class Latency:
    """How long answers of the resource take."""

    def __init__(self, now: float) -> None:
        self.least = NONE  # L0
        self.gap = 0.0  # seconds between answers, or batches of them
        self._last = now
        self._sum = 0.0  # of latencies since `_since`
        self._count = 0
        self._sum_before = 0.0  # of latencies in the period before `_since`
        self._count_before = 0
        self._since = now

    def answered(self, n: int, latency: float, now: float) -> None:
        self._turn(now)
        if self.least == NONE or latency < self.least:
            self.least = latency
        if now > self._last:
            self.gap += GAP_SMOOTHING * (min(TELLING, now - self._last) - self.gap)
            self._last = now
        self._sum += n * latency
        self._count += n

    def recent(self, now: float) -> float:
        """The mean latency of the last 100 to 200 ms; NONE if no answer came."""
        self._turn(now)
        count = self._count + self._count_before
        return (self._sum + self._sum_before) / count if count else NONE

    def _turn(self, now: float) -> None:
        elapsed = now - self._since
        if elapsed >= TELLING:
            recent = elapsed < 2 * TELLING
            self._sum_before = self._sum if recent else 0.0
            self._count_before = self._count if recent else 0
            self._sum = 0.0
            self._count = 0
            self._since = now

    def state(self) -> list[object]:
        sums = [self._sum, self._count, self._sum_before, self._count_before]
        return [self.least, self.gap, self._last, self._since, *sums]

    def restore(self, state: list[Any]) -> None:
        self.least, self.gap, self._last, self._since = state[:4]
        self._sum, self._count, self._sum_before, self._count_before = state[4:]


class Batch:
    """Publishes under way that were taken at the same time."""

    def __init__(self, count: int, size: int, at: float) -> None:
        self.count = count
        self.size = size
        self.at = at


class Gate:
    def __init__(
        self,
        settings: Overload,
        resource: str,
        bit: int,
        now: float,
        further: int = 0,
        busy: "dict[Gate, None] | None" = None,
    ) -> None:
        """The gate of *resource*, which is *bit* in sets of resources; "" and 0 for a gate that no publish needs.

        *further*: the resources, as bits, that a publish for this gate needs and that the gate does not measure.
        *busy*: gets the gate when something is under way to its resource.
        """
        self._busy = busy
        self._floor = settings.gate_floor
        self._room = settings.gate_room
        self._idle = settings.gate_idle
        self._most_bytes = settings.gate_bytes
        self.resource = resource
        self.bit = bit
        self.needs = bit | further
        self.open = True  # there is room for one more publish, and the gate is not blocked
        self.calm = True  # the resource has so little to do that no client has to wait for credits
        self.free = True  # a publish may be taken without being judged: calm, not blocked and not in turns
        self.blocked = False  # something that is not a publish fills the resource: no publish passes
        self.in_turns = False  # clients wait for the gate, so each client may take its turn only
        self.taken = 0  # publishes since the gate was made
        self.taken_bytes = 0
        self.count = 0  # publishes under way
        self.bytes = 0
        self._under_way: deque[Batch] = deque()
        self._processed = 0  # bytes, by the last call of processed()
        self._rate = Rate(now)
        self._latency = Latency(now)
        self._limit = self._floor
        self._idle_limit = self._floor

    def reset(self, now: float) -> None:
        """The resource was connected again: nothing is under way, and it may be quicker or slower than before."""
        self.count = 0
        self.bytes = 0
        self._under_way = deque()
        self._processed = 0
        self._rate = Rate(now)
        self._latency = Latency(now)
        self._limit = self._floor
        self._idle_limit = self._floor
        self._look()

    def block(self) -> None:
        """Let no publish pass until `unblock()`."""
        self.blocked = True
        self._look()

    def unblock(self) -> None:
        self.blocked = False
        self._look()

    def let_in_turns(self, in_turns: bool) -> None:
        """Whether clients wait for the gate, so that each client may take its turn only."""
        self.in_turns = in_turns
        self._look()

    def fits(self, n: int, size: int) -> bool:
        """Whether *n* more publishes of *size* bytes together may pass; one publish always passes an empty gate.

        Short ones pass where only the bytes of long ones fill the gate: these would have them wait a round of all.
        """
        if self.count == 0 and n == 1:
            return True
        most = self._most_bytes if size > n * EACH else self._most_bytes + (self._most_bytes >> SHORT)
        return self.count + n <= self._limit and self.bytes + size <= most

    def room(self) -> int:
        """How many more publishes may pass, by their number alone."""
        return max(0, self._limit - self.count)

    def bytes_room(self) -> int:
        """How many more bytes may pass in publishes of the mean size of those under way."""
        return min(self.room() * self._mean(), self._most_bytes - self.bytes)

    def places(self) -> int:
        """How many clients may pass with a publish of that size each."""
        return -(-self.bytes_room() // self._mean()) if self.open else 0

    def _mean(self) -> int:
        """The mean size of the publishes under way, in bytes, and EACH more for the work beside that for bytes."""
        return EACH + (self.bytes // self.count if self.count else 0)

    def idle_room(self) -> int:
        """How many more publishes may pass without credits, until the work under way takes `overload.gate_idle`."""
        return max(0, self._idle_limit - self.count)

    def latest(self) -> float:
        """When the latest publish under way was taken. IndexError: nothing is under way."""
        return self._under_way[-1].at

    def take(self, n: int, size: int, now: float) -> None:
        """*n* publishes of *size* bytes together have passed and are under way."""
        if self.count == 0:
            self._rate.begin(now)
            if self._busy is not None:
                self._busy[self] = None
        self.taken += n
        self.taken_bytes += size
        self.count += n
        self.bytes += size
        under_way = self._under_way
        if under_way and now - under_way[-1].at < SAME:
            last = under_way[-1]
            last.count += n
            last.size += size
        else:
            under_way.append(Batch(n, size, now))
        self._look()

    def done(self, n: int, size: int, latency: float, now: float) -> None:
        """*n* publishes of *size* bytes together were completed; the last of them took *latency* seconds."""
        left = n
        under_way = self._under_way
        while left > 0 and under_way:
            first = under_way[0]
            if first.count > left:
                first.count -= left
                break
            left -= first.count
            under_way.popleft()
        self._complete(n, size, latency, now)

    def processed(self, total: int, now: float) -> None:
        """The resource has processed *total* bytes since it was connected, in the order in which they were taken."""
        size = left = total - self._processed
        self._processed = total
        n = 0
        latency = NONE
        under_way = self._under_way
        while left > 0 and under_way:
            first = under_way[0]
            if first.size > left:
                part = first.count * left // first.size
                first.count -= part
                first.size -= left
                n += part
                break
            n += first.count
            left -= first.size
            latency = now - first.at
            under_way.popleft()
        self._complete(n, size, latency, now)

    def delay(self, now: float) -> float:
        """The signal: seconds that answers take beyond L0."""
        recent = self._latency.recent(now)
        if recent == NONE:
            recent = now - self._under_way[0].at if self._under_way else 0.0
        return max(0.0, recent - max(0.0, self._latency.least) - self._batching())

    def _batching(self) -> float:
        """Seconds of latency that come from answers being batched, on average."""
        return self._latency.gap / 2

    def capacity(self) -> tuple[float, float]:
        """The measurements of the resource: (completions a second, L0 in seconds)."""
        return self._rate.value, max(0.0, self._latency.least)

    def state(self) -> list[object]:
        """The measurements and what is under way, as nested lists of numbers, for `restore()`."""
        under_way = [[batch.count, batch.size, batch.at] for batch in self._under_way]
        measured = [self._rate.state(), self._latency.state()]
        return [self.bit, self.count, self.bytes, self._processed, under_way, *measured]

    def restore(self, state: list[Any]) -> None:
        """Take over a `state()` of another gate."""
        self.bit, self.count, self.bytes, self._processed, under_way, rate, latency = state
        self._under_way = deque([Batch(count, size, at) for count, size, at in under_way])
        self._rate.restore(rate)
        self._latency.restore(latency)
        self._limits()

    def _complete(self, n: int, size: int, latency: float, now: float) -> None:
        self.count = max(0, self.count - n)
        self.bytes = max(0, self.bytes - size)
        if latency != NONE:
            self._latency.answered(n, latency, now)
        self._rate.completed(n, now)
        if self.count == 0:
            self._rate.end(now)
        self._limits()

    def _limits(self) -> None:
        """Derive the limits from the measurements."""
        own = max(0.0, self._latency.least)
        self._limit = max(self._floor, int(self._rate.value * (own + self._room)))
        self._idle_limit = max(self._floor, int(self._rate.value * (own + self._idle + self._batching())))
        self._look()

    def _look(self) -> None:
        small = self.bytes < self._most_bytes
        self.open = small and self.count < self._limit and not self.blocked
        self.calm = small and self.count < self._idle_limit
        self.free = self.calm and not self.blocked and not self.in_turns
