# The ten loads that Weir's speed is judged by, and what it must reach.
#
# "At least" and "aim" are Mosquitto's CPU per delivered message over Weir's. The loads with a window of one and those
# with a rate wake the broker for nearly every message: there the kernel has most of the time, and no broker can be much
# cheaper than another. What a wake-up costs depends on where the broker runs: on the core of the load generator a
# message takes two thirds of what it takes on another, and the kernel moves now one broker there and now the other. So
# both places are measured.
from dataclasses import dataclass, replace
from typing import Final

V5_SHARE: Final = 0.8  # of each factor, when all clients speak 5.0
INTERPRETED_SHARE: Final = 1 / 3  # of each factor, without mypyc
INTERPRETED_TRICKLING_SHARE: Final = 0.7  # of those that the kernel dominates
LATENCY_FACTOR: Final = 1.5  # p50 and p99 at most, beside Mosquitto's, for the loads with a rate


@dataclass(frozen=True)
class Load:
    name: str
    pattern: str
    pubs: int
    qos: int
    window: int
    at_least: float
    aim: float
    subs: int = 1  # of a fan-out; p2p has one for each publisher
    rate: int = 0  # messages a second; 0 = a closed loop
    trickling: bool = False  # about one message per wake-up
    transport: str = "tcp"
    cores: int = 0  # broker and load generator share one, or have one each; 0 = where the kernel puts them

    def arguments(self) -> list[str]:
        """The options of mqload."""
        options = ["--pattern", self.pattern, "--pubs", str(self.pubs), "--qos", str(self.qos)]
        options += ["--transport", self.transport]
        if self.pattern == "fanout":
            options += ["--subs", str(self.subs)]
        return [*options, "--rate", str(self.rate)] if self.rate else [*options, "--window", str(self.window)]

    def over(self, transport: str) -> "Load":
        """The same load by another road."""
        name = self.name if transport == "tcp" else f"{self.name}-{transport}"
        return replace(self, name=name, transport=transport)

    def copies(self) -> int:
        """Deliveries for each publish."""
        return self.subs if self.pattern == "fanout" else 1

    def share(self, v5: bool, interpreted: bool) -> float:
        """What part of the factors must be reached in this form."""
        share = V5_SHARE if v5 else 1.0
        if interpreted:
            share *= INTERPRETED_TRICKLING_SHARE if self.trickling else INTERPRETED_SHARE
        return share


LOADS: Final = (
    Load("p2p-1-qos0", "p2p", 1, 0, 1000, at_least=14, aim=25),
    Load("p2p-10-qos1", "p2p", 10, 1, 100, at_least=8, aim=12),
    Load("p2p-10-qos2", "p2p", 10, 2, 100, at_least=10, aim=14),
    Load("fanout-500-window10", "fanout", 1, 0, 10, subs=500, at_least=6, aim=10),
    Load("fanout-500-window100", "fanout", 1, 0, 100, subs=500, at_least=12, aim=18),
    Load("fanout-3000", "fanout", 10, 0, 2, subs=3000, at_least=12, aim=20),
    Load("trickle-qos1", "p2p", 200, 1, 1, at_least=0.9, aim=1.1, trickling=True),
    Load("trickle-qos0", "p2p", 200, 0, 1, at_least=0.9, aim=1.1, trickling=True),
    Load("rate-5000-together", "p2p", 50, 1, 0, rate=5000, at_least=0.8, aim=1, trickling=True, cores=1),
    Load("rate-5000-apart", "p2p", 50, 1, 0, rate=5000, at_least=0.8, aim=1, trickling=True, cores=2),
)
