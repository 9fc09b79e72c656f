# Clients that are of another kind with their next CONNECT: a worker whose sessions are stored in a real Redis, and a
# model of the log.
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest
from structlog.testing import capture_logs

from broker.config.applications import Application, ApplicationRule
from broker.config.schema import Config
from broker.mqtt.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, V5, Ack, Properties, Publish, SubAck, Subscribe, Wanted
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL, USER_PROPERTY
from broker.protocol.client_kinds import APPLICATION, DEVICE, PARTING, kind_of
from broker.protocol.kind_changes import TOO_MANY, TOO_MANY_SHARED
from broker.session.session import Session
from broker.store.durable.log_topics import topic_of
from tests.cluster.durable_node import EXPIRY, StartRedis
from tests.cluster.test_applications import Logged
from tests.innode import stored
from tests.inprocess import Client

pytestmark = [pytest.mark.system, pytest.mark.interpreted]  # a real Redis

MOST: Final = 20
RULE: Final = ApplicationRule(property="kind=service")
CONFIG: Final = Config(application=Application(clients=(RULE,), max_poll_records=MOST))
SERVICE: Final = [("kind", "service")]
NAME: Final = "one"
TOPIC: Final = topic_of(NAME.encode())


@pytest.fixture
def node(start_redis: StartRedis) -> Iterator[Logged]:
    made = Logged(start_redis(), CONFIG)
    yield made
    made.worker.close()


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def come(node: Logged, service: bool, filter: bytes = b"t", name: str = NAME) -> Client:
    """The client connects, of that kind; it subscribes if its session is new."""
    properties: Properties = {SESSION_EXPIRY_INTERVAL: EXPIRY, USER_PROPERTY: SERVICE if service else []}
    client = node.worker.connect(name, V5, clean_start=False, properties=properties)
    node.settle()
    if not client.connack.session_present:
        client.send(Subscribe(1, [Wanted(filter, 2)]))
        node.settle()
        assert [SubAck(1, [2])] == client.receive()
    return client


def leave(node: Logged, client: Client) -> None:
    client.socket.close()
    node.settle()


def publish(node: Logged, first: int, last: int, qos: int = 1) -> None:
    """Publish numbers, and see that they are acknowledged."""
    publisher = node.worker.connect("publisher")
    for number in range(first, last):
        publisher.send(Publish(b"t", b"%d" % number, qos, packet_id=number + 1))
    node.settle()
    acknowledged = [each.packet_id for each in publisher.receive() if isinstance(each, Ack)]
    assert [*range(first + 1, last + 1)] == acknowledged
    publisher.socket.close()
    node.settle()


def take(node: Logged, client: Client, turns: int = 100) -> list[bytes]:
    """What comes to the client, which acknowledges all of it."""
    payloads: list[bytes] = []
    for _ in range(turns):
        came = client.receive()
        for each in came:
            if isinstance(each, Publish):
                payloads.append(each.payload)
                client.send(Ack(PUBACK if each.qos == 1 else PUBREC, each.packet_id))
            elif isinstance(each, Ack) and each.kind == PUBREL:
                client.send(Ack(PUBCOMP, each.packet_id))
        node.settle()
        if not came:
            break
    return payloads


def session(node: Logged) -> Session:
    found = node.worker.session(NAME)
    assert found is not None
    return found


def kind(node: Logged) -> str:
    return kind_of(session(node))


def has_topic(node: Logged) -> bool:
    return TOPIC in node.log.topics


@pytest.mark.parametrize("qos", [1, 2])
def test_what_waits_for_a_device_comes_ahead_of_the_log_that_it_gets(node: Logged, qos: int) -> None:
    """Messages that were acknowledged would be lost, or overtaken."""
    leave(node, come(node, service=False))
    publish(node, 0, 150, qos)
    assert kind(node) == DEVICE
    assert not has_topic(node)
    client = come(node, service=True)
    assert kind(node) == APPLICATION
    assert has_topic(node)
    publish(node, 150, 200, qos)
    assert len(node.log.bodies(TOPIC)) > 0

    assert numbers(0, 200) == take(node, client)
    leave(node, client)
    publish(node, 200, 210, qos)
    node.kill()
    assert kind(node) == APPLICATION
    assert numbers(200, 210) == take(node, come(node, service=True))


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_device_had_in_flight_comes_again_when_it_is_a_service(node: Logged, qos: int) -> None:
    """What its former connection had not acknowledged would be lost; or QoS 2 come twice."""
    device = come(node, service=False)
    publish(node, 0, 10, qos)
    got = [each for each in device.receive() if isinstance(each, Publish)]
    assert numbers(0, 10) == [each.payload for each in got]
    for each in got[:3]:
        device.send(Ack(PUBACK if qos == 1 else PUBREC, each.packet_id))
    node.settle()
    service = come(node, service=True)  # it takes the session over from the connection that is there
    publish(node, 10, 15, qos)

    assert numbers(3, 15) == take(node, service)
    assert 0 == session(node).inflight()
    assert kind(node) == APPLICATION


def test_a_device_that_became_a_service_may_die_with_its_worker_at_once(node: Logged) -> None:
    """Between the two kinds, what is stored would be of neither."""
    leave(node, come(node, service=False))
    publish(node, 0, 5)
    properties: Properties = {SESSION_EXPIRY_INTERVAL: EXPIRY, USER_PROPERTY: SERVICE}
    for turns in range(6):
        client = node.worker.connect(NAME, V5, clean_start=False, properties=properties)
        for _ in range(turns):
            node.worker.advance(0.001)
        client.socket.close()
        node.kill()
        node.settle()
    publish(node, 5, 10)

    assert numbers(0, 10) == take(node, come(node, service=True))
    assert kind(node) == APPLICATION


@pytest.mark.parametrize("qos", [1, 2])
def test_a_service_that_is_to_be_a_device_is_sent_all_of_its_log_first(node: Logged, qos: int) -> None:
    """What is in the log would be lost with it, or be overtaken by what comes later."""
    leave(node, come(node, service=True))
    publish(node, 0, 100, qos)
    client = come(node, service=False)
    assert kind(node) == PARTING
    publish(node, 100, 120, qos)
    assert has_topic(node)

    assert numbers(0, 120) == take(node, client)
    node.worker.advance(1.0)
    node.settle()
    assert kind(node) == DEVICE
    assert not has_topic(node)
    publish(node, 120, 130, qos)
    assert numbers(120, 130) == take(node, client)
    leave(node, client)
    publish(node, 130, 140, qos)
    node.kill()
    assert kind(node) == DEVICE
    publish(node, 140, 150, qos)
    assert numbers(130, 150) == take(node, come(node, service=False))
    assert not has_topic(node)


def test_a_service_may_be_a_device_and_a_service_again(node: Logged) -> None:
    """What is stored of the former log would be taken for that of the next one."""
    published = 0
    expected: list[bytes] = []
    got: list[bytes] = []
    for turn in range(6):
        client = come(node, service=turn % 2 == 0)
        publish(node, published, published + 30)
        expected += numbers(published, published + 30)
        published += 30
        got += take(node, client)
        node.worker.advance(1.0)
        node.settle()
        assert kind(node) == (APPLICATION if turn % 2 == 0 else DEVICE)
        leave(node, client)
        if turn in (2, 3):
            node.kill()
        publish(node, published, published + 30)
        expected += numbers(published, published + 30)
        published += 30
    got += take(node, come(node, service=True))

    assert expected == got


def test_a_client_that_does_not_read_keeps_its_log(node: Logged) -> None:
    """Its messages would be moved to Redis, which has room for few; or be lost."""
    leave(node, come(node, service=True))
    publish(node, 0, 100)
    client = come(node, service=False)
    for _ in range(5):
        node.worker.advance(1.0)
        node.settle()
    assert kind(node) == PARTING
    leave(node, client)
    node.kill()
    publish(node, 100, 110)
    assert kind(node) == APPLICATION
    assert has_topic(node)

    assert numbers(0, 110) == take(node, come(node, service=False))
    node.worker.advance(1.0)
    node.settle()
    assert kind(node) == DEVICE


def test_a_service_that_was_to_be_a_device_may_stay_one(node: Logged) -> None:
    """It would lose its log, although its last CONNECT says that it is to have one."""
    leave(node, come(node, service=True))
    publish(node, 0, 50)
    come(node, service=False)
    client = come(node, service=True)
    assert kind(node) == APPLICATION
    assert numbers(0, 50) == take(node, client)
    node.worker.advance(2.0)
    node.settle()

    assert kind(node) == APPLICATION
    assert has_topic(node)


def test_a_log_is_left_while_messages_keep_coming(node: Logged) -> None:
    """A service that always has something to do would keep its log; or what is on its way to the log be lost."""
    client = come(node, service=True)
    come(node, service=False)
    client = come(node, service=False)
    publisher = node.worker.connect("publisher")
    got: list[bytes] = []
    sent = 0
    while kind(node) != DEVICE:
        assert sent < 500
        for _ in range(3):
            publisher.send(Publish(b"t", b"%d" % sent, 1, packet_id=sent + 1))
            sent += 1
        node.worker.advance(0.01)
        link, _ = node.links[node.worker]
        link.give(node.worker.clock.now)  # the log is late: something is always on its way to it, or back
        link.tell(node.worker.clock.now)
        link.store()
        link.answer()
        node.worker.settle()
        for each in client.receive():
            if isinstance(each, Publish):
                got.append(each.payload)
                client.send(Ack(PUBACK, each.packet_id))
        node.worker.settle()
    got += take(node, client)

    assert numbers(0, sent) == got
    assert sent == len([each for each in publisher.receive() if isinstance(each, Ack)])


def test_rules_that_change_take_effect_with_the_next_connect(node: Logged) -> None:
    """Clients would keep the kind that they had for as long as their sessions."""
    leave(node, come(node, service=False))
    publish(node, 0, 10)
    rule = ApplicationRule(client="o*")
    node.config = stored(replace(CONFIG, application=replace(CONFIG.application, clients=(rule,))))
    node.kill()
    assert kind(node) == DEVICE
    client = come(node, service=False)
    assert kind(node) == APPLICATION
    assert numbers(0, 10) == take(node, client)
    leave(node, client)
    publish(node, 10, 20)
    node.config = stored(replace(CONFIG, application=replace(CONFIG.application, clients=())))
    node.kill()

    client = come(node, service=False)
    assert numbers(10, 20) == take(node, client)
    node.worker.advance(1.0)
    node.settle()
    assert kind(node) == DEVICE


@pytest.mark.parametrize(("limit", "why"), [("sessions", TOO_MANY), ("shared_filters", TOO_MANY_SHARED)])
def test_a_device_stays_one_beyond_the_limits(start_redis: StartRedis, limit: str, why: str) -> None:
    """A client that chooses its kind could make topics without end."""
    application = replace(CONFIG.application, **{limit: 1})  # type: ignore[arg-type]
    node = Logged(start_redis(), replace(CONFIG, application=application))
    try:
        if limit == "sessions":
            come(node, service=True, name="another")
        client = come(node, service=False)
        for packet_id, filter in enumerate((b"$share/g/a", b"$share/g/b"), 2):
            client.send(Subscribe(packet_id, [Wanted(filter, 1)]))
            node.settle()
            assert [SubAck(packet_id, [1])] == client.receive()
        leave(node, client)
        publish(node, 0, 5)
        with capture_logs() as lines:
            client = come(node, service=True)

        assert kind(node) == DEVICE
        assert [why] == [line["why"] for line in lines if line["event"] == "client_kind_kept"]
        assert numbers(0, 5) == take(node, client)
    finally:
        node.worker.close()


def test_a_second_connect_waits_as_well(node: Logged) -> None:
    """It would be given a session whose messages are not all in one place yet."""
    device = come(node, service=False)
    publish(node, 0, 5)
    properties: Properties = {SESSION_EXPIRY_INTERVAL: EXPIRY, USER_PROPERTY: SERVICE}
    for _ in range(3):  # all of them before anything is stored
        node.worker.connect(NAME, V5, clean_start=False, properties=properties)
    device.receive()
    client = come(node, service=True)
    publish(node, 5, 10)

    assert numbers(0, 10) == take(node, client)
    assert kind(node) == APPLICATION


def test_a_session_may_end_while_it_changes(node: Logged) -> None:
    """What it leaves would be there for its client's next session."""
    device = come(node, service=False)
    publish(node, 0, 50)
    device.receive()
    properties: Properties = {SESSION_EXPIRY_INTERVAL: EXPIRY, USER_PROPERTY: SERVICE}
    node.worker.connect(NAME, V5, clean_start=False, properties=properties)
    client = node.worker.connect(NAME, V5, clean_start=True, properties=properties)
    node.settle()
    assert not client.connack.session_present
    client.send(Subscribe(1, [Wanted(b"t", 2)]))
    node.settle()
    assert [SubAck(1, [2])] == client.receive()
    publish(node, 50, 60)
    assert numbers(50, 60) == take(node, client)
    leave(node, client)
    node.kill()

    assert [] == take(node, come(node, service=True))
