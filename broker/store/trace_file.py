# The file of a trace: what overload protection has recorded, written by another thread once a second.
#
# Why a file for each worker, and not a stream of Redis? A trace that lacks one record cannot be replayed, and what is
# recorded is overload: Redis may be late or away just then, and would be given more to do. A file is complete up to its
# end and in order, and costs the loop a copy in memory. A replay reads the files of several workers in parallel.
#
# The loop never waits for the disk. When the disk fails or falls behind, recording ends.
import os
from collections.abc import Callable
from functools import partial
from typing import Final

from broker.overload.trace.recorder import TraceRecorder

WAITING: Final = 32 * 1024 * 1024  # bytes that the disk may be behind

# Runs the first callable in another thread, then calls the second one with the result, in the reactor's thread.
RunInThread = Callable[[Callable[[], object], Callable[[object], None]], None]


class TraceFile:
    def __init__(self, recorder: TraceRecorder, run_in_thread: RunInThread) -> None:
        """Create the file of *recorder*, or truncate it. If that fails, recording ends before it has begun."""
        self._recorder = recorder
        self._run_in_thread = run_in_thread
        self._unwritten = b""
        self._writing = False
        self._descriptor = -1
        path = recorder.file
        try:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            recorder.end(f"its file cannot be opened: {error.strerror}")

    def write(self) -> None:
        """Have another thread write what was recorded since the last call."""
        if self._descriptor < 0:
            return
        self._unwritten += self._recorder.take_chunk()
        if self._writing or not self._unwritten:
            if len(self._unwritten) > WAITING:
                self._recorder.end("its disk does not keep up")
            return
        data, self._unwritten = self._unwritten, b""
        self._writing = True
        self._run_in_thread(partial(_write, self._descriptor, data), self._written)

    def close(self) -> None:
        """Write the rest and wait for it. If the other thread still writes, the rest is left out, to keep the order."""
        self._recorder.recording = False
        if self._descriptor < 0 or self._writing:
            return
        try:
            _write(self._descriptor, self._unwritten + self._recorder.take_chunk())
        except OSError as error:
            self._recorder.end(f"its disk failed: {error.strerror}")
        os.close(self._descriptor)
        self._descriptor = -1

    def _written(self, result: object) -> None:
        self._writing = False
        if isinstance(result, OSError):
            self._recorder.end(f"its disk failed: {result.strerror}")
            self._unwritten = b""
            self._recorder.take_chunk()


def _write(descriptor: int, data: bytes) -> None:
    """Write all of *data*. OSError."""
    view = memoryview(data)
    while view:
        count = os.write(descriptor, view)  # on a line of its own: compiled, a call within a slice is made twice
        view = view[count:]
