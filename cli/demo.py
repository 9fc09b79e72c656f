# `weir demo`: a node, its dashboard and its analysis, and two ways to overload it, with words about what to look at.
#
# All of it is its own: a folder that is removed at the end, ports that are free, a Redis that nobody else uses. So it
# disturbs nothing, and whoever has seen it has left nothing behind. The node is given little on purpose, so that one
# machine can overload it and still show it.
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.options import INTERRUPTED, UNREACHABLE, refuse

if TYPE_CHECKING:
    from cli.load.plan import Plan

NAME: Final = "demo"
DASHBOARD: Final = 8088
# What one machine can bring to its limit while it shows that: little room for readers, and few may come at once.
SETTINGS: Final = {
    "delivery.outbound_budget": "16MiB",
    "overload.outbound_percent": "30",
    "overload.connects_per_second": "100",
    "overload.connect_burst": "50",
}
FLEET: Final = 10  # pairs of modest clients
FLEET_RATE: Final = 200  # messages a second of all of them
SUBSCRIBERS: Final = 60  # of the aggressor's topic
PAYLOAD: Final = 4096  # bytes of each of its messages
WINDOW: Final = 400  # of its messages under way
STORM: Final = 400  # CONNECTs a second, four times what is let in
STARTING: Final = 30.0  # seconds for a process that should take two
SPARK: Final = 150.0  # seconds for the first batch of the analysis
QUIET: Final = 60.0  # seconds for an overload to end, and for the analysis to say so
ENDING: Final = 15.0  # seconds for a process to end
LOOK: Final = 0.25  # seconds between two looks at processes that tell nobody


class Failed(Exception):
    """The demo cannot go on. Its text is one sentence."""


def demo(
    part: Annotated[
        float, typer.Option("--seconds-per-part", min=1, metavar="S", help="How long each load lasts.")
    ] = 20.0,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="Of the dashboard; 0 takes any.")
    ] = DASHBOARD,
    end: Annotated[bool, typer.Option("--end", help="End after the second part, instead of at Ctrl-C.")] = False,
) -> None:
    """Show overload, and what Weir makes of it: a node of its own, the dashboard, the analysis, and two loads.

    Nothing else is touched; at its end all of it is removed.
    """
    import importlib.util
    import signal

    from cli.dashboard import NEEDS

    if importlib.util.find_spec("nicegui") is None:
        refuse(NEEDS)
    signal.signal(signal.SIGTERM, _interrupt)
    folder = Path(tempfile.mkdtemp(prefix="weir-demo-"))
    try:
        with _Demo(folder) as shown:
            shown.run(part, port)
            if not end:
                _say("That was all. The page stays as long as this runs: open the episodes, click on a client.")
                _say("Ctrl-C ends the demo and removes all of it.")
                signal.pause()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Failed as error:
        refuse(str(error), UNREACHABLE)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Demo:
    """The processes of a demo; they end with it, the last one first."""

    def __init__(self, folder: Path) -> None:
        from supervisor.folder import NodeFolder

        self._folder = folder
        self._node = NodeFolder(NAME, str(folder / "node"))
        self._started: list[subprocess.Popen[bytes]] = []
        self._port = 0
        self._analysed = False

    def __enter__(self) -> "_Demo":
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):
            process.terminate()
        for process in reversed(self._started):
            try:
                process.wait(ENDING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def run(self, part: float, dashboard_port: int) -> None:
        self._start_node()
        self._start_dashboard(dashboard_port)
        self._start_analysis()
        self._start_fleet()
        self._aggressor(part)
        self._storm(part)

    # What is shown.

    def _aggressor(self, seconds: float) -> None:
        from cli.broker_options import endpoint_of
        from cli.endpoint import Unreachable
        from cli.load.conductor import Conductor, Watcher

        _say("")
        _say(
            f"1 of 2. One client, aggressor-p0, now publishes as fast as it can to a topic with {SUBSCRIBERS} "
            f"subscribers, for {seconds:g} s."
        )
        _say("   Look: the level rises because of what is on its way to readers, and aggressor-p0 is named.")
        _say("   The modest clients go on: it is the aggressor that is held back.")
        since = time.time()
        endpoint = endpoint_of(f"127.0.0.1:{self._port}", None, False, None, False)
        try:
            if Conductor(_flood(seconds), endpoint, Watcher()).run().interrupted:
                raise KeyboardInterrupt
        except Unreachable as error:
            raise Failed(str(error)) from None
        self._tell_of_episode(since)

    def _storm(self, seconds: float) -> None:
        from cli.storm import storm

        _say("")
        _say(
            f"2 of 2. A storm: {STORM} clients a second want to connect, for {seconds:g} s; the node lets "
            f"{SETTINGS['overload.connects_per_second']} in."
        )
        _say("   Look: the cause is now connect, nobody is to blame alone, and who was refused is counted.")
        since = time.time()
        storm(self._port, seconds, STORM)
        self._tell_of_episode(since)

    def _tell_of_episode(self, since: float) -> None:
        _say("   The load has ended.")
        self._until(self._calm, QUIET, "the level to fall to 0")
        if not self._analysed:
            return
        found = self._until(lambda: self._episode(since), QUIET, "the analysis to close the episode")
        for sentence in found["story"] if found else ():
            _say(f"   | {sentence}")

    def _calm(self) -> bool:
        from cli.control_client import ControlClient, RequestFailed

        with closing(ControlClient(self._node)) as control:
            try:
                told = control.try_request("overload")
            except RequestFailed:
                return False
        return all("overload" in one and not one["overload"]["level"] for one in told["workers"])

    def _episode(self, since: float) -> Any:
        """The first that is over, and ended after *since*; None: not yet."""
        from analytics.keys import AnalyticsKeys

        rows = self._ask_redis("HVALS", AnalyticsKeys("weir").episodes) or []
        over = [one for one in map(json.loads, rows) if one["state"] == "closed" and one["end"] >= since]
        return min(over, key=_start, default=None)

    def _ask_redis(self, *command: str) -> Any:
        """None: it does not answer."""
        import redis

        with redis.Redis(unix_socket_path=str(self._node.path / "redis" / "redis.sock")) as server:
            try:
                return server.execute_command(*command)
            except redis.RedisError:
                return None

    # What is started.

    def _start_node(self) -> None:
        settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
        where = ["--name", NAME, "--set", f"node.folder={self._node.path}"]
        self._port = _free_port()
        process = self._start("node", "start", *where, "--workers", "1", "--port", str(self._port), *settings)
        if not self._until(self._serves, STARTING, "the node to serve", process):
            raise Failed(f"the node of the demo does not start: {self._last_words('node')}")
        _say(f"A node of its own serves on port {self._port}; it is allowed little, so that it can be overloaded.")

    def _serves(self) -> bool:
        from cli.control_client import ControlClient, RequestFailed

        with closing(ControlClient(self._node)) as control:
            try:
                return bool(control.try_request("status")["state"] == "serving")
            except RequestFailed:
                return False

    def _start_dashboard(self, port: int) -> None:
        if port and _is_taken(port):
            _say(f"Port {port} is in use, so the dashboard takes another.")
            port = 0
        process = self._start("dashboard", "dashboard", "--folder", str(self._node.path), "--port", str(port))
        log = self._log("dashboard")
        if not self._until(lambda: " serves on " in log.read_text(), STARTING, "the dashboard to serve", process):
            raise Failed(f"the dashboard does not start: {self._last_words('dashboard')}")
        _say(f"Open {log.read_text().split(' serves on ')[1].split()[0]} now: that is the dashboard.")

    def _start_analysis(self) -> None:
        from cli.analytics import java

        wrong = java()
        if wrong:
            _say(f"There will be no episodes: {wrong}")
            return
        process = self._start("analysis", "analytics", "run", "--folder", str(self._node.path), "--no-install")
        _say("The analysis starts; Spark takes some 15 s for that, on a busy machine more.")
        if self._until(self._analyses, SPARK, "the analysis to begin", process):
            self._analysed = True
            _say("The analysis runs.")
        elif process.poll() is None:
            _say("The demo goes on without it; episodes are shown once it has begun.")
        else:
            _say(f"There will be no episodes, as the analysis does not run: {self._last_words('analysis')}")

    def _analyses(self) -> bool:
        """It has read a record."""
        from analytics.keys import AnalyticsKeys

        said = self._ask_redis("GET", AnalyticsKeys("weir").status)
        return bool(said and json.loads(said)["newest"])

    def _start_fleet(self) -> None:
        load = ("--publishers", str(FLEET), "--rate", str(FLEET_RATE), "--connect-rate", "20", "--seconds", "86400")
        self._start("fleet", "bench", f"127.0.0.1:{self._port}", *load)
        _say(f"{FLEET} modest clients publish {FLEET_RATE} messages a second, all the time. Look: level 0, calm.")

    def _start(self, log: str, *arguments: str) -> "subprocess.Popen[bytes]":
        from supervisor.process import interpreter_flags

        with self._log(log).open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *interpreter_flags(), "-m", "cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us: they end in their order
            )
        self._started.append(process)
        return process

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _last_words(self, name: str) -> str:
        lines = self._log(name).read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("weir: ")[:500] if lines else "it said nothing."

    def _until(self, holds: Any, patience: float, what: str, process: "subprocess.Popen[bytes] | None" = None) -> Any:
        """What *holds* gives, once it is true; None if it never is, or *process* ends before."""
        deadline = time.monotonic() + patience
        while not (found := holds()):
            if process is not None and process.poll() is not None:
                return None
            if time.monotonic() > deadline:
                _say(f"   Waited {patience:g} s in vain for {what}.")
                return None
            time.sleep(LOOK)
        return found


def _flood(seconds: float) -> "Plan":
    """One publisher that goes as fast as it is let."""
    from cli.load.plan import Plan

    return Plan(
        pattern="fan-out",
        publishers=1,
        subscribers=SUBSCRIBERS,
        topic="demo/flood",
        qos=1,
        payload=PAYLOAD,
        version=5,
        rate=0,
        window=WINDOW,
        seconds=seconds,
        messages=0,
        connect_rate=50,
        processes=1,
        run=b"demo",
        client_id="aggressor",
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _start(episode: Any) -> float:
    return float(episode["start"])


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _say(sentence: str) -> None:
    typer.echo(f"{time.strftime('%H:%M:%S')}  {sentence}" if sentence else "")
