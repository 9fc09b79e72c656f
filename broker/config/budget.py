# How the memory of a node is shared out: the limit of each account of the memory ledger.
#
# Limits that hold one by one do not hold together. So the memory of the node is divided: the supervisor and the private
# Redis have their part, the rest is the workers'. A worker needs some itself and for connections; what is left is
# divided by 32nds among its accounts, unless a setting says otherwise. A worker makes its accounts with these figures,
# and `weir config check --budget` prints them.
from dataclasses import dataclass
from typing import Final

from broker.config.schema import MEMORY, Config, needs_carrier

SUPERVISOR_BYTES: Final = 40 << 20
OWN_BYTES: Final = 48 << 20  # of a worker without a client: the interpreter, its libraries and code
CONNECTION_BYTES: Final = 2400  # of an idle connection with its session; tests/protocol/test_bounds.py holds it
ASSUMED_CONNECTIONS: Final = 20_000  # of the node, where limits.connections = 0 leaves it to the limit of descriptors
# On a node with a carrier. Of a worker: packs that the log is not known to have, and records that were read of it.
UNSTORED_BYTES: Final = 8 << 20  # a quarter of a second of 250 000 messages of 120 bytes each second
HELD_BYTES: Final = 16 << 20
DISPATCHED_BYTES: Final = (
    32 << 20
)  # publishes from the inbound backbone that are under way: their bytes, and 0.5 KB each
# Of the carrier, beside what each worker is yet to take of records.
CARRIER_BYTES: Final = 72 << 20  # the interpreter, kafka-python and code, and 16 MiB that are read ahead
WAITING_BYTES: Final = 64 << 20  # a second of 300 000 messages of 120 bytes
REDIS: Final = 8  # the node's memory divided by this is for the data of the private Redis
MIB: Final = 1 << 20

# 32nds of what a worker has left for each account.
PARTS: Final = 32
INPUT: Final = 2
OUTBOUND: Final = 5
MESSAGES: Final = 7
WILLS: Final = 2
CONNECTS: Final = 1  # twice, as a CONNECT that waits is there in bytes and as a packet
SUBSCRIPTIONS: Final = 10
RETAINED: Final = 3
UNWRITTEN: Final = 8  # of that, one part in so many is for changes that are not stored yet, if they are stored
ROUTES: Final = 1


@dataclass(frozen=True)
class Account:
    """The most that is held for one purpose, in bytes of each worker."""

    name: str
    limit: int
    words: str  # what sets the limit


class WorkerBudget:
    """The accounts of one of *workers* workers of a node that may use *memory* bytes."""

    def __init__(self, config: Config, memory: int, workers: int) -> None:
        limits, overload = config.limits, config.overload
        shared = SUPERVISOR_BYTES + (0 if config.redis.url else redis_memory(config, memory))
        shared += carrier_memory(config, workers)
        self.log = UNSTORED_BYTES + HELD_BYTES if needs_carrier(config) else 0
        if config.inbound.enabled():
            self.log += DISPATCHED_BYTES
        self.memory = max(memory - shared, memory // 2) // workers
        connections = -(-(limits.connections or ASSUMED_CONNECTIONS) // workers) * CONNECTION_BYTES
        part = max(self.memory - OWN_BYTES - connections - self.log, self.memory // 4) // PARTS
        self.input = max(part * INPUT, limits.packet_bytes)  # a single client may send any packet
        self.outbound = config.delivery.outbound_budget or max(part * OUTBOUND, config.delivery.high_watermark)
        self.messages = limits.queue_budget or part * MESSAGES
        self.wills = limits.will_budget or part * WILLS
        self.connects = 2 * part * CONNECTS
        self.subscriptions = limits.subscription_budget or part * SUBSCRIPTIONS
        retained = part * RETAINED
        self.unwritten = 0 if config.store.durability == MEMORY else (config.retained.bytes or retained) // UNWRITTEN
        self.retained = config.retained.bytes or retained - self.unwritten
        self.routes = config.routes.bytes or part * ROUTES
        self.accounts = [
            Account("worker", OWN_BYTES, "the process itself"),
            Account(
                "connections",
                connections,
                f"{connections // CONNECTION_BYTES} x {CONNECTION_BYTES} bytes (limits.connections)",
            ),
            Account("input", self.input, "at least limits.packet_bytes"),
            Account("outbound", self.outbound, "delivery.outbound_budget"),
            Account("messages", self.messages, "waiting and in flight (limits.queue_budget)"),
            Account("wills", self.wills, "limits.will_budget"),
            Account("waiting CONNECTs", self.connects, f"at most {overload.connects_waiting} of them"),
            Account("subscriptions", self.subscriptions, "and the filters of all workers (limits.subscription_budget)"),
            Account("retained", self.retained, "retained.bytes"),
            Account("routes", self.routes, "routes.bytes"),
        ]
        if self.unwritten:
            words = f"an {UNWRITTEN}th of retained.bytes"
            self.accounts.append(Account("unwritten retained", self.unwritten, words))

        if self.log:
            self.accounts.append(Account("logs", self.log, "what the log is not known to have, and what is read of it"))

    def total(self) -> int:
        """The sum of all accounts."""
        return sum(account.limit for account in self.accounts)


def redis_memory(config: Config, memory: int) -> int:
    """Bytes of the data of the private Redis, on a node that may use *memory* bytes."""
    return config.redis.memory or memory // REDIS


def carrier_memory(config: Config, workers: int) -> int:
    """Bytes of the carrier of a node with *workers* workers; 0: it has none."""
    return CARRIER_BYTES + WAITING_BYTES + workers * HELD_BYTES if needs_carrier(config) else 0


def describe(config: Config, memory: int, workers: int) -> list[str]:
    """The worst case of a node with *workers* workers that may use *memory* bytes, line by line."""
    budget = WorkerBudget(config, memory, workers)
    width = max(len(account.name) for account in budget.accounts)
    lines = [f"Memory limit {_mib(memory)}, {workers} workers: {_mib(budget.memory)} for each."]
    lines += [f"  {one.name:<{width}}  {_mib(one.limit):>10}  {one.words}" for one in budget.accounts]
    total = budget.total()
    lines.append(f"  {'sum':<{width}}  {_mib(total):>10}  of each worker; {_mib(total * workers)} of all")
    redis = "" if config.redis.url else f", the private Redis {_mib(redis_memory(config, memory))} (redis.memory)"
    carrier = f", the carrier {_mib(carrier_memory(config, workers))}" if needs_carrier(config) else ""
    lines.append(f"Beside the workers, the supervisor has {_mib(SUPERVISOR_BYTES)}{carrier}{redis}.")
    if total <= budget.memory:
        lines.append("The worst case of these fits into the memory.")
    else:
        over = _mib((total - budget.memory) * workers)
        lines.append(f"The worst case exceeds the memory by {over}: lower the largest of these limits.")
    return lines


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"
