# A backup: the durable state of a node in one file.
#
#   MAGIC, 8 bytes; the version of this format, 2 bytes
#   frames: the length, 4 bytes, and a list in msgpack, whose first element is the kind of the frame:
#     HEAD      what Head has, by name; the first frame, and only that
#     SESSION   client id, fields and values of its record, positions of its marks (store/durable/marks.py); or the name
#               of what waits for a shared subscription (store/durable/group_queue.py), and the same of that
#     PACKS     packs of the queue of the session before, in their order; as many frames as it takes
#     RETAINED  topics and values
#     GROUP     of APPLICATION clients that share a log: its digest, fields and values of its state, and its members
#               (store/durable/lease_scripts.py)
#     LOG       of an APPLICATION client, or shared: its topic, its properties, and of each partition the offset of the
#               next record, the bytes of all records, and the identity of the topic (carrier/redis_keys.py)
#     RECORDS   of a log: its topic, the number of a partition, then of each record its id, itself, the time at which it
#               came, and the bytes before it
#     END       how many sessions, packs and retained messages there were; the last frame, and only that
#   SHA-256 of everything before it, 32 bytes
#
# Numbers are big-endian. What is in a record or a value is as Redis has it, and has a form of its own; so has a pack,
# with the bodies that Redis has elsewhere (whole_packs.py). The head has the version of these (`PREFIX:format` in
# Redis), so a build knows whether it can read them.
#
# A reader gets one frame at a time, and learns with the last one whether it was the whole file, and undamaged: who
# must not use what is damaged reads the file twice. The file has its name only once it is complete and on the disk.
#
# The dump of an RDB file was rejected: only a server of the same version or a newer one reads it, it cannot be read
# without one, and it has the keys of the workers that have ended.
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgpack

MAGIC: Final = b"\x89WEIR\r\n\x1a"  # as in PNG: a copy that changes line ends or the eighth bit is noticed
VERSION: Final = 2  # raised by what former builds cannot read, 2: groups and logs; every version up to it is read
LARGEST: Final = 512 * 1024 * 1024  # bytes of a frame; a message has at most 256 MiB
PART: Final = 1 << 20  # bytes of packs or values in a frame, about
DIGEST: Final = 32
OF_HEAD: Final = 3  # values of each partition
OF_RECORD: Final = 4  # values of each record

HEAD: Final = 0
SESSION: Final = 1
PACKS: Final = 2
RETAINED: Final = 3
END: Final = 4
GROUP: Final = 5
LOG: Final = 6
RECORDS: Final = 7


class BackupUnusable(Exception):
    """The file cannot be written, or is no backup that can be read. The text is one sentence for the user."""


class Head(NamedTuple):
    node: str
    weir: str  # its version
    data_format: int  # DURABLE_FORMAT of the build that wrote the data
    taken_at: float  # Unix time in seconds at which the backup was begun
    running: bool  # the node ran meanwhile: each session is as it was at another moment


class Counts(NamedTuple):
    sessions: int
    packs: int
    retained: int


class BackupWriter:
    """Writes a backup to a file beside *path*, which gets its name at the end. To be used with `with`."""

    def __init__(self, path: Path, head: Head) -> None:
        """BackupUnusable: there is such a file, or none can be made."""
        self._path = path
        self._part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        self._digest = hashlib.sha256()
        self._sessions = self._packs = self._retained = 0
        if path.exists() or path.is_symlink():
            raise BackupUnusable(f"The file {path} exists already.")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.fdopen(os.open(self._part, flags, 0o600), "wb")
        except OSError as error:
            raise BackupUnusable(f"The file {path} cannot be made: {error.strerror}.") from None
        self._write(MAGIC + VERSION.to_bytes(2, "big"))
        self._frame([HEAD, head._asdict()])

    def __enter__(self) -> "BackupWriter":
        return self

    def __exit__(self, *error: object) -> None:
        """Remove what is there, unless `finish()` was called."""
        self._part.unlink(missing_ok=True)
        with suppress(OSError):  # it writes what is left, if the disk was full before
            self._file.close()

    def session(self, client: bytes, fields: list[bytes], marks: list[int], packs: list[bytes]) -> None:
        self._frame([SESSION, client, fields, marks])
        for part in parts(packs, 1):
            self._frame([PACKS, *part])
        self._sessions += 1
        self._packs += len(packs)

    def retained(self, values: list[bytes]) -> None:
        """*values*: each topic is followed by its value."""
        for part in parts(values, 2):
            self._frame([RETAINED, *part])
        self._retained += len(values) // 2

    def group(self, digest: bytes, fields: list[bytes], members: list[bytes]) -> None:
        """*fields*: each name is followed by its value."""
        self._frame([GROUP, digest, fields, members])

    def log(self, topic: bytes, properties: bytes, heads: list[bytes]) -> None:
        self._frame([LOG, topic, properties, heads])

    def records(self, topic: bytes, partition: int, values: list[bytes]) -> None:
        """*values*: four of each record."""
        for part in parts(values, OF_RECORD):
            self._frame([RECORDS, topic, partition, part])

    def finish(self) -> tuple[Counts, int]:
        """The backup is complete: give the file its name. What it has, and its bytes."""
        counts = Counts(self._sessions, self._packs, self._retained)
        self._frame([END, *counts])
        self._write(self._digest.digest())
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            size = self._file.tell()
            self._part.rename(self._path)
            _sync_folder(self._path.parent)
        except OSError as error:
            raise self._failed(error) from None
        return counts, size

    def _frame(self, content: list[Any]) -> None:
        packed: bytes = msgpack.packb(content)
        self._write(len(packed).to_bytes(4, "big") + packed)

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> BackupUnusable:
        return BackupUnusable(f"The file {self._path} cannot be written: {error.strerror}.")


class BackupReader:
    """Reads a backup. To be used with `with`."""

    def __init__(self, path: Path) -> None:
        """BackupUnusable: *path* cannot be read, is no backup, or has a newer format."""
        self._path = path
        self._counts: Counts | None = None
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait
                raise BackupUnusable(f"{path} is no file.")
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise BackupUnusable(f"The file {path} cannot be read: {error.strerror}.") from None
        self._size = os.fstat(self._file.fileno()).st_size
        try:
            self.head = self._read_head()
        except BackupUnusable:
            self._file.close()
            raise

    def __enter__(self) -> "BackupReader":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def check(self) -> Counts:
        """Read all of it, the first time; what it has. BackupUnusable: it is damaged."""
        if self._counts is None:
            counts = Counts(0, 0, 0)
            for kind, content in self.frames():
                counts = _added(counts, kind, content)
            self._counts = counts
        return self._counts

    def frames(self) -> Iterator[tuple[int, list[Any]]]:
        """The kind and the content of each frame between head and end, from the first one on.

        BackupUnusable, at the latest behind the last frame: the file is damaged, or not whole.
        """
        file, digest = self._file, hashlib.sha256()
        counts = Counts(0, 0, 0)
        self._restart(digest)
        while True:
            kind, content = self._frame(digest)
            if kind == END:
                break
            if not _is_valid(kind, content, counts):
                raise self._damaged()
            counts = _added(counts, kind, content)
            yield kind, content
        if content != list(counts) or digest.digest() != file.read(DIGEST) or file.read(1):
            raise self._damaged()

    def _read_head(self) -> Head:
        start = self._file.read(len(MAGIC) + 2)
        if not start.startswith(MAGIC) or len(start) < len(MAGIC) + 2:
            raise BackupUnusable(f"{self._path} is no backup of Weir.")
        version = int.from_bytes(start[len(MAGIC) :], "big")
        if version > VERSION:
            raise BackupUnusable(
                f"The backup {self._path} has format {version}, and this version of Weir knows format {VERSION}: "
                "use the version of Weir that wrote it."
            )
        kind, content = self._frame(hashlib.sha256())
        try:
            (found,) = content
            head = Head(**{name: found[name] for name in Head._fields})
        except (TypeError, ValueError, KeyError):
            raise self._damaged() from None
        types = Head.__annotations__.values()
        if not version or kind != HEAD or any(type(one) is not its for one, its in zip(head, types, strict=True)):
            raise self._damaged()
        return head

    def _restart(self, digest: "hashlib._Hash") -> None:
        self._file.seek(0)
        digest.update(self._file.read(len(MAGIC) + 2))
        self._frame(digest)

    def _frame(self, digest: "hashlib._Hash") -> tuple[int, list[Any]]:
        head = self._file.read(4)
        length = int.from_bytes(head, "big")
        if len(head) < 4 or length > min(LARGEST, self._size - self._file.tell()):
            raise self._damaged()
        packed = self._file.read(length)
        digest.update(head + packed)
        try:
            kind, *content = msgpack.unpackb(packed)
        except Exception:  # msgpack has six kinds of it
            raise self._damaged() from None
        return kind, content

    def _damaged(self) -> BackupUnusable:
        return BackupUnusable(f"The backup {self._path} is damaged, or not whole: nothing of it can be trusted.")


def parts(values: list[bytes], together: int) -> Iterator[list[bytes]]:
    """*values* in parts of about PART bytes, none of which parts *together* values that follow each other."""
    part: list[bytes] = []
    size = 0
    for at in range(0, len(values), together):
        part += values[at : at + together]
        size += sum(map(len, values[at : at + together]))
        if size >= PART:
            yield part
            part, size = [], 0
    if part:
        yield part


def _added(counts: Counts, kind: int, content: list[Any]) -> Counts:
    """*counts*, and what a frame has."""
    sessions, packs, retained = counts
    if kind == SESSION:
        return Counts(sessions + 1, packs, retained)
    if kind == PACKS:
        return Counts(sessions, packs + len(content), retained)
    if kind == RETAINED:
        return Counts(sessions, packs, retained + len(content) // 2)
    return counts


def _is_valid(kind: int, content: list[Any], counts: Counts) -> bool:
    """Whether a frame, which follows others that have *counts*, has what its kind says."""
    if kind == SESSION:
        if [type(each) for each in content] != [bytes, list, list]:
            return False
        client, fields, marks = content
        return bool(client and fields) and _pairs(fields) and all(type(each) is int for each in marks)
    if kind == PACKS:
        return bool(content) and counts.sessions > 0 and _all_bytes(content)
    if kind == RETAINED:
        return _pairs(content)
    types = [type(each) for each in content]
    if kind == GROUP:
        return types == [bytes, list, list] and _pairs(content[1]) and _all_bytes(content[2])
    if kind == LOG:
        return types == [bytes, bytes, list] and _of(content[2], OF_HEAD)
    return kind == RECORDS and types == [bytes, int, list] and _of(content[2], OF_RECORD)


def _pairs(values: list[Any]) -> bool:
    return _of(values, 2)


def _of(values: list[Any], together: int) -> bool:
    return len(values) % together == 0 and _all_bytes(values)


def _all_bytes(values: list[Any]) -> bool:
    return all(type(each) is bytes for each in values)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
