# A worker as a process: `python -m broker DESCRIPTOR`, started by the supervisor and by nobody else.
#
# DESCRIPTOR is the worker's end of the link. The first frame on it is the assignment: which shard this is, the
# configuration, and which descriptors are the listening sockets, the heartbeat and the log. So nothing is opened here
# that could fail because of somebody else, and nothing of ours is on the command line for others to read.
#
# No worker outlives its supervisor: the kernel kills it (PR_SET_PDEATHSIG), and the end of the link would, too.
# Signals that a terminal or an init system sends to all of a group are the supervisor's: it says what becomes of them.
import ctypes
import faulthandler
import mmap
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, Final, Never, TextIO

import trio

from broker.auth.files import AccessFileError
from broker.config.sources import restored
from broker.control.heartbeat import SERVING, STARTING, Heartbeat
from broker.control.link import Frame, Link
from broker.control.link_frames import LENGTH, body_length, frame, unpack
from broker.insight.admin_requests import AdminRequests, RequestRefused
from broker.insight.logs import configure
from broker.net.transports.certificates import CertificateError
from broker.store.redis.address import RedisAddress, from_parts
from broker.worker import OWN_DESCRIPTORS, Worker
from broker.worker_id import WorkerId

PR_SET_PDEATHSIG: Final = 1  # prctl(2)
SUPERVISORS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STATISTICS: Final = 1.0  # seconds
PATIENCE: Final = 1.0  # seconds for our last words to leave
CANNOT_START: Final = 2  # exit code


class Process:
    """One worker with what joins it to its supervisor."""

    def __init__(self, sock: socket.socket, assignment: Frame) -> None:
        """AccessFileError, CertificateError."""
        config = restored(assignment["config"])
        page = mmap.mmap(assignment["heartbeat"], 0)
        self._log_path: str = assignment["log_path"]
        self._log_descriptor: int = assignment["log"]
        self._heartbeat = Heartbeat(page, assignment["shard"], assignment["incarnation"])
        self._heartbeat.stamp(time.monotonic())
        workers: int = assignment["workers"]
        connections = assignment["descriptors"] - OWN_DESCRIPTORS
        if config.limits.connections:
            connections = min(connections, -(-config.limits.connections // workers))  # the limit is the node's
        self._connections = connections
        self.worker = worker = Worker(
            config,
            connections,
            heartbeat=self._heartbeat,
            workers=workers,
            identity=WorkerId(assignment["node"], assignment["shard"], assignment["incarnation"]),
            redis=from_parts(assignment["redis"]),
            alone=assignment["alone"],
        )
        assert worker.registration is not None
        self._registration = worker.registration
        self._registration.store.untold = self._tell_of_will
        self._requests = AdminRequests(
            worker.store,
            worker.lifecycle,
            worker.reactor,
            worker.diagnostics,
            worker.overload_snapshot,
            worker.interval_metrics,
            worker.protection.inject,
            worker.clock,
        )
        self._stopping = trio.Event()
        sock.setblocking(False)
        self._link = Link(worker.reactor, sock, self._take, self._orphaned)
        if config.overload.trace:
            worker.trace_to(os.path.join(assignment["folder"], "trace", f"worker-{worker.shard}.trace"))
        transports = worker.transports()
        self._doors = [
            (socket.socket(fileno=descriptor), transports[name]) for descriptor, name in assignment["listeners"]
        ]
        for peer in assignment["peers"]:
            self._join(peer, peer["descriptors"])
        worker.client_overrides.change(assignment["limits"], [])
        worker.mesh.on_joined = self._open
        worker.collector.start(worker.clock())

    def _join(self, peer: Frame, descriptors: list[int]) -> None:
        """Meet another worker, at the other ends of two sockets."""
        data, control = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        for lane in (data, control):
            lane.setblocking(False)
        worker = WorkerId(self.worker.identity.node, peer["shard"], peer["incarnation"])
        self.worker.mesh.join(worker, data, control)

    def _open(self) -> None:
        """Serve clients, once the others have told us what they know."""
        if not self._doors or not self.worker.mesh.complete():
            return
        doors, self._doors = self._doors, []
        for door, transport in doors:
            self.worker.loop.listen(door, transport)
        self._heartbeat.enter(SERVING, self.worker.clock())  # from now on a second of silence is death
        self._link.send("ready", {"connections": self._connections})

    async def serve(self) -> None:
        worker = self.worker
        self._link.send("begun", {})  # the others may hear of us
        self._open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_statistics)
            await worker.serve(self._stopping)
            nursery.cancel_scope.cancel()
        worker.client_log.flush()
        worker.log_statistics()
        lost = worker.sessions_here()
        if lost:
            worker.log.warning("sessions_lost", sessions=lost, why="they are in the memory of their worker")
        self._link.send_last("ended", {"sessions_lost": lost}, PATIENCE)
        worker.close()

    def _take(self, found: Frame) -> None:
        """Do what the supervisor says."""
        kind = found["kind"]
        if kind == "drain":
            self.worker.hands_over = found["hand_over"]
            self._stopping.set()
        elif kind == "reload":
            self._reload()
        elif kind == "peer":
            self._join(found, self._link.take_descriptors(2))
        elif kind == "others":
            self.worker.others = found
        elif kind == "mourn":
            done = [(client, epoch) for client, epoch in found["done"]]
            self._registration.publish_wills_of(found["incarnation"], self.worker.clock(), done)
        elif kind == "redis":
            self._move_redis(from_parts(found["address"]))
        elif kind == "limits":
            self.worker.client_overrides.change(found["holding"], found["over"])
        elif kind == "log":
            self._reopen_log()
        elif kind == "request":
            self._link.send("answer", {"id": found["id"], **self._answer(found["what"], found["arguments"])})
        else:
            self.worker.log.error("unknown_frame", kind=kind)

    def _tell_of_will(self, client_id: str, epoch: int) -> None:
        """Should we die before Redis is back, whoever mourns for us finds it there still."""
        self._link.send("will_done", {"client": client_id, "epoch": epoch})

    def _move_redis(self, address: RedisAddress) -> None:
        now = self.worker.clock()
        self._registration.move(address, now)
        self.worker.reports.move(address, now)

    def _reopen_log(self) -> None:
        try:
            reopen(self._log_path, self._log_descriptor)
        except OSError as error:  # a folder that is gone, say: the lines go on to where they went
            self.worker.log.error("log_file_failed", path=self._log_path, why=error.strerror)

    def _reload(self) -> None:
        heartbeat, clock = self._heartbeat, self.worker.clock
        phase = heartbeat.phase
        heartbeat.enter(STARTING, clock())  # a long file takes its time
        why = self.worker.reload()
        heartbeat.enter(phase, clock())
        self._link.send("reloaded", {"error": why})

    def _answer(self, what: str, arguments: dict[str, Any]) -> Frame:
        try:
            return {"result": self._requests.answer(what, arguments)}
        except RequestRefused as error:
            return {"error": str(error)}
        except Exception as error:  # our mistake: it costs this answer and not the worker
            self.worker.internal_errors.report(error)
            return {"error": "The worker failed on this; its log says how."}

    async def _tell_statistics(self) -> None:
        worker = self.worker
        while True:
            await trio.sleep(STATISTICS)
            if not self._link.owes():  # or they would pile up while the supervisor is stopped
                self._link.send("statistics", worker.statistics())

    def _orphaned(self, why: str) -> None:
        """The supervisor is gone, or says what we do not understand: it will start us anew, if it is there."""
        self.worker.log.error("link_lost", why=why)
        os._exit(1)


def main(arguments: Sequence[str]) -> None:
    faulthandler.enable()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in SUPERVISORS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SUPERVISORS)  # those that came before are forgotten here
    sock = socket.socket(fileno=int(arguments[0]))
    assignment = received(sock)
    if os.getppid() != assignment["supervisor"]:
        sys.exit(1)  # it died before we asked to die with it
    about = {"node": assignment["node"], "worker": assignment["shard"]}
    values = assignment["config"]
    configure(values["log.level"], values["log.format"], lines_to(assignment["log"]), about)
    try:
        process = Process(sock, assignment)
    except (AccessFileError, CertificateError) as error:
        give_up(sock, str(error))
    try:
        trio.run(process.serve)
    except BaseException as error:
        traceback.print_exc()
        process.worker.log.error("worker_failed", exc_info=error)
        os._exit(1)  # whatever else is left of it, threads too


def received(sock: socket.socket) -> Frame:
    """The first frame, and not a byte of the next."""
    return unpack(exactly(sock, body_length(exactly(sock, LENGTH))))


def exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            sys.exit(1)  # the supervisor has gone
        data += more
    return data


def lines_to(descriptor: int) -> TextIO:
    return open(descriptor, "w", encoding="utf-8", errors="backslashreplace")


def reopen(path: str, descriptor: int) -> None:
    """Have *descriptor* lead to the file that is now at *path*; "": there is none. OSError."""
    if path:
        new = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(new, descriptor)
        os.close(new)


def give_up(sock: socket.socket, sentence: str) -> Never:
    sock.setblocking(True)
    sock.sendall(frame("fatal", {"sentence": sentence}))
    sys.exit(CANNOT_START)


if __name__ == "__main__":
    main(sys.argv[1:])
