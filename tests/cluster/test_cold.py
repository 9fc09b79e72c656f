# Sessions that are in Redis alone: in a node of one worker, and of two, with a real Redis.
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.config.schema import Config, Limits
from broker.insight import warm_first
from broker.insight.explain import explain
from broker.insight.pending_answers import PendingAnswer
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    V5,
    V311,
    Ack,
    ConnAck,
    Connect,
    Publish,
    Subscribe,
    Unsubscribe,
    Wanted,
)
from broker.mqtt.properties import MESSAGE_EXPIRY_INTERVAL
from broker.protocol import cold_sessions
from broker.protocol.cold_sessions import COOL_AFTER, COOLING, PATIENCE, WALKED, ColdSessions
from broker.session.message import NEVER, Message
from broker.session.session import Session
from broker.store.durable.index import with_deadline
from broker.store.redis.keys import SLICES, Keys
from tests.cluster.durable_node import Durable, StartRedis
from tests.cluster.test_durable import payloads
from tests.innode import Node, stored
from tests.inprocess import Broker, Client
from tests.insight.operators import Operator
from tests.insight.test_admin_requests import requests_of
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # real servers


def cold_of(broker: Broker) -> ColdSessions:
    cold = broker.worker.protocol.cold
    assert cold is not None
    return cold


def cool(node: Durable) -> None:
    """Have sessions cold whose clients are away."""
    node.worker.advance(COOL_AFTER + 0.1)
    for _ in range(3):
        node.worker.advance(0.2)


def away(node: Durable, client_id: str = "client", filter: bytes = b"a/+", qos: int = 1) -> None:
    node.subscriber(client_id, filter, qos).socket.close()
    node.worker.settle()


def test_a_session_whose_client_is_away_is_cooled(node: Durable) -> None:
    """A million absent clients would fill the memory of the worker."""
    away(node)
    assert 0 == cold_of(node.worker).count()
    cool(node)

    assert 1 == cold_of(node.worker).count() == node.worker.session_count()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_warms_the_session_that_it_is_for(node: Durable, qos: int) -> None:
    """What was acknowledged would reach nobody, or come in another order."""
    away(node, qos=qos)
    cool(node)
    node.publish(b"a/b", b"1", b"2", qos=qos)
    node.publish(b"b", b"3", qos=qos)
    assert 0 == cold_of(node.worker).count() < node.worker.session_count()
    node.publish(b"a/c", b"4", qos=qos)
    cool(node)
    assert 1 == cold_of(node.worker).count()
    node.publish(b"a/d", b"5", qos=qos)

    client = node.connect("client")
    assert client.connack.session_present
    found = payloads(client)
    assert [b"1", b"2", b"4", b"5"] == [payload for payload, _, _ in found]
    assert {False} == {duplicate for _, _, duplicate in found[:3]}


def test_a_client_that_comes_back_has_its_session(node: Durable) -> None:
    """It would begin anew, without its filters."""
    away(node)
    cool(node)
    client = node.connect("client")

    assert client.connack.session_present
    node.publish(b"a/b", b"1")
    assert [(b"1", 1, False)] == payloads(client)
    assert 0 == cold_of(node.worker).count()


def test_a_session_stays_whose_messages_may_return_to_a_group(node: Durable) -> None:
    """Nobody would know through which shared subscription they came: they would end with the session."""
    client = node.subscriber("client", b"$share/group/a")
    node.publish(b"a", b"1")
    client.send(Unsubscribe(2, [b"$share/group/a"]))
    node.worker.settle()
    client.socket.close()
    node.worker.settle()
    cool(node)

    assert not cold_of(node.worker).has("client")
    assert [(b"1", 1, True)] == payloads(node.connect("client"))


def test_a_clean_start_ends_a_cold_session(node: Durable) -> None:
    """Its messages would come to a client that has asked for none."""
    away(node)
    node.publish(b"a/b", b"1")
    cool(node)
    client = node.connect("client", clean=True)
    node.worker.settle()
    node.worker.advance(0.1)

    assert not client.connack.session_present
    assert [] == payloads(client)
    assert [] == node.redis.client().keys("*:queue:*")


def test_a_worker_that_follows_reads_no_cold_session(node: Durable) -> None:
    """A node with a million sessions would serve after a minute."""
    away(node)
    away(node, "other", b"b")
    node.publish(b"a/b", b"1")
    node.kill()

    assert 2 == cold_of(node.worker).count()
    node.publish(b"a/c", b"2")
    assert not cold_of(node.worker).has("client") and cold_of(node.worker).has("other")
    assert [b"1", b"2"] == [payload for payload, _, _ in payloads(node.connect("client"))]


def test_a_session_that_is_to_be_read_earlier_is_known_by_its_filters_afterwards(node: Durable) -> None:
    """The worker that follows would believe that it waits for nothing, and what is for it be acknowledged and lost.

    The index has an earlier time after a crash behind the end of a message, and before that is written.
    """
    away(node)
    me = node.worker.identity.incarnation_text.encode()
    number = zlib.crc32(b"client") % SLICES
    index = Keys("weir").sessions(number, me).index
    asked = node.redis.client()
    value = asked.hget(index, b"client")
    assert isinstance(value, bytes)
    asked.hset(index, b"client", with_deadline(value, node.worker.worker.base.wall() + 1000.0))
    node.kill()
    node.publish(b"a/b", b"1")
    node.kill()
    node.publish(b"a/b", b"2")

    assert [b"1", b"2"] == [payload for payload, _, _ in payloads(node.connect("client"))]


def test_keys_of_former_workers_get_the_name_of_the_present_one(node: Durable) -> None:
    """Each restart would leave an owner more, which each claim has to look at."""
    for number in range(40):
        away(node, f"client-{number}")
    node.kill()
    node.publish(b"a/b", b"1")
    keys, asked = Keys("weir"), node.redis.client()
    assert 2 == asked.hlen(keys.durable_owners("weir"))
    for _ in range(6 * SLICES):
        node.worker.advance(0.1)

    me = node.worker.identity.incarnation_text.encode()
    assert [me] == asked.hkeys(keys.durable_owners("weir"))
    assert 40 == len(asked.keys(b"*:session:%b:*" % me)) == len(asked.keys("*:session:*"))
    assert 40 == sum(asked.hlen(keys.sessions(number, me).index) for number in range(SLICES))
    node.publish(b"a/b", b"2")
    for number in range(40):
        assert [b"1", b"2"] == [each[0] for each in payloads(node.connect(f"client-{number}"))]


def test_sessions_are_read_if_qos_0_waits_for_them_from_now_on(node: Durable) -> None:
    """Messages of QoS 0 wait in memory: they would be lost, although the index says nothing of that setting."""
    away(node)
    cool(node)
    node.config = stored(Config(limits=Limits(queue_qos0=True)))
    node.kill()
    cool(node)
    assert 0 == cold_of(node.worker).count() < node.worker.session_count()
    node.worker.connect("publisher").send(Publish(b"a/b", b"1", 0))
    node.worker.settle()

    assert [(b"1", 0, False)] == payloads(node.connect("client"))


def test_a_cold_session_expires(node: Durable) -> None:
    """It would take its place in Redis for ever."""
    node.connect("client", 5, expiry=100).socket.close()
    node.worker.settle()
    cool(node)
    assert 1 == cold_of(node.worker).count()
    node.kill()
    node.worker.advance(80.0)
    assert 1 == cold_of(node.worker).count()
    for _ in range(5):
        node.worker.advance(5.0)

    assert 0 == cold_of(node.worker).count() == node.worker.session_count()
    assert [] == node.redis.client().keys("*:session:*")


@pytest.mark.parametrize("told", [False, True])
def test_a_session_that_has_lost_messages_is_cooled(nodes_of: Callable[..., Durable], told: bool) -> None:
    """One message of QoS 0 while their clients are away would keep all sessions in memory."""
    node = nodes_of(Config(limits=Limits(queue=2)))
    client = node.subscriber("client", b"a/+")
    if told:
        client.send(Subscribe(2, [Wanted(b"$SYS/broker/clients/client/gap", 1)]))
        client.receive()
    client.socket.close()
    node.worker.settle()
    node.worker.connect("publisher").send(Publish(b"a/b", b"0", 0))
    node.publish(b"a/b", *[b"%d" % number for number in range(5)])
    for _ in range(20):
        node.worker.look_at_gaps()
        node.worker.advance(1.0)
    cool(node)
    cool(node)
    assert 1 == cold_of(node.worker).count()
    node.publish(b"a/b", b"5", b"6")
    for _ in range(20):
        node.worker.look_at_gaps()
        node.worker.advance(1.0)
    cool(node)
    cool(node)
    assert 1 == cold_of(node.worker).count()

    received = [each[0] for each in payloads(node.connect("client"))]
    assert [b"5", b"6"] == received[-2:]
    assert [5] * told == [json.loads(each)["count"] for each in received[:-2]]


@pytest.mark.interpreted  # compiled, constants have no place to be changed in
def test_sessions_with_full_queues_hold_no_publish_up(
    nodes_of: Callable[..., Durable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would never be cold again, as what was dropped had been read: all further sessions would wait for that."""
    monkeypatch.setattr(cold_sessions, "HOT", 4)
    monkeypatch.setattr(cold_sessions, "WALKED", 4)
    node = nodes_of(Config(limits=Limits(queue=2)))
    many = 12
    for number in range(many):
        away(node, f"client-{number}", b"all/+")
    cool(node)
    publisher = node.worker.connect("publisher")
    for publish in publishes(b"all/x", 5):
        publisher.send(publish)
        for _ in range(150):
            node.worker.advance(0.1)
            node.worker.look_at_gaps()
        assert [publish.packet_id] == acknowledged(publisher)

    for number in range(many):
        assert [b"3", b"4"] == [each[0] for each in payloads(node.connect(f"client-{number}"))][-2:]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_is_cooled_that_has_taken_a_part_of_what_was_stored_together(node: Durable, qos: int) -> None:
    """A client that leaves in the middle of its messages would keep its session in memory."""
    away(node, qos=qos)
    publisher = node.worker.connect("publisher")
    publisher.send(*[Publish(b"a/b", b"%d" % number, qos, packet_id=number + 1) for number in range(6)])
    node.worker.settle()
    node.worker.advance(0.3)
    asked = node.redis.client()
    (queue,) = asked.keys("*:queue:*:client")
    assert asked.llen(queue) < 6
    for taken in ((b"1", b"3"), ()):
        client = node.connect("client")
        for each in client.receive():
            if isinstance(each, Publish) and each.payload in taken:
                client.send(Ack(PUBACK if qos == 1 else PUBREC, each.packet_id))
                if qos == 2:
                    client.send(Ack(PUBCOMP, each.packet_id))
        node.worker.settle()
        client.socket.close()
        node.worker.settle()
        for _ in range(4):
            cool(node)
        assert 1 == cold_of(node.worker).count()
    received = [each[0] for each in payloads(node.connect("client"))]
    assert [b"0", b"2", b"4", b"5"] == received


@pytest.mark.parametrize("state", ["left", "warm", "cold"])
def test_messages_end_of_a_session_that_nobody_reads(node: Durable, state: str) -> None:
    """They would take their place in Redis until the client comes back or the session ends."""
    client = node.subscriber("client", b"a/+", 1)
    publisher = node.worker.connect("publisher", V5)
    if state != "left":
        client.socket.close()
        node.worker.settle()
        cool(node)
    publisher.send(Publish(b"a/b", b"1", 1, packet_id=1, properties={MESSAGE_EXPIRY_INTERVAL: 60}))
    publisher.send(Publish(b"a/b", b"2", 1, packet_id=2))
    node.worker.settle()
    client.socket.close()
    node.worker.settle()
    node.worker.advance(0.3)
    if state != "warm":
        cool(node)
        cool(node)
    node.kill()
    assert 1 == cold_of(node.worker).count()
    asked = node.redis.client()
    (queue,) = asked.keys("*:queue:*:client")
    before = sum(map(len, asked.lrange(queue, 0, -1)))
    node.worker.advance(70.0)
    for _ in range(5):
        node.worker.advance(0.1)

    (queue,) = asked.keys("*:queue:*:client")
    assert sum(map(len, asked.lrange(queue, 0, -1))) < before
    node.worker.look_at_gaps()
    cool(node)
    cool(node)
    assert 1 == cold_of(node.worker).count()
    node.kill()  # that time is over, so it is not to be read again
    node.worker.advance(0.1)
    assert 1 == cold_of(node.worker).count()
    assert [b"2"] == [each[0] for each in payloads(node.connect("client"))]


@pytest.mark.parametrize("restart", [False, True])
def test_while_redis_is_away_publishes_wait_and_a_connect_is_answered(node: Durable, restart: bool) -> None:
    """A publish would be acknowledged that is lost, or a client wait without end."""
    away(node)
    cool(node)
    publisher = node.worker.connect("publisher")
    node.worker.answered = False
    node.redis.kill()
    publisher.send(Publish(b"a/b", b"1", 1, packet_id=1))
    client = node.worker.open()
    client.send(Connect(V311, "client", clean_start=False))
    node.worker.settle()
    node.worker.advance(PATIENCE + 0.2)
    assert [ConnAck(False, 3)] == client.receive()[:1]
    assert [] == publisher.receive()
    node.redis.start()
    node.worker.advance(5.0)  # it connects again
    node.worker.answered = True
    node.worker.advance(1.0)

    assert [PUBACK] == [each.kind for each in publisher.receive() if isinstance(each, Ack)]
    if restart:
        node.kill()
    assert [b"1"] == [each[0] for each in payloads(node.connect("client"))]


def test_a_damaged_cold_session_is_set_aside_and_holds_nobody_up(node: Durable) -> None:
    """The publisher would wait for ever."""
    away(node)
    away(node, "other")
    cool(node)
    asked = node.redis.client()
    (record,) = asked.keys("*:session:*:client")
    asked.hset(record, "", "?")
    node.publish(b"a/b", b"1")

    assert 1 == node.worker.counters.sessions_damaged
    assert 1 == len(asked.keys("*:damaged:*client"))
    assert [b"1"] == [each[0] for each in payloads(node.connect("other"))]
    assert not node.connect("client").connack.session_present


def test_a_session_that_is_not_found_has_its_publishes_sent_again(node: Durable) -> None:
    """Another worker has it, perhaps: the message would reach nobody."""
    away(node)
    cool(node)
    asked = node.redis.client()
    asked.delete(*asked.keys("*:session:*"))
    publisher = node.worker.connect("publisher")
    publisher.send(Publish(b"a/b", b"1", 1, packet_id=1))
    for _ in range(20):
        node.worker.advance(0.1)

    assert not [each for each in publisher.receive() if isinstance(each, Ack)]
    assert 0 == cold_of(node.worker).count() == cold_of(node.worker).waiting()


def test_a_session_that_is_elsewhere_keeps_its_place_until_this_worker_knows_where(node: Durable) -> None:
    """What is published here would reach nobody: this worker has not heard yet that the other one has subscribed."""
    away(node)
    cool(node)
    cold, told = cold_of(node.worker), list[Callable[[], None]]()
    cold.when_heard = told.append
    asked = node.redis.client()
    asked.delete(*asked.keys("*:session:*"))
    left: list[bool] = []
    cold.taken(b"client", left.append)
    node.worker.advance(0.1)
    publisher = node.worker.connect("publisher")
    publisher.send(Publish(b"a/b", b"1", 1, packet_id=1))
    node.worker.advance(5.0)

    assert [] == publisher.receive() and not publisher.closed
    assert 1 == cold.waiting() == len(told)
    assert [] == left
    told[0]()
    node.worker.settle()
    assert [True] == left
    assert [] == [each for each in publisher.receive() if isinstance(each, Ack)] and publisher.closed
    assert 0 == cold.count() == cold.waiting()


@pytest.mark.interpreted  # compiled, constants have no place to be changed in
def test_clients_are_refused_while_many_sessions_are_read(node: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    """While Redis is away, each client that returns would take memory until it is back."""
    monkeypatch.setattr(cold_sessions, "MOST_WARMING", 1)
    away(node)
    away(node, "other")
    cool(node)
    node.worker.answered = False
    node.redis.pause()
    first, second = node.worker.open(), node.worker.open()
    for client, client_id in ((first, "client"), (second, "other")):
        client.send(Connect(V311, client_id, clean_start=False))
        node.worker.settle()

    assert [ConnAck(False, 3)] == second.receive()[:1]
    assert [] == first.receive()
    node.redis.go_on()
    node.worker.answered = True
    node.worker.advance(0.2)
    assert [ConnAck(True)] == first.receive()
    assert node.connect("other").connack.session_present


@pytest.mark.interpreted
def test_sessions_that_get_many_messages_are_read_one_after_the_other(
    node: Durable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All would get all messages in one turn, and the worker would be killed as one that hangs."""
    monkeypatch.setattr(cold_sessions, "OFFERED", 4)
    for number in range(10):
        away(node, f"client-{number}", b"all/+")
    cool(node)
    publisher = node.worker.connect("publisher")
    node.worker.answered = False
    node.redis.pause()
    publisher.send(*[Publish(b"all/x", b"%d" % number, 1, packet_id=number + 1) for number in range(3)])
    node.worker.settle()
    cold = cold_of(node.worker)
    assert 4 == len(cold._warming)
    node.redis.go_on()
    node.worker.answered = True
    for _ in range(20):
        node.worker.advance(0.1)

    assert [1, 2, 3] == [each.packet_id for each in publisher.receive() if isinstance(each, Ack)]
    for number in range(10):
        assert [b"0", b"1", b"2"] == [each[0] for each in payloads(node.connect(f"client-{number}"))]


@pytest.mark.interpreted
def test_a_list_of_all_sessions_needs_bounded_memory(node: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator who lists a million sessions would have all of them in memory."""
    monkeypatch.setattr(cold_sessions, "HOT", 4)
    monkeypatch.setattr(warm_first, "COLD_PAGE", 5)
    many = 40
    for number in range(many):
        away(node, f"client-{number}")
    cool(node)
    operator, position, found, most = Operator(node.worker), 0, set[str](), 0
    while position is not None:
        page = operator.ask("sessions", {"position": position, "match": "", "away": False})
        found |= {each["client"] for each in page["sessions"]}
        position = page["next"]
        most = max(most, many - cold_of(node.worker).count())
        node.worker.advance(0.1)

    assert {f"client-{number}" for number in range(many)} == found
    assert most <= 10


def test_few_sessions_are_cooled_in_one_turn_if_that_takes_long(node: Durable) -> None:
    """Sessions with a hundred filters would hold the worker up."""
    for number in range(6):
        away(node, f"client-{number}")
    clock, cold, counters = node.worker.clock, cold_of(node.worker), node.worker.counters
    clock.now += COOL_AFTER + 0.1
    clock.step = COOLING
    cold.tick(clock.now)
    assert 1 <= counters.sessions_cooled <= 2
    clock.step = 0.0
    cold.tick(clock.now)
    assert 6 == counters.sessions_cooled


@pytest.mark.interpreted  # compiled, constants have no place to be changed in
def test_one_publish_for_many_cold_sessions_needs_bounded_memory(
    node: Durable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message to a fleet would bring all of its sessions into memory at once, or others have to wait for it."""
    monkeypatch.setattr(cold_sessions, "HOT", 20)
    monkeypatch.setattr(cold_sessions, "WALKED", 8)
    many = 100
    for number in range(many):
        away(node, f"client-{number}", b"all/+")
    away(node, "single", b"one")
    cool(node)
    assert many + 1 == cold_of(node.worker).count()
    sessions, order, most = node.worker.worker.protocol.sessions, list[str](), list[int]()
    rests = sessions.resting

    def warmed(session: Session, now: float) -> None:
        order.append(session.client_id)
        most.append(len(list(node.worker.worker.protocol.store.sessions())))
        rests(session, now)

    sessions.resting = warmed
    publisher, other = node.worker.connect("publisher"), node.worker.connect("other")
    publisher.send(Publish(b"all/x", b"1", 1, packet_id=1), Publish(b"all/y", b"2", 1, packet_id=2))
    other.send(Publish(b"one", b"3", 1, packet_id=1))
    for _ in range(100):
        node.worker.advance(0.1)

    assert [1, 2] == [each.packet_id for each in publisher.receive() if isinstance(each, Ack)]
    assert [1] == [each.packet_id for each in other.receive() if isinstance(each, Ack)]
    assert order.index("single") < many / 2
    assert max(most) <= 20 + 8 + 3
    sessions.resting = rests
    for number in range(many):
        assert [b"1", b"2"] == [each[0] for each in payloads(node.connect(f"client-{number}"))]


def fleet(node: Durable, many: int = WALKED + 20) -> None:
    """Have so many cold sessions that want messages to `all/...`."""
    for number in range(many):
        away(node, f"client-{number}", b"all/+")
    cool(node)
    assert many == cold_of(node.worker).count()


def publishes(topic: bytes, many: int) -> list[Publish]:
    return [Publish(topic, b"%d" % number, 1, packet_id=number + 1) for number in range(many)]


def acknowledged(client: Client) -> list[int]:
    """The packet ids that were acknowledged since the last call."""
    return [each.packet_id for each in client.receive() if isinstance(each, Ack)]


def why(broker: Broker, client_id: str) -> str:
    return " ".join(explain(broker.worker.diagnostics.facts(client_id)))


def test_a_client_waits_for_the_sessions_that_it_has_read(node: Durable) -> None:
    """Four clients could have thousands of such publishes under way, and all others would wait for these."""
    fleet(node)
    publisher, single = node.worker.connect("publisher"), node.worker.connect("single")
    node.worker.answered = False
    node.redis.pause()
    publisher.send(*publishes(b"all/x", 5))
    node.worker.settle()
    assert 1 == cold_of(node.worker).waiting()
    assert "for many sessions whose clients are away" in why(node.worker, "publisher")
    single.send(*publishes(b"all/y", 1))
    node.worker.settle()
    assert 2 == cold_of(node.worker).waiting()
    node.redis.go_on()
    node.worker.answered = True
    for _ in range(5):
        node.worker.advance(0.1)

    assert [1, 2, 3, 4, 5] == acknowledged(publisher)
    assert [1] == acknowledged(single)
    assert 0 == cold_of(node.worker).waiting()
    assert "many sessions" not in why(node.worker, "publisher")
    received = [each[0] for each in payloads(node.connect("client-7"))]
    assert [b"0", b"0", b"1", b"2", b"3", b"4"] == sorted(received)
    assert [b"1", b"2", b"3", b"4"] == received[-4:]


@pytest.mark.interpreted  # compiled, constants have no place to be changed in
def test_publishes_without_cold_receivers_go_on_while_too_many_wait_for_such(
    node: Durable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that publish to a fleet would have all publishers of the node wait."""
    monkeypatch.setattr(cold_sessions, "MOST_WAITING", 3)
    fleet(node)
    here = node.subscriber("here", b"b")
    fast, late = node.worker.connect("fast"), node.worker.connect("late")
    those = [node.worker.connect(f"publisher-{number}") for number in range(3)]
    node.worker.answered = False
    node.redis.pause()
    for each in those:
        each.send(*publishes(b"all/x", 1))
    late.send(*publishes(b"all/y", 1))
    fast.send(*publishes(b"b", 1))
    node.worker.settle()

    assert 3 == cold_of(node.worker).waiting()
    (publish,) = [each for each in here.receive() if isinstance(each, Publish)]
    here.send(Ack(PUBACK, publish.packet_id))
    node.worker.settle()
    assert [1] == acknowledged(fast)
    assert "for sessions that are read from Redis by worker 0" in why(node.worker, "late")
    node.redis.go_on()
    node.worker.answered = True
    for _ in range(10):
        node.worker.advance(0.1)
    assert [[1]] * 4 == [acknowledged(each) for each in [*those, late]]


def test_sessions_are_cooled_while_others_get_messages_in_pages(node: Durable) -> None:
    """Where there are such messages all the time, all sessions would stay warm, and publishes for cold ones wait."""
    away(node, "client", b"all/#")
    away(node, "other", b"b")
    worker = node.worker.worker
    node.worker.clock.now += COOL_AFTER + 0.1
    now = node.worker.clock()
    message = Message(b"all/x", b"1", 1, False, b"", NEVER)
    route = worker.routes.find(message.topic)
    worker.protocol.deliveries._begin(route, message, None, None, None, False)
    cold_of(node.worker).tick(now)
    assert ["other"] == [each for each in ("client", "other") if cold_of(node.worker).has(each)]
    cool(node)
    cool(node)

    assert 2 == cold_of(node.worker).count()
    assert [b"1"] == [each[0] for each in payloads(node.connect("client"))]


def test_a_publish_and_its_client_come_in_the_same_moment(node: Durable) -> None:
    """The session would be read twice: one of the two would be stored, and the other have the connection."""
    away(node)
    cool(node)
    publisher, client = node.worker.connect("publisher"), node.worker.open()
    for number in range(3):
        publisher.post(Publish(b"a/b", b"%d" % number, 1, packet_id=number + 1))
    client.post(Connect(V311, "client", clean_start=False))
    for number in range(3, 6):
        publisher.post(Publish(b"a/b", b"%d" % number, 1, packet_id=number + 1))
    node.worker.settle()
    node.worker.advance(0.3)

    received = client.receive()
    assert ConnAck(True) == received[0]
    assert [b"0", b"1", b"2", b"3", b"4", b"5"] == [each.payload for each in received[1:] if isinstance(each, Publish)]
    assert 6 == len([each for each in publisher.receive() if isinstance(each, Ack)])


def test_a_session_that_expires_while_it_is_read_holds_nobody_up(node: Durable) -> None:
    """Its publisher would wait for ever, or its messages stay in Redis."""
    node.subscriber("other", b"a/+").socket.close()
    client = node.connect("client", 5, expiry=30)
    client.send(Subscribe(1, [Wanted(b"a/+", 1)]))
    client.receive()
    client.socket.close()
    node.worker.settle()
    cool(node)
    publisher = node.worker.connect("publisher")
    node.worker.answered = False
    node.redis.pause()
    publisher.send(Publish(b"a/b", b"1", 1, packet_id=1))
    node.worker.advance(2.0)
    node.worker.clock.now += 30.0
    node.redis.go_on()
    node.worker.answered = True
    node.worker.advance(1.0)

    assert [1] == [each.packet_id for each in publisher.receive() if isinstance(each, Ack)]
    assert [b"1"] == [each[0] for each in payloads(node.connect("other"))]
    asked = node.redis.client()
    assert [] == asked.keys("*:session:*:client") + asked.keys("*:queue:*:client")


def test_operators_see_and_end_a_cold_session(node: Durable) -> None:
    """It would be missing in what they are shown, and stay when they drop it."""
    away(node)
    away(node, "other", b"b")
    node.publish(b"a/b", b"1")
    operator = Operator(node.worker)
    for asked, arguments in (("session", {}), ("queue_page", {"after": 0, "last": 0, "payloads": False})):
        cool(node)
        assert 2 == cold_of(node.worker).count()
        assert operator.ask(asked, {"client": "client", **arguments}) is not None
    cool(node)
    assert operator.ask("session_drop", {"client": "client"})
    assert operator.ask("session", {"client": "client"}) is None
    assert [] == node.redis.client().keys("*:session:*:client")
    assert 1 == node.worker.session_count()


def test_clients_that_are_away_are_listed_whose_sessions_are_cold(node: Durable) -> None:
    """An operator would look in vain for a device that has not been there since yesterday."""
    away(node)
    cool(node)
    node.connect("other")
    requests, outcomes = requests_of(node.worker), list[object]()
    first: Any = requests.answer("clients", {"position": 0, "match": ""})
    answer = requests.answer("clients", {"position": first["next"], "match": "lie"})
    assert isinstance(answer, PendingAnswer)
    answer.deliver_to(lambda result, error: outcomes.append(result))
    node.worker.settle()

    assert ["other"] == [one["client"] for one in first["clients"]]
    (second,) = outcomes
    assert isinstance(second, dict) and second["next"] is None
    assert [("client", False)] == [(one["client"], one["connected"]) for one in second["clients"]]


# Two workers.


@pytest.fixture
def redis_of_pair(start_redis: StartRedis) -> RunningRedis:
    return start_redis()


@pytest.fixture
def pair(redis_of_pair: RunningRedis) -> Iterator[Node]:
    node = Node(2, redis=redis_of_pair.address, durable=True)
    yield node
    node.close()


def subscribed(worker: Broker, client_id: str, filter: bytes) -> Client:
    client = worker.connect(client_id, clean_start=False)
    client.send(Subscribe(1, [Wanted(filter, 1)]))
    client.receive()
    return client


def leave(pair: Node, worker: Broker, client_id: str, filter: bytes) -> None:
    subscribed(worker, client_id, filter).socket.close()
    pair.settle()


def cool_all(pair: Node) -> None:
    pair.advance(COOL_AFTER + 0.1)
    pair.advance(0.6)


def published(pair: Node, worker: Broker, topic: bytes, *payloads: bytes) -> list[int]:
    """Publish at *worker*; the packet ids that are acknowledged."""
    publisher = worker.connect("publisher")
    publisher.send(*[Publish(topic, each, 1, packet_id=number + 1) for number, each in enumerate(payloads)])
    pair.settle()
    pair.advance(0.3)
    acks = [each.packet_id for each in publisher.receive() if isinstance(each, Ack)]
    publisher.socket.close()
    pair.settle()
    return acks


@pytest.mark.parametrize("publisher", [0, 1])
@pytest.mark.parametrize("reader", [0, 1])
def test_a_cold_session_gets_what_any_worker_takes_and_follows_its_client(
    pair: Node, publisher: int, reader: int
) -> None:
    """Messages of other workers would be lost, or the session stay behind."""
    leave(pair, pair[0], "client", b"a/+")
    cool_all(pair)
    assert 1 == cold_of(pair[0]).count()
    assert [1, 2] == published(pair, pair[publisher], b"a/b", b"1", b"2")
    cool_all(pair)
    assert 1 == cold_of(pair[0]).count()
    client = pair[reader].connect("client", clean_start=False)
    pair.settle()
    pair.advance(0.3)

    assert client.connack.session_present
    assert [b"1", b"2"] == [each[0] for each in payloads(client)]
    assert [1] == published(pair, pair[publisher], b"a/c", b"3")
    assert [b"3"] == [each[0] for each in payloads(client)]
    assert 0 == cold_of(pair[0]).count() + cold_of(pair[1]).count()


def test_the_client_of_another_worker_waits_alone_for_the_sessions_that_it_has_read(
    pair: Node, redis_of_pair: RunningRedis
) -> None:
    """All that publish for durable sessions of this worker would wait at its gate until a fleet has been read."""
    for number in range(WALKED + 20):
        subscribed(pair[0], f"client-{number}", b"all/+").socket.close()
    pair.settle()
    cool_all(pair)
    cool_all(pair)
    here = subscribed(pair[0], "here", b"b")
    publisher, fast = pair[1].connect("publisher"), pair[1].connect("fast")
    cold = cold_of(pair[0])
    assert WALKED + 20 == cold.count()
    for worker in pair:
        worker.answered = False
    redis_of_pair.pause()
    publisher.send(*publishes(b"all/x", 30))
    pair.settle()
    (peer,) = pair[1].mesh.peers
    assert 1 <= cold.waiting() == peer.confirming.pending() < 30
    assert peer.confirming.store is not None and 0 == peer.confirming.store.count
    assert "for many sessions whose clients are away" in why(pair[1], "publisher")
    fast.send(*publishes(b"b", 1))
    pair.settle()
    (publish,) = [each for each in here.receive() if isinstance(each, Publish)]
    here.send(Ack(PUBACK, publish.packet_id))
    pair.settle()
    assert [1] == acknowledged(fast)
    redis_of_pair.go_on()
    for worker in pair:
        worker.answered = True
    for _ in range(10):
        pair.advance(0.1)
    assert [number + 1 for number in range(30)] == acknowledged(publisher)


def test_a_worker_that_is_to_end_waits_for_no_cold_session(pair: Node) -> None:
    """It would wait until its time is up, as nobody takes them from it."""
    leave(pair, pair[0], "client", b"a/+")
    cool_all(pair)

    assert 1 == pair[0].session_count()
    assert 0 == pair[0].worker.hand_over.sessions_here()


def test_a_worker_that_did_not_answer_lets_go_of_a_cold_session(pair: Node) -> None:
    """It would read the session of its new owner, or swallow what is for it."""
    leave(pair, pair[0], "client", b"a/+")
    cool_all(pair)
    publisher = pair[0].connect("publisher")
    pair[0].stopped = True
    client = pair[1].open()
    client.send(Connect(V311, "client", clean_start=False))
    for _ in range(40):
        pair[1].advance(0.2)
    pair[0].stopped = False
    pair.settle()
    pair.advance(0.5)
    assert ConnAck(True) in client.receive()
    assert 0 == cold_of(pair[0]).count()
    publisher.send(Publish(b"a/b", b"1", 1, packet_id=1))
    pair.settle()
    pair.advance(0.3)

    assert [b"1"] == [each[0] for each in payloads(client)]
    assert [1] == [each.packet_id for each in publisher.receive() if isinstance(each, Ack)]


@pytest.mark.parametrize("reader", [0, 1])
def test_publishes_at_the_worker_that_lives_reach_cold_sessions_of_one_that_died(pair: Node, reader: int) -> None:
    """What was acknowledged between its death and its return would be lost."""
    leave(pair, pair[0], "client", b"a/+")
    leave(pair, pair[0], "other", b"b")
    cool_all(pair)
    dead, living = pair[0], pair[1]
    pair.kill(dead)
    publisher = living.connect("publisher")
    publisher.send(Publish(b"a/b", b"1", 1, packet_id=1))
    pair.settle()
    assert [] == publisher.receive()  # it waits for the worker that follows
    pair.start(0)
    pair.advance(0.5)

    assert [1] == [each.packet_id for each in publisher.receive() if isinstance(each, Ack)]
    worker = next(each for each in pair if each.shard == reader)
    client = worker.connect("client", clean_start=False)
    pair.settle()
    pair.advance(0.3)
    assert client.connack.session_present
    assert [b"1"] == [each[0] for each in payloads(client)]
