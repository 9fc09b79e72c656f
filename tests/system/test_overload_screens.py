# `weir overload` and `weir top` on a real node of two workers.
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.config.schema import Overload
from broker.mqtt.packets import Publish
from broker.overload.trace.player import replay
from tests.cli.running import weir as run
from tests.system import node
from tests.system.processes import PATIENCE, BrokerProcess, free_port
from tests.system.raw import RawClient

pytestmark = pytest.mark.weir_only("a matter of Weir's processes")

StartWeir = Callable[..., BrokerProcess]
Dial = Callable[..., RawClient]


def control(weir: BrokerProcess) -> Path:
    assert weir.control is not None
    return weir.control


def folder(weir: BrokerProcess) -> str:
    return str(control(weir).parent)


def inject_lag(weir: BrokerProcess, worker: int) -> None:
    """*worker* believes that it is late, four times its target."""
    node.ask(control(weir), "inject", worker=worker, signal="lag", value=0.2, seconds=60.0)


def wait_until_level(weir: BrokerProcess) -> dict[str, Any]:
    """What the node tells once each of its workers goes by a level."""
    deadline = time.monotonic() + PATIENCE
    while True:
        told: dict[str, Any] = node.ask(control(weir), "overload")
        if all(one["overload"]["cluster"]["level"] > 0.0 for one in told["workers"]):
            return told
        assert time.monotonic() < deadline, told
        time.sleep(0.05)  # between two looks at processes that are not ours


@contextmanager
def watching(*arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """A `weir` that goes on; its lines are read as they come."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "cli", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_with(process: "subprocess.Popen[str]", words: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return line
    raise AssertionError(f"it never says {words!r}")


@contextmanager
def on_a_terminal(*arguments: str) -> "Iterator[tuple[subprocess.Popen[bytes], int]]":
    """A `weir` on a terminal of 100 columns, and our end of it."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    command = [sys.executable, "-m", "cli", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        try:
            yield process, ours
        finally:
            process.kill()
            os.close(ours)


def read_until(terminal: int, words: bytes) -> bytes:
    """What is on the terminal once *words* are."""
    seen = b""
    deadline = time.monotonic() + PATIENCE
    while words not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"it never shows {words!r}: {seen!r}"
        seen += os.read(terminal, 65536)
    return seen


def test_weir_overload_names_the_signal_and_the_worker(start_weir: StartWeir) -> None:
    """Somebody would know that a node is overloaded, and not where to look."""
    weir = start_weir({"node.workers": 2}, environment={"WEIR_TEST": "1"})
    where = ("--folder", folder(weir))
    assert (
        f"No overload: node-{weir.port} is at level 0, and no client is throttled.\n" == run("overload", *where).stdout
    )

    inject_lag(weir, 1)
    wait_until_level(weir)
    shown = run("overload", *where)
    told = json.loads(run("overload", *where, "--json").stdout)

    assert 0 == shown.returncode
    assert "caused by lag of worker 1 at 4.00 of its target" in shown.stdout
    assert "injected" in shown.stdout
    assert f"node-{weir.port}/1 for " in shown.stdout
    assert ([0, 1], 0.0) == ([one["worker"] for one in told["workers"]], told["workers"][0]["overload"]["level"])
    assert [("lag", 1)] * 2 == [
        (one["overload"]["cluster"]["cause"], one["overload"]["cluster"]["worker"]) for one in told["workers"]
    ]


def test_a_watched_node_may_go_away_and_come_back(start_weir: StartWeir) -> None:
    """Who watches a restart would see the command end, or not see that the figures are old ones."""
    port = free_port()
    weir = start_weir({"node.workers": 2}, port=port)
    with watching("overload", "--watch", "--folder", folder(weir)) as process:
        line_with(process, "No overload")
        weir.terminate()
        line_with(process, "is not running")
        start_weir({"node.workers": 2}, port=port)
        line_with(process, "answers again.")
        line_with(process, "No overload")
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=PATIENCE)

    assert (0, "") == (process.returncode, complaint)


def test_a_terminal_shows_it_live_until_ctrl_c(start_weir: StartWeir) -> None:
    """It would not change while one looks, or end in a traceback."""
    weir = start_weir({"node.workers": 2}, environment={"WEIR_TEST": "1"})
    with on_a_terminal("overload", "--watch", "--folder", folder(weir)) as (process, terminal):
        read_until(terminal, b"No overload")
        inject_lag(weir, 0)
        read_until(terminal, b"lag of worker 0")
        process.send_signal(signal.SIGINT)
        assert 0 == process.wait(PATIENCE)
        assert b"Traceback" not in read_until(terminal, b"Ctrl-C")


def test_weir_top_names_who_costs_most_through_both_workers(start_weir: StartWeir, dial: Dial) -> None:
    """Somebody would have to look for a heavy client worker by worker."""
    weir = start_weir({"node.workers": 2}, environment={"WEIR_TEST": "1"})
    where = ("--folder", folder(weir))
    clients = [dial(port=weir.port) for _ in range(8)]  # the kernel spreads them
    for number, client in enumerate(clients):
        client.connect(f"client-{number}")
    deadline = time.monotonic() + PATIENCE
    told: dict[str, Any] = {"topics": []}
    with ThreadPoolExecutor() as threads:
        while not told["topics"]:
            assert time.monotonic() < deadline, told
            asking = threads.submit(run, "top", *where, "--json", "--by", "messages")
            while not asking.done():  # a record covers a second, and on a busy machine the command takes longer
                for client in clients:
                    client.send(Publish(b"busy", b"x" * 100))
                time.sleep(0.01)
            told = json.loads(asking.result().stdout)
    shown = run("top", *where, COLUMNS="80")

    assert [0, 1] == [one["worker"] for one in told["nodes"][0]["workers"]]
    assert ["busy"] == [one["topic"] for one in told["topics"]]
    assert {one["client"] for one in told["clients"]} <= {f"client-{number}" for number in range(8)}
    assert (0, 1) == (shown.returncode, shown.stdout.count("weir top"))
    assert f"node-{weir.port}" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_weir_top_is_live_on_a_terminal_and_has_keys(start_weir: StartWeir) -> None:
    """The order could not be changed, or the terminal would be left without an echo."""
    weir = start_weir({"node.workers": 2}, environment={"WEIR_TEST": "1"})
    with on_a_terminal("top", "--folder", folder(weir)) as (process, terminal):
        read_until(terminal, b"by cost")
        inject_lag(weir, 1)
        read_until(terminal, b"lag 4.00")
        os.write(terminal, b"m")
        read_until(terminal, b"by messages")
        os.write(terminal, b"q")
        assert 0 == process.wait(PATIENCE)
        assert termios.tcgetattr(terminal)[3] & termios.ECHO


def test_a_node_that_does_not_run_is_one_sentence_and_exit_code_1(tmp_path: Path) -> None:
    """The user would see a traceback, or an empty screen."""
    for command in (["overload"], ["overload", "--watch"], ["top"]):
        done = run(*command, "--folder", str(tmp_path / "none"), "--node", "nobody")
        assert (1, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines())), done.stderr
        assert done.stderr.startswith("weir: The node nobody ")


def test_a_node_records_what_its_workers_decide_until_that_is_full(start_weir: StartWeir, dial: Dial) -> None:
    """There would be nothing to try a policy on, or the disk be filled with it."""
    weir = start_weir({"node.workers": 2, "overload.trace": "8KiB"}, environment={"WEIR_TEST": "1"})
    clients = [dial(port=weir.port) for _ in range(8)]  # the kernel spreads them
    for number, client in enumerate(clients):
        client.connect(f"client-{number}")
    shown = ""
    deadline = time.monotonic() + PATIENCE
    while "stopped recording its trace: it is full" not in shown:
        assert time.monotonic() < deadline, shown
        for client in clients:
            for _ in range(50):
                client.send(Publish(b"busy", b"x" * 100))
        shown = run("overload", "--folder", folder(weir), COLUMNS="200").stdout
    assert 0 == weir.terminate()
    files = [control(weir).parent / "trace" / f"worker-{number}.trace" for number in range(2)]

    assert weir.wait_for_log("trace_stopped")
    assert all(0 < file.stat().st_size <= 8192 for file in files)
    who = {one.client for file in files for one in replay(file.read_bytes(), Overload())}
    assert who and who <= {f"client-{number}" for number in range(8)}
