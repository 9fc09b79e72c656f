# The scenarios that the rules were chosen by, on the code that runs. Everything is a tenth as large as in a real
# worker: a resource that does 1000 publishes a second, each ten times as dear.
from dataclasses import dataclass

import pytest

from tests.overload.loop import Client, Store, Worker, run

CAPACITY = 1000.0
COST = 400
WARM_UP = 10.0


@dataclass(frozen=True)
class Scenario:
    modest: int
    rate: float  # publishes a second of each modest one
    heavy: int = 0
    later: float = 1.0  # the capacity is multiplied by it after half of the time
    seconds: float = 30.0

    @property
    def quick(self) -> bool:
        """Whether it is computed in a second or two."""
        return self.modest < 1000 and self.seconds <= 30.0


SCENARIOS = {
    "demand 0.9 of capacity": Scenario(200, 4.5),
    "demand 1.1 of capacity": Scenario(200, 5.5),
    "fleet of 50, 3 times": Scenario(50, 60.0),
    "fleet of 1000, 3 times": Scenario(1000, 3.0),
    "1 heavy, 100 modest": Scenario(100, 3.0, heavy=1),
    "10 heavy, 100 modest": Scenario(100, 3.0, heavy=10),
    "the same, capacity halves": Scenario(100, 3.0, heavy=10, later=0.5, seconds=60.0),
}
LATENCIES = [0.001, 0.02, 0.15]
BATCHES = [0.0, 0.05]
GRID = [
    pytest.param(name, latency, batch, marks=[] if scenario.quick and latency == 0.02 and batch else pytest.mark.slow)
    for name, scenario in SCENARIOS.items()
    for latency in LATENCIES
    for batch in BATCHES
]


def goodput(store: Store) -> float:
    return store.served / store.possible


def late(store: Store) -> float:
    """The 99th percentile of the delay beyond the latency, in seconds."""
    return sorted(store.delays)[int(0.99 * len(store.delays))]


def share(clients: list[Client]) -> float:
    """How much of what they asked for they got."""
    return sum(client.got for client in clients) / sum(client.asked for client in clients)


def played(scenario: Scenario, latency: float, batch: float) -> tuple[Store, list[Client], list[Client]]:
    """(the resource, the heavy ones, the modest ones) after all of it."""
    worker = Worker()
    store = Store(CAPACITY, latency, batch)
    gate = worker.guard("store", store)
    heavy = worker.connect(scenario.heavy, 2000.0, COST, [gate], heavy=True)
    modest = worker.connect(scenario.modest, scenario.rate, COST, [gate])
    half = scenario.seconds / 2
    run([worker], [store], WARM_UP, 0.0, half)
    store.capacity *= scenario.later
    run([worker], [store], WARM_UP, half, scenario.seconds)
    return store, heavy, modest


@pytest.mark.parametrize(("name", "latency", "batch"), GRID)
def test_overload_wastes_nothing_delays_little_and_the_modest_lose_nothing(
    name: str, latency: float, batch: float
) -> None:
    """Protection would cost capacity, or not protect those who send little."""
    scenario = SCENARIOS[name]

    store, _, modest = played(scenario, latency, batch)

    demand = scenario.modest * scenario.rate / CAPACITY + 2.0 * scenario.heavy
    assert goodput(store) >= 0.96 * min(1.0, demand)
    assert late(store) <= 0.2
    if demand < 1.0 or scenario.heavy:
        assert share(modest) >= 0.999


@pytest.mark.slow
@pytest.mark.parametrize("latency", LATENCIES)
@pytest.mark.parametrize("name", ["demand 1.1 of capacity", "10 heavy, 100 modest"])
def test_answers_in_rare_batches_do_not_starve_the_resource(name: str, latency: float) -> None:
    """What waits for its batch would be taken for a queue, and less and less let in, down to half of the capacity."""
    store, _, modest = played(SCENARIOS[name], latency, batch=0.09)

    assert goodput(store) >= 0.96
    assert late(store) <= 0.2
    assert share(modest) >= (0.99 if SCENARIOS[name].heavy else 0.85)


def two_nodes() -> tuple[Worker, Worker, Store, Store]:
    """Two nodes with a store each; that of the second does a tenth."""
    first, second = Worker("first"), Worker("second")
    return first, second, Store(CAPACITY, 0.02, 0.0), Store(CAPACITY / 10, 0.02, 0.0)


def test_a_slow_store_of_one_node_costs_nothing_to_who_does_not_need_it() -> None:
    """One node's slow disk would slow down the clients of the whole cluster."""
    first, second, quick, slow = two_nodes()
    here, there = first.guard("quick", quick), second.guard("slow", slow)
    far = first.guard("slow", slow)  # who needs it is held back wherever it is
    busy = first.connect(20, 40.0, COST, [here])  # more than their credits at that level
    local = second.connect(10, 200.0, COST, [there], heavy=True)
    needing = first.connect(10, 200.0, COST, [far], heavy=True)

    run([first, second], [quick, slow], WARM_UP, 0.0, 30.0)

    assert min(first.levels[100:]) > 3.0
    assert share(busy) >= 0.999
    assert 0.02 < share(needing) < 0.03  # they and those of the other node have half of it each
    assert 0.02 < share(local) < 0.03
    assert goodput(slow) >= 0.96


@pytest.mark.parametrize("lie", [1e9, float("inf"), 0.1])
def test_a_signal_that_lies_or_sticks_costs_no_capacity_while_the_gate_is_idle(lie: float) -> None:
    """One sensor that is wrong would stop all clients."""
    worker = Worker()
    store = Store(CAPACITY, 0.02, 0.0)
    gate = worker.guard("store", store)
    modest = worker.connect(100, 8.0, COST, [gate])
    worker.lie = lie

    run([worker], [store], WARM_UP, 0.0, 20.0)

    assert 10.0 == worker.levels[-1]
    assert share(modest) >= 0.999


def test_a_signal_that_always_says_nothing_leaves_the_gate() -> None:
    """Without the level there would be no protection at all."""
    worker = Worker()
    store = Store(CAPACITY, 0.02, 0.0)
    gate = worker.guard("store", store)
    worker.connect(10, 2000.0, COST, [gate], heavy=True)
    worker.lie = 0.0

    run([worker], [store], WARM_UP, 0.0, 20.0)

    assert 0.0 == max(worker.levels)
    assert goodput(store) >= 0.96
    assert late(store) <= 0.2


def test_a_signal_that_jumps_does_no_harm_and_is_forgotten() -> None:
    """A sensor that flickers would throw clients out and in."""
    worker = Worker()
    store = Store(CAPACITY, 0.02, 0.0)
    gate = worker.guard("store", store)
    modest = worker.connect(100, 8.0, COST, [gate])
    now = 0.0
    for jump in range(100):
        worker.lie = 1e9 if jump % 2 else float("nan")
        run([worker], [store], WARM_UP, now, now + 0.1)
        now += 0.1
    worker.lie = None
    run([worker], [store], WARM_UP, now, now + 15.0)

    assert 0.0 == worker.levels[-1]
    assert share(modest) >= 0.999


def test_a_fleet_that_connects_into_an_overload_brings_no_fresh_credits() -> None:
    """Each newcomer would bring a pool of fresh credits, as in the published scheme."""
    worker = Worker()
    store = Store(CAPACITY, 0.02, 0.0)
    gate = worker.guard("store", store)
    worker.connect(10, 2000.0, COST, [gate], heavy=True)
    run([worker], [store], WARM_UP, 0.0, 15.0)
    worker.connect(200, 2000.0, COST, [gate], heavy=True)
    run([worker], [store], WARM_UP, 15.0, 30.0)

    assert goodput(store) >= 0.96
    assert late(store) <= 0.2
