# How the memory of a node is shared out: the limit of each account of the memory ledger.
#
# Limits that hold one by one do not hold together. A worker may use its part of the memory limit, and each account has
# a share of that. A worker makes its accounts with these figures, and `weir config check --budget` prints them.
from dataclasses import dataclass
from typing import Final

from broker.config.schema import Config

OWN_BYTES: Final = 48 << 20  # of a worker without a client: the interpreter, its libraries and code
CONNECTION_BYTES: Final = 2400  # of an idle connection with its session; tests/protocol/test_bounds.py holds it
ASSUMED_CONNECTIONS: Final = 20_000  # of the node, where limits.connections = 0 leaves it to the limit of descriptors
MIB: Final = 1 << 20


@dataclass(frozen=True)
class Account:
    """The most that is held for one purpose, in bytes of each worker."""

    name: str
    limit: int
    words: str  # what sets the limit


class WorkerBudget:
    """The accounts of one of *workers* workers; it may use *memory* bytes."""

    def __init__(self, config: Config, memory: int, workers: int) -> None:
        limits, overload = config.limits, config.overload
        self.memory = memory
        connections = -(-(limits.connections or ASSUMED_CONNECTIONS) // workers)
        self.input = max(memory // 16, limits.packet_bytes)  # a single client may send any packet
        self.outbound = config.delivery.outbound_budget or memory // 4
        self.waiting = limits.queue_budget or memory // 4
        self.wills = limits.will_budget or memory // 8
        self.connects = memory // 32
        self.retained = config.retained.bytes
        self.routes = config.routes.bytes
        self.accounts = [
            Account("worker", OWN_BYTES, "the process itself"),
            Account(
                "connections",
                connections * CONNECTION_BYTES,
                f"{connections} x {CONNECTION_BYTES} bytes (limits.connections)",
            ),
            Account("input", self.input, "a 16th of the memory, at least limits.packet_bytes"),
            Account("outbound", self.outbound, "delivery.outbound_budget"),
            Account("messages", self.waiting, "waiting and in flight (limits.queue_budget)"),
            Account("wills", self.wills, "limits.will_budget"),
            Account(
                "waiting CONNECTs", 2 * self.connects, f"{overload.connects_waiting} of them, two 32nds of the memory"
            ),
            Account("retained", self.retained, "retained.bytes"),
            Account("routes", self.routes, "routes.bytes"),
        ]

    def total(self) -> int:
        """The sum of all accounts."""
        return sum(account.limit for account in self.accounts)


def describe(config: Config, memory: int, workers: int) -> list[str]:
    """The worst case of a node with *workers* workers that may use *memory* bytes, line by line."""
    budget = WorkerBudget(config, memory // workers, workers)
    width = max(len(account.name) for account in budget.accounts)
    lines = [f"Memory limit {_mib(memory)}, {workers} workers: {_mib(budget.memory)} for each."]
    lines += [f"  {one.name:<{width}}  {_mib(one.limit):>10}  {one.words}" for one in budget.accounts]
    total = budget.total()
    lines.append(f"  {'sum':<{width}}  {_mib(total):>10}  of each worker; {_mib(total * workers)} of all")
    if total <= budget.memory:
        lines.append("The worst case of these fits into the memory.")
    else:
        over = _mib((total - budget.memory) * workers)
        lines.append(f"The worst case exceeds the memory by {over}: lower the largest of these limits.")
    lines.append("Not in the sum yet: subscriptions.")
    return lines


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"
