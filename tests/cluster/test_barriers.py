# Barriers: what has to wait until every peer has processed what was sent to it.
from collections.abc import Iterator

import pytest

from broker.cluster import wire
from broker.cluster.barriers import Barriers
from tests.cluster.lanes import Lanes, written


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    made = Lanes()
    yield made
    made.close()


def barriers(lanes: Lanes) -> Barriers:
    return Barriers(lanes.peers, lambda: 7.0, lanes.failures.append)


def test_a_barrier_is_passed_when_every_peer_has_passed_it(lanes: Lanes) -> None:
    """The next message of a client that has moved could overtake its last one."""
    one, two = lanes.join(1), lanes.join(2)
    passed: list[float] = []
    made = barriers(lanes)
    made.when_passed(passed.append, 0.0)
    ((kind, body),) = written(one)
    assert (wire.BARRIER, [(kind, body)]) == (kind, written(two))

    made.passed(one, wire.read_number(body))
    assert ([], 1) == (passed, made.pending())
    made.passed(two, wire.read_number(body))
    made.passed(two, wire.read_number(body))
    assert ([7.0], 0) == (passed, made.pending())


def test_nothing_waits_for_a_peer_that_is_gone(lanes: Lanes) -> None:
    """A session would be on its way for ever after the death of a worker."""
    one, two = lanes.join(1), lanes.join(2)
    passed: list[float] = []
    made = barriers(lanes)
    made.when_passed(passed.append, 0.0)
    made.when_passed(passed.append, 0.0)
    first, _second = [wire.read_number(body) for _, body in written(one)]
    made.passed(one, first)

    made.remove(two)
    assert [7.0] == passed
    made.remove(one)
    assert ([7.0, 7.0], 0) == (passed, made.pending())


def test_without_peers_there_is_nothing_to_wait_for(lanes: Lanes) -> None:
    """The only worker of a node would wait for nobody."""
    passed: list[float] = []
    barriers(lanes).when_passed(passed.append, 3.0)

    assert [3.0] == passed


def test_a_failure_behind_a_barrier_costs_that_alone(lanes: Lanes) -> None:
    """A mistake in one takeover would end the lane, and with it the worker."""
    peer = lanes.join(1)
    passed: list[float] = []

    def fail(now: float) -> None:
        raise RuntimeError("a mistake of ours")

    made = barriers(lanes)
    made.when_passed(fail, 0.0)
    made.when_passed(passed.append, 0.0)
    for _, body in written(peer):
        made.passed(peer, wire.read_number(body))

    assert ([7.0], ["a mistake of ours"]) == (passed, [str(error) for error in lanes.failures])
