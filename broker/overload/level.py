# How overloaded this worker is, from 0 to 10, and by what.
#
# A signal is a delay or a fill in units of its own target, so that unlike things compare: at 1 it is where we want it
# at most. The worst one moves the level, every 100 ms, by how far it is off and by how it has changed. Both terms are
# clamped, so that a signal which lies or jumps moves the level by 1.3 a step at most. Whole steps were tried, and
# either waste capacity or do not protect; the decimals inside are what lets the level settle.
#
# What cannot be true is not believed: NaN is no measurement, less than 0 is 0, and a signal that nobody has measured
# for a second is not held against anybody.
import math
from typing import Final

from broker.config.schema import Overload

STEP: Final = 0.1  # seconds from one step of a level to the next
HIGHEST: Final = 10.0
WORST: Final = 100.0  # targets; what says more is believed so much, so that differences stay numbers
STALE: Final = 1.0  # seconds after which a measurement says nothing any more
EVER_BEFORE: Final = -1e18


class Resources:
    """What publishes need, as bits: a name that all of the cluster knows it by, and a bit of our own."""

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}

    def bit(self, name: str) -> int:
        """The bit of *name*, the same each time; 0 for "", which no publish needs."""
        if not name:
            return 0
        return self._bits.setdefault(name, 1 << len(self._bits))

    def bits(self, names: tuple[str, ...]) -> int:
        """The bits of those of *names* that somebody here has asked for: what others need is nothing to us."""
        found = 0
        for name in names:
            found |= self._bits.get(name, 0)
        return found

    def names(self, bits: int) -> list[str]:
        """The names of *bits*, in the order in which they were asked for."""
        return [name for name, bit in self._bits.items() if bit & bits]


class Signal:
    """One measurement in units of its target."""

    def __init__(self, name: str, target: float, resource: str) -> None:
        """*resource*: what is contended while this is high; "" if no publish needs it."""
        if not 0.0 < target < math.inf:
            raise ValueError(f"the target of {name} must be above 0, not {target}")
        self.name = name
        self.resource = resource
        self.contended = False
        self.since = 0.0  # when it became contended last
        self.value = 0.0  # targets
        self.measured = 0.0  # in its unit
        self.nonsense = 0  # measurements that were none
        self.target = target
        self._measured = EVER_BEFORE

    def measure(self, value: float, now: float) -> None:
        """It is *value* now, in the unit of the target."""
        if math.isnan(value):
            self.nonsense += 1
            return
        self._measured = now
        if value < 0.0:
            self.nonsense += 1
            value = 0.0
        self.measured = value
        self.value = min(WORST, value / self.target)

    def look(self, now: float, above: float, below: float) -> None:
        """Contended from *above* targets until it is *below*; what is too old counts as 0."""
        if now - self._measured > STALE:
            self.value = 0.0
        if self.value > above:
            if not self.contended:
                self.since = now
            self.contended = True
        elif self.value < below:
            self.contended = False


class Signals:
    """All signals of a worker: a handful, and those of its gates."""

    def __init__(self, settings: Overload, here: str) -> None:
        """*here*: the resource that is this worker itself, which all publishes to its clients need."""
        self._here = here
        self._above = settings.contended_from
        self._below = settings.contended_until
        self._gate_delay = settings.gate_delay
        self._all: dict[str, Signal] = {}
        self.lag = self._add("lag", settings.lag, here)  # seconds: the oldest ready socket that was not served
        self.outbound = self._add("outbound", settings.outbound_percent / 100, here)  # share of the budget
        self.memory = self._add("memory", settings.memory_percent / 100, here)  # share of the limit
        self.connect = self._add("connect", settings.connect_delay, "")  # seconds: the oldest CONNECT that waits
        self.worst = 0.0  # targets, at the last look
        self.worst_name = ""  # of that signal; "" while all are 0
        self.worst_here = 0.0  # targets: the worst of those that say how this worker itself is
        self.contended: tuple[str, ...] = ()  # names of resources, in order

    def add_gate(self, resource: str) -> Signal:
        """The signal of a gate, named as its resource: seconds that it takes longer than without load."""
        return self._add(resource, self._gate_delay, resource)

    def named(self, name: str) -> Signal:
        """The signal of that name; KeyError."""
        return self._all[name]

    def remove(self, signal: Signal) -> None:
        """Its resource is no more; one of the same name that has come since is another one, and stays."""
        if self._all.get(signal.name) is signal:
            del self._all[signal.name]

    def look(self, now: float) -> None:
        """Find the worst signal, and what is contended; before each step of the level."""
        self.worst = 0.0
        self.worst_name = ""
        self.worst_here = 0.0
        contended = set()
        for signal in self._all.values():
            signal.look(now, self._above, self._below)
            if signal.value > self.worst:
                self.worst = signal.value
                self.worst_name = signal.name
            if signal.value > self.worst_here and signal.resource == self._here:
                self.worst_here = signal.value
            if signal.contended and signal.resource:
                contended.add(signal.resource)
        self.contended = tuple(sorted(contended))

    def contending(self, resource: str) -> list[Signal]:
        """The signals by which *resource* is contended."""
        return [signal for signal in self._all.values() if signal.contended and signal.resource == resource]

    def target(self, name: str) -> float:
        """The target of the signal *name*, of any worker that is configured as this one is: seconds, or a share."""
        signal = self._all.get(name)
        return self._gate_delay if signal is None else signal.target  # what is not here is a gate elsewhere

    def all(self) -> list[Signal]:
        return list(self._all.values())

    def value(self, name: str) -> float:
        """The signal *name* in units of its target; 0.0 if it is no more."""
        signal = self._all.get(name)
        return 0.0 if signal is None else signal.value

    def values(self) -> dict[str, float]:
        """Each signal in units of its target, at the last look."""
        return {signal.name: signal.value for signal in self._all.values()}

    def _add(self, name: str, target: float, resource: str) -> Signal:
        signal = self._all[name] = Signal(name, target, resource)
        return signal


class Level:
    """The level of a worker. Whoever has it calls `step()` every 100 ms."""

    def __init__(self, settings: Overload) -> None:
        self._position_gain = settings.position_gain
        self._trend_gain = settings.trend_gain
        self._before = 0.0  # the worst signal at the last step
        self.value = 0.0
        self.cause = ""  # the signal that raised it: who is at peace is not blamed while it falls; "" at 0

    def step(self, worst: float, name: str = "") -> float:
        """The level after 100 ms more, the worst signal being *worst* targets, and *name*."""
        if worst > 1.0 or not self.value:
            self.cause = name
        position = max(-1.0, min(4.0, worst - 1.0))
        trend = max(-3.0, min(3.0, worst - self._before))
        self._before = worst
        self.value = min(HIGHEST, max(0.0, self.value + self._position_gain * position + self._trend_gain * trend))
        if not self.value:
            self.cause = ""
        return self.value

    @property
    def shown(self) -> int:
        """The level as people see it and as it is compared: rounded up."""
        return math.ceil(self.value)
