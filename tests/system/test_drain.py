# Nodes that are drained: their clients go to the other node, and nothing that was acknowledged is lost.
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.mqtt.packets import V5, V311, ConnAck, Connect, Disconnect, Properties, Publish
from broker.mqtt.properties import SERVER_REFERENCE
from tests.cli.running import weir
from tests.redis_servers import RunningRedis
from tests.system import node
from tests.system.cluster import LASTING, Cluster
from tests.system.nodes import Node
from tests.system.processes import HOST, free_port
from tests.system.raw import RawClient

pytestmark = [pytest.mark.weir_only("a matter of Weir's nodes"), pytest.mark.slow]

USE_ANOTHER_SERVER = 0x9C


class Drained:
    """Two nodes, n1 and n2, which say how clients reach them."""

    def __init__(self, cluster: Cluster) -> None:
        self.a, self.b = cluster.nodes

    def weir(self, *words: str, at: Node | None = None) -> Any:
        return weir(*words, "--folder", str((at or self.a).folder / "node"))

    def json(self, *words: str) -> Any:
        return json.loads(self.weir(*words, "--json").stdout)


def start(folder: Path, redis: RunningRedis, **settings: Any) -> Iterator[Cluster]:
    cluster = Cluster(folder, redis, settings)
    try:
        for number in (1, 2):
            port = free_port()
            admin: dict[str, Any] = {"admin__enabled": "true", "admin__port": free_port()}
            cluster.start(number, port=port, node__reference=f"{HOST}:{port}", **admin)
        cluster.wait_joined()
        yield cluster
    finally:
        cluster.end()


@pytest.fixture
def cluster(start_redis: Callable[..., RunningRedis], tmp_path: Path) -> Iterator[Cluster]:
    yield from start(tmp_path, start_redis())


@pytest.fixture
def two(cluster: Cluster) -> Drained:
    return Drained(cluster)


def ready(at: Node) -> tuple[int, str]:
    """What a load balancer is told."""
    port = next(line["port"] for line in at.lines("listening") if line["transport"] == "admin")
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/health/ready", timeout=5) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().strip()


def reference(packet: object) -> tuple[int, object]:
    """The code of a CONNACK or DISCONNECT, and the server that it names."""
    assert isinstance(packet, (ConnAck, Disconnect)), packet
    return packet.code, packet.properties.get(SERVER_REFERENCE)


def refused(at: Node, version: int, properties: Properties | None = None) -> ConnAck:
    client = at.stranger(version)
    client.send(Connect(version, "new", True, 0, properties=properties or {}))
    return client.expect(ConnAck)


def test_a_drained_node_sends_its_clients_to_the_other_one(two: Drained) -> None:
    """Clients would learn by an error that their node ends, all at one time, and would not know where to go."""
    a, b = two.a, two.b
    old, new = a.client("old", version=V311), a.client("new")
    there = b.client("there")

    drained = two.weir("drain", "n1", "--wait", "20")

    assert (0, "The node n1 has no client.") == (drained.returncode, drained.stdout.splitlines()[-1])
    assert [] == old.expect_end()
    (goodbye,) = new.expect_end()
    assert (USE_ANOTHER_SERVER, f"{HOST}:{b.port}") == reference(goodbye)
    assert (USE_ANOTHER_SERVER, f"{HOST}:{b.port}") == reference(refused(a, V5))
    assert 3 == refused(a, V311).code
    assert (503, "draining") == ready(a)
    assert (200, "ready") == ready(b)
    there.ping()
    assert "drained" == two.json("status")["state"]
    assert {"n1": "drained", "n2": ""} == {one["node"]: one["drain"] for one in node.ask(b.control, "nodes")["nodes"]}
    assert 2 == a.wait_for("node_drained")["clients"]
    told = two.weir("why", "new").stdout
    assert "drains the node" in told and f"{HOST}:{b.port}" in told


def test_an_undrained_node_takes_clients_again_and_keeps_those_it_has(start_redis: Any, tmp_path: Path) -> None:
    """An operator who has drained the wrong node could only restart it, and lose all of its clients."""
    for cluster in start(tmp_path, start_redis(), drain__fastest=1, drain__slowest=1):
        two = Drained(cluster)
        clients = [two.a.client(f"client-{number}") for number in range(20)]

        assert "is being drained" in two.weir("drain", "n1").stdout
        twice = two.weir("drain", "n1", "--wait", "0.3")
        ended = two.weir("undrain", "n1")
        again = two.weir("undrain", "n1")

        assert (1, True) == (twice.returncode, "already being drained" in twice.stdout)
        assert "clients of the node n1 are left" in twice.stderr
        assert (0, "The node n1 takes clients again.") == (ended.returncode, ended.stdout.strip())
        assert "was not drained" in again.stdout
        assert (200, "ready") == ready(two.a)
        two.a.client("new").ping()
        assert len(clients) - 5 <= two.json("status")["totals"]["gauges"]["connected"]


def test_a_drain_of_the_other_node_says_how_many_clients_are_left(start_redis: Any, tmp_path: Path) -> None:
    """An operator would wait without knowing whether anybody leaves."""
    for cluster in start(tmp_path, start_redis(), drain__fastest=1, drain__slowest=1):
        two = Drained(cluster)
        clients = [two.b.client(f"client-{number}") for number in range(20)]

        def reported(control: Path = two.a.control, count: int = len(clients)) -> bool:
            return bool(node.ask(control, "drain_progress", node="n2")["clients"] == count)

        two.a.wait_until(reported, "hear of the clients")

        drained = two.weir("drain", "n2")
        waited = two.weir("drain", "n2", "--wait", "0.3")

        assert (0, True) == (drained.returncode, drained.stdout.splitlines()[-1].endswith(" clients are left."))
        assert (1, True) == (waited.returncode, "clients of the node n2 are left" in waited.stderr)


def test_a_worker_that_is_replaced_goes_on_draining(two: Drained) -> None:
    """A crash would open a node to clients that is about to be stopped."""
    two.weir("drain", "n1", "--wait", "20")

    two.weir("restart")

    assert "drained" == two.json("status")["state"]
    assert [USE_ANOTHER_SERVER] * 8 == [refused(two.a, V5).code for _ in range(8)]


def test_the_other_node_can_be_drained_from_here(two: Drained) -> None:
    """Whoever works at one machine of a cluster would have to log in to each of the others."""
    client = two.b.client("client")

    drained = two.weir("drain", "n2", "--wait", "20")

    assert (0, "The node n2 has no client.") == (drained.returncode, drained.stdout.splitlines()[-1])
    (goodbye,) = client.expect_end()
    assert (USE_ANOTHER_SERVER, f"{HOST}:{two.a.port}") == reference(goodbye)
    assert (503, "draining") == ready(two.b)
    assert 0 == two.weir("undrain", "n2").returncode
    assert (200, "ready") == ready(two.b)


def test_what_cannot_be_drained_is_said_in_a_sentence(two: Drained) -> None:
    """An operator would wait for a drain that never ends, or leave all clients without a node."""
    unknown = two.weir("drain", "n3")
    assert (1, "weir: No node 'n3' runs. Nodes of this cluster: n1, n2.") == (
        unknown.returncode,
        unknown.stderr.strip(),
    )
    two.weir("drain", "n2")
    client = two.a.client("client")

    only = two.weir("drain", "n1")
    assert (2, True) == (only.returncode, "No other node takes clients" in only.stderr)
    client.ping()
    forced = two.weir("drain", "n1", "--force", "--wait", "20")

    assert 0 == forced.returncode
    (goodbye,) = client.expect_end()
    assert (USE_ANOTHER_SERVER, None) == reference(goodbye)


class Listener:
    """A client with a stored session that goes where it is sent, and takes all of its messages."""

    def __init__(self, nodes: list[Node], name: str) -> None:
        self._nodes = {f"{HOST}:{one.port}": one for one in nodes}
        self.came: list[bytes] = []
        self.went: list[object] = []
        self._client = nodes[0].client(name, properties=LASTING)
        self._client.subscribe("topic", qos=1)
        self._name = name

    def run(self) -> None:
        while True:
            packet = self._client.receive()
            if isinstance(packet, Publish):
                self._client.acknowledge(packet)
                self.came.append(packet.payload)
                if packet.payload == b"end":
                    return
            else:
                code, place = reference(packet)
                assert USE_ANOTHER_SERVER == code
                self.went.append(place)
                self._client = self._nodes[str(place)].stranger()
                assert self._client.connect(self._name, clean_start=False, properties=LASTING).session_present


def publish_until(client: RawClient, done: threading.Event) -> list[bytes]:
    """Publish numbers one after another; all are acknowledged."""
    sent: list[bytes] = []
    while not done.is_set() or len(sent) < 100:
        sent.append(b"%d" % len(sent))
        client.publish("topic", sent[-1], 1)
    client.publish("topic", b"end", 1)
    return sent


def test_stored_sessions_go_on_at_the_other_node_without_loss(two: Drained) -> None:
    """A drain before each upgrade would lose what clients are to get, or hold up those who publish for them."""
    a, b = two.a, two.b
    away = a.client("away", properties=LASTING)
    away.subscribe("topic", qos=1)
    away.disconnect()
    listeners = [Listener([a, b], f"listener-{number}") for number in range(10)]
    threads = [threading.Thread(target=one.run) for one in listeners]
    for thread in threads:
        thread.start()
    done, sent = threading.Event(), list[bytes]()
    publisher = b.client("publisher")
    publishing = threading.Thread(target=lambda: sent.extend(publish_until(publisher, done)))
    publishing.start()

    assert 0 == two.weir("drain", "n1", "--wait", "20").returncode
    a.wait_until(lambda: not node.ask(a.control, "drain_progress", node="n1")["sessions"], "give its sessions away")
    a.process.terminate()
    assert 0 == a.process.wait(20)
    done.set()
    for thread in [*threads, publishing]:
        thread.join(30)

    assert [f"{HOST}:{b.port}"] * len(listeners) == [place for one in listeners for place in one.went]
    for one in listeners:
        assert [*sent, b"end"] == list(dict.fromkeys(one.came))
    back = b.stranger()
    assert back.connect("away", clean_start=False, properties=LASTING).session_present
    assert sent == [message.payload for message in back.take_until(b"end")]


def test_a_node_with_more_clients_sends_the_surplus_away(two: Drained) -> None:
    """A node that was restarted would have no clients for days, and the others too many."""
    clients = [two.a.client(f"client-{number}") for number in range(60)]
    two.b.client("there").ping()
    two.a.wait_until(lambda: known(two.a) == [61, 61] == known(two.b), "know all clients")

    told = two.json("rebalance")

    assert 25 <= told["clients"] <= 30 and ["n2"] == told["asked"]
    two.a.wait_for("rebalanced", 2)
    assert told["clients"] == sum(line["clients"] for line in two.a.lines("rebalanced"))
    gone = [client for client in clients if not alive(client)]
    assert told["clients"] == len(gone)
    assert two.a.wait_for("client_closed")["reason"] == "rebalanced"


def known(at: Node) -> list[int]:
    """How many clients each worker knows of, in the cluster."""
    workers = node.ask(at.control, "overload")["workers"]
    reports = [one["overload"]["reports"]["heard"] for one in workers]
    told = [one["statistics"] for one in node.status(at.control)["workers"]]
    own = [each["gauges"]["connected"] if each else 0 for each in told]  # {}: it has just begun
    return [mine + sum(heard["clients"] for heard in each) for mine, each in zip(own, reports, strict=True)]


def alive(client: RawClient) -> bool:
    try:
        client.ping()
    except (AssertionError, OSError):
        return False
    return True
