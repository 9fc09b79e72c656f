# Nodes of a cluster that are stopped, killed and suspended, and a Redis that dies: what clients of the others notice.
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from broker.insight.explain import explain
from broker.insight.facts import Facts
from broker.mqtt.packets import Ack, Disconnect, Publish, Will
from tests.redis_servers import RunningRedis
from tests.system import node
from tests.system.cluster import LASTING, Cluster, send, start
from tests.system.nodes import Node
from tests.system.processes import PATIENCE
from tests.system.raw import RawClient, payloads

pytestmark = [pytest.mark.weir_only("a matter of Weir's processes"), pytest.mark.slow]

SHUTTING_DOWN = 0x8B
SEND_AGAIN = 0x83  # implementation specific error
LEASE = 10.0  # seconds of a node's name
SUSPENDED = 12.0  # seconds: the lease has run out
SEEN = 4.0  # seconds for which a suspended node is looked at: its lease still runs
SETTLED = 5.0  # seconds after the lease: until nobody waits for the node any more


@pytest.fixture
def cluster(start_redis: Callable[..., RunningRedis], tmp_path: Path) -> Iterator[Cluster]:
    with start(tmp_path, start_redis(), 2) as started:
        yield started


def kill(weir: Node) -> None:
    os.killpg(weir.process.pid, signal.SIGKILL)
    weir.process.wait(PATIENCE)


def leave_session(at: Node, name: str, *filters: str) -> None:
    """A client of that name subscribes, and is away then."""
    client = at.client(name, properties=LASTING)
    client.subscribe(*filters, qos=1)
    client.disconnect()


def back(at: Node, name: str) -> RawClient:
    """The client *name* again, whose session must be there."""
    client = at.stranger()
    assert client.connect(name, clean_start=False, properties=LASTING).session_present
    return client


def send_until_acknowledged(at: Node, topic: str, wanted: Sequence[bytes]) -> None:
    """Publish all of *wanted* at once, and what is not acknowledged again when the node asks for it by 0x83.

    It does so when it has handed a message to a node that has died: it cannot know whether that one had stored it.
    """
    left = dict(enumerate(wanted, 1))
    for _ in range(3):
        client = at.client("certain")
        for number, payload in left.items():
            client.send(Publish(topic.encode(), payload, 1, packet_id=number))
        while left and isinstance(packet := client.receive(), Ack):
            del left[packet.packet_id]
        if not left:
            return
        assert isinstance(packet, Disconnect) and SEND_AGAIN == packet.code, packet
    raise AssertionError(f"{len(left)} messages are not acknowledged")


def first_of_each(client: RawClient, count: int) -> list[bytes]:
    """The next *count* different messages of *client*: what was sent again may come again."""
    came: dict[bytes, None] = {}
    while len(came) < count:
        came[client.take().payload] = None
    return list(came)


class Stream:
    """A publisher that goes on until it is ended, with one message at a time; each of them is acknowledged."""

    def __init__(self, at: Node, topic: str) -> None:
        self.acknowledged: list[bytes] = []
        self.longest = 0.0  # seconds until one was acknowledged
        self._client = at.client(f"stream-{topic}")
        self._topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            payload = b"%d" % len(self.acknowledged)
            began = time.monotonic()
            self._client.publish(self._topic, payload, 1)
            self.longest = max(self.longest, time.monotonic() - began)
            self.acknowledged.append(payload)

    def wait_more(self, count: int = 20) -> None:
        """Wait until *count* more messages are acknowledged."""
        until, deadline = len(self.acknowledged) + count, time.monotonic() + PATIENCE
        while len(self.acknowledged) < until:
            assert self._thread.is_alive(), "the publisher has failed"
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} of {until} messages are acknowledged"
            time.sleep(0.02)  # between two looks at another thread

    def end(self) -> list[bytes]:
        """All that was acknowledged."""
        self._ended.set()
        self._thread.join()
        return self.acknowledged


@pytest.fixture
def patient(start_redis: Callable[..., RunningRedis], tmp_path: Path) -> Iterator[Cluster]:
    """Nodes that have their clients leave in longer than publishers of other nodes may wait."""
    with start(tmp_path, start_redis(), 2, drain__timeout=LEASE * 0.8) as started:
        yield started


def test_a_node_that_is_stopped_hands_over(patient: Cluster) -> None:
    """Each upgrade of a node would lose what its clients are to get, or hold up publishers of the other nodes."""
    a, b = patient.nodes
    names = [f"away{number}" for number in range(6)]  # at both workers, most probably
    for name in names:
        leave_session(b, name, "topic")
    there = lingering = b.client("there", properties=LASTING)
    there.subscribe("topic", qos=1)
    stream = Stream(a, "topic")
    stream.wait_more()
    came: list[Publish] = []

    b.process.terminate()
    while isinstance(packet := there.receive(), Publish):
        there.acknowledge(packet)
        came.append(packet)
    assert isinstance(packet, Disconnect) and SHUTTING_DOWN == packet.code
    there = back(a, "there")
    stream.wait_more()
    assert 0 == b.process.wait(PATIENCE)
    lingering.expect_end()
    stream.wait_more()
    wanted = stream.end()

    for name in names:
        away = back(a, name)
        assert wanted == payloads([away.take() for _ in wanted])
    numbers = payloads(came)
    while len(set(numbers)) < len(wanted):
        numbers.append(there.take().payload)
    assert wanted == list(dict.fromkeys(numbers))
    assert stream.longest < LEASE / 2


def test_a_node_that_is_killed_holds_up_nobody_for_ever(cluster: Cluster) -> None:
    """Publishers of all other nodes would wait for its subscribers; and nobody would get what its clients were owed."""
    a, b = cluster.nodes
    b.client("clean").subscribe("topic", qos=1)
    b.client("doomed", will=Will(b"will", b"dead", 1)).subscribe("topic", qos=1)
    leave_session(b, "away", "topic")
    clean, listener = a.client("clean-here"), a.client("listener")
    clean.subscribe("topic", qos=1)
    listener.subscribe("will", qos=1)
    send(a.client("publisher"), "topic", [b"before"])

    kill(b)
    began = time.monotonic()
    a.client("other").publish("elsewhere", b"", 1)
    assert time.monotonic() - began < 1.0  # nobody of that node needs it
    wanted = [b"%d" % number for number in range(300)]
    send_until_acknowledged(a, "topic", wanted)
    assert time.monotonic() - began < LEASE + SETTLED

    wanted = [b"before", *wanted]
    assert wanted == first_of_each(clean, len(wanted))
    assert b"dead" == listener.take().payload
    assert wanted == first_of_each(back(a, "away"), len(wanted))
    a.client("end").publish("will", b"end", 1)
    assert [] == listener.take_until(b"end")


def test_a_node_that_was_killed_and_starts_at_once_has_its_sessions(cluster: Cluster) -> None:
    """A crash of a node would cost its clients what was stored, or the time of a lease."""
    a, b = cluster.nodes
    leave_session(b, "away", "topic")
    publisher = a.client("publisher")
    send(publisher, "topic", [b"before"])
    kill(b)
    sending = threading.Thread(target=send_until_acknowledged, args=(a, "topic", [b"meanwhile"]))
    sending.start()

    began = time.monotonic()
    b = cluster.start(2)

    away = back(b, "away")
    assert [b"before", b"meanwhile"] == first_of_each(away, 2)
    sending.join()
    assert time.monotonic() - began < LEASE
    publisher.publish("topic", b"after", 1)
    assert b"after" == away.take().payload
    cluster.wait_joined()
    away.subscribe("new")
    publisher.publish("new", b"new")
    assert b"new" == away.take().payload


def test_a_node_that_was_suspended_takes_part_again(cluster: Cluster) -> None:
    """A machine that comes back would serve a session that others have by now, or hear nobody any more."""
    a, b = cluster.nodes
    moved = b.client("moved", properties=LASTING)
    moved.subscribe("topic", qos=1)
    leave_session(b, "stays", "topic")
    publisher = a.client("publisher")
    os.killpg(b.process.pid, signal.SIGSTOP)
    suspended = time.monotonic()
    send_until_acknowledged(a, "topic", [b"meanwhile"])
    here = back(a, "moved")
    assert [b"meanwhile"] == first_of_each(here, 1)
    time.sleep(max(0.0, suspended + SUSPENDED - time.monotonic()))  # it is the fault, not a wait

    os.killpg(b.process.pid, signal.SIGCONT)

    b.wait_for("worker_ready", 4)  # those that had lost their sessions have ended
    cluster.wait_joined()
    moved.expect_end()
    stays = back(b, "stays")
    publisher.publish("topic", b"after", 1)
    assert {b"meanwhile"} == set(payloads(stays.take_until(b"after")))
    assert {b"meanwhile"} >= set(payloads(here.take_until(b"after")))  # it may have been sent again
    b.client("again").publish("topic", b"end", 1)
    assert [[], []] == [client.take_until(b"end") for client in (here, stays)]


def levels(*nodes: Node) -> list[dict[str, Any]]:
    """The level in force, and its cause, at each worker of *nodes*."""
    return [worker["overload"]["cluster"] for each in nodes for worker in node.ask(each.control, "overload")["workers"]]


def test_a_suspended_node_slows_down_those_alone_that_publish_for_it(
    start_redis: Callable[..., RunningRedis], tmp_path: Path
) -> None:
    """One node that hangs would throttle the clients of all others, and nobody could say which node it is."""
    with start(tmp_path, start_redis(), 3) as cluster:
        a, b, c = cluster.nodes
        c.client("there").subscribe("needed", qos=1)
        b.client("elsewhere").subscribe("other", qos=1)
        needs = a.client("needs")
        os.killpg(c.process.pid, signal.SIGSTOP)
        suspended = time.monotonic()
        for number in range(100):
            needs.send(Publish(b"needed", b"%d" % number, 1, packet_id=number + 1))
        stream = Stream(a, "other")
        seen: list[dict[str, Any]] = []

        while time.monotonic() < suspended + SEEN:
            stream.wait_more()
            seen += levels(a, b)
        told = " ".join(explain(cast(Facts, node.ask(a.control, "why", client="needs"))))
        os.killpg(c.process.pid, signal.SIGCONT)
        stream.end()

        assert {2.0} == {each["level"] for each in seen[-4:]}
        assert max(each["level"] for each in seen) <= 2.0
        assert {("n1", True)} == {(each["node"], each["cause"].startswith("n3/")) for each in seen[-4:]}
        assert re.search("It waits for worker [01] of node n3, which has [0-9]+ publishes", told), told
        assert re.search("The cause is the signal n3/[01] of worker [01] of node n1: worker [01] of node n3 ", told), (
            told
        )
        assert stream.longest < 1.0
        for _ in range(100):
            assert needs.expect(Ack).code == 0


def test_a_redis_that_dies_costs_nothing_that_was_acknowledged(cluster: Cluster) -> None:
    """Nodes would not find each other again, or take what the server never had for stored."""
    a, b = cluster.nodes
    leave_session(b, "away", "topic")
    clean = b.client("clean")
    clean.subscribe("topic", qos=1)
    stream = Stream(a, "topic")
    for _ in range(3):
        stream.wait_more()
        cluster.redis.kill()
        cluster.redis.start()
    stream.wait_more()
    wanted = stream.end()

    away = back(a, "away")
    came = payloads([away.take() for _ in wanted])
    assert wanted == came
    assert wanted == list(dict.fromkeys(payloads([clean.take() for _ in wanted])))
    cluster.wait_joined()
    clean.subscribe("new")
    a.client("publisher").publish("new", b"new")
    assert [] == clean.take_until(b"new")
