# The node that suffers: started as a user would, in a process group of its own.
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.system import node
from tests.system.processes import HOST, free_port, packages, weir_environment
from tests.tools.fuzz.campaign import peers

PATIENCE: Final = 20.0  # seconds for a start, on a machine that is busy
SETTINGS: Final = {"log.format": "json", "sys.interval": 1, "limits.connects_per_second": 0, "drain.timeout": "1s"}


class Victim:
    def __init__(
        self,
        folder: Path,
        workers: int,
        port: int = 0,
        settings: Mapping[str, object] = {},
        environment: Mapping[str, str] = {},
        wait: Callable[[], None] = lambda: time.sleep(0.02),
        patience: float = PATIENCE,
        build: Path | None = None,
    ) -> None:
        """AssertionError: it does not serve within *patience* seconds.

        *wait* is called between two looks at the processes that start. *build*: the folder to import Weir from; None:
        as this process does.
        """
        self.port = port or free_port()
        self.folder = folder / "node"
        self.control = self.folder / "control.sock"
        self.log = folder / "node.log"
        given = {**SETTINGS, "node.folder": self.folder, "node.workers": workers, **settings}
        command = [sys.executable, "-m", "cli", "start", "--host", HOST, "--port", str(self.port)]
        for key, value in given.items():
            command += ["--set", f"{key}={value}"]
        began = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**weir_environment(build or packages()), **environment},
                start_new_session=True,
            )
        try:
            while not self._serves():
                assert self.process.poll() is None, f"the node ended with {self.process.returncode}:\n{self.text()}"
                assert time.monotonic() - began < patience, f"the node does not serve:\n{self.text()}"
                wait()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.start_took = time.monotonic() - began
        self.pids = self.workers()  # by shard, as of the last look
        self.seen = dict.fromkeys(self.pids, began)  # when each was first seen to serve
        self.absent: set[int] = set()  # shards whose worker has died, and no other serves yet
        self._log_read = self.log.stat().st_size

    def _serves(self) -> bool:
        try:
            return node.serves(self.control)
        except AssertionError:  # it has ended instead of answering
            return False

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def status(self) -> dict[str, Any]:
        return node.status(self.control)

    def look(self) -> None:
        """Who serves now, by the log: the supervisor may have other things to do than to answer us."""
        with self.log.open("rb") as log:
            log.seek(self._log_read)
            whole = log.read().rpartition(b"\n")[0]
        self._log_read += len(whole)
        for line in whole.splitlines():
            if b'"worker_died"' in line:
                self.absent.add(json.loads(line)["worker"])
            elif b'"worker_ready"' in line:
                facts = json.loads(line)
                self.absent.discard(facts["worker"])
                self.pids[facts["worker"]] = facts["pid"]
                self.seen[facts["pid"]] = time.monotonic()

    def waited(self, since: float) -> float:
        """How long (s) those of its workers that began to serve after *since* had waited for a processor, at most."""
        return max((run_delay(pid) for pid, when in self.seen.items() if when >= since), default=0.0)

    def workers(self) -> list[int]:
        """Process ids by shard; 0 for one that is dead."""
        return [one["pid"] if one["state"] != "dead" else 0 for one in self.status()["workers"]]

    def ready(self) -> bool:
        return bool(self.status()["state"] == "serving")

    def redis(self) -> int:
        """Its process id; 0: it does not run."""
        try:
            return int((self.folder / "redis" / "redis.pid").read_text())
        except (OSError, ValueError):
            pass
        return self._process_of("redis-server") or self._process_of("valkey-server")

    def carrier(self) -> int:
        """The process id of the carrier; 0: it does not run."""
        return self._process_of("broker.carrier")

    def _process_of(self, word: str) -> int:
        """The first of its processes that has *word* in its command; 0: none has."""
        return next((pid for pid in self.processes() if word in command_of(pid)), 0)

    def processes(self) -> list[int]:
        """All that come from the supervisor, and itself."""
        parents = {pid: parent_of(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
        found = [self.process.pid]
        for one in found:
            found += [pid for pid, parent in parents.items() if parent == one]
        return found

    def served_by(self) -> dict[str, int]:
        """Which process has the connection from each address."""
        found: dict[str, int] = {}
        for pid in self.pids:
            if pid:
                try:
                    found.update(dict.fromkeys(peers(pid), pid))
                except OSError:
                    pass  # it has just ended
        return found

    def signal_all(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def stop(self) -> int:
        """The exit code."""
        if self.process.poll() is None:
            self.signal_all(signal.SIGCONT)
            self.process.terminate()
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.signal_all(signal.SIGKILL)
            self.process.wait()
            return -1


def state(pid: int) -> str:
    """The kernel's letter for what the process does; "" if there is none, or only its body."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    return "" if letter == "Z" else letter


def run_delay(pid: int) -> float:
    """Seconds that the process was ready to run and had no processor."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
