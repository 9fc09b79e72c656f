# A short run with faults of a cluster, and the parts of the tool that a run rests on.
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from supervisor.node_lease import LEASE
from tests.former_build import make_former_build
from tests.tools.faults.cluster.judges import GRACE, PROMISED, OwnershipJudge, RefusalJudge
from tests.tools.faults.cluster.plan import FEW, WEIGHTS, plan, told
from tests.tools.faults.cluster.run import ClusterRun
from tests.tools.faults.durable.__main__ import report
from tests.tools.faults.durable.history import Connected, Connecting, Ended, Event, Late, Refused, Sent

HERE, THERE = 1, 2  # ports


@pytest.fixture
def folder() -> Iterator[Path]:
    """One whose sockets have short paths."""
    path = Path(tempfile.mkdtemp(prefix="weir-"))
    yield path
    shutil.rmtree(path)


@pytest.mark.slow
@pytest.mark.system
def test_a_cluster_loses_nothing_whatever_is_harmed(folder: Path) -> None:
    """An acknowledged message would be lost or doubled with a node, a connection to Redis, or in a lane."""
    outcome = ClusterRun(folder, 3, 2, len(FEW), brisk=True).go()

    print(report(outcome))  # with the seed, which a failure needs
    assert [] == outcome.failures
    assert outcome.figures["acknowledged"] > 0


@pytest.mark.slow
@pytest.mark.system
def test_an_upgrade_of_one_node_after_another_loses_nothing(folder: Path) -> None:
    """Users would have to stop the whole cluster for each upgrade, or lose what is under way."""
    outcome = ClusterRun(folder, 3, 2, 0, former=make_former_build(folder / "former")).go()

    print(report(outcome))
    assert [] == outcome.failures
    assert outcome.figures["acknowledged"] > 0


def test_a_plan_follows_from_its_seed_and_has_each_kind() -> None:
    """A run could not be repeated, or would end well although nothing happened past a lease."""
    assert plan(Random(5), 3, 2, 30) == plan(Random(5), 3, 2, 30)
    assert plan(Random(5), 3, 2, 30) != plan(Random(6), 3, 2, 30)
    assert WEIGHTS.keys() == {each.kind for each in plan(Random(1), 3, 2, 500)}
    for seed in range(20):
        planned = plan(Random(seed), 2, 2, len(FEW), brisk=True)
        assert sorted(FEW) == sorted(each.kind for each in planned)
        assert all(each.seconds > LEASE for each in planned if "lease" in told(each))


# How soon clients are served again.


def judged(judge: RefusalJudge | OwnershipJudge, *events: Event) -> list[str]:
    for event in events:
        judge.take(event)
    return judge.violations


def connecting(at: float, port: int) -> Connecting:
    return Connecting(at, "c", False, port=port)


def bereft() -> RefusalJudge:
    """Of a client whose node has just died, at 1 s."""
    judge = RefusalJudge()
    judged(judge, connecting(0.0, HERE), Connected(0.1, "c", False))
    judge.died(HERE)
    judged(judge, Ended(1.0, "c"), connecting(1.1, THERE))
    return judge


def test_a_client_of_a_dead_node_may_be_refused_for_a_moment() -> None:
    """A node that sends the clients of a dead one away would be said to be well."""
    judge = bereft()
    assert [] == judged(judge, Refused(1.2, "c", 0x88), connecting(1.25, THERE), Connected(1.3, "c", True))
    assert [0.2] == [round(each, 3) for each in judge.waits]
    assert not judge.waiting()

    for code in (0x88, None):
        judge = bereft()
        assert 1 == len(judged(judge, Refused(1.1 + PROMISED + 0.01, "c", code)))
        assert judge.waiting()


def test_a_client_whose_node_lives_or_that_waits_for_something_else_is_not_judged() -> None:
    """Each refusal while Redis is away would count as one."""
    judge = bereft()
    judge.disturbed()
    assert [] == judged(judge, Refused(9.0, "c", 0x88))

    judge = RefusalJudge()
    judged(judge, connecting(0.0, THERE), Connected(0.1, "c", False))
    judge.died(HERE)
    assert [] == judged(judge, Ended(1.0, "c"), connecting(1.1, THERE), Refused(9.0, "c", 0x88))


def test_a_client_that_leaves_before_it_is_answered_is_not_refused() -> None:
    """What it waits by itself would count as if the node that it asked had not served it."""
    judge = bereft()
    assert [] == judged(judge, Ended(1.4, "c"), connecting(3.0, THERE), Refused(3.2, "c", 0x88), Ended(3.2, "c"))
    assert [] == judged(judge, connecting(3.3, THERE), Connected(3.4, "c", True))
    assert [0.4] == [round(each, 3) for each in judge.waits]


def test_an_attempt_at_the_dead_node_does_not_count() -> None:
    """Until the kernel has closed all its sockets a client may wait for it."""
    judge = RefusalJudge()
    judged(judge, connecting(0.0, HERE), Connected(0.1, "c", False))
    judge.died(HERE)
    judged(judge, Ended(1.0, "c"), connecting(1.0, HERE), Refused(1.7, "c", None), Ended(1.7, "c"))
    assert [] == judged(judge, connecting(1.8, THERE), Connected(1.9, "c", True))
    assert [0.1] == [round(each, 3) for each in judge.waits]


# Sessions that two nodes serve.


def taken_over(judge: OwnershipJudge, sent: float) -> list[str]:
    """A client has a new connection THERE at 1 s, and gets HERE at 2 s what was first sent at *sent*."""
    events: list[Event] = [connecting(0.0, HERE), Connected(0.1, "c", True), connecting(0.9, THERE)]
    events += [Connected(1.0, "c", True), Sent(sent, "p", 1, "t")]
    return judged(judge, *sorted(events, key=lambda event: event.at), Late(2.0, "c", "it", message=("p", 1), port=HERE))


def test_an_old_connection_gets_what_was_sent_before() -> None:
    """A worker that tells late what had happened would count as a second owner; or nobody would."""
    assert [] == taken_over(OwnershipJudge(), 0.5)
    assert 1 == len(taken_over(OwnershipJudge(), 1.5))


@pytest.mark.parametrize("port", [HERE, THERE])
def test_a_node_that_cannot_know_is_no_second_owner(port: int) -> None:
    """A node that is cut off cannot hear of a takeover."""
    judge = OwnershipJudge()
    judge.harmed(port, 2.0 - GRACE / 2)
    assert [] == taken_over(judge, 1.5)
    assert 1 == judge.served

    judge = OwnershipJudge()
    judge.harmed(port, 2.0 - GRACE * 2)
    assert 1 == len(taken_over(judge, 1.5))
