# A node with one worker whose sessions are stored: clients, a real Redis, and workers that end.
from collections.abc import Callable

import msgpack
import pytest

from broker.config.schema import Config, Delivery, Limits, Store
from broker.insight.explain import explain
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Wanted,
    Will,
)
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL
from broker.reasons import CloseReason, DropReason
from broker.session.message import NEVER, Message
from broker.store.durable.pack import PACK
from broker.store.durable.places import READY
from broker.store.durable.stored_session import WILL
from broker.store.redis.keys import Keys
from tests.cluster.durable_node import EXPIRY, Durable
from tests.inprocess import Client
from tests.protocol.reasons.stage import overload
from tests.protocol.talk import spent

pytestmark = pytest.mark.system  # real servers


def payloads(client: Client) -> list[tuple[bytes, int, bool]]:
    return [(each.payload, each.packet_id, each.dup) for each in client.receive() if isinstance(each, Publish)]


def test_a_session_goes_on_at_the_worker_that_follows(node: Durable) -> None:
    """Whatever a client was promised would be lost with the worker."""
    client = node.subscriber("client", b"a/#")
    client.socket.close()
    node.publish(b"a/b", b"1", b"2")
    node.kill()
    node.publish(b"a/c", b"3")
    client = node.connect("client")

    assert client.connack.session_present
    assert [(b"1", 1, True), (b"2", 2, True), (b"3", 3, False)] == payloads(client)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_sent_and_not_acknowledged_comes_again(node: Durable, qos: int) -> None:
    """A message would be lost that was on its way, or come under another packet id."""
    client = node.subscriber("client", b"a", qos)
    node.publish(b"a", b"1", b"2", qos=qos)
    assert [(b"1", 1, False), (b"2", 2, False)] == payloads(client)
    node.kill()
    client = node.connect("client")
    assert [(b"1", 1, True), (b"2", 2, True)] == payloads(client)
    client.send(*[Ack(PUBACK if qos == 1 else PUBREC, number) for number in (1, 2)])
    if qos == 2:
        assert [Ack(PUBREL, 1), Ack(PUBREL, 2)] == client.receive()
        node.kill()
        client = node.connect("client")
        assert [Ack(PUBREL, 1), Ack(PUBREL, 2)] == client.receive()
        client.send(Ack(PUBCOMP, 1), Ack(PUBCOMP, 2))
    node.worker.advance(0.3)
    node.kill()

    assert [] == node.connect("client").receive()
    assert [] == node.redis.client().keys("*:queue:*") + node.redis.client().keys("*:released:*")


def test_unsubscribing_lasts(node: Durable) -> None:
    """A client would get again what it has unsubscribed from."""
    client = node.subscriber("client", b"a", version=V5)
    client.send(Subscribe(2, [Wanted(b"b", 1)]), Unsubscribe(3, [b"a"]))
    assert [SubAck(2, [1]), UnsubAck(3, [0])] == client.receive()
    node.kill()
    node.publish(b"a", b"not wanted")
    node.publish(b"b", b"wanted")

    assert [(b"wanted", 1, False)] == payloads(node.connect("client", V5))


def test_suback_waits_until_the_subscription_is_stored(node: Durable) -> None:
    """A client would be told that it is subscribed, and after a crash not be."""
    client = node.connect("client")
    redis = node.redis.client()
    redis.config_set("maxmemory", 1)
    node.worker.answered = False
    client.send(Subscribe(1, [Wanted(b"a", 1)]), Unsubscribe(2, [b"a"]))
    assert [] == client.receive()
    redis.config_set("maxmemory", 0)
    node.worker.answered = True
    node.worker.advance(1)

    assert [SubAck(1, [1]), UnsubAck(2, [])] == client.receive()


def test_puback_waits_until_the_message_is_stored_and_others_go_on(node: Durable) -> None:
    """A publish would be acknowledged that is lost; or nobody be served while Redis is full."""
    node.subscriber("away", b"a").socket.close()
    node.worker.settle()
    clean = node.worker.connect("clean")
    clean.send(Subscribe(1, [Wanted(b"c", 1)]))
    publisher = node.worker.connect("publisher")
    redis = node.redis.client()
    redis.config_set("maxmemory", 1)
    node.worker.answered = False
    publisher.send(Publish(b"a", b"1", 1, packet_id=1), Publish(b"c", b"2", 1, packet_id=2))
    assert [] == publisher.receive()
    other = node.worker.connect("other")
    other.send(Publish(b"c", b"3", 1, packet_id=1))
    assert [Ack(PUBACK, 1)] == other.receive()
    assert [b"2", b"3"] == [each.payload for each in clean.receive() if isinstance(each, Publish)]
    redis.config_set("maxmemory", 0)
    node.worker.answered = True
    node.worker.advance(1)

    assert [Ack(PUBACK, 1), Ack(PUBACK, 2)] == publisher.receive()


def test_a_publish_pays_for_each_receiver_that_stores_it(node: Durable) -> None:
    """A publisher could fill the store, in calm and in overload, at the price of messages that nobody stores."""
    for name in ("one", "two"):
        node.subscriber(name, b"t").socket.close()
    node.worker.connect("clean").send(Subscribe(1, [Wanted(b"t", 1)]))
    publisher = node.worker.connect("publisher")
    costs = []
    for qos in (0, 1, 0):  # the first one pays for the route as well
        before = spent(node.worker, "publisher")
        publisher.send(Publish(b"t", b"1", qos, packet_id=qos))
        node.worker.settle()
        costs.append(spent(node.worker, "publisher") - before)
    overload(node.worker)
    publisher.send(Publish(b"t", b"1", 1, packet_id=1))
    node.worker.settle()
    judged = node.worker.diagnostics.facts("publisher")["publish"]

    assert [10 + 3 + 2 * 20 + 5, 10 + 3] == costs[1:]
    assert judged is not None
    assert (10 + 3 + 2 * 20 + 5, 2, 40) == (judged["cost"], judged["stored"], judged["for_storing"])


def test_publishers_wait_for_the_rate_of_the_store_and_others_do_not(nodes_of: Callable[..., Durable]) -> None:
    """A shared Redis would be filled as quickly as publishers like; or messages be lost, or all clients wait for it."""
    node = nodes_of(Config(store=Store(messages_per_second=10)))
    for name in ("one", "two"):
        node.subscriber(name, b"t").socket.close()
    publisher, other = node.worker.connect("publisher"), node.worker.connect("other")
    publisher.send(*[Publish(b"t", b"%d" % number, 1, packet_id=number + 1) for number in range(10)])
    found = []
    for _ in range(11):
        node.worker.advance(0.1)
        found += publisher.receive()
        other.send(Publish(b"u", b"x", 1, packet_id=1), Publish(b"t", b"qos 0", 0, True))
        assert [Ack(PUBACK, 1)] == other.receive()
    assert 4 <= len(found) <= 7
    held = node.worker.diagnostics.facts("publisher")["held"]
    assert held is not None and held["gate"] is not None
    assert "weir/0 store rate" == held["gate"]["resource"]
    told = " ".join(explain(node.worker.diagnostics.facts("publisher")))
    assert "clients have as much stored as store.messages_per_second allows" in told
    node.worker.advance(1.5)

    assert [Ack(PUBACK, number + 1) for number in range(10)] == found + publisher.receive()


def test_a_message_that_its_receiver_acknowledges_needs_no_redis(node: Durable) -> None:
    """Traffic between clients that are there would stand still with Redis."""
    client = node.subscriber("client", b"a")
    node.redis.client().config_set("maxmemory", 1)
    node.worker.answered = False
    publisher = node.worker.connect("publisher")
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))
    assert [] == publisher.receive()
    assert [(b"1", 1, False)] == payloads(client)
    client.send(Ack(PUBACK, 1))

    assert [Ack(PUBACK, 1)] == publisher.receive()


def test_no_session_that_lasts_replaces_one_that_does_not_while_it_cannot_be_stored(node: Durable) -> None:
    """A session that ends with its connection ends when it is taken over: then another one begins."""
    short = node.worker.connect("client", V5)
    node.worker.answered = False
    node.redis.kill()
    node.worker.advance(1.1)
    lasting = node.worker.open(V5)
    lasting.send(Connect(V5, "client", False, properties={SESSION_EXPIRY_INTERVAL: EXPIRY}))
    (answer,) = lasting.receive()

    assert isinstance(answer, ConnAck)
    assert 0x88 == answer.code
    assert not short.closed
    assert 0 == node.worker.connect("client", V5).connack.code


@pytest.mark.parametrize("how", ["full", "away", "silent"])
def test_no_session_begins_while_it_cannot_be_stored(node: Durable, how: str) -> None:
    """A client would be told that it has a session that a crash ends, and each CONNECT would leave one behind."""
    client = node.subscriber("client", b"a", version=V5)
    redis = node.redis.client()
    node.worker.answered = False
    if how == "full":
        redis.config_set("maxmemory", 1)
    elif how == "silent":
        node.redis.pause()
    else:
        node.redis.kill()
    client.send(Subscribe(2, [Wanted(b"b", 1)]))
    node.worker.advance(1.1)
    refused = node.worker.open(V5)
    refused.send(Connect(V5, "new", True, properties={SESSION_EXPIRY_INTERVAL: EXPIRY}))
    clean = node.worker.open(V5)
    clean.send(Connect(V5, "client", True, properties={SESSION_EXPIRY_INTERVAL: EXPIRY}))
    answers = [each.receive()[0] for each in (refused, clean)]
    assert [0x88, 0x88] == [each.code for each in answers if isinstance(each, ConnAck)]
    assert 1 == node.worker.worker.protocol.store.count()
    assert not node.worker.connect("short").connack.session_present
    client = node.worker.connect("client", V5, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: EXPIRY})
    assert client.connack.session_present


@pytest.mark.parametrize("connected", [True, False])
def test_expiry_goes_on_while_no_worker_is_there(node: Durable, connected: bool) -> None:
    """A session would live for ever that is never resumed; or begin its time anew with each start."""
    client = node.connect("client", V5, 100)
    if not connected:
        client.socket.close()
    node.worker.settle()
    node.worker.advance(1)
    node.kill(away=60)
    node.worker.advance(38)
    assert 1 == node.worker.worker.protocol.store.count()
    node.worker.advance(2)
    assert connected == (node.worker.worker.protocol.store.count() == 1)
    node.worker.advance(61)

    assert 0 == node.worker.worker.protocol.store.count()
    assert [] == node.redis.client().keys("*:session*")


def test_expiry_does_not_begin_anew_with_each_worker(node: Durable) -> None:
    """The session of a client that was connected when the first worker ended would live for ever."""
    node.connect("client", V5, 100)
    node.worker.advance(1)
    node.kill(away=60)  # it has left when the second worker finds it
    node.kill(away=90)
    assert 1 == node.worker.worker.protocol.store.count()
    node.kill(away=11)
    assert 0 == node.worker.worker.protocol.store.count()


@pytest.mark.parametrize("how", ["clean start", "expiry 0", "expired"])
def test_a_session_that_has_ended_stays_ended(node: Durable, how: str) -> None:
    """Its client would be told that there is a session, and get what it does not expect."""
    client = node.subscriber("client", b"a", version=V5)
    if how == "clean start":
        client = node.connect("client", V5, clean=True)
        assert not client.connack.session_present
    elif how == "expiry 0":
        client.send(Disconnect(0, {SESSION_EXPIRY_INTERVAL: 0}))
        node.worker.settle()
    else:
        client.send(Disconnect(0, {SESSION_EXPIRY_INTERVAL: 1}))
        node.worker.advance(2)
    node.kill()
    node.publish(b"a", b"x")

    client = node.connect("client", V5)
    assert (how == "clean start") == client.connack.session_present
    assert [] == client.receive()


def test_a_clean_session_is_not_stored(node: Durable) -> None:
    """Sessions that end with their connection would cost Redis, and come back."""
    node.worker.connect("client").send(Subscribe(1, [Wanted(b"a", 1)]))
    node.worker.settle()
    assert [] == node.redis.client().keys("*:session*")


def test_sessions_that_end_with_their_worker_are_counted(node: Durable) -> None:
    """After the death of a worker an operator would be told that all sessions, or none, are lost."""

    def counted() -> tuple[int, int]:
        store = node.worker.worker.protocol.store
        return store.count(), store.count_in_memory()

    node.connect("passing", V5, expiry=0)
    assert (1, 1) == counted()
    kept = node.connect("kept", V5)
    assert (2, 1) == counted()
    node.connect("kept", V5, clean=True)  # in place of the former one
    assert (2, 1) == counted()
    kept.socket.close()
    node.kill()
    assert (1, 0) == counted()

    node.connect("kept", V5, expiry=0, clean=True).send(Disconnect())
    node.worker.settle()
    assert (0, 0) == counted()


def test_another_user_does_not_get_the_session(node: Durable) -> None:
    """After a restart anybody could take over any session."""
    # Without password files no user is verified: the stored session belongs to one, the CONNECT to nobody.
    node.subscriber("client", b"a")
    session = node.worker.worker.protocol.store.find("client")
    assert session is not None and session.storage is not None
    session.storage.store_head(EXPIRY, b"somebody", True)
    node.worker.settle()
    node.kill()
    client = node.worker.open(V5)
    client.send(Connect(V5, "client", False))
    answer = client.receive()[0]
    assert isinstance(answer, ConnAck)
    assert CloseReason.CLIENT_ID_OF_OTHER_USER.code == answer.code


def test_many_subscriptions_are_there_before_the_first_publish(node: Durable) -> None:
    """A publish would be acknowledged that a subscription of the next page should have got."""
    client = node.connect("client")
    for number in range(5):
        client.send(Subscribe(number + 1, [Wanted(b"%d/%d" % (number, each), 1) for each in range(100)]))
    assert 5 == len(client.receive())
    client.socket.close()
    node.worker.settle()
    node.kill()
    assert 500 == node.subscriptions
    for number in range(5):
        node.publish(b"%d/99" % number, b"%d" % number)

    assert [b"0", b"1", b"2", b"3", b"4"] == [each[0] for each in payloads(node.connect("client"))]


def test_a_damaged_session_costs_its_client_its_session(node: Durable) -> None:
    """One value that cannot be read would keep the node from starting, or its messages be mixed with the next ones."""
    node.subscriber("client", b"a").socket.close()
    other = node.subscriber("other", b"a")
    other.socket.close()
    node.publish(b"a", b"1")
    redis = node.redis.client()
    (queue,) = redis.keys("*:queue:*:client")
    redis.delete(queue)
    redis.rpush(queue, b"?")
    node.kill()

    assert not node.connect("client").connack.session_present
    assert 1 == node.worker.counters.sessions_damaged
    assert [(b"1", 1, True)] == payloads(node.connect("other"))
    assert 2 == len(redis.keys("*:damaged:*"))


def test_a_session_that_becomes_damaged_is_closed(node: Durable) -> None:
    """Its publishers would wait for ever."""
    client = node.subscriber("client", b"a", version=V5)
    keys = Keys("weir")
    node.redis.client().set(keys.sessions(keys.slice_of(b"client"), b"%016x" % 1).queues + b"client", "?")
    publisher = node.worker.connect("publisher")
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))
    node.worker.advance(1)

    assert [Ack(PUBACK, 1)] == publisher.receive()
    assert CloseReason.SESSION_DAMAGED.code == client.receive()[-1].code  # type: ignore[union-attr]
    assert not node.connect("client", V5).connack.session_present


def test_a_session_that_was_taken_is_closed_and_leaves_nothing(node: Durable) -> None:
    """Two workers would serve one session."""
    client = node.subscriber("client", b"a", version=V5)
    redis = node.redis.client()
    redis.rpush(f"weir:fence:{1:016x}", "client")
    publisher = node.worker.connect("publisher", V5)
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))
    node.worker.settle()
    node.worker.advance(0.3)

    assert CloseReason.SESSION_TAKEN_OVER.code == client.receive()[-1].code  # type: ignore[union-attr]
    assert [Disconnect(CloseReason.RECEIVER_MOVED.code)] == publisher.receive()
    assert node.worker.worker.protocol.store.find("client") is None
    assert [] == redis.keys("*:session:*") + redis.keys("*:queue:*")


def test_the_oldest_messages_of_an_absent_client_make_room(nodes_of: Callable[..., Durable]) -> None:
    """A queue would grow without end in Redis."""
    node = nodes_of(Config(limits=Limits(queue=300)))
    node.subscriber("client", b"a").socket.close()
    node.publish(b"a", *[b"%d" % number for number in range(400)])
    node.kill()
    client = node.connect("client")

    arrived = payloads(client)
    while (session := node.worker.worker.protocol.store.find("client")) is not None and session.waiting():
        client.send(*[Ack(PUBACK, each[1]) for each in arrived[-50:]])
        node.worker.settle()
        arrived += payloads(client)
    assert b"399" == arrived[-1][0]
    assert 300 <= len(arrived) <= 300 + PACK  # a pack stays until all of it is done


def test_a_stored_queue_is_delivered_at_its_pace_across_its_pages(nodes_of: Callable[..., Durable]) -> None:
    """A device that returns would be drowned in its queue, or the queue stand still where a page of it ends."""
    node = nodes_of(Config(delivery=Delivery(replay_messages=1000)))
    node.subscriber("device", b"t").socket.close()
    sent = [b"%d" % number for number in range(3 * READY)]
    node.publish(b"t", *sent)
    node.kill()
    device = node.connect("device")
    found = payloads(device)
    assert 1 <= len(found) <= 100
    for _ in range(30):
        device.send(*[Ack(PUBACK, packet_id) for _, packet_id, _ in found[-100:]])
        node.worker.advance(0.1)
        new = payloads(device)
        assert len(new) <= 100
        found += new

    assert sent == [payload for payload, _, _ in found]


def test_a_client_that_holds_the_memory_loses_its_connection_and_no_message(node: Durable) -> None:
    """Messages would be dropped that were acknowledged to their publishers."""
    client = node.subscriber("client", b"a")
    for _ in range(4):
        client = node.connect("client")
        node.publish(b"a", *[bytes(1000) for _ in range(50)])
    budget = node.worker.queue_budget
    assert budget.used > 100_000
    budget.high = budget.low = 50_000
    node.worker.worker.protocol.shedding.run()
    node.worker.advance(1)

    assert client.receive() and client.closed
    assert 0 == budget.used
    assert 200 == len(payloads(node.connect("client")))


def test_a_client_that_was_away_costs_no_memory_of_messages(node: Durable) -> None:
    """A worker would keep in memory what is stored, for each client that is away."""
    node.subscriber("client", b"a").socket.close()
    node.publish(b"a", *[bytes(1000) for _ in range(200)])
    node.worker.settle()

    assert 0 == node.worker.queue_budget.used
    assert 200 == len(payloads(node.connect("client")))


def test_messages_that_nobody_fetches_end_with_their_time(nodes_of: Callable[..., Durable]) -> None:
    """The store would keep what was published for clients that never come back, also after a restart."""
    node = nodes_of(Config(limits=Limits(queue_ttl=20.0)))
    for name in ("first", "second"):
        node.subscriber(name, b"a").socket.close()
    node.publish(b"a", *[b"%d" % number for number in range(50)])
    node.kill(away=10.0)
    node.publish(b"a", b"new")
    assert 2 == len(node.redis.client().keys("*:queue:*"))
    node.worker.advance(14.0)
    assert 100 == node.worker.counters.dropped_by_reason[DropReason.EXPIRED.label]
    client = node.connect("first")

    assert [b"new"] == [payload for payload, _, _ in payloads(client)]
    node.worker.advance(15.0)
    assert [] == node.redis.client().keys("*:queue:*:second")


# Wills.


def will(delay: int = 0, topic: bytes = b"will") -> Will:
    return Will(topic, b"gone", 1, False, {WILL_DELAY_INTERVAL: delay})


def wills(node: Durable) -> int:
    """How often the will came to the client "watcher" since the last call."""
    client = node.connect("watcher")
    client.send(Subscribe(1, [Wanted(b"will", 1)]))
    packets = client.receive()
    client.send(*[Ack(PUBACK, packet.packet_id) for packet in packets if isinstance(packet, Publish)])
    client.socket.close()
    node.worker.advance(0.3)
    return sum(isinstance(packet, Publish) for packet in packets)


def test_the_will_of_a_client_whose_worker_dies_is_published_once(node: Durable) -> None:
    """Nobody would hear of a client that is gone, or hear it again after each crash."""
    wills(node)
    node.connect("client", V5, will=will())
    node.kill()
    node.worker.advance(1)

    assert 1 == wills(node)
    node.kill()
    node.worker.advance(1)
    assert 0 == wills(node)


def test_a_will_waits_for_its_delay_over_several_workers(node: Durable) -> None:
    """Each worker would begin the delay anew, or publish it too early."""
    wills(node)
    node.connect("client", V5, will=will(60))
    node.kill()  # its delay begins when the next worker finds it
    node.worker.advance(20)
    node.kill(away=20)
    node.worker.advance(18)
    assert 0 == wills(node)
    node.worker.advance(3)

    assert 1 == wills(node)


@pytest.mark.parametrize("new", [None, will(60)])
def test_a_client_that_is_back_in_time_withdraws_its_will(node: Durable, new: Will | None) -> None:
    """A client would be called dead that is there [MQTT-3.1.3-9]."""
    wills(node)
    node.connect("client", V5, will=will(10))
    node.kill()
    node.connect("client", V5, will=new)
    node.worker.advance(20)
    assert 0 == wills(node)
    node.kill()
    node.worker.advance(20)

    assert 0 == wills(node)


def test_a_client_that_says_goodbye_leaves_no_will(node: Durable) -> None:
    """The worker that follows would publish a will that was withdrawn [MQTT-3.14.4-3]."""
    wills(node)
    client = node.connect("client", V5, will=will())
    client.send(Disconnect())
    node.worker.settle()
    node.kill()
    node.worker.advance(1)

    assert 0 == wills(node)


def test_the_end_of_a_session_publishes_its_will_also_while_no_worker_lives(node: Durable) -> None:
    """A will whose delay is longer than the session would be lost with a session that expires unseen."""
    wills(node)
    node.connect("client", V5, expiry=30, will=will(100))
    node.kill()
    node.kill(away=60)
    node.worker.advance(1)

    assert 1 == wills(node)
    assert node.worker.worker.protocol.store.find("client") is None


def test_the_will_of_a_session_without_expiry_is_not_stored_with_it(node: Durable) -> None:
    """It is stored with the claim: whoever publishes the wills of dead workers would publish it a second time."""
    wills(node)
    node.connect("client", V5)
    node.connect("client", V5, expiry=0, will=will())
    node.kill()
    node.worker.advance(1)

    assert 0 == wills(node)


@pytest.mark.parametrize("fields", [b"no will", [b"#", b"", 0, b""], [b"a", b"", 3, b""], [b"a", b"", 1, b"\xff"]])
def test_a_will_that_cannot_be_read_costs_its_own_session(node: Durable, fields: object) -> None:
    """One damaged value would stop all sessions of a worker."""
    node.connect("client", V5, will=will())
    node.subscriber("other", b"a")
    client = node.redis.client()
    (key,) = client.keys("*:session:*client")
    client.hset(key, WILL, msgpack.packb(fields))
    node.kill()

    assert node.connect("other").connack.session_present
    assert not node.connect("client").connack.session_present
    assert 1 == node.worker.worker.base.counters.sessions_damaged


def test_the_store_is_written_while_events_keep_the_loop_busy(node: Durable) -> None:
    """Publishers would wait 10 ms for their acknowledgement: so seldom a busy loop calls tick()."""
    node.subscriber("client", b"a").socket.close()
    node.worker.settle()
    durable = node.worker.worker.protocol.durable
    assert durable is not None
    node.worker.publishing.publish_here(Message(b"a", b"1", 1, False, b"", NEVER), node.worker.clock.now)
    assert durable.may_store()
    node.worker.hub.work(node.worker.clock.now)
    assert not durable.may_store()  # the transaction is on its way
    node.worker.settle()
    assert payloads(node.connect("client")) == [(b"1", 1, False)]
