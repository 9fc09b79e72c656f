# The embedded Redis: a private server of the node, started, watched and stopped by the supervisor.
#
# `run()` is its whole life, a task of the supervisor's. The first start is part of the node's: it is over when the
# server answers, however long it loads, or it ends the start with one sentence. Later the workers go on without Redis
# (broker/store), so a server that died, or that answers nothing for HANG looks, is started again as long as it takes,
# with a growing pause. It is no child of the terminal: Ctrl-C must not end it before the workers have drained.
import os
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Final

import trio

from broker.control import die_with_parent
from broker.log import Log
from broker.store.redis.address import RedisAddress
from supervisor.redis_server import RedisServer, RedisUnusable, configuration, explain, prepare

LOOK: Final = 1.0  # seconds between two looks, and for an answer
FIRST_LOOKS: Final = 0.01  # seconds between two looks until it answers
HANG: Final = (
    15  # looks without an answer; a slow disk can hold Redis for seconds, and starting it again is no help then
)
FIRST_ANSWER: Final = 10.0  # seconds that it may take to answer at all
FIRST_PAUSE: Final = 0.1  # seconds before it is started again,
LONGEST_PAUSE: Final = 5.0  # doubled up to this,
SERVED: Final = 30.0  # and as at first when it has served that long
TIME_TO_STOP: Final = 10.0  # seconds from SIGTERM to SIGKILL: it writes the end of its file
LAST_WORDS: Final = 30  # lines


class EmbeddedRedis:
    def __init__(self, folder: Path, server: RedisServer, memory: int, log: Log) -> None:
        """*folder* is its own, below the node's; *memory*: the most that its data may take, bytes (0: any)."""
        self.socket = folder / "redis.sock"
        self.starts = 0
        self.pid = 0  # 0: it does not run
        self._folder = folder
        self._server = server
        self._memory = memory
        self._log = log
        self._announced = False  # the first start is over
        self._stopping = trio.Event()
        self._ended = trio.Event()

    @property
    def address(self) -> RedisAddress:
        """Where the workers find it."""
        return RedisAddress(path=str(self.socket))

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop()` or a cancellation; started when it answers. RedisUnusable: the first start failed."""
        configured = self._folder / "redis.conf"
        text = configuration(self._folder, self.socket, self._memory)
        prepare(self._folder, self.socket, configured, text, self._server)
        pause = FIRST_PAUSE
        try:
            while not self._stopping.is_set():
                life = _Life(self._server.path, configured, self.socket, self._log)
                self.starts += 1
                await self._live(life, task_status if self.starts == 1 else None)
                if self._stopping.is_set():
                    if not self._announced:
                        task_status.started()  # who waits for that goes on, and finds that it is over
                    break
                why = explain(life.words, self._folder, self._server)
                if self.starts == 1 and not life.answered.is_set():
                    raise RedisUnusable(why)
                self._log.error("embedded_redis_died", code=life.code, why=why)
                pause = FIRST_PAUSE if life.served > SERVED else pause
                with trio.move_on_after(pause):
                    await self._stopping.wait()
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Have it write what it has and end."""
        self._stopping.set()
        await self._ended.wait()

    async def _live(self, life: "_Life", task_status: trio.TaskStatus[None] | None) -> None:
        life.start()
        self.pid = life.pid
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(life.listen)
                nursery.start_soon(life.look_after)
                nursery.start_soon(self._announce, life, task_status)
                nursery.start_soon(self._end_at_stop, life)
                await life.wait()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await life.end()
            self.pid = 0

    async def _announce(self, life: "_Life", task_status: trio.TaskStatus[None] | None) -> None:
        await life.answered.wait()
        self._log.info(
            "embedded_redis_started", server=str(self._server), pid=life.pid, loading_s=round(life.loading, 3)
        )
        if task_status is not None:
            self._announced = True
            task_status.started()

    async def _end_at_stop(self, life: "_Life") -> None:
        await self._stopping.wait()
        life.terminate()
        await trio.sleep(TIME_TO_STOP)
        life.kill()


class _Life:
    """One process of the server, from its start to its end."""

    def __init__(self, binary: Path, configured: Path, socket: Path, log: Log) -> None:
        self.words: deque[str] = deque(maxlen=LAST_WORDS)
        self.answered = trio.Event()
        self.code: int | None = None
        self.loading = 0.0  # seconds from the start to the first answer
        self.pid = 0
        self._command = [str(binary), str(configured)]
        self._socket = socket
        self._log = log
        self._began = 0.0
        self._heard = 0.0
        self._ending = False
        self._rest = b""  # of a line that is not whole yet
        self._cannot_write = False

    @property
    def served(self) -> float:
        """Seconds since it answered first."""
        return trio.current_time() - self._began - self.loading if self.answered.is_set() else 0.0

    def start(self) -> None:
        self._began = self._heard = trio.current_time()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid()), *self._command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)

    async def wait(self) -> None:
        """Until it has ended."""
        await trio.lowlevel.wait_readable(self._pidfd)

    async def end(self) -> None:
        """End it, if it has not ended, and take its last words and its exit code."""
        self.terminate()
        with trio.move_on_after(TIME_TO_STOP):
            await self.wait()
        self.kill()
        await self.wait()
        self.code = self._process.wait()
        self._read()
        assert self._process.stdout is not None
        self._process.stdout.close()
        os.close(self._pidfd)

    def terminate(self) -> None:
        self._ending = True
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    async def listen(self) -> None:
        """Take what it writes: its warnings go to our log, and the last lines are kept."""
        while True:
            await trio.lowlevel.wait_readable(self._output)
            if not self._read():
                return

    async def look_after(self) -> None:
        """Look whether it answers, now and then; it is killed when it has not for too long."""
        missed = 0
        while missed < HANG:
            began = trio.current_time()
            answer = await self._ask()
            if answer:
                missed = 0
                self._heed(answer)
            elif trio.current_time() - began < 2 * LOOK:  # else it was we who were late
                missed += 1 if self.answered.is_set() else 0
            if not self.answered.is_set() and trio.current_time() - self._heard > FIRST_ANSWER:
                break
            await trio.sleep(LOOK if self.answered.is_set() else FIRST_LOOKS)
        self.words.append("nothing, as it does not answer")
        self.kill()

    async def _ask(self) -> bytes:
        """What it answers to PING, b"" for nothing."""
        answer = b""
        with trio.move_on_after(LOOK):
            try:
                async with await trio.open_unix_socket(str(self._socket)) as stream:
                    await stream.send_all(b"PING\r\n")
                    while not answer.endswith(b"\r\n"):
                        more = await stream.receive_some(1024)
                        if not more:
                            break
                        answer += more
            except (OSError, trio.BrokenResourceError):
                return b""
        return answer

    def _heed(self, answer: bytes) -> None:
        self._heard = trio.current_time()
        if answer.startswith(b"-LOADING"):
            return
        if not self.answered.is_set():
            self.loading = trio.current_time() - self._began
            self.answered.set()
        cannot_write = answer.startswith(b"-MISCONF")
        if cannot_write and not self._cannot_write:
            self._log.warning("embedded_redis_write_failed", why=answer.decode(errors="replace").strip())
        elif self._cannot_write and not cannot_write:
            self._log.info("embedded_redis_write_recovered")
        self._cannot_write = cannot_write

    def _read(self) -> bool:
        """Take what it has written; false at the end of it."""
        while True:
            try:
                data = os.read(self._output, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take_line(line.decode(errors="replace").strip())

    def _take_line(self, line: str) -> None:
        """What Redis marks with "#" somebody should see, but for its farewell, and for how it says hello."""
        self.words.append(line)
        if " # " in line and self.answered.is_set() and not self._ending:
            self._log.warning("redis_log", text=line.split(" # ", 1)[1])

    def _signal(self, number: int) -> None:
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except OSError:  # it has ended, or its end was already seen
            pass
