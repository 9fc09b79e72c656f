# APPLICATION clients of whole workers: with a real Redis, and a model of the log.
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import pytest

from broker.config.applications import SKIP_ALL, Application, ApplicationRule
from broker.config.schema import ApplicationFlush, Config, Delivery, Flush, Overload
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V311,
    Ack,
    ConnAck,
    Connect,
    Properties,
    Publish,
    SubAck,
    Subscribe,
    Wanted,
)
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL, USER_PROPERTY
from broker.overload.gate import Gate
from broker.protocol.client_kinds import APPLICATION, DEVICE, NON_PERSISTENT, kind_of
from broker.reasons import CloseReason, DropReason
from broker.store.durable.application_logs import log_settings
from broker.store.durable.log_topics import topic_of
from broker.store.durable.store import DurableStore
from tests.cluster.durable_node import EXPIRY, Durable, StartRedis
from tests.cluster.talk import subscribed
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.redis_servers import RunningRedis
from tests.store.durable.model_log import ModelLink, ModelLog
from tests.store.loop import Lines

pytestmark = [pytest.mark.system, pytest.mark.interpreted]  # a real Redis

LASTING: Final[Properties] = {SESSION_EXPIRY_INTERVAL: EXPIRY}
SERVICE: Final = ApplicationRule(client="service*")
MOST: Final = 20
FLOOR: Final = 4  # publishes that a gate lets pass in any case
APPLICATION_20: Final = Application(clients=(SERVICE,), max_poll_records=MOST)
CONFIG: Final = Config(application=APPLICATION_20)


Links = dict[Broker, tuple[ModelLink, Gate]]


def link(log: ModelLog, links: Links, broker: Broker, sources: int = 0) -> None:
    """Give *broker* a link to *log*. *sources*: in place of other incarnations, for workers of another node."""
    store = broker.worker.links.durable_store
    assert isinstance(store, DurableStore)
    gate = broker.worker.protection.throttle.add_gate("log", broker.clock.now)
    links[broker] = ModelLink(log, sources + broker.identity.incarnation), gate
    store.keep_logs(links[broker][0], gate, log_settings(broker.worker.base.config.application))


def settle(workers: Sequence[Broker], links: Links) -> None:
    """Have the workers and the log do all there is to do."""
    quiet = 0
    while quiet < 3:
        quiet += 1
        for worker in workers:
            worker.advance(0.1)
            one, gate = links[worker]
            quiet = quiet if one.idle() else 0
            now = worker.clock.now
            one.answer()
            one.store()
            one.tell(now)
            one.give(now)
            if gate.count:
                gate.done(gate.count, gate.bytes, 0.001, now)
                worker.worker.protection.throttle.opened(gate, now)
            worker.settle()


class Logged(Durable):
    """A node with one worker, and a log that outlives it."""

    def __init__(self, redis: RunningRedis, config: Config = CONFIG) -> None:
        self.log = ModelLog()
        self.links: Links = {}
        super().__init__(redis, config)

    def prepare(self, broker: Broker) -> None:
        link(self.log, self.links, broker)

    def settle(self) -> None:
        settle([self.worker], self.links)


@pytest.fixture
def node(start_redis: StartRedis) -> Iterator[Logged]:
    made = Logged(start_redis())
    yield made
    made.worker.close()


@pytest.fixture
def nodes_with(start_redis: StartRedis) -> Iterator[Callable[[Config], Logged]]:
    """Makes nodes of a configuration."""
    made: list[Logged] = []

    def make(config: Config) -> Logged:
        made.append(Logged(start_redis(), config))
        return made[-1]

    yield make
    for one in made:
        one.worker.close()


def subscriber(
    broker: Broker, client_id: str, user_properties: list[tuple[str, str]] | None = None, version: int = V5
) -> Client:
    properties: Properties = {**LASTING, USER_PROPERTY: user_properties or []} if version == V5 else {}
    client = broker.connect(client_id, version, clean_start=False, properties=properties)
    broker.settle()
    if not client.connack.session_present:
        client.send(Subscribe(1, [Wanted(b"t", 2)]))
        broker.settle()
        assert [SubAck(1, [2])] == client.receive()
    return client


def publish(node: Logged, *payloads: bytes, qos: int = 1) -> None:
    """Publish, and see the acknowledgements."""
    publisher = node.worker.connect("publisher")
    for number, payload in enumerate(payloads, 1):
        publisher.send(Publish(b"t", payload, qos, packet_id=number))
    node.settle()
    assert [PUBACK if qos == 1 else PUBREC] * len(payloads) == [
        each.kind for each in publisher.receive() if isinstance(each, Ack)
    ]
    publisher.socket.close()
    node.worker.settle()


def read_all(client: Client, go_on: Callable[[], None]) -> list[bytes]:
    payloads: list[bytes] = []
    while True:
        go_on()
        came = [each for each in client.receive() if isinstance(each, Publish)]
        if not came:
            return payloads
        for each in came:
            payloads.append(each.payload)
            client.send(Ack(PUBACK, each.packet_id))


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def received(client: Client) -> list[tuple[bytes, int, bool]]:
    """What the client has received since the last call: payloads, packet ids, and whether they are duplicates."""
    return [(each.payload, each.packet_id, each.dup) for each in client.receive() if isinstance(each, Publish)]


def silent(nodes_with: Callable[..., Logged], version: int, qos: int = 1, **settings: object) -> tuple[Logged, Client]:
    """A service that has three messages of *qos*, and acknowledges nothing; *settings* of time-outs."""
    node = nodes_with(Config(application=replace(APPLICATION_20, pack_timeout=20.0, **settings)))  # type: ignore[arg-type]
    client = subscriber(node.worker, "service1", version=version)
    node.settle()
    publish(node, b"1", b"2", b"3", qos=qos)
    node.settle()
    assert [(b"1", 1, False), (b"2", 2, False), (b"3", 3, False)] == received(client)
    return node, client


def pass_timeout(node: Logged) -> None:
    for _ in range(22):
        node.worker.advance(1.0)
    node.settle()


def drops(node: Logged) -> int:
    return node.worker.worker.base.counters.dropped_by_reason[DropReason.PACK_TIMEOUT.label]


AGAIN: Final = [(b"1", 1, True), (b"2", 2, True), (b"3", 3, True)]


def test_an_older_client_is_sent_again_what_it_did_not_acknowledge(nodes_with: Callable[..., Logged]) -> None:
    """It would wait for ever for what the network, or a bug of it, has lost; or be sent it without end."""
    node, client = silent(nodes_with, V311)
    node.worker.advance(10.0)
    assert [] == received(client)
    for _ in range(3):
        pass_timeout(node)
        assert AGAIN == received(client)
    pass_timeout(node)
    assert node.worker.session("service1").outbox is None  # type: ignore[union-attr]
    client = subscriber(node.worker, "service1", version=V311)
    node.settle()
    assert AGAIN == received(client)
    pass_timeout(node)

    assert AGAIN == received(client), "retries begin anew with each connection"
    assert 0 == drops(node)


def test_a_client_that_acknowledges_in_time_stays(nodes_with: Callable[..., Logged]) -> None:
    """A client that is slow, and goes on, would be disconnected: each message has its time from when it was sent."""
    node, client = silent(nodes_with, V5)
    for first in (4, 7, 10):
        node.worker.advance(15.0)
        for number in range(first - 3, first):
            client.send(Ack(PUBACK, number))
        publish(node, *numbers(first, first + 3))
        node.settle()
        assert numbers(first, first + 3) == [payload for payload, _, _ in received(client)]
    pass_timeout(node)

    assert CloseReason.PACK_TIMEOUT.code == client.receive()[-1].code  # type: ignore[union-attr]


@pytest.mark.parametrize("commits", [True, False])
def test_a_client_of_mqtt_5_gets_it_over_its_next_connection(nodes_with: Callable[..., Logged], commits: bool) -> None:
    """[MQTT-4.4.0-1]. After the retries, what it does not acknowledge keeps it from all else, or is dropped."""
    node, client = silent(nodes_with, V5, ack_retries=2, commit_after_retries=commits)
    for _ in range(2):
        pass_timeout(node)
        assert CloseReason.PACK_TIMEOUT.code == client.receive()[-1].code  # type: ignore[union-attr]
        client = subscriber(node.worker, "service1")
        node.settle()
        assert AGAIN == received(client)
    pass_timeout(node)

    connected = node.worker.session("service1").outbox is not None  # type: ignore[union-attr]
    assert commits is connected
    assert (3 if commits else 0) == drops(node)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_skipped_is_dropped_and_counted(nodes_with: Callable[..., Logged], qos: int) -> None:
    """The client would never hear of it; or at QoS 2 take another message under the packet id for the same one."""
    node, client = silent(nodes_with, V5, qos, ack_strategy=SKIP_ALL)
    pass_timeout(node)
    assert 3 == drops(node)
    publish(node, b"4")
    node.settle()
    came = client.receive()
    assert [b"4"] == [each.payload for each in came if isinstance(each, Publish)]
    released = [each.packet_id for each in came if isinstance(each, Ack) and each.kind == PUBREL]
    assert ([1, 2, 3] if qos == 2 else []) == released
    client.send(Ack(PUBACK, 4))
    for packet_id in released:
        client.send(Ack(PUBCOMP, packet_id))
    node.settle()
    pass_timeout(node)

    session = node.worker.session("service1")
    assert session is not None and session.outbox is not None
    assert 0 == session.inflight()


def test_a_packet_id_that_is_not_given_back_ends_the_connection(nodes_with: Callable[..., Logged]) -> None:
    """Nothing is left to be dropped, and the client has no packet id for what follows."""
    node, client = silent(nodes_with, V5, 2, ack_strategy=SKIP_ALL)
    pass_timeout(node)
    assert 3 == len([each for each in client.receive() if isinstance(each, Ack) and each.kind == PUBREL])
    pass_timeout(node)

    assert CloseReason.PACK_TIMEOUT.code == client.receive()[-1].code  # type: ignore[union-attr]
    assert 3 == drops(node)


def kind(broker: Broker, client_id: str) -> str:
    session = broker.session(client_id)
    assert session is not None
    return kind_of(session)


def test_what_comes_while_a_service_is_away_waits_in_its_log(node: Logged) -> None:
    """It would wait in Redis, up to the limit of a queue; or be lost with a worker."""
    client = subscriber(node.worker, "service1")
    node.settle()
    publish(node, b"0")
    assert [b"0"] == read_all(client, node.settle)
    client.socket.close()
    node.worker.settle()
    for first in range(1, 101, 20):
        publish(node, *numbers(first, first + 20))
    assert kind(node.worker, "service1") == APPLICATION
    assert node.worker.session("service1").waiting() == 0  # type: ignore[union-attr]
    assert len(node.log.bodies(topic_of(b"service1"))) > 5
    node.kill(away=1.0)
    publish(node, b"101")
    client = subscriber(node.worker, "service1")
    node.settle()
    assert MOST == node.worker.session("service1").inflight()  # type: ignore[union-attr]

    assert numbers(1, 102) == read_all(client, node.settle)
    assert kind(node.worker, "service1") == APPLICATION


def test_other_clients_have_no_log(node: Logged) -> None:
    """Each device would cost a partition."""
    client = subscriber(node.worker, "device")
    publish(node, b"1")
    assert kind(node.worker, "device") == DEVICE
    assert {} == node.log.topics
    assert [b"1"] == read_all(client, node.settle)


def test_each_kind_of_client_has_its_own_strategy_of_delivery(nodes_with: Callable[[Config], Logged]) -> None:
    """Many messages to services would cost a send each, or a message to a device would wait for more of them."""
    always, buffered, hour = Flush(flush="always"), Flush(flush="buffered", buffered_msg_count=3), 3600.0
    of_services = ApplicationFlush(flush="buffered", buffered_msg_count=3)
    strategies = {
        "service1": Delivery(application=of_services, device=always, non_persistent=always, buffered_hold=hour),
        "device": Delivery(device=buffered, non_persistent=always, buffered_hold=hour),
        "passing": Delivery(non_persistent=buffered, device=always, buffered_hold=hour),
    }
    for held, delivery in strategies.items():
        node = nodes_with(replace(CONFIG, delivery=delivery))
        clients = {name: subscriber(node.worker, name) for name in ("service1", "device")}
        clients["passing"] = node.worker.connect("passing", V5)
        node.worker.settle()
        clients["passing"].send(Subscribe(1, [Wanted(b"t", 2)]))
        node.settle()
        assert [SubAck(1, [2])] == clients["passing"].receive()

        publish(node, b"1", b"2")
        for name, client in clients.items():
            assert (2 if name != held else 0) == len(received(client)), (held, name)
        publish(node, b"3")
        for name, client in clients.items():
            assert (1 if name != held else 3) == len(received(client)), (held, name)


def test_a_session_that_ends_with_its_connection_has_no_log_and_is_logged_once(node: Logged) -> None:
    """What waits for it would never be read; and whoever set it up would not know why it is lost."""
    log = Lines()
    node.worker.worker.attempts.kinds._log = log
    for _ in range(2):
        client = node.worker.connect("service1", V311, clean_start=True)
        node.settle()
        assert kind(node.worker, "service1") == NON_PERSISTENT
        client.socket.close()
        node.worker.settle()

    assert {} == node.log.topics
    assert [{"client": "service1"}] == log.named("application_not_persistent")


def test_a_service_that_comes_back_at_another_worker_has_its_log_there(
    nodes: Callable[..., Node], redis: RunningRedis
) -> None:
    """Its session would be that of a device there, or what is in the log come twice."""
    log, links = ModelLog(), Links()
    node = nodes(2, CONFIG, redis, durable=True, prepare=partial(link, log, links))
    go_on = partial(settle, list(node), links)
    here, there = node
    client = subscriber(here, "service1")
    go_on()
    publisher = there.connect("publisher")
    for number in range(1, 6):
        publisher.send(Publish(b"t", b"%d" % number, 1, packet_id=number))
        go_on()
    assert 5 == len([each for each in publisher.receive() if isinstance(each, Ack)])
    assert 5 == len([each for each in client.receive() if isinstance(each, Publish)])
    client.socket.close()
    go_on()
    client = there.open(V5)
    node.settle()

    client.send(Connect(V5, "service1", False, 0, None, None, None, LASTING))
    came = client.receive()
    for _ in range(50):
        go_on()
        came += client.receive()
        if len(came) > 5:
            break

    assert isinstance(came[0], ConnAck) and came[0].session_present
    assert [(b"%d" % number, number, True) for number in range(1, 6)] == [
        (each.payload, each.packet_id, each.dup) for each in came if isinstance(each, Publish)
    ]
    assert here.session("service1") is None
    assert kind(there, "service1") == APPLICATION
    for number in range(6, 9):
        publisher.send(Publish(b"t", b"%d" % number, 1, packet_id=number))
    for number in range(1, 6):
        client.send(Ack(PUBACK, number))
    assert numbers(6, 9) == read_all(client, go_on)


def test_a_log_that_stands_still_stops_publishers_at_other_workers_who_publish_for_it_and_no_others(
    nodes: Callable[..., Node], redis: RunningRedis
) -> None:
    """All that publish for durable sessions of that worker would wait; or what waits for its log fill its memory."""
    log, links = ModelLog(), Links()
    config = replace(CONFIG, overload=Overload(gate_floor=FLOOR))
    node = nodes(2, config, redis, durable=True, prepare=partial(link, log, links))
    here, there = node
    subscriber(here, "service1")
    settle(list(node), links)
    device = here.connect("device", V5, clean_start=False, properties=LASTING)
    subscribed(device, "d")
    node.settle()
    (peer,) = there.mesh.peers
    store, gate = peer.confirming.store, peer.confirming.log
    assert store is not None and gate is not None
    publisher, other = there.connect("publisher"), there.connect("other")
    for number in range(1, FLOOR):
        publisher.send(Publish(b"t", b"x", 1, packet_id=number))
        node.settle()
    assert (0, FLOOR - 1, True) == (store.count, gate.count, gate.open)
    assert (0, 0) == waits(there, "publisher")
    for number in range(FLOOR, FLOOR + 3):
        publisher.send(Publish(b"t", b"x", 1, packet_id=number))
        node.settle()
    assert (0, FLOOR, False) == (store.count, gate.count, gate.open), "it is not read any more"
    assert (0, 1) == waits(there, "publisher")
    other.send(Publish(b"d", b"x", 1, packet_id=1))
    node.settle()
    node.advance(0.1)
    assert [PUBACK] == [each.kind for each in other.receive() if isinstance(each, Ack)]
    links[here][0].unstored[0].appender.late(here.clock.now)
    node.settle()
    assert (FLOOR - 1, True) == (gate.count, gate.open), "others have overtaken it"
    settle(list(node), links)

    assert FLOOR + 2 == len([each for each in publisher.receive() if isinstance(each, Ack)])
    assert (0, 0, True) == (store.count, gate.count, gate.open)


def waits(broker: Broker, client_id: str) -> tuple[int, int]:
    """How many publishes of the client wait for sessions that are read, and for logs, so that it is not read."""
    facts = broker.diagnostics.facts(client_id)
    return facts["long"], facts["logged"]


def connect(broker: Broker, client_id: str, version: int) -> int:
    """The code of the CONNACK."""
    client = broker.open(version)
    properties = LASTING if version == V5 else {}
    client.send(Connect(version, client_id, False, 0, None, None, None, properties))
    broker.settle()
    (answer,) = [each for each in client.receive() if isinstance(each, ConnAck)]
    client.socket.close()
    broker.settle()
    return answer.code


def test_a_new_service_is_refused_while_no_log_can_be_made(node: Logged) -> None:
    """Publishers would wait for a log that there is not; and who has a session, or needs no log, be refused as well."""
    broker = node.worker
    assert 0 == connect(broker, "service1", V5)
    node.settle()
    node.links[broker][0].trouble = "the log cannot be reached"
    codes = [
        connect(broker, client_id, version)
        for client_id in ("service1", "service2", "device")
        for version in (V5, V311)
    ]
    broker.settle()

    reason = CloseReason.LOG_UNAVAILABLE
    assert [0, 0, reason.code, 3, 0, 0] == codes
    ended = broker.diagnostics.facts("service2")["refused"]
    assert ended is not None and (reason.label, "the log cannot be reached") == (ended["reason"], ended["detail"])
    assert broker.session("service2") is None
    node.links[broker][0].trouble = ""
    assert 0 == connect(broker, "service2", V5)


def test_the_number_of_sessions_with_logs_is_bounded(nodes_with: Callable[[Config], Logged]) -> None:
    """A client under ever new names would make topics without end; or one that has a session be refused."""
    node = nodes_with(replace(CONFIG, application=replace(APPLICATION_20, sessions=2)))
    broker = node.worker
    codes = [connect(broker, client_id, V5) for client_id in ("service1", "service2", "service3", "device", "service1")]
    codes.append(connect(broker, "service3", V311))
    node.settle()
    reason = CloseReason.APPLICATION_LIMIT
    assert [0, 0, reason.code, 0, 0, 3] == codes
    assert {topic_of(b"service1"), topic_of(b"service2")} == set(node.log.topics)
    ended = broker.diagnostics.facts("service3")["refused"]
    assert ended is not None and reason.label == ended["reason"]
    again = broker.connect("service2", V5, clean_start=True, properties=LASTING)
    assert 0 == again.connack.code
    ends = broker.session("service1")
    assert ends is not None
    broker.worker.attempts.sessions.end(ends, broker.clock.now)

    assert 0 == connect(broker, "service3", V5)
