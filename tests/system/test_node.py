# A node under faults: real processes that are killed, stopped and started beside each other.
#
# Where a test waits, it waits for what the node says or does. What it must not do, it is given time to do wrong.
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import redis

from broker.mqtt.packets import V5, V311, Connect, Disconnect, Publish, SubAck, Subscribe, Wanted, Will
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from tests.system import node
from tests.system.nodes import Node, StartNode, lives, stop
from tests.system.processes import (
    HOST,
    PATIENCE,
    BrokerProcess,
    control_socket,
    free_port,
    packages,
    refused_start,
    weir_command,
)
from tests.system.processes import weir_environment as environment_of
from tests.system.raw import RawClient

pytestmark = pytest.mark.weir_only("a matter of Weir's processes")

LONGEST_SILENCE: Final = 1.0  # seconds; then a worker is dead


# --- a worker dies


def test_a_killed_worker_is_replaced(start_node: StartNode) -> None:
    """One crash would be the end of the service, or of what is known about it."""
    weir = start_node()
    away = weir.client("away", properties={SESSION_EXPIRY_INTERVAL: 300})
    (pid,) = weir.pids
    weir.wait_until(lambda: node.status(weir.control)["totals"]["gauges"].get("sessions") == 1, "count sessions")

    os.kill(pid, signal.SIGKILL)

    assert [] == away.expect_end()
    weir.client("back").ping()
    died = weir.wait_for("worker_died")
    assert (0, pid, "signal SIGKILL", 1) == tuple(died[key] for key in ("worker", "pid", "how", "sessions_lost"))
    weir.wait_until(lambda: node.serves(weir.control), "serve again")
    assert [pid] != weir.pids
    assert 1 == node.status(weir.control)["workers"][0]["deaths"]


def wills_left(weir: Node) -> list[str]:
    """The clients whose wills are in the Redis of *weir*."""
    with redis.Redis(
        unix_socket_path=str(weir.folder / "node" / "redis" / "redis.sock"), decode_responses=True
    ) as asked:
        return [client for key in asked.scan_iter("weir:*wills*") for client in asked.hkeys(key)]


@pytest.mark.parametrize("whole", [False, True])
def test_the_wills_of_those_who_were_killed_are_published(start_node: StartNode, whole: bool, tmp_path: Path) -> None:
    """Nobody would hear that the clients of a worker, or of a node, are gone [MQTT-3.1.2-8]."""
    weir = start_node()
    weir.client("gone", will=Will(b"left", b"gone", retain=True))
    weir.wait_until(lambda: wills_left(weir) == ["gone"], "note the will")
    if whole:
        weir.process.kill()
        weir.process.wait(PATIENCE)
        weir = start_node(port=weir.port)
    else:
        os.kill(weir.pids[0], signal.SIGKILL)
        weir.wait_for("worker_died")
    weir.wait_until(lambda: node.serves(weir.control) and wills_left(weir) == [], "mourn")

    watcher = weir.client("watcher")
    watcher.send(Subscribe(1, [Wanted(b"left", 0)]))
    watcher.expect(SubAck)
    assert b"gone" == watcher.expect(Publish).payload


def test_a_redis_that_cannot_be_reached_is_one_sentence(tmp_path: Path) -> None:
    """A node would begin to serve, half started."""
    url = f"redis://{HOST}:{free_port()}"
    settings = {"redis.url": url, "node.folder": tmp_path / "node"}
    sentence = refused_start(free_port(), tmp_path, settings, packages())

    assert sentence.startswith(f"weir: {url} cannot be reached: ")
    assert 1 == sentence.count("\n")


def test_a_stopped_worker_is_killed_and_who_waited_at_its_door_is_served(start_node: StartNode) -> None:
    """A wedged worker would hold its clients for ever, or its end refuse those who had come meanwhile."""
    weir = start_node()
    (pid,) = weir.pids
    stop(pid)
    began = time.monotonic()
    waiting = weir.stranger()
    waiting.send(Connect(V5, "waiting"))

    waiting.receive()

    assert time.monotonic() - began > LONGEST_SILENCE / 2  # the stopped one cannot have answered
    died = weir.wait_for("worker_died")
    assert "has not turned" in died["killed_because"]
    assert not lives(pid)


def test_the_others_serve_on_when_one_dies(start_node: StartNode) -> None:
    """A crash of one worker would cost the clients of all."""
    weir = start_node(workers=2)
    clients: list[RawClient] = []
    while len({one["worker"] for one in node.ask(weir.control, "clients", limit=100, match="")["clients"]}) < 2:
        clients.append(weir.client(f"client-{len(clients)}"))
    first, second = weir.pids
    os.kill(first, signal.SIGKILL)
    weir.wait_for("worker_died")

    left = []
    for client in clients:
        try:
            client.ping()
            left.append(client)
        except (AssertionError, OSError):
            pass  # was the killed one's
    assert 0 < len(left) < len(clients)
    weir.wait_until(lambda: node.serves(weir.control), "serve again")
    assert second == weir.pids[1]
    for client in left:
        client.ping()


def test_nobody_waits_for_a_worker_that_has_not_begun(start_node: StartNode) -> None:
    """Each SUBACK, and each session that moves, would come only once the successor of a killed worker is there."""
    weir = start_node(workers=2)
    client = weir.client("client")
    (its,) = [one["worker"] for one in node.ask(weir.control, "clients", limit=100, match="")["clients"]]
    former = weir.pids[1 - its]
    os.kill(former, signal.SIGKILL)
    weir.wait_for("worker_restarting")
    weir.wait_until(lambda: weir.pids[1 - its] not in (0, former), "start another worker")
    stop(weir.pids[1 - its])
    client.subscribe("a")

    assert 2 == len(weir.lines("worker_ready"))


def test_workers_that_cannot_live_end_the_node(start_node: StartNode, tmp_path: Path) -> None:
    """The node would try for ever, at the cost of a processor, and nobody would learn why nothing works."""
    passwords = tmp_path / "passwords"
    passwords.write_text("")
    weir = start_node(access__password_file=passwords)
    passwords.write_text("alice:plain\n")

    os.kill(weir.pids[0], signal.SIGKILL)

    assert 3 == weir.process.wait(30.0)
    gave_up = weir.lines("restart_limit_reached")[-1]
    assert f"The password file {passwords}, line 1" in gave_up["last_output"]
    assert "worker 0 died 5 times" in gave_up["why"]
    assert 0 != reached(weir.port)


@pytest.mark.slow
def test_who_would_have_to_wait_for_long_is_refused(start_node: StartNode) -> None:
    """Clients would hang at a worker that does not come back, while another worker or node would serve them."""
    weir = start_node()
    for deaths in range(1, 7):
        os.kill(weir.pids[0], signal.SIGKILL)
        paused = weir.wait_for("worker_restarting", deaths)
        if deaths < 6:
            weir.wait_for("worker_ready", deaths + 1)

    assert 1.6 == paused["pause_s"]
    weir.wait_until(lambda: reached(weir.port) != 0, "refuse")
    weir.wait_until(lambda: reached(weir.port) == 0, "listen again")
    weir.client("patient").ping()


def reached(port: int) -> int:
    """0, or why nobody can connect."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port))


def test_what_a_worker_says_before_it_dies_is_told(start_node: StartNode) -> None:
    """Of a crash in C nothing would be left but a number."""
    weir = start_node()

    os.kill(weir.pids[0], signal.SIGABRT)

    assert "Fatal Python error: Aborted" in weir.wait_for("worker_died")["last_output"]


# --- the supervisor dies, or all of them stop


def test_nothing_outlives_a_killed_supervisor_and_nothing_left_stops_a_start(start_node: StartNode) -> None:
    """A dead supervisor's workers would keep the ports, and serve without anybody watching them."""
    weir = start_node(workers=2)
    pids = weir.pids
    weir.client("somebody")

    weir.process.kill()
    weir.process.wait()
    deadline = time.monotonic() + PATIENCE
    while any(map(lives, pids)):
        assert time.monotonic() < deadline, "workers live on"
        time.sleep(0.01)

    assert weir.control.exists()
    again = start_node(port=weir.port)
    again.client("somebody").ping()


def test_a_start_right_after_a_kill_serves(start_node: StartNode) -> None:
    """Whoever restarts a node at once would find its port in use by workers that are about to end."""
    weir = start_node()
    weir.process.kill()

    again = start_node(port=weir.port)

    again.client("somebody").ping()


def test_a_node_that_was_stopped_as_a_whole_goes_on_as_it_was(start_node: StartNode) -> None:
    """Ctrl-Z and fg, or a container that was frozen, would cost all connections."""
    weir = start_node(workers=2)
    client = weir.client("patient")
    pids = weir.pids

    for _ in range(3):
        os.killpg(weir.process.pid, signal.SIGSTOP)
        time.sleep(2 * LONGEST_SILENCE)  # what is tested is that time passes
        os.killpg(weir.process.pid, signal.SIGCONT)
        client.ping()
    time.sleep(LONGEST_SILENCE)  # to kill somebody

    client.ping()
    assert pids == weir.pids
    assert [] == weir.lines("worker_died")


# --- signals


def test_a_second_sigterm_ends_the_node_at_once(start_node: StartNode) -> None:
    """A node in a hurry would wait for clients that do not go."""
    weir = start_node(drain__timeout="60s")
    (pid,) = weir.pids
    client = weir.client("stays")
    weir.process.terminate()
    weir.wait_for("stopping")
    assert isinstance(client.receive(), Disconnect)
    assert lives(pid)

    weir.process.terminate()

    assert 128 + signal.SIGTERM == weir.process.wait(PATIENCE)
    assert not lives(pid)


def test_signals_to_the_whole_group_are_the_supervisors(start_node: StartNode) -> None:
    """Ctrl-C would end the workers before they could tell their clients."""
    weir = start_node()
    client = weir.client("told")

    os.killpg(weir.process.pid, signal.SIGINT)

    assert [0x8B] == [packet.code for packet in client.expect_end() if isinstance(packet, Disconnect)]
    client.close()
    assert 0 == weir.process.wait(PATIENCE)
    assert [] == weir.lines("worker_died")


def test_a_worker_that_does_not_end_is_killed_at_last(start_node: StartNode) -> None:
    """A wedged worker would keep a node from ever stopping."""
    weir = start_node(drain__timeout="100ms")
    stop(weir.pids[0])

    weir.process.terminate()

    assert 0 == weir.process.wait(PATIENCE)


# --- starting


def test_a_second_start_is_refused_and_the_first_serves_on(
    start_weir: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    """Two supervisors would share one folder, or the second one end the first."""
    first = start_weir({"log.format": "json"})

    sentence = refused_start(first.port, tmp_path, {}, packages())

    assert f"runs already (process {first.pid})" in sentence
    assert 1 == len(sentence.splitlines())
    assert first.control is not None and node.serves(first.control)


def test_a_port_in_use_leaves_nothing_behind(tmp_path: Path) -> None:
    """What half started would hold the folder, or the ports that were free."""
    free = free_port()
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        settings = {"listeners.ws.enabled": "true", "listeners.ws.port": other.getsockname()[1]}
        refused_start(free, tmp_path, settings, packages())

    assert not control_socket(free, tmp_path).exists()
    weir = BrokerProcess(
        weir_command(free, settings), free, tmp_path, environment_of(packages()), control_socket(free, tmp_path)
    )
    assert 0 == weir.terminate()


def test_lines_say_which_node_and_which_worker(start_node: StartNode) -> None:
    """In a log of several nodes nobody could tell who says what."""
    weir = start_node(workers=2, node__name="herbert")
    weir.client("somebody")

    connected = weir.wait_for("client_connected")  # written when the client has its CONNACK
    assert "herbert" == connected["node"]
    assert connected["worker"] in (0, 1)
    assert {"herbert"} == {line["node"] for line in weir.lines("worker_ready")}


# --- the control socket


def test_workers_are_replaced_one_after_another(start_node: StartNode) -> None:
    """An upgrade would need an outage, or clients would take it for a crash."""
    weir = start_node(workers=2, drain__timeout="1s")
    clients = [weir.client(f"client-{n}", properties={SESSION_EXPIRY_INTERVAL: 60}) for n in range(8)]
    before = weir.pids

    told = node.ask(weir.control, "restart")["workers"]

    assert [0, 1] == [one["worker"] for one in told]
    assert [one["pid"] for one in told] == weir.pids
    assert not set(before) & set(weir.pids)
    assert 0 == sum(one["sessions_lost"] for one in told)
    heard = [client.expect_end() for client in clients]
    assert [[0x8B]] * 8 == [[one.code for one in said if isinstance(one, Disconnect)] for said in heard]
    again = [weir.stranger().connect(f"client-{n}", clean_start=False) for n in range(8)]
    assert [True] * 8 == [connack.session_present for connack in again]
    assert [] == weir.lines("worker_died")
    first_ended, second_ready = weir.lines("worker_stopped")[1]["timestamp"], weir.lines("worker_ready")[2]["timestamp"]
    assert second_ready < first_ended  # the second one went when the first one's successor was there


@pytest.mark.parametrize(
    ("request_line", "what"),
    [
        (b"hello\n", "not JSON"),
        (b'{"weir": 1, "command": "explode"}\n', "The command 'explode' does not exist"),
        (b'{"weir": 9, "command": "stop"}\n', "version 9"),
        (b'{"weir": 1, "command": "stop", "hard": true}\n', "no argument 'hard'"),
        (b'{"weir": 1, "command": "kick"}\n', "lacks its argument client"),
        (b'{"weir": 1, "command": "kick", "client": 7}\n', "is not of the type str"),
        (b'{"weir": 1, "command": "stop"}\n{"weir": 1, "command": "stop"}\n', "more data follows"),
        (b'{"weir": 1, "command": "kick", "client": "' + b"x" * 70_000 + b'"}\n', "65536 bytes"),
    ],
)
def test_a_bad_request_is_answered_and_changes_nothing(broker: BrokerProcess, request_line: bytes, what: str) -> None:
    """A slip of a program would stop a node, hang it, or get no answer."""
    assert broker.control is not None

    answer = node.say(broker.control, request_line)

    assert False is answer["ok"]
    assert what in answer["error"]
    assert node.serves(broker.control)


def test_only_the_owner_may_open_the_control_socket(broker: BrokerProcess) -> None:
    """Any user of the machine could stop the node."""
    assert broker.control is not None

    assert 0o600 == broker.control.stat().st_mode & 0o777


def test_the_admin_port_tells_health_and_figures(start_node: StartNode) -> None:
    """Whoever runs many nodes could neither see them nor take them out of service."""
    admin = free_port()
    weir = start_node(admin__enabled="true", admin__port=admin, drain__timeout="60s")
    weir.client("somebody").publish("t", b"x")

    assert (200, "live\n") == get(admin, "/health/live")
    assert (200, "ready\n") == get(admin, "/health/ready")
    assert (404, 405) == (get(admin, "/nothing")[0], get(admin, "/metrics", "DELETE")[0])
    weir.wait_until(lambda: "\nweir_messages_received_total 1.0\n" in get(admin, "/metrics")[1], "count a message")
    text = get(admin, "/metrics")[1]
    assert "\nweir_clients_connected 1.0\n" in text
    assert '\nweir_worker_up{worker="0"} 1.0\n' in text

    os.kill(weir.pids[0], signal.SIGKILL)
    weir.wait_for("worker_ready", 2)
    assert (200, "ready\n") == get(admin, "/health/ready")
    text = get(admin, "/metrics")[1]
    assert "\nweir_messages_received_total 1.0\n" in text
    assert '\nweir_worker_deaths_total{worker="0"} 1.0\n' in text

    weir.client("stays")
    weir.process.terminate()
    weir.wait_for("stopping")
    assert (503, "stopping\n") == get(admin, "/health/ready")
    assert (200, "live\n") == get(admin, "/health/live")
    weir.process.terminate()


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    with socket.create_connection((HOST, port), timeout=PATIENCE) as connection:
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def test_version_3_clients_are_kicked_without_a_word(start_node: StartNode) -> None:
    """They would be sent a packet that their version does not have [3.1.1: 3.14]."""
    weir = start_node()
    old = weir.stranger(V311)
    old.connect("old")

    node.ask(weir.control, "kick", client="old")

    assert [] == old.expect_end()
