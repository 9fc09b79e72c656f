# A power cut, played on the files of a server whose processes were killed.
#
# The kernel keeps what a killed process has written, a power cut does not. So a library that is preloaded into the node
# (sync_recorder.c) writes down how long each file was when it was last synced, and `cut()` makes the append-only files
# no longer than that, as a disk would have them that was never asked for more. A real disk may have more: the tail is
# torn, behind what was synced, with a part of what was written there, or with zeros and garbage.
#
# The other files of a server (the base, the manifest) are small, synced and renamed, and stay as they are.
import json
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from supervisor.store_era import FILE

SOURCE: Final = Path(__file__).with_name("sync_recorder.c")
INCREMENT: Final = ".incr.aof"
EXACT: Final = "exact"  # the file ends where it was synced
PARTIAL: Final = "partial"  # somewhere behind that
GARBAGE: Final = "garbage"  # and what follows was never written
ZEROS: Final = "zeros"
TAILS: Final = (EXACT, PARTIAL, PARTIAL, PARTIAL)
DAMAGED_TAILS: Final = (GARBAGE, ZEROS)
MOST_GARBAGE: Final = 3000  # bytes

Synced = dict[int, tuple[int, float]]  # by inode: size in bytes, and the time at which the file had it, monotonic


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def compile_recorder(folder: Path) -> Path:
    """The library, to be preloaded. CalledProcessError: the compiler does not take it."""
    library = folder / "sync_recorder.so"
    command = [
        compiler() or "cc",
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Werror",
        "-o",
        str(library),
        str(SOURCE),
        "-ldl",
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


def read_record(record: Path) -> Synced:
    synced: Synced = {}
    if record.exists():
        for line in record.read_text().splitlines():
            inode, size, nanoseconds = map(int, line.split())
            synced[inode] = (size, nanoseconds / 1e9)
    return synced


@dataclass(frozen=True)
class Cut:
    since: float  # what was written after this time may be gone; infinite: nothing is
    told: str


def cut(files: Iterable[Path], record: Path, tail: str, random: Random) -> Cut:
    """Take from the append-only *files* what *record* does not know to be synced; no process writes them any more."""
    synced = read_record(record)
    since = float("inf")
    told = []
    increments = sorted((each for each in files if each.name.endswith(INCREMENT)), key=_sequence)
    for path in increments:
        found = path.stat()
        size, at = synced.get(found.st_ino, (0, 0.0))
        size = min(size, found.st_size)
        if size < found.st_size:
            since = min(since, at)
        written = path.read_bytes()[size:]
        torn = _torn(written, tail, random) if path is increments[-1] else b""
        with path.open("r+b") as file:
            file.truncate(size)
            file.seek(size)
            file.write(torn)
        told.append(f"{path.name} of {found.st_size} bytes: {size} and {len(torn)} torn")
        with record.open("a") as lines:  # what is left is on the disk from now on
            lines.write(f"{found.st_ino} {size + len(torn)} {time.monotonic_ns()}\n")
    return Cut(since, f"{tail} tail, " + "; ".join(told))


def forget_boot(folder: Path) -> None:
    """The machine of the server in *folder* is started: see supervisor/store_era.py."""
    path = folder / FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"boot": "a former one"}))


def _torn(written: bytes, tail: str, random: Random) -> bytes:
    if tail == EXACT:
        return b""
    part = written[: random.randrange(len(written) + 1)]
    if tail == GARBAGE:
        return part + random.randbytes(random.randrange(1, MOST_GARBAGE))
    if tail == ZEROS:
        return part + bytes(random.randrange(1, MOST_GARBAGE))
    return part


def _sequence(path: Path) -> int:
    """Of "appendonly.aof.2.incr.aof": 2."""
    return int(path.name.removesuffix(INCREMENT).rpartition(".")[2])
