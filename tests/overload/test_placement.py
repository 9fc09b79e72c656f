# Where clients are sent, and how quickly they may leave: decisions by what other nodes report.
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.overload.level import HIGHEST, STALE, STEP, Resources
from broker.overload.placement import FEW, FIRST, FORGET, LONG, LOOK, SAID, SLOWER, DrainPace, Place, Placement
from broker.overload.reports import HEARTBEAT, STRAINED, UNKNOWN, Report, Reports
from broker.worker_id import WorkerId

NOW = 100.0


class Here:
    """Worker 0 of two of the node "here", which knows the nodes a, b and c."""

    def __init__(self, *places: Place) -> None:
        worker = WorkerId("here", 0, 1)
        self.reports = Reports(worker, Resources())
        self.placement = Placement(worker, 2, self.reports)
        self.placement.set(places or [Place(name, f"{name}:1883") for name in "abc"])
        self._sequence = 0
        self.now = NOW

    def hear(
        self,
        node: str,
        level: float = 0.0,
        clients: int = 0,
        wait: float = 0.0,
        worker: int = 0,
        strain: float = 0.0,
        cause: str = "",
    ) -> None:
        self._sequence += 1
        report = Report(WorkerId(node, worker, 1), self._sequence, level, cause, strain, (), clients, wait)
        assert self.reports.hear(report.encode(), self.now)

    def sent(self, count: int) -> list[str]:
        """Where *count* clients are sent now."""
        rooms = [self.placement.send(self.now) for _ in range(count)]
        return ["" if room is None else room.name for room in rooms]


def test_clients_go_to_the_calmest_node() -> None:
    """Clients would be sent where others are throttled already."""
    here = Here()
    here.hear("a", level=2.5)
    here.hear("b", level=0.5, clients=900)
    here.hear("c", level=0.1, worker=0)
    here.hear("c", level=9.0, worker=1)  # the kernel picks one of its workers

    assert ["b"] == here.sent(1)


def test_nodes_that_are_equally_calm_fill_evenly() -> None:
    """All clients of a second would be sent to one node, as reports come once a second."""
    here = Here()
    here.hear("a", clients=30)
    for worker in (0, 1):
        here.hear("b", clients=15, worker=worker)
    here.hear("c", clients=0)

    sent = here.sent(100)

    # b has two workers; each client counts twice, as the other worker here sends as many
    assert (sent[0], True) == ("c", sent.count("b") > sent.count("c") > sent.count("a") > 0)


def test_what_was_sent_counts_until_reports_have_it() -> None:
    """A node would count as full for ever because of clients that have been there once."""
    here = Here(Place("a", "a:1883"), Place("b", "b:1883"))
    here.hear("a")
    here.hear("b", clients=10)
    assert {"a"} == set(here.sent(4))
    here.now += FORGET / 2
    assert "b" in here.sent(4)
    here.now += FORGET
    here.hear("a")
    here.hear("b", clients=10)

    assert {"a"} == set(here.sent(4))


def test_nodes_that_cannot_take_a_client_are_not_named() -> None:
    """A client would be sent to a node that is drained or dead, or told an empty address."""
    here = Here(Place("a", "a:1883", draining=True), Place("b", "b:1883"), Place("c"))
    assert ["b", "c"] == [room.name for room in here.placement.others(here.now)]
    assert [""] == here.sent(1)  # nobody has been heard
    here.hear("a")
    here.hear("c")
    here.hear("stranger")
    here.now += 2 * LOOK
    assert [""] == here.sent(1)
    here.hear("b", level=10.0)
    here.now += 2 * LOOK
    assert ["b"] == here.sent(1)
    here.now += 2 * STALE

    assert [""] == here.sent(1)


def test_a_calm_node_counts_until_its_next_report_is_late() -> None:
    """A drain would be as slow as beside nodes at the highest level, for a moment of each second."""
    here = Here()
    here.hear("a", level=0.5)
    here.now += HEARTBEAT + STEP
    assert 0.5 == here.placement.load(here.now)
    here.now += HEARTBEAT

    assert HIGHEST == here.placement.load(here.now)


def test_the_load_of_the_others_is_that_of_the_busiest() -> None:
    """A drain would press clients on a node that is overloaded, as others are calm."""
    here = Here(*[Place(name) for name in "ab"], Place("c", "c", draining=True))
    assert HIGHEST == here.placement.load(here.now)  # nobody is heard
    here.hear("a", level=1.0)
    here.hear("b", level=3.5)
    here.hear("c", level=9.0)
    here.hear("here", level=8.0, worker=1)
    here.now += 2 * LOOK

    assert 3.5 == here.placement.load(here.now)


@pytest.mark.parametrize(
    ("cause", "seen"), [("", 0.9), ("lag", 0.9), ("a/0 store", 0.9), ("topology", 0.2), ("b/0 store", 0.2)]
)
def test_the_strain_of_the_others_is_that_of_the_worst(cause: str, seen: float) -> None:
    """A drain would press clients on a node that is behind, or wait for one that only hears of trouble elsewhere."""
    here = Here(*[Place(name) for name in "ab"], Place("c", "c", draining=True))
    assert 0.0 == here.placement.strain(here.now)
    here.hear("a", strain=0.9, cause=cause)
    here.hear("b", strain=0.2)
    here.hear("c", strain=5.0)
    here.hear("here", strain=5.0, worker=1)
    here.now += 2 * LOOK

    assert seen == here.placement.strain(here.now)


@pytest.mark.parametrize(
    ("level", "wait", "here_level", "here_wait", "better"),
    [
        (0.0, 0.0, 1.0, 1.0, False),  # both are about as busy
        (0.0, 0.0, 2.0, 1.0, True),
        (3.0, 0.0, 4.5, 20.0, True),
        (3.0, 0.0, 3.9, 1.0, False),
        (0.0, 0.0, 0.0, LONG, True),
        (0.0, 3.0, 0.0, LONG, False),
        (1.0, 0.0, 0.0, LONG, False),  # it would wait there for another reason
    ],
)
def test_a_node_is_better_if_it_has_clearly_more_room(
    level: float, wait: float, here_level: float, here_wait: float, better: bool
) -> None:
    """Clients would be sent to and fro between nodes that are equally busy; or wait here beside an idle node."""
    here = Here()
    here.hear("a", level=level, wait=wait)
    here.reports.own_level, here.reports.connect_wait = here_level, here_wait

    found = here.placement.better(here.now)

    assert ("a" if better else None) == (None if found is None else found.name)


def test_the_clients_of_a_node_are_those_of_all_its_workers() -> None:
    """Whoever drains a node from another one would wait without knowing for what."""
    here = Here()
    assert here.placement.clients_at("a", here.now) is None
    here.hear("a", clients=30)
    here.hear("a", clients=12, worker=1)
    here.hear("b", clients=7)
    here.hear("c", clients=UNKNOWN)
    here.now += SAID / 2

    assert [42, 7, None] == [here.placement.clients_at(name, here.now) for name in "abc"]
    here.now += SAID
    assert here.placement.clients_at("a", here.now) is None


def test_who_is_refused_waits_as_long_as_the_cluster_needs() -> None:
    """A client would wait minutes because of the queue of one node, while it could come in at the next one."""
    here = Here()
    assert 60.0 == here.placement.connect_wait(60.0, here.now)  # alone it is as it was
    here.hear("a", wait=0.0)
    here.hear("b", wait=30.0)
    here.now += 2 * LOOK

    assert 30.0 == here.placement.connect_wait(60.0, here.now)


def test_the_surplus_is_what_a_node_has_beyond_its_share() -> None:
    """Clients would be sent to and fro, or stay where there are too many."""
    here = Here()
    here.reports.clients = 60
    assert 0 == here.placement.surplus(60, here.now)  # nobody is heard
    here.hear("here", clients=140, worker=1)
    here.hear("a", clients=0)
    here.hear("b", clients=100)
    here.hear("c", clients=UNKNOWN + 1)
    here.now += 2 * LOOK

    assert 24 == here.placement.surplus(60, here.now)  # of 300 clients of five workers 120 stay: 80 leave, 24 here


def test_a_small_surplus_is_none() -> None:
    """Each `weir rebalance` would disconnect clients for nothing."""
    here = Here(Place("a"))
    here.reports.clients = 2 * FEW
    here.hear("a", clients=2)
    assert 0 == here.placement.surplus(2 * FEW, here.now)
    here.reports.clients = 1000
    here.hear("a", clients=900)
    here.now += 2 * LOOK

    assert 0 == here.placement.surplus(1000, here.now)


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 8)), min_size=2, max_size=12))
def test_rebalancing_makes_nodes_more_equal_and_ends(nodes: list[tuple[int, int]]) -> None:
    """Nodes would exchange clients for ever, or one of them end up with none."""
    names = [f"n{number}" for number in range(len(nodes))]
    moved = []
    for own, (clients, workers) in zip(names, nodes, strict=True):
        mine = WorkerId(own, 0, 1)
        reports = Reports(mine, Resources())
        reports.clients = clients
        placement = Placement(mine, 1, reports)
        placement.set([Place(name) for name in names if name != own])
        for name, (others, count) in zip(names, nodes, strict=True):
            for worker in range(count):
                if name == own and worker == 0:
                    continue
                part = 0 if worker else others
                reports.hear(Report(WorkerId(name, worker, 1), 1, 0.0, "", 0.0, (), part).encode(), NOW)
        moved.append(placement.surplus(clients, NOW))
        assert 0 <= moved[-1] <= clients
        left = clients - moved[-1]
        fair = sum(one for one, _ in nodes) * workers / sum(count for _, count in nodes)
        assert not moved[-1] or left >= fair - 1e-6
    assert any(surplus == 0 for surplus in moved)


CALM = STRAINED / 2
TICKS_UNTIL_QUICK = 30  # of 100 ms


class Paced:
    """A drain that looks at the others ten times a second."""

    def __init__(self, fastest: float, slowest: float) -> None:
        self.pace = DrainPace(fastest, slowest)
        self.pace.begin(NOW)
        self.ticks = 0

    def leave(self, ticks: int, level: float = 0.0, strain: float = CALM) -> int:
        """How many clients leave meanwhile."""
        left = 0
        for _ in range(ticks):
            self.ticks += 1
            left += self.pace.take(level, strain, NOW + self.ticks / 10)
        return left


@pytest.mark.parametrize(("level", "rate"), [(0.0, 500.0), (5.0, 70.7), (10.0, 10.0)])
def test_the_pace_follows_the_level_of_the_others(level: float, rate: float) -> None:
    """A drain would push the other nodes into overload, or never end."""
    drain = Paced(500.0, 10.0)
    drain.leave(TICKS_UNTIL_QUICK, level)

    left = drain.leave(100, level)

    assert rate == pytest.approx(drain.pace.rate(level), rel=1e-3)
    assert left in (int(10 * drain.pace.rate(level)), int(10 * drain.pace.rate(level)) - 1)


def test_a_drain_begins_slowly() -> None:
    """Others would learn only by their delay that as many clients as may ever come are too many for them."""
    drain = Paced(500.0, 10.0)

    first = drain.leave(1)
    slow = drain.leave(9)
    drain.leave(TICKS_UNTIL_QUICK)

    assert (True, True) == (first <= FIRST * 500 / 10 + 1, slow < 500 / 2)
    assert 500 == drain.leave(10)


def test_a_drain_is_slower_while_the_others_are_strained() -> None:
    """The clients of a node would wait for those that come, for as long as its level does not rise."""
    drain = Paced(500.0, 10.0)
    drain.leave(TICKS_UNTIL_QUICK)

    one_report = drain.leave(1, 0.0, STRAINED)
    drain.leave(8, 0.0, STRAINED)

    assert one_report == int(SLOWER * 500 / 10)
    assert 10 * FIRST * 500 == drain.leave(100, 0.0, 2 * STRAINED)  # a busy node that keeps up is no reason to stop
    drain.leave(TICKS_UNTIL_QUICK)
    assert 500 == drain.leave(10)


def test_time_that_was_not_used_does_not_add_up() -> None:
    """After a pause all clients would leave at once."""
    drain = Paced(100.0, 1.0)
    drain.leave(TICKS_UNTIL_QUICK)
    pace, now = drain.pace, NOW + 100.0

    assert 100 == pace.take(0.0, CALM, now + 3600.0)
    assert 0 == pace.take(0.0, CALM, now + 3600.0)
    assert 0 == pace.take(0.0, CALM, now)  # a clock that goes back takes nothing back
    assert 1 == pace.take(10.0, CALM, now + 3601.5)


def test_a_worker_of_many_may_have_less_than_one_a_second() -> None:
    """With 256 workers and slowest = 10 nobody would ever leave."""
    assert 3 == Paced(500.0 / 256, 10.0 / 256).leave(1000, 10.0)


def test_drains_of_several_nodes_beside_a_bottleneck_settle() -> None:
    """Nodes that are drained together would overload the one that is left: a loop with its delay and level in it."""
    paces = [DrainPace(500.0, 10.0) for _ in range(3)]
    for pace in paces:
        pace.begin(0.0)
    level, target, waiting, let_in, highest = 0.0, 0.0, 0.0, 0.0, 0.0
    capacity = 300.0  # clients a second
    for tick in range(1, 1201):
        waiting += sum(pace.take(level, target, tick / 10) for pace in paces)
        done = min(waiting, capacity / 10)
        waiting, let_in = waiting - done, let_in + done
        target = waiting / capacity  # seconds that a CONNECT waits; target 1 s
        level = max(0.0, min(HIGHEST, level + 0.1 * max(-1.0, min(4.0, target - 1.0))))
        highest = max(highest, target)

    assert highest < 1.0
    assert let_in > 0.8 * capacity * 120
