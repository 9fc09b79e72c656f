# The process of a worker as the supervisor sees it: the link, the heartbeat and the error output.
import contextlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import trio

from broker.control import heartbeat
from broker.control.frame_codec import FrameError, FrameReader, encode
from broker.control.frames import (
    WORKER_FRAMES,
    Answer,
    Assignment,
    CannotStart,
    Drain,
    Ended,
    FromSupervisor,
    FromWorker,
    LoopStarted,
    NewPeer,
    Ready,
    Report,
    Request,
    StatisticsReport,
)
from broker.worker_id import WorkerId
from supervisor.liveness import CHECK_INTERVAL, Silence, is_hung
from supervisor.process import DEAD, SERVING, ChildProcess, interpreter_flags, is_stopped

QUEUE: Final = 1000  # frames that wait to be sent; a worker that reads so little is killed
READ: Final = 64 * 1024
LAST_FRAMES: Final = 1.0  # seconds to read what a worker sent before its end
CLOSED_LINK: Final = 1.0  # seconds that a worker may run after it has closed its link
OUTPUT: Final = 64 * 1024  # bytes of error output that are read at once, the last ones
SHOWN: Final = 2000  # characters of error output in a log line
ANSWER: Final = 5.0  # seconds that a worker has for an answer
LATE: Final = 2.0  # seconds on top of `drain.timeout` after which a worker that was asked to stop is killed
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class NoAnswer(Exception):
    """A worker did not answer, or refused the request. The text is one sentence."""


class WorkerProcess(ChildProcess):
    def __init__(
        self,
        identity: WorkerId,
        page: mmap.mmap,
        drain_timeout: float,
        received: Callable[["WorkerProcess", FromWorker], None],
        ready: Callable[[], None],
    ) -> None:
        """*page*: the heartbeats' shared memory. *received* is called with each frame that is not handled here."""
        super().__init__(ready, drain_timeout + LATE)
        self.identity = identity
        self.shard = identity.shard
        self.statistics: Report = {}
        self.others: Report = {}  # the last report on the other workers that was sent to this one
        self.sentence = ""  # of the worker, on why it cannot start
        self.last_output = ""  # error output before its end
        self.sessions_lost = 0  # as the worker reported at its end
        self.reloaded: str | None = None  # the worker's answer to the last reload: "" or an error
        self._received = received
        self._page = page
        self._silence = Silence(self.started_at)
        self._hand_over = False
        self._output = os.memfd_create(f"weir-worker-{identity.shard}-stderr", os.MFD_CLOEXEC)
        ours, theirs = socket.socketpair()
        self._theirs: socket.socket | None = theirs
        self._link = trio.socket.from_stdlib_socket(ours)
        self._link_ended = trio.Event()
        self._to_send, self._sending = trio.open_memory_channel[tuple[bytes, list[socket.socket]]](QUEUE)
        self._asked = 0
        self._answers: dict[int, trio.MemorySendChannel[Answer]] = {}
        self._peers: list[tuple[WorkerProcess, list[socket.socket]]] = []

    def connect_later(self, peer: "WorkerProcess", lanes: list[socket.socket]) -> None:
        """Send *peer* its ends of the *lanes* between the two workers, once the loop of this worker runs.

        Until then *peer* would wait for this worker with each SUBACK and each session transfer.
        """
        self._peers.append((peer, lanes))

    def start(self, assignment: Assignment, descriptors: Sequence[int]) -> None:
        """Start the process, which inherits *descriptors*. OSError."""
        assert self._theirs is not None
        heartbeat.clear(self._page, self.shard)
        link = self._theirs.fileno()
        # A memfd, as a full pipe would block the worker while the supervisor is stopped.
        output = os.open(f"/proc/self/fd/{self._output}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        # A terminal sends these signals to the whole group. They must not end the worker before it ignores them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self.execute(
                [sys.executable, *interpreter_flags(), "-m", "broker", str(link), str(os.getpid())],
                stdout=subprocess.DEVNULL,
                stderr=output,
                pass_fds=(link, *descriptors),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(output)
            self._theirs.close()
            self._theirs = None
        self.send(assignment)

    def hand_over(self) -> None:
        """Stop the worker, whose sessions go to the other workers."""
        self._hand_over = True
        self.stop()

    def send(self, frame: FromSupervisor, sockets: Sequence[socket.socket] = ()) -> None:
        """Send *frame*, and with it *sockets*, which are closed here when they have been sent."""
        try:
            self._to_send.send_nowait((encode(frame), list(sockets)))
        except trio.WouldBlock:
            self.kill("it does not read")
        except trio.BrokenResourceError:  # the worker has ended
            for one in sockets:
                one.close()

    async def ask(self, what: str, arguments: dict[str, Any]) -> Any:
        """The worker's answer to a request. NoAnswer."""
        if self.state != SERVING:
            raise NoAnswer(f"Worker {self.shard} is {self.state} and cannot be asked now.")
        self._asked += 1
        number = self._asked
        answered, answer = trio.open_memory_channel[Answer](1)
        self._answers[number] = answered
        try:
            with trio.fail_after(ANSWER):
                self.send(Request(number, what, arguments))
                found = await answer.receive()
        except trio.TooSlowError:
            raise NoAnswer(f"Worker {self.shard} did not answer within {ANSWER:g} seconds.") from None
        except trio.EndOfChannel:
            raise NoAnswer(f"Worker {self.shard} ended before it answered.") from None
        finally:
            self._answers.pop(number, None)
        if found.error:
            raise NoAnswer(found.error)
        return found.result

    def error_output(self) -> str:
        """What the worker wrote to its stderr since the last call; of long output the start and the end."""
        size = os.fstat(self._output).st_size
        if not size:
            return ""
        text = os.pread(self._output, OUTPUT, max(0, size - OUTPUT)).decode(errors="replace")
        os.ftruncate(self._output, 0)  # the worker appends, so its next output is at the start again
        text = text.strip()
        # faulthandler writes the reason of a crash first, and a list of all modules last.
        return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]}\n...\n{text[-SHOWN // 2 :]}"

    # A ChildProcess.

    def request_stop(self) -> None:
        self.send(Drain(self._hand_over))

    def watchers(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return self._send_frames, self._read_link, self._watch_heartbeat

    async def finish(self) -> None:
        with trio.move_on_after(LAST_FRAMES):  # for a descriptor of the link that another process has inherited
            await self._link_ended.wait()

    def close(self) -> None:
        self.last_output = self.error_output()
        os.close(self._output)
        self._link.close()
        if self._theirs is not None:
            self._theirs.close()
        for waiting in self._answers.values():
            waiting.close()
        for _, lanes in self._peers:
            for lane in lanes:
                lane.close()
        self._to_send.close()
        with contextlib.suppress(trio.ClosedResourceError, trio.EndOfChannel):
            while True:
                for one in self._sending.receive_nowait()[1]:
                    one.close()

    # The link.

    async def _send_frames(self) -> None:
        try:
            async for data, sockets in self._sending:
                if sockets:
                    rights = array("i", [one.fileno() for one in sockets])
                    sent = await self._link.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                    data = data[sent:]
                    for one in sockets:
                        one.close()  # otherwise the peer would not see the end of the lane
                while data:
                    data = data[await self._link.send(data) :]
        except OSError:
            self._sending.close()  # the worker has ended

    async def _read_link(self) -> None:
        await self._read_frames()
        self._link_ended.set()
        await trio.sleep(CLOSED_LINK)
        self.kill("it closed its link")

    async def _read_frames(self) -> None:
        """Handle the worker's frames, until it has closed the link."""
        reader: FrameReader[FromWorker] = FrameReader(WORKER_FRAMES)
        while True:
            try:
                data = await self._link.recv(READ)
                frames = reader.feed(data)
            except OSError:
                return
            except FrameError as error:
                self.kill(f"it sent {error}")
                return
            if not data:
                return
            for frame in frames:
                self.receive(frame)

    def receive(self, frame: FromWorker) -> None:
        match frame:
            case Answer():
                waiting = self._answers.get(frame.number)
                if waiting is not None:
                    waiting.send_nowait(frame)
                return
            case LoopStarted():
                self._connect_peers()
                return
            case Ready():
                self.became_ready()
            case StatisticsReport():
                self.statistics = frame.report
            case Ended():
                self.sessions_lost = frame.sessions_lost
            case CannotStart():
                self.sentence = frame.sentence
        self._received(self, frame)

    def _connect_peers(self) -> None:
        peers, self._peers = self._peers, []
        for peer, lanes in peers:
            if peer.state == DEAD:
                for lane in lanes:
                    lane.close()
            else:
                peer.send(NewPeer(self.identity), lanes)

    # The heartbeat.

    async def _watch_heartbeat(self) -> None:
        phase = heartbeat.STARTING
        while True:
            await trio.sleep(CHECK_INTERVAL)
            incarnation, stamped, written = heartbeat.read(self._page, self.shard)
            if incarnation == self.identity.incarnation:
                phase = written
            silent = self._silence.check(stamped, time.monotonic())
            if is_hung(silent, phase, partial(is_stopped, self.pid)):
                self.kill(f"its loop has not turned for {silent:.1f} s")
                return
