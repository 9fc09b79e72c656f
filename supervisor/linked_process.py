# A process of Weir as the supervisor sees it, a worker or the carrier: the link, the heartbeat and the error output.
import contextlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from abc import abstractmethod
from array import array
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

import trio

from broker.control import heartbeat
from broker.control.frame_codec import Frame, FrameDecoder, FrameError, FrameReader, encode
from supervisor.liveness import CHECK_INTERVAL, Silence, is_hung
from supervisor.process import ChildProcess, interpreter_flags, is_stopped

QUEUE: Final = 1000  # frames that wait to be sent; a process that reads so little is killed
READ: Final = 64 * 1024
LAST_FRAMES: Final = 1.0  # seconds to read what a process sent before its end
CLOSED_LINK: Final = 1.0  # seconds that a process may run after it has closed its link
OUTPUT: Final = 64 * 1024  # bytes of error output that are read at once, the last ones
SHOWN: Final = 2000  # characters of error output in a log line
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

To = TypeVar("To", bound=Frame)
From = TypeVar("From", bound=Frame)


class LinkedProcess(ChildProcess, Generic[To, From]):
    def __init__(
        self,
        name: str,
        module: str,
        decoder: FrameDecoder[From],
        page: mmap.mmap,
        slot: int,
        incarnation: int,
        ready: Callable[[], None],
        stop_timeout: float,
    ) -> None:
        """*module* is executed. *decoder*: of its frames. *page*, *slot*: the shared memory of its heartbeat."""
        super().__init__(ready, stop_timeout)
        self.sentence = ""  # of the process, on why it cannot start
        self.last_output = ""  # error output before its end
        self.loop_started = False  # its lanes may be connected
        self._module = module
        self._decoder = decoder
        self._page = page
        self._slot = slot
        self._incarnation = incarnation
        self._silence = Silence(self.started_at)
        self._output = os.memfd_create(f"weir-{name}-stderr", os.MFD_CLOEXEC)
        ours, theirs = socket.socketpair()
        self._theirs: socket.socket | None = theirs
        self._link = trio.socket.from_stdlib_socket(ours)
        self._link_ended = trio.Event()
        self._to_send, self._sending = trio.open_memory_channel[tuple[bytes, list[socket.socket]]](QUEUE)

    @abstractmethod
    def receive(self, frame: From) -> None:
        """Handle *frame*."""

    def start(self, assignment: To, descriptors: Sequence[int]) -> None:
        """Start the process, which inherits *descriptors*. OSError."""
        assert self._theirs is not None
        heartbeat.clear(self._page, self._slot)
        link = self._theirs.fileno()
        # A memfd, as a full pipe would block the process while the supervisor is stopped.
        output = os.open(f"/proc/self/fd/{self._output}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        # A terminal sends these signals to the whole group. They must not end the process before it ignores them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self.execute(
                [sys.executable, *interpreter_flags(), "-m", self._module, str(link), str(os.getpid())],
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

    def send(self, frame: To, sockets: Sequence[socket.socket] = ()) -> None:
        """Send *frame*, and with it *sockets*, which are closed here when they have been sent."""
        try:
            self._to_send.send_nowait((encode(frame), list(sockets)))
        except trio.WouldBlock:
            self.kill("it does not read")
        except trio.BrokenResourceError:  # the process has ended
            for one in sockets:
                one.close()

    def error_output(self) -> str:
        """What the process wrote to its stderr since the last call; of long output the start and the end."""
        size = os.fstat(self._output).st_size
        if not size:
            return ""
        text = os.pread(self._output, OUTPUT, max(0, size - OUTPUT)).decode(errors="replace")
        os.ftruncate(self._output, 0)  # the process appends, so its next output is at the start again
        text = text.strip()
        # faulthandler writes the reason of a crash first, and a list of all modules last.
        return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]}\n...\n{text[-SHOWN // 2 :]}"

    # A ChildProcess.

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
                        one.close()  # otherwise the other end would not see the end of the lane
                while data:
                    data = data[await self._link.send(data) :]
        except OSError:
            self._sending.close()  # the process has ended

    async def _read_link(self) -> None:
        await self._read_frames()
        self._link_ended.set()
        await trio.sleep(CLOSED_LINK)
        self.kill("it closed its link")

    async def _read_frames(self) -> None:
        """Handle the frames of the process, until it has closed the link."""
        reader: FrameReader[From] = FrameReader(self._decoder)
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

    # The heartbeat.

    async def _watch_heartbeat(self) -> None:
        phase = heartbeat.STARTING
        while True:
            await trio.sleep(CHECK_INTERVAL)
            incarnation, stamped, written = heartbeat.read(self._page, self._slot)
            if incarnation == self._incarnation:
                phase = written
            silent = self._silence.check(stamped, time.monotonic())
            if is_hung(silent, phase, partial(is_stopped, self.pid)):
                self.kill(f"its loop has not turned for {silent:.1f} s")
                return
