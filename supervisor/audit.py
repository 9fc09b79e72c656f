# The audit lines of a node: who had what changed, and with what result.
#
# They go to the log, and to a file of their own: the log is rotated, and clients decide how fast. The file holds a JSON
# line for each command. When it is large it is renamed, and a few renamed files are kept; requests are made by people
# and programs of the owner, so they take years to go round. A file that cannot be written stops no command.
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from broker.log import Log

ROTATE_AT: Final = 8 * 1024 * 1024  # bytes
KEPT: Final = 3  # renamed files
LONGEST: Final = 4096  # characters of one argument or result: a request of 64 KiB cannot push out many lines
DONE: Final = "done"  # the result of a command that was carried out
FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class Audit:
    def __init__(self, path: Path, where: str, log: Log, wall: Callable[[], float]) -> None:
        """*where*: the way on which the commands arrive. *wall*: Unix time."""
        self._path = path
        self._where = where
        self._log = log
        self._wall = wall

    def note(self, who: str, what: str, arguments: Mapping[str, object], result: str) -> None:
        """*who* has sent the command *what*. *result*: DONE, or why it was not carried out."""
        facts = {"who": who, "what": what, "where": self._where, "arguments": _shortened(arguments), "result": result}
        self._log.info("audit", who=who, what=what, where=self._where, arguments=facts["arguments"], result=result)
        at = datetime.fromtimestamp(self._wall(), UTC).isoformat()
        try:
            self._append(json.dumps({"timestamp": at, **facts}).encode() + b"\n")
        except OSError as error:
            self._log.error("audit_write_failed", path=str(self._path), why=error.strerror)

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self._path, FLAGS, 0o600)
        try:
            if os.fstat(descriptor).st_size >= ROTATE_AT:
                os.close(descriptor)
                descriptor = self._begin_another()
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def _begin_another(self) -> int:
        for number in range(KEPT - 1, -1, -1):
            former = f"{self._path}.{number}" if number else str(self._path)
            if os.path.exists(former):
                os.replace(former, f"{self._path}.{number + 1}")
        return os.open(self._path, FLAGS, 0o600)


def _shortened(arguments: Mapping[str, object]) -> dict[str, object]:
    return {name: value[:LONGEST] if isinstance(value, str) else value for name, value in arguments.items()}
