# Which nodes share the Redis of a node, as its workers are told, at a real server.
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from broker.control.frames import DeadNode, NodeClock, NodePlace, OtherNodes
from broker.worker_id import WorkerId
from supervisor import membership, node_lease
from supervisor.membership import NOBODY, Membership
from supervisor.node_lease import DRAINING, SharingNode
from supervisor.node_requests import REQUEST
from tests.redis_servers import RunningRedis
from tests.supervisor.test_node_lease import CHANNEL, KEYS, N1, Cluster

pytestmark = pytest.mark.system  # real servers

N2 = replace(N1, name="n2", workers=1)
SHORT = 0.5  # seconds: a lease, in tests where it runs out
A0, B0 = WorkerId("n1", 0, 7), WorkerId("n2", 0, 8)


class RunningNode:
    """A node without workers of its own: what they would be told, the newest last."""

    def __init__(self, cluster: Cluster, identity: node_lease.Identity = N1) -> None:
        self.lease = cluster.lease(identity, identity.name)
        self.told: list[OtherNodes] = []
        self.lost: list[str] = []
        self._news = trio.Event()
        self._scope = trio.CancelScope()
        self.membership = Membership(self.lease, self.lease.take(_never), self._send, cluster.log)

    def _send(self, others: OtherNodes) -> None:
        self.told.append(others)
        self._news.set()

    async def keep(self) -> None:
        with self._scope:
            await self.membership.keep(self.lost.append)

    async def until(self, condition: Callable[[OtherNodes], bool]) -> OtherNodes:
        with trio.fail_after(10):
            while not condition(self.membership.others):
                self._news = trio.Event()
                await self._news.wait()
        return self.membership.others

    def die(self) -> None:
        """As if its machine had lost power."""
        self._scope.cancel()

    async def end(self) -> None:
        """As after `weir stop`."""
        self._scope.cancel()
        await trio.to_thread.run_sync(self.lease.release)


def _never(seconds: float) -> None:
    raise AssertionError("it waits")


@pytest.fixture
def cluster(start_redis: Callable[..., RunningRedis], tmp_path: Path) -> Cluster:
    return Cluster(start_redis(), tmp_path)


@asynccontextmanager
async def running(*nodes: RunningNode) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(node.keep)
        yield
        nursery.cancel_scope.cancel()


async def _subscribed(cluster: Cluster, count: int) -> None:
    """Until so many nodes hear notices."""

    def look() -> int:
        with cluster.server.client() as client:
            return int(client.pubsub_numsub(CHANNEL)[0][1])

    with trio.fail_after(10):
        while await trio.to_thread.run_sync(look) != count:
            await trio.sleep(0.01)  # between two looks at another process


async def test_nodes_learn_of_each_others_workers_at_once(cluster: Cluster) -> None:
    """A worker that was replaced could not be reached for seconds, and publishes for its clients would wait."""
    first, second = RunningNode(cluster), RunningNode(cluster, N2)
    assert OtherNodes([], [], 2, []) == second.membership.others
    async with running(first, second):
        await _subscribed(cluster, 2)
        began = trio.current_time()

        first.membership.started(A0)
        assert OtherNodes([A0], [], 1, []) == await second.until(lambda others: bool(others.workers))
        second.membership.started(B0)
        assert OtherNodes([B0], [], 0, []) == await first.until(lambda others: bool(others.workers))
        first.membership.ended(A0)
        assert OtherNodes([], [], 2, []) == await second.until(lambda others: not others.workers)

        assert trio.current_time() - began < node_lease.RENEW


async def test_the_end_of_a_former_worker_does_not_hide_the_next_one(cluster: Cluster) -> None:
    """The next one would not be reached."""
    first = RunningNode(cluster)
    again = WorkerId("n1", 0, 9)
    first.membership.started(A0)
    first.membership.started(again)
    first.membership.ended(A0)
    first.lease.renew()

    assert [again] == RunningNode(cluster, N2).membership.others.workers


async def test_a_node_that_ends_is_left_at_once(cluster: Cluster) -> None:
    """Its peers would wait for it at each SUBACK until its lease has run out."""
    first, second = RunningNode(cluster), RunningNode(cluster, N2)
    first.membership.started(A0)
    async with running(first, second):
        await second.until(lambda others: bool(others.workers))
        await _subscribed(cluster, 2)
        began = trio.current_time()

        await first.end()
        await second.until(lambda others: others == NOBODY)

        assert trio.current_time() - began < node_lease.RENEW
    assert [{"other_node": "n1"}] == cluster.log.named("node_left")
    assert 1 == len(cluster.log.named("node_joined"))


async def test_a_node_that_was_killed_is_dead_when_its_lease_ends(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its durable sessions would wait up to another renewal for the node that settles it."""
    monkeypatch.setattr(membership, "RENEW", 3600.0)
    monkeypatch.setattr(node_lease, "LEASE", 1.5)
    first = RunningNode(cluster)
    first.membership.started(A0)
    first.lease.renew()  # and never again
    second = RunningNode(cluster, N2)
    assert [A0] == second.membership.others.workers
    with cluster.server.client() as client:
        client.hset("weir:owners:n1", A0.incarnation_text, "0")
        value = client.hget(KEYS.nodes, "n1")
        assert value is not None
        ends = int(value.split()[1]) / 1000
    async with running(second):
        found = await second.until(lambda others: not others.workers)

        assert ends <= time.time()
    assert OtherNodes([], [], 0, [DeadNode("n1", [A0], 1)]) == found
    assert 1 == len(cluster.log.named("node_lost"))


async def test_a_node_that_cannot_reach_redis_keeps_its_list(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take all others for dead because it is blind itself; and no node would come back after an outage."""
    lease = 3.0
    monkeypatch.setattr(node_lease, "LEASE", lease)
    monkeypatch.setattr(node_lease, "GAP", lease / 2)
    monkeypatch.setattr(membership, "LEASE", lease)
    monkeypatch.setattr(membership, "RENEW", lease / 20)
    monkeypatch.setattr(membership, "RETRY", lease / 20)
    first = RunningNode(cluster)
    first.membership.started(A0)
    first.lease.renew()
    second = RunningNode(cluster, N2)
    async with running(first, second):
        await first.until(lambda others: others.missing == 1)
        first.told.clear()
        await trio.to_thread.run_sync(cluster.server.kill)
        await trio.sleep(lease + 0.1)  # all leases run out
        await trio.to_thread.run_sync(cluster.server.start)
        looks = first.membership.looks, second.membership.looks
        with trio.fail_after(10):
            while first.membership.looks < looks[0] + 4 or second.membership.looks < looks[1] + 4:
                await trio.sleep(0.01)

        assert [] == second.told == first.told
        assert [A0] == second.membership.others.workers


async def test_a_node_without_redis_goes_on_alone_and_joins_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishes for its own clients would wait for those of nodes that it cannot reach, until they are refused."""
    monkeypatch.setattr(membership, "ALONE", 1.0)
    monkeypatch.setattr(membership, "RENEW", 0.1)
    monkeypatch.setattr(membership, "RETRY", 0.1)
    first = RunningNode(cluster)
    first.membership.started(A0)
    first.lease.renew()
    second = RunningNode(cluster, N2)
    async with running(first, second):
        await trio.to_thread.run_sync(cluster.server.kill)
        assert OtherNodes([], [], 0, []) == await second.until(lambda others: not others.workers)
        (line,) = cluster.log.named("node_cut_off")
        assert ["n1"] == line["other_nodes"]

        await trio.to_thread.run_sync(cluster.server.start)

        assert [A0] == (await second.until(lambda others: bool(others.workers))).workers


async def test_nodes_stay_when_redis_has_lost_its_data(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would part from all others, and their clients from each other."""
    monkeypatch.setattr(membership, "RENEW", 0.05)
    first = RunningNode(cluster)
    first.membership.started(A0)
    first.lease.renew()
    second = RunningNode(cluster, N2)
    async with running(second):
        with cluster.server.client() as client:
            client.delete(KEYS.nodes)
        with trio.fail_after(10):
            while await trio.to_thread.run_sync(cluster.names) != ["n2"]:
                await trio.sleep(0.01)
        looks = second.membership.looks
        with trio.fail_after(10):
            while second.membership.looks < looks + 3:
                await trio.sleep(0.01)
        assert [A0] == second.membership.others.workers

        await trio.to_thread.run_sync(first.lease.renew)
        second.membership.lease.lost_at -= node_lease.LEASE  # as if so much time had passed
        looks = second.membership.looks
        with trio.fail_after(10):
            while second.membership.looks < looks + 3:
                await trio.sleep(0.01)
        assert [] == second.told


async def test_a_node_that_was_cut_off_comes_back(cluster: Cluster) -> None:
    """Its workers would run, and no other node would reach them again."""
    first = RunningNode(cluster)
    first.membership.started(A0)
    first.lease.renew()
    second = RunningNode(cluster, N2)
    async with running(second):
        await _subscribed(cluster, 1)
        with cluster.server.client() as client:
            text = replace(N1).text(0.0, [A0.incarnation_text, None])
            client.set(KEYS.renewals, f"0 {int(time.time() * 1000)}")
            client.hset(KEYS.nodes, "n1", f"{first.lease.incarnation} 1000 {text}")  # its lease ended long ago
            client.publish(CHANNEL, "anybody")
        await second.until(lambda others: bool(others.dead))

        await trio.to_thread.run_sync(first.lease.renew)

        assert OtherNodes([A0], [], 1, []) == await second.until(lambda others: bool(others.workers))


@pytest.mark.parametrize(("theirs", "ours", "former"), [(4, 5, ["n1"]), (5, 5, []), (6, 5, [])])
async def test_workers_know_which_nodes_have_the_former_lanes(
    cluster: Cluster, theirs: int, ours: int, former: list[str]
) -> None:
    """They would send them what they cannot read, and each upgrade would part the nodes."""
    first = RunningNode(cluster, replace(N1, lanes=theirs))
    first.membership.started(A0)
    first.lease.renew()

    second = RunningNode(cluster, replace(N2, lanes=ours))

    assert OtherNodes([A0], former, 1, []) == second.membership.others


@pytest.mark.parametrize(("theirs", "ours"), [(0, 1), (3, 1), (1, 0)])
async def test_a_node_with_other_lanes_is_known_and_not_joined(cluster: Cluster, theirs: int, ours: int) -> None:
    """Workers would wait for what never comes, or send what the other end cannot read."""
    lease = cluster.taken(replace(N2, lanes=ours), "n2")
    text = replace(N1, lanes=theirs).text(0.0, [A0.incarnation_text, None])
    with cluster.server.client() as client:
        client.hset(KEYS.nodes, "n1", f"other {10**14} {text}")

    found = lease.renew()
    second = Membership(lease, found, lambda others: None, cluster.log)

    assert NOBODY == replace(second.others, places=[])
    assert ([] if ours else [NodePlace("n1", "", False)]) == second.others.places
    assert second.why_apart(found.nodes["n1"])
    assert "" == second.why_apart(found.nodes["n2"])


async def test_a_node_that_was_stopped_for_longer_than_its_lease_ends(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes of one name would run."""
    monkeypatch.setattr(node_lease, "LEASE", SHORT)
    monkeypatch.setattr(membership, "RENEW", SHORT / 8)
    stopped = RunningNode(cluster)
    cluster.lease(folder="other").take(time.sleep)

    with trio.fail_after(10):
        await stopped.keep()

    (sentence,) = stopped.lost
    assert sentence.startswith("Another node of the name n1 has started with redis://it, ")
    assert 1 == len(cluster.log.named("node_name_lost"))


@pytest.mark.parametrize("took", [0.001, 0.02, 0.09])
def test_looks_take_a_share_of_the_time_in_the_long_run_and_none_waits_long(took: float) -> None:
    """A storm of notices would take the whole supervisor; or the end of a node be seen late after another change."""
    pace, now, looks = membership.Pace(), 0.0, 0
    assert membership.LEAST == pace.rest(took, now)
    while now < 100:
        now += took
        looks += 1
        rest = pace.rest(took, now)
        assert membership.LEAST <= rest <= membership.MOST
        now += rest

    assert looks * took <= membership.AT_ONCE + membership.SHARE * now + 2 * took
    now += 10
    assert membership.LEAST == pace.rest(took, now)


async def test_a_storm_of_notices_costs_little(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can publish in Redis could have each supervisor read the list without an end."""
    monkeypatch.setattr(membership, "LEAST", 0.2)
    node = RunningNode(cluster)
    async with running(node):
        await _subscribed(cluster, 1)
        looks, began = node.membership.looks, trio.current_time()

        def storm() -> None:
            with cluster.server.client() as client:
                deadline = time.monotonic() + 0.5
                while time.monotonic() < deadline:
                    client.publish(CHANNEL, "anybody")

        await trio.to_thread.run_sync(storm)

        assert 0 < node.membership.looks - looks <= 3 + (trio.current_time() - began) / membership.LEAST


async def test_nodes_learn_at_once_which_one_is_drained_and_how_clients_reach_it(cluster: Cluster) -> None:
    """Clients would be sent to a node that takes none, for seconds, or could not be told where to go."""
    first = RunningNode(cluster, replace(N1, reference="one.example.com:1883"))
    second = RunningNode(cluster, N2)
    assert [NodePlace("n1", "one.example.com:1883", False)] == second.membership.others.places
    assert ["n1"] == second.membership.taking_clients()
    async with running(first, second):
        await _subscribed(cluster, 2)
        began = trio.current_time()

        first.membership.say_draining(DRAINING)
        others = await second.until(lambda others: others.places[0].draining)
        assert ([NodePlace("n1", "one.example.com:1883", True)], []) == (
            others.places,
            second.membership.taking_clients(),
        )
        first.membership.say_draining("")
        await second.until(lambda others: not others.places[0].draining)

        assert trio.current_time() - began < node_lease.RENEW


@pytest.mark.parametrize("wrong", [7, "x" * 2000, "\u00e9" * 600, "line\nline", "\ud800", None])
def test_a_reference_that_no_client_could_use_is_none(wrong: object) -> None:
    """Whoever may write to Redis could have all clients of a cluster disconnected by a packet that is malformed."""
    about = {"reference": wrong, "drain": wrong}
    node = SharingNode(name="n", incarnation="", left=1.0, spared=0.0, owners=0, about=about)

    assert ("", "") == (node.reference(), node.draining())


async def test_requests_of_other_nodes_are_handed_on_and_are_no_reason_to_look(cluster: Cluster) -> None:
    """`weir drain` of a node elsewhere would do nothing; or requests would keep all supervisors busy."""
    first = RunningNode(cluster)
    heard: list[bytes] = []
    came = trio.Event()

    def take(content: bytes) -> None:
        heard.append(content)
        came.set()

    first.membership.requested = take
    async with running(first):
        await _subscribed(cluster, 1)
        with cluster.server.client() as client:
            client.publish(CHANNEL, REQUEST + b"whatever")
        with trio.fail_after(10):
            await came.wait()

    assert [REQUEST + b"whatever"] == heard


@pytest.mark.parametrize(("zero", "clocks"), [(-40.0, -40_000), (90_000.25, 90_000_250), (0.02, None)])
async def test_workers_know_how_the_clocks_of_other_machines_differ(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, zero: float, clocks: int | None
) -> None:
    """Messages that cross would expire at once, or never. What is read a little late is no difference of clocks."""
    monkeypatch.setattr(node_lease, "clock_zero", lambda: 1000.0 + zero)
    first = RunningNode(cluster)
    first.membership.started(A0)
    first.lease.renew()
    monkeypatch.setattr(node_lease, "clock_zero", lambda: 1000.0)

    second = RunningNode(cluster, N2)

    expected = [] if clocks is None else [NodeClock("n1", clocks)]
    assert expected == second.membership.others.clocks


async def test_a_clock_that_is_set_is_told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that gets its time when Weir runs already would keep what crosses for too long, or lose it."""
    zeros = [500.0]
    monkeypatch.setattr(node_lease, "clock_zero", lambda: zeros[-1])
    first = RunningNode(cluster)
    first.membership.started(A0)
    first.lease.renew()
    text = first.lease.nodes()[0].clock_zero()

    told = []
    for step in (0.03125, 0.03125):
        zeros.append(zeros[-1] + step)
        first.lease.renew()
        told.append(first.lease.nodes()[0].clock_zero())

    assert (500.0, [500.0, 500.0625]) == (text, told)


@pytest.mark.parametrize("said", ["soon", True, None, float("inf")])
def test_what_is_no_time_is_no_clock(said: object) -> None:
    """A node of another version, or a mistake there, would end this one."""
    node = SharingNode(name="n1", incarnation="", left=1.0, spared=0.0, owners=0, about={"clock_zero": said})

    assert node.clock_zero() is None
