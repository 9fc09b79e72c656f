# Nodes for tests of faults: real processes that are killed, stopped and started beside each other.
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from broker.mqtt.packets import V5
from tests.system import node
from tests.system.processes import HOST, PATIENCE, free_port, packages
from tests.system.processes import weir_environment as environment_of
from tests.system.raw import RawClient


class Node:
    """A node in a process group of its own, as a shell would start it."""

    def __init__(
        self, folder: Path, workers: int = 1, port: int = 0, build: Path | None = None, **settings: object
    ) -> None:
        """*build*: the folder to import Weir from; None: as this process does.

        *settings*: by key, with "__" for "."; a key such as "--config" is an option.
        """
        self.port = port or free_port()
        self.folder = folder
        self.control = folder / "node" / "control.sock"
        self.log = folder / "node.log"
        self._clients: list[RawClient] = []
        given = {"log.format": "json", "listeners.tcp.host": HOST, "listeners.tcp.port": self.port}
        given |= {"node.folder": folder / "node", "node.workers": workers}
        given |= {key.replace("__", "."): value for key, value in settings.items()}
        command = [sys.executable, "-m", "cli", "start"]
        for key, value in given.items():
            command += [key, str(value)] if key.startswith("--") else ["--set", f"{key}={value}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stderr=log,
                cwd=folder,
                env=environment_of(build or packages()),
                start_new_session=True,
            )
        try:
            self.wait_until(lambda: node.serves(self.control), "serve")
        except BaseException:
            self.end()
            raise

    def wait_until(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert self.process.poll() is None, f"the node ended:\n{self.text()}"
            assert time.monotonic() < deadline, f"the node does not {what}:\n{self.text()}"
            time.sleep(0.02)  # between two looks at a process that is not ours

    def text(self) -> str:
        return self.log.read_text()

    def lines(self, event: str) -> list[dict[str, Any]]:
        whole = self.text().rpartition("\n")[0]
        found = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in found if line["event"] == event]

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        self.wait_until(lambda: len(self.lines(event)) >= count, f"log {event}")
        return self.lines(event)[count - 1]

    @property
    def pids(self) -> list[int]:
        return node.worker_pids(self.control)

    def stranger(self, version: int = V5) -> RawClient:
        """A connection that has not said anything yet."""
        self._clients.append(RawClient(self.port, version))
        return self._clients[-1]

    def client(self, name: str, version: int = V5, **options: Any) -> RawClient:
        client = self.stranger(version)
        client.connect(name, **options)
        return client

    def end(self) -> None:
        for client in self._clients:
            client.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGCONT)
            self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


StartNode = Callable[..., Node]


def end_and_check(nodes: Sequence[Node]) -> None:
    """End *nodes*. However the tests treated them, none has logged an error of its own."""
    for one in nodes:
        one.end()
    for one in nodes:
        assert "Traceback" not in (log := one.text()), log[log.index("Traceback") - 300 :][:8000]


def state(pid: int) -> str:
    """The kernel's letter for what the process does; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def lives(pid: int) -> bool:
    """Whether there is such a process, and it is more than a body that nobody has fetched."""
    return state(pid) not in ("", "Z")


def stop(pid: int) -> None:
    """SIGSTOP, and wait until it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    while state(pid) not in ("T", ""):
        time.sleep(0.001)
