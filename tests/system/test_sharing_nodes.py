# Nodes that share a Redis: their names, and what they have to agree on.
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from broker.mqtt.packets import Properties
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from tests.redis_servers import RunningRedis
from tests.system import node
from tests.system.nodes import Node, end_and_check
from tests.system.processes import PATIENCE, free_port, packages, refused_start

pytestmark = pytest.mark.weir_only("a matter of Weir's processes")

StartRedis = Callable[..., RunningRedis]


@pytest.fixture
def start_sharing(start_redis: StartRedis, tmp_path: Path) -> Any:
    """Starts a node of a name, in a folder of its own, that uses one Redis with all others."""
    url = f"unix://{start_redis().socket}"
    nodes: list[Node] = []

    def start(name: str, folder: str = "", **settings: Any) -> Node:
        path = tmp_path / (folder or name)
        path.mkdir(exist_ok=True)
        workers = settings.pop("workers", 1)
        nodes.append(Node(path, workers, node__name=name, redis__url=url, **settings))
        return nodes[-1]

    start.url = url  # type: ignore[attr-defined]
    yield start
    end_and_check(nodes)


def test_a_second_node_of_one_name_does_not_start(start_sharing: Any, tmp_path: Path) -> None:
    """Each would take the sessions of the other, and each restart of one would cut off the clients of both."""
    first = start_sharing("n1")

    said = refused_start(
        free_port(),
        tmp_path,
        {"--name": "n1", "node.folder": tmp_path / "other", "redis.url": start_sharing.url},
        packages(),
    )

    (line,) = [line for line in said.splitlines() if line.startswith("weir: ")]
    assert line.startswith("weir: A node of the name n1 runs on ")
    assert line.endswith(
        "give this one another name with --name, or another redis.prefix if it is none of that cluster."
    )
    first.client("still").ping()


def test_nodes_that_differ_where_they_must_not_do_not_start_together(start_sharing: Any, tmp_path: Path) -> None:
    """A client whose session has moved would be promised less than before."""
    start_sharing("n1", store__durability="process")

    said = refused_start(
        free_port(), tmp_path, {"redis.url": start_sharing.url, "store.durability": "power"}, packages()
    )

    (line,) = [line for line in said.splitlines() if line.startswith("weir: ")]
    assert line.startswith('weir: store.durability is "power" here, and "process" at the node n1 on ')


@pytest.mark.parametrize(
    ("key", "value", "there"),
    [("quotas.cluster.incoming_messages", "100/s", ""), ("access.exclusive_client_ids", "false", "true")],
)
def test_what_nodes_share_has_to_be_the_same(
    start_sharing: Any, tmp_path: Path, key: str, value: str, there: str
) -> None:
    """Nodes would give out more than the quota, or one of them the sessions of another user."""
    start_sharing("n1")

    said = refused_start(free_port(), tmp_path, {"--redis": start_sharing.url, key: value}, packages())

    (line,) = [line for line in said.splitlines() if line.startswith("weir: ")]
    assert line.startswith(f'weir: {key} is "{value}" here, and "{there}" at the node n1 on ')


def test_a_limit_that_differs_is_told(start_sharing: Any) -> None:
    """Nobody would know why a client may do more at one node than at another."""
    start_sharing("n1")

    second = start_sharing("n2", limits__queue=20)

    told = [(line["setting"], line["here"], line["there"]) for line in second.lines("node_settings_differ")]
    assert [("limits.queue", "20", "10000")] == told


def test_a_node_that_was_killed_starts_again_at_once(start_sharing: Any) -> None:
    """It would wait for its own lease."""
    first = start_sharing("n1")
    first.process.kill()
    first.process.wait(PATIENCE)

    again = start_sharing("n1")

    assert [] == again.lines("node_name_waits")
    again.client("back").ping()


@pytest.mark.slow
def test_a_node_that_stood_still_while_another_one_took_its_name_ends(start_sharing: Any) -> None:
    """Two nodes of one name would run: a machine that was suspended comes back."""
    first = start_sharing("n1")
    os.killpg(first.process.pid, signal.SIGSTOP)
    second = start_sharing("n1", "elsewhere")
    (waited,) = second.lines("node_name_waits")
    assert 0 < waited["seconds"] <= 10
    os.killpg(first.process.pid, signal.SIGCONT)

    assert 3 == first.process.wait(PATIENCE)

    assert "Another node of the name n1 has started with " in first.text()
    second.client("there").ping()


def test_each_node_knows_all_of_them(start_sharing: Any) -> None:
    """Nobody could see which nodes make a cluster, or that one is missing."""
    first, second = start_sharing("n1"), start_sharing("n2")

    told = node.ask(second.control, "nodes")

    assert start_sharing.url == told["redis"]
    assert [("n1", 1), ("n2", 1)] == [(one["node"], one["workers"]) for one in told["nodes"]]
    assert all(0 < one["left"] <= 10 for one in told["nodes"])
    first.end()
    assert ["n2"] == [one["node"] for one in node.ask(second.control, "nodes")["nodes"]]


def cluster_of(one: Node) -> dict[str, Any]:
    found: dict[str, Any] = node.status(one.control)["cluster"]
    return found


def test_workers_are_told_of_those_of_other_nodes(start_sharing: Any) -> None:
    """No client would be reached at another node; or a worker that was replaced would be waited for without an end."""
    first = start_sharing("n1", workers=2)
    second = start_sharing("n2")
    first.wait_until(lambda: cluster_of(first)["workers"] == ["n2/0"], "know n2")
    assert (["n1/0", "n1/1"], 0) == (cluster_of(second)["workers"], cluster_of(second)["missing"])
    (joined,) = first.lines("node_joined")
    assert "n2" == joined["other_node"]
    listed = node.ask(second.control, "nodes")["nodes"]
    assert [("n1", [0, 1], True), ("n2", [0], True)] == [
        (one["node"], one["running_workers"], one["joined"]) for one in listed
    ]

    os.kill(first.pids[1], signal.SIGKILL)
    first.wait_for("worker_ready", 3)
    second.wait_until(lambda: len(cluster_of(second)["workers"]) == 2, "know the next worker")

    second.end()
    first.wait_for("node_left")
    assert ([], [], []) == tuple(cluster_of(first)[key] for key in ("nodes", "workers", "dead"))
    assert [] == first.lines("node_lost")


def test_a_node_that_was_killed_is_told_as_dead(start_sharing: Any) -> None:
    """Workers would wait for it for ever, and nobody would look for the durable sessions that it has left."""
    durable = {"store__durability": "process"}
    first, second = start_sharing("n1", **durable), start_sharing("n2", **durable)
    first.wait_until(lambda: cluster_of(first)["workers"] == ["n2/0"], "know n2")

    os.killpg(second.process.pid, signal.SIGKILL)
    second.process.wait(PATIENCE)
    first.wait_for("node_lost")

    first.wait_for("worker_settled")
    first.wait_until(lambda: cluster_of(first)["dead"] == [{"node": "n2", "stored_at_workers": 0}], "settle n2")
    assert [] == cluster_of(first)["workers"]


LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 1000}


@pytest.mark.parametrize("wakes", [False, True])
def test_sessions_of_a_node_that_is_gone_go_on_elsewhere(start_sharing: Any, wakes: bool) -> None:
    """What was acknowledged for them would wait until that machine is back; or two nodes would have them."""
    first, second = (start_sharing(name, workers=2, store__durability="process") for name in ("n1", "n2"))
    first.wait_until(lambda: len(cluster_of(first)["workers"]) == 2, "know n2")
    second.client("me", clean_start=False, properties=LASTING).subscribe("a", qos=1)
    publisher = first.client("publisher")
    publisher.publish("a", b"before", 1)
    os.killpg(second.process.pid, signal.SIGSTOP if wakes else signal.SIGKILL)
    with suppress(AssertionError):  # it may be told to send it again, as the node may have had it
        publisher.publish("a", b"lost", 1)
    first.client("again").publish("a", b"meanwhile", 1)  # which is answered when the session is adopted
    first.wait_for("worker_settled", 2)
    if wakes:
        os.killpg(second.process.pid, signal.SIGCONT)
        second.wait_for("worker_counts_as_dead", 2)
        second.wait_for("worker_ready", 4)

    back = (second if wakes else first).stranger()
    answer = back.connect("me", clean_start=False, properties=LASTING)
    assert answer.session_present
    assert b"before" == back.take().payload
    while back.take().payload != b"meanwhile":
        pass


def test_a_node_with_a_redis_of_its_own_meets_nobody(tmp_path: Path) -> None:
    """Each node on one machine would pay for a cluster that there is not."""
    alone = Node(tmp_path)
    try:
        assert None is node.status(alone.control)["cluster"]
        with Redis(unix_socket_path=str(alone.folder / "node" / "redis" / "redis.sock")) as server:
            assert [] == server.pubsub_channels("*nodes*")
            assert [] == server.keys("weir:nodes*") + server.keys("weir:renewals*")
    finally:
        alone.end()
