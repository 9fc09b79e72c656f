# `weir backup` and `weir restore`: the durable state of a node in a file, for another node.
import json
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.mqtt.packets import PUBREC, PUBREL, V5, Ack, ConnAck, Connect, Properties, Publish, Will
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL
from tests.cli.running import weir
from tests.system.nodes import Node, end_and_check
from tests.system.raw import RawClient

pytestmark = pytest.mark.system

LONG: Properties = {SESSION_EXPIRY_INTERVAL: 3600}
READERS = [f"reader-{number}" for number in range(12)]
StartNode = Callable[[str, int], Node]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartNode]:
    """Starts the node of a name, with some workers."""
    started: list[Node] = []

    def start_one(name: str, workers: int) -> Node:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        started.append(Node(folder, workers, node__name=name, store__durability="process"))
        return started[-1]

    yield start_one
    end_and_check(started)


def run(tmp_path: Path, name: str, command: str, file: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run `weir backup` or `weir restore` for the node *name*, with the settings that its start has."""
    node = ["--folder", str(tmp_path / name / "node"), "--name", name, "--set", "store.durability=process"]
    return weir(command, str(file), *node, *options)


def back(node: Node, name: str) -> RawClient:
    """The client *name* again, whose session is there."""
    client = node.stranger()
    client.send(Connect(V5, name, False, 0, properties=LONG))
    answer = client.expect(ConnAck)
    assert (0, True) == (answer.code, answer.session_present), name
    return client


def leave_state(node: Node) -> None:
    """Everything that a node stores: what waits, exchanges of QoS 2 in both directions, a will, a retained message."""
    for name in READERS:
        reader = node.client(name, clean_start=False, properties=LONG)
        reader.subscribe("news/#", qos=2)
        reader.close()
    half = node.client("half", clean_start=False, properties=LONG)
    half.subscribe("half", qos=2)
    writer = node.client("writer", clean_start=False, properties=LONG)
    writer.publish("kept", b"retained", qos=1, retain=True)
    writer.send(Publish(b"half", b"1", 2, False, False, 8))
    writer.expect_ack(PUBREC, 8)
    message = half.expect(Publish)
    half.send(Ack(PUBREC, message.packet_id))
    half.expect_ack(PUBREL, message.packet_id)
    half.close()
    for packet_id, payload in ((7, b"first"), (9, b"second")):
        writer.send(Publish(b"news/1", payload, 2, False, False, packet_id))
        writer.expect_ack(PUBREC, packet_id)
    writer.close()
    will = Will(b"news/will", b"gone", 1, properties={WILL_DELAY_INTERVAL: 3600})
    node.client("mourned", clean_start=False, properties=LONG, will=will).close()


def check_state(node: Node) -> None:
    """Clients find everything that `leave_state()` has left, and a QoS 2 publish that is sent again comes once."""
    half = back(node, "half")
    half.expect_ack(PUBREL, 1)
    writer = back(node, "writer")
    writer.send(Publish(b"news/1", b"first", 2, dup=True, packet_id=7))
    writer.expect_ack(PUBREC, 7)
    for name in READERS:
        reader = back(node, name)
        messages = [reader.take() for _ in range(2)]
        assert [(b"first", 1, True), (b"second", 2, True)] == [
            (one.payload, one.packet_id, one.dup) for one in messages
        ]
        reader.ping()  # there is no third one
    writer.subscribe("kept", qos=1)
    assert b"retained" == writer.take().payload
    folder = ("--folder", str(node.folder / "node"))
    told = json.loads(weir("sessions", "show", "mourned", "--json", *folder).stdout)
    assert ("news/will", 3600) == (told["will_topic"], told["will_delay"])


def test_another_node_goes_on_with_a_backup(start: StartNode, tmp_path: Path) -> None:
    """What a node has acknowledged would be lost with its machine, or a QoS 2 message come twice from the next one."""
    file = tmp_path / "backup"
    former = start("former", 2)
    leave_state(former)
    here = former.client("here", clean_start=False, properties=LONG)
    live = weir("backup", str(tmp_path / "live"), "--json", "--folder", str(former.folder / "node"))
    here.ping()
    former.end()

    done = run(tmp_path, "former", "backup", file)
    restored = run(tmp_path, "next", "restore", file, "--yes")
    node = start("next", 3)
    running = run(tmp_path, "next", "restore", file, "--yes")

    told = json.loads(live.stdout)
    assert (16, 1, True, []) == tuple(told[key] for key in ("sessions", "retained", "running", "unreadable"))
    assert '"what": "backup"' in (former.folder / "node" / "log" / "audit").read_text()
    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.startswith(f"Backed up 16 sessions and 1 retained message to {file} (")
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    assert (0, "Restored 16 sessions and 1 retained message") == (restored.returncode, restored.stdout.split(".")[0])
    assert (2, "", 1) == (running.returncode, running.stdout, len(running.stderr.splitlines()))
    assert "The node next runs" in running.stderr
    check_state(node)
    listed = json.loads(weir("sessions", "list", "--json", "--folder", str(node.folder / "node")).stdout)
    assert 1 < len({one["worker"] for one in listed["sessions"]})  # one of three has none of 16 in 200 starts
    assert [] == list(tmp_path.glob(".*"))


def test_services_go_on_with_a_backup(tmp_path: Path) -> None:
    """What waits for a service would be lost with its machine, and a group of services begin where its log ends."""
    services = '[{client = "service*"}]'
    settings = ("--set", f"application.clients={services}")
    file = tmp_path / "backup"
    nodes: list[Node] = []

    def start_services(name: str) -> Node:
        (tmp_path / name).mkdir(exist_ok=True)
        one = Node(tmp_path / name, 2, node__name=name, store__durability="process", application__clients=services)
        nodes.append(one)
        return one

    try:
        former = start_services("former")
        for name in ("service1", "service2"):
            service = former.client(name, clean_start=False, properties=LONG)
            service.subscribe("$share/group/work/#" if name == "service2" else "news/#", qos=1)
            service.close()
        publisher = former.client("publisher")
        for number in range(20):
            publisher.publish("news/1", b"%d" % number, qos=1)
            publisher.publish(f"work/{number}", b"%d" % number, qos=1)
        publisher.close()
        former.end()
        done = run(tmp_path, "former", "backup", file, *settings)
        restored = run(tmp_path, "next", "restore", file, "--yes", *settings)
        node = start_services("next")
        found: dict[str, list[bytes]] = {}
        for name in ("service1", "service2"):
            client = back(node, name)
            found[name] = [client.take().payload for _ in range(20)]
            client.close()
    finally:
        for one in nodes:
            one.end()

    assert (0, "", 0, "") == (done.returncode, done.stderr, restored.returncode, restored.stderr)
    assert "It has 3 logs of APPLICATION clients." in done.stdout
    assert [b"%d" % number for number in range(20)] == found["service1"]
    assert sorted(found["service1"]) == sorted(found["service2"])
