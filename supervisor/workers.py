# A worker's process, seen from its supervisor: started, talked to, watched, ended.
#
# It is executed afresh (`python -m broker`) with the descriptors it needs and nothing else: no fork of a running
# interpreter, whose locks and event loop would come along. It is started from this very thread, because the kernel
# kills a process that asked for it when the *thread* that started it ends.
import contextlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

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
from supervisor.supervision import LOOK_EVERY, Silence, too_silent

QUEUE: Final = 1000  # frames to a worker that does not read; then it is no better than a dead one
READ: Final = 64 * 1024
LAST_FRAMES: Final = 1.0  # seconds to read what a dead worker had sent
ENDING: Final = 1.0  # seconds that a worker may go on after it has closed its link
WORDS: Final = 64 * 1024  # bytes that are kept of what a worker wrote to its stderr
TAIL: Final = 2000  # characters of them that are told
ANSWER: Final = 5.0  # seconds a worker has for an answer
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class NoAnswer(Exception):
    """A worker did not answer, or not what was asked. Its text is one sentence."""


class Audience(Protocol):
    """What wants to know what a worker says."""

    def heard(self, process: "WorkerProcess", frame: FromWorker) -> None: ...


class WorkerProcess:
    def __init__(self, identity: WorkerId, page: mmap.mmap, audience: Audience) -> None:
        self.identity = identity
        self.shard = identity.shard
        self.pid = 0
        self.state = "starting"  # then "serving", "draining" or "dead"
        self.began = time.monotonic()
        self.ready_at: float | None = None
        self.statistics: Report = {}
        self.others: Report = {}  # what it was last told of the other workers
        self.sentence = ""  # why it cannot start, in its own words
        self.killed_for = ""  # why we killed it
        self.told_to_go = False
        self.sessions_lost = 0  # as it said at its end
        self.reloaded: str | None = None  # what it said to the last reload: "" or what was wrong
        self._audience = audience
        self._page = page
        self._silence = Silence(self.began)
        self._words = os.memfd_create(f"weir-worker-{identity.shard}-words", os.MFD_CLOEXEC)
        ours, theirs = socket.socketpair()
        self._theirs: socket.socket | None = theirs
        self._link = trio.socket.from_stdlib_socket(ours)
        self._to_send, self._sending = trio.open_memory_channel[tuple[bytes, list[socket.socket]]](QUEUE)
        self._asked = 0
        self._answers: dict[int, trio.MemorySendChannel[Answer]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._to_meet: list[tuple[WorkerProcess, list[socket.socket]]] = []

    def will_meet(self, other: "WorkerProcess", lanes: list[socket.socket]) -> None:
        """Tell *other* of this one, and give it its ends of the *lanes* between them, once the loop of this one turns.

        Until then *other* would wait for it: with each SUBACK, and with each session that goes from worker to worker.
        """
        self._to_meet.append((other, lanes))

    def start(self, assignment: Assignment, descriptors: Sequence[int]) -> None:
        """Execute it; it inherits *descriptors*. OSError."""
        assert self._theirs is not None
        heartbeat.clear(self._page, self.shard)
        words = os.open(f"/proc/self/fd/{self._words}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        # What the terminal sends to the whole group is not to end it before it has learned to ignore that.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self._process = subprocess.Popen(
                [sys.executable, *interpreter_flags(), "-m", "broker", str(self._theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=words,
                pass_fds=(self._theirs.fileno(), *descriptors),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(words)
            self._theirs.close()
            self._theirs = None
        self.pid = self._process.pid
        self.send(assignment)

    async def watch(self) -> int:
        """Carry frames to and fro until the process has ended; its exit code, or minus the signal that ended it."""
        assert self._process is not None
        process_descriptor = os.pidfd_open(self.pid)
        try:
            async with trio.open_nursery() as nursery:
                reading = trio.CancelScope()
                gone = trio.Event()
                nursery.start_soon(self._send_frames)
                nursery.start_soon(self._look)
                nursery.start_soon(self._until_gone, process_descriptor, gone, reading)
                with reading:
                    await self._read_frames()
                with trio.move_on_after(ENDING):
                    await gone.wait()
                self.kill("it closed its link")  # does nothing to one that has ended
                await gone.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.kill("the supervisor ends")
            code = self._process.wait()
            self.state = "dead"
            os.close(process_descriptor)
            self._link.close()
            for waiting in self._answers.values():
                waiting.close()
        return code

    def send(self, frame: FromSupervisor, sockets: Sequence[socket.socket] = ()) -> None:
        """Tell the worker; *sockets*, which are ours no longer, go with the frame."""
        try:
            self._to_send.send_nowait((encode(frame), list(sockets)))
        except trio.WouldBlock:
            self.kill("it does not read")
        except trio.BrokenResourceError:  # it has ended
            for one in sockets:
                one.close()

    def drain(self, hand_over: bool = False) -> None:
        """Have it tell its clients to go, and end; *hand_over*: with its sessions given to the other workers."""
        if self.state in ("starting", "serving"):
            self.state = "draining"
            self.told_to_go = True
            self.send(Drain(hand_over))

    def kill(self, why: str) -> None:
        """End it at once, if it has not ended."""
        if self._process is not None and self._process.poll() is None:
            self.killed_for = self.killed_for or why
            self._process.kill()

    async def ask(self, what: str, arguments: dict[str, Any]) -> Any:
        """What it answers; NoAnswer."""
        if self.state != "serving":
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

    def words(self) -> str:
        """What it wrote to its stderr since this was last asked, the end of it."""
        size = os.fstat(self._words).st_size
        if not size:
            return ""
        text = os.pread(self._words, WORDS, max(0, size - WORDS)).decode(errors="replace")
        os.ftruncate(self._words, 0)  # it appends, so the next words begin the file again
        text = text.strip()
        # What the interpreter says of a crash begins with what it was, and ends with a list of all modules.
        return text if len(text) <= TAIL else f"{text[: TAIL // 2]}\n...\n{text[-TAIL // 2 :]}"

    def close(self) -> None:
        """Forget what is left of it."""
        for _, lanes in self._to_meet:
            for lane in lanes:
                lane.close()
        os.close(self._words)
        self._to_send.close()
        with contextlib.suppress(trio.ClosedResourceError, trio.EndOfChannel):
            while True:
                for one in self._sending.receive_nowait()[1]:
                    one.close()

    async def _send_frames(self) -> None:
        try:
            async for data, sockets in self._sending:
                if sockets:
                    rights = array("i", [one.fileno() for one in sockets])
                    sent = await self._link.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                    data = data[sent:]
                    for one in sockets:
                        one.close()  # the end of it is to be seen when the worker ends
                while data:
                    data = data[await self._link.send(data) :]
        except OSError:
            self._sending.close()  # it has ended

    async def _read_frames(self) -> None:
        """Hear what it says, until it has closed the link."""
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
            for found in frames:
                self._hear(found)

    def _hear(self, frame: FromWorker) -> None:
        match frame:
            case Answer():
                waiting = self._answers.get(frame.number)
                if waiting is not None:
                    waiting.send_nowait(frame)
                return
            case LoopStarted():
                self._meet_others()
                return
            case Ready():
                self.ready_at = time.monotonic()
                if self.state == "starting":
                    self.state = "serving"
            case StatisticsReport():
                self.statistics = frame.report
            case Ended():
                self.sessions_lost = frame.sessions_lost
            case CannotStart():
                self.sentence = frame.sentence
        self._audience.heard(self, frame)

    def _meet_others(self) -> None:
        to_meet, self._to_meet = self._to_meet, []
        for other, lanes in to_meet:
            if other.state == "dead":
                for lane in lanes:
                    lane.close()
            else:
                other.send(NewPeer(self.identity), lanes)

    async def _until_gone(self, process_descriptor: int, gone: trio.Event, reading: trio.CancelScope) -> None:
        await trio.lowlevel.wait_readable(process_descriptor)
        gone.set()
        reading.deadline = (
            trio.current_time() + LAST_FRAMES
        )  # the end of the link comes by then, if nobody inherited it

    async def _look(self) -> None:
        """Watch the heartbeat."""
        phase = heartbeat.STARTING
        while True:
            await trio.sleep(LOOK_EVERY)
            incarnation, stamped, told = heartbeat.read(self._page, self.shard)
            if incarnation == self.identity.incarnation:
                phase = told
            silent = self._silence.look(stamped, time.monotonic())
            if too_silent(silent, phase, partial(stopped, self.pid)):
                self.kill(f"its loop has not turned for {silent:.1f} s")
                return


def process_stat(pid: int) -> list[str]:
    """What proc(5) says of process *pid*, from its state on; [] when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def stopped(pid: int) -> bool:
    """Whether a signal has stopped it, and none continued it."""
    return process_stat(pid)[:1] in (["T"], ["t"])


def interpreter_flags() -> list[str]:
    """Options that have it import Weir from where we did: `-m` alone puts the current folder first on its path."""
    return [] if os.getcwd() in sys.path else ["-P"]
