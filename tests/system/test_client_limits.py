# Limits of single clients on a real node of two workers: set, felt, kept, and over by themselves.
#
# How fast a client is, is not measured: a limit of few messages in a long time holds it, and it runs when that is over.
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from broker.mqtt.encode import encode
from broker.mqtt.packets import PUBACK, V311, Ack, Packet, PingReq, Publish
from tests.cli.running import weir as run
from tests.system import node
from tests.system.processes import PATIENCE, BrokerProcess
from tests.system.raw import RawClient

pytestmark = pytest.mark.weir_only("a matter of Weir's limits")

StartWeir = Callable[..., BrokerProcess]
SETTINGS: Final[dict[str, object]] = {"node.workers": 2, "log.format": "json", "quotas.reserve": 0}
MANY: Final = 1000  # publishes, for which a client at level 10 needs more than a minute


@pytest.fixture
def clients() -> Iterator[Callable[[BrokerProcess, str], RawClient]]:
    made: list[RawClient] = []

    def connect(weir: BrokerProcess, client_id: str) -> RawClient:
        client = RawClient(weir.port, V311)
        client.connect(client_id)
        made.append(client)
        return client

    yield connect
    for one in made:
        one.close()


def control(weir: BrokerProcess) -> Path:
    assert weir.control is not None
    return weir.control


def limit(weir: BrokerProcess, *arguments: str) -> Any:
    """What `weir limit` answers."""
    done = run("limit", *arguments, "--folder", str(control(weir).parent), "--json")
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout)


def passed(client: RawClient, count: int) -> int:
    """How many of *count* publishes are taken now: the answer to a ping behind them overtakes those that wait."""
    packets: list[Packet] = [Publish(b"x", b"", 1, packet_id=client.next_packet_id()) for _ in range(count)]
    client.socket.sendall(b"".join(encode(packet, V311) for packet in [*packets, PingReq()]))
    taken = 0
    while isinstance(client.receive(), Ack):
        taken += 1
    return taken


def acknowledged(client: RawClient, count: int) -> None:
    """So many that waited are taken at last."""
    for _ in range(count):
        assert PUBACK == client.expect(Ack).kind


def worker_of(weir: BrokerProcess, client_id: str) -> int:
    return int(node.ask(control(weir), "client", client=client_id)["worker"])


def levels(weir: BrokerProcess) -> list[int]:
    """In force at each worker, as of the last second."""
    told = node.status(control(weir))["workers"]
    return [worker["statistics"].get("overload", {}).get("cluster_level", 0) for worker in told]


def events(weir: BrokerProcess, event: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in weir.wait_for_log(f'"event": "{event}"')]


def test_a_client_that_is_there_is_slowed_at_once_until_the_limit_ends(
    start_weir: StartWeir, clients: Callable[[BrokerProcess, str], RawClient]
) -> None:
    """Nobody could slow a client down without a restart; or it would stay so until somebody thinks of it."""
    weir = start_weir(SETTINGS)
    client = clients(weir, "noisy")
    assert 20 == passed(client, 20)
    told = limit(weir, "set", "noisy", "--rate", "3:86400", "--ttl", "4s", "--reason", "floods since noon")
    assert {"client": "noisy", "workers": [worker_of(weir, "noisy")]} == told
    assert 3 == passed(client, 20)
    # Asked for on the control socket: the limit ends soon, and a command takes seconds to start on a busy machine.
    (listed,) = node.ask(control(weir), "limit_list")["limits"]
    assert ("noisy", "3:86400", False, "floods since noon") == tuple(
        listed[key] for key in ("client", "rate", "exempt", "reason")
    )
    acknowledged(client, 17)

    (made,), (ended,) = events(weir, "limit_set"), events(weir, "limit_expired")
    assert made["by"].endswith(f"(uid {os.getuid()})") and made["by"] == ended["set_by"] == listed["by"]
    assert ("floods since noon", 4.0) == (made["why"], made["seconds"])
    assert [] == limit(weir, "list")["limits"]


def test_a_limit_holds_when_its_client_comes_back_at_whatever_worker(
    start_weir: StartWeir, clients: Callable[[BrokerProcess, str], RawClient]
) -> None:
    """A client would be free once its worker crashed or was replaced, or the node was."""
    weir = start_weir(SETTINGS)
    limit(weir, "set", "noisy", "--rate", "1:86400", "--ttl", "1h", "--reason", "test")
    folder = control(weir).parent
    begun = weir.log_text().count('"worker_ready"')
    os.kill(node.worker_pids(control(weir))[0], signal.SIGKILL)
    weir.wait_for_log('"worker_ready"', since=begun)
    assert 0 == run("restart", "--folder", str(folder)).returncode
    seen: set[int] = set()
    deadline = time.monotonic() + PATIENCE
    while len(seen) < 2:
        assert time.monotonic() < deadline, f"the kernel prefers worker {seen}"
        client = clients(weir, "noisy")
        worker = worker_of(weir, "noisy")
        assert (0 if worker in seen else 1) == passed(client, 5)
        seen.add(worker)
    assert 0 == weir.terminate()

    again = start_weir({**SETTINGS, "node.folder": folder, "node.name": folder.name}, port=weir.port)
    assert control(again).parent.exists()
    client = clients(again, "noisy")
    assert 1 == passed(client, 5)
    limit(again, "drop", "noisy")
    acknowledged(client, 4)


def test_overrides_of_the_file_hold_from_the_start_and_are_read_again(
    start_weir: StartWeir, clients: Callable[[BrokerProcess, str], RawClient], tmp_path: Path
) -> None:
    """A limit without an end would need a restart of the node, which costs the sessions, or would not hold at all."""
    file = tmp_path / "weir.toml"
    file.write_text('[[clients.overrides]]\nclient = "noisy"\nincoming_messages = "3:86400"\n')
    weir = start_weir({**SETTINGS, "--config": file})
    folder = str(control(weir).parent)
    client = clients(weir, "noisy")
    assert 3 == passed(client, 5)
    assert ["noisy"] == [one["name"] for one in limit(weir, "list")["configured"]]
    assert "client noisy" in run("limit", "list", "--folder", folder, COLUMNS="200").stdout
    shown = run("clients", "show", "noisy", "--folder", folder, COLUMNS="200").stdout
    assert 'incoming_messages = "3:86400" (clients.overrides, client noisy)' in shown
    file.write_text('[[clients.overrides]]\nclient = "noisy"\nqeue = 5\n')
    wrong = run("reload", "--folder", folder)
    assert (2, True) == (wrong.returncode, "qeue of client noisy is no setting there" in wrong.stderr)
    file.write_text("")
    weir.process.send_signal(signal.SIGHUP)

    acknowledged(client, 2)
    assert 20 == passed(client, 20)
    assert 20 == passed(clients(weir, "noisy"), 20)


def test_protection_leaves_alone_whom_it_is_told_to(
    start_weir: StartWeir, clients: Callable[[BrokerProcess, str], RawClient]
) -> None:
    """A client that must never wait would be held back with all others when the node is overloaded."""
    weir = start_weir(SETTINGS, environment={"WEIR_TEST": "1"})
    limit(weir, "set", "dear", "--no-protection", "--ttl", "1h", "--reason", "it steers the plant")
    other, dear = clients(weir, "other"), clients(weir, "dear")
    for worker in range(2):
        node.ask(control(weir), "inject", worker=worker, signal="lag", value=1.0, seconds=60.0)
    deadline = time.monotonic() + PATIENCE
    while [10, 10] != levels(weir):
        assert time.monotonic() < deadline, "the level does not rise"
        time.sleep(0.05)  # between two looks at processes that are not ours
    assert passed(other, MANY) < MANY
    assert MANY == passed(dear, MANY)
