# What a broker logs that no client may cause.
from pathlib import Path
from typing import Final

EVENTS: Final = (b'"internal_error"', b"Traceback", b'"worker_died"', b'"worker_stderr"')


class Mistakes:
    """Reads a broker's log as it grows."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read = 0  # bytes

    def read(self) -> list[str]:
        """The lines of mistakes that are new since the last call."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        whole = text.rpartition(b"\n")[0]
        self._read += len(whole)
        return [line.decode(errors="replace") for line in whole.splitlines() if any(event in line for event in EVENTS)]
