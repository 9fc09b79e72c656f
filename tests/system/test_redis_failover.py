# The Redis of a cluster fails over or gets another password: what nodes, and clients of two of them, notice.
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from broker.config.schema import PROCESS, REPLICATED
from tests.redis_servers import HOST, SERVERS, SYNCS_AT_ONCE, RunningRedis, free_port, replicate
from tests.system import node
from tests.system.cluster import LASTING, send
from tests.system.nodes import Node, end_and_check
from tests.system.processes import PATIENCE
from tests.system.raw import payloads
from tests.system.test_cluster_faults import Stream, back, first_of_each, leave_session, send_until_acknowledged

pytestmark = [pytest.mark.weir_only("a matter of Weir's processes"), pytest.mark.slow]

StartNode = Callable[..., Node]
StartRedis = Callable[..., RunningRedis]
SERVICE: Final = "weir"
DOWN_AFTER: Final = 500  # milliseconds without an answer, after which the sentinel has a primary for dead


class Replicated:
    """A primary with two replicas, and the sentinel that promotes one of them. `servers[0]` is the primary."""

    def __init__(self, folder: Path, start_redis: StartRedis) -> None:
        self.servers = [start_redis(more=SYNCS_AT_ONCE, port=free_port()) for _ in range(3)]
        primary, *replicas = self.servers
        replicate(primary, *replicas)
        port = free_port()
        self.url = f"redis+sentinel://{HOST}:{port}/{SERVICE}"
        config = folder / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind {HOST}\ndir {folder}\nsentinel monitor {SERVICE} {HOST} {primary.address.port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER}\nsentinel failover-timeout {SERVICE} 5000\n"
            f"sentinel parallel-syncs {SERVICE} 2\n"
        )
        self.process = subprocess.Popen([SERVERS[-1].path, config, "--sentinel"], stdout=subprocess.DEVNULL)
        self._sentinel = redis.Redis(host=HOST, port=port, decode_responses=True)
        try:
            self._wait(lambda: self._sees_replicas() == len(replicas), "see the replicas")
        except BaseException:
            self.end()
            raise

    def fail_over(self) -> None:
        """Kill the primary, and return when another server is one."""
        former = self.servers[0].address.port
        self.servers[0].kill()
        for replica in self.servers[1:]:
            replica.go_on()
        self._wait(lambda: self._master() != former, "promote a replica")

    def wait_replicas(self) -> None:
        """Wait until each replica has all that the primary has."""
        primary, *replicas = self.servers
        with primary.client() as client:
            client.set("probe", "")
            assert len(replicas) == client.wait(len(replicas), int(PATIENCE * 1000))

    def cut_replicas(self) -> None:
        """Stop the replicas, and end their connections: they have nothing of what the primary writes from now on."""
        primary, *replicas = self.servers
        for replica in replicas:
            replica.pause()
        with primary.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def end(self) -> None:
        self._sentinel.close()
        self.process.kill()
        self.process.wait()

    def _master(self) -> int:
        found = self._sentinel.sentinel_get_master_addr_by_name(SERVICE)
        assert isinstance(found, tuple)
        return int(found[1])

    def _sees_replicas(self) -> int:
        try:
            return len(self._sentinel.sentinel_slaves(SERVICE))
        except redis.ConnectionError:
            return 0

    def _wait(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, f"the sentinel does not {what}"
            time.sleep(0.02)  # between two looks at a process that is not ours


@pytest.fixture
def replicated(start_redis: StartRedis, tmp_path: Path) -> Iterator[Replicated]:
    if not SERVERS:
        pytest.skip("there is no redis-server")
    found = Replicated(tmp_path, start_redis)
    yield found
    found.end()


@pytest.fixture
def start_pair(tmp_path: Path) -> Iterator[Callable[..., tuple[Node, Node]]]:
    """Starts the nodes n1 and n2 of two workers each, with these settings, and ends them."""
    started: list[Node] = []

    def start(**settings: Any) -> tuple[Node, Node]:
        for name in ("n1", "n2"):
            (tmp_path / name).mkdir()
            started.append(Node(tmp_path / name, 2, node__name=name, **settings))
        a, b = started
        for one in started:
            one.wait_until(lambda one=one: joined(one) == (2, 0), "know the other")  # type: ignore[misc]
        return a, b

    yield start
    end_and_check(started)


def joined(one: Node) -> tuple[int, int]:
    told: dict[str, Any] = node.status(one.control)["cluster"]
    return len(told["workers"]), told["missing"]


@pytest.mark.parametrize("durability", [PROCESS, REPLICATED])
def test_nodes_go_on_after_a_failover(
    replicated: Replicated, start_pair: Callable[..., tuple[Node, Node]], durability: str
) -> None:
    """Clients of the whole cluster would wait until somebody starts its nodes again, or lose what replicas had."""
    a, b = start_pair(redis__url=replicated.url, store__durability=durability)
    leave_session(b, "away", "topic")
    there = b.client("there", properties=LASTING)
    there.subscribe("topic", qos=1)
    stream = Stream(a, "topic")
    stream.wait_more()

    replicated.fail_over()
    for one in (a, b):
        one.wait_for("redis_address_changed")
    stream.wait_more()
    wanted = stream.end()

    if durability == REPLICATED:  # "process" may have lost what was acknowledged last
        assert wanted == first_of_each(back(a, "away"), len(wanted))
    assert wanted == first_of_each(there, len(wanted))
    there.subscribe("new", qos=1)
    a.client("publisher").publish("new", b"new", 1)
    assert [] == there.take_until(b"new")


def test_what_no_replica_had_is_lost_and_nothing_else(
    replicated: Replicated, start_pair: Callable[..., tuple[Node, Node]]
) -> None:
    """With "process" a failover costs what was acknowledged last; what replicas have must not be lost or doubled."""
    a, b = start_pair(redis__url=replicated.url, store__durability=PROCESS)
    leave_session(b, "away", "topic")
    publisher = a.client("publisher")
    before, lost, after = ([b"%s %d" % (word, number) for number in range(20)] for word in (b"a", b"b", b"c"))
    send(publisher, "topic", before)
    replicated.wait_replicas()
    replicated.cut_replicas()
    send(publisher, "topic", lost)

    replicated.fail_over()
    for one in (a, b):
        one.wait_for("redis_address_changed")
    send_until_acknowledged(a, "topic", after)

    away = back(a, "away")
    a.client("other").publish("topic", b"end", 1)
    came = payloads(away.take_until(b"end"))
    assert before + after == came


def test_a_password_is_changed_while_nodes_run(
    start_redis: StartRedis, start_pair: Callable[..., tuple[Node, Node]], tmp_path: Path
) -> None:
    """Each change of a password would need a new start of all nodes, or be a failure of them."""
    port, file = free_port(), tmp_path / "password"
    server = start_redis(more="user weir on >former ~* &* +@all\n", port=port)
    file.write_text("former\n")
    settings = {"redis__url": f"redis://weir@{HOST}:{port}", "redis__password_file": file}
    a, b = start_pair(store__durability=PROCESS, **settings)
    leave_session(b, "away", "topic")
    stream = Stream(a, "topic")
    stream.wait_more()

    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "weir", ">later")
        (tmp_path / "new").write_text("later\n")
        (tmp_path / "new").rename(file)
        for one in (a, b):
            one.wait_for("redis_address_changed")
        client.execute_command("ACL", "SETUSER", "weir", "<former")
        stream.wait_more()
        assert [[], []] == [one.lines("redis_unavailable") for one in (a, b)]  # no connection was given up
        for kind in ("normal", "pubsub"):
            client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    for one in (a, b):
        one.wait_for("redis_connected")
    stream.wait_more()
    wanted = stream.end()

    assert wanted == first_of_each(back(a, "away"), len(wanted))
    failures = {line["reason"] for one in (a, b) for line in one.lines("redis_unavailable")}
    assert "authentication_failed" not in failures
    there = b.client("there")
    there.subscribe("new")
    a.client("publisher").publish("new", b"new", 1)
    assert [] == there.take_until(b"new")
