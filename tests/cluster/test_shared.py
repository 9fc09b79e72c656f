# Shared subscriptions with members at several workers: one member in the whole node, quick ones first.
import itertools
import socket
from collections.abc import Callable

import pytest

from broker.cluster import wire
from broker.cluster.full_sync import PAGE
from broker.config.schema import Config, Limits
from broker.mqtt.packets import V5, Connect, Publish, Subscribe, Wanted
from broker.mqtt.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from broker.reasons import DropReason
from broker.routing.shared import BATCH
from broker.worker_id import WorkerId
from tests.cluster.across import names
from tests.cluster.talk import acknowledge, payloads, subscribed
from tests.innode import Node

__all__ = ["names"]  # a fixture

Nodes = Callable[..., Node]
FILTER = "$share/group/a"


@pytest.mark.parametrize("qos", [0, 1])
def test_one_member_in_the_node_gets_a_message(nodes: Nodes, qos: int) -> None:
    """Each worker would give it to a member of its own; or all go to one."""
    node = nodes(3)
    members = [broker.connect(f"m{n}") for n, broker in enumerate(node)]
    members.append(node[0].connect("m3"))
    for member in members:
        subscribed(member, FILTER)
    publishers = [broker.connect(f"p{n}") for n, broker in enumerate(node)]
    for n in range(120):
        publishers[n % 3].send(Publish(b"a", b"%d" % n, qos, packet_id=n + 1 if qos else 0))
        node.settle()
        for member in members:
            acknowledge(member)
    got = [payloads(member) for member in members]

    assert sorted(range(120)) == sorted(int(payload) for each in got for payload in each)
    assert all(20 <= len(each) <= 40 for each in got), [len(each) for each in got]


def test_a_slow_member_is_passed_over_for_a_quick_one_elsewhere(nodes: Nodes) -> None:
    """Messages would wait, or be lost, for who does not take them."""
    node = nodes(2, Config(limits=Limits(inflight=4)))
    one, two = node
    slow = one.connect("slow", V5, properties={RECEIVE_MAXIMUM: 2})
    quick = two.connect("quick", V5)
    publisher = one.connect("publisher", V5)
    subscribed(slow, FILTER)
    subscribed(quick, FILTER)
    for n in range(40):
        publisher.send(Publish(b"a", b"%d" % n, 1, packet_id=n + 1))
        node.settle()
        acknowledge(quick)

    assert 2 == len(payloads(slow))
    assert 38 == len(payloads(quick))


def test_who_becomes_quick_again_is_found(nodes: Nodes) -> None:
    """A member that was slow once would never get anything again, if all publishers are elsewhere."""
    node = nodes(2)
    one, two = node
    member = one.connect("member", V5, properties={RECEIVE_MAXIMUM: 1})
    publisher = two.connect("publisher", V5)
    subscribed(member, FILTER)
    publisher.send(Publish(b"a", b"1", 1, packet_id=1), Publish(b"a", b"2", 1, packet_id=2))
    node.settle()
    node.advance(0.3)
    (group,) = two.routes.shared_groups()
    assert [0] == [there.ready for there in group.remote.values()]

    acknowledge(member)
    acknowledge(member)
    node.advance(0.3)
    assert [1] == [there.ready for there in group.remote.values()]


def test_what_all_are_too_slow_for_waits_at_one(nodes: Nodes) -> None:
    """It would be passed on for ever, or dropped though somebody could keep it."""
    node = nodes(3)
    one, _two, three = node
    away = one.connect("away", V5, properties={SESSION_EXPIRY_INTERVAL: 100})
    subscribed(away, FILTER)
    away.drop()
    publisher = three.connect("publisher", V5)
    publisher.send(Publish(b"a", b"1", 1, packet_id=1), Publish(b"a", b"0"))
    publisher.receive()
    assert 1 == sum(broker.counters.dropped_by_reason[DropReason.NO_SHARED_MEMBER.label] for broker in node)

    back = one.connect("away", V5, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 100})
    assert [b"1"] == payloads(back)


@pytest.mark.parametrize("keeper", [0, 1, 2, 3])
@pytest.mark.parametrize("just_left", [False, True])
def test_it_waits_wherever_somebody_lets_it(nodes: Nodes, keeper: int, just_left: bool) -> None:
    """It would be dropped where it came to last, though a member elsewhere would have kept it."""
    node = nodes(4)
    for n, broker in enumerate(node):
        qos = 1 if n == keeper else 0
        for m in range(1 if n == keeper else 1 + n):
            member = broker.connect(f"m{n}{m}", V5, properties={SESSION_EXPIRY_INTERVAL: 100})
            subscribed(member, Wanted(FILTER.encode(), qos))
            if not just_left:
                member.drop()
    node.advance(0.3)
    if just_left:  # the others still think that they are there
        for broker in node:
            for client in broker._clients:
                client.drop()
    publisher = node[3].connect("publisher", V5)
    publisher.send(*[Publish(b"a", b"%d" % n, 1, packet_id=n + 1) for n in range(6)])
    publisher.receive()

    back = node[keeper].connect(f"m{keeper}0", V5, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 100})
    assert [b"%d" % n for n in range(6)] == sorted(payloads(back))


def test_members_elsewhere_go_with_their_worker(nodes: Nodes) -> None:
    """Its share of the messages would be lost."""
    node = nodes(2)
    one, two = node
    gone, staying = one.connect("gone"), two.connect("staying")
    subscribed(gone, FILTER)
    subscribed(staying, FILTER)
    publisher = two.connect("publisher")
    node.kill(one)
    for n in range(10):
        publisher.send(Publish(b"a", b"%d" % n))
        node.settle()

    assert 10 == len(payloads(staying))


def test_the_groups_of_a_dead_worker_go_in_pages_and_none_of_them_loses_a_message(nodes: Nodes) -> None:
    """The death of a worker would stop the others for as long as all groups of the node take."""
    node = nodes(2)
    one, two = node
    gone, staying, publisher = one.connect("gone"), two.connect("staying"), two.connect("publisher")
    subscribed(staying, FILTER)
    subscribed(gone, FILTER, *[f"$share/group/{number}" for number in range(2 * PAGE)])
    groups = two.routes._shared
    assert 2 * PAGE + 1 == len(groups)
    node.workers.remove(one)
    one.close()
    if two.identity.node != one.identity.node:
        two.mesh.leave(one.identity)
    node.clock.step = 0.1  # each look at the clock ends a slice
    left = [len(groups)]
    for number in range(40):
        publisher.post(Publish(b"a", b"%d" % number))
        two.turn()
        left.append(len(groups))
    node.clock.step = 0.0
    node.settle()

    assert max(before - after for before, after in itertools.pairwise(left)) <= PAGE
    assert [FILTER.encode()] == [b"$share/%b/%b" % (group.share, group.filter) for group in groups.values()]
    assert 40 == len(payloads(staying))


def test_what_the_dead_had_told_brings_no_member_back(nodes: Nodes) -> None:
    """Its share of the messages would be lost for ever: its end may be seen before its last words are read."""
    node = nodes(1)
    (broker,) = node
    (data, dead_data), (control, dead_control) = socket.socketpair(), socket.socketpair()
    dead_control.send(wire.members(0, b"group", b"a", 1, 1, False))
    for end in (dead_data, dead_control):
        end.close()
    for end in (data, control):
        end.setblocking(False)
    broker.mesh.join(WorkerId("node", 1, 1), data, control)
    node.settle()
    staying, publisher = broker.connect("staying"), broker.connect("publisher")
    subscribed(staying, FILTER)
    for n in range(10):
        publisher.send(Publish(b"a", b"%d" % n))
        node.settle()

    assert 10 == len(payloads(staying))


def test_the_last_member_anywhere_takes_the_group_with_it(nodes: Nodes) -> None:
    """Groups that nobody is in would be matched for ever."""
    node = nodes(2)
    members = [broker.connect(f"m{n}") for n, broker in enumerate(node)]
    for member in members:
        subscribed(member, FILTER)
    for member in members:
        member.drop()
    node.settle()

    assert [[], []] == [list(broker.routes.shared_groups()) for broker in node]


def test_a_stopped_worker_is_passed_over(nodes: Nodes) -> None:
    """Half of the messages would wait for it, and their publishers with them."""
    node = nodes(2)
    one, two = node
    stopped, member = one.connect("stopped"), two.connect("member")
    subscribed(stopped, FILTER)
    subscribed(member, FILTER)
    publisher = two.connect("publisher", V5)
    (peer,) = two.mesh.peers
    one.stopped = True
    peer.gate.block()
    for n in range(10):
        publisher.send(Publish(b"a", b"%d" % n))
        node[1].settle()

    assert 10 == len(payloads(member))


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
def test_who_has_subscribed_for_itself_makes_no_second_copy_for_the_group(nodes: Nodes, qos: int, retain: bool) -> None:
    """The message crosses for the one and for the other, and the group would get it for both."""
    node = nodes(2)
    one, two = node
    member, itself, publisher = one.connect("member"), one.connect("itself"), two.connect("publisher")
    subscribed(member, FILTER)
    subscribed(itself, "a")
    publisher.send(*[Publish(b"a", b"%d" % n, qos, retain, packet_id=n if qos else 0) for n in (1, 2)])
    publisher.receive()

    assert [b"1", b"2"] == payloads(itself)
    assert [b"1", b"2"] == payloads(member)


def test_nor_do_a_thousand_who_have(nodes: Nodes) -> None:
    """The same where the message is delivered in pages."""
    node = nodes(2)
    one, two = node
    member, publisher = one.connect("member"), two.connect("publisher")
    subscribed(member, FILTER)
    for n in range(600):
        one.open(V5).send(Connect(V5, f"s{n}"), Subscribe(1, [Wanted(b"a", 0)]))
    one.settle()
    publisher.send(Publish(b"a", b"0"), Publish(b"a", b"1", 1, packet_id=1))
    publisher.receive()

    assert [b"0", b"1"] == payloads(member)


def stand_by(node: Node, *members: tuple[str, int]) -> None:
    """Members, each at the worker of that number, that are away."""
    for name, number in members:
        member = node[number].connect(name, V5, properties={SESSION_EXPIRY_INTERVAL: 100})
        subscribed(member, Wanted(FILTER.encode(), 1))
        member.drop()
    node.advance(0.3)


@pytest.mark.parametrize("publisher", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 5 * BATCH, 60 * BATCH])
def test_what_waits_goes_to_the_first_member_of_any_worker(nodes: Nodes, publisher: int, count: int) -> None:
    """Messages would wait for the members of one worker although a member of another one is there."""
    node = nodes(3)
    stand_by(node, ("one", 0), ("two", 1), ("three", 1))
    speaker = node[publisher].connect("publisher", V5)
    for n in range(count):
        speaker.send(Publish(b"a", b"%d" % n, 1, packet_id=n + 1))
        node.settle()

    member = node[2].connect("new", V5)
    member.send(Subscribe(1, [Wanted(FILTER.encode(), 1)]))
    node.advance(2.0)

    assert [b"%d" % n for n in range(count)] == payloads(member)
    assert [0, 0, 0] == [broker.backlog.lists for broker in node]


def test_what_waits_follows_the_last_member_of_its_worker(nodes: Nodes) -> None:
    """Messages would be lost, or wait for nobody, when a session goes to another worker or ends."""
    node = nodes(2)
    stand_by(node, ("here", 0), ("there", 1))
    speaker = node[0].connect("publisher", V5)
    speaker.send(*[Publish(b"a", b"%d" % n, 1, packet_id=n + 1) for n in range(3)])
    node.settle()
    assert [1, 0] == [broker.backlog.lists for broker in node]

    node[0].connect("here", V5)  # a clean start
    node.settle()

    assert [0, 1] == [broker.backlog.lists for broker in node]
    back = node[1].connect("there", V5, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 100})
    assert [b"0", b"1", b"2"] == payloads(back)


def test_what_waits_is_not_lost_when_a_worker_with_members_dies(nodes: Nodes) -> None:
    """The messages for a group would go with one of the workers that have members."""
    node = nodes(3)
    stand_by(node, ("here", 0), ("there", 1), ("second", 1))
    speaker = node[0].connect("publisher", V5)
    speaker.send(*[Publish(b"a", b"%d" % n, 1, packet_id=n + 1) for n in range(3)])
    node.settle()
    node.kill(node[1])

    member = node[1].connect("new", V5)
    subscribed(member, Wanted(FILTER.encode(), 1))
    node.advance(1.0)

    assert [b"0", b"1", b"2"] == payloads(member)


def test_what_waits_ends_with_the_last_member_in_the_node(nodes: Nodes) -> None:
    """A worker would keep messages for a group that is gone."""
    node = nodes(2)
    stand_by(node, ("here", 0), ("there", 1))
    speaker = node[0].connect("publisher", V5)
    speaker.send(*[Publish(b"a", b"%d" % n, 1, packet_id=n + 1) for n in range(3)])
    node.settle()
    for broker, name in zip(node, ("here", "there"), strict=True):
        broker.connect(name, V5)
        node.settle()

    assert [0, 0] == [broker.queue_budget.messages for broker in node]
    assert 3 == sum(broker.counters.dropped_by_reason[DropReason.NO_SHARED_MEMBER.label] for broker in node)
