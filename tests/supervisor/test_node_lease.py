# The names of nodes that share a Redis, at a real server.
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from broker.cluster.lane_format import LANE_FORMAT
from broker.store.redis.keys import Keys
from broker.worker_id import WorkerId
from supervisor import node_lease
from supervisor.node_lease import Identity, NodeLease, NodeRefused
from tests.redis_servers import RunningRedis
from tests.supervisor.test_embedded_redis import Log

pytestmark = pytest.mark.system  # real servers

KEYS = Keys("weir")
CHANNEL = KEYS.node_notices(0)
AGREED = {"store.durability": "process", "redis.key_file": "1234"}
N1 = Identity(
    name="n1",
    host="here",
    version="1",
    folder="/n1",
    workers=2,
    agreed=AGREED,
    compared={"limits.queue": "10"},
    lanes=LANE_FORMAT,
)
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
        return NodeLease(self.server.client, KEYS, CHANNEL, "redis://it", identity, path, self.log)

    def taken(self, identity: Identity = N1, folder: str = "n1") -> NodeLease:
        lease = self.lease(identity, folder)
        lease.take(never)
        return lease

    def names(self) -> list[str]:
        with self.server.client() as client:
            return sorted(name.decode() for name in client.hkeys(KEYS.nodes))


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
    assert first.renew().mine


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

    assert again.renew().mine
    assert not former.renew().mine
    assert ["n1"] == cluster.names()


def test_a_renewal_that_comes_behind_the_end_of_a_node_takes_no_name(cluster: Cluster) -> None:
    """A node that was stopped would count as running for ten seconds: its supervisor does not wait for renewals."""
    lease = cluster.taken()
    lease.release()

    with pytest.raises(redis.RedisError):
        lease.renew()

    assert [] == cluster.names()


def test_a_node_that_ends_leaves_its_name(cluster: Cluster) -> None:
    """It could not be started on another machine before ten seconds have passed."""
    first = cluster.taken()
    first.release()
    second = cluster.taken(folder="other")
    first.release()  # it has no name to leave

    assert second.renew().mine


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


def test_what_a_node_says_is_read_once(cluster: Cluster) -> None:
    """Each supervisor would read the descriptions of hundreds of nodes with all their workers every three seconds."""
    here, there = cluster.taken(), cluster.taken(replace(N1, name="n2"), "n2")
    there.say([f"{1:016x}", None])
    there.renew()
    first, second = here.renew().nodes["n2"], here.renew().nodes["n2"]
    assert first.about is second.about
    assert [WorkerId("n2", 0, 1), None] == first.workers() == second.workers()
    assert first.workers()[0] is second.workers()[0]
    there.say([f"{1:016x}", f"{2:016x}"])
    there.renew()

    assert [WorkerId("n2", 0, 1), WorkerId("n2", 1, 2)] == here.renew().nodes["n2"].workers()
    there.release()
    here.renew()
    assert {"n1"} == set(here._said)


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


def test_a_node_says_which_workers_it_has(cluster: Cluster) -> None:
    """No worker of another node could be reached."""
    first, second = cluster.taken(), cluster.taken(replace(N1, name="n2"), "n2")
    assert [[None, None]] * 2 == [node.workers() for node in second.nodes()]

    first.say([f"{7:016x}", None])
    first.renew()

    assert [WorkerId("n1", 0, 7), None] == second.renew().nodes["n1"].workers()
    assert second.renew().nodes["n1"].about["lanes"] == LANE_FORMAT


@pytest.mark.parametrize("said", [None, 7, {}, "0" * 16, [7], ["x" * 16], ["f" * 16], ["0" * 17], [[]]])
def test_what_is_no_incarnation_is_no_worker(cluster: Cluster, said: object) -> None:
    """Lanes would be opened to nobody, or one bad entry would end all supervisors."""
    lease = cluster.taken()
    with cluster.server.client() as client:
        client.hset("weir:nodes", "n2", f"a {10**14} ".encode() + json.dumps({"incarnations": said}).encode())

    workers = lease.renew().nodes["n2"].workers()

    assert workers in ([], [None])


def test_a_node_without_a_word_about_lanes_may_join(cluster: Cluster) -> None:
    """A cluster of nodes of an older version could not be upgraded."""
    cluster.taken()
    with cluster.server.client() as client:
        found = client.hget("weir:nodes", "n1")
        assert found is not None
        holder, until, text = found.split(b" ", 2)
        about = {key: value for key, value in json.loads(text).items() if key not in ("lanes", "incarnations")}
        client.hset("weir:nodes", "n1", b" ".join([holder, until, json.dumps(about).encode()]))

    second = cluster.taken(replace(N1, name="n2"), "n2")

    assert [] == second.nodes()[0].workers()


@pytest.mark.parametrize("apart", [-2, -1, 1, 2])
def test_only_nodes_of_neighbouring_lane_versions_work_together(cluster: Cluster, apart: int) -> None:
    """A node would send what another one cannot read; or no upgrade would be possible while nodes run."""
    cluster.taken(replace(N1, lanes=5 + apart))

    if abs(apart) == 1:
        cluster.taken(replace(N1, name="n2", lanes=5), "n2")
        return
    with pytest.raises(NodeRefused) as refused:
        cluster.taken(replace(N1, name="n2", lanes=5, version="2"), "n2")

    assert str(refused.value) == (
        "Weir 2 has version 5 of the lanes between nodes, and the node n1 on here, which uses redis://it, too, has "
        f"version {5 + apart} (Weir 1): only neighbouring versions work together, so upgrade the nodes through the "
        "versions between."
    )
    assert ["n1"] == cluster.names()


def test_limits_that_differ_are_told_and_no_reason_to_refuse(cluster: Cluster) -> None:
    """No limit could be changed while nodes run; or nobody would know why a client meets two limits."""
    cluster.taken()

    cluster.taken(replace(N1, name="n2", compared={"limits.queue": "20", "limits.new": "1"}), "n2")

    (told,) = cluster.log.named("node_settings_differ")
    assert {"setting": "limits.queue", "here": "20", "there": "10", "other_node": "n1"}.items() <= told.items()


def test_a_change_is_told_to_other_nodes_and_a_renewal_is_not(cluster: Cluster) -> None:
    """Others would learn of a dead worker seconds later; or each node would read the list at each renewal of any."""
    with cluster.server.client() as client, client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(CHANNEL)

        def told() -> list[bytes]:
            found = []
            while message := heard.get_message(timeout=0.2):
                found.append(message["data"])
            return found

        told()  # the subscription stands
        lease = cluster.taken()
        me = lease.incarnation.encode()
        assert [me] == told()
        lease.renew()
        lease.renew()
        assert [] == told()
        lease.say([f"{7:016x}", None])
        lease.renew()
        assert [me] == told()
        lease.release()
        lease.release()
        assert [me] == told()


def test_a_node_that_leaves_durable_sessions_stays_known_until_somebody_has_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would look for these sessions, and what is published for them would be lost."""
    first, second = cluster.taken(), cluster.taken(replace(N1, name="n2"), "n2")
    with cluster.server.client() as client:
        client.hset("weir:owners:n1", "0" * 16, "0")
        first.release()
        left = second.renew().nodes["n1"]
        assert (True, 1, 0.0) == (left.ended(), left.owners, left.runs_for())
        cluster.taken(folder="other").release()  # the name is free all the same
        monkeypatch.setattr(node_lease, "FORGOTTEN", 0.0)
        time.sleep(0.002)  # until it is past, in milliseconds
        second.renew()
        assert ["n1", "n2"] == cluster.names()
        client.delete("weir:owners:n1")
        second.renew()

    assert ["n2"] == cluster.names()


def test_nobody_is_dead_because_redis_was_away(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each longer outage of Redis the first node that is back would take the sessions of all others."""
    monkeypatch.setattr(node_lease, "LEASE", SHORT)
    monkeypatch.setattr(node_lease, "GAP", SHORT / 2)
    first = cluster.taken()
    time.sleep(SHORT + 0.05)  # nobody can renew
    second = cluster.taken(replace(N1, name="n2"), "n2")

    found = second.renew().nodes["n1"]

    assert found.left <= 0 < found.runs_for() <= SHORT
    first.renew()  # it is back
    deadline = time.monotonic() + 2 * SHORT
    while time.monotonic() < deadline:  # and dies, while Redis can be reached
        time.sleep(SHORT / 8)
        second.renew()
    assert 0.0 == second.renew().nodes["n1"].runs_for()


def test_a_clock_that_is_another_one_is_told_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages would expire early on one node and late on the other, and nobody would know why."""
    lead = [0.0]  # seconds of our clock before that of Redis
    clock = SimpleNamespace(time=lambda: time.time() + lead[0], monotonic=time.monotonic)
    monkeypatch.setattr(node_lease, "time", clock)
    lease = cluster.taken()
    assert [] == cluster.log.named("clock_differs")

    for lead[0] in (-8.0, -8.0, 0.0, 9.0):
        assert lease.renew().mine

    assert [8, 9] == [round(float(str(told["seconds"]))) for told in cluster.log.named("clock_differs")]
