# APPLICATION clients of whole workers: with a real Redis, and a model of the log.
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import pytest

from broker.config.applications import ApplicationRule
from broker.config.schema import Application, Config
from broker.mqtt.packets import PUBACK, V5, V311, Ack, ConnAck, Connect, Properties, Publish, SubAck, Subscribe, Wanted
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL, USER_PROPERTY
from broker.overload.gate import Gate
from broker.protocol.client_kinds import APPLICATION, DEVICE, NON_PERSISTENT, kind_of
from broker.store.durable.application_logs import LogSettings
from broker.store.durable.application_queue import topic_of
from broker.store.durable.store import DurableStore
from tests.cluster.durable_node import EXPIRY, Durable, StartRedis
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.redis_servers import RunningRedis
from tests.store.durable.model_log import ModelLink, ModelLog
from tests.store.loop import Lines

pytestmark = [pytest.mark.system, pytest.mark.interpreted]  # a real Redis

LASTING: Final[Properties] = {SESSION_EXPIRY_INTERVAL: EXPIRY}
SERVICE: Final = ApplicationRule(client="service*")
CONFIG: Final = Config(application=Application(clients=(SERVICE,)))
MOST: Final = 20


Links = dict[Broker, tuple[ModelLink, Gate]]


def link(log: ModelLog, links: Links, broker: Broker) -> None:
    """Give *broker* a link to *log*."""
    store = broker.worker.links.durable_store
    assert isinstance(store, DurableStore)
    gate = broker.worker.protection.throttle.add_gate("log", broker.clock.now)
    links[broker] = ModelLink(log, broker.identity.incarnation), gate
    store.keep_logs(links[broker][0], gate, LogSettings(most=MOST))


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


def subscriber(broker: Broker, client_id: str, user_properties: list[tuple[str, str]] | None = None) -> Client:
    properties: Properties = {**LASTING, USER_PROPERTY: user_properties or []}
    client = broker.connect(client_id, V5, clean_start=False, properties=properties)
    broker.settle()
    if not client.connack.session_present:
        client.send(Subscribe(1, [Wanted(b"t", 2)]))
        broker.settle()
        assert [SubAck(1, [2])] == client.receive()
    return client


def publish(node: Logged, *payloads: bytes) -> None:
    """Publish, and see the acknowledgements."""
    publisher = node.worker.connect("publisher")
    for number, payload in enumerate(payloads, 1):
        publisher.send(Publish(b"t", payload, 1, packet_id=number))
    node.settle()
    assert [PUBACK] * len(payloads) == [each.kind for each in publisher.receive() if isinstance(each, Ack)]
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


def test_the_kind_of_a_session_stays(node: Logged) -> None:
    """What is in its log would be lost where the rules have changed, or the client comes with other properties."""
    rule = ApplicationRule(property="kind=service")
    kinds = node.worker.worker.attempts.kinds
    kinds._rules = (rule,)
    client = subscriber(node.worker, "me", [("kind", "service")])
    node.settle()
    assert kind(node.worker, "me") == APPLICATION
    client.socket.close()
    node.worker.settle()
    publish(node, b"1")
    client = subscriber(node.worker, "me")

    assert kind(node.worker, "me") == APPLICATION
    assert [b"1"] == read_all(client, node.settle)
    clean = node.worker.connect("me", V5, clean_start=True, properties=LASTING)
    node.settle()
    assert kind(node.worker, "me") == DEVICE
    clean.socket.close()


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
