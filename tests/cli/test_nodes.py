# The commands about nodes that run: what they print, and what they say when something is not so.
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.mqtt.packets import V5, Disconnect, Will
from cli.nodes import backbone_lines, drain_lines, duration, log_lines, short
from supervisor.folder import base_folder
from tests.cli.running import weir
from tests.system.processes import HOST, PATIENCE, BrokerProcess, free_port
from tests.system.raw import RawClient

pytestmark = pytest.mark.system


@pytest.fixture
def client(running: BrokerProcess) -> Iterator[RawClient]:
    one = RawClient(running.port, V5)
    one.connect("[bold]one[/bold]", will=Will(b"last/words", b"gone", 0, False))
    one.subscribe("news/#", qos=1)
    yield one
    one.close()


@pytest.fixture
def detached(tmp_path: Path) -> Iterator[Path]:
    """The folder of a node to start and stop; whatever a test leaves running in it is stopped."""
    folder = tmp_path / "node"
    yield folder
    weir("stop", "--folder", str(folder))


def start_detached(folder: Path, port: int, *more: str) -> subprocess.CompletedProcess[str]:
    return weir("start", "--detach", "--port", str(port), "--host", HOST, "--set", f"node.folder={folder}", *more)


def test_status_is_for_people_and_for_programs(running: BrokerProcess, folder: str, client: RawClient) -> None:
    """Nobody could see at a glance whether the node is well."""
    told = json.loads(weir("status", "--folder", folder, "--json").stdout)
    shown = weir("status", "--folder", folder)

    assert (running.pid, "serving") == (told["pid"], told["state"])
    assert [["tcp", HOST, running.port]] == told["listeners"]
    assert [0] == [worker["worker"] for worker in told["workers"]]
    assert 0 == shown.returncode
    for word in (f"node-{running.port}", "serving", f"tcp {HOST}:{running.port}", str(told["workers"][0]["pid"])):
        assert word in shown.stdout
    assert max(map(len, weir("status", "--folder", folder, COLUMNS="80").stdout.splitlines())) <= 80


def test_logs_that_cannot_be_used_are_named() -> None:
    """Nobody would see which services get nothing."""
    named = [["weir.msg.app.a", "the topic does not exist"]]
    workers: list[dict[str, Any]] = [
        {"worker": 0, "statistics": {"logs": {"failing": 3, "named": named}}},
        {"worker": 1},
    ]

    assert ["weir.msg.app.a cannot be used: the topic does not exist", "2 more logs of worker 0 cannot be used"] == [
        line.strip() for line in log_lines(workers)
    ]


def test_a_backbone_is_shown_with_how_far_it_is_behind_and_what_is_wrong() -> None:
    """Nobody would see that messages come late, or that none is accepted."""
    wrong = {"trouble": "the log cannot be reached", "unread": "partition 3 cannot be read: it has no leader"}
    workers: list[dict[str, Any]] = [
        {"statistics": {"backbone": wrong}},
        {"statistics": {"backbone": {"trouble": "", "unread": ""}}},
        {},
    ]
    fine: list[dict[str, Any]] = [{"statistics": {"backbone": {"trouble": "", "unread": ""}}}]

    assert [
        "backbone    the oldest publish has waited for 2.5 s; 7 records not done",
        "            nothing is accepted: the log cannot be reached",
        "            partition 3 cannot be read: it has no leader",
    ] == backbone_lines(workers, {"backbone_lag_ms": 2500.0, "backbone_behind": 7})
    assert ["backbone    no publish waits to be dispatched; 1 record not done"] == backbone_lines(
        fine, {"backbone_behind": 1}
    )
    assert [] == backbone_lines([{}, {"statistics": {}}], {})


def test_clients_are_listed_shown_and_kicked(folder: str, client: RawClient) -> None:
    """An operator could neither find a client nor be rid of it; a client id could paint on the terminal."""
    listed = weir("clients", "list", "--folder", folder).stdout
    told = json.loads(weir("clients", "list", "one", "--folder", folder, "--json").stdout)
    others = json.loads(weir("clients", "list", "two", "--folder", folder, "--json").stdout)
    shown = weir("clients", "show", "[bold]one[/bold]", "--folder", folder).stdout
    kicked = weir("clients", "kick", "[bold]one[/bold]", "--folder", folder)

    assert "[bold]one[/bold]" in listed
    assert "1 client" == listed.splitlines()[-1].strip()
    assert ([("[bold]one[/bold]", True, 5, 1)], False) == (
        [(one["client"], one["connected"], one["version"], one["subscriptions"]) for one in told["clients"]],
        told["more"],
    )
    assert [] == others["clients"]
    assert "last/words" in shown and re.search(r"news/# +1\b", shown)
    assert 0 == kicked.returncode
    assert [0x98] == [packet.code for packet in client.expect_end() if isinstance(packet, Disconnect)]


@pytest.mark.parametrize("command", [["clients", "show"], ["clients", "kick"], ["why"]])
def test_a_client_that_is_not_there_is_exit_code_1(folder: str, command: list[str]) -> None:
    """A program could not tell a slip from an answer."""
    done = weir(*command, "nobody", "--folder", folder)

    assert (1, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines()))
    assert "'nobody'" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["stop"],
        ["restart"],
        ["reload"],
        ["clients", "list"],
        ["clients", "show", "x"],
        ["sessions", "list"],
        ["queue", "export", "x"],
        ["retained", "list"],
        ["limit", "list"],
        ["why", "x"],
        ["logs"],
    ],
)
def test_a_node_that_does_not_run_is_one_sentence_and_exit_code_1(tmp_path: Path, command: list[str]) -> None:
    """The user would see a traceback, or wait."""
    done = weir(*command, "--folder", str(tmp_path / "none"), "--name", "nobody")

    assert (1, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines())), done.stderr
    assert done.stderr.startswith("weir: The node nobody ")


def test_a_wrong_name_is_told_which_ones_there_are(tmp_path: Path) -> None:
    """Who misspelt a name would believe that the node had ended."""
    port = free_port()
    home = {"XDG_STATE_HOME": str(tmp_path)} if os.geteuid() else {}
    name = f"test-{port}"
    assert 0 == weir("start", "--detach", "--name", name, "--port", str(port), "--host", HOST, **home).returncode
    try:
        wrong = weir("status", "--name", f"{name}-x", **home)
        listed = weir("nodes", **home)
        told = [one for one in json.loads(weir("nodes", "--json", **home).stdout) if one["node"] == name]
    finally:
        stopped = weir("stop", "--name", name, **home)
        if not home:
            shutil.rmtree(base_folder() / name)  # root's is the machine's

    assert 1 == wrong.returncode
    assert "Running nodes, for --name: " in wrong.stderr and name in wrong.stderr
    assert name in listed.stdout
    assert [("serving", 1, 0)] == [(one["state"], one["workers"], one["clients"]) for one in told]
    assert 0 == stopped.returncode


# Whoever it becomes may perhaps not read the interpreter's files: what it needs is loaded before.
SOMEBODY_ELSE = """
import os, sys, typer
from cli.control_client import ControlClient
from supervisor.folder import NodeFolder
os.setgid(65534)
os.setuid(65534)
try:
    ControlClient(NodeFolder("theirs", sys.argv[1])).request("status")
except typer.Exit as end:
    sys.exit(end.exit_code)
"""


def test_a_node_of_somebody_else_says_whose_it_is(folder: str) -> None:
    """The user would not know what to do about it."""
    if os.geteuid():
        pytest.skip("only root can become somebody else")
    os.chmod(Path(folder).parent, 0o755)
    command = [sys.executable, "-c", SOMEBODY_ELSE, folder]
    environ = {**os.environ, "HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environ)

    assert (2, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines())), done.stderr
    assert "No permission" in done.stderr and "root may" in done.stderr


def test_a_node_goes_on_without_the_command_that_started_it(detached: Path) -> None:
    """A node would end with the terminal, or its log be lost."""
    port = free_port()

    started = start_detached(detached, port, "--name", "far")

    assert (0, "") == (started.returncode, started.stderr)
    assert re.fullmatch(
        rf"The node far serves \(process \d+\)\. Its log is {detached}/log/weir.log\.\n", started.stdout
    )
    client = RawClient(port, V5)
    client.connect("somebody")
    client.close()
    log = weir("logs", "--folder", str(detached)).stdout.splitlines()
    assert {"listening", "started", "client_connected"} <= {json.loads(line)["event"] for line in log}
    assert log[-1:] == weir("logs", "-n", "1", "--folder", str(detached)).stdout.splitlines()
    stopped = weir("stop", "--folder", str(detached))
    assert (0, "The node far was stopped.\n") == (stopped.returncode, stopped.stdout)
    assert "stopped" in weir("logs", "-n", "1", "--folder", str(detached)).stdout


def test_a_detached_start_fails_as_the_other_one_does(detached: Path, running: BrokerProcess) -> None:
    """The command would say that all is well, and nothing would serve."""
    done = start_detached(detached, running.port)

    assert (2, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines()))
    assert f"cannot listen on {HOST} port {running.port}" in done.stderr
    assert done.stderr.endswith("Address already in use (listeners.tcp.port, --port)\n")
    assert 1 == weir("status", "--folder", str(detached)).returncode


def test_a_log_is_followed(detached: Path) -> None:
    """Whoever looks for a mistake would have to ask again and again."""
    port = free_port()
    assert 0 == start_detached(detached, port).returncode
    command = [sys.executable, "-m", "cli", "logs", "-f", "-n", "1", "--folder", str(detached)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as f:
        assert f.stdout is not None
        assert f.stdout.readline()  # from now on it follows
        os.rename(detached / "log" / "weir.log", detached / "log" / "weir.log.1")
        assert 0 == weir("reload", "--folder", str(detached)).returncode
        line = f.stdout.readline()
        f.terminate()

    assert "reloaded" in line


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.nightly)])
def test_start_status_restart_stop(detached: Path, rounds: int) -> None:
    """One of them would, once in a while, be too early for another."""
    port = free_port()
    for _ in range(rounds):
        started = start_detached(detached, port, "--set", "drain.timeout=100ms")
        assert 0 == started.returncode, started.stderr
        client = RawClient(port, V5)
        client.connect("attached")
        for command in (["status"], ["restart"], ["status"], ["stop"]):
            done = weir(*command, "--folder", str(detached))
            assert (0, "") == (done.returncode, done.stderr), command
        assert [0x8B] == [packet.code for packet in client.expect_end() if isinstance(packet, Disconnect)]
        client.close()


def test_two_nodes_by_name_beside_each_other(tmp_path: Path) -> None:
    """One machine could have one node only, or a command reach the wrong one."""
    folders = {name: tmp_path / name for name in ("left", "right")}
    try:
        for name, folder in folders.items():
            assert 0 == start_detached(folder, free_port(), "--name", name).returncode
        told = [json.loads(weir("status", "--folder", str(folder), "--json").stdout) for folder in folders.values()]
        assert 0 == weir("stop", "--folder", str(folders["left"])).returncode
        assert 0 == weir("status", "--folder", str(folders["right"])).returncode
    finally:
        for folder in folders.values():
            weir("stop", "--folder", str(folder))

    assert ["left", "right"] == [one["node"] for one in told]


def test_the_shell_can_complete() -> None:
    """Every option would have to be typed, or looked up."""
    done = weir(_WEIR_COMPLETE="complete_bash", COMP_WORDS="weir sta", COMP_CWORD="1")

    assert ["start", "status"] == sorted(done.stdout.split())


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (9999, "9999"),
        (10_000, "10k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (12_345_678, "12.3M"),
        (10**13, "10T"),
    ],
)
def test_large_numbers_are_short(number: int, text: str) -> None:
    """A table would not fit the terminal after a day of service."""
    assert text == short(number)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.9, "59s"), (61, "1m 1s"), (3661, "1h 1m"), (90_061, "1d 1h")]
)
def test_durations_have_their_two_largest_units(seconds: float, text: str) -> None:
    """An uptime would have to be divided in the head."""
    assert text == duration(seconds)


def test_the_pace_of_a_drain_does_not_tell_a_level_that_nobody_has() -> None:
    """Somebody would look for an overload, where the other nodes do not answer."""
    told = {"clients": 1, "sessions": 0, "clients_per_second": 10.0}

    assert drain_lines({**told, "level": 2.5})[0].endswith("at most 10 a second, as the others are at level 2.5")
    assert drain_lines({**told, "level": 10.0})[0].endswith("as the others are at the highest level, or silent")
