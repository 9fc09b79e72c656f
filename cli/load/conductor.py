# The conductor: starts the processes of a load, synchronises their start, watches them, and collects their results.
#
# Processes are forked, so they start fast and share the plan. The start is a time shortly ahead, on the clock that all
# processes share. The load ends when all expected messages have arrived, or none has arrived for a while.
import multiprocessing
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from types import FrameType
from typing import Final, cast

from cli.endpoint import Endpoint, Unreachable
from cli.load.network import now_us
from cli.load.plan import Plan, allow_descriptors
from cli.load.process import Progress, Result, run_process

AHEAD: Final = 200_000  # us until the start: the broker settles, and all processes have received the start time
QUIET: Final = 3_000_000  # us without a message after which no more are expected: an overloaded broker may pause
AWAY: Final = 10_000_000  # us without any connection after which the load is aborted: the broker may restart
GRACE: Final = 5.0  # seconds for a process to end


@dataclass
class Observed:
    """The results of all processes, and how the load ended."""

    processes: list[Result]
    interrupted: bool
    gone: bool


class Watcher:
    """Receives the progress of a load."""

    def connecting(self, up: int) -> None:
        """*up* connections are established."""

    def running(self, seconds: float, up: int, sent: int, received: int) -> None:
        """The totals of all processes, *seconds* after the start."""


class Conductor:
    def __init__(self, plan: Plan, endpoint: Endpoint, watcher: Watcher) -> None:
        """Raises BadPlan if this machine does not allow enough connections."""
        self._plan = plan
        self._endpoint = endpoint
        self._watcher = watcher
        self._parts = plan.parts()
        allow_descriptors(max(part.connections() for part in self._parts))
        self._children: list[ForkProcess] = []
        self._pipes: list[Pipe] = []  # to all processes
        self._unfinished: list[Pipe] = []  # to processes without a result yet
        self._up = [0] * plan.processes
        self._progress: list[Progress | None] = [None] * plan.processes
        self._results: list[Result] = []
        self._started = 0
        self._interrupted = False
        self._gone = False

    def run(self) -> Observed:
        """Run the load. Raises Unreachable if a client cannot connect. Ctrl-C ends it early, a second one at once."""
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            self._fork()
            self._connect()
            if not self._interrupted:
                self._started = now_us() + AHEAD
                self._send("start", self._started)
                self._publish()
                self._send("stop", None)
                self._await_rest()
                self._send("finish", None)
                while self._unfinished:
                    self._receive()
        finally:
            signal.signal(signal.SIGINT, before)
            self._end()
        return Observed(self._results, self._interrupted, self._gone)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle Ctrl-C. An exception here could interrupt the read of a message from a pipe."""
        self._interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _fork(self) -> None:
        context = multiprocessing.get_context("fork")
        for part in self._parts:
            ours, theirs = context.Pipe()
            self._pipes.append(ours)
            arguments = (part, self._endpoint, theirs, self._pipes)
            child = context.Process(target=run_process, args=arguments, daemon=True)
            child.start()
            theirs.close()
            self._children.append(child)
        self._unfinished = list(self._pipes)

    def _connect(self) -> None:
        while not self._interrupted and sum(self._up) < self._plan.publishers + self._plan.subscribers:
            self._receive()
            self._watcher.connecting(sum(self._up))

    def _publish(self) -> None:
        """Wait until every process has published all messages, or the broker is gone."""
        seen_up = now_us()
        while not self._interrupted:
            progress = self._round()
            now = now_us()
            if sum(one.up for one in progress):
                seen_up = now
            if now - seen_up > AWAY:
                self._gone = True
                return
            if progress and all(one.done for one in progress):
                return

    def _await_rest(self) -> None:
        """Wait until all published messages have arrived, or none arrives for QUIET."""
        received, since = -1, now_us()
        while not self._gone:
            progress = self._round()
            now = now_us()
            so_far = sum(one.received for one in progress)
            if so_far != received:
                received, since = so_far, now
            done = all(one.done for one in progress)
            if done and so_far >= sum(one.expected for one in progress):
                return
            if now - since > QUIET:
                return

    def _round(self) -> list[Progress]:
        """Wait for reports and update the watcher; return the progress of all, [] until each has reported."""
        self._receive()
        progress = [one for one in self._progress if one is not None]
        if len(progress) < len(self._pipes):
            return []
        self._watcher.running(
            max(0, now_us() - self._started) / 1_000_000,
            sum(one.up for one in progress),
            sum(one.sent for one in progress),
            sum(one.received for one in progress),
        )
        return progress

    def _receive(self) -> None:
        """Wait for reports of processes and store them."""
        for pipe in cast(list[Pipe], wait(self._unfinished)):
            number = self._pipes.index(pipe)
            try:
                kind, value = pipe.recv()
            except (EOFError, ConnectionResetError):
                raise Unreachable("a process of the load generator has died; there is no result.") from None
            if kind == "failed":
                raise Unreachable(value)
            if kind == "connected":
                self._up[number] = value
            elif kind == "progress":
                self._progress[number] = value
            else:
                self._results.append(value)
                self._unfinished.remove(pipe)  # the process ends now

    def _send(self, kind: str, value: int | None) -> None:
        for pipe in self._pipes:
            try:
                pipe.send((kind, value))
            except (BrokenPipeError, ConnectionResetError):
                pass  # the next read from the pipe reports it

    def _end(self) -> None:
        """End all processes."""
        for pipe in self._pipes:
            pipe.close()
        for child in self._children:
            child.join(GRACE)
            if child.is_alive():
                child.kill()
                child.join()
