# Brings the append-only file of the embedded Redis to the disk, each second.
#
# So a loss of power costs about a second, and kill -9 of the server nothing. Redis' own `appendfsync everysec` cannot
# do both: while its sync runs, it keeps writes in memory for up to 2 s rather than wait for the disk, and answers them.
#
# The sync is done in a thread, one at a time. A disk that hangs costs this thread, and neither the supervisor nor
# Redis; the thread is abandoned when the node ends. A slow or failing disk ends nothing; it is logged when that begins,
# and when it is over.
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import trio

from broker.log import Log

INTERVAL: Final = 1.0  # seconds from the end of a sync to the next
SLOW_AFTER: Final = 5.0  # seconds; then a sync is logged as slow
SINGLE_FILE: Final = "appendonly.aof"  # before 7.0; a rewritten file takes its name
FOLDER: Final = "appendonlydir"  # from 7.0 on

Stamp = tuple[int, int, int]  # inode, size in bytes, time of the last change in ns

# What the last sync has shown.
FINE: Final = "fine"
SLOW: Final = "slow"
FAILING: Final = "failing"


class AppendOnlySync:
    def __init__(self, folder: Path, log: Log) -> None:
        """*folder*: the `dir` of the server."""
        self._files = AppendOnlyFiles(folder)
        self._log = log
        self._state = FINE
        self._one = trio.CapacityLimiter(1)  # held until the thread has ended, also by one that was abandoned

    async def run(self) -> None:
        """Sync what has changed, until cancelled."""
        while True:
            await self._sync()
            await trio.sleep(INTERVAL)

    async def _sync(self) -> None:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report_slow)
            error = await trio.to_thread.run_sync(self._files.sync, abandon_on_cancel=True, limiter=self._one)
            nursery.cancel_scope.cancel()
        if error:
            self._enter(FAILING, lambda: self._log.error("embedded_redis_sync_failed", why=error))
        elif trio.current_time() - began < SLOW_AFTER:
            self._enter(FINE, lambda: self._log.info("embedded_redis_sync_recovered"))

    async def _report_slow(self) -> None:
        await trio.sleep(SLOW_AFTER)
        if self._state == FINE:  # a failing disk is known already
            self._enter(SLOW, lambda: self._log.warning("embedded_redis_sync_slow", seconds=SLOW_AFTER))

    def _enter(self, state: str, tell: Callable[[], None]) -> None:
        if state != self._state:
            self._state = state
            tell()


class AppendOnlyFiles:
    """The append-only file of a server, whatever its form, and what of it is on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._synced: dict[Path, Stamp] = {}
        self._listed: set[Path] = set()  # when the folders were last synced

    def sync(self) -> str:
        """Sync the files that have changed since they were last synced; "", or what the system said. Blocks."""
        try:
            found = set(self._present())
            for path in sorted(found):
                self._sync_file(path)
            if found != self._listed:  # a new file is lost with its folder's entry
                for folder in {path.parent for path in found}:
                    sync_folder(folder)
                self._listed = found
        except OSError as error:
            return f"{error.strerror}: {error.filename}" if error.filename else error.strerror or str(error)
        self._synced = {path: stamp for path, stamp in self._synced.items() if path in found}
        return ""

    def _present(self) -> Iterator[Path]:
        if (self._folder / SINGLE_FILE).is_file():
            yield self._folder / SINGLE_FILE
        if (self._folder / FOLDER).is_dir():
            yield from (path for path in (self._folder / FOLDER).iterdir() if path.name.startswith(SINGLE_FILE))

    def _sync_file(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return  # a rewrite has replaced it
        try:
            found = os.fstat(descriptor)
            stamp = found.st_ino, found.st_size, found.st_mtime_ns  # before the sync: what is written meanwhile is new
            if stat.S_ISREG(found.st_mode) and self._synced.get(path) != stamp:
                os.fdatasync(descriptor)
                self._synced[path] = stamp
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Bring the entries of *folder* to the disk. OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
