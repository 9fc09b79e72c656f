# A node: the supervisor's children and services, from the start to the end.
#
# Before the first worker starts, start.py has checked all files and opened all sockets: so a mistake of the user is one
# sentence, and nothing has to be undone.
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog
import trio

from broker.config.schema import Config, ConfigError, needs_carrier
from broker.control.frames import ChangeBans, ChangeLimits, DrainNode, OtherNodes, RedisMoved, ReopenLog
from broker.metrics.report import Report
from broker.version import VERSION, form
from supervisor.bans import NodeBans
from supervisor.carrier import Carrier
from supervisor.child import Child, keep_in_order
from supervisor.folder import NodeFolder
from supervisor.limits import ClientLimits
from supervisor.logfile import LogFile
from supervisor.membership import Membership
from supervisor.node_drain import NodeDrain
from supervisor.node_lease import NodeLease, NodeList
from supervisor.node_redis import NodeRedis
from supervisor.node_requests import DRAIN, EVERYBODY, REBALANCE, UNDRAIN, NodeRequests
from supervisor.worker_process import NoAnswer, WorkerProcess
from supervisor.workers import Listener, Shard, Workers, serving

GAVE_UP: Final = 3  # exit code
CANNOT_START: Final = 2  # exit code
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Node:
    def __init__(
        self,
        config: Config,
        folder: NodeFolder,
        listeners: list[list[Listener]],
        log_file: LogFile,
        check: Callable[[], str],
        redis: NodeRedis,
        on_ready: Callable[[], None],
        reread: Callable[[], Config] | None = None,
        taken: tuple[NodeLease, NodeList] | None = None,
    ) -> None:
        """*listeners* of each shard. *check* returns what is wrong with the files that a reload reads, or "".

        *taken*: the lease of the name of the node, and what it found; None: nobody shares its Redis.
        *reread* returns the configuration as its sources have it now (ConfigError), None: it stays as it is.
        *on_ready* is called once, when all workers are ready for the first time.
        """
        self.config = config
        self.folder = folder
        self.started_at = time.time()
        self.addresses = [(name, *listener.getsockname()[:2]) for name, listener in listeners[0]]
        self.log = structlog.get_logger()
        overrides = config.clients.overrides
        self.limits = ClientLimits(folder.path / "limits", self.log, self._send_limits, configured=overrides)
        self.bans = NodeBans(folder.path / "bans", self.log, self._send_bans)
        self.membership = None if taken is None else Membership(*taken, self._send_nodes, self.log)
        self.drain = NodeDrain(self.membership, self._send_drain, self.log)
        self.workers = Workers(
            config,
            folder,
            listeners,
            log_file,
            redis,
            self.limits,
            self.bans,
            self._all_ready,
            self._loop_started,
            self.membership,
            self.drain.frame,
        )
        self.requests: NodeRequests | None = None  # None: there is no other node
        if self.membership is not None:
            self.requests = NodeRequests(self.membership.lease.channel, redis.cluster_key, self.log)
            self.membership.requested = self._requested
        self.carrier: Carrier | None = None
        if needs_carrier(config):
            self.carrier = Carrier(config, folder, log_file, redis, self.workers.running, self.log)
        self.sentence = ""  # why the node has failed
        self.admin_connections_dropped = 0  # see supervisor/web.py
        self._check = check
        self._reread = reread
        self.redis = redis
        self._on_ready = on_ready
        self._log_file = log_file
        self._code = 0
        self._stopping = trio.Event()
        self._rebalance_asked = trio.Event()
        self._scope = trio.CancelScope()
        self._reloading = trio.Lock()
        # Each stage needs the one before.
        carriers = [] if self.carrier is None else [self.carrier]
        self._stages: list[list[Child[Any]]] = [[*redis.children()], [*carriers], [*self.workers.shards]]

    @property
    def shards(self) -> list[Shard]:
        return self.workers.shards

    async def serve(self, services: list[Callable[[], Any]]) -> int:
        """Keep the children until SIGTERM or SIGINT, and *services* beside them; the exit code."""
        with trio.open_signal_receiver(*SIGNALS) as signals, self._scope:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            async with trio.open_nursery() as beside:
                beside.start_soon(self._handle_signals, signals, beside)
                beside.start_soon(self._log_file.rotate, self._reopen_logs)
                beside.start_soon(self.limits.watch)
                beside.start_soon(self.bans.watch)
                beside.start_soon(self.redis.watch, self._redis_moved)
                if self.membership is not None:
                    beside.start_soon(self.membership.keep, partial(self.end, GAVE_UP))
                beside.start_soon(self.drain.watch, partial(serving, self.shards))
                beside.start_soon(self._carry_out)
                for service in services:
                    beside.start_soon(service)
                await keep_in_order(self._stages, self._stopping, self._failed)
                beside.cancel_scope.cancel()
        self._close_listeners()
        if not self._code:
            self.log.info("stopped")
        return self._code

    def stop(self, why: str) -> None:
        """Have the workers disconnect their clients, then end."""
        if self._stopping.is_set():
            return
        self.log.info("stopping", why=why, clients=self.workers.connected())
        for shard in self.shards:  # before a worker could start without listening sockets
            shard.stop()
        self._close_listeners()
        self._stopping.set()

    async def rebalance(self) -> int:
        """Have the workers send their surplus of clients to other nodes; how many these are."""
        found = 0
        for process in serving(self.shards):
            with suppress(NoAnswer):
                found += await process.ask("rebalance", {})
        if found:
            self.log.info("rebalancing", clients=found)
        return found

    def end(self, code: int, sentence: str = "") -> None:
        """End at once."""
        self._code = code
        self.sentence = sentence
        self._scope.cancel()

    async def replace(self, shard: Shard) -> int | None:
        """Replace the worker of *shard*; the process id of the new one, None if it did not become ready."""
        process = await self.workers.replace(shard, self._stopping)
        return None if process is None else process.pid

    async def reload(self) -> list[str]:
        """SIGHUP: check the files, then have each worker read them; the errors.

        Of the configuration only clients.overrides takes effect; all else needs a new start.
        """
        async with self._reloading:
            self._log_file.reopen()
            self._reopen_logs()
            try:
                overrides = self.config.clients.overrides if self._reread is None else self._reread().clients.overrides
                wrong = self._check()
            except ConfigError as error:
                wrong = str(error)
            if wrong:
                self.log.error("reload_failed", why=wrong)
                return [wrong]
            self.limits.configure(overrides)
            return await self.workers.reload()

    # The state.

    def ready(self) -> bool:
        """Whether all workers serve, and take clients."""
        return not self._stopping.is_set() and not self.drain.state and self.workers.all_serve()

    def stopping(self) -> bool:
        return self._stopping.is_set()

    def state(self) -> str:
        if self.stopping():
            return "stopping"
        if self.workers.all_serve():
            return self.drain.state or "serving"
        return "degraded" if self.workers.were_ready else "starting"

    def statistics(self) -> Report:
        """The sum over all workers."""
        return self.workers.statistics()

    # What happens to it.

    def _all_ready(self, connections: int) -> None:
        facts = {"workers": len(self.shards), "connections": connections, "folder": str(self.folder.path)}
        self.log.info("started", version=VERSION, form=form(), **facts)
        self._on_ready()

    def _loop_started(self, worker: WorkerProcess) -> None:
        if self.carrier is not None:
            self.carrier.connect(worker)

    def _failed(self, sentence: str) -> None:
        """A child cannot be kept running."""
        self.end(GAVE_UP if self.workers.were_ready else CANNOT_START, sentence)

    def _redis_moved(self) -> None:
        self.log.info("redis_address_changed", address=str(self.redis.address))
        moved = RedisMoved(self.redis.address)
        self.workers.send_all(moved)
        if self.carrier is not None:
            self.carrier.send(moved)
        if self.membership is not None:
            self.membership.moved()

    def _send_nodes(self, others: OtherNodes) -> None:
        self.workers.send_all(others)

    def _send_drain(self, drain: DrainNode) -> None:
        self.workers.send_all(drain)

    def _requested(self, content: bytes) -> None:
        """Another node asks for something (node_requests.py)."""
        assert self.membership is not None and self.requests is not None
        request = self.requests.decode(content, time.time(), time.monotonic())
        if request is None or request.incarnation not in (self.membership.lease.incarnation, EVERYBODY):
            return
        by = f"node {request.by}"
        if request.what == REBALANCE and request.by != self.config.node.name:
            self._rebalance_asked.set()
        elif request.what == DRAIN and not self.stopping():
            self.drain.begin(request.forced, self.workers.connected(), by)
        elif request.what == UNDRAIN:
            self.drain.end(by)

    async def _carry_out(self) -> None:
        """For ever: rebalance when another node asks for it. What is asked meanwhile is one request."""
        while True:
            await self._rebalance_asked.wait()
            self._rebalance_asked = trio.Event()
            await self.rebalance()

    def _send_limits(self, change: ChangeLimits) -> None:
        self.workers.send_all(change)

    def _send_bans(self, change: ChangeBans) -> None:
        self.workers.send_all(change)

    def _reopen_logs(self) -> None:
        self.workers.send_all(ReopenLog())
        if self.carrier is not None:
            self.carrier.send(ReopenLog())

    async def _handle_signals(self, signals: AsyncIterator[int], nursery: trio.Nursery) -> None:
        """The first SIGTERM or SIGINT stops the node, the second one ends it at once; SIGHUP reloads."""
        async for number in signals:
            if number == signal.SIGHUP:
                nursery.start_soon(self.reload)
            elif self._stopping.is_set():
                self.end(128 + number)
            else:
                self.stop(signal.Signals(number).name)

    def _close_listeners(self) -> None:
        for shard in self.shards:
            for _, listener in shard.listeners:
                listener.close()
