# The names of nodes that share a Redis, at a real server.
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from supervisor import node_lease
from supervisor.node_lease import Identity, NodeLease, NodeRefused
from tests.redis_servers import RunningRedis
from tests.supervisor.test_embedded_redis import Log

pytestmark = pytest.mark.system  # real servers

KEY = b"weir:nodes"
AGREED = {"store.durability": "process", "redis.key_file": "1234"}
N1 = Identity(name="n1", host="here", version="1", folder="/n1", workers=2, agreed=AGREED)
SHORT = 0.4  # seconds: a lease, in tests where it runs out


class Cluster:
    """Nodes that share one server, each in a folder of its own."""

    def __init__(self, server: RunningRedis, folder: Path) -> None:
        self.server = server
        self.log = Log()
        self._folder = folder

    def lease(self, identity: Identity = N1, folder: str = "n1") -> NodeLease:
        path = self._folder / folder
        path.mkdir(exist_ok=True)
        return NodeLease(self.server.client, KEY, "redis://it", identity, path, self.log)

    def taken(self, identity: Identity = N1, folder: str = "n1") -> NodeLease:
        lease = self.lease(identity, folder)
        lease.take(never)
        return lease

    def names(self) -> list[str]:
        with self.server.client() as client:
            return sorted(name.decode() for name in client.hkeys(KEY))


def never(seconds: float) -> None:
    raise AssertionError("it waits")


@pytest.fixture
def cluster(start_redis: Callable[..., RunningRedis], tmp_path: Path) -> Cluster:
    return Cluster(start_redis(), tmp_path)


def test_a_second_node_of_one_name_is_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would adopt the sessions of the other."""
    first = cluster.taken()
    monkeypatch.setattr(node_lease, "WAIT", 0.0)

    with pytest.raises(NodeRefused) as refused:
        cluster.lease(replace(N1, host="there"), "other").take(never)

    assert str(refused.value) == (
        "A node of the name n1 runs on here and uses redis://it, too: give this one another name with --name, or "
        "another redis.prefix if it is none of that cluster."
    )
    assert first.renew()


def test_the_name_of_a_node_that_was_killed_elsewhere_is_free_after_its_lease(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that moves to another machine would never start again, or beside one that only was cut off."""
    monkeypatch.setattr(node_lease, "LEASE", SHORT)
    began = time.monotonic()
    cluster.taken()

    cluster.lease(folder="other").take(time.sleep)

    assert time.monotonic() - began >= SHORT
    (waits,) = cluster.log.named("node_name_waits")
    assert "here" == waits["host"]


def test_who_has_the_folder_of_a_node_that_was_killed_starts_at_once(cluster: Cluster) -> None:
    """Each restart after a crash would take ten seconds."""
    former = cluster.taken()
    again = cluster.taken()

    assert again.renew()
    assert not former.renew()
    assert ["n1"] == cluster.names()


def test_a_node_that_ends_leaves_its_name(cluster: Cluster) -> None:
    """It could not be started on another machine before ten seconds have passed."""
    first = cluster.taken()
    first.release()
    second = cluster.taken(folder="other")
    first.release()  # it has no name to leave

    assert second.renew()


def test_a_node_that_was_stopped_for_longer_than_its_lease_ends(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes of one name would run."""
    monkeypatch.setattr(node_lease, "LEASE", SHORT)
    monkeypatch.setattr(node_lease, "RENEW", SHORT / 8)
    stopped = cluster.taken()
    cluster.lease(folder="other").take(time.sleep)
    told: list[str] = []

    async def keep() -> None:
        with trio.fail_after(10):
            await stopped.keep(told.append)

    trio.run(keep)

    (sentence,) = told
    assert sentence.startswith("Another node of the name n1 has started with redis://it, ")
    assert 1 == len(cluster.log.named("node_name_lost"))


def test_a_node_keeps_its_name_while_redis_is_away(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause of Redis, or the loss of its data, would end all nodes."""
    monkeypatch.setattr(node_lease, "RENEW", 0.02)
    kept = cluster.taken()
    told: list[str] = []

    async def outage() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kept.keep, told.append)
            await trio.to_thread.run_sync(cluster.server.kill)
            await trio.sleep(0.2)
            await trio.to_thread.run_sync(cluster.server.start)
            with cluster.server.client() as client:
                client.delete(KEY)
            with trio.fail_after(10):
                while await trio.to_thread.run_sync(cluster.names) != ["n1"]:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    trio.run(outage)

    assert [] == told


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        (
            "store.durability",
            "power",
            'store.durability is "power" here, and "process" at the node n1 on here, which uses redis://it, too: it '
            "has to be the same on all nodes of a cluster. If these are two clusters, give this one its own "
            "redis.prefix.",
        ),
        (
            "redis.key_file",
            "5678",
            "redis.key_file has another key than that of the node n1 on here, which uses redis://it, too: give all "
            "nodes of a cluster the same file.",
        ),
    ],
)
def test_a_node_that_differs_where_all_have_to_be_alike_is_refused(
    cluster: Cluster, setting: str, value: str, sentence: str
) -> None:
    """What one node has promised, another one would not keep."""
    first = cluster.taken()
    other = replace(N1, name="n2", agreed={**AGREED, setting: value})

    with pytest.raises(NodeRefused) as refused:
        cluster.taken(other, "n2")

    assert sentence == str(refused.value)
    assert ["n1"] == cluster.names()  # no node joins half
    first.release()
    cluster.taken(other, "n2")


def test_a_node_that_has_ended_binds_nobody(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of a cluster whose nodes were killed could ever be changed."""
    monkeypatch.setattr(node_lease, "LEASE", 0.05)
    cluster.taken()
    time.sleep(0.1)

    other = cluster.taken(replace(N1, name="n2", agreed={**AGREED, "store.durability": "power"}), "n2")

    left = {node.name: node.left for node in other.nodes()}
    assert left["n1"] <= 0 < left["n2"]


def test_a_node_of_a_version_with_other_settings_may_join(cluster: Cluster) -> None:
    """A rolling upgrade could not begin."""
    cluster.taken(replace(N1, agreed={"a new one": "x", "store.durability": "process"}))

    cluster.taken(replace(N1, name="n2", agreed={"store.durability": "process", "an old one": "y"}), "n2")


def test_nodes_are_listed_with_what_they_say_until_they_are_forgotten(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators would not see who is there; names that were used once would be listed for ever."""
    monkeypatch.setattr(node_lease, "LEASE", 0.05)
    cluster.taken(replace(N1, name="n0"), "n0")
    time.sleep(0.1)
    monkeypatch.setattr(node_lease, "LEASE", 10.0)
    second = cluster.taken(replace(N1, name="n2", host="a host"), "n2")

    gone, here = second.nodes()
    assert ("n0", "n2", "a host", second.incarnation) == (gone.name, here.name, here.host(), here.incarnation)
    assert gone.left <= 0 < here.left <= 10.0
    assert ("1", "/n1", 2, AGREED) == tuple(here.about[key] for key in ("version", "folder", "workers", "agreed"))
    monkeypatch.setattr(node_lease, "FORGOTTEN", 0.0)
    second.renew()
    assert ["n2"] == cluster.names()


def test_what_is_no_node_does_no_harm(cluster: Cluster) -> None:
    """Who else writes there could keep a node from starting."""
    with cluster.server.client() as client:
        far = 10**14
        values = [b"", b"x", b"\xff \xff", b"a 1", f"a {far} x".encode(), f"a {far} []".encode(), b"a 9e9 {}"]
        for each, value in enumerate(values):
            client.hset("weir:nodes", f"bad{each}", value)
        client.hset("weir:nodes", "n1", b"no node")
        client.hset("weir:nodes", "n3", f"a {far} ".encode() + json.dumps({"agreed": 7}).encode())

    lease = cluster.taken()

    assert ["n1", "n3"] == [node.name for node in lease.nodes()]
    assert "?" == lease.nodes()[1].host()


def test_a_clock_that_is_another_one_is_told_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages would expire early on one node and late on the other, and nobody would know why."""
    lead = [0.0]  # seconds of our clock before that of Redis
    clock = SimpleNamespace(time=lambda: time.time() + lead[0], monotonic=time.monotonic)
    monkeypatch.setattr(node_lease, "time", clock)
    lease = cluster.taken()
    assert [] == cluster.log.named("clock_differs")

    for lead[0] in (-8.0, -8.0, 0.0, 9.0):
        assert lease.renew()

    assert [8, 9] == [round(float(str(told["seconds"]))) for told in cluster.log.named("clock_differs")]
