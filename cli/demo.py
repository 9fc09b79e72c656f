# `weir demo`: a node with dashboard and analysis, and two loads that overload it, with comments for the viewer.
#
# The demo uses a temporary folder, free ports and its own Redis, so it does not disturb other nodes and leaves nothing
# behind. The limits of the node are low, so that one machine can overload the node and run the dashboard as well.
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
# Low limits, which one machine can reach: little memory for outbound messages, and few CONNECTs per second.
SETTINGS: Final = {
    "delivery.outbound_budget": "16MiB",
    "overload.outbound_percent": "30",
    "overload.connects_per_second": "100",
    "overload.connect_burst": "50",
}
FLEET: Final = 10  # pairs of modest clients
FLEET_RATE: Final = 200  # messages per second of the whole fleet
SUBSCRIBERS: Final = 60  # of the topic of the aggressor
PAYLOAD: Final = 4096  # bytes of each message of the aggressor
WINDOW: Final = 400  # messages of the aggressor in flight
STORM: Final = 400  # CONNECTs per second, four times the limit
STARTING: Final = 30.0  # seconds for a process to start, which takes about two
SPARK: Final = 150.0  # seconds for the first batches of the analysis
BEHIND: Final = 5.0  # seconds: a batch takes one or two, and an analysis that is late would explain no overload in time
QUIET: Final = 60.0  # seconds for an overload to end, and for the analysis to report the end
ENDING: Final = 15.0  # seconds for a process to end
POLL: Final = 0.25  # seconds


class Failed(Exception):
    """The demo cannot continue. The text is one sentence."""


def demo(
    part: Annotated[
        float, typer.Option("--seconds-per-part", min=1, metavar="S", help="Duration of each load in seconds.")
    ] = 20.0,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="Port of the dashboard; 0 chooses a free one.")
    ] = DASHBOARD,
    end: Annotated[bool, typer.Option("--end", help="Exit after the second load, without waiting for Ctrl-C.")] = False,
) -> None:
    """Demonstrate overload protection: a temporary node with dashboard and analysis, and two loads.

    Other nodes are not affected. Everything is removed at the end.
    """
    import importlib.util
    import signal

    from cli.dashboard import NEEDS

    if importlib.util.find_spec("nicegui") is None:
        refuse(NEEDS)
    signal.signal(signal.SIGTERM, _interrupt)
    folder = Path(tempfile.mkdtemp(prefix="weir-demo-"))
    try:
        with Demo(folder) as shown:
            shown.run(part, port)
            if not end:
                _say("The demo is complete. The dashboard stays open: expand the incidents, click on a client.")
                _say("Ctrl-C stops the demo and removes everything.")
                signal.pause()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Failed as error:
        refuse(str(error), UNREACHABLE)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Demo:
    """The processes of a demo. They are stopped at the end, the last one first."""

    def __init__(self, folder: Path) -> None:
        from supervisor.folder import NodeFolder

        self._folder = folder
        self._node = NodeFolder(NAME, str(folder / "node"))
        self._started: list[subprocess.Popen[bytes]] = []
        self._port = 0
        self._analysed = False

    def __enter__(self) -> "Demo":
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
        self.start_node()
        self._start_dashboard(dashboard_port)
        self._start_analysis()
        self.start_fleet()
        self._aggressor(part)
        self._storm(part)

    # The loads.

    def _aggressor(self, seconds: float) -> None:
        from cli.broker_options import endpoint_of
        from cli.endpoint import Unreachable
        from cli.load.conductor import Conductor, Watcher

        _say("")
        _say(
            f"1 of 2. One client, aggressor-p0, now publishes as fast as it can to a topic with {SUBSCRIBERS} "
            f"subscribers, for {seconds:g} s."
        )
        _say("   Dashboard: the level rises because of outbound messages, and aggressor-p0 is named as the cause.")
        _say("   Only the aggressor is throttled; the modest clients continue.")
        since = time.time()
        endpoint = endpoint_of(f"127.0.0.1:{self._port}", None, False, None, False)
        try:
            if Conductor(_flood(seconds), endpoint, Watcher()).run().interrupted:
                raise KeyboardInterrupt
        except Unreachable as error:
            raise Failed(str(error)) from None
        self._show_incident(since)

    def _storm(self, seconds: float) -> None:
        from cli.storm import storm

        _say("")
        _say(
            f"2 of 2. A storm: {STORM} clients per second connect, for {seconds:g} s; the node accepts "
            f"{SETTINGS['overload.connects_per_second']} per second."
        )
        _say("   Dashboard: the cause is now connect, no single client is named, and refused clients are counted.")
        since = time.time()
        storm(self._port, seconds, STORM)
        self._show_incident(since)

    def _show_incident(self, since: float) -> None:
        _say("   The load has ended.")
        self._until(self._calm, QUIET, "the level to fall to 0")
        if not self._analysed:
            return
        found = self._until(lambda: self._incident(since), QUIET, "the analysis to close the incident")
        for sentence in found["story"] if found else ():
            _say(f"   | {sentence}")

    def _calm(self) -> bool:
        from cli.control_client import ControlClient, RequestFailed

        with closing(ControlClient(self._node)) as control:
            try:
                status = control.try_request("overload")
            except RequestFailed:
                return False
        return all("overload" in one and not one["overload"]["level"] for one in status["workers"])

    def _incident(self, since: float) -> Any:
        """Return the first incident that ended after *since*; None if there is none yet."""
        from analytics.keys import AnalyticsKeys

        rows = self._ask_redis("HVALS", AnalyticsKeys("weir").incidents) or []
        over = [one for one in map(json.loads, rows) if one["state"] == "closed" and one["end"] >= since]
        return min(over, key=_start, default=None)

    def _ask_redis(self, *command: str) -> Any:
        """Return the reply of Redis; None if Redis is unavailable."""
        import redis

        with redis.Redis(unix_socket_path=str(self._node.path / "redis" / "redis.sock")) as server:
            try:
                return server.execute_command(*command)
            except redis.RedisError:
                return None

    # The processes.

    def start_node(self) -> None:
        settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
        where = ["--name", NAME, "--set", f"node.folder={self._node.path}"]
        self._port = _free_port()
        process = self._start("node", "start", *where, "--workers", "1", "--port", str(self._port), *settings)
        if not self._until(self._serves, STARTING, "the node to serve", process):
            raise Failed(f"the node of the demo does not start: {self._last_line('node')}")
        _say(f"The node of the demo serves on port {self._port}; its limits are low, so that it can be overloaded.")

    def _serves(self) -> bool:
        from cli.control_client import ControlClient, RequestFailed

        with closing(ControlClient(self._node)) as control:
            try:
                return bool(control.try_request("status")["state"] == "serving")
            except RequestFailed:
                return False

    def _start_dashboard(self, port: int) -> None:
        if port and _is_taken(port):
            _say(f"Port {port} is in use; the dashboard uses another one.")
            port = 0
        process = self._start("dashboard", "dashboard", "--folder", str(self._node.path), "--port", str(port))
        log = self._log("dashboard")
        if not self._until(lambda: " serves on " in log.read_text(), STARTING, "the dashboard to serve", process):
            raise Failed(f"the dashboard does not start: {self._last_line('dashboard')}")
        _say(f"Open the dashboard: {log.read_text().split(' serves on ')[1].split()[0]}")

    def _start_analysis(self) -> None:
        from cli.analytics import java

        wrong = java()
        if wrong:
            _say(f"No incidents are shown: {wrong}")
            return
        process = self._start("analysis", "analytics", "run", "--folder", str(self._node.path), "--no-install")
        _say("The analysis starts; Spark needs about 15 s, on a busy machine more.")
        if self._until(self._analyses, SPARK, "the analysis to begin", process):
            self._analysed = True
            _say("The analysis runs.")
        elif process.poll() is None:
            _say("The demo continues; incidents are shown when the analysis has started.")
        else:
            _say(f"No incidents are shown, as the analysis does not run: {self._last_line('analysis')}")

    def _analyses(self) -> bool:
        """Return whether the analysis has read the records of the node until now."""
        from analytics.keys import AnalyticsKeys

        status = self._ask_redis("GET", AnalyticsKeys("weir").status)
        return bool(status and time.time() - json.loads(status)["newest"] < BEHIND)

    def start_fleet(self) -> None:
        load = ("--publishers", str(FLEET), "--rate", str(FLEET_RATE), "--connect-rate", "20", "--seconds", "86400")
        process = self._start("fleet", "bench", f"127.0.0.1:{self._port}", *load)
        # An overload that begins before would keep them out, and nobody would see that they go on.
        if not self._until(self._fleet_serves, STARTING, "the modest clients to connect", process):
            raise Failed(f"the modest clients of the demo do not connect: {self._last_line('fleet')}")
        _say(f"{FLEET} modest clients publish {FLEET_RATE} messages per second, all the time. Dashboard: level 0.")

    def _fleet_serves(self) -> bool:
        """Return whether the publishers and the subscribers of the fleet are connected."""
        from cli.control_client import ControlClient, RequestFailed

        with closing(ControlClient(self._node)) as control:
            try:
                gauges = control.try_request("status")["totals"]["gauges"]
            except RequestFailed:
                return False
        return bool(gauges.get("connected", 0) >= 2 * FLEET)

    def _start(self, log: str, *arguments: str) -> "subprocess.Popen[bytes]":
        from supervisor.process import interpreter_flags

        with self._log(log).open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *interpreter_flags(), "-m", "cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the demo only, which stops the processes in order
            )
        self._started.append(process)
        return process

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _last_line(self, name: str) -> str:
        lines = self._log(name).read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("weir: ")[:500] if lines else "no message."

    def _until(
        self, condition: Any, timeout: float, what: str, process: "subprocess.Popen[bytes] | None" = None
    ) -> Any:
        """Return the first true result of *condition*; None after *timeout* seconds, or if *process* ends."""
        deadline = time.monotonic() + timeout
        while not (found := condition()):
            if process is not None and process.poll() is not None:
                return None
            if time.monotonic() > deadline:
                _say(f"   Gave up after {timeout:g} s of waiting for {what}.")
                return None
            time.sleep(POLL)
        return found


def _flood(seconds: float) -> "Plan":
    """Return the load of one publisher that sends as fast as the broker accepts."""
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
