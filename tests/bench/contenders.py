# The two brokers that are measured, and the programs that load them.
#
# A broker is started afresh for each load and serves all runs of it, so that what one load leaves behind does not
# weigh on the next, and start-up is not measured. Both are there all the time; they run one after the other, and
# an idle broker takes next to nothing.
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.system.processes import BrokerProcess, free_port, start_mosquitto, start_weir, weir_environment

HERE: Final = Path(__file__).resolve().parent
TREE: Final = HERE.parent.parent
WEIR: Final = "Weir"
MOSQUITTO: Final = "Mosquitto"

# As users get it; at level warning it would not tell, at its end, how long it held its loop.
WEIR_SETTINGS: Final[dict[str, object]] = {"log.level": "info", "log.format": "json"}


class ToolFailed(Exception):
    """A load generator gave up: what it printed."""


class Bench:
    """Where everything is: the compiled tools, the folder of the logs, and which form of Weir is measured."""

    def __init__(self, folder: Path, interpreted: bool) -> None:
        self.folder = folder
        self.packages = TREE if interpreted else None  # nothing in the tree is compiled
        self.mqload = self._compile("mqload")
        self.swarm = self._compile("swarm")

    def banner(self) -> str:
        """What the Weir that is measured says of itself."""
        command = [sys.executable, "-m", "cli", "--version"]
        environment = weir_environment(self.packages)
        said = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=True)
        return said.stdout.strip()

    @contextmanager
    def weir(self, **settings: object) -> Iterator[BrokerProcess]:
        """*settings* have "__" for ".": limits__connections=5."""
        named = {key.replace("__", "."): value for key, value in settings.items()}
        broker = start_weir(free_port(), self.folder, {**WEIR_SETTINGS, **named}, self.packages)
        try:
            yield broker
        finally:
            broker.terminate()

    @contextmanager
    def mosquitto(self) -> Iterator[BrokerProcess]:
        broker = start_mosquitto(free_port(), self.folder)
        try:
            yield broker
        finally:
            broker.terminate()

    def _compile(self, name: str) -> Path:
        program = self.folder / name
        subprocess.run(["cc", "-O2", "-o", str(program), str(HERE / f"{name}.c")], check=True)
        return program


@contextmanager
def open_bench(interpreted: bool) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        yield Bench(Path(folder), interpreted)


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
