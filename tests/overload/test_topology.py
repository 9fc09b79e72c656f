# Nodes that have joined or left: for how long a worker takes notice.
from broker.overload.topology import Topology


def test_a_change_counts_for_a_bounded_time() -> None:
    """The level would stay up for as long as a node is away."""
    topology = Topology(5.0)
    assert 0 == topology.recent(1.0)

    topology.changed(2, 10.0)

    assert [2, 2, 0] == [topology.recent(now) for now in (10.0, 14.9, 15.0)]


def test_changes_in_succession_are_counted_together() -> None:
    """Of a cluster that is upgraded node by node an operator would see one node at most."""
    topology = Topology(5.0)
    topology.changed(1, 10.0)
    topology.changed(1, 14.0)

    assert [2, 2, 0] == [topology.recent(now) for now in (14.0, 18.9, 19.0)]
    topology.changed(1, 19.0)
    assert 1 == topology.recent(19.0)


def test_no_time_means_no_notice() -> None:
    """`overload.topology = 0` would not switch it off."""
    topology = Topology(0.0)
    topology.changed(1, 10.0)

    assert 0 == topology.recent(10.0)
