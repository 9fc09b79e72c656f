# A client that comes back at another worker: one session in the node, whole, and nothing lost, twice or overtaken.
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.auth.passwords import hash_password
from broker.cluster.registry import Verdict
from broker.config.schema import Access, Config, Delivery, Limits
from broker.mqtt.packets import (
    PUBACK,
    PUBREC,
    V5,
    V311,
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    Publish,
    Will,
)
from broker.mqtt.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL
from broker.net.pauses import Pause
from broker.session.origin import TransferFilter
from broker.session.principal import ANONYMOUS
from broker.session.session import Session
from tests.cluster.across import names
from tests.cluster.talk import lane, payloads, sessions, subscribed
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.redis_servers import RunningRedis

__all__ = ["names"]  # a fixture

pytestmark = pytest.mark.system  # a real Redis

StartNode = Callable[[int], Node]
LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 100}


@pytest.fixture(params=["in memory", "durable"])
def start_node(
    nodes: Callable[..., Node], start_redis: Callable[[], RunningRedis], request: pytest.FixtureRequest
) -> StartNode:
    return lambda workers: nodes(workers, None, start_redis(), durable=request.param == "durable")


def arrive(broker: Broker, client_id: str = "me", clean: bool = False, will: Will | None = None) -> Client:
    return broker.connect(client_id, V5, clean_start=clean, properties=LASTING, will=will)


def goodbye(client: Client) -> int | None:
    said = client.receive()
    assert client.closed
    return said[-1].code if said and isinstance(said[-1], Disconnect) else None


def publish(client: Client, topic: bytes, *said: bytes, qos: int = 1) -> None:
    for n, payload in enumerate(said):
        client.send(Publish(topic, payload, qos, packet_id=n + 1 if qos else 0))
    client.broker.settle()


def test_the_former_connection_is_told_and_the_session_goes_on(start_node: StartNode) -> None:
    """Two connections would have one session, or the client none [MQTT-3.1.4-3], [MQTT-3.2.2-3]."""
    node = start_node(3)
    first = arrive(node[0])
    subscribed(first, "a/#")
    second = arrive(node[1])

    assert 0x8E == goodbye(first)
    assert second.connack.session_present
    assert [1] == sessions(node)
    publish(arrive(node[2], "publisher"), b"a/b", b"hello")
    assert [b"hello"] == payloads(second)


def test_what_waited_comes_with_the_session(start_node: StartNode) -> None:
    """QoS 1 and 2 messages that were accepted for a client who was away would be lost [MQTT-4.5.0-1]."""
    node = start_node(2)
    first = arrive(node[0])
    subscribed(first, "a")
    first.drop()
    publisher = arrive(node[1], "publisher")
    publish(publisher, b"a", *[b"%d" % n for n in range(30)])
    second = arrive(node[1])

    assert [b"%d" % n for n in range(20)] == payloads(second)[:20]
    assert [1] == sessions(node)
    assert 0 == node[0].queue_budget.used


def test_what_was_not_acknowledged_is_sent_again_under_its_id(start_node: StartNode) -> None:
    """A resend under another id would be a new message [MQTT-4.4.0-1]; QoS 2 would come twice."""
    node = start_node(2)
    first = arrive(node[0])
    subscribed(first, "a")
    publisher = arrive(node[1], "publisher")
    publish(publisher, b"a", b"one", b"two", qos=2)
    sent = [packet for packet in first.receive() if isinstance(packet, Publish)]
    first.send(Ack(PUBREC, sent[0].packet_id))
    first.receive()
    second = arrive(node[1])
    again = [*second.inbox, *second.receive()] if not second.inbox else second.receive()

    assert any(isinstance(packet, Ack) and packet.packet_id == sent[0].packet_id for packet in again)
    (publish_again,) = [packet for packet in again if isinstance(packet, Publish)]
    assert (b"two", True, sent[1].packet_id) == (publish_again.payload, publish_again.dup, publish_again.packet_id)


@pytest.mark.parametrize("durable", [False, True])
def test_a_client_that_returns_elsewhere_is_sent_what_waited_at_its_pace(
    nodes: Callable[..., Node], start_redis: Callable[[], RunningRedis], durable: bool
) -> None:
    """A device would be drowned in its queue whenever it returns to another worker."""
    config = Config(delivery=Delivery(replay_messages=10))
    node = nodes(2, config, start_redis(), durable=durable)
    first = arrive(node[0])
    subscribed(first, "a")
    first.drop()
    publish(arrive(node[1], "publisher"), b"a", *[b"%d" % number for number in range(40)], qos=1)
    node.settle()
    second = arrive(node[1])
    found = payloads(second)
    assert 1 <= len(found) <= 3
    for _ in range(10):
        node.advance(0.1)
    found += payloads(second)

    assert 8 <= len(found) <= 20
    assert [b"%d" % number for number in range(len(found))] == found


def test_qos_0_that_waited_moves_with_its_session(
    nodes: Callable[..., Node], start_redis: Callable[[], RunningRedis]
) -> None:
    """A device would miss what was kept for it, or be sent it with a packet id, because it returns elsewhere."""
    node = nodes(2, Config(limits=Limits(queue_qos0=True)), start_redis())
    first = arrive(node[0])
    subscribed(first, "a")
    first.drop()
    publisher = arrive(node[1], "publisher")
    publish(publisher, b"a", b"1", b"2", qos=0)
    publish(publisher, b"a", b"3")
    node.settle()
    found = [packet for packet in arrive(node[1]).receive() if isinstance(packet, Publish)]

    assert [(b"1", 0), (b"2", 0), (b"3", 1)] == [(packet.payload, packet.qos) for packet in found]


def test_a_qos_2_message_is_not_published_twice_by_who_comes_elsewhere(start_node: StartNode) -> None:
    """The id that was not released would be taken for a new one [MQTT-4.3.3-10]."""
    node = start_node(2)
    subscriber = arrive(node[0], "subscriber")
    subscribed(subscriber, "a")
    first = arrive(node[0])
    first.send(Publish(b"a", b"x", 2, packet_id=7))
    first.receive()
    second = arrive(node[1])
    second.send(Publish(b"a", b"x", 2, dup=True, packet_id=7))
    second.receive()

    assert [b"x"] == payloads(subscriber)


@pytest.mark.parametrize("back", [0, 1])
def test_a_clean_start_ends_what_was_elsewhere(start_node: StartNode, back: int) -> None:
    """The old session would go on collecting messages [MQTT-3.1.2-4]."""
    node = start_node(2)
    first = arrive(node[0])
    subscribed(first, "a")
    second = arrive(node[back], clean=True)

    assert 0x8E == goodbye(first)
    assert not second.connack.session_present
    assert [back] == sessions(node)
    publish(arrive(node[1], "publisher"), b"a", b"x")
    assert [] == payloads(second)


def credits_of(broker: Broker) -> float:
    """What the client *me* has left."""
    session = broker.session("me")
    assert session is not None and session.outbox is not None
    account = broker.stream_of(session.outbox).client.account  # type: ignore[union-attr]  # a Connection
    balance: float = account.balance(broker.protection.ledger, broker.clock.now)
    return balance


@pytest.mark.parametrize("clean", [False, True])
def test_credits_go_where_their_client_goes(start_node: StartNode, clean: bool) -> None:
    """Who has used up its credits would have new ones at each other worker; or find its former ones when it is back."""
    node = start_node(2)
    first = arrive(node[0], clean=clean)
    full = credits_of(node[0])
    publish(first, b"a", *[b"x" * 10_000] * 50)
    spent = full - credits_of(node[0])
    second = arrive(node[1], clean=clean)
    assert spent == pytest.approx(full - credits_of(node[1]), abs=1) and spent > 1000
    publish(second, b"a", *[b"x" * 10_000] * 50)
    arrive(node[0], clean=clean)

    assert 2 * spent == pytest.approx(full - credits_of(node[0]), abs=1)


def test_the_will_of_who_is_taken_over_is_published_once(start_node: StartNode) -> None:
    """The connection ended without a DISCONNECT (3.1.4, the comment on takeovers)."""
    node = start_node(2)
    listener = arrive(node[1], "listener")
    subscribed(listener, "will")
    arrive(node[0], will=Will(b"will", b"gone", 1))
    arrive(node[1])

    assert [b"gone"] == payloads(listener)


def test_a_delayed_will_is_taken_back_by_who_comes_in_time(start_node: StartNode) -> None:
    """It would be published at the worker that the client has left [MQTT-3.1.3-9]."""
    node = start_node(2)
    listener = arrive(node[1], "listener")
    subscribed(listener, "will")
    arrive(node[0], will=Will(b"will", b"gone", 1, properties={WILL_DELAY_INTERVAL: 5})).drop()
    node.advance(2)
    arrive(node[1])
    node.advance(10)

    assert [] == payloads(listener)


def test_a_session_that_has_moved_expires_when_it_would_have(start_node: StartNode) -> None:
    """It would stay for ever, or end with the move."""
    node = start_node(2)
    arrive(node[0]).drop()
    node.advance(50)
    arrive(node[1]).drop()
    node.advance(99)
    assert [1] == sessions(node)
    node.advance(3)  # rounded up to a second, if it is in Redis alone
    assert [] == sessions(node)


def test_nothing_is_lost_or_twice_while_it_moves(start_node: StartNode) -> None:
    """Messages from every worker, before, while and after both places are subscribed."""
    node = start_node(3)
    first = arrive(node[0])
    subscribed(first, *[f"f/{n}" for n in range(250)], "a")  # in pages: the move takes many slices
    publishers = [broker.connect(f"p{n}", V311) for n, broker in enumerate(node)]
    first.drop()
    mover = node[1].open(V5)
    mover.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    sent = 0
    while not mover.inbox or sent < 60:
        for publisher in publishers:
            publisher.send(Publish(b"a", b"%d" % sent, 1, packet_id=sent + 1))
            sent += 1
        for broker in node:
            broker.turn()
        assert sent < 60_000
    node.settle()
    received: list[bytes] = []
    while new := [packet for packet in mover.receive() if isinstance(packet, Publish)]:
        received += [packet.payload for packet in new]
        mover.send(*[Ack(PUBACK, packet.packet_id) for packet in new if packet.packet_id])

    expected = [b"%d" % n for n in range(sent)][-1000:]
    assert sorted(expected, key=int) == sorted(received, key=int)[-len(expected) :]
    assert len(set(received)) == len(received)
    for number in range(3):  # each one's in its order
        mine = [int(payload) for payload in received if int(payload) % 3 == number]
        assert mine == sorted(mine)


def test_the_last_message_is_not_overtaken_by_the_next_connection_s(start_node: StartNode) -> None:
    """What a client says after it came back would be heard before what it said last."""
    node = start_node(3)
    subscriber = arrive(node[2], "subscriber")
    subscribed(subscriber, "a")
    first = arrive(node[0])
    first.send(Publish(b"a", b"last", 1, packet_id=1))
    node[2].stopped = True
    second = node[1].open(V5)
    second.send(Connect(V5, "me", False, 0, None, None, None, LASTING), Publish(b"a", b"next", 1, packet_id=1))
    assert [] == second.receive()  # the subscriber's worker has not taken the last one yet
    node[2].stopped = False
    second.receive()

    assert [b"last", b"next"] == payloads(subscriber)


def test_nor_by_one_who_has_heard_of_the_move_already(start_node: StartNode) -> None:
    """What is said about sessions does not wait behind messages."""
    node = start_node(3)
    subscriber = arrive(node[2], "subscriber")
    subscribed(subscriber, "a")
    first = arrive(node[0])
    former = lane(node[2], node[0])
    node[2].reactor.pause(former, Pause.FANOUT)
    first.send(Publish(b"a", b"last", 1, packet_id=1))
    second = node[1].open(V5)
    second.send(Connect(V5, "me", False, 0, None, None, None, LASTING), Publish(b"a", b"next", 1, packet_id=1))
    assert [] == second.receive()
    node[2].reactor.resume(former, Pause.FANOUT)

    assert [b"last", b"next"] == payloads(subscriber)


def test_who_has_come_knows_where_all_messages_go(start_node: StartNode) -> None:
    """What another worker sent to both places would be taken twice."""
    node = start_node(3)
    arrive(node[0])
    late = lane(node[1], node[2])
    node[1].reactor.pause(late, Pause.FANOUT)
    second = node[1].open(V5)
    second.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    assert [] == second.receive()
    node[1].reactor.resume(late, Pause.FANOUT)

    assert 1 == len(second.receive())


def test_what_is_published_where_it_comes_to_is_not_lost(start_node: StartNode) -> None:
    """Neither place would take it for its own."""
    node = start_node(3)
    subscribed(arrive(node[0]), "a")
    node[2].stopped = True  # so that the move cannot be completed
    second = node[1].open(V5)
    second.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    assert [] == second.receive()
    publish(arrive(node[1], "here"), b"a", b"1")
    publish(arrive(node[0], "there"), b"a", b"2")
    node[2].stopped = False

    assert [b"1", b"2"] == sorted(payloads(second))


def test_who_has_moved_hears_workers_that_come_later(start_node: StartNode) -> None:
    """The session would go on telling messages for its place from those for its former one."""
    node = start_node(2)
    first = arrive(node[0])
    subscribed(first, "a")
    second = arrive(node[1])
    second.drop()
    publish(arrive(node.start(), "publisher"), b"a", b"1")

    assert [b"1"] == payloads(arrive(node[1]))


def test_a_worker_that_comes_while_a_session_moves_marks_its_messages_too(start_node: StartNode) -> None:
    """Both places would take them, or neither."""
    node = start_node(3)
    subscribed(arrive(node[0]), "a")
    node[2].stopped = True  # so that the move cannot be completed
    second = node[1].open(V5)
    second.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    assert [] == second.receive()
    new = node.start()
    late = lane(node[1], new)
    node[1].reactor.pause(late, Pause.FANOUT)
    publisher = arrive(new, "publisher")
    publish(publisher, b"a", b"1")
    node[2].stopped = False
    node.settle()
    publish(publisher, b"a", b"2")
    node[1].reactor.resume(late, Pause.FANOUT)

    assert [b"1", b"2"] == payloads(second)


def test_who_goes_before_the_session_has_come(start_node: StartNode) -> None:
    """It would stay for ever, without its will."""
    node = start_node(2)
    listener = arrive(node[1], "listener")
    subscribed(listener, "will")
    arrive(node[0], will=Will(b"will", b"gone", 1, properties={WILL_DELAY_INTERVAL: 80})).drop()
    node.advance(50)
    second = node[1].open(V5)
    second.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    node[1].turn()  # its CONNECT is taken, and claims the session
    second.drop()
    assert [1] == sessions(node)

    node.advance(29)
    assert [] == payloads(listener)
    node.advance(2)
    assert [b"gone"] == payloads(listener)
    node.advance(18)
    assert [1] == sessions(node)
    node.advance(2)
    assert [] == sessions(node)


def test_retained_messages_that_are_owed_come_at_the_other_place(start_node: StartNode) -> None:
    """Who moved while they were sent would not know what is retained [MQTT-3.3.1-9]."""
    node = start_node(2)
    publish(node[0].connect("publisher", V5), b"nothing", b"")
    for n in range(40):
        node[0].connect("publisher", V5).send(Publish(b"r/%d" % n, b"%d" % n, 1, True, packet_id=1))
    first = node[0].connect("me", V5, properties=LASTING | {RECEIVE_MAXIMUM: 5})
    subscribed(first, "r/+")
    first.drop()
    second = arrive(node[1])
    received: set[bytes] = set()
    while new := [packet for packet in second.receive() if isinstance(packet, Publish)]:
        received |= {packet.payload for packet in new}
        second.send(*[Ack(PUBACK, packet.packet_id) for packet in new])

    assert {b"%d" % n for n in range(40)} == received


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("clean", [False, True])
def test_nor_is_that_of_a_session_that_ended(start_node: StartNode, clean: bool, dies: bool) -> None:
    """Nothing moves then, and nobody else would wait for those who have not heard the last one yet."""
    node = start_node(4)
    subscriber = arrive(node[2], "subscriber")
    subscribed(subscriber, "a")
    first = node[0].connect("me", V5, properties=LASTING if clean else {})
    first.send(Publish(b"a", b"last", 1, packet_id=1))
    node[2].stopped = True
    second = node[1].open(V5)
    second.send(Connect(V5, "me", clean, 0, None, None, None, LASTING), Publish(b"a", b"next", 1, packet_id=1))
    assert [] == second.receive()
    if dies:
        node.kill(node[2])
        if node.durable:
            node.start(2)  # publishes wait until the durable subscribers of the dead worker are adopted
        assert 2 == len(second.receive())
    else:
        node[2].stopped = False
        assert [b"last", b"next"] == payloads(subscriber)


def test_a_worker_that_was_stopped_takes_nothing_over_for_clients_that_are_gone(start_node: StartNode) -> None:
    """Each client that had tried it in vain, and is connected elsewhere, would lose its connection."""
    node = start_node(2)
    node[1].stopped = True
    gone = node[1].open(V311)
    gone.send(Connect(V311, "me"))
    gone.drop()
    client = arrive(node[0])
    node[1].stopped = False
    node.settle()

    assert [0] == sessions(node)
    client.send(PingReq())
    assert [PingResp()] == client.receive()


def test_the_owner_dies_while_it_hands_over(start_node: StartNode) -> None:
    """The client would wait for ever."""
    node = start_node(3)
    arrive(node[0])
    node[0].stopped = True
    second = node[1].open(V5)
    second.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    assert [] == second.receive()
    node.kill(node[0])

    (connack,) = second.receive()
    assert node.durable == connack.session_present


def test_the_owner_dies_once_it_has_handed_over(start_node: StartNode) -> None:
    """All of the session has come, and would be thrown away with what waits in it."""
    node = start_node(3)
    first = arrive(node[0])
    subscribed(first, "a")
    first.drop()
    publish(arrive(node[2], "publisher"), b"a", b"x")
    late = lane(node[1], node[2])
    node[1].reactor.pause(
        late, Pause.FANOUT
    )  # so that worker 1 does not know yet that worker 2 has nothing for it any more
    second = node[1].open(V5)
    second.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    assert [] == second.receive()
    node.kill(node[0])
    node[0].reactor.resume(late, Pause.FANOUT)
    (connack, *others) = second.receive()

    assert isinstance(connack, ConnAck) and connack.session_present
    assert [b"x"] == [packet.payload for packet in others if isinstance(packet, Publish)]


@pytest.mark.parametrize("filters", [1, 250])
def test_who_is_asked_again_before_it_knows_that_the_first_who_asked_is_dead(
    start_node: StartNode, filters: int
) -> None:
    """The client would begin anew, and that session be ended when the former one comes back to life."""
    node = start_node(3)
    owner, asking, other = node
    first = arrive(owner)
    subscribed(first, "a", *[f"f/{n}" for n in range(filters)])
    publish(arrive(other, "publisher"), b"a", b"x")
    late = lane(owner, asking)
    owner.reactor.pause(late, Pause.FANOUT)
    elsewhere = asking.open(V5)
    elsewhere.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    assert [] == elsewhere.receive()
    open_still = lane(asking, owner).sock.dup()  # the end of the lane comes later than the death
    node.kill(asking, heard=False)
    second = other.open(V5)
    second.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    assert [] == second.receive()
    open_still.close()
    node.hear_of(asking)
    owner.reactor.resume(late, Pause.FANOUT)
    (connack, *others) = second.receive()

    assert isinstance(connack, ConnAck) and connack.session_present
    assert [b"x"] == [packet.payload for packet in others if isinstance(packet, Publish)]
    assert [2] == sessions(node)


def test_what_a_group_had_for_a_session_that_does_not_come_goes_to_others(start_node: StartNode) -> None:
    """It was chosen where it was to come, and nobody else has the message (4.8.2)."""
    node = start_node(3)
    for client_id, broker in (("me", node[0]), ("other", node[1])):
        member = arrive(broker, client_id)
        subscribed(member, "$share/group/a")
        member.drop()
    node[2].stopped = True  # so that the move cannot be completed
    second = node[1].open(V5)
    second.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    assert [] == second.receive()
    publish(arrive(node[1], "publisher"), b"a", *[b"%d" % n for n in range(6)])
    node.kill(node[0])

    assert [b"%d" % n for n in range(6)] == sorted(payloads(arrive(node[0], "other")))


def test_who_asked_dies_and_the_session_stays(start_node: StartNode) -> None:
    """A crash of one worker would lose the session of another."""
    node = start_node(3)
    first = arrive(node[0])
    subscribed(first, "a")
    publish(arrive(node[2], "publisher"), b"a", b"x")
    node[2].stopped = True  # the move cannot be completed without it
    second = node[1].open(V5)
    second.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    assert [] == second.receive()
    node.kill(node[1])
    node.workers[1].stopped = False
    node.settle()
    for n, broker in enumerate(node):
        publish(arrive(broker, f"later{n}"), b"a", b"%d" % n)
    if node.durable:
        node.start(1)  # publishes have waited for what the dead worker had begun to take
    third = arrive(node[0])

    assert third.connack.session_present
    x, *later = payloads(third)
    assert (b"x", [b"0", b"1"]) == (x, sorted(later))


def test_an_owner_that_does_not_answer_is_not_waited_for(start_node: StartNode) -> None:
    """A client would wait longer than it has patience."""
    node = start_node(3)
    arrive(node[0])
    node[0].stopped = True
    second = node[1].open(V5)
    second.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    assert [] == second.receive()
    node[1].advance(2.2)

    assert [node.durable] == [packet.session_present for packet in second.inbox]
    node[0].stopped = False
    node.settle()
    assert [1] == sessions(node)


def test_what_could_not_be_asked_for_ends_when_the_later_one_comes(start_node: StartNode) -> None:
    """Its connection would live on, with a session that nobody finds [MQTT-3.1.4-3]."""
    node = start_node(2)
    first = arrive(node[0])
    subscribed(first, "a")
    (asker,) = node[0].mesh.peers
    node[0].reactor.pause(asker.control, Pause.FANOUT)  # what it asks is not heard
    second = node[1].open(V5)
    second.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    assert [] == second.receive()
    node[1].advance(2.2)
    (connack,) = second.receive()
    assert node.durable == connack.session_present
    third = node[0].open(V5)
    third.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    third.receive()
    node[0].reactor.resume(asker.control, Pause.FANOUT)
    node.advance(0.5)  # a durable one is taken by force once more, as not all have let go for its worker

    assert 0x8E == goodbye(first) == goodbye(second)
    assert [0] == sessions(node)
    assert [1, 0] == [broker.connected for broker in node]
    assert [int(node.durable), 0] == [broker.routes.statistics()[1] for broker in node]


def test_a_will_comes_from_where_it_is_published(start_node: StartNode) -> None:
    """What follows from another worker's word would be taken for that one's message by sessions that move."""
    node = start_node(2)
    mover = arrive(node[0], "mover")
    subscribed(mover, "will")
    mover.drop()
    session = node[0].session("mover")
    assert session is not None
    session.transfer_filter = TransferFilter(True)
    session.transfer_filter.mark(node[0].identity)  # it takes what is published at its own worker
    node[0].connect("me", V5, will=Will(b"will", b"gone", 1))
    (asker,) = node[0].mesh.peers
    node[0].reactor.pause(asker.control, Pause.FANOUT)
    second = node[1].open(V5)
    second.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    second.receive()
    node[1].advance(2.2)
    third = node[0].open(V5)
    third.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    third.receive()  # its session comes, and ends the one that is here, whose will is published
    session.transfer_filter = None

    assert [b"gone"] == payloads(arrive(node[0], "mover"))


def test_a_client_that_goes_to_and_fro(start_node: StartNode) -> None:
    """A move that begins before another has ended would lose the session."""
    node = start_node(3)
    first = arrive(node[0])
    subscribed(first, "a")
    clients = []
    for n in range(12):
        client = node[n % 3].open(V5)
        client.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
        clients.append(client)
        for broker in node:
            broker.turn()
    node.settle()
    alive = [client for client in clients if not client.closed]

    assert 1 == len(alive)
    assert 1 == len(sessions(node))
    assert all(0 == broker.counters.internal_errors for broker in node)


@pytest.mark.parametrize("durable", [False, True])
def test_claims_that_meet_while_redis_is_slow_leave_one_session(
    start_redis: Callable[[], RunningRedis], durable: bool
) -> None:
    """A claim that waited for an earlier one would be refused with it, and the next one begin a second session."""
    redis, chance = start_redis(), random.Random(1)
    for _ in range(50):
        redis.client().flushall()
        node = Node(3, None, redis.address, durable=durable)
        clients = [arrive(node[0])]
        for number in range(12):
            client = node[number % 3].open(V5)
            client.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
            clients.append(client)
            if chance.random() < 0.5:
                redis.pause()
            for broker in node:
                if chance.random() < 0.8:
                    broker.turn()
            if chance.random() < 0.7:
                redis.go_on()
                chance.choice(node.workers).waits_for_redis()
        redis.go_on()
        node.settle()
        left = len([client for client in clients if not client.closed]), len(sessions(node))
        node.close()

        assert (1, 1) == left


def until(broker: Broker, done: Callable[[], bool]) -> None:
    """Redis has answered, and what follows from it is done."""
    for _ in range(1000):
        if done():
            return
        broker.settle()
    raise AssertionError("it does not come")


def leave_a_claim(broker: Broker, client_id: str) -> None:
    """One that Redis carried out, and that nobody heard of."""
    registry_client = broker.registry_client
    assert registry_client is not None
    verdicts: list[Verdict] = []
    registry_client.registry.claim(client_id, ANONYMOUS, True, b"", verdicts.append, broker.clock.now)
    until(broker, lambda: bool(verdicts))
    registry_client.registry.owned._current.pop(client_id)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("alive", [True, False])
def test_a_session_is_found_behind_a_claim_that_nobody_heard_of(
    start_node: StartNode, alive: bool, clean: bool
) -> None:
    """Redis was killed, or hung, and names a worker that has nothing, or had died when its claim was carried out.

    The client would begin anew, and what it had be left behind: subscribed, and nobody's.
    """
    node = start_node(3)
    first = arrive(node[0])
    subscribed(first, "a")
    leave_a_claim(node[1], "me")
    if not alive:
        node.kill(node[1])
    second = arrive(node[-1], clean=clean)

    assert clean != second.connack.session_present
    assert 0x8E == goodbye(first)
    assert [2] == sessions(node)


@pytest.mark.parametrize("start_node", ["in memory"], indirect=True)  # two cannot have a durable one
def test_of_two_that_have_a_session_one_gives_it(start_node: StartNode) -> None:
    """The other would be on its way for ever, and whoever asks for it later wait for that."""
    node = start_node(3)
    arrive(node[0])
    elsewhere = node[1]
    elsewhere.store.keep(Session("me", elsewhere.session_lifecycle.limits, elsewhere.counters))
    leave_a_claim(node[2], "me")

    assert arrive(node[2]).connack.session_present
    assert [2] == sessions(node)
    assert [0, 0] == [broker.takeovers.leaving() for broker in node[:2]]


@pytest.mark.parametrize("alive", [True, False])
def test_a_session_stays_though_redis_names_who_has_it_not(start_node: StartNode, alive: bool) -> None:
    """Each worker claims its sessions again when Redis is back: it would end one for a claim that came to nothing."""
    node = start_node(2)
    first = arrive(node[0])
    leave_a_claim(node[1], "me")
    if not alive:
        node.kill(node[1])
    registry_client = node[0].registry_client
    assert registry_client is not None
    owned = registry_client.registry.owned
    owned.mark_all_stale()
    until(node[0], lambda: not owned.statistics().stale and owned.get("me") is not None)

    assert not first.closed
    assert arrive(node[0]).connack.session_present


def test_a_session_that_another_worker_has_ends_here(start_node: StartNode) -> None:
    """Claimed within the node while the two did not hear each other, it would have two clients for ever."""
    node = start_node(2)
    first = arrive(node[0])
    for broker in node:
        broker.settle()
    leave_a_claim(node[1], "me")
    elsewhere = node[1]
    elsewhere.store.keep(Session("me", elsewhere.session_lifecycle.limits, elsewhere.counters))
    registry_client = node[0].registry_client
    assert registry_client is not None
    registry_client.registry.owned.mark_all_stale()
    until(node[0], lambda: first.closed)

    assert [1] == sessions(node)


@pytest.mark.parametrize("filters", [1, 250])
def test_a_client_comes_back_while_who_asked_for_its_session_dies(start_node: StartNode, filters: int) -> None:
    """It would get a new session, and the old one be left behind: subscribed, and nobody's."""
    node = start_node(3)
    first = arrive(node[0])
    subscribed(first, "a", *[f"f/{n}" for n in range(filters)])
    node[2].stopped = True  # the move to worker 1 cannot be completed without it
    elsewhere, again = node[1].open(V5), node[0].open(V5)
    for client in (elsewhere, again):
        client.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
        assert [] == client.receive()
    node.kill(node[1])
    node.workers[1].stopped = False
    node.settle()
    (connack, *_) = again.inbox

    assert isinstance(connack, ConnAck)
    assert [0] == sessions(node)
    assert filters + 1 == node[0].routes.statistics()[1] if connack.session_present else 0
    again.send(Disconnect(0, {SESSION_EXPIRY_INTERVAL: 0}))
    node.settle()
    assert 0 == node[0].routes.statistics()[1]


def test_who_waits_for_a_session_that_is_coming_dies(start_node: StartNode) -> None:
    """Its worker would have given up what nobody takes: the will of the client would be lost with it."""
    node = start_node(4)
    listener = arrive(node[2], "listener")
    subscribed(listener, "will")
    arrive(node[2])
    node[3].stopped = True  # the move to worker 0 cannot be completed without it
    elsewhere, asking = node[0].open(V5), node[1].open(V5)
    elsewhere.send(Connect(V5, "me", False, 0, None, None, Will(b"will", b"gone", 1), LASTING))
    assert [] == elsewhere.receive()
    asking.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    assert [] == asking.receive()
    node.kill(node[1])
    node.workers[2].stopped = False
    assert [True] == [packet.session_present for packet in elsewhere.receive()]
    owner = node[0]
    node.kill(owner)
    if node.durable:  # the will is stored with its session
        node.start(owner.number)
        node.start()  # in place of the other one that was killed: it may have had subscribers
        node.advance(0.3)
    else:
        node.publish_wills_of(owner, node[0])

    assert [b"gone"] == payloads(listener)


@pytest.mark.parametrize("clean", [False, True])
def test_another_user_gets_no_session_from_another_worker(
    nodes: Callable[..., Node], start_redis: Callable[[], RunningRedis], tmp_path: Path, clean: bool
) -> None:
    """A session that has moved to another worker would have forgotten its user."""
    passwords = tmp_path / "passwords"
    lines = [f"{user}:{hash_password(user.encode(), b'twelve bytes', 1)}\n" for user in ("alice", "bob")]
    passwords.write_text("".join(lines))
    node = nodes(3, Config(access=Access(password_file=str(passwords))), start_redis())

    def enter(broker: Broker, user: str, clean: bool = False) -> Client:
        return broker.connect("me", V5, clean_start=clean, properties=LASTING, user=user, password=user.encode())

    enter(node[0], "alice").drop()
    moved = enter(node[1], "alice")
    assert moved.connack.session_present
    refused = enter(node[2], "bob", clean)

    assert (0x87, True) == (refused.connack.code, refused.closed)
    assert [1] == sessions(node)
    moved.send(PingReq())
    assert [PingResp()] == moved.receive()
    assert enter(node[2], "alice").connack.session_present
