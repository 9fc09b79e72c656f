# Shared subscriptions of durable sessions: what a publisher was answered for reaches a member, whatever ends.
import gc
import time
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Limits
from broker.mqtt.packets import (
    PUBREC,
    V5,
    Ack,
    Disconnect,
    Publish,
    Unsubscribe,
)
from broker.mqtt.properties import RECEIVE_MAXIMUM
from broker.reasons import CloseReason, DropReason
from tests.cluster.durable_groups import (
    FILTER,
    LIST,
    NUMBERS,
    Fleet,
    absent,
    answers,
    arrive,
    end,
    expire_at_the_next_start,
    member,
    nothing_is_stored,
    payloads,
    publish,
    publisher,
    restart,
    seeds,
    stored,
    taken,
)
from tests.cluster.talk import subscribed
from tests.garbage import ours
from tests.innode import Node
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # a real Redis

StartNode = Callable[..., Node]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("workers", [1, 2])
def test_what_waits_for_a_group_is_there_after_a_restart_of_the_node(
    start_node: StartNode, redis: RunningRedis, workers: int, qos: int
) -> None:
    """Everything that was acknowledged while no member was there would be lost."""
    node = start_node(workers)
    absent(node[0])
    publish(node[-1], *NUMBERS, qos=qos)
    restart(node, workers)
    client = arrive(node[-1])

    assert NUMBERS == taken(client, node[-1])
    assert nothing_is_stored(redis)


def test_what_waits_for_a_group_goes_on_at_the_worker_that_follows(start_node: StartNode, redis: RunningRedis) -> None:
    """It would be lost with the worker that has it, and what was published meanwhile with it."""
    node = start_node(3)
    absent(node[0])
    publish(node[0], *NUMBERS[:10])
    assert 1 == stored(redis)
    node.kill(node[0])
    waits = publisher(node[0], *NUMBERS[10:20])
    node.advance(0.3)
    assert 0 == answers(waits)
    node.start(0)
    node.advance(0.3)

    assert 10 == answers(waits)
    assert NUMBERS[:20] == taken(arrive(node[1]), node[1])
    assert nothing_is_stored(redis)


def test_puback_waits_until_what_waits_for_a_group_is_stored(start_node: StartNode, redis: RunningRedis) -> None:
    """A publish would be acknowledged that is in the memory of one worker."""
    node = start_node(2)
    absent(node[0])
    waits = [broker.connect(f"publisher{broker.shard}", V5) for broker in node]
    redis.client().config_set("maxmemory", 1)
    for broker, client in zip(node, waits, strict=True):
        broker.answered = False
        client.send(Publish(b"a", b"1", 1, packet_id=1))
    node.advance(0.3)
    assert [0, 0] == [answers(each) for each in waits]
    redis.client().config_set("maxmemory", 0)
    for broker in node:
        broker.answered = True
    node.advance(1.0)

    assert [1, 1] == [answers(each) for each in waits]


@pytest.mark.parametrize("how", ["taken", "dies"])
def test_puback_waits_for_the_worker_whose_member_gets_it(start_node: StartNode, how: str) -> None:
    """A publish would be acknowledged that ends with that worker, before it has even read it."""
    node = start_node(2)
    client = member(node[0])
    node.look_around()
    node[0].stopped = True
    waits = publisher(node[1], b"1")
    node[1].settle()
    assert 0 == answers(waits)
    if how == "taken":
        node[0].stopped = False
        node.advance(0.3)
        assert 1 == answers(waits)
        assert [b"1"] == payloads(client)
    else:
        node.kill(node[0])
        node[0].advance(0.1)
        assert [Disconnect(CloseReason.RECEIVER_MOVED.code)] == [
            each for each in waits.receive() if isinstance(each, Disconnect)
        ]


def test_what_is_passed_to_a_worker_that_dies_comes_back(start_node: StartNode, redis: RunningRedis) -> None:
    """Messages would be removed from the list of the group that no other worker has stored."""
    node = start_node(3)
    absent(node[0], "absent")
    publish(node[0], *NUMBERS[:50])
    member(node[1])
    node[1].stopped = True
    node[0].advance(0.3)  # they are on their way
    node.kill(node[1])
    node.start(1)
    node.advance(0.3)
    other = member(node[2], "other")

    assert NUMBERS[:50] == sorted(set(taken(other, node[2]) + taken(arrive(node[1]), node[1])), key=int)
    assert nothing_is_stored(redis)


def test_many_messages_go_to_a_member_of_another_worker_in_order(start_node: StartNode, redis: RunningRedis) -> None:
    """What waits at a worker without members that are there would wait for ever, or be mixed up."""
    node = start_node(2)
    absent(node[0], "absent")
    publish(node[0], *NUMBERS)
    client = member(node[1])

    assert NUMBERS == taken(client, node[1])
    assert nothing_is_stored(redis)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_slow_member_drains_the_group_in_order(start_node: StartNode, redis: RunningRedis, qos: int) -> None:
    """It would get them in another order, or no more than a page of them."""
    node = start_node(1)
    absent(node[0])
    publish(node[0], *NUMBERS, qos=qos)

    assert NUMBERS == taken(arrive(node[0], window=3), node[0])
    assert nothing_is_stored(redis)


def test_a_message_of_qos_2_is_not_given_again_after_a_crash(start_node: StartNode, redis: RunningRedis) -> None:
    """A member would get one again that it, or another member, has already: its list still has the pack."""
    node = start_node(1)
    absent(node[0])
    absent(node[0], "other")
    publish(node[0], *NUMBERS[:20], qos=2)
    client = arrive(node[0], window=5)
    node.advance(0.3)
    assert NUMBERS[:5] == payloads(client)
    restart(node, 1)
    other = taken(arrive(node[0], "other"), node[0])
    first = taken(arrive(node[0]), node[0])

    assert NUMBERS[:5] == first[:5]
    assert NUMBERS[:20] == sorted(first + other, key=int)
    assert nothing_is_stored(redis)


def test_a_publish_of_qos_2_that_a_member_lost_reaches_another_that_has_later_ones(start_node: StartNode) -> None:
    """It would be taken for a repetition, be acknowledged and reach nobody: the other member never had it."""
    node = start_node(2)
    member(node[0], "lost")
    client = member(node[1], "other")
    source = arrive(node[1], "publisher")
    source.send(Publish(b"a", NUMBERS[0], 2, packet_id=100))
    assert NUMBERS[:1] == taken(client, node[1])  # the next one is for the other member
    node[0].stopped = True
    source.send(*[Publish(b"a", NUMBERS[number], 2, packet_id=number) for number in (1, 2, 3, 4)])
    node.advance(0.3)
    first = taken(client, node[1])
    assert NUMBERS[2:3] == first
    node.kill(node[0])
    node.advance(0.3)

    source = arrive(node[0], "publisher")
    source.send(*[Publish(b"a", NUMBERS[number], 2, packet_id=number, dup=True) for number in (1, 2, 3, 4)])
    node.advance(0.3)

    assert [Ack(PUBREC, number) for number in (1, 2, 3, 4)] == source.receive()
    assert NUMBERS[1:5] == sorted(first + taken(client, node[0]))


def test_a_publish_of_qos_2_that_a_member_lost_waits_behind_later_ones(start_node: StartNode) -> None:
    """It would be taken for a repetition by the list of the group, be acknowledged and reach nobody."""
    node = start_node(2)
    member(node[0], "lost", window=1)
    absent(node[1])
    source = arrive(node[1], "publisher")
    node[0].stopped = True
    source.send(*[Publish(b"a", NUMBERS[number], 2, packet_id=number) for number in (1, 2, 3, 4)])
    node.advance(0.3)
    node.kill(node[0])
    node.advance(0.3)
    source = arrive(node[0], "publisher")
    source.send(*[Publish(b"a", NUMBERS[number], 2, packet_id=number, dup=True) for number in (1, 2, 3, 4)])
    node.advance(0.3)

    assert [Ack(PUBREC, number) for number in (1, 2, 3, 4)] == source.receive()
    assert NUMBERS[1:5] == sorted(taken(arrive(node[0]), node[0]))


def test_publishes_wait_for_a_group_whose_worker_has_died(start_node: StartNode) -> None:
    """They would be acknowledged, and reach nobody, until its sessions are adopted."""
    node = start_node(2)
    absent(node[0])
    node.kill(node[0])
    waits = publisher(node[0], b"1")
    node[0].advance(0.3)
    assert 0 == answers(waits)
    node.start(0)
    node.advance(0.3)

    assert 1 == answers(waits)
    assert [b"1"] == taken(arrive(node[0]), node[0])


def test_members_elsewhere_get_what_comes_while_a_worker_is_dead(start_node: StartNode) -> None:
    """The death of one worker would stop a group that has members at others."""
    node = start_node(2)
    absent(node[0])
    client = member(node[1], "other")
    node.kill(node[0])
    publish(node[0], b"1", b"2")

    assert [b"1", b"2"] == payloads(client)


def test_the_last_member_takes_what_waits_with_it(start_node: StartNode, redis: RunningRedis) -> None:
    """Redis would keep messages for a group that is gone."""
    node = start_node(2)
    absent(node[0])
    publish(node[0], b"1", b"2")
    client = arrive(node[1], clean=True)
    node.advance(0.3)

    assert [] == payloads(client)
    assert nothing_is_stored(redis)
    assert 2 == sum(broker.counters.dropped_by_reason[DropReason.NO_SHARED_MEMBER.label] for broker in node)


def test_a_list_waits_for_the_members_of_workers_that_are_not_there_yet(start_node: StartNode) -> None:
    """After the death of two workers the one that is back first would drop what members of the other one wait for."""
    node = start_node(3)
    absent(node[0], "here")
    absent(node[1], "there")
    publish(node[0], b"1")
    expire_at_the_next_start(node[0], "here")
    first, second = node[0], node[1]
    node.kill(first)
    node.kill(second)
    node.start(0)
    node.advance(0.5)
    node.start(1)
    node.advance(0.5)

    assert [b"1"] == taken(arrive(node[0], "there"), node[0])


def test_a_list_whose_members_expire_while_no_worker_is_there_ends(start_node: StartNode, redis: RunningRedis) -> None:
    """It would collect messages for ever that nobody can get."""
    node = start_node(2)
    absent(node[0])
    publish(node[0], b"1")
    assert 1 == stored(redis)
    expire_at_the_next_start(node[0], "member")
    restart(node, 2)
    node.advance(0.5)

    assert nothing_is_stored(redis)
    assert [0, 0] == [len(list(broker.routes.shared_groups())) for broker in node]


def test_the_lists_of_two_workers_follow_each_other_at_one(start_node: StartNode, redis: RunningRedis) -> None:
    """A node that has fewer workers than before would lose what one of them had."""
    node = start_node(2)
    absent(node[0], "one")
    absent(node[1], "two")
    publish(node[0], b"1", b"2")
    publish(node[1], b"3", b"4")
    assert 2 == stored(redis)
    restart(node, 1)
    publish(node[0], b"5")
    client = arrive(node[0], "one")

    got = taken(client, node[0])
    assert [b"1", b"2", b"3", b"4", b"5"] == sorted(got)
    assert b"5" == got[-1] and got.index(b"1") < got.index(b"2") and got.index(b"3") < got.index(b"4")
    assert nothing_is_stored(redis)


def test_the_oldest_messages_of_a_group_make_room(start_node: StartNode, redis: RunningRedis) -> None:
    """The list of a group would grow in Redis without end."""
    node = start_node(1, Config(limits=Limits(queue=100)))
    absent(node[0])
    publish(node[0], *NUMBERS)

    assert 100 == node[0].counters.dropped_by_reason[DropReason.SHARED_FULL.label]
    assert NUMBERS[100:] == taken(arrive(node[0]), node[0])
    assert nothing_is_stored(redis)


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_that_no_member_fetches_end_with_their_time(
    start_node: StartNode, redis: RunningRedis, qos: int
) -> None:
    """Redis would keep them for ever, also after a restart."""
    node = start_node(1, Config(limits=Limits(queue_ttl=20.0)))
    absent(node[0])
    publish(node[0], *NUMBERS[:50], qos=qos)
    end(node)
    since = node.clock.now
    node.start(wall=lambda: time.time() + node.clock.now - since)
    node.advance(25.0)

    assert nothing_is_stored(redis)
    assert 50 == node[0].counters.dropped_by_reason[DropReason.EXPIRED.label]


def test_a_list_that_is_damaged_costs_its_group_what_waits(start_node: StartNode, redis: RunningRedis) -> None:
    """One value would keep the node from starting; or the publishers of the group wait for ever."""
    node = start_node(1)
    absent(node[0])
    publish(node[0], b"1")
    (key,) = redis.client().keys(LIST % b"queue")
    redis.client().delete(key)
    redis.client().rpush(key, b"?")
    restart(node, 1)
    publish(node[0], b"2")
    client = arrive(node[0])
    assert [b"2"] == taken(client, node[0])
    assert 2 == len(redis.client().keys("*:damaged:*"))

    client.drop()
    node.settle()
    publish(node[0], b"3")
    (key,) = redis.client().keys(LIST % b"queue")
    redis.client().set(key, b"?")
    waits = publisher(node[0], b"4")
    node.advance(1.0)
    assert 1 == answers(waits)
    publish(node[0], b"5")
    assert [b"5"] == taken(arrive(node[0]), node[0])


def test_a_group_without_durable_members_stores_nothing(start_node: StartNode, redis: RunningRedis) -> None:
    """Traffic between clean sessions would cost Redis, and wait for it."""
    node = start_node(2)
    slow = node[0].connect("slow", V5, properties={RECEIVE_MAXIMUM: 1})
    subscribed(slow, FILTER)
    waits = [broker.connect(f"publisher{broker.shard}", V5) for broker in node]
    redis.client().config_set("maxmemory", 1)
    for broker, client in zip(node, waits, strict=True):
        broker.answered = False
        client.send(*[Publish(b"a", b"%d" % number, 1, packet_id=number) for number in (1, 2, 3)])
    node.advance(0.2)
    assert [3, 3] == [answers(each) for each in waits]
    assert 0 == stored(redis)


@pytest.mark.parametrize("seed", [0, *seeds(1, 20)])
def test_whatever_dies_nothing_is_lost_that_was_acknowledged(
    start_node: StartNode, redis: RunningRedis, seed: int
) -> None:
    """A publisher would be told that a message is safe that no member ever gets."""
    fleet = Fleet(start_node(3), 1, seed)
    for _ in range(60):
        fleet.step(deaths=True)
    fleet.end()

    assert len(fleet.answered) > 50
    assert set() == fleet.answered - set(fleet.received)
    assert nothing_is_stored(redis)


@pytest.mark.parametrize("seed", [0, *seeds(1, 10)])
def test_members_that_come_and_go_get_each_message_of_qos_2_once(
    start_node: StartNode, redis: RunningRedis, seed: int
) -> None:
    """A message would be given to two members, or be lost on its way between them."""
    fleet = Fleet(start_node(3), 2, seed)
    for _ in range(60):
        fleet.step(deaths=False)
    fleet.end()

    assert len(fleet.answered) > 50
    assert fleet.answered == set(fleet.received)
    assert nothing_is_stored(redis)


def test_publishes_for_a_group_wait_at_the_gate_of_the_store(start_node: StartNode, redis: RunningRedis) -> None:
    """Clients that publish for a group would fill the memory of a worker while Redis is away."""
    node = start_node(1)
    absent(node[0])
    clients = [node[0].connect(f"publisher{number}", V5) for number in range(3)]
    redis.client().config_set("maxmemory", 1)
    node[0].answered = False
    for client in clients:
        client.send(*[Publish(b"a", b"%d" % number, 1, packet_id=number + 1) for number in range(100)])
    node.advance(0.3)

    assert 0 < node[0].queue_budget.messages <= 20 + len(clients)  # the floor of a gate, and who is let through at it
    redis.client().config_set("maxmemory", 0)
    node[0].answered = True
    node.advance(2.0)
    assert [100, 100, 100] == [answers(each) for each in clients]


def test_a_group_is_durable_while_a_member_is(start_node: StartNode) -> None:
    """Publishers would wait for workers without durable members, or not wait for those that have one, nor pay."""
    node = start_node(2)
    clean = node[0].connect("clean", V5)
    subscribed(clean, FILTER)

    def reported() -> list[tuple[int, bool]]:
        (group,) = node[1].routes.shared_groups()
        return [(there.members, neighbour.confirms) for neighbour, there in group.remote.items()]

    def priced() -> list[int]:
        """Receivers that store, for which a publisher pays, at each worker."""
        return [broker.routes.find(b"a").persistent for broker in node]

    assert ([(1, False)], [0, 0]) == (reported(), priced())
    client = member(node[0])
    assert ([(2, True)], [1, 1]) == (reported(), priced())
    client.send(Unsubscribe(2, [FILTER.encode()]))
    node.advance(0.2)
    assert ([(1, False)], [0, 0]) == (reported(), priced())


def test_a_list_that_has_ended_leaves_no_cycle(start_node: StartNode, garbage: list[object]) -> None:
    """With the collector off between pauses, memory would grow with every list that begins and ends (DESIGN 2.9)."""
    node = start_node(2)
    absent(node[0])
    gc.collect()
    garbage.clear()  # of the start
    for qos in (1, 2):
        for broker in node:
            publish(node[0], *NUMBERS[:20], qos=qos)
            client = arrive(broker)
            assert NUMBERS[:20] == taken(client, broker)
            client.drop()
            node.advance(0.3)

    assert [] == ours(garbage)
    assert [0, 0] == [broker.backlog.lists for broker in node]
