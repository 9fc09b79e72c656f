# A worker as a process: `python -m broker DESCRIPTOR PARENT`. Only the supervisor starts it.
#
# How it begins is said in control/supervised.py. Its assignment has the shard, the configuration, and the descriptors
# of the listening sockets, the heartbeat and the log.
import mmap
import os
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Final, assert_never

import trio

from broker.auth.files import AccessFileError
from broker.config.sources import restored
from broker.control.frame_codec import FrameError, encode
from broker.control.frames import (
    SUPERVISOR_FRAMES,
    Answer,
    Assignment,
    CannotStart,
    ChangeBans,
    ChangeLimits,
    Drain,
    DrainNode,
    Ended,
    FromSupervisor,
    LoopStarted,
    NewCarrier,
    NewPeer,
    OtherNodes,
    OtherWorkers,
    Override,
    PublishWills,
    Ready,
    RedisMoved,
    Reload,
    Reloaded,
    ReopenLog,
    Request,
    StatisticsReport,
    WillSettled,
)
from broker.control.heartbeat import SERVING, STARTING, Heartbeat
from broker.control.link import Link
from broker.control.periodic import every
from broker.control.supervised import begin, cannot_start, first_frame, lines_to, reopen
from broker.insight.admin_requests import AdminRequests
from broker.insight.logs import configure
from broker.insight.operator_requests import operator_requests
from broker.insight.pending_answers import Arguments, PendingAnswer, PendingAnswers, RequestRefused
from broker.insight.warm_first import WarmFirst
from broker.net.transports.certificates import CertificateError
from broker.overload.placement import Place
from broker.store.redis.address import RedisAddress
from broker.worker import OWN_DESCRIPTORS, Worker
from broker.worker_id import WorkerId

STATISTICS_INTERVAL: Final = 1.0  # seconds
LATE_ANSWERS: Final = 0.5  # seconds between two looks for answers that are late
LONG_START: Final = 5.0  # seconds after which a worker says what it waits for before it serves; a start takes one
LAST_FRAME_TIMEOUT: Final = 1.0  # seconds


class Process:
    """One worker, and what connects it with its supervisor."""

    def __init__(self, sock: socket.socket, assignment: Assignment) -> None:
        """AccessFileError, CertificateError."""
        config = restored(assignment.config)
        page = mmap.mmap(assignment.heartbeat, 0)
        self._log_path = assignment.log_path
        self._log_descriptor = assignment.log
        self._heartbeat = Heartbeat(page, assignment.worker.shard, assignment.worker.incarnation)
        self._heartbeat.stamp(time.monotonic())
        connections = assignment.descriptor_limit - OWN_DESCRIPTORS
        if config.limits.connections:  # the limit is the node's
            connections = min(connections, -(-config.limits.connections // assignment.workers))
        self._connections = connections
        self.worker = worker = Worker(
            config,
            connections,
            heartbeat=self._heartbeat,
            workers=assignment.workers,
            memory=assignment.memory,
            identity=assignment.worker,
            redis=assignment.redis,
            alone=assignment.alone,
            trace=trace_of(assignment) if config.overload.trace else "",
            will_settled=self._send_will_settled,
            cluster_key=bytes.fromhex(assignment.cluster_key),
        )
        registry_client, orphaned_wills = worker.links.registry_client, worker.cluster.orphaned_wills
        assert registry_client is not None and orphaned_wills is not None
        self._registry_client = registry_client
        self._orphaned_wills = orphaned_wills
        self._pending = PendingAnswers(worker.base.clock)
        self._requests = AdminRequests(
            worker.protocol.store,
            worker.protocol.lifecycle,
            worker.reactor,
            worker.diagnostics,
            worker.overload_snapshot,
            worker.interval_metrics,
            worker.overload_monitor.inject,
            worker.base.clock,
            {
                **operator_requests(
                    worker.base, worker.protocol, worker.links.durable_store, worker.retained, self._pending
                ),
                "moves": self._moves,
                "rebalance": self._rebalance,
                "clients_at": self._clients_at,
            },
            WarmFirst(worker.protocol.cold, worker.protocol.store, self._pending),
        )
        self._to_come = 1  # answers to wait for before clients are served: of the mesh, and of the store
        self._stopping = trio.Event()
        self._hand_over = False  # the other workers get the sessions of this one when it stops
        sock.setblocking(False)
        self._link = Link(worker.reactor, sock, SUPERVISOR_FRAMES, self._take, self._link_lost)
        transports = worker.transports.by_name
        self._listeners = [
            (socket.socket(fileno=listener.descriptor), transports[listener.transport])
            for listener in assignment.listeners
        ]
        for peer in assignment.peers:
            self._join(peer.worker, peer.data, peer.control)
        self._registry_client.registry.fenced = self._counts_as_dead
        if worker.protocol.durable is not None:
            worker.protocol.durable.settled = self._counts_as_dead
        self._set_nodes(assignment.nodes)
        worker.cluster.moves.drain(assignment.drain.on, assignment.drain.forced)
        worker.protocol.overrides.change(assignment.overrides)
        worker.client_overrides.change(assignment.limits, [])
        worker.protocol.bans.change(assignment.bans, [])
        worker.collector.start(worker.base.clock())

    def _join(self, peer: WorkerId, *descriptors: int) -> None:
        """Connect with the worker *peer*, by the *descriptors* of the data lane and of the control lane."""
        data, control = (_lane(descriptor) for descriptor in descriptors)
        self.worker.cluster.mesh.join(peer, data, control)

    def _set_nodes(self, others: OtherNodes) -> None:
        self.worker.cluster.mesh.former = frozenset(others.former)
        self.worker.cluster.mesh.set_clocks({clock.name: clock.shift / 1000 for clock in others.clocks})
        self.worker.protection.reports.brief = bool(others.former)
        running = {worker.node: Place(worker.node) for worker in others.workers}
        said = {one.name: Place(one.name, one.reference, one.draining) for one in others.places}
        self.worker.protocol.placement.set([*{**running, **said}.values()])
        distant = self.worker.cluster.distant
        if distant is not None:
            distant.set(others.workers, others.missing + sum(dead.owners for dead in others.dead))
        settlement = self.worker.cluster.settlement
        if settlement is not None:
            dead_workers = {dead.name: dead.workers for dead in others.dead}
            settlement.set(others.workers, dead_workers, self.worker.base.clock())

    def _moves(self, arguments: Arguments) -> object:
        return self.worker.cluster.moves.statistics()

    def _rebalance(self, arguments: Arguments) -> object:
        return self.worker.cluster.moves.rebalance()

    def _clients_at(self, arguments: Arguments) -> object:
        return self.worker.protocol.placement.clients_at(str(arguments["node"]), self.worker.base.clock())

    def _came(self) -> None:
        """All peers have sent what they know, or all stored sessions of this shard are here. After both: accept
        connections.
        """
        self._to_come -= 1
        if self._to_come:
            return
        listeners, self._listeners = self._listeners, []
        for listener, transport in listeners:
            self.worker.loop.listen(listener, transport)
        self._heartbeat.enter(SERVING, self.worker.base.clock())  # the limit for silence is one second from now on
        backbone = self.worker.links.backbone
        if backbone is not None:
            backbone.serve()
        self._link.send(Ready(self._connections))

    def _tell_of_start(self) -> None:
        """Log what keeps this worker from serving, if it does not serve yet."""
        if self._to_come:
            durable = self.worker.protocol.durable
            adopted = durable is None or durable.ready()
            mesh = self.worker.cluster.mesh
            self.worker.base.log.warning(
                "start_waits", adopted=adopted, workers=mesh.untold(), expected=mesh.expected()
            )

    def _hands_over(self) -> bool:
        return self._hand_over

    async def serve(self) -> None:
        worker = self.worker
        self._link.send(LoopStarted())
        durable = worker.protocol.durable
        if durable is not None:
            self._to_come += 1
            durable.when_ready(self._came, worker.base.clock())
        worker.cluster.mesh.when_complete(self._came)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_statistics)
            nursery.start_soon(every, LATE_ANSWERS, self._pending.expire)
            nursery.start_soon(every, LONG_START, self._tell_of_start)
            await worker.tasks.run(self._stopping, self._hands_over)
            nursery.cancel_scope.cancel()
        worker.client_log.flush()
        worker.metrics.log_loop(worker.collector.collections, worker.collector.longest)
        lost = worker.hand_over.sessions_lost()
        if lost:
            worker.base.log.warning("sessions_lost", sessions=lost, why="they are in the memory of their worker")
        self._link.send_last(Ended(lost), LAST_FRAME_TIMEOUT)
        worker.close()

    def _take(self, frame: FromSupervisor) -> None:
        """Handle one frame from the supervisor."""
        worker = self.worker
        match frame:
            case Drain():
                self._hand_over = frame.hand_over
                self._stopping.set()
            case DrainNode():
                worker.cluster.moves.drain(frame.on, frame.forced)
            case Reload():
                self._reload(frame.overrides)
            case NewPeer():
                self._join(frame.worker, *self._link.take_descriptors(2))
            case NewCarrier():
                data, control = (_lane(descriptor) for descriptor in self._link.take_descriptors(2))
                worker.links.connect_carrier(data, control)
            case OtherWorkers():
                worker.metrics.set_others(frame.report)
            case OtherNodes():
                self._set_nodes(frame)
            case PublishWills():
                self._orphaned_wills.publish_wills_of(frame.incarnation, worker.base.clock(), frame.done)
            case RedisMoved():
                self._move_redis(frame.address)
            case ChangeLimits():
                worker.client_overrides.change(frame.limits, frame.ended)
            case ChangeBans():
                worker.protocol.bans.change(frame.bans, frame.ended)
            case ReopenLog():
                self._reopen_log()
            case Request():
                self._answer(frame)
            case Assignment():
                self._link_lost("a second assignment")
            case _:
                assert_never(frame)

    def _send_will_settled(self, client_id: str, epoch: int) -> None:
        """If this worker ends before Redis is back, the worker that publishes its wills skips this one."""
        self._link.send(WillSettled(client_id, epoch))

    def _counts_as_dead(self) -> None:
        """Another node has this worker for dead, and what it had: the supervisor starts another one in its place."""
        if not self._stopping.is_set():
            self.worker.base.log.error("worker_counts_as_dead")
            self._stopping.set()

    def _move_redis(self, address: RedisAddress) -> None:
        now = self.worker.base.clock()
        self._registry_client.move(address, now)
        if self.worker.links.durable_store is not None:
            self.worker.links.durable_store.move(address, now)
        if self.worker.links.node_lanes is not None:
            self.worker.links.node_lanes.move(address, now)
        self.worker.reports.move(address, now)

    def _reopen_log(self) -> None:
        try:
            reopen(self._log_path, self._log_descriptor)
        except OSError as error:  # such as a folder that was removed: the former file stays in use
            self.worker.base.log.error("log_file_failed", path=self._log_path, why=error.strerror)

    def _reload(self, overrides: list[Override]) -> None:
        heartbeat, clock = self._heartbeat, self.worker.base.clock
        phase = heartbeat.phase
        heartbeat.enter(STARTING, clock())  # a long password file takes more than a second
        why = self.worker.reload.run()
        if not why:
            self.worker.protocol.overrides.change(overrides)
        heartbeat.enter(phase, clock())
        self._link.send(Reloaded(why))

    def _answer(self, request: Request) -> None:
        number = request.number
        try:
            answer = self._requests.answer(request.what, request.arguments)
        except RequestRefused as error:
            self._send_answer(number, None, str(error))
        except Exception as error:  # a bug: it costs this answer, and the worker goes on
            self.worker.base.internal_errors.report(error)
            self._send_answer(number, None, "The worker failed on this; its log says how.")
        else:
            if isinstance(answer, PendingAnswer):
                answer.deliver_to(partial(self._send_answer, number))
            else:
                self._send_answer(number, answer, "")

    def _send_answer(self, number: int, result: object, error: str) -> None:
        self._link.send(Answer(number, result, error))

    async def _send_statistics(self) -> None:
        while True:
            await trio.sleep(STATISTICS_INTERVAL)
            if not self._link.owes():  # otherwise reports would pile up while the supervisor is stopped
                self._link.send(StatisticsReport(self.worker.metrics.report()))

    def _link_lost(self, why: str) -> None:
        """The supervisor has ended, or sent a wrong frame: in that case it starts another worker."""
        self.worker.base.log.error("link_lost", why=why)
        os._exit(1)


def main(arguments: Sequence[str]) -> None:
    sock = begin(arguments)
    assignment = first_frame(sock, SUPERVISOR_FRAMES)
    if not isinstance(assignment, Assignment):
        raise FrameError(f"a frame {type(assignment).__name__} before the assignment")
    about = {"node": assignment.worker.node, "worker": assignment.worker.shard}
    values = assignment.config
    configure(values["log.level"], values["log.format"], lines_to(assignment.log), about)
    try:
        process = Process(sock, assignment)
    except (AccessFileError, CertificateError) as error:
        cannot_start(sock, encode(CannotStart(str(error))))
    try:
        trio.run(process.serve)
    except BaseException as error:
        traceback.print_exc()
        process.worker.base.log.error("worker_failed", exc_info=error)
        os._exit(1)  # ends threads, too


def _lane(descriptor: int) -> socket.socket:
    lane = socket.socket(fileno=descriptor)
    lane.setblocking(False)
    return lane


def trace_of(assignment: Assignment) -> str:
    """The file in which the worker records the decisions of overload protection."""
    return os.path.join(assignment.folder, "trace", f"worker-{assignment.worker.shard}.trace")


if __name__ == "__main__":
    main(sys.argv[1:])
