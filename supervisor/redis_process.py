# The process of the embedded Redis as the supervisor sees it: its answers to PING, and its output.
#
# A server that does not answer HANG checks in a row is killed. A slow disk can block Redis for seconds, and starting it
# again would not make the disk faster, so the limit is high.
import os
import subprocess
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import trio

from broker.log import Log
from supervisor.process import ChildProcess, dying_with_parent

CHECK: Final = 1.0  # seconds between two checks, and for an answer
FIRST_CHECKS: Final = 0.01  # seconds between two checks until the first answer
HANG: Final = 15  # checks without an answer
FIRST_ANSWER: Final = 10.0  # seconds to the first answer of any kind, such as "loading"
STOP: Final = 10.0  # seconds from SIGTERM to SIGKILL: Redis writes the end of its file
KEPT_LINES: Final = 30  # of the output


class RedisProcess(ChildProcess):
    def __init__(
        self,
        binary: Path,
        configured: Path,
        socket: Path,
        log: Log,
        examine: Callable[[], Awaitable[str]],
        ready: Callable[[], None],
    ) -> None:
        """*examine* is called when the server has loaded its data; it returns why that cannot be used, or ""."""
        super().__init__(ready, STOP, STOP)
        self.refused = ""  # what *examine* returned
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)  # the last ones of the output
        self._command = [str(binary), str(configured)]
        self._socket = socket
        self._log = log
        self._examine = examine
        self._output = -1
        self._rest = b""  # of the output, behind the last whole line
        self._answered = trio.current_time()
        self._cannot_write = False

    def start(self) -> None:
        """OSError."""
        process = self.execute(
            dying_with_parent(self._command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # Ctrl-C in the terminal must not end Redis before the workers have drained
        )
        assert process.stdout is not None
        self._pipe = process.stdout
        self._output = process.stdout.fileno()
        os.set_blocking(self._output, False)

    # A ChildProcess.

    def request_stop(self) -> None:
        self.terminate()

    def watchers(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return self._read_output, self._check_answers

    def close(self) -> None:
        if self._output >= 0:
            self._take_output()
            self._pipe.close()
            self._output = -1

    async def _end_refused(self) -> None:
        """Have the server end, as it would at a stop. The end of the process cancels this."""
        self.terminate()
        await trio.sleep(STOP)
        self.kill("it did not end in time")
        await trio.sleep_forever()

    # Its output.

    async def _read_output(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._output)
            if not self._take_output():
                return

    def _take_output(self) -> bool:
        """Handle what Redis has written; whether more may come."""
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
        """Log a line that Redis marks as a warning ("#"), except for those about its start and its end."""
        self.lines.append(line)
        if " # " in line and self.ready_at is not None and not self.stop_requested:
            self._log.warning("redis_log", address=str(self._socket), text=line.split(" # ", 1)[1])

    # Its answers.

    async def _check_answers(self) -> None:
        missed = 0
        while missed < HANG:
            began = trio.current_time()
            answer = await self._ping()
            if answer:
                missed = 0
                await self._take_answer(answer)
            elif trio.current_time() - began < 2 * CHECK:  # otherwise the supervisor itself was late
                missed += 1 if self.ready_at is not None else 0
            if self.ready_at is None and trio.current_time() - self._answered > FIRST_ANSWER:
                break
            await trio.sleep(CHECK if self.ready_at is not None else FIRST_CHECKS)
        self.kill("it does not answer")

    async def _ping(self) -> bytes:
        """The answer to PING; b"": none."""
        answer = b""
        with trio.move_on_after(CHECK):
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

    async def _take_answer(self, answer: bytes) -> None:
        self._answered = trio.current_time()
        if answer.startswith(b"-LOADING"):
            return
        if self.ready_at is None:
            self.refused = await self._examine()
            if self.refused:
                await self._end_refused()
            self.became_ready()
        cannot_write = answer.startswith(b"-MISCONF")
        if cannot_write and not self._cannot_write:
            self._log.warning("embedded_redis_write_failed", why=answer.decode(errors="replace").strip())
        elif self._cannot_write and not cannot_write:
            self._log.info("embedded_redis_write_recovered")
        self._cannot_write = cannot_write
