# What the job needs to go on where it was: a folder, with
#
#   VERSION         of what is in it, and which log it is of
#   lock            held while a job runs: two at once would spoil it
#   spark/          Spark's own: which entries each batch is of, and which records were seen
#   state/N         what the driver knows after batch N, as MessagePack
#
# state/N appears whole, and after all of batch N is written elsewhere. So a batch that has one is done; one that
# has none is done again, from the state after the batch before it, and comes out the same.
import fcntl
import json
import os
from pathlib import Path
from typing import Any, Final, cast

import msgpack

from analytics.rows import VERSION

KEPT: Final = 5  # states; one more than Spark may go back is enough
LARGE: Final = 0  # the extension for integers of more than 64 bits: sums of figures that somebody made up


class CheckpointUnusable(Exception):
    """Its text is one sentence that says what to do."""


class Checkpoint:
    def __init__(self, folder: Path, key: str) -> None:
        """That of a job that analyses the log *key*; made if it is not there. CheckpointUnusable."""
        self.spark = folder / "spark"
        self._states = folder / "state"
        self._lock = -1
        self._saved: tuple[int, dict[str, Any]] | None = None  # the last batch, and the state after it
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _check(folder, key)
            self._states.mkdir(exist_ok=True)
        except BlockingIOError:
            self.close()
            raise CheckpointUnusable(
                f"Another analysis runs with the checkpoint {folder}: end it, or name another one with --checkpoint."
            ) from None
        except OSError as error:
            self.close()
            raise CheckpointUnusable(
                f"The checkpoint {folder} cannot be used: {error.strerror}; name another one with --checkpoint."
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
        """What was saved after the batch before *batch*, which is not to be changed; None: there is none."""
        if self._saved is not None and self._saved[0] == batch - 1:
            return self._saved[1]
        for number in sorted(self._numbers(), reverse=True):
            if number < batch:
                return _unpacked(self._path(number).read_bytes())
        return None

    def save(self, batch: int, state: dict[str, Any]) -> None:
        """*batch* is done, and this is the state after it. OSError."""
        _write(self._path(batch), _packed(state))
        self._saved = batch, state
        for number in self._numbers():
            if number <= batch - KEPT:
                self._path(number).unlink(missing_ok=True)

    def offset(self, batch: int) -> dict[str, Any]:
        """Up to where *batch* reads. OSError, ValueError: Spark keeps it otherwise."""
        lines = (self.spark / "offsets" / str(batch)).read_text().splitlines()
        return cast(dict[str, Any], json.loads(lines[-1]))

    def _numbers(self) -> list[int]:
        return [int(one.name) for one in self._states.iterdir() if one.name.isdigit()]

    def _path(self, batch: int) -> Path:
        return self._states / str(batch)


def _check(folder: Path, key: str) -> None:
    """See that what is in *folder* is ours, of this version and of *key*. CheckpointUnusable."""
    named = folder / "VERSION"
    try:
        found = json.loads(named.read_text())
        version, of = found["version"], found["log"]
    except FileNotFoundError:
        if {one.name for one in folder.iterdir()} - {"lock", "VERSION.unfinished"}:
            raise CheckpointUnusable(
                f"The folder {folder} is not empty and no checkpoint: name another one with --checkpoint."
            ) from None
        _write(named, json.dumps({"version": VERSION, "log": key}).encode())
        return
    except (ValueError, KeyError, TypeError):
        version, of = "unknown", key
    if version != VERSION:
        raise CheckpointUnusable(
            f"The checkpoint {folder} is of version {version}, and this analysis of {VERSION}: remove it, or name "
            "another one with --checkpoint; the analysis then begins with what Redis still has."
        )
    if of != key:
        raise CheckpointUnusable(f"The checkpoint {folder} is of the log {of}: name another one with --checkpoint.")


def _packed(state: dict[str, Any]) -> bytes:
    # A name may have what UTF-8 has not, as JSON may.
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
