# The checkpoint: a folder with what the job needs to resume.
#
#   VERSION         the version of the checkpoint, and the name of the log (source.py)
#   lock            locked while a job runs: two jobs at the same time would corrupt the checkpoint
#   spark/          Spark's own checkpoint: the entries of each batch, and the keys of recent records
#   state/N         the state of the driver after batch N, as MessagePack
#
# state/N is written atomically, after all results of batch N. So a batch with a state is finished. A batch without one
# is repeated from the state of the previous batch, with the same result.
import fcntl
import json
import os
from pathlib import Path
from typing import Any, Final, cast

import msgpack

from analytics.rows import VERSION

KEPT: Final = 5  # states: more than the batches that Spark may repeat
LARGE: Final = 0  # the MessagePack extension for integers above 64 bits, which sums of forged figures may reach


class CheckpointUnusable(Exception):
    """The text is one sentence that says what to do."""


class Checkpoint:
    def __init__(self, folder: Path, log: str) -> None:
        """Open and lock the checkpoint of the log *log*; create it if necessary. Raises CheckpointUnusable."""
        self.spark = folder / "spark"
        self._states = folder / "state"
        self._lock = -1
        self._saved: tuple[int, dict[str, Any]] | None = None  # the last batch, and the state after it
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _check(folder, log)
            self._states.mkdir(exist_ok=True)
        except BlockingIOError:
            self.close()
            raise CheckpointUnusable(
                f"Another analysis uses the checkpoint {folder}: stop it, or choose another folder with --checkpoint."
            ) from None
        except OSError as error:
            self.close()
            raise CheckpointUnusable(
                f"The checkpoint {folder} cannot be used: {error.strerror}; choose another folder with --checkpoint."
            ) from None
        except CheckpointUnusable:
            self.close()
            raise

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)

    def done(self, batch: int) -> bool:
        return self._path(batch).exists()

    def state_before(self, batch: int) -> dict[str, Any] | None:
        """Return the state after the batch before *batch*; None if there is none. The caller must not change it."""
        if self._saved is not None and self._saved[0] == batch - 1:
            return self._saved[1]
        for number in sorted(self._numbers(), reverse=True):
            if number < batch:
                return _unpacked(self._path(number).read_bytes())
        return None

    def save(self, batch: int, state: dict[str, Any]) -> None:
        """Record that *batch* is finished, with the *state* after it. Raises OSError."""
        _write(self._path(batch), _packed(state))
        self._saved = batch, state
        for number in self._numbers():
            if number <= batch - KEPT:
                self._path(number).unlink(missing_ok=True)

    def offsets(self, batch: int) -> list[dict[str, Any]]:
        """Return the end of *batch* in each stream that the query reads, in their order.

        OSError, ValueError: this version of Spark stores offsets differently.
        """
        _, _, *ends = (self.spark / "offsets" / str(batch)).read_text().splitlines()  # version, metadata
        return [json.loads(end) for end in ends]

    def beginning(self, stream: int) -> dict[str, Any]:
        """Return where the query began to read the stream of that number, which is one of Kafka.

        OSError, ValueError: this version of Spark stores it differently.
        """
        text = (self.spark / "sources" / str(stream) / "0").read_text()  # a NUL, the version, the offset
        return cast(dict[str, Any], json.loads(text.rpartition("\n")[2]))

    def query(self) -> str:
        """Return the id of the streaming query, which a new checkpoint does not share. Raises OSError, ValueError."""
        text = (self.spark / "metadata").read_text()
        return str(json.loads(text)["id"])

    def _numbers(self) -> list[int]:
        return [int(one.name) for one in self._states.iterdir() if one.name.isdigit()]

    def _path(self, batch: int) -> Path:
        return self._states / str(batch)


def _check(folder: Path, log: str) -> None:
    """Check that *folder* has a checkpoint of this version and of the log *log*. Raises CheckpointUnusable."""
    named = folder / "VERSION"
    try:
        found = json.loads(named.read_text())
        version, of = found["version"], found["log"]
    except FileNotFoundError:
        if {one.name for one in folder.iterdir()} - {"lock", "VERSION.unfinished"}:
            raise CheckpointUnusable(
                f"The folder {folder} is not empty and is not a checkpoint: choose another folder with --checkpoint."
            ) from None
        _write(named, json.dumps({"version": VERSION, "log": log}).encode())
        return
    except (ValueError, KeyError, TypeError):
        version, of = "unknown", log
    if version != VERSION:
        raise CheckpointUnusable(
            f"The checkpoint {folder} has version {version}, but this analysis needs version {VERSION}: remove it, or "
            "choose another folder with --checkpoint. The analysis then starts with the oldest record of the log."
        )
    if of != log:
        raise CheckpointUnusable(
            f"The checkpoint {folder} belongs to the log {of}: choose another folder with --checkpoint."
        )


def _packed(state: dict[str, Any]) -> bytes:
    # Names may have lone surrogates, which JSON can express and UTF-8 cannot.
    return cast(bytes, msgpack.packb(state, default=_large, unicode_errors="surrogatepass"))


def _unpacked(found: bytes) -> dict[str, Any]:
    return cast(dict[str, Any], msgpack.unpackb(found, ext_hook=_number, unicode_errors="surrogatepass"))


def _large(value: object) -> msgpack.ExtType:
    return msgpack.ExtType(LARGE, str(value).encode())


def _number(code: int, data: bytes) -> int:
    return int(data)


def _write(path: Path, content: bytes) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)
