# Shared subscriptions of APPLICATION clients, of whole workers: with a real Redis, and a model of the log.
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest

from broker.config.applications import Application, ApplicationRule
from broker.config.schema import Config
from broker.insight.pending_answers import PATIENCE
from broker.insight.shared_log_requests import LATE
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V311,
    Ack,
    Properties,
    Publish,
    SubAck,
    Subscribe,
    Unsubscribe,
    Wanted,
)
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL, USER_PROPERTY
from broker.protocol.client_kinds import DEVICE, kind_of
from broker.reasons import FilterRefusal
from broker.session.session import Session
from broker.store.durable import group_looks
from broker.store.durable.group_looks import POLL
from broker.store.durable.lease_scripts import LEASE
from broker.store.durable.leases import EPOCH
from broker.store.durable.log_topics import partition_of, shared_topic_of, topic_of
from broker.store.durable.shared_logs import DurableSharedLogs
from broker.store.durable.shared_readers import ReadGroup
from supervisor.shared_log_commands import together
from tests.cluster.durable_node import EXPIRY
from tests.cluster.test_applications import Links, link, settle
from tests.innode import Node
from tests.inprocess import Client
from tests.insight.operators import Operator
from tests.redis_servers import RunningRedis
from tests.store.durable.model_log import ModelLog, name_of

pytestmark = [pytest.mark.system, pytest.mark.interpreted]  # a real Redis

LASTING: Final[Properties] = {SESSION_EXPIRY_INTERVAL: EXPIRY}
PARTITIONS: Final = 6
SERVICES: Final = Application(
    clients=(ApplicationRule(client="service*"),), shared_partitions=PARTITIONS, shared_filters=3, pack_timeout=2.0
)
CONFIG: Final = Config(application=SERVICES)
FILTER: Final = b"t/#"
GROUP: Final = b"$share/g/" + FILTER
TURNS: Final = 100


class Services:
    """A node, its log, and the services that are connected to it."""

    def __init__(
        self,
        nodes: Callable[..., Node],
        redis: RunningRedis,
        workers: int,
        config: Config = CONFIG,
        log: ModelLog | None = None,
        sources: int = 0,
    ) -> None:
        self.log = log or ModelLog()
        self.links: Links = {}
        prepare = partial(link, self.log, self.links, sources=sources)
        self.node = nodes(workers, config, redis, durable=True, prepare=prepare)
        self.redis = redis
        self.clients: dict[str, Client] = {}
        self.got: dict[str, list[bytes]] = {}
        self.silent: set[str] = set()  # clients that acknowledge nothing
        self._id = 0

    def go_on(self) -> None:
        """All that there is to do is done; clients acknowledge what they got."""
        settle(list(self.node), self.links)
        for name, client in self.clients.items():
            for packet in client.receive():
                if isinstance(packet, Publish):
                    self.got[name].append(packet.payload)
                    if packet.qos and name not in self.silent:
                        client.send(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
                elif isinstance(packet, Ack) and packet.kind == PUBREL:
                    client.send(Ack(PUBCOMP, packet.packet_id))

    def until(self, done: Callable[[], bool]) -> None:
        for _ in range(TURNS):
            if done():
                return
            self.go_on()
        raise AssertionError(f"it does not come: {self.got}, {self.leases()}")

    def connect(self, worker: int, name: str, version: int = V5, kind: str = "") -> Client:
        """*kind*: a user property."""
        properties: Properties = {**LASTING, USER_PROPERTY: [("kind", kind)]} if version == V5 else {}
        client: Client = self.node[worker].connect(name, version, clean_start=False, properties=properties)
        self.node.settle()
        self.clients[name] = client
        self.got.setdefault(name, [])
        return client

    def wait(self, seconds: float) -> None:
        """Let *seconds* pass, in small steps."""
        end = self.node.clock.now + seconds
        while self.node.clock.now < end:
            self.node.clock.now += 0.02
            self.node.settle()

    def subscribe(
        self, worker: int, name: str, *filters: bytes, qos: int = 2, version: int = V5, kind: str = ""
    ) -> Client:
        client = self.connect(worker, name, version, kind)
        client.send(Subscribe(1, [Wanted(each, qos) for each in filters or (GROUP,)]))
        answers: list[object] = []

        def answered() -> bool:
            answers.extend(client.receive())
            return bool(answers)

        for _ in range(TURNS):
            if answered():
                break
            settle(list(self.node), self.links)
        assert [SubAck(1, [qos] * len(filters or (GROUP,)))] == answers
        return client

    def leave(self, name: str) -> None:
        self.clients.pop(name).socket.close()
        self.node.settle()

    def publish(self, worker: int, *payloads: bytes, qos: int = 1) -> None:
        """Publish each under a topic name of its own, and see the acknowledgements."""
        self._id += 1
        publisher = self.node[worker].connect(f"publisher{self._id}")
        for number, payload in enumerate(payloads, 1):
            publisher.send(Publish(b"t/" + payload, payload, qos, packet_id=number))
        acknowledged = 0
        for _ in range(TURNS):
            self.go_on()
            acknowledged += len([each for each in publisher.receive() if isinstance(each, Ack)])
            if acknowledged == len(payloads):
                break
        assert acknowledged == len(payloads)
        publisher.socket.close()
        self.node.settle()

    def kind(self, name: str) -> str:
        (session,) = [found for broker in self.node if (found := broker.session(name)) is not None]
        return kind_of(session)

    def leases(self) -> dict[str, set[int]]:
        """The partitions of each service that is connected, in all of its groups."""
        found: dict[str, set[int]] = {}
        for broker in self.node:
            logs = broker.worker.links.durable_store and broker.worker.links.durable_store.shared_logs
            assert isinstance(logs, DurableSharedLogs)
            for group in logs.groups():
                for member, leases in group.reading():
                    name = member.session.client_id
                    found[name] = found.get(name, set()) | {lease.partition for lease in leases}
        return found

    def balanced(self, *names: str) -> bool:
        leases = [self.leases().get(name, set()) for name in names]
        numbers = sorted(number for each in leases for number in each)
        sizes = [len(each) for each in leases]
        return numbers == list(range(PARTITIONS)) and max(sizes) - min(sizes) <= 1


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


@pytest.fixture
def services(nodes: Callable[..., Node], redis: RunningRedis) -> Callable[..., Services]:
    return lambda workers=2, config=CONFIG: Services(nodes, redis, workers, config)


@pytest.mark.parametrize("qos", [1, 2])
def test_each_message_comes_to_one_member_of_each_group(services: Callable[..., Services], qos: int) -> None:
    """A service would do twice what another did already, or nobody do it."""
    node = services()
    node.subscribe(0, "service1")
    node.subscribe(1, "service2")
    node.subscribe(1, "service3", b"$share/other/" + FILTER)
    node.until(lambda: node.balanced("service1", "service2") and node.balanced("service3"))
    node.publish(0, *numbers(0, 30), qos=qos)
    node.publish(1, *numbers(30, 60), qos=qos)
    node.until(lambda: len(node.got["service3"]) == 60)
    got = node.got["service1"] + node.got["service2"]

    assert sorted(numbers(0, 60)) == sorted(got) == sorted(node.got["service3"])
    assert node.got["service1"] and node.got["service2"]
    topic = shared_topic_of(FILTER)
    assert {name_of(topic, number) for number in range(PARTITIONS)} <= node.log.topics.keys()
    assert not any(node.log.topics[topic_of(name.encode())].records for name in node.clients), "it is in no other log"


def test_messages_are_acknowledged_when_the_log_has_them(services: Callable[..., Services]) -> None:
    """What is acknowledged would be lost with the worker."""
    node = services()
    node.subscribe(0, "service1")
    node.until(lambda: node.balanced("service1"))
    publisher = node.node[1].connect("publisher")
    publisher.send(Publish(b"t/1", b"1", 1, packet_id=1))
    node.node.settle()
    assert [] == publisher.receive()
    assert 1 == len(node.links[node.node[1]][0].unstored)
    node.go_on()

    assert [PUBACK] == [each.kind for each in publisher.receive() if isinstance(each, Ack)]


def test_devices_and_services_of_one_share_name_are_two_groups(services: Callable[..., Services]) -> None:
    """A device would take what a service has to have, and the other way round."""
    node = services()
    node.subscribe(0, "service1")
    node.subscribe(1, "device1")
    node.subscribe(0, "device2")
    node.until(lambda: node.balanced("service1"))
    node.publish(0, *numbers(0, 20))
    node.until(lambda: len(node.got["service1"]) == 20)
    node.go_on()

    assert sorted(numbers(0, 20)) == sorted(node.got["service1"]) == sorted(node.got["device1"] + node.got["device2"])


def test_the_work_of_a_member_that_is_stuck_goes_to_the_others(services: Callable[..., Services]) -> None:
    """What comes behind its messages would wait for it, for however long."""
    node = services()
    node.subscribe(0, "service1", version=V311)
    node.subscribe(0, "service2")
    node.subscribe(1, "service3")
    node.until(lambda: node.balanced("service1", "service2", "service3"))
    node.silent.add("service1")
    node.publish(0, *numbers(0, 30))
    node.until(lambda: len(set(node.got["service1"])) + len(node.got["service2"] + node.got["service3"]) == 30)
    stuck = set(node.got["service1"])
    assert stuck
    node.until(lambda: node.balanced("service2", "service3"))
    node.publish(1, *numbers(30, 60))
    node.until(lambda: len(node.got["service2"] + node.got["service3"]) == 60 - len(stuck))
    assert stuck == set(node.got["service1"])
    node.silent.clear()
    for packet_id in range(1, len(stuck) + 1):
        node.clients["service1"].send(Ack(PUBACK, packet_id))

    node.until(lambda: node.balanced("service1", "service2", "service3"))


def test_what_comes_while_all_members_are_away_waits_in_the_log(services: Callable[..., Services]) -> None:
    """It would be lost; or the next member begin at the end of the log."""
    node = services()
    node.subscribe(0, "service1")
    node.until(lambda: node.balanced("service1"))
    node.publish(0, *numbers(0, 10))
    node.until(lambda: len(node.got["service1"]) == 10)
    node.leave("service1")
    node.publish(1, *numbers(10, 40))
    node.connect(1, "service1")
    node.until(lambda: len(node.got["service1"]) == 40)

    assert sorted(numbers(0, 40)) == sorted(node.got["service1"])


def test_a_group_begins_where_the_log_ends(services: Callable[..., Services]) -> None:
    """It would get what was published before; or not what was published behind its SUBACK."""
    node = services()
    node.subscribe(0, "service1")
    node.publish(0, *numbers(0, 20))
    node.subscribe(1, "service2", b"$share/later/" + FILTER)
    node.publish(0, *numbers(20, 40))
    node.until(lambda: len(node.got["service2"]) >= 20 and len(node.got["service1"]) == 40)

    assert sorted(numbers(20, 40)) == sorted(node.got["service2"])


@pytest.mark.parametrize("how", ["unsubscribes", "ends"])
def test_a_group_without_members_is_forgotten(services: Callable[..., Services], how: str) -> None:
    """A group that begins anew would get all that was published meanwhile; what is stored of it would stay for good."""
    node = services()
    client = node.subscribe(0, "service1")
    node.until(lambda: node.balanced("service1"))
    if how == "unsubscribes":
        client.send(Unsubscribe(2, [GROUP]))
    else:
        node.leave("service1")
        again = node.node[0].connect("service1", V5, clean_start=True)
        node.node.settle()
        again.socket.close()
    stored = node.redis.client()
    node.until(lambda: not stored.keys("*:group:*") and not stored.keys("*:members:*"))
    node.publish(0, *numbers(0, 10))
    records = sum(len(node.log.topics[name_of(shared_topic_of(FILTER), each)].records) for each in range(PARTITIONS))

    assert 0 == records, "nobody is to have it"


def test_what_a_member_leaves_goes_to_another_one(services: Callable[..., Services]) -> None:
    """What it was sent and has not acknowledged would be lost with its session."""
    node = services()
    node.subscribe(0, "service1")
    node.until(lambda: node.balanced("service1"))
    node.silent.add("service1")
    node.publish(0, *numbers(0, 10))
    node.until(lambda: len(node.got["service1"]) == 10)
    node.subscribe(1, "service2")
    node.leave("service1")
    node.node[0].connect("service1", V5, clean_start=True)
    node.until(lambda: len(node.got["service2"]) == 10)

    assert sorted(numbers(0, 10)) == sorted(node.got["service2"])
    node.until(lambda: node.balanced("service2"))


@pytest.mark.parametrize("qos", [1, 2])
def test_partitions_of_a_worker_that_dies_go_to_others(services: Callable[..., Services], qos: int) -> None:
    """They would be read by nobody; or twice, and a QoS 2 message come to two members."""
    node = services()
    node.subscribe(0, "service1")
    node.subscribe(1, "service2")
    node.until(lambda: node.balanced("service1", "service2"))
    node.publish(1, *numbers(0, 20), qos=qos)
    node.until(lambda: len(node.got["service1"] + node.got["service2"]) == 20)
    dead = node.node[0]
    del node.clients["service1"]
    node.node.kill(dead)
    node.links[dead][0].end(most=0, late=0)
    node.publish(0, *numbers(20, 40), qos=qos)
    node.node.start(0)
    node.until(lambda: node.balanced("service2"))
    node.until(lambda: len(node.got["service1"] + node.got["service2"]) >= 40)

    assert sorted(numbers(0, 40)) == sorted(node.got["service1"] + node.got["service2"])


def test_a_client_gets_no_more_than_it_has_asked_for(services: Callable[..., Services]) -> None:
    """[MQTT-4.8.2-3]: the QoS is the lower one of both."""
    node = services(1)
    client = node.subscribe(0, "service1", qos=1)
    node.until(lambda: node.balanced("service1"))
    publisher = node.node[0].connect("publisher")
    for number, qos in enumerate((0, 1, 2)):
        publisher.send(Publish(b"t/a", b"%d" % qos, qos, packet_id=number))
    came: list[Publish] = []
    for _ in range(TURNS):
        settle(list(node.node), node.links)
        came += [each for each in client.receive() if isinstance(each, Publish)]
        if len(came) == 3:
            break

    assert [(b"0", 0), (b"1", 1), (b"2", 1)] == sorted((each.payload, each.qos) for each in came)


def test_a_service_that_subscribes_with_qos_0_reads_no_log(services: Callable[..., Services]) -> None:
    """It would need packet ids for what has none; or what is published be kept for nobody."""
    node = services()
    node.subscribe(0, "service1", qos=0)
    node.publish(1, *numbers(0, 5))
    node.until(lambda: len(node.got["service1"]) == 5)
    assert not node.leases().get("service1")
    node.subscribe(1, "service2", qos=1)
    node.until(lambda: node.balanced("service2"))
    node.publish(1, *numbers(5, 10))

    node.until(lambda: sorted(node.got["service2"]) == numbers(5, 10))


def test_leases_that_redis_has_lost_are_restored(services: Callable[..., Services]) -> None:
    """Partitions would be read by nobody: twelve of thirty topics reached no member."""
    node = services()
    node.subscribe(0, "service1")
    node.subscribe(1, "service2")
    node.until(lambda: node.balanced("service1", "service2"))
    client = node.redis.client()
    for key in [*client.keys("*:group:*"), *client.keys("*:members:*")]:
        client.delete(key)
    for _ in range(50):
        node.go_on()
    assert node.balanced("service1", "service2")
    node.publish(0, *numbers(0, 20))
    node.until(lambda: len(node.got["service1"] + node.got["service2"]) == 20)
    node.leave("service1")

    node.until(lambda: node.balanced("service2"))


def test_shared_subscriptions_of_a_service_are_limited(services: Callable[..., Services]) -> None:
    """A client could have topics made without end."""
    node = services(1)
    client = node.subscribe(0, "service1", *[b"$share/g/%d" % number for number in range(3)])
    client.send(Subscribe(2, [Wanted(b"$share/g/3", 1), Wanted(b"$share/g/1", 1), Wanted(b"plain", 1)]))
    settle(list(node.node), node.links)
    assert [SubAck(2, [FilterRefusal.SHARED_FILTERS.code, 1, 1])] == client.receive()
    node.links[node.node[0]][0].trouble = "the log cannot be reached"
    client.send(Unsubscribe(3, [b"$share/g/1"]))
    client.send(Subscribe(4, [Wanted(b"$share/g/9", 1)]))
    settle(list(node.node), node.links)

    assert SubAck(4, [FilterRefusal.LOG_UNAVAILABLE.code]) in client.receive()


def test_publishers_wait_for_a_topic_that_is_not_made_yet(services: Callable[..., Services]) -> None:
    """What they were answered for would be dropped."""
    node = services()
    node.links[node.node[1]][0].away = True
    node.subscribe(0, "service1")
    publisher = node.node[1].connect("publisher")
    publisher.send(Publish(b"t/1", b"1", 1, packet_id=1))
    node.go_on()
    assert [] == publisher.receive()
    node.links[node.node[1]][0].away = False
    node.until(lambda: node.got["service1"] == [b"1"])

    assert [PUBACK] == [each.kind for each in publisher.receive() if isinstance(each, Ack)]


def test_messages_of_one_topic_name_keep_their_order(services: Callable[..., Services]) -> None:
    """A service would see the state of a device go back."""
    node = services()
    node.subscribe(0, "service1")
    node.subscribe(1, "service2")
    node.until(lambda: node.balanced("service1", "service2"))
    publisher = node.node[0].connect("publisher")
    for number in range(40):
        publisher.send(Publish(b"t/one", b"%d" % number, 1, packet_id=number + 1))
    node.until(lambda: len(node.got["service1"] + node.got["service2"]) == 40)
    (reader,) = [name for name in ("service1", "service2") if node.got[name]]

    assert numbers(0, 40) == node.got[reader]
    assert partition_of(b"t/one", PARTITIONS) in node.leases()[reader]


def test_a_session_that_moves_to_another_worker_leaves_its_partitions(services: Callable[..., Services]) -> None:
    """They would be read at two workers, or wait for the former one."""
    node = services()
    node.subscribe(0, "service1")
    node.subscribe(0, "service2")
    node.until(lambda: node.balanced("service1", "service2"))
    node.publish(0, *numbers(0, 10))
    node.leave("service1")
    node.connect(1, "service1")
    node.until(lambda: node.balanced("service1", "service2"))
    node.publish(1, *numbers(10, 30))
    node.until(lambda: len(node.got["service1"] + node.got["service2"]) == 30)

    assert sorted(numbers(0, 30)) == sorted(node.got["service1"] + node.got["service2"])


def test_operators_are_told_which_partitions_a_member_has_and_why_it_has_none(
    services: Callable[..., Services],
) -> None:
    """Nobody would know why one service does all the work, and another one none."""
    node = services()
    node.subscribe(0, "service1")
    node.subscribe(1, "service2", qos=0)
    node.until(lambda: node.balanced("service1"))

    def shared(worker: int, name: str) -> dict[str, object]:
        log = node.node[worker].diagnostics.facts(name)["log"]
        assert log is not None
        (one,) = log["shared"]
        return dict(one)

    told = shared(0, "service1")
    assert ("g", "t/#", shared_topic_of(FILTER)) == (told["name"], told["filter"], told["topic"])
    assert (PARTITIONS, list(range(PARTITIONS)), "") == (told["partitions"], told["reads"], told["waits"])
    assert "it has subscribed with QoS 0" == shared(1, "service2")["waits"]
    outcomes = Operator(node.node[0]).begin("application", {"client": "service1"})
    node.go_on()
    ((shown, _),) = outcomes
    assert isinstance(shown, dict)
    assert [(list(range(PARTITIONS)), 0)] == [(one["reads"], one["lag"]) for one in shown["shared"]]
    node.leave("service1")
    node.go_on()

    assert ([], "it is not connected") == (shared(0, "service1")["reads"], shared(0, "service1")["waits"])


def test_groups_that_are_idle_cost_next_to_nothing(
    services: Callable[..., Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand groups took some per cent of a core of their worker, whatever was published."""
    node = services(1)
    node.subscribe(0, "service1", GROUP, b"$share/g/u", b"$share/other/u")
    node.subscribe(0, "service2")
    node.until(lambda: node.leases().keys() == {"service1", "service2"})
    node.publish(0, *numbers(0, 10))
    node.until(lambda: len(node.got["service1"] + node.got["service2"]) == 10)
    node.leave("service2")
    node.wait(1)
    looks: list[ReadGroup] = []
    look = ReadGroup.look

    def counted(group: ReadGroup, now: float) -> bool:
        looks.append(group)
        return look(group, now)

    monkeypatch.setattr(ReadGroup, "look", counted)
    node.wait(12)

    assert len(looks) <= 3 * 12 / POLL * 2


def test_a_member_that_is_stuck_is_noticed_at_once(
    services: Callable[..., Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its work would wait until the members of its group are looked at in their turn."""
    monkeypatch.setattr(group_looks, "POLL", 1000.0)
    timeout = 6.0
    node = services(1, Config(application=replace(SERVICES, pack_timeout=timeout)))
    node.subscribe(0, "service1", version=V311)
    node.until(lambda: node.balanced("service1"))
    node.wait(4)
    node.silent.add("service1")
    node.publish(0, *numbers(0, 5))
    node.until(lambda: len(node.got["service1"]) > 0)
    logs = node.node[0].worker.links.durable_store
    assert logs is not None and isinstance(logs.shared_logs, DurableSharedLogs)
    ((member, leases),) = logs.shared_logs.groups()[0].reading()
    assert leases
    deadline = member.queue.sent_since(node.node.clock.now) + timeout
    while node.leases().get("service1"):
        node.wait(0.02)

    assert 0 <= node.node.clock.now - deadline <= 0.2
    client = node.clients["service1"]
    client.send(*[Ack(PUBACK, packet_id) for packet_id in range(1, 6)])
    acknowledged = node.node.clock.now
    while not node.leases().get("service1"):
        node.wait(0.02)
    assert node.node.clock.now - acknowledged <= 0.3


def test_a_member_that_reads_slowly_is_noticed_at_once(
    services: Callable[..., Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ever more would be passed on to it; or nothing more, although it reads again."""
    monkeypatch.setattr(group_looks, "POLL", 1000.0)
    node = services(1, Config(application=replace(SERVICES, pack_timeout=60.0)))
    node.subscribe(0, "service1")
    node.until(lambda: node.balanced("service1"))
    node.wait(4)
    node.silent.add("service1")
    node.publish(0, *numbers(0, 5))
    node.until(lambda: len(node.got["service1"]) > 0)
    monkeypatch.setattr(Session, "writable", lambda session: False)
    node.wait(0.2)
    assert not node.leases().get("service1")
    node.wait(1)
    monkeypatch.undo()
    node.wait(0.3)

    assert node.balanced("service1")


def test_a_member_that_connects_or_leaves_is_noticed_at_once(services: Callable[..., Services]) -> None:
    """What was published would wait for seconds, for a client that is there."""
    node = services(1)
    node.subscribe(0, "service1")
    node.until(lambda: node.balanced("service1"))
    node.wait(4)
    left = node.node.clock.now
    node.leave("service1")
    while node.leases().get("service1"):
        node.wait(0.02)
    assert node.node.clock.now - left <= 0.1
    node.wait(4)
    connected = node.node.clock.now
    node.connect(0, "service1")
    while not node.balanced("service1"):
        node.wait(0.02)

    assert node.node.clock.now - connected <= 0.2


def listed(node: Services, match: str = "") -> list[dict[str, Any]]:
    """What the workers say of groups together, and how old what waits is."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for broker in node.node:
        asked = Operator(broker).begin("shared_logs", {"position": 0, "match": match, "exact": False})
        node.go_on()
        ((page, error),) = asked
        assert isinstance(page, dict) and not error and page["next"] is None
        for part in page["shared"]:
            parts.setdefault(f"{part['name']}/{part['filter']}", []).append(part)
    found = []
    for group in parts.values():
        shown, behind = together(group)
        asked = Operator(node.node[0]).begin("shared_log_oldest", {"topic": shown["topic"], "positions": behind})
        node.go_on()
        ((shown["oldest"], error),) = asked
        assert not error
        found.append(shown)
    return found


def test_operators_are_told_of_groups_with_their_lags(services: Callable[..., Services]) -> None:
    """Nobody would see that a group falls behind before retention deletes what it has not read."""
    node = services()
    node.subscribe(0, "service1")
    node.subscribe(1, "service2")
    node.subscribe(1, "service3", b"$share/other/" + FILTER)
    node.until(lambda: node.balanced("service1", "service2") and node.balanced("service3"))
    node.publish(0, *numbers(0, 10))
    node.until(lambda: len(node.got["service3"]) == 10)
    first, other = listed(node)
    assert ("g", "t/#", shared_topic_of(FILTER)) == (first["name"], first["filter"], first["topic"])
    assert [first] == listed(node, "$share/g/")
    for one, members in ((first, 2), (other, 1)):
        assert (PARTITIONS, members, members) == (one["partitions"], one["members"], one["connected"])
        assert (list(range(PARTITIONS)), 0, None, "") == (one["reads"], one["lag"], one["oldest"], one["trouble"])
    node.leave("service1")
    node.leave("service2")
    old = next(each for each in numbers(10, 40) if partition_of(b"t/" + each, PARTITIONS) == PARTITIONS - 1)
    node.publish(1, old)
    node.node.advance(60)
    node.publish(1, *numbers(40, 50))
    records = [len(node.log.topics[name_of(shared_topic_of(FILTER), each)].records) for each in range(PARTITIONS)]
    first, other = listed(node)

    assert (2, 0, []) == (first["members"], first["connected"], first["reads"])
    assert 0 < first["lag"] < sum(records)
    assert 60 <= first["oldest"] <= 70
    assert (0, None) == (other["lag"], other["oldest"])
    node.links[node.node[0]][0].away = True
    asked = Operator(node.node[0])
    outcomes = asked.begin("shared_logs", {"position": 0, "match": "", "exact": False})
    node.node.clock.now += PATIENCE + 0.1
    asked.pending.expire()
    assert [(None, LATE)] == outcomes


@pytest.mark.parametrize("damage", ["record", "queue", "lease"])
def test_a_session_that_cannot_be_read_leaves_its_groups(services: Callable[..., Services], damage: str) -> None:
    """Its partitions would be read by nobody, and its group never end."""
    node = services()
    node.subscribe(0, "service1")
    node.subscribe(1, "service2")
    node.until(lambda: node.balanced("service1", "service2"))
    node.publish(1, *numbers(0, 20))
    node.until(lambda: len(node.got["service1"] + node.got["service2"]) == 20)
    dead = node.node[0]
    del node.clients["service1"]
    node.node.kill(dead)
    node.links[dead][0].end(most=0, late=0)
    stored: Any = node.redis.client()
    (record,) = stored.keys("*:session:*:service1")
    fields = stored.hkeys(record)
    leases = [field for field in fields if field.startswith(LEASE)]
    assert 3 == len(leases)
    if damage == "record":
        stored.hset(record, "", "no head")
    elif damage == "queue":
        stored.rpush(record.replace(b":session:", b":queue:"), "no pack")
    else:
        stored.hset(record, leases[0], stored.hget(record, leases[0])[:EPOCH] + b"?")
    node.publish(0, *numbers(20, 40))
    node.node.start(0)
    node.until(lambda: node.balanced("service2"))
    node.until(lambda: set(numbers(0, 40)) <= {*node.got["service1"], *node.got["service2"]})

    assert [stored.scard(members) for members in stored.keys("*:members:*")] == [1]
    if damage != "lease":  # then that partition begins anew
        assert 40 == len(node.got["service1"] + node.got["service2"])


def test_members_change_groups_with_their_kind(services: Callable[..., Services]) -> None:
    """A member of both groups, or of none; or one whose partitions nobody reads any more."""
    clients = (ApplicationRule(property="kind=service"),)
    made = services(1, replace(CONFIG, application=replace(SERVICES, clients=clients)))
    made.subscribe(0, "stays", GROUP, kind="service")
    made.subscribe(0, "changes", GROUP, kind="service")
    made.until(lambda: made.balanced("stays", "changes"))
    made.leave("changes")
    made.connect(0, "changes")
    made.until(lambda: made.kind("changes") == DEVICE)
    (members,) = made.redis.client().keys("*:members:*")
    assert 1 == made.redis.client().scard(members)
    made.until(lambda: {*range(PARTITIONS)} == made.leases().get("stays"))
    made.publish(0, *numbers(0, 40))
    made.until(lambda: sorted(made.got["stays"]) == sorted(made.got["changes"]) == sorted(numbers(0, 40)))

    made.leave("changes")
    made.connect(0, "changes", kind="service")
    made.until(lambda: made.balanced("stays", "changes"))
    made.publish(0, *numbers(40, 80))
    made.until(lambda: len(made.got["stays"]) + len(made.got["changes"]) >= 120)
    assert 120 == len(made.got["stays"]) + len(made.got["changes"])
    made.leave("stays")
    made.until(lambda: {*range(PARTITIONS)} == made.leases().get("changes"))
