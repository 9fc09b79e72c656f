# The file of a trace: written by another thread, in order, and never at the cost of the worker.
import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import msgpack
import pytest

from broker.config.schema import Overload
from broker.overload.credits import Account, Ledger
from broker.overload.level import Resources
from broker.overload.reports import Reports
from broker.overload.trace.recorder import TraceRecorder
from broker.overload.trace.records import BEGIN, LEVEL
from broker.store.trace_file import WAITING, TraceFile
from broker.worker_id import WorkerId
from tests.overload.protected import Lines

Work = tuple[Callable[[], object], Callable[[object], None]]


class Recording:
    """A recorder and its file; what is handed to the other thread waits for `finish()`."""

    def __init__(self, path: Path, limit: int = 1 << 20) -> None:
        self.log = Lines()
        self.path = path
        self.recorder = TraceRecorder(str(path), limit, self.log, {"node": "weir"})
        self.work: list[Work] = []
        self.file = TraceFile(self.recorder, lambda work, then: self.work.append((work, then)))
        worker = WorkerId("weir", 0, 1)
        self.recorder.start(Ledger(Overload(), 0.0), Reports(worker, Resources()), 0.0)

    def finish(self) -> None:
        work, then = self.work.pop(0)
        try:
            then(work())
        except OSError as error:
            then(error)

    def levels(self) -> list[float]:
        """The levels that the file contains."""
        records = list(msgpack.Unpacker(BytesIO(self.path.read_bytes())))
        assert BEGIN == records[0][0]
        return [record[1] for record in records if record[0] == LEVEL]

    def why(self) -> list[object]:
        return [line["why"] for line in self.log.lines if line["event"] == "trace_stopped"]


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path / "trace" / "worker-0.trace")


def test_records_reach_the_file_in_order(recording: Recording) -> None:
    """A replay would meet an end before its beginning."""
    for level in (1.0, 2.0, 3.0):
        recording.recorder.level(level, level)
        recording.file.write()
    assert 1 == len(recording.work)  # the next chunk waits for the first
    recording.finish()
    recording.file.write()
    recording.finish()
    recording.recorder.level(4.0, 4.0)
    recording.file.close()

    assert [1.0, 2.0, 3.0, 4.0] == recording.levels()
    assert not recording.recorder.recording
    assert 0o600 == recording.path.stat().st_mode & 0o777


def test_a_file_that_is_still_written_to_keeps_its_order_at_the_end(recording: Recording) -> None:
    """The last records would stand before those that the other thread has."""
    recording.recorder.level(1.0, 1.0)
    recording.file.write()
    recording.recorder.level(2.0, 2.0)
    recording.file.close()
    recording.finish()

    assert [1.0] == recording.levels()


def test_a_file_that_cannot_be_created_ends_the_recording(tmp_path: Path) -> None:
    """A worker would not start, or record into nothing."""
    (tmp_path / "trace").write_text("in the way")
    recording = Recording(tmp_path / "trace" / "worker-0.trace")
    recording.file.write()
    recording.file.close()

    assert ["its file cannot be opened: File exists"] == recording.why()
    assert (False, []) == (recording.recorder.recording, recording.work)


def test_a_disk_that_fails_ends_the_recording(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace with a hole would be taken for a whole one."""

    def no_space(descriptor: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    recording.recorder.level(1.0, 1.0)
    recording.file.write()
    monkeypatch.setattr(os, "write", no_space)
    recording.finish()
    monkeypatch.undo()

    assert ["its disk failed: No space left on device"] == recording.why()
    assert not recording.recorder.recording


def test_a_disk_that_does_not_keep_up_ends_the_recording(tmp_path: Path) -> None:
    """Records would fill the memory."""
    recording = Recording(tmp_path / "trace", limit=4 * WAITING)
    recording.recorder.level(0.0, 0.0)
    recording.file.write()
    name = "x" * (1 << 20)  # of a client, so that a record is long
    for number in range((WAITING >> 20) - 1):
        recording.recorder.released(Account(name, 0.0), False, float(number))
        recording.file.write()
    assert [] == recording.why()
    for number in range(2):
        recording.recorder.released(Account(name, 0.0), False, 1000.0 + number)
        recording.file.write()

    assert ["its disk does not keep up"] == recording.why()
