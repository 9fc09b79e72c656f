# The two brokers that are measured, and the programs that load them.
#
# A broker is started afresh for each load and serves all runs of it, so that what one load leaves behind does not
# weigh on the next, and start-up is not measured. Both are there all the time; they run one after the other, and
# an idle broker takes next to nothing.
import getpass
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import trustme

from tests.system.processes import (
    HOST,
    PATIENCE,
    BrokerProcess,
    control_socket,
    free_port,
    start_mosquitto,
    weir_command,
    weir_environment,
)

HERE: Final = Path(__file__).resolve().parent
TREE: Final = HERE.parents[2]
WEIR: Final = "Weir"
MOSQUITTO: Final = "Mosquitto"
TRANSPORTS: Final = ("tcp", "tls", "ws", "wss")
ENCRYPTED: Final = ("tls", "wss")
WEBSOCKET: Final = ("ws", "wss")

# As users get it; at level warning it would not tell, at its end, how long it held its loop.
WEIR_SETTINGS: Final[dict[str, object]] = {"log.level": "info", "log.format": "json"}


class ToolFailed(Exception):
    """A load generator gave up: what it printed."""


class Bench:
    """Where everything is: the compiled tools, the folder of the logs, and which form of Weir is measured."""

    def __init__(self, folder: Path, packages: Path | None, python: Path | None = None) -> None:
        """Weir is imported from the folder *packages*, or as it is installed for the interpreter *python* (ours)."""
        self.folder = folder
        self.packages = packages
        self.python = str(python or sys.executable)
        self.tls = has_openssl()
        self.mqload = build_tool("mqload", folder, self.tls)
        self.swarm = build_tool("swarm", folder, self.tls)
        self.chain, self.key = folder / "server.pem", folder / "server.key"
        make_certificate(self.chain, self.key)

    def banner(self) -> str:
        """What the Weir that is measured says of itself."""
        command = [self.python, "-m", "cli", "--version"]
        environment = weir_environment(self.packages)
        said = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=True)
        return said.stdout.strip()

    @contextmanager
    def weir(
        self,
        transport: str = "tcp",
        workers: int = 1,
        more: Mapping[str, object] | None = None,
        port: int = 0,
        patience: float = PATIENCE,
    ) -> Iterator[BrokerProcess]:
        """A Weir that listens for *transport* alone; *more* are settings beside the usual ones.

        *port*: of a node that was stopped, whose data it goes on with. *patience*: seconds until it serves.
        AssertionError: it has logged an error of its own.
        """
        settings, port = {**WEIR_SETTINGS, "node.workers": workers, **(more or {})}, port or free_port()
        if transport != "tcp":
            settings |= {"listeners.tcp.enabled": "false", f"listeners.{transport}.enabled": "true"}
            settings[f"listeners.{transport}.port"] = port
        if transport in ENCRYPTED:
            settings |= {"tls.certificate": self.chain, "tls.key": self.key}
        command = [self.python, *weir_command(port, settings)[1:]]
        control = control_socket(port, self.folder)
        broker = BrokerProcess(command, port, self.folder, weir_environment(self.packages), control, patience)
        try:
            yield broker
        finally:
            broker.terminate()
        assert "Traceback" not in (log := broker.log_text()), log  # a figure of a node that fails means nothing

    @contextmanager
    def mosquitto(self, transport: str = "tcp", more: str = "") -> Iterator[BrokerProcess]:
        """A Mosquitto that listens for *transport*; *more*: lines of its configuration."""
        listener = more + ("protocol websockets\n" if transport in WEBSOCKET else "")
        if transport in ENCRYPTED:
            # Root would become a user who may not read the key.
            listener += f"user {getpass.getuser()}\ncertfile {self.chain}\nkeyfile {self.key}\n"
        if transport in WEBSOCKET:
            listener += f"listener {free_port()} {HOST}\n"  # 2.0.11 does not start without one that is no WebSocket
        broker = start_mosquitto(free_port(), self.folder, listener)
        try:
            yield broker
        finally:
            broker.terminate()


def has_openssl() -> bool:
    """Whether programs in C can be made with OpenSSL."""
    probe = ["cc", "-fsyntax-only", "-include", "openssl/ssl.h", "-x", "c", os.devnull]
    return subprocess.run(probe, capture_output=True).returncode == 0


def build_tool(name: str, folder: Path, tls: bool) -> Path:
    """Compile a load generator into *folder*; without *tls* it needs no library, and knows tcp and ws only."""
    program = folder / name
    sources = [str(HERE / f"{name}.c"), str(HERE / "transport.c")]
    options = ["-DWITH_TLS", "-lssl", "-lcrypto"] if tls else []
    subprocess.run(["cc", "-O2", "-Wall", "-o", str(program), *sources, *options], check=True)
    return program


def make_certificate(chain: Path, key: Path) -> None:
    """On the curve P-256, as is usual now: signing with RSA would be most of what a handshake costs."""
    leaf = trustme.CA().issue_cert("localhost", HOST, key_type=trustme.KeyType.ECDSA)
    chain.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    key.write_bytes(leaf.private_key_pem.bytes())


@contextmanager
def open_bench(interpreted: bool) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        yield Bench(Path(folder), TREE if interpreted else None)  # nothing in the tree is compiled


def run_tool(command: Sequence[str], timeout: float = 300.0) -> dict[str, Any]:
    """Run a load generator to its end; the JSON line that it prints. Raises ToolFailed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise ToolFailed(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@contextmanager
def beside(command: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    """A tool that runs until its standard input ends, which it does with this scope."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.communicate()
    if process.returncode:
        raise ToolFailed(f"{' '.join(command)} ended with {process.returncode}")


def loop_statistics(weir: BrokerProcess) -> dict[str, float]:
    """What Weir has logged at its end about its loop; empty when it has not."""
    for line in weir.log_text().splitlines():
        if '"loop_statistics"' in line:
            found: dict[str, float] = json.loads(line)
            return found
    return {}
