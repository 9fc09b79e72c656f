# Rates: how much in how much time. Their notation, and the token buckets that enforce them.
#
# A rate is one or more windows, `COUNT:SECONDS`, all of which apply: "100:1,5000:60" is 100 a second and 5000 a minute.
# `100/s` is another way to write `100:1`; /m, /h and /d are a minute, an hour and a day. Bytes take the units of sizes:
# "1MiB/s", "64MiB:60".
#
# Each window is a token bucket of COUNT, filled lazily with COUNT / SECONDS a second. So any stretch of t seconds sees
# at most COUNT + t x COUNT / SECONDS: a client that was quiet may use its whole count at once, and then its rate.
# Counting in fixed windows would be as simple, and would let twice the count pass around the edge of each window.
import re
from typing import Final, NamedTuple

MOST: Final = 1 << 40  # of a count: thousandths of it still fit into the 53 bits of a number in Lua
LONGEST: Final = 86_400  # seconds of a window: nobody would wait longer
WINDOWS: Final = 8  # of one rate, at most
TICK: Final = 1e-6  # seconds by which a time is rounded up, so that there is room at that time

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SIZES: Final = {
    "": 1,
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
_WINDOW: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([A-Za-z]*)(?::([0-9]{1,9})|/([smhd]))", re.ASCII)


class RateError(ValueError):
    """A text that is not a rate; *right* completes "it must be ..."."""

    def __init__(self, text: str, right: str) -> None:
        super().__init__(f'"{text}" is not a rate: it must be {right}.')
        self.right = right


class Window(NamedTuple):
    """At most *most* messages or bytes at once, and as much in every *seconds*."""

    most: int
    seconds: int


Rate = tuple[Window, ...]


def parse(text: str, sizes: bool = False) -> Rate:
    """Parse the rate *text*, in bytes if *sizes*. RateError."""
    windows = [_window(part, text, sizes) for part in text.replace(" ", "").split(",")]
    if len(windows) > WINDOWS or len({window.seconds for window in windows}) < len(windows):
        raise RateError(text, f"at most {WINDOWS} windows, each of another length")
    return tuple(windows)


def _window(part: str, text: str, sizes: bool) -> Window:
    found = _WINDOW.fullmatch(part)
    if found is None or found[2] not in (_SIZES if sizes else ("",)):
        example = '"1MiB/s" or "4MiB:1,64MiB:60" (a size, and seconds)' if sizes else '"100/s" or "100:1,5000:60"'
        raise RateError(text, f"a rate such as {example}")
    count = float(found[1]) * _SIZES[found[2]]
    seconds = int(found[3]) if found[3] else _SECONDS[found[4]]
    if count != int(count) or not 1 <= count <= MOST:
        raise RateError(text, f"of whole counts from 1 to {MOST}")
    if not 1 <= seconds <= LONGEST:
        raise RateError(text, f"of windows from 1 to {LONGEST} seconds")
    return Window(int(count), seconds)


def slowest(rate: Rate) -> float:
    """The amount that *rate* allows a second in the long run."""
    return min(window.most / window.seconds for window in rate)


def burst(rate: Rate) -> int:
    """The amount that *rate* allows at once."""
    return min(window.most for window in rate)


def kept_of(count: float, reserve: float, unit: float) -> float:
    """How much of *count* is reserved for QoS 1 and 2: the part *reserve*, but QoS 0 can always use one *unit*.

    *unit*: the largest amount that one message takes.
    """
    return max(0.0, min(reserve * count, count - unit))


class Meter:
    """How much room a limit has. QoS 1 and 2 are *firm*: they may use what is reserved for them."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity  # the largest amount that can ever be taken at once, if it is firm

    def room(self, firm: bool, now: float) -> float:
        """How much may be taken now; below 0 if the limit is overdrawn."""
        raise NotImplementedError

    def take(self, amount: float, firm: bool, now: float) -> None:
        """Take *amount*, even if there is no room for it."""
        raise NotImplementedError

    def when(self, amount: float, firm: bool, now: float) -> float:
        """When there should be room for *amount*, at most `capacity`, if nothing is taken before."""
        raise NotImplementedError

    def may_have_more(self, firm: bool) -> bool:
        """After too little room was found: whether there may be more, as Redis is being asked."""
        return False


class Bucket:
    """The token bucket of one window, with its level at the time `counted`."""

    def __init__(self, window: Window, kept: float, level: float, now: float) -> None:
        self.most = float(window.most)
        self.rate = window.most / window.seconds  # a second
        self.kept = kept
        self.level = level
        self.counted = now

    def fill(self, now: float) -> float:
        """Fill the bucket until *now*, and return its level."""
        if now > self.counted:
            level = self.level + (now - self.counted) * self.rate
            self.level = level if level < self.most else self.most
            self.counted = now
        return self.level


class Windows(Meter):
    """The meter of a rate that this worker shares with no other."""

    def __init__(self, rate: Rate, reserve: float, unit: float, now: float, former: Meter | None = None) -> None:
        """*reserve*: the part for QoS 1 and 2 alone. *unit*: the largest amount that one message takes.

        The buckets begin full. With a *former* meter they begin with what that had left, so that changing a rate is
        no burst.
        """
        super().__init__(burst(rate))
        left = float(MOST) if former is None else former.room(True, now)
        self._buckets = [
            Bucket(window, kept_of(window.most, reserve, unit), min(float(window.most), left), now) for window in rate
        ]

    def room(self, firm: bool, now: float) -> float:
        least = float(MOST)
        for bucket in self._buckets:
            level = bucket.fill(now)
            if not firm:
                level -= bucket.kept
            if level < least:
                least = level
        return least

    def take(self, amount: float, firm: bool, now: float) -> None:
        for bucket in self._buckets:
            bucket.fill(now)
            bucket.level -= amount

    def when(self, amount: float, firm: bool, now: float) -> float:
        latest = now
        for bucket in self._buckets:
            missing = amount - bucket.fill(now) + (0.0 if firm else bucket.kept)
            if missing > 0.0:
                latest = max(latest, now + missing / bucket.rate + TICK)
        return latest
