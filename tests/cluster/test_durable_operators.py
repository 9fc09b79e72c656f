# What operators see and repair of sessions that are stored: with a real Redis, and workers that end.
import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from broker.config.schema import Config, Limits
from broker.insight.pending_answers import PATIENCE
from broker.insight.session_requests import LATE, waiting_bytes
from broker.mqtt.packets import PUBACK, PUBREC, PUBREL, V5, Ack, Properties, Publish
from broker.mqtt.properties import MESSAGE_EXPIRY_INTERVAL
from broker.routing.filters import matches
from broker.store.durable.queue import DurableQueue
from broker.store.durable.queue_browser import MOVES
from broker.store.redis import connection
from tests.cluster.durable_node import Durable
from tests.inprocess import Client
from tests.insight.operators import Operator
from tests.insight.test_queue_requests import exported, purge
from tests.store.durable.older_packs import older

pytestmark = pytest.mark.system  # real servers


def keys_of(node: Durable, client_id: str) -> list[Any]:
    """The keys in Redis whose names end in the client id."""
    return cast(list[Any], node.redis.client().keys(f"*:{client_id}"))


def test_a_stored_session_is_listed_with_what_redis_has_of_it(node: Durable) -> None:
    """An operator would see nothing of what fills Redis."""
    node.subscriber("client", b"a/#").socket.close()
    node.publish(b"a/b", b"1", b"22")

    node.kill(away=5.0)
    first = Operator(node.worker).ask("sessions", {"position": 0, "match": "client", "away": True})
    assert [] == first["sessions"]
    second = Operator(node.worker).ask("sessions", {"position": first["next"], "match": "client", "away": True})
    (one,) = second["sessions"]

    assert None is second["next"]
    assert (True, 2, 9, 1) == (one["durable"], one["waiting"], one["waiting_bytes"], one["subscriptions"])
    assert 5.0 <= one["seconds"] < 7.0
    assert one["expiry"] == pytest.approx(one["expires_in"] + one["seconds"], abs=0.2)


def test_a_dropped_session_leaves_no_key_behind(node: Durable) -> None:
    """The session would be back with the next worker, or its messages stay in Redis for ever."""
    node.subscriber("client", b"a/#").socket.close()
    node.publish(b"a/b", b"1", b"22")
    assert 3 == len(keys_of(node, "client"))  # the session, its queue, its owner

    assert True is Operator(node.worker).ask("session_drop", {"client": "client"})

    assert [] == keys_of(node, "client")
    node.kill()
    assert not node.connect("client").connack.session_present


def test_a_drop_that_redis_does_not_confirm_says_so(node: Durable) -> None:
    """The operator would believe that all is gone, although a worker that dies now brings the session back."""
    node.subscriber("client", b"a/#").socket.close()
    node.publish(b"a/b", b"1")
    operator = Operator(node.worker)
    node.redis.pause()
    node.worker.answered = False

    said = operator.begin("session_drop", {"client": "client"})
    node.worker.advance(PATIENCE)
    operator.pending.expire()

    assert [(None, LATE)] == said
    assert None is node.worker.session("client")
    redis_is_back(node)
    assert [] == keys_of(node, "client")


def test_a_stored_queue_is_exported_in_order_and_stays(nodes_of: Callable[..., Durable]) -> None:
    """A copy of a stored queue would lack messages, or the look at it have them delivered twice or never."""
    node = nodes_of()
    node.subscriber("reader", b"#").socket.close()
    sent = [b"%d" % number for number in range(300)] + [bytes(50_000) + b"%d" % number for number in range(4)]
    node.publish(b"t", *sent)

    assert sent == [each["payload"] for each in exported(Operator(node.worker))]
    node.kill(away=9.0)
    found = exported(Operator(node.worker))

    assert sent == [each["payload"] for each in found]
    assert {True} == {8.0 < each["age"] < 12.0 for each in found}
    assert sent == [payload for payload, _, _ in received(node, node.connect("reader"))]


@pytest.mark.parametrize("before", [25, 60])
def test_a_queue_that_an_older_build_has_begun_goes_on(node: Durable, before: int) -> None:
    """With an upgrade a queue would be taken for damaged, or read from a wrong place."""
    node.subscriber("reader", b"#").socket.close()
    for number in range(60):
        node.publish(b"t", b"%d" % number)
    key, client = queue_of(node).key(), node.redis.client()
    packs: list[Any] = client.lrange(key, 0, -1)
    assert 60 == len(packs)
    client.delete(key)
    client.rpush(key, *map(older, packs[:before]), *packs[before:])

    node.kill()

    sent = [b"%d" % number for number in range(60)]
    assert sent == [each["payload"] for each in exported(Operator(node.worker))]
    node.publish(b"t", b"60")
    assert [*sent, b"60"] == [payload for payload, _, _ in received(node, node.connect("reader"))]


def test_a_stored_queue_is_purged_by_topic_for_good(node: Durable) -> None:
    """What was removed would come back with the next worker, or the rest be lost, in disorder, or expire too early."""
    node.subscriber("reader", b"#").socket.close()
    for number in range(30):
        node.publish(b"good/x", b"%d" % number)
        node.publish(b"bad/x", b"bad")
    node.publish(b"bad/x", *[b"bad"] * 300)

    assert 330 == purge(Operator(node.worker), "bad/#")

    session = node.worker.session("reader")
    assert session is not None
    assert (30, {"purged": 330}) == (session.waiting(), session.drops)
    assert waiting_bytes(session) == 6 * 30 + 10 + 2 * 20
    assert [b"%d" % number for number in range(30)] == [each["payload"] for each in exported(Operator(node.worker))]
    node.kill()
    node.publish(b"good/x", b"30")
    client = node.connect("reader")
    assert [b"%d" % number for number in range(31)] == [payload for payload, _, _ in received(node, client)]
    assert [] == node.redis.client().lrange(queue_of(node).key(), 0, -1)


def test_a_stored_queue_is_purged_of_all_that_waits(nodes_of: Callable[..., Durable]) -> None:
    """An operator could not empty Redis, or would take from a client what it is about to acknowledge."""
    node = nodes_of(Config(limits=Limits(inflight=2)))
    reader = node.subscriber("reader", b"#")
    node.publish(b"t", *[b"%d" % number for number in range(500)])
    assert 2 == len(received(node, reader, acknowledged=False))

    assert 498 == purge(Operator(node.worker))

    node.publish(b"t", b"new")
    session = node.worker.session("reader")
    assert session is not None
    assert (2, 1) == (session.inflight(), session.waiting())
    reader.send(Ack(PUBACK, 1), Ack(PUBACK, 2))
    assert [b"new"] == [payload for payload, _, _ in received(node, reader)]
    node.worker.advance(0.3)
    assert [] == node.redis.client().lrange(queue_of(node).key(), 0, -1)


def test_what_was_sent_before_the_client_left_is_not_purged(nodes_of: Callable[..., Durable]) -> None:
    """A client would hold a message that the broker does not know any more."""
    node = nodes_of(Config(limits=Limits(inflight=2)))
    reader = node.subscriber("reader", b"#")
    node.publish(b"t", *[b"%d" % number for number in range(5)])
    assert 2 == len(received(node, reader, acknowledged=False))
    reader.socket.close()
    node.worker.advance(0.3)

    assert [True, True, False, False, False] == [each["sent"] for each in exported(Operator(node.worker))]
    assert 3 == purge(Operator(node.worker))

    assert [(b"0", 1, True), (b"1", 2, True)] == received(node, node.connect("reader"))


def test_a_queue_that_was_purged_goes_on(node: Durable) -> None:
    """The queue would look for packs that were removed, and take its session for damaged."""
    node.subscriber("reader", b"#").socket.close()
    for number in range(8):
        node.publish(b"good", b"%d" % number)
        node.publish(b"bad", *[b"bad"] * 20)

    assert 160 == purge(Operator(node.worker), "bad")

    client = node.connect("reader")
    assert [b"%d" % number for number in range(8)] == [payload for payload, _, _ in received(node, client)]
    node.publish(b"good", b"8")
    assert [b"8"] == [payload for payload, _, _ in received(node, client)]
    node.worker.advance(0.3)
    assert (0, 0) == (queue_of(node).count, node.redis.client().llen(queue_of(node).key()))


def test_a_client_that_acknowledges_during_a_purge_gets_the_rest(nodes_of: Callable[..., Durable]) -> None:
    """Its queue would read packs while they are replaced: send what was removed, or remove others in their place."""
    node = nodes_of(Config(limits=Limits(inflight=200)))
    client = node.subscriber("reader", b"#")
    for number in range(20):
        node.publish(b"bad", *[b"bad"] * 20)
        node.publish(b"good", b"%d" % number)
    first = received(node, client, acknowledged=False)
    assert 200 == len(first)

    asked = {"client": "reader", "after": 0, "last": 0, "filter": "bad"}
    client.send(*[Ack(PUBACK, packet_id) for _, packet_id, _ in first])
    node.redis.pause()
    node.worker.answered = False
    outcome = Operator(node.worker).begin("queue_purge", asked)
    node.worker.settle()  # the queue has nothing ready any more, and waits for its next packs
    redis_is_back(node)
    messages = [payload for payload, _, _ in [*first, *received(node, client)]]

    ((page, error),) = outcome
    assert "" == error and isinstance(page, dict)
    assert [b"%d" % number for number in range(20)] == [each for each in messages if each != b"bad"]
    assert 0 < page["messages"] == 20 * 20 - messages.count(b"bad")
    node.worker.advance(0.3)
    assert (0, 0) == (queue_of(node).count, node.redis.client().llen(queue_of(node).key()))


def ending(node: Durable, seconds: int) -> None:
    """Have 150 messages wait for "reader": of each three, the first ends after *seconds*, and the second is bad."""
    node.subscriber("reader", b"#").socket.close()
    publisher = node.worker.connect("publisher", V5)
    for number in range(150):
        topic = (b"old", b"bad", b"good")[number % 3]
        ends: Properties = {MESSAGE_EXPIRY_INTERVAL: seconds} if topic == b"old" else {}
        publisher.send(Publish(topic, b"%d" % number, 1, packet_id=number + 1, properties=ends))
        if number % 3 == 0:  # a pack has parts of two of the three
            node.worker.settle()
    node.worker.settle()


def good_is_left(node: Durable) -> None:
    session = node.worker.session("reader")
    assert session is not None
    assert (50, {"purged": 50, "expired": 50}) == (session.waiting(), session.drops)
    assert 50 * 4 + sum(len(b"%d" % number) for number in range(2, 150, 3)) == waiting_bytes(session)
    good = [b"%d" % number for number in range(2, 150, 3)]
    assert good == [each["payload"] for each in exported(Operator(node.worker))]
    assert good == [payload for payload, _, _ in received(node, node.connect("reader"))]
    node.worker.advance(0.3)
    assert (0, 0) == (queue_of(node).count, node.redis.client().llen(queue_of(node).key()))


@pytest.mark.parametrize("first", ("sweep", "purge"))
def test_a_purge_and_a_sweep_change_a_queue_one_after_the_other(node: Durable, first: str) -> None:
    """Both would replace the same packs: what one has removed comes back, or packs are replaced by others."""
    ending(node, 10)
    store = node.worker.worker.links.durable_store
    assert store is not None
    asked = {"client": "reader", "after": 0, "last": 0, "filter": "bad"}
    while queue_of(node).due - store.wall() > 0.3:
        node.worker.advance(0.1)
    node.redis.pause()
    node.worker.answered = False
    outcome = Operator(node.worker).begin("queue_purge", asked) if first == "purge" else []
    node.worker.advance(0.5)
    assert (first == "sweep") == (store.expiry.sweeps == 1)
    if first == "sweep":
        outcome = Operator(node.worker).begin("queue_purge", asked)
    node.worker.settle()
    redis_is_back(node)
    node.worker.advance(3.0)

    ((page, error),) = outcome
    assert "" == error and isinstance(page, dict)
    assert 0 < page["messages"]
    assert 50 == page["messages"] + purge(Operator(node.worker), "bad")
    good_is_left(node)


def test_what_shares_a_pack_with_purged_messages_keeps_its_expiry_and_age(node: Durable) -> None:
    """Messages that an operator wants to keep would expire too early, or never."""
    node.subscriber("reader", b"#").socket.close()
    publisher = node.worker.connect("publisher", V5)
    node.worker.clock.now += 1 / 3  # a time in seconds is a fraction on the clock of the worker
    for number in range(9):
        topic = (b"good", b"bad", b"good")[number % 3]
        expiry: Properties = {MESSAGE_EXPIRY_INTERVAL: 600 + number}
        publisher.send(Publish(topic, b"%d" % number, 1, packet_id=number + 1, properties=expiry))
    node.worker.settle()
    node.worker.advance(10.0)
    before = {each["payload"]: each for each in exported(Operator(node.worker))}

    assert 3 == purge(Operator(node.worker), "bad")

    after = {each["payload"]: each for each in exported(Operator(node.worker))}
    assert {b"%d" % number for number in range(9) if number % 3 != 1} == after.keys()
    for payload, message in after.items():
        assert [before[payload]["expires_in"], before[payload]["age"]] == [message["expires_in"], message["age"]]


def test_an_exchange_of_qos_2_is_not_purged(node: Durable) -> None:
    """The mark of a message whose client has sent PUBREC would stay in Redis, and its packet id be lost."""
    reader = node.subscriber("reader", b"#", qos=2)
    node.publish(b"t", b"1", b"2", qos=2)
    assert [b"1", b"2"] == [each.payload for each in reader.receive() if isinstance(each, Publish)]
    reader.send(Ack(PUBREC, 2))
    assert [PUBREL] == [each.kind for each in reader.receive() if isinstance(each, Ack)]
    reader.socket.close()
    node.kill()

    assert [b"1"] == [each["payload"] for each in exported(Operator(node.worker))]
    assert 0 == purge(Operator(node.worker))

    reader = node.connect("reader")
    packets = reader.receive()
    assert [b"1"] == [each.payload for each in packets if isinstance(each, Publish)]
    assert [(PUBREL, 2)] == [(each.kind, each.packet_id) for each in packets if isinstance(each, Ack)]


def test_a_queue_is_neither_read_nor_purged_while_redis_is_away(node: Durable) -> None:
    """The command would hang, or the queue never be read again."""
    node.subscriber("reader", b"#").socket.close()
    node.publish(b"t", *[b"%d" % number for number in range(300)])
    operator = Operator(node.worker)
    node.redis.pause()
    node.worker.answered = False
    asked = {"client": "reader", "after": 0, "last": 0}

    read = operator.begin("queue_page", {**asked, "payloads": True})
    purged = operator.begin("queue_purge", {**asked, "filter": ""})
    node.worker.advance(PATIENCE)
    operator.pending.expire()

    assert ["Redis does not give the messages: Redis did not answer in time."] * 2 == [
        error for _, error in [*read, *purged]
    ]
    redis_is_back(node)
    assert 300 == len(received(node, node.connect("reader")))


def test_a_session_that_ends_meanwhile_is_not_purged(node: Durable) -> None:
    """Packs of a session that has ended would be written into the queue of the next one."""
    node.subscriber("reader", b"#").socket.close()
    node.publish(b"good", b"1")
    node.publish(b"bad", b"2")
    operator = Operator(node.worker)
    asked = {"client": "reader", "after": 0, "last": 0, "filter": "bad"}

    outcome = operator.begin("queue_purge", asked)
    operator.begin("session_drop", {"client": "reader"})
    node.worker.settle()

    assert [(None, MOVES)] == outcome
    assert [] == keys_of(node, "reader")


@pytest.mark.parametrize("seed", range(6))
def test_no_message_is_lost_or_comes_back_whatever_an_operator_does(
    nodes_of: Callable[..., Durable], seed: int
) -> None:
    """To look at a queue or to purge it would change what else is delivered, in one of many orders of events."""
    OperatorStory(nodes_of(Config(limits=Limits(inflight=5))), random.Random(seed)).run(25)


class OperatorStory:
    """A client that comes, acknowledges and leaves, workers that are killed, and an operator; and what must be true."""

    def __init__(self, node: Durable, chance: random.Random) -> None:
        self._node = node
        self._chance = chance
        self._expected: list[tuple[int, bytes]] = []  # numbers and topics, in order
        self._may_return: set[int] = set()  # after a crash: acknowledged, or purged while a pack was in memory
        self._purged: set[int] = set()  # for good
        self._published = 0
        self._sent_to = 0  # the last number that this worker has sent
        self._client: Client | None = None
        self._unacknowledged: list[tuple[int, int]] = []  # packet ids and numbers
        node.subscriber("reader", b"#").socket.close()

    def run(self, steps: int) -> None:
        steps_of = [self._publish] * 4 + [self._come, self._leave, self._kill]
        steps_of += [self._acknowledge, self._purge, self._export] * 2
        for _ in range(steps):
            self._chance.choice(steps_of)()
            self._receive()
        self._leave()
        self._check_rest()

    def _publish(self) -> None:
        topic = self._chance.choice([b"a/1", b"a/2", b"b/1"])
        count = self._chance.choice([1, 3, 150])
        size = self._chance.choice([0, 0, 500] if count > 100 else [0, 0, 3000, 70_000])
        numbers = range(self._published + 1, self._published + count + 1)
        self._published += count
        self._expected += [(number, topic) for number in numbers]
        self._node.publish(topic, *[b"%06d" % number + bytes(size) for number in numbers])

    def _come(self) -> None:
        if self._client is None:
            self._client = self._node.connect("reader")

    def _leave(self) -> None:
        if self._client is not None:
            self._client.socket.close()
            self._node.worker.advance(0.2)
            self._client, self._unacknowledged = None, []

    def _kill(self) -> None:
        self._node.kill()
        self._client, self._unacknowledged, self._sent_to = None, [], 0

    def _acknowledge(self) -> None:
        done, self._unacknowledged = self._unacknowledged[:2], self._unacknowledged[2:]
        for packet_id, number in done:
            assert self._client is not None
            self._client.send(Ack(PUBACK, packet_id))
            self._may_return.add(number)
        numbers = {number for _, number in done}
        self._expected = [each for each in self._expected if each[0] not in numbers]
        self._node.worker.settle()

    def _purge(self) -> None:
        filter = self._chance.choice(["", "a/#", "a/1", "b/+"])
        waiting = [each for each in self._expected if each[0] > self._sent_to]
        gone = {number for number, topic in waiting if not filter or matches(filter.encode(), topic)}
        removed = purge(Operator(self._node.worker), filter)
        assert len(gone) <= removed <= len(gone) + len(self._may_return)
        self._expected = [each for each in self._expected if each[0] not in gone]
        (self._purged if self._client is None else self._may_return).update(gone)

    def _export(self) -> None:
        waiting = [number for number, _ in self._expected if self._client is None or number > self._sent_to]
        self._check([int(each["payload"][:6]) for each in exported(Operator(self._node.worker))], waiting)

    def _receive(self) -> None:
        if self._client is not None:
            for payload, packet_id, _ in received(self._node, self._client, acknowledged=False):
                number = int(payload[:6])
                assert number not in self._purged
                self._unacknowledged.append((packet_id, number))
                self._sent_to = max(self._sent_to, number)

    def _check_rest(self) -> None:
        """The client gets everything else, and nothing is left."""
        node = self._node
        rest = [int(payload[:6]) for payload, _, _ in received(node, node.connect("reader"))]
        node.worker.advance(0.5)
        assert sorted(rest) == rest
        self._check(rest, [number for number, _ in self._expected])
        queue, budget = queue_of(node), node.worker.queue_budget
        assert (0, 0, 0, 0, 0) == (queue.count, queue.size, queue.waiting_bytes, budget.messages, budget.used)
        assert 0 == node.redis.client().llen(queue.key())

    def _check(self, found: list[int], wanted: list[int]) -> None:
        assert wanted == [number for number in found if number in set(wanted)]
        assert set(found) - set(wanted) <= self._may_return


def redis_is_back(node: Durable) -> None:
    """Redis answers again, and the worker has connections to it."""
    node.redis.go_on()
    worker = node.worker
    registry, durable = worker.registry_client, worker.worker.links.durable_store
    assert registry is not None and durable is not None
    while registry.commands.state != connection.READY or not durable.takes_sessions(worker.clock.now):
        worker.advance(0.1)
    worker.answered = True
    worker.settle()


def received(node: Durable, client: Client, acknowledged: bool = True) -> list[tuple[bytes, int, bool]]:
    """All that comes to *client*, with packet ids and whether it is a duplicate."""
    found: list[tuple[bytes, int, bool]] = []
    quiet = 0
    while quiet < 4:
        messages = [each for each in client.receive() if isinstance(each, Publish)]
        quiet = 0 if messages else quiet + 1
        for each in messages:
            found.append((each.payload, each.packet_id, each.dup))
            if acknowledged:
                client.send(Ack(PUBACK, each.packet_id))
        if not messages:
            node.worker.advance(0.1)
    return found


def queue_of(node: Durable) -> DurableQueue:
    session = node.worker.session("reader")
    assert session is not None
    queue = session.queue()
    assert isinstance(queue, DurableQueue)
    return queue
