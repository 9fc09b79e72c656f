# `weir start` and what it promises of stored sessions: exit codes and sentences, restarts and deaths.
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import redis

from broker.config.schema import MEMORY, POWER, PROCESS
from broker.mqtt.packets import Properties
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from broker.store.redis.keys import DURABLE_FORMAT
from tests.redis_servers import RunningRedis
from tests.system import node
from tests.system.nodes import Node, end_and_check
from tests.system.processes import PATIENCE, free_port, packages, refused_start
from tests.system.raw import RawClient, payloads

pytestmark = pytest.mark.weir_only("a matter of Weir's processes")

StartNode = Callable[..., Node]
StartRedis = Callable[..., RunningRedis]
KEPT: Final[Properties] = {SESSION_EXPIRY_INTERVAL: 300}


@pytest.fixture
def start_durable(tmp_path: Path) -> Iterator[StartNode]:
    """Starts nodes of one worker, all in one folder, and ends them; the argument is the class of durability."""
    started: list[Node] = []

    def start(durability: str) -> Node:
        started.append(Node(tmp_path, store__durability=durability))
        return started[-1]

    yield start
    end_and_check(started)


def refused(folder: Path, **settings: object) -> str:
    """The sentence with which `weir start` refuses these settings."""
    given = {key.replace("__", "."): value for key, value in settings.items()}
    sentence = refused_start(free_port(), folder, given, packages())
    assert 1 == len(sentence.splitlines()), sentence
    return sentence


def embedded(weir: Node) -> "redis.Redis":
    return redis.Redis(unix_socket_path=str(weir.folder / "node" / "redis" / "redis.sock"), decode_responses=True)


@pytest.mark.parametrize(
    ("settings", "durability", "says"),
    [
        ("appendfsync everysec\n", PROCESS, "set appendfsync to always there"),
        ("appendfsync no\n", POWER, "set appendfsync to always there"),
        ("appendonly no\n", PROCESS, "set appendonly to yes there"),
        ("maxmemory 64mb\nmaxmemory-policy allkeys-lru\n", POWER, "set maxmemory-policy to noeviction there"),
        ('rename-command CONFIG ""\n', PROCESS, "does not tell its appendfsync"),
    ],
)
def test_a_server_that_gives_less_is_refused_in_one_sentence(
    start_redis: StartRedis, tmp_path: Path, settings: str, durability: str, says: str
) -> None:
    """A node would promise what its server does not keep, or say so in a traceback."""
    server = start_redis(more=settings)
    sentence = refused(tmp_path, redis__url=f"unix://{server.socket}", store__durability=durability)

    assert f'weir: store.durability is "{durability}"' in sentence
    assert says in sentence
    with server.client() as client:
        assert [] == client.keys()


def test_a_newer_format_at_a_shared_server_is_refused_in_one_sentence(start_redis: StartRedis, tmp_path: Path) -> None:
    """A former version of Weir would damage what a newer one has stored."""
    server = start_redis()
    with server.client() as client:
        client.set("weir:format", "1000")
        sentence = refused(tmp_path, redis__url=f"unix://{server.socket}", store__durability=PROCESS)

        assert "have format 1000, and this version of Weir knows" in sentence
        assert [b"weir:format"] == client.keys()


def test_a_newer_format_in_the_folder_is_refused_in_one_sentence(start_durable: StartNode, tmp_path: Path) -> None:
    """The start would end with a worker that dies, or with exit code 3, and a former version read the data."""
    weir = start_durable(PROCESS)
    with embedded(weir) as client:
        assert str(DURABLE_FORMAT) == client.get("weir:format")
        client.set("weir:format", "1000")
        before = client.dbsize()
    weir.end()

    settings = {"node.folder": tmp_path / "node", "node.name": "weir", "store.durability": POWER, "--name": "weir"}
    sentence = refused_start(free_port(), tmp_path, settings, packages())

    assert "1000" in sentence.splitlines()[-1] and f"this version of Weir knows format {DURABLE_FORMAT}:" in sentence
    weir = start_durable(MEMORY)
    with embedded(weir) as client:
        assert ("1000", True) == (client.get("weir:format"), client.dbsize() >= before)


@pytest.mark.parametrize("durability", [PROCESS, POWER])
def test_sessions_survive_a_stop_and_the_death_of_everything(start_durable: StartNode, durability: str) -> None:
    """What was stored would be gone after `weir stop`, a reboot or a crash."""
    weir = start_durable(durability)
    client = weir.client("kept", properties=KEPT)
    client.subscribe("t", qos=1)
    client.disconnect()
    weir.client("publisher").publish("t", b"1", qos=1)

    weir.end()  # SIGTERM, as `weir stop` does
    assert 0 == weir.process.returncode
    weir = start_durable(durability)
    weir.client("publisher").publish("t", b"2", qos=1)

    os.killpg(weir.process.pid, signal.SIGKILL)
    weir.process.wait(PATIENCE)
    weir = start_durable(durability)
    publisher = weir.client("publisher")
    publisher.publish("t", b"3", qos=1)
    with embedded(weir) as asked:
        os.kill(asked.info("server")["process_id"], signal.SIGKILL)
    weir.wait_for("embedded_redis_started", 4)

    client = weir.stranger()
    assert client.connect("kept", clean_start=False, properties=KEPT).session_present
    publisher.publish("t", b"end", qos=1)
    assert [b"1", b"2", b"3"] == payloads(client.take_until(b"end"))


def test_a_dead_worker_loses_only_the_sessions_in_its_memory(start_durable: StartNode) -> None:
    """An operator would take each crash for a loss of all sessions."""
    weir = start_durable(PROCESS)
    kept = [weir.client(f"kept-{number}", properties=KEPT) for number in range(3)]
    weir.client("passing")
    weir.wait_until(lambda: gauges(weir) == (4, 1), "count its sessions")
    os.kill(weir.pids[0], signal.SIGKILL)

    assert 1 == weir.wait_for("worker_died")["sessions_lost"]
    weir.wait_for("worker_ready", 2)
    for number, former in enumerate(kept):
        former.expect_end()
        again: RawClient = weir.stranger()
        assert again.connect(f"kept-{number}", clean_start=False, properties=KEPT).session_present


def gauges(weir: Node) -> tuple[int, int]:
    told = node.status(weir.control)["totals"]["gauges"]
    return told.get("sessions", 0), told.get("sessions_in_memory", 0)
