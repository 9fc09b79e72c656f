# The workers of a node: one per shard, what all of them share, and what the supervisor tells them of each other.
#
# The listening sockets of a shard belong to the supervisor: while a worker is replaced, new connections wait in their
# backlog. During a longer pause the sockets are shut until a worker serves, so that clients are refused and may try
# another worker or node. They are shut as well when a worker does not serve soon, as it waits for what others know (a
# node that has died tells nothing, and is waited for until it is settled), if another worker or node is there: the
# kernel gives new connections to the sockets of the node that are left.
import mmap
import os
import secrets
import socket
from collections.abc import Callable
from typing import Any, Final

import structlog
import trio

from broker.config.schema import Config
from broker.config.sources import described
from broker.control import heartbeat
from broker.control.frames import (
    Assignment,
    DrainNode,
    FromSupervisor,
    FromWorker,
    ListenerSocket,
    LoopStarted,
    OtherWorkers,
    PeerSockets,
    PublishWills,
    Ready,
    Reload,
    Reloaded,
    StatisticsReport,
    WillSettled,
)
from broker.control.machine import memory_limit, raise_descriptor_limit
from broker.metrics.report import Report
from broker.net.listeners import shut
from broker.worker_id import WorkerId
from supervisor.bans import NodeBans
from supervisor.child import Child
from supervisor.dead_workers import DeadWorkers
from supervisor.folder import NodeFolder
from supervisor.lanes import lane_pairs
from supervisor.limits import ClientLimits
from supervisor.logfile import LogFile
from supervisor.membership import NOBODY, Membership
from supervisor.node_redis import NodeRedis
from supervisor.process import DEAD, SERVING, STARTING
from supervisor.restarts import CrashLoop, RestartPolicy
from supervisor.totals import Totals
from supervisor.worker_process import LATE, WorkerProcess

SHUT_AFTER: Final = 1.0  # seconds; during a longer pause the listening sockets of a shard are shut
SERVES_SOON: Final = 5.0  # seconds; a replaced worker serves again within 2, also with a million sessions
UNTIL_READY: Final = 35.0  # seconds; a worker that hangs while it starts is killed after 30

SERVES: Final = DrainNode(False, False)

Listener = tuple[str, socket.socket]  # transport, listening socket


class Shard(Child[WorkerProcess]):
    """The place of one worker, with its listening sockets."""

    def __init__(self, number: int, listeners: list[Listener], workers: "Workers", crash_loop: CrashLoop) -> None:
        super().__init__(RestartPolicy(f"worker {number}", crash_loop))
        self.number = number
        self.listeners = listeners
        self._workers = workers
        self._shut = False
        self._served_at: float | None = None  # when it was last seen to serve, or first looked at
        self._log = structlog.get_logger()

    def open(self) -> None:
        """Its worker serves now."""
        if self._shut and not self.stopping.is_set():
            self._shut = False
            for transport, listener in self.listeners:
                listener.listen(getattr(self._workers.config.listeners, transport).backlog)

    def look(self) -> None:
        """Clients may go elsewhere: shut the sockets if no worker serves for long.

        When the node stops, its sockets are closed at once.
        """
        now = trio.current_time()
        if self.serves() or self._served_at is None:
            self._served_at = now
        elif now > self._served_at + SERVES_SOON and not self._shut and not self.stopping.is_set():
            self._log.warning("worker_refuses_clients", worker=self.number, absent_s=round(now - self._served_at, 1))
            self._shut_sockets()

    def serves(self) -> bool:
        return self.process is not None and self.process.state == SERVING

    # A Child.

    def make(self) -> WorkerProcess:
        return self._workers.new_process(self.number, self.ready.set)

    def start(self, process: WorkerProcess) -> None:
        self._workers.start(process, self.listeners)

    def ended(self, process: WorkerProcess) -> None:
        self._workers.ended(process)

    def stopped(self, process: WorkerProcess) -> None:
        self._log.info("worker_stopped", worker=self.number, pid=process.pid)

    def died(self, process: WorkerProcess) -> None:
        facts: dict[str, object] = {"worker": self.number, "pid": process.pid, "how": process.how()}
        if process.killed_because:
            facts["killed_because"] = process.killed_because
        if process.last_output:
            facts["last_output"] = process.last_output
        lost = process.statistics.get("gauges", {}).get("sessions_in_memory", 0)  # in the last second
        self._log.error("worker_died", **facts, sessions_lost=lost)

    def restarting(self, pause: float) -> None:
        self._log.info("worker_restarting", worker=self.number, pause_s=pause)
        if pause >= SHUT_AFTER:
            self._shut_sockets()

    def failure(self, process: WorkerProcess, why: str) -> str:
        last = process.sentence or process.last_output.rpartition("\n")[2] or process.how()
        if not why:
            return process.sentence or f"Worker {self.number} cannot start: {last}."
        self._log.error("restart_limit_reached", why=why, last_output=last)
        return f"The node gave up: {why}. The last output of the last one: {last}"

    def is_first_start(self) -> bool:
        return not self._workers.were_ready  # the start of the node needs all of them

    def _shut_sockets(self) -> None:
        if not self._shut:
            self._shut = True
            for _, listener in self.listeners:
                shut(listener)


class Workers:
    def __init__(
        self,
        config: Config,
        folder: NodeFolder,
        listeners: list[list[Listener]],
        log_file: LogFile,
        redis: NodeRedis,
        limits: ClientLimits,
        bans: NodeBans,
        all_ready: Callable[[int], None],
        loop_started: Callable[[WorkerProcess], None],
        membership: Membership | None = None,
        drain: Callable[[], DrainNode] = lambda: SERVES,
    ) -> None:
        """*listeners* of each shard. *all_ready* is called once, with the most connections that the node accepts.

        *loop_started* is called with each new worker, once lanes to it may be connected. *membership*: None, the
        Redis of the node is its own. *drain*: whether the node is drained now.
        """
        crash_loop = CrashLoop()
        self.config = config
        self.shards = [Shard(number, opened, self, crash_loop) for number, opened in enumerate(listeners)]
        self.were_ready = False  # all of them, at some time
        self.totals = Totals()
        self._folder = folder
        self._log_file = log_file
        self._redis = redis
        self._limits = limits
        self._bans = bans
        self._all_ready = all_ready
        self._loop_started = loop_started
        self._membership = membership
        self._drain = drain
        self._log = structlog.get_logger()
        self._dead = DeadWorkers(folder.path / "incarnations")
        self._change = trio.Event()  # of the state of a worker; a new event after each
        self._descriptor_limit = raise_descriptor_limit()
        self._memory = os.memfd_create("weir-heartbeat", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, heartbeat.SLOT * len(listeners))
        self._page = mmap.mmap(self._memory, 0)

    def running(self) -> list[WorkerProcess]:
        found = [shard.process for shard in self.shards if shard.process is not None]
        return [process for process in found if process.state != DEAD]

    def all_serve(self) -> bool:
        return all(shard.serves() for shard in self.shards)

    def connected(self) -> int:
        """Clients, as of the last second."""
        return sum(process.statistics.get("gauges", {}).get("connected", 0) for process in self.running())

    def statistics(self) -> Report:
        """The sum over all workers."""
        return self.totals.sum([process.statistics for process in self.running()])

    def send_all(self, frame: FromSupervisor) -> None:
        for process in self.running():
            process.send(frame)

    async def replace(self, shard: Shard, stopping: trio.Event) -> WorkerProcess | None:
        """Stop the worker of *shard*, whose sessions go to the others, and start another. None: it is not ready."""
        former = shard.process
        if former is not None and former.state in (STARTING, SERVING):
            if len(self.shards) > 1:
                former.hand_over()
            else:
                former.stop()
        with trio.move_on_after(self.config.drain.timeout + LATE + UNTIL_READY):
            await self._until(lambda: (shard.process is not former and shard.serves()) or stopping.is_set())
        return shard.process if shard.serves() and shard.process is not former else None

    async def reload(self) -> list[str]:
        """Have the workers read their files again; the errors.

        The supervisor has read the files before. If they change in between, some workers use the former ones.
        """
        processes = [process for process in self.running() if process.state == SERVING]
        for process in processes:
            process.reloaded = None
            process.send(Reload(self._limits.configured()))
        with trio.move_on_after(UNTIL_READY):
            await self._until(lambda: all(one.reloaded is not None or one.state == DEAD for one in processes))
        failed = [f"Worker {one.shard}: {one.reloaded or 'no answer'}" for one in processes if one.reloaded != ""]
        if failed:
            self._log.error("reload_incomplete", why=" ".join(failed), workers=len(processes), failed=len(failed))
        return failed

    # For the shards.

    def new_process(self, number: int, ready: Callable[[], None]) -> WorkerProcess:
        identity = WorkerId(self.config.node.name, number, secrets.randbits(63))
        return WorkerProcess(identity, self._page, self.config.drain.timeout, self.received, ready)

    def start(self, process: WorkerProcess, listeners: list[Listener]) -> None:
        """Start *process* with its assignment. OSError."""
        assert self._folder.alive is not None
        sockets = [ListenerSocket(transport, listener.fileno()) for transport, listener in listeners]
        log = self._log_file.descriptor
        self._dead.started(process.identity.incarnation)
        peers, lanes = self._connect(process)
        assignment = Assignment(
            worker=process.identity,
            workers=len(self.shards),
            memory=memory_limit(self.config.node.memory),
            folder=str(self._folder.path),
            config=described(self.config),
            descriptor_limit=self._descriptor_limit,
            heartbeat=self._memory,
            log=log,
            log_path=self._log_file.path,
            listeners=sockets,
            peers=peers,
            redis=self._redis.address,
            alone=len(self.shards) == 1 and self._redis.private(),
            cluster_key=self._redis.cluster_key.hex(),
            overrides=self._limits.configured(),
            limits=self._limits.holding(),
            bans=self._bans.holding(),
            nodes=NOBODY if self._membership is None else self._membership.others,
            drain=self._drain(),
        )
        inherited = [self._memory, log, self._folder.alive, *(one.descriptor for one in sockets)]
        try:
            process.start(assignment, [*inherited, *(lane.fileno() for lane in lanes)])
        finally:
            for lane in lanes:
                lane.close()

    def ended(self, process: WorkerProcess) -> None:
        self.totals.add_ended(process.statistics)
        self._dead.ended(process.identity.incarnation)
        if self._membership is not None:
            self._membership.ended(process.identity)
        self._assign_wills()
        self._changed()

    def received(self, process: WorkerProcess, frame: FromWorker) -> None:
        """Handle *frame* of *process*."""
        match frame:
            case LoopStarted():
                self._loop_started(process)
                if self._membership is not None:
                    self._membership.started(process.identity)
            case Ready():
                self.shards[process.shard].open()
                self._log.info("worker_ready", worker=process.shard, pid=process.pid)
                self._assign_wills()
                if not self.were_ready and self.all_serve():
                    self.were_ready = True
                    self._all_ready(len(self.shards) * frame.connections)
            case Reloaded():
                process.reloaded = frame.error
            case WillSettled():
                self._dead.will_settled(process.identity.incarnation, frame.client_id, frame.epoch)
            case StatisticsReport():
                output = process.error_output()
                if output:
                    self._log.warning("worker_stderr", worker=process.shard, text=output)
                self._send_others(process)
                self._look()
                return
        self._changed()

    def _look(self) -> None:
        """Shut the sockets of shards that do not serve for long, if clients may find another worker or node."""
        other_nodes = self._membership is not None and self._membership.others.workers
        if other_nodes or any(shard.serves() for shard in self.shards):
            for shard in self.shards:
                shard.look()

    def _connect(self, new: WorkerProcess) -> tuple[list[PeerSockets], list[socket.socket]]:
        """Make two socket pairs, one per lane, between *new* and each running worker; the ends that *new* inherits."""
        peers: list[PeerSockets] = []
        lanes: list[socket.socket] = []
        for process in self.running():
            if process is new:
                continue
            data, control = lane_pairs()
            lanes += [data[0], control[0]]
            peers.append(PeerSockets(process.identity, data[0].fileno(), control[0].fileno()))
            new.connect_later(process, [data[1], control[1]])
        return peers, lanes

    def _assign_wills(self) -> None:
        """Have the first worker that serves publish the wills of those that have ended."""
        for shard in self.shards:
            if shard.process is not None and shard.serves():
                for incarnation in self._dead.assign(shard.process.identity.incarnation):
                    shard.process.send(PublishWills(incarnation, self._dead.settled_wills(incarnation)))
                return

    def _send_others(self, process: WorkerProcess) -> None:
        """Send *process* the sum of the other workers' reports, if it has changed."""
        others = self.totals.sum([one.statistics for one in self.running() if one is not process])
        if others != process.others:
            process.others = others
            process.send(OtherWorkers(others))

    async def _until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            await self._change.wait()

    def _changed(self) -> None:
        self._change.set()
        self._change = trio.Event()


def serving(shards: list[Shard]) -> list[WorkerProcess]:
    """The processes of those *shards* that can be asked now."""
    return [shard.process for shard in shards if shard.process is not None and shard.serves()]
