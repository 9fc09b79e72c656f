# What a worker does must grow with what happens in the cluster, and not with the number of those it happens to.
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache, partial
from random import Random

import pytest

from broker.cluster.rendezvous import Place, settler_of
from broker.worker_id import WorkerId
from tests.tools.simulate.nodes.costs import Costs
from tests.tools.simulate.nodes.world import World

pytestmark = pytest.mark.interpreted  # lines of compiled code are not counted

FEW, MANY = 10, 200  # nodes of two workers
IDLE = "nothing"
ALIKE = 1.15  # times: messages come at other times, so that some more or fewer of them come together


@cache
def costs(nodes: int) -> dict[str, float]:
    """The lines for each kind of event; if it is told to all workers: for each of them. IDLE: for a second."""
    with closing(World(nodes, 2, 1)) as world:
        found = Costs(world)
        assert 2 * (nodes - 1) == found.peers == len(world.broker.mesh.peers)
        of_all = {kind: cost.lines / (found.peers if cost.to_all else 1) for kind, cost in found.all().items()}
        return {IDLE: found.idle.lines, **of_all}


@pytest.fixture
def make() -> Iterator[Callable[[int, int], World]]:
    """Makes worlds of so many nodes of two workers, from a seed, in which all know each other."""
    with ExitStack() as stack:

        def joined(nodes: int, seed: int) -> World:
            world = stack.enter_context(closing(World(nodes, 2, seed)))
            world.join_all()
            world.run_for(3.0)
            return world

        yield joined


def test_a_worker_without_events_does_the_same_in_any_cluster() -> None:
    """It would be busy with peers that have nothing to say: with 200 nodes, a core would do nothing else."""
    assert costs(MANY)[IDLE] <= costs(FEW)[IDLE] * ALIKE


def test_what_happens_costs_a_worker_the_same_in_any_cluster() -> None:
    """What one worker tells all costs each of them this: if that grows as well, all pay the square of their number."""
    few, many = costs(FEW), costs(MANY)

    assert {} == {kind: (few[kind], lines) for kind, lines in many.items() if lines > few[kind] * ALIKE}
    assert all(lines > 100 for lines in many.values())  # it did happen


def test_a_cluster_follows_from_its_seed(make: Callable[[int, int], World]) -> None:
    """A cost that has risen could not be looked into."""
    _first, *lines = [make(FEW, 7).counted.lines for _ in range(3)]  # the first one fills caches of the process

    assert lines[0] == lines[1] > 0


def test_a_storm_is_over_when_it_is_over(make: Callable[[int, int], World]) -> None:
    """What a thousand clients that come back leave behind would cost something for ever."""
    world = make(50, 1)
    before = world.counted.lines
    world.run_for(1.0)
    calm = world.counted.lines - before
    world.counted.exact = False
    asked: list[object] = []
    for number in range(1000):
        world.at(world.clock.now + number / 1000, partial(world.take_over, world.any(), number, asked))
    world.run_for(5.0)
    assert (1000, 0) == (len(asked), world.incoming.pending())
    world.counted.exact = True
    before = world.counted.lines
    world.run_for(1.0)

    assert world.counted.lines - before <= calm * ALIKE
    assert (0, 0) == (len(world.broker.worker.protection.throttle.busy), world.broker.mesh.pending())


def test_all_workers_agree_who_settles_a_dead_node_and_none_gets_all() -> None:
    """Sessions of a dead node would be adopted twice or by nobody; or one worker would read those of all."""
    random = Random(1)
    places: list[Place] = [(f"n{node}", shard) for node in range(200) for shard in range(2)]
    shares: Counter[Place] = Counter()
    for node in range(200):
        live = [place for place in places if place[0] != f"n{node}"]
        for shard in range(2):
            shuffled = random.sample(live, len(live))
            settler = settler_of((f"n{node}", shard), live)
            assert settler == settler_of((f"n{node}", shard), shuffled)
            assert settler is not None and settler[0] != f"n{node}"
            shares[settler] += 1

    assert max(shares.values()) <= 6  # of 400, one for each on average


def test_who_joins_again_is_known_again(make: Callable[[int, int], World]) -> None:
    """A worker that is replaced would be looked for among those that have ended."""
    world = make(FEW, 3)
    former = world.any()
    world.leave(former)
    world.run_for(1.0)
    assert len(world.broker.mesh.peers) == 2 * (FEW - 1) - 1 and world.broker.mesh.complete()
    world.join(world.add(WorkerId(former.worker.node, former.worker.shard, world.incarnation())))
    world.run_for(1.0)

    assert len(world.broker.mesh.peers) == 2 * (FEW - 1) and world.broker.mesh.complete()
    assert world.broker.peers.find(former.worker) is None
