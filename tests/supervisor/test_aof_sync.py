# The append-only file on its way to the disk: which files, and a disk that is slow or fails.
#
# Files stand in for those of Redis; test_embedded_redis.py has real servers. The system calls that sync are observed,
# and fail when a test wants it, as no test has a disk that does.
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from supervisor import aof_sync
from supervisor.aof_sync import AppendOnlyFiles, AppendOnlySync
from tests.store.loop import Lines

PATIENCE = 10.0  # seconds for what should take milliseconds


class Log(Lines):
    def error(self, event: str, **facts: object) -> None:
        self.events.append((event, facts))

    def names(self) -> list[str]:
        return [event for event, _ in self.events]


class Disk:
    """Where fdatasync() and fsync() arrive."""

    def __init__(self) -> None:
        self.synced: list[str] = []  # names of files and folders
        self.error: OSError | None = None
        self.turns = threading.Event()
        self.turns.set()
        self.begun = 0
        self.most = 0  # syncs at one time
        self._now = 0
        self._lock = threading.Lock()

    def sync(self, descriptor: int) -> None:
        with self._lock:
            self.begun += 1
            self._now += 1
            self.most = max(self.most, self._now)
        self.turns.wait(PATIENCE)
        with self._lock:
            self._now -= 1
        if self.error is not None:
            raise self.error
        self.synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    def take(self) -> list[str]:
        synced, self.synced = self.synced, []
        return synced


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk()
    monkeypatch.setattr(os, "fdatasync", made.sync)
    monkeypatch.setattr(os, "fsync", made.sync)
    yield made
    made.turns.set()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a server before 7.0, with a file; syncs follow each other without a pause."""
    monkeypatch.setattr(aof_sync, "INTERVAL", 0.001)
    (tmp_path / "appendonly.aof").write_text("a")
    (tmp_path / "temp-rewriteaof-7.aof").write_text("a")
    (tmp_path / "redis.conf").write_text("")
    return tmp_path


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write("b")


async def until(done: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not done():
            await trio.sleep(0.001)  # a thread tells nobody how far it is


def test_a_file_is_synced_when_it_has_changed(folder: Path, disk: Disk) -> None:
    """A write would not reach the disk, or an idle node would write to it each second."""
    files = AppendOnlyFiles(folder)
    file = folder / "appendonly.aof"
    assert "" == files.sync()
    assert ["appendonly.aof", folder.name] == disk.take()
    assert ("", []) == (files.sync(), disk.take())

    append(file)
    assert ("", ["appendonly.aof"]) == (files.sync(), disk.take())

    rewritten = folder / "temp-rewriteaof-7.aof"
    rewritten.write_text("xy")
    os.utime(rewritten, ns=(0, file.stat().st_mtime_ns))  # it differs in nothing but its content
    rewritten.rename(file)  # what a rewrite ends with
    assert ("", ["appendonly.aof"]) == (files.sync(), disk.take())


def test_all_parts_of_a_file_are_synced_and_their_folder(folder: Path, disk: Disk) -> None:
    """From Redis 7 on the file has parts: what is written during a rewrite is in a new one."""
    (folder / "appendonly.aof").unlink()
    parts = folder / "appendonlydir"
    parts.mkdir()
    first = ["appendonly.aof.1.base.rdb", "appendonly.aof.1.incr.aof", "appendonly.aof.manifest"]
    for name in first:
        (parts / name).write_text("a")
    files = AppendOnlyFiles(folder)
    assert ("", [*first, "appendonlydir"]) == (files.sync(), disk.take())

    append(parts / first[1])
    (parts / "appendonly.aof.2.incr.aof").write_text("a")
    (parts / first[0]).unlink()
    os.mkfifo(parts / "appendonly.aof.pipe")  # would block whoever opens it
    assert "" == files.sync()
    assert [first[1], "appendonly.aof.2.incr.aof", "appendonlydir"] == disk.take()


def test_a_folder_without_data_is_no_error(tmp_path: Path, disk: Disk) -> None:
    """The first start of a node would log that its disk fails."""
    assert ("", []) == (AppendOnlyFiles(tmp_path / "none").sync(), disk.take())


async def test_a_failing_disk_is_logged_once_until_it_works(folder: Path, disk: Disk, nursery: trio.Nursery) -> None:
    """The node would end with its disk, fill the log with it, or say nothing."""
    log = Log()
    disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
    nursery.start_soon(AppendOnlySync(folder, log).run)
    await until(lambda: disk.begun > 10)
    assert [("embedded_redis_sync_failed", {"why": f"Input/output error: {folder}/appendonly.aof"})] == log.events

    disk.error = None
    await until(lambda: len(log.events) > 1)
    append(folder / "appendonly.aof")
    disk.take()
    await until(lambda: bool(disk.synced))
    assert ["embedded_redis_sync_failed", "embedded_redis_sync_recovered"] == log.names()


async def test_a_slow_disk_is_logged_while_it_is_slow(
    folder: Path, disk: Disk, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs would be found out only when it works again."""
    monkeypatch.setattr(aof_sync, "SLOW_AFTER", 0.02)
    log = Log()
    disk.turns.clear()
    nursery.start_soon(AppendOnlySync(folder, log).run)
    await until(lambda: bool(log.events))
    assert [("embedded_redis_sync_slow", {"seconds": 0.02})] == log.events

    monkeypatch.setattr(aof_sync, "SLOW_AFTER", PATIENCE)
    disk.turns.set()
    await until(lambda: len(log.events) > 1)
    assert ["embedded_redis_sync_slow", "embedded_redis_sync_recovered"] == log.names()


async def test_syncs_never_overlap(folder: Path, disk: Disk, nursery: trio.Nursery) -> None:
    """Each second, or each time that the task begins anew, one more thread would wait for a disk that hangs."""
    sync = AppendOnlySync(folder, Log())
    disk.turns.clear()
    with trio.CancelScope() as former:
        async with trio.open_nursery() as inner:
            inner.start_soon(sync.run)
            await until(lambda: disk.begun == 1)
            former.cancel()
    nursery.start_soon(sync.run)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert 1 == disk.begun

    disk.turns.set()
    append(folder / "appendonly.aof")
    await until(lambda: disk.begun > 2)
    assert 1 == disk.most


def test_a_supervisor_ends_while_its_disk_hangs(folder: Path, disk: Disk) -> None:
    """`weir stop` would wait for the disk."""
    disk.turns.clear()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(AppendOnlySync(folder, Log()).run)
            await until(lambda: disk.begun == 1)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert [] == disk.synced
