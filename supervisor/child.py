# A child of the supervisor: a program that is kept running, as one process after another, until it is stopped.
#
# A kind of child (a worker in its shard, the embedded Redis) says how a process is made and started, and what follows
# from its end. When a process dies, restarts.py decides whether and when another one is started.
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import trio

from supervisor.process import ChildProcess
from supervisor.restarts import GiveUp, RestartPolicy

STOPPED: Final = 0  # exit code of a process that was asked to end

P = TypeVar("P", bound=ChildProcess)


class Child(ABC, Generic[P]):
    def __init__(self, restarts: RestartPolicy) -> None:
        self.process: P | None = None  # the current one, or, between two, the last
        self.deaths = 0
        self.ready = trio.Event()  # set once a process has been ready
        self.stopping = trio.Event()
        self._restarts = restarts

    # What the kinds of children add.

    @abstractmethod
    def make(self) -> P:
        """The next process, which is not started yet."""

    @abstractmethod
    def start(self, process: P) -> None:
        """Start *process*. OSError."""

    @abstractmethod
    def died(self, process: P) -> None:
        """*process* has ended unasked or with an error, or could not be started."""

    @abstractmethod
    def failure(self, process: P, why: str) -> str:
        """One sentence for the user on why no further process is started. *why*: "": the first start failed."""

    def is_first_start(self) -> bool:
        """Whether the death of a process means that the child cannot start."""
        return not self.ready.is_set()

    async def mended(self, process: P) -> bool:
        """Whether that of which *process* has died is mended: then the next one is started at once."""
        return False

    def ended(self, process: P) -> None:
        """*process* has ended, for whatever reason, or could not be started."""

    def stopped(self, process: P) -> None:
        """*process* has ended because it was asked to."""

    def restarting(self, pause: float) -> None:
        """The next process is started in *pause* seconds."""

    # What all children have in common.

    async def keep(self, failed: Callable[[str], None]) -> None:
        """Keep a process running until `stop()` is called. *failed* is called with a sentence if that is impossible."""
        while not self.stopping.is_set():
            process = self.process = self.make()
            await self._run(process)
            self.ended(process)
            if process.stop_requested and process.code == STOPPED:
                self.stopped(process)
                continue
            self.deaths += 1
            self.died(process)
            if self.stopping.is_set() or process.stop_requested:
                continue
            if await self.mended(process):
                continue
            if self.is_first_start():
                failed(self.failure(process, ""))
                return
            verdict = self._restarts.after_death(process.served(), trio.current_time())
            if isinstance(verdict, GiveUp):
                failed(self.failure(process, verdict.why))
                return
            self.restarting(verdict.pause)
            with trio.move_on_after(verdict.pause):
                await self.stopping.wait()

    def stop(self) -> None:
        """Ask the current process to end, and start no other."""
        self.stopping.set()
        if self.process is not None:
            self.process.stop()

    async def _run(self, process: P) -> None:
        """Run *process* from its start to its end."""
        try:
            self.start(process)
        except OSError as error:
            process.mark_dead(error.strerror or str(error))
            return
        await process.watch()


async def keep_in_order(
    stages: Sequence[Sequence[Child[Any]]], stopping: trio.Event, failed: Callable[[str], None]
) -> None:
    """Keep all children of *stages* until *stopping*; *failed* as in `Child.keep()`.

    A stage is started when all children of the former one are ready, and is stopped when the following ones have
    ended: what a child needs is there before it and after it.
    """
    if not stages or stopping.is_set():
        await stopping.wait()
        return
    async with trio.open_nursery() as nursery:
        for child in stages[0]:
            nursery.start_soon(child.keep, failed)
        await _until_ready(stages[0], stopping)
        await keep_in_order(stages[1:], stopping, failed)
        for child in stages[0]:
            child.stop()


async def _until_ready(children: Sequence[Child[Any]], stopping: trio.Event) -> None:
    async with trio.open_nursery() as nursery:

        async def stop_waiting() -> None:
            await stopping.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(stop_waiting)
        for child in children:
            await child.ready.wait()
        nursery.cancel_scope.cancel()
