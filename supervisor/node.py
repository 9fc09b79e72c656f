# A node: the supervisor's composition root and its tasks, one of them for each shard.
#
# Starting checks everything that can be checked and opens everything that can be in use before the first worker
# begins; so what a user got wrong is one sentence, and nothing has to be undone. Then each shard has a task that keeps
# a worker alive in it. The listening sockets stay ours: what arrives while a worker is replaced waits in its queue.
import mmap
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import structlog
import trio

from broker.config.schema import Config
from broker.config.sources import described
from broker.control import heartbeat
from broker.control.frames import (
    Assignment,
    ChangeLimits,
    FromWorker,
    ListenerSocket,
    OtherWorkers,
    PeerSockets,
    PublishWills,
    Ready,
    RedisMoved,
    Reload,
    Reloaded,
    ReopenLog,
    StatisticsReport,
    WillSettled,
)
from broker.control.machine import raise_descriptor_limit
from broker.net.listeners import shut
from broker.version import VERSION, form
from broker.worker_id import WorkerId
from supervisor.folder import NodeFolder
from supervisor.limits import ClientLimits
from supervisor.logfile import LogFile
from supervisor.node_redis import NodeRedis
from supervisor.obituaries import Obituaries
from supervisor.redis_server import RedisUnusable
from supervisor.supervision import Again, Deaths
from supervisor.totals import Totals
from supervisor.workers import WorkerProcess

GAVE_UP: Final = 3  # exit code
CANNOT_START: Final = 2  # exit code
LATE: Final = 2.0  # seconds over `drain.timeout` that a worker has to end; then it is killed
SHUT_AFTER: Final = 1.0  # seconds; who would wait longer is refused, and may find another worker, or node
UNTIL_READY: Final = 35.0  # seconds; a worker that hangs while it starts is killed after 30
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Door = tuple[str, socket.socket]  # transport, listening socket


class Shard:
    """One place for a worker, with the doors that are its."""

    def __init__(self, number: int, doors: list[Door]) -> None:
        self.number = number
        self.doors = doors
        self.process: WorkerProcess | None = None
        self.deaths = 0
        self.shut = False  # its doors are: there is nobody behind them, and will not be for a while
        self.leaving = False  # the worker was told to go and another one is to come


class Node:
    def __init__(
        self,
        config: Config,
        folder: NodeFolder,
        doors: list[list[Door]],
        log_file: LogFile,
        check: Callable[[], str],
        redis: NodeRedis,
    ) -> None:
        """*doors* of each shard; *check* says what is wrong with the files that are read again at SIGHUP, or ""."""
        self.check = check
        self.redis = redis
        self._obituaries = Obituaries(folder.path / "incarnations")
        self.config = config
        self.folder = folder
        self.began = time.time()
        self.shards = [Shard(number, opened) for number, opened in enumerate(doors)]
        self.totals = Totals()
        self.log = structlog.get_logger()
        self.limits = ClientLimits(folder.path / "limits", self.log, self._tell_limits)
        self.on_ready: Callable[[], None] = _nothing  # called once, when all workers are ready for the first time
        self.sentence = ""  # why the node ended, if it did not mean to
        self.addresses = [(name, *door.getsockname()[:2]) for name, door in doors[0]]
        self._code = 0
        self._ready = False
        self._redis_served = False  # once
        self._stopping = trio.Event()
        self._scope = trio.CancelScope()
        self._change = trio.Event()  # of a worker's state; a new one after each
        self._reading = trio.Lock()  # what can change, again
        self._deaths = Deaths(len(doors))
        self._descriptors = raise_descriptor_limit()
        self._log_file = log_file
        self._memory = os.memfd_create("weir-heartbeat", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, heartbeat.SLOT * len(doors))
        self._page = mmap.mmap(self._memory, 0)
        self._beside: trio.Nursery | None = None

    # Its life.

    async def serve(self, services: list[Callable[[], Any]]) -> int:
        """Keep workers until SIGTERM or SIGINT, and *services* beside them; the exit code."""
        with trio.open_signal_receiver(*SIGNALS) as signals, self._scope:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            async with trio.open_nursery() as beside:
                self._beside = beside
                beside.start_soon(self._watch_signals, signals)
                beside.start_soon(self._log_file.rotate, self._reopen_logs)
                beside.start_soon(self.limits.watch)
                for service in services:
                    beside.start_soon(service)
                if await self._redis_serves(beside):
                    async with trio.open_nursery() as keeping:
                        for shard in self.shards:
                            keeping.start_soon(self._keep, shard)
                    await self.redis.stop()
                beside.cancel_scope.cancel()
        self._close_doors()
        if not self._code:
            self.log.info("stopped")
        return self._code

    async def _redis_serves(self, beside: trio.Nursery) -> bool:
        """Start what the workers need; whether it could be."""
        self.redis.moved = self._tell_redis
        try:
            beside.start_soon(self._stop_loading)
            await beside.start(self._keep_redis)
        except RedisUnusable as error:
            self._code, self.sentence = CANNOT_START, str(error)
            return False
        self._redis_served = True
        return True

    async def _stop_loading(self) -> None:
        """Who stops the node does not wait until Redis has loaded its data; later the workers need it to the last."""
        await self._stopping.wait()
        if not self._redis_served:
            await self.redis.stop()

    async def _keep_redis(self, task_status: trio.TaskStatus[None]) -> None:
        """Until the node ends; a failure after the start is the workers' to live with."""
        try:
            await self.redis.serve(task_status)
        except RedisUnusable as error:
            if not self._redis_served:
                raise
            self.log.error("embedded_redis_failed", why=str(error))

    def _tell_redis(self) -> None:
        self.log.info("redis_address_changed", address=str(self.redis.address))
        for process in self._processes():
            process.send(RedisMoved(self.redis.address))

    def _tell_limits(self, change: ChangeLimits) -> None:
        for process in self._processes():
            process.send(change)

    def stop(self, why: str) -> None:
        """Have all clients told that we shut down, and end."""
        if self._stopping.is_set():
            return
        self.log.info("stopping", why=why, clients=self.connected())
        self._stopping.set()
        self._close_doors()
        for process in self._processes():
            process.drain()
        self._soon(self._kill_late, self._processes())

    def end(self, code: int, sentence: str = "") -> None:
        """End at once."""
        self._code = code
        self.sentence = sentence
        self._scope.cancel()

    async def replace(self, shard: Shard) -> WorkerProcess | None:
        """Let the worker of *shard* tell its clients to go, and start another; None: it did not get ready."""
        former = shard.process
        if former is not None and former.state in ("starting", "serving"):
            shard.leaving = True
            former.drain(hand_over=len(self.shards) > 1)
            self._soon(self._kill_late, [former])
        patience = self.config.drain.timeout + LATE + UNTIL_READY
        with trio.move_on_after(patience):
            await self._until(lambda: (shard.process is not former and _serves(shard)) or self._stopping.is_set())
        return shard.process if _serves(shard) and shard.process is not former else None

    # What is known of it.

    def connected(self) -> int:
        """Clients, as of the last second."""
        return sum(process.statistics.get("gauges", {}).get("connected", 0) for process in self._processes())

    def ready(self) -> bool:
        """All workers serve."""
        return not self._stopping.is_set() and all(_serves(shard) for shard in self.shards)

    def stopping(self) -> bool:
        return self._stopping.is_set()

    def state(self) -> str:
        """In a word."""
        if self.stopping():
            return "stopping"
        if self.ready():
            return "serving"
        return "degraded" if self._ready else "starting"

    def statistics(self) -> dict[str, Any]:
        """The sum over all workers."""
        return self.totals.with_([process.statistics for process in self._processes()])

    def heard(self, process: WorkerProcess, frame: FromWorker) -> None:
        """A worker says something."""
        match frame:
            case Ready():
                self.log.info("worker_ready", worker=process.shard, pid=process.pid)
                self._have_mourned()
                if self._stopping.is_set():
                    process.drain()
                elif not self._ready and all(_serves(shard) for shard in self.shards):
                    self._ready = True
                    workers = len(self.shards)
                    facts = {"workers": workers, "connections": workers * frame.connections}
                    self.log.info("started", version=VERSION, form=form(), **facts, folder=str(self.folder.path))
                    self.on_ready()
            case Reloaded():
                process.reloaded = frame.error
            case WillSettled():
                self._obituaries.has_done(process.identity.incarnation, frame.client_id, frame.epoch)
            case StatisticsReport():
                words = process.words()
                if words:
                    self.log.warning("worker_stderr", worker=process.shard, words=words)
                others = self.totals.with_([one.statistics for one in self._processes() if one is not process])
                if others != process.others:
                    process.others = others
                    process.send(OtherWorkers(others))
                return
        self._tell_change()

    # One shard.

    async def _keep(self, shard: Shard) -> None:
        """Keep a worker in *shard* until the node stops."""
        while not self._stopping.is_set():
            shard.leaving = False
            process = shard.process = WorkerProcess(
                WorkerId(self.config.node.name, shard.number, secrets.randbits(63)), self._page, self
            )
            try:
                self._start(shard, process)
                code = await process.watch()
            except OSError as error:
                self.end(GAVE_UP if self._ready else CANNOT_START, f"Cannot start a worker: {error.strerror}.")
                return
            words = process.words()
            process.close()
            self.totals.bury(process.statistics)
            self._obituaries.died(process.identity.incarnation)
            self._have_mourned()
            self._tell_change()
            if process.told_to_go and code == 0:
                self.log.info("worker_stopped", worker=shard.number, pid=process.pid)
                continue
            shard.deaths += 1
            self._mourn(process, code, words)
            if self._stopping.is_set() or shard.leaving:
                continue
            pause = self._after_death(shard, process, code, words)
            if pause >= SHUT_AFTER:
                self._shut(shard)
            with trio.move_on_after(pause):
                await self._stopping.wait()

    def _have_mourned(self) -> None:
        """The lowest worker that serves publishes the wills that ended ones have left."""
        for shard in self.shards:
            if _serves(shard) and shard.process is not None:
                for incarnation in self._obituaries.told(shard.process.identity.incarnation):
                    shard.process.send(PublishWills(incarnation, self._obituaries.done_by(incarnation)))
                return

    def _shut(self, shard: Shard) -> None:
        """Nobody waits at the doors of *shard* until its next worker is there."""
        shard.shut = True
        for _, door in shard.doors:
            shut(door)

    def _start(self, shard: Shard, process: WorkerProcess) -> None:
        assert self.folder.alive is not None
        if shard.shut:
            shard.shut = False
            for transport, door in shard.doors:
                door.listen(getattr(self.config.listeners, transport).backlog)
        listeners = [ListenerSocket(transport, door.fileno()) for transport, door in shard.doors]
        log = self._log_file.descriptor
        self._obituaries.born(process.identity.incarnation)
        peers, lanes = self._introduce(process)
        assignment = Assignment(
            worker=process.identity,
            workers=len(self.shards),
            folder=str(self.folder.path),
            config=described(self.config),
            descriptor_limit=self._descriptors,
            heartbeat=self._memory,
            log=log,
            log_path=self._log_file.path,
            listeners=listeners,
            peers=peers,
            redis=self.redis.address,
            alone=len(self.shards) == 1 and self.redis.private(),
            limits=self.limits.holding(),
        )
        inherited = [self._memory, log, self.folder.alive, *(listener.descriptor for listener in listeners)]
        try:
            process.start(assignment, [*inherited, *(lane.fileno() for lane in lanes)])
        finally:
            for lane in lanes:
                lane.close()

    def _introduce(self, newcomer: WorkerProcess) -> tuple[list[PeerSockets], list[socket.socket]]:
        """Ends of two sockets, one a lane, to each living worker, for *newcomer*; the others are for those workers."""
        peers: list[PeerSockets] = []
        lanes: list[socket.socket] = []
        for process in self._processes():
            if process is newcomer:
                continue
            data, control = socket.socketpair(), socket.socketpair()
            lanes += [data[0], control[0]]
            peers.append(PeerSockets(process.identity, data[0].fileno(), control[0].fileno()))
            newcomer.will_meet(process, [data[1], control[1]])
        return peers, lanes

    def _mourn(self, process: WorkerProcess, code: int, words: str) -> None:
        """A worker died that had not been told to go, or before it had gone."""
        lost = process.statistics.get("gauges", {}).get("sessions", 0)
        facts: dict[str, object] = {"worker": process.shard, "pid": process.pid, "how": _how(code)}
        if process.killed_for:
            facts["killed_because"] = process.killed_for
        if words:
            facts["last_words"] = words
        self.log.error("worker_died", **facts, sessions_lost=lost)

    def _after_death(self, shard: Shard, process: WorkerProcess, code: int, words: str) -> float:
        """What follows from it: the seconds until the next worker, or the end of the node."""
        last = process.sentence or words.rpartition("\n")[2] or f"it ended with {_how(code)}"
        if not self._ready:
            self.end(CANNOT_START, process.sentence or f"Worker {shard.number} cannot start: {last}.")
            return 0.0
        now = time.monotonic()
        served = None if process.ready_at is None else now - process.ready_at
        verdict = self._deaths.one_more(shard.number, served, now)
        if isinstance(verdict, Again):
            self.log.info("worker_restarting", worker=shard.number, pause_s=verdict.pause)
            return verdict.pause
        sentence = f"The node gave up: {verdict.why}. The last words of the last one: {last}"
        self.log.error("restart_limit_reached", why=verdict.why, last_words=last)
        self.end(GAVE_UP, sentence)
        return 0.0

    # Signals, and what else goes on.

    async def _watch_signals(self, signals: AsyncIterator[int]) -> None:
        """The first SIGTERM or SIGINT drains, the second ends at once; SIGHUP reloads."""
        async for number in signals:
            if number == signal.SIGHUP:
                self._soon(self.read_again)
            elif self._stopping.is_set():
                self.end(128 + number)
            else:
                self.stop(signal.Signals(number).name)

    async def read_again(self) -> list[str]:
        """SIGHUP: check what the files say now, then have each worker read them; what is wrong.

        What is fine for us may have changed when a worker reads it: then some have the new and some the former.
        """
        async with self._reading:
            self._log_file.reopen()
            self._reopen_logs()
            wrong = self.check()
            if wrong:
                self.log.error("reload_failed", why=wrong)
                return [wrong]
            processes = [process for process in self._processes() if process.state == "serving"]
            for process in processes:
                process.reloaded = None
                process.send(Reload())
            with trio.move_on_after(UNTIL_READY):
                await self._until(lambda: all(one.reloaded is not None or one.state == "dead" for one in processes))
        failed = [f"Worker {one.shard}: {one.reloaded or 'no answer'}" for one in processes if one.reloaded != ""]
        if failed:
            self.log.error("reload_incomplete", why=" ".join(failed), workers=len(processes), failed=len(failed))
        return failed

    def _reopen_logs(self) -> None:
        for process in self._processes():
            process.send(ReopenLog())

    async def _kill_late(self, processes: list[WorkerProcess]) -> None:
        await trio.sleep(self.config.drain.timeout + LATE)
        for process in processes:
            process.kill("it did not end in time")

    async def _until(self, true: Callable[[], bool]) -> None:
        while not true():
            await self._change.wait()

    def _tell_change(self) -> None:
        self._change.set()
        self._change = trio.Event()

    def _soon(self, task: Callable[..., Any], *arguments: Any) -> None:
        assert self._beside is not None
        self._beside.start_soon(task, *arguments)

    def _processes(self) -> list[WorkerProcess]:
        found = [shard.process for shard in self.shards if shard.process is not None]
        return [process for process in found if process.state != "dead"]

    def _close_doors(self) -> None:
        for shard in self.shards:
            for _, door in shard.doors:
                door.close()


def _serves(shard: Shard) -> bool:
    return shard.process is not None and shard.process.state == "serving"


def _how(code: int) -> str:
    names = {one.value: one.name for one in signal.Signals}  # real-time signals have none
    return f"signal {names.get(-code, -code)}" if code < 0 else f"exit code {code}"


def _nothing() -> None:
    pass
