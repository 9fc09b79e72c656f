# A node with one worker that acknowledges what replicas of its Redis have: real servers, and a primary that dies.
import select
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker.config.schema import REPLICATED, Config, Store
from broker.insight.explain import explain
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    V5,
    Ack,
    ConnAck,
    Connect,
    Publish,
    SubAck,
    Subscribe,
    Wanted,
)
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from broker.reasons import CloseReason, StoreFailure
from cli import backup
from cli.main import app
from supervisor.backup.replicas import replicas_with_all
from tests.cluster.durable_node import Durable, StartRedis
from tests.cluster.test_durable_backup import FIRST
from tests.innode import stored
from tests.redis_servers import PATIENCE, SYNCS_AT_ONCE, RunningRedis, free_port, replicate

pytestmark = pytest.mark.system  # real servers

CONFIG = Config(store=Store(durability=REPLICATED))


@pytest.fixture
def servers(start_redis: StartRedis) -> tuple[RunningRedis, RunningRedis]:
    """A primary and its replica."""
    primary, replica = start_redis(more=SYNCS_AT_ONCE, port=free_port()), start_redis(port=free_port())
    replicate(primary, replica)
    return primary, replica


def until(node: Durable, done: Callable[[], bool]) -> None:
    """Serve everybody until *done*."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, "it does not come"
        node.worker.settle()
        select.select([node.worker.worker.loop], [], [], 0.01)


def test_what_was_acknowledged_outlives_the_primary(servers: tuple[RunningRedis, RunningRedis]) -> None:
    """Sessions, messages and retained messages would be lost with the machine of Redis."""
    primary, replica = servers
    node = Durable(primary, CONFIG)
    node.subscriber("client", b"a").socket.close()
    node.worker.settle()
    publisher = node.worker.connect("publisher")
    durable = node.worker.worker.links.durable_store
    assert durable is not None
    node.worker.answered = False
    publisher.send(*[Publish(b"a", b"%d" % number, 1, True, packet_id=number + 1) for number in range(50)])
    until(node, lambda: len(publisher.inbox) > 0)
    with replica.client() as promoted:
        promoted.replicaof("NO", "ONE")  # from here on the primary is alone, and does not know it at once
    publisher.send(*[Publish(b"a", b"%d" % number, 1, True, packet_id=number + 1) for number in range(50, 60)])
    until(node, lambda: durable.trouble(node.worker.clock.now) is not None or len(publisher.inbox) == 60)
    acknowledged = len(publisher.receive())
    primary.kill()
    node.redis, node.config = replica, stored()
    node.kill()
    client = node.connect("client")

    assert client.connack.session_present
    got = [each.payload for each in client.receive() if isinstance(each, Publish)]
    assert [b"%d" % number for number in range(len(got))] == got
    assert len(got) >= acknowledged
    newcomer = node.worker.connect("newcomer")
    newcomer.send(Subscribe(1, [Wanted(b"a", 0)]))
    (retained,) = [each for each in newcomer.receive() if isinstance(each, Publish)]
    assert int(retained.payload) >= acknowledged - 1
    node.worker.close()


def test_without_its_replica_nothing_is_acknowledged_and_others_go_on(
    servers: tuple[RunningRedis, RunningRedis],
) -> None:
    """Clients would be told that something is safe that one machine has; or all would wait for a replica."""
    primary, replica = servers
    node = Durable(primary, CONFIG)
    node.subscriber("away", b"a").socket.close()
    client, publisher, clean = node.connect("client"), node.worker.connect("publisher"), node.worker.connect("clean")
    clean.send(Subscribe(1, [Wanted(b"c", 1)]))
    assert [SubAck(1, [1])] == clean.receive()
    replica.pause()
    node.worker.answered = False
    durable = node.worker.worker.links.durable_store
    assert durable is not None
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))
    node.worker.connect("retaining").send(Publish(b"r", b"1", 1, retain=True, packet_id=1))
    client.send(Subscribe(1, [Wanted(b"b", 1)]))
    until(node, lambda: durable.trouble(node.worker.clock.now) is StoreFailure.REPLICAS)
    assert [] == publisher.receive() + client.receive()
    told = " ".join(explain(node.worker.diagnostics.facts("publisher")))
    assert "stores nothing now: too few replicas of Redis have what is stored (0 of 1)." in told
    other = node.worker.connect("other")
    other.send(Publish(b"c", b"2", 1, packet_id=1))
    assert [Ack(PUBACK, 1)] == other.receive()
    assert [b"2"] == [each.payload for each in clean.receive() if isinstance(each, Publish)]
    refused = node.worker.open(V5)
    refused.send(Connect(V5, "new", True, properties={SESSION_EXPIRY_INTERVAL: 3600}))
    answers = refused.receive()
    assert [CloseReason.SERVER_UNAVAILABLE.code] == [each.code for each in answers if isinstance(each, ConnAck)]

    replica.go_on()
    until(node, lambda: len(publisher.inbox) == len(client.inbox) == 1)
    assert [Ack(PUBACK, 1), SubAck(1, [1])] == publisher.receive() + client.receive()
    assert durable.trouble(node.worker.clock.now) is None
    node.worker.close()


@pytest.mark.parametrize("patience", [PATIENCE, 0.0])
def test_a_restore_waits_for_replicas_or_says_that_they_lack_it(
    servers: tuple[RunningRedis, RunningRedis], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    """The operator would take for safe what the machine of Redis alone has."""
    primary, replica = servers
    monkeypatch.setattr(backup, "PATIENCE", patience)
    settings = (
        f"redis.url=unix://{primary.socket}",
        f"store.durability={REPLICATED}",
        f"node.folder={tmp_path / 'node'}",
    )
    options = [word for setting in settings for word in ("--set", setting)]
    done = CliRunner().invoke(app, ["restore", str(FIRST), "--yes", *options])

    assert 0 == done.exit_code, done.output
    lacking = "0 of 1 replica (store.replicas) have it so far: what is lacking there would be lost"
    assert (patience == 0.0) == (lacking in done.output)
    if patience:
        replica_keys = set(replica.client().keys())
        assert set(primary.client().keys()) == replica_keys


def test_replicas_that_lack_something_are_not_counted(servers: tuple[RunningRedis, RunningRedis]) -> None:
    """A replica that is connected, and behind, would count as one that has everything."""
    primary, replica = servers
    replica.pause()
    with primary.client() as client:
        client.set("written", "by another connection")
        assert 0 == replicas_with_all(client, b"mark", 1, 0.1)
        replica.go_on()
        assert 1 == replicas_with_all(client, b"mark", 1, PATIENCE)
    assert b"by another connection" == replica.client().get("written")
    primary.kill()
    with primary.client() as client:
        assert 0 == replicas_with_all(client, b"mark", 1, PATIENCE)


def test_a_full_primary_drains_as_its_replica_does(servers: tuple[RunningRedis, RunningRedis]) -> None:
    """What clients acknowledge would stay, as a primary that is full writes no mark of what replicas have to have."""
    primary, _ = servers
    node = Durable(primary, CONFIG)
    node.subscriber("client", b"a", 2).socket.close()
    publisher = node.worker.connect("publisher")
    node.worker.answered = False
    publisher.send(*[Publish(b"a", b"%d" % number, 2, packet_id=number + 1) for number in range(3)])
    until(node, lambda: len(publisher.inbox) == 3)
    primary.client().config_set("maxmemory", 1)
    client = node.worker.connect("client", clean_start=False)
    kinds: list[int] = []

    def all_done() -> bool:
        for packet in client.receive():
            assert isinstance(packet, Ack | Publish)
            kinds.append(packet.kind if isinstance(packet, Ack) else PUBLISH)
            client.send(Ack(PUBREC if isinstance(packet, Publish) else PUBCOMP, packet.packet_id))
        node.worker.clock.now += 0.01
        return not any(server.client().keys(kind) for server in servers for kind in ("*:queue:*", "*:released:*"))

    until(node, all_done)
    assert [PUBLISH] * 3 + [PUBREL] * 3 == kinds
    node.worker.close()
