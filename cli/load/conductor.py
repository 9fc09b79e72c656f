# The conductor: starts the processes of a load, has them begin together, watches, and adds their results up.
#
# Processes are forked, so they begin at once and with all that we know. The start is a time a moment ahead on the
# clock that all share. The end is when all that was expected has arrived, or nothing more does.
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

AHEAD: Final = 200_000  # us until the start: the broker may settle, and everybody has heard of it
QUIET: Final = 3_000_000  # us without a message after which no more is expected: an overloaded broker may pause
AWAY: Final = 10_000_000  # us without any connection after which the broker is given up: it may restart
GRACE: Final = 5.0  # seconds for a process to end


@dataclass
class Observed:
    """The results of all processes, and whether the broker was there to the end."""

    processes: list[Result]
    interrupted: bool
    gone: bool


class Watcher:
    """Told how a load goes on."""

    def connecting(self, up: int) -> None:
        """So many connections are there."""

    def running(self, seconds: float, up: int, sent: int, received: int) -> None:
        """What all processes have sent and received *seconds* after the start, and how many connections they have."""


class Conductor:
    def __init__(self, plan: Plan, endpoint: Endpoint, watcher: Watcher) -> None:
        """BadPlan if this machine does not allow so many connections."""
        self._plan = plan
        self._endpoint = endpoint
        self._watcher = watcher
        self._parts = plan.parts()
        allow_descriptors(max(part.connections() for part in self._parts))
        self._children: list[ForkProcess] = []
        self._pipes: list[Pipe] = []  # to each of them
        self._talking: list[Pipe] = []  # to those from whom more is to come
        self._up = [0] * plan.processes
        self._progress: list[Progress | None] = [None] * plan.processes
        self._results: list[Result] = []
        self._started = 0
        self._interrupted = False
        self._gone = False

    def run(self) -> Observed:
        """The whole load. Unreachable: not all clients could connect. Ctrl-C ends it early, a second one at once."""
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            self._fork()
            self._connect()
            if not self._interrupted:
                self._started = now_us() + AHEAD
                self._tell("start", self._started)
                self._publish()
                self._tell("stop", None)
                self._await_rest()
                self._tell("finish", None)
                while self._talking:
                    self._hear()
        finally:
            signal.signal(signal.SIGINT, before)
            self._end()
        return Observed(self._results, self._interrupted, self._gone)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-C. An exception here would cut what a process is telling us in two."""
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
        self._talking = list(self._pipes)

    def _connect(self) -> None:
        while not self._interrupted and sum(self._up) < self._plan.publishers + self._plan.subscribers:
            self._hear()
            self._watcher.connecting(sum(self._up))

    def _publish(self) -> None:
        """Until every process has published all, or the broker is gone."""
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
        """Until all that was published has arrived, or nothing more does."""
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
        """Hear from somebody, and tell the watcher; how far everybody is, nobody before all have spoken."""
        self._hear()
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

    def _hear(self) -> None:
        """Wait for what processes say, and note it."""
        for pipe in cast(list[Pipe], wait(self._talking)):
            number = self._pipes.index(pipe)
            try:
                word, value = pipe.recv()
            except (EOFError, ConnectionResetError):
                raise Unreachable("a process of the load has ended before its time; there is no result.") from None
            if word == "failed":
                raise Unreachable(value)
            if word == "connected":
                self._up[number] = value
            elif word == "progress":
                self._progress[number] = value
            else:
                self._results.append(value)
                self._talking.remove(pipe)  # it ends now

    def _tell(self, word: str, value: int | None) -> None:
        for pipe in self._pipes:
            try:
                pipe.send((word, value))
            except (BrokenPipeError, ConnectionResetError):
                pass  # we shall hear of it

    def _end(self) -> None:
        """No process outlives us."""
        for pipe in self._pipes:
            pipe.close()
        for child in self._children:
            child.join(GRACE)
            if child.is_alive():
                child.kill()
                child.join()
