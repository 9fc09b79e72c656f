# Brokers as processes: how one is started, watched until it serves, and stopped.
#
# Weir is started as a user would, by `weir start`, with the interpreter that runs the tests and with the very
# package `broker` that they import: the same tests so prove the compiled form and the interpreted one. Mosquitto
# stands in for it where a test, or a comparison of speed, should hold for another broker, too.
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import broker as broker_package
from tests.system import node

HOST: Final = "127.0.0.1"
KAFKA: Final = runpy.run_path(str(Path(__file__).resolve().parents[2] / "deploy" / "kafka" / "server.py"))
PORTS: Final = (10_000, 20_000)  # below those of Kafka, and those that the kernel takes for outgoing connections
WORKERS: Final = int(os.environ.get("WEIR_SYSTEM_WORKERS", "1"))  # of each node that is started
PATIENCE: Final = 30.0  # seconds for anything that should take milliseconds: a busy machine is no failure


def packages() -> Path:
    """The folder that this process imports Weir from."""
    assert broker_package.__file__ is not None
    return Path(broker_package.__file__).parent.parent


def free_port() -> int:
    """A TCP port that nobody listens on, and that no Kafka of a test takes.

    A Redis in cluster mode also takes the port 10 000 above it.
    """
    port: int = KAFKA["free_port"](PORTS)
    return port


class BrokerProcess:
    """One running broker. Raises AssertionError when it dies, or does not serve in time."""

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        control: Path | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """*control*: where to ask a node of Weir's whether it serves; others serve when they accept.

        *patience*: seconds until it serves.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.port = port
        self.control = control
        self.log = folder / f"broker-{port}.log"
        with self.log.open("wb") as log:
            # Its own folder: `python -m` puts the current one first on the path, and that must not be the source tree.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment
            )
        try:
            self._wait_accepting(patience)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    @property
    def pid(self) -> int:
        """Of the process that was started: its children may be what serves."""
        return self.process.pid

    @property
    def worker_pid(self) -> int:
        """Of the one process that serves."""
        if self.control is None:
            return self.process.pid
        (worker,) = node.worker_pids(self.control)
        return worker

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for_log(self, text: str, since: int = 0) -> list[str]:
        """The lines that contain *text*, once there is one; *since* is how many there were before."""
        deadline = time.monotonic() + PATIENCE
        while len(found := [line for line in self.log_text().splitlines() if text in line]) <= since:
            assert time.monotonic() < deadline, f"the log never says {text!r}:\n{self.log_text()}"
            time.sleep(0.01)  # a file tells nobody when it has grown
        return found[since:]

    def terminate(self) -> int:
        """SIGTERM; returns the exit code. A broker that has ended already gives the code it ended with."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the broker ignored SIGTERM for {PATIENCE} s:\n{self.log_text()}") from None

    def _wait_accepting(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        while True:
            try:
                if self.control is None:
                    socket.create_connection((HOST, self.port), timeout=PATIENCE).close()
                    return
                if node.serves(self.control):
                    return
                raise OSError("it does not serve yet")
            except OSError:
                assert self.process.poll() is None, f"the broker ended at once:\n{self.log_text()}"
                assert time.monotonic() < deadline, f"the broker does not accept:\n{self.log_text()}"
                time.sleep(0.02)  # between two attempts; nobody can tell us when a foreign process listens


def weir_command(port: int, settings: Mapping[str, object]) -> list[str]:
    """`weir start`, for a node of its own: its folder is made in the current one.

    *settings*: by key; a key such as "--config" is an option.
    """
    command = [sys.executable, "-m", "cli", "start", "--host", HOST, "--port", str(port)]
    command += ["--name", f"node-{port}", "--set", f"node.folder=node-{port}", "--set", f"node.workers={WORKERS}"]
    for key, value in settings.items():
        command += [key, str(value)] if key.startswith("--") else ["--set", f"{key}={value}"]
    return command


def control_socket(port: int, folder: Path) -> Path:
    """That of the node that `weir_command` starts in *folder*."""
    return folder / f"node-{port}" / "control.sock"


def weir_environment(packages: Path | None) -> dict[str, str]:
    """Our environment without what configures Weir; *packages* is the folder to import it from (None: as installed)."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
    environment.pop("PYTHONPATH", None)
    if packages is not None:
        environment["PYTHONPATH"] = str(packages)
    return environment


def start_weir(
    port: int,
    folder: Path,
    settings: Mapping[str, object],
    packages: Path | None,
    environment: Mapping[str, str] | None = None,
) -> BrokerProcess:
    """*environment*: variables beside `weir_environment()`."""
    command = weir_command(port, settings)
    variables = {**weir_environment(packages), **(environment or {})}
    return BrokerProcess(command, port, folder, variables, control_socket(port, folder))


def refused_start(port: int, folder: Path, settings: Mapping[str, object], packages: Path | None) -> str:
    """Run `weir start`, which must refuse with exit code 2; the sentence it says."""
    done = subprocess.run(
        weir_command(port, settings),
        cwd=folder,
        env=weir_environment(packages),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (2, "") == (done.returncode, done.stdout), done.stderr
    return done.stderr


# Mosquitto's defaults would make a closed loop stall (20 in flight, 1000 queued) and the comparison unfair.
MOSQUITTO_CONFIG: Final = """\
listener {port} {host}
allow_anonymous true
max_inflight_messages 1000
max_queued_messages 0
set_tcp_nodelay true
"""


def start_mosquitto(port: int, folder: Path, more: str = "") -> BrokerProcess:
    """Mosquitto on *port*; *more* is appended to its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / f"mosquitto-{port}.conf"
    config.write_text(MOSQUITTO_CONFIG.format(port=port, host=HOST) + more)
    # Debian keeps daemons in /usr/sbin, which is not in everybody's PATH.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    return BrokerProcess(["mosquitto", "-c", str(config)], port, folder, {**os.environ, "PATH": path})
