# How overloaded this worker is, from 0 to 10, and by what.
#
# A signal is a delay or a fill level in units of its own target, so that unlike things compare: up to 1 it is as
# wanted. Every 100 ms the worst signal moves the level, by how far the signal is from 1 and by how it has changed. Both
# terms are clamped, so a signal that is wrong or jumps moves the level by at most 1.3 a step. Whole steps were tried:
# they waste capacity or do not protect. The decimals inside let the level settle.
#
# Impossible values are not believed: NaN is not a measurement, less than 0 counts as 0, and a signal that was not
# measured for a second counts as 0.
#
# Two kinds of signals move a level of their own, which ends below 10; the level of the worker is the highest of all:
# - The delay of a gate of another node's worker, up to BY_OTHER_NODES. That worker reports its own overload. If it
#   reports nothing it is dead, suspended or cut off: then less traffic of all clients helps nobody. Who publishes for
#   it waits at its gate. A quarter of the credits makes its heaviest publishers yield to the others, and throttles
#   nobody who does without it.
# - A change of the cluster, up to BY_TOPOLOGY: it brings work (synchronisation, adopted sessions, clients that connect
#   again) before this work shows as a delay. Half of the credits throttle no client below 125 000 a second.
import math
from typing import Final

from broker.config.schema import Overload

STEP: Final = 0.1  # seconds from one step of a level to the next
HIGHEST: Final = 10.0
BY_OTHER_NODES: Final = 2.0
BY_TOPOLOGY: Final = 1.0
TOPOLOGY: Final = "topology"  # the name of the signal of the nodes that have joined or left lately
NODES: Final = (
    0.5  # target of the signal of topology: a single node is twice that, so that its level is 1 within 400 ms
)
WORST: Final = 100.0  # targets; a larger value counts as this, so that differences stay finite
STALE: Final = 1.0  # seconds after which a measurement or a report does not count any more
EVER_BEFORE: Final = -1e18


def node_of(resource: str) -> str:
    """The node of a worker or of what a worker has, such as "n1" of "n1/0 store"; "": *resource* is of no worker."""
    return resource.rpartition("/")[0]


def without_gate(worker: str) -> tuple[str, str]:
    """The resources of *worker* that no gate measures: (memory, outbound). Being quick does not mean having room."""
    return f"{worker} memory", f"{worker} outbound"


def store_of(worker: str) -> str:
    """The resource that stores the durable sessions of *worker*."""
    return f"{worker} store"


def store_memory_of(worker: str) -> str:
    """The memory of the store of *worker*, which its gate does not measure: a store may be quick and nearly full."""
    return f"{worker} store memory"


def store_rate_of(worker: str) -> str:
    """What the configuration lets publishers at *worker* have stored."""
    return f"{worker} store rate"


def cold_of(worker: str) -> str:
    """The reads of sessions of *worker* that are in Redis alone, as far as messages wait for them."""
    return f"{worker} cold sessions"


def log_of(worker: str) -> str:
    """The log, as far as *worker* appends to it."""
    return f"{worker} log"


def backbone_of(worker: str) -> str:
    """What *worker* waits for before it accepts publishes for the inbound backbone."""
    return f"{worker} backbone"


def backbone_lag_of(node: str) -> str:
    """The dispatching from the inbound backbone, by all workers of *node*: no gate measures how far behind it is."""
    return f"{node} backbone lag"


class Resources:
    """The registry of resources: a name that the whole cluster uses, and a bit within this worker."""

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}

    def bit(self, name: str) -> int:
        """The bit of *name*, which is allocated at the first call; 0 for ""."""
        if not name:
            return 0
        return self._bits.setdefault(name, 1 << len(self._bits))

    def bits(self, names: tuple[str, ...]) -> int:
        """The bits of *names*, as far as they have one: other resources are needed by no publish of this worker."""
        found = 0
        for name in names:
            found |= self._bits.get(name, 0)
        return found

    def names(self, bits: int) -> list[str]:
        """The names of *bits*, in the order of their allocation."""
        return [name for name, bit in self._bits.items() if bit & bits]


class WorstSignal:
    """The worst of the signals that raise the level to at most *highest*."""

    def __init__(self, highest: float) -> None:
        self.highest = highest
        self.raised: dict[Signal, None] = {}  # those above 0, or contended: the others need not be looked at
        self.value = 0.0  # targets
        self.name = ""  # "" while all are 0


class Signal:
    """One measurement in units of its target."""

    def __init__(self, name: str, target: float, resource: str, worst: WorstSignal) -> None:
        """*resource*: contended while the signal is high; "" if no publish needs it. *worst*: of the signals of its
        kind.
        """
        if not 0.0 < target < math.inf:
            raise ValueError(f"the target of {name} must be above 0, not {target}")
        self.name = name
        self.resource = resource
        self.worst: Final = worst
        self.contended = False
        self.since = 0.0  # when `contended` became true
        self.value = 0.0  # targets
        self.measured = 0.0  # in the unit of the target
        self.nonsense = 0  # impossible measurements
        self.target = target
        self._measured = EVER_BEFORE

    def measure(self, value: float, now: float) -> None:
        """Take the measurement *value*, in the unit of the target."""
        if math.isnan(value):
            self.nonsense += 1
            return
        self._measured = now
        if value < 0.0:
            self.nonsense += 1
            value = 0.0
        self.measured = value
        self.value = min(WORST, value / self.target)
        if value > 0.0:
            self.worst.raised[self] = None

    def look(self, now: float, above: float, below: float) -> None:
        """Update `contended`: true from *above* targets, false again under *below*. An old measurement counts as 0."""
        if now - self._measured > STALE:
            self.value = 0.0
        if self.value > above:
            if not self.contended:
                self.since = now
            self.contended = True
        elif self.value < below:
            self.contended = False


class Signals:
    """The signals of a worker: five of its own, one of the cluster, and one for each gate."""

    def __init__(self, settings: Overload, here: str) -> None:
        """*here*: the resource that is this worker itself; every publish to its clients needs it, and its memory."""
        memory, outbound = without_gate(here)
        self.node = node_of(here)  # gates of workers of other nodes raise the level less; "": there are no others
        self._ordinary = WorstSignal(HIGHEST)
        self._other_nodes = WorstSignal(BY_OTHER_NODES)
        self._topology = WorstSignal(BY_TOPOLOGY)
        self.kinds: Final = (self._ordinary, self._other_nodes, self._topology)
        self._here = (here, memory, outbound)
        self._above = settings.contended_from
        self._below = settings.contended_until
        self._gate_delay = settings.gate_delay
        self._all: dict[str, Signal] = {}
        self._near: dict[str, Signal] = {}  # of them, those that are not of gates of other nodes' workers
        self.lag = self.add("lag", settings.lag, here)  # seconds that the oldest ready socket has waited
        self.outbound = self.add("outbound", settings.outbound_percent / 100, outbound)  # share of the budget
        self.memory = self.add("memory", settings.memory_percent / 100, memory)  # share of the limit
        redis = store_memory_of(here)
        self.redis = self.add("redis", settings.redis_percent / 100, redis)  # share of its maxmemory
        self.connect = self.add("connect", settings.connect_delay, "")  # seconds that the oldest CONNECT has waited
        self.topology = self._add(Signal(TOPOLOGY, NODES, "", self._topology))
        self._fills = (self.outbound, self.memory, self.redis)
        self.worst = 0.0  # targets, at the last look
        self.worst_name = ""  # the name of the worst signal; "" while all are 0
        self.worst_here = 0.0  # targets: the worst signal of this worker itself
        self.strain = 0.0  # targets: the worst delay of this worker, and of what belongs to its node
        self.contended: tuple[str, ...] = ()  # names of resources, sorted

    def add_gate(self, resource: str) -> Signal:
        """The signal of a gate, which has the name of its resource: seconds of delay beyond L0."""
        node = node_of(resource)
        near = not node or not self.node or node == self.node
        worst = self._ordinary if near else self._other_nodes
        return self._add(Signal(resource, self._gate_delay, resource, worst))

    def named(self, name: str) -> Signal:
        """The signal of that name; KeyError."""
        return self._all[name]

    def remove(self, signal: Signal) -> None:
        """Remove *signal*, unless another signal of the same name has replaced it."""
        signal.worst.raised.pop(signal, None)
        if self._all.get(signal.name) is signal:
            del self._all[signal.name]
            self._near.pop(signal.name, None)

    def look(self, now: float) -> None:
        """Find the worst signal and the contended resources. To be called before each step of the level."""
        self.worst = 0.0
        self.worst_name = ""
        self.worst_here = self.strain = 0.0
        contended: set[str] = set()
        for kind in self.kinds:
            kind.value = 0.0
            kind.name = ""
            for signal in list(kind.raised):
                if self._all.get(signal.name) is not signal:  # another one has replaced it
                    del kind.raised[signal]
                    continue
                signal.look(now, self._above, self._below)
                if signal.value > kind.value:
                    kind.value = signal.value
                    kind.name = signal.name
                if signal.value > self.strain and kind is self._ordinary and signal not in self._fills:
                    self.strain = signal.value
                if signal.value > self.worst_here and signal.resource in self._here:
                    self.worst_here = signal.value
                if signal.contended and signal.resource:
                    contended.add(signal.resource)
                if signal.value == 0.0 and not signal.contended:
                    del kind.raised[signal]
            if kind.value > self.worst:
                self.worst = kind.value
                self.worst_name = kind.name
        self.contended = tuple(sorted(contended))

    def contending(self, resource: str) -> list[Signal]:
        """The signals for which *resource* is contended."""
        return [signal for signal in self._all.values() if signal.contended and signal.resource == resource]

    def target(self, name: str) -> float:
        """The target of the signal *name* (seconds, or a share), of any worker with the same configuration."""
        signal = self._all.get(name)
        return (
            self._gate_delay if signal is None else signal.target
        )  # an unknown signal is that of a gate of another worker

    def all(self) -> list[Signal]:
        return list(self._all.values())

    def value(self, name: str) -> float:
        """The signal *name* in units of its target; 0.0 if there is no such signal."""
        signal = self._all.get(name)
        return 0.0 if signal is None else signal.value

    def values(self) -> dict[str, float]:
        """Each signal in units of its target."""
        return {signal.name: signal.value for signal in self._all.values()}

    def telling(self) -> dict[str, float]:
        """Those of `values()` that tell something: of gates of other nodes' workers, which may be a thousand, those
        above 0.
        """
        found = {signal.name: signal.value for signal in self._near.values()}
        for signal in self._other_nodes.raised:
            found[signal.name] = signal.value
        return found

    def add(self, name: str, target: float, resource: str) -> Signal:
        """A further signal, which is measured by whoever adds it; see `Signal`."""
        return self._add(Signal(name, target, resource, self._ordinary))

    def _add(self, signal: Signal) -> Signal:
        self._all[signal.name] = signal
        if signal.worst is not self._other_nodes:
            self._near[signal.name] = signal
        return signal


class Level:
    """The level that signals of one kind raise. `step()` is to be called every 100 ms."""

    def __init__(self, settings: Overload, highest: float = HIGHEST) -> None:
        self._highest = highest
        self._position_gain = settings.position_gain
        self._trend_gain = settings.trend_gain
        self._before = 0.0  # the worst signal at the last step
        self.value = 0.0
        self.cause = ""  # the signal that raised the level last, also while the level falls; "" at level 0

    def step(self, worst: float, name: str = "") -> float:
        """Move the level by one step of 100 ms, and return it. The worst signal is *name*, with *worst* targets."""
        if worst > 1.0 or not self.value:
            self.cause = name
        position = max(-1.0, min(4.0, worst - 1.0))
        trend = max(-3.0, min(3.0, worst - self._before))
        self._before = worst
        self.value = min(
            self._highest, max(0.0, self.value + self._position_gain * position + self._trend_gain * trend)
        )
        if not self.value:
            self.cause = ""
        return self.value


class WorkerLevel:
    """The level of a worker: the highest that the signals of any kind raise."""

    def __init__(self, settings: Overload, signals: Signals) -> None:
        self._kinds: Final = [(kind, Level(settings, kind.highest)) for kind in signals.kinds]
        self.value = 0.0
        self.cause = ""  # see `Level`

    def step(self) -> float:
        """Move the level by one step of 100 ms, as the signals were at the last look, and return it."""
        self.value = 0.0
        self.cause = ""
        for kind, level in self._kinds:
            level.step(kind.value, kind.name)
            if level.value > self.value:
                self.value = level.value
                self.cause = level.cause
        return self.value

    @property
    def shown(self) -> int:
        """The level rounded up, as it is shown and compared."""
        return math.ceil(self.value)
