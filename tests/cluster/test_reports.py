# A report of a worker's load, over the mesh: to each peer, and ahead of messages.
from collections.abc import Callable

import pytest

from broker.cluster import wire
from broker.cluster.lane_listener import MeshError
from broker.config.schema import Config, Overload
from broker.mqtt.packets import Publish
from broker.net.loop import SLICE
from tests.cluster.talk import payloads, subscribed
from tests.innode import Node
from tests.inprocess import Broker

Nodes = Callable[..., Node]

QUIET = Config(overload=Overload(enabled=False))  # they tell nothing by themselves


def listen(broker: Broker) -> list[bytes]:
    """What *broker* hears from now on."""
    reports: list[bytes] = []
    broker.receive_reports_with(lambda report, now: reports.append(report))
    return reports


def tell(broker: Broker, report: bytes) -> None:
    broker.reports.tell(report, broker.clock.now)


def test_each_peer_hears_a_report_once(nodes: Nodes) -> None:
    """Workers of a node could not help each other without Redis; one would believe its own echo."""
    one, two, three = nodes(3, QUIET)
    heard = [listen(broker) for broker in (one, two, three)]
    tell(two, b"\x00any bytes\xff")
    tell(two, b"x" * wire.LARGEST_REPORT)
    one.settle()

    everything = [b"\x00any bytes\xff", b"x" * wire.LARGEST_REPORT]
    assert [everything, [], everything] == heard
    counted = [broker.counters for broker in (one, two, three)]
    assert [(0, 2), (4, 0), (0, 2)] == [(each.reports_sent_mesh, each.reports_heard_mesh) for each in counted]


def test_a_report_overtakes_messages(nodes: Nodes) -> None:
    """That a worker is overloaded would come behind what it is overloaded with."""
    one, two = nodes(2, QUIET)
    subscriber, publisher = two.connect("subscriber"), one.connect("publisher")
    subscribed(subscriber, "a")
    heard = listen(two)
    two.stopped = True
    publisher.send(*[Publish(b"a", b"x" * 100_000) for _ in range(15)])
    publisher.receive()
    tell(one, b"overloaded")
    one.settle()
    two.clock.step = SLICE  # each look at the clock costs a whole slice
    for _ in range(100):
        if not heard:
            two.turn()
    two.clock.step = 0.0

    assert [b"overloaded"] == heard
    assert len(subscriber.inbox) < 15
    two.stopped = False
    assert 15 == len(payloads(subscriber))


def test_a_report_that_is_too_large_is_a_mistake(nodes: Nodes) -> None:
    """Reports, which nothing holds back, would fill the memory of who does not read, or hold messages up."""
    one, two = nodes(2, QUIET)
    heard = listen(two)
    with pytest.raises(ValueError, match="4097 bytes"):
        tell(one, b"x" * (wire.LARGEST_REPORT + 1))
    one.settle()
    assert [] == heard

    one.peers.tell(wire.frame(wire.REPORT, b"x" * (wire.LARGEST_REPORT + 1)))
    with pytest.raises(MeshError, match="4097 bytes"):
        one.settle()


def test_a_mistake_in_hearing_costs_that_report(nodes: Nodes) -> None:
    """What one worker says could end all others."""
    one, two = nodes(2, QUIET)
    heard: list[bytes] = []

    def hear(report: bytes, now: float) -> None:
        if report == b"bad":
            raise RuntimeError("a mistake of ours")
        heard.append(report)

    two.receive_reports_with(hear)
    tell(one, b"bad")
    tell(one, b"good")
    one.settle()

    assert [b"good"] == heard
    assert 1 == two.counters.internal_errors


def test_reports_go_on_beside_one_who_has_died(nodes: Nodes) -> None:
    """A death, when protection is needed most, would end the exchange of reports."""
    node = nodes(3, QUIET)
    one, two, three = node
    heard = listen(two)
    node.kill(three)
    tell(one, b"1")
    newcomer = node.start()
    heard_by_newcomer = listen(newcomer)
    tell(one, b"2")
    node.settle()

    assert ([b"1", b"2"], [b"2"]) == (heard, heard_by_newcomer)
