# The ended workers of a node whose clients' wills are not all published yet.
#
# The clients of a worker leave their wills in Redis under its incarnation. When a worker has ended, for whatever
# reason, a running one is told to publish the wills that are left. When that worker ends, too, the next one is told of
# both: a will is taken from Redis before it is published, so telling twice does no harm.
# While Redis is away, a worker cannot remove the wills that it publishes itself. It reports them to the supervisor, and
# the worker that publishes its wills later is told to skip them; otherwise they would be published twice.
# The incarnations are in a file of the node's folder, so that after a kill of the whole node its next start publishes.
from collections.abc import Iterable
from pathlib import Path
from typing import Final

MOST_SETTLED: Final = 256 * 1024  # bytes of client ids of one worker; the wills of further ids are published twice
MOST: Final = 200  # incarnations; each costs its publisher one request per slice of the keys


class DeadWorkers:
    def __init__(self, path: Path) -> None:
        """OSError: *path* cannot be read."""
        self._path = path
        self._known = _read(path)[-MOST:]  # running workers, too
        self._unassigned = list(self._known)
        self._assigned: dict[int, list[int]] = {}  # by the incarnation of the publishing worker
        self._settled: dict[int, dict[str, int]] = {}  # by incarnation: client id, epoch
        self._settled_bytes: dict[int, int] = {}

    def started(self, incarnation: int) -> None:
        """A worker starts. OSError: the file could not be written."""
        self._known = [*self._known, incarnation][-MOST:]
        for old in [one for one in self._settled if one not in self._known]:
            del self._settled[old], self._settled_bytes[old]
        new = self._path.with_suffix(".new")
        new.write_text("".join(f"{one:016x}\n" for one in self._known))
        new.replace(self._path)

    def will_settled(self, incarnation: int, client_id: str, epoch: int) -> None:
        """The worker has published or cancelled a will that Redis still holds, of the claim with *epoch*."""
        size = self._settled_bytes.get(incarnation, 0) + len(client_id)
        if size <= MOST_SETTLED:
            self._settled_bytes[incarnation] = size
            self._settled.setdefault(incarnation, {})[client_id] = epoch

    def settled_wills(self, incarnation: int) -> list[tuple[str, int]]:
        """(client id, epoch) of the wills that the worker has settled."""
        return list(self._settled.get(incarnation, {}).items())

    def ended(self, incarnation: int) -> None:
        """A worker has ended: its wills, and those that it was to publish, need another publisher."""
        self._unassigned += [*self._assigned.pop(incarnation, []), incarnation]
        del self._unassigned[:-MOST]

    def assign(self, publisher: int) -> Iterable[int]:
        """The incarnations whose wills the worker *publisher* has to publish from now on."""
        due, self._unassigned = self._unassigned, []
        assigned = self._assigned.setdefault(publisher, [])
        assigned += due
        del assigned[:-MOST]
        return due


def _read(path: Path) -> list[int]:
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return []
    return [int(line, 16) for line in text.split() if len(line) == 16 and set(line) <= set("0123456789abcdef")]
