# Workers whose wills nobody has published yet.
#
# A worker's clients leave their wills in Redis under its incarnation. When it has ended, however it did, another one is
# told to publish those that are left; when that one ends, too, whoever comes next is told again, as twice does no harm.
# While Redis is away a worker cannot take back there what it has published itself: it says so here, and who mourns for
# it is told, or those wills would be heard twice.
# The incarnations are in a file of the node's folder: should all of it be killed, its next life mourns for the last.
from collections.abc import Iterable
from pathlib import Path
from typing import Final

MOST_DONE: Final = 256 * 1024  # bytes of client ids, of each worker; those of more would be heard twice
MOST: Final = 200  # incarnations; each costs its mourner a question for each slice of the keys


class Obituaries:
    def __init__(self, path: Path) -> None:
        """OSError: *path* cannot be read."""
        self._path = path
        self._lines = _read(path)[-MOST:]
        self._unmourned = list(self._lines)
        self._mourners: dict[int, list[int]] = {}  # whom each was told of
        self._done: dict[int, dict[str, int]] = {}  # by incarnation: client id, epoch
        self._done_bytes: dict[int, int] = {}

    def born(self, incarnation: int) -> None:
        """A worker begins. OSError: it could not be noted."""
        self._lines = [*self._lines, incarnation][-MOST:]
        for old in [one for one in self._done if one not in self._lines]:
            del self._done[old], self._done_bytes[old]
        new = self._path.with_suffix(".new")
        new.write_text("".join(f"{one:016x}\n" for one in self._lines))
        new.replace(self._path)

    def has_done(self, incarnation: int, client_id: str, epoch: int) -> None:
        """The will of its client, of the claim with *epoch*, was published or taken back; Redis could not be told."""
        size = self._done_bytes.get(incarnation, 0) + len(client_id)
        if size <= MOST_DONE:
            self._done_bytes[incarnation] = size
            self._done.setdefault(incarnation, {})[client_id] = epoch

    def done_by(self, incarnation: int) -> list[tuple[str, int]]:
        """Whom it has said that of: (client id, epoch)."""
        return list(self._done.get(incarnation, {}).items())

    def died(self, incarnation: int) -> None:
        """It has ended; whoever it mourned for has to be mourned again."""
        self._unmourned += [*self._mourners.pop(incarnation, []), incarnation]
        del self._unmourned[:-MOST]

    def told(self, mourner: int) -> Iterable[int]:
        """Whom the worker *mourner* is to mourn, from now on."""
        due, self._unmourned = self._unmourned, []
        known = self._mourners.setdefault(mourner, [])
        known += due
        del known[:-MOST]
        return due


def _read(path: Path) -> list[int]:
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return []
    return [int(line, 16) for line in text.split() if len(line) == 16 and set(line) <= set("0123456789abcdef")]
