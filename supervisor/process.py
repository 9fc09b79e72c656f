# One process that the supervisor has started: its states, its end, and how it is stopped or killed.
#
# Processes are executed afresh, with the descriptors they need and nothing else, and never forked from the running
# interpreter. They are started from the main thread, as die_with_parent.py demands.
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from broker.control import die_with_parent

STARTING: Final = "starting"
SERVING: Final = "serving"
DRAINING: Final = "draining"
DEAD: Final = "dead"


class ChildProcess(ABC):
    def __init__(self, ready: Callable[[], None], stop_timeout: float, cancel_timeout: float = 0.0) -> None:
        """*ready* is called when the process becomes ready.

        *stop_timeout*: seconds between `stop()` and SIGKILL. *cancel_timeout*: seconds between SIGTERM and SIGKILL
        when `watch()` is cancelled; 0: no SIGTERM.
        """
        self.pid = 0
        self.state = STARTING
        self.started_at = time.monotonic()
        self.ready_at: float | None = None
        self.killed_because = ""
        self.stop_requested = False
        self.start_error = ""  # why it could not be started
        self.code: int | None = None  # after its end: the exit code, or minus the number of the signal
        self._ready = ready
        self._stop_timeout = stop_timeout
        self._cancel_timeout = cancel_timeout
        self._stop = trio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1

    # What the kinds of processes add.

    @abstractmethod
    def request_stop(self) -> None:
        """Ask the process to end; called once."""

    @abstractmethod
    def watchers(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """The tasks that run beside the process."""

    async def finish(self) -> None:  # noqa: B027  # most kinds have nothing to wait for
        """Wait for what the process sent before its end. The watchers run meanwhile."""

    @abstractmethod
    def close(self) -> None:
        """Close what belongs to the process; called once, when it is dead."""

    # What all processes have in common.

    def execute(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Start *command*; *options* are those of Popen. OSError."""
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            raise
        self.pid = self._process.pid
        return self._process

    async def watch(self) -> None:
        """Run the watchers until the process has ended."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._kill_late)
                for task in self.watchers():
                    nursery.start_soon(task)
                await trio.lowlevel.wait_readable(self._pidfd)
                await self.finish()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self._end()
            self.mark_dead()

    def mark_dead(self, start_error: str = "") -> None:
        """The process has ended, or could not be started."""
        self.start_error = start_error
        self.state = DEAD
        self.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def became_ready(self) -> None:
        self.ready_at = time.monotonic()
        if self.state == STARTING:
            self.state = SERVING
        self._ready()

    def served(self) -> float | None:
        """Seconds since the process was ready; None: it has not been ready yet."""
        return None if self.ready_at is None else time.monotonic() - self.ready_at

    def stop(self) -> None:
        """Ask the process to end, and kill it after the timeout."""
        if self.state in (STARTING, SERVING):
            self.state = DRAINING
            self.stop_requested = True
            self.request_stop()
            self._stop.set()

    def kill(self, why: str) -> None:
        if self._process is not None and self._process.poll() is None:
            self.killed_because = self.killed_because or why
            self._process.kill()

    def terminate(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def how(self) -> str:
        """How the process ended, for the log."""
        if self.code is None:
            return f"not started: {self.start_error}"
        names = {one.value: one.name for one in signal.Signals}  # real-time signals have no names
        return f"signal {names.get(-self.code, -self.code)}" if self.code < 0 else f"exit code {self.code}"

    async def _kill_late(self) -> None:
        await self._stop.wait()
        await trio.sleep(self._stop_timeout)
        self.kill("it did not end in time")

    async def _end(self) -> None:
        """Make sure that the process has ended, and take its exit code."""
        assert self._process is not None
        if self._cancel_timeout:
            self.terminate()
            with trio.move_on_after(self._cancel_timeout):
                await trio.lowlevel.wait_readable(self._pidfd)
        self.kill("the supervisor ends")
        self.code = self._process.wait()


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """The command that runs *command*, a program that is not Weir's, so that it dies with the supervisor."""
    return [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid()), *command]


def process_stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat (proc(5)) from the state on; []: there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def process_times(pid: int) -> float:
    """Seconds of CPU that the process has used; 0.0: there is no such process."""
    fields = process_stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process, and none has continued it."""
    return process_stat(pid)[:1] in (["T"], ["t"])


def interpreter_flags() -> list[str]:
    """Options for an interpreter to import Weir from where this one did: `-m` alone puts the current folder first."""
    return [] if os.getcwd() in sys.path else ["-P"]
