# What the cold sessions of other workers want: for a topic, which workers have to be sent its messages.
#
# A worker tells its peers the entries of its cold sessions (interest.py) instead of their filters. An entry says
# nothing of the topics that match it, so a route cannot be found by it. Mostly that is not needed: a session that
# becomes cold was told by its filters before, and they are told as lost after its entries, which has the routes made
# again. For entries that are lost, the filters of some that routes were made with are remembered here: routes would
# send messages to that worker for nothing until they are made again for another reason.
from typing import Final

from broker.routing.hash_set import HashSet
from broker.routing.interest import TopicHashes
from broker.routing.neighbour import Neighbour

REMEMBERED: Final = 4096  # filters; when there are more, all are forgotten
LONGEST: Final = 256  # bytes of a filter that is remembered
FILTER_BYTES: Final = 300  # of one, with its entry and their place


class RemoteInterest:
    def __init__(self) -> None:
        self.sets: dict[Neighbour, HashSet] = {}
        self._filters: dict[bytes, bytes] = {}  # of entries that routes were made with

    def gained(self, entries: bytes, neighbour: Neighbour) -> bool:
        """*neighbour* has cold sessions with these *entries*; false if they are malformed."""
        known = self.sets.get(neighbour)
        if known is None:
            known = self.sets[neighbour] = HashSet()
        return known.add_all(entries)

    def lost(self, entry: bytes, neighbour: Neighbour) -> bytes:
        """The filter of *entry*, if routes may have been made with it; else it is empty."""
        known = self.sets.get(neighbour)
        if known is None or not known.remove(entry):
            return b""
        if not len(known):
            del self.sets[neighbour]
        return self._filters.pop(entry, b"")

    def forget(self, neighbour: Neighbour) -> HashSet | None:
        """Remove what *neighbour* has told; its set is to be freed in steps."""
        return self.sets.pop(neighbour, None)

    def matching(self, topic: bytes) -> list[Neighbour]:
        """The neighbours with a cold session that is to have messages to *topic*. O(shapes)."""
        hashes = TopicHashes(topic)
        found: list[Neighbour] = []
        for neighbour, known in self.sets.items():
            shapes = known.matching(hashes)
            if shapes:
                found.append(neighbour)
                for shape in shapes:
                    self._remember(hashes, shape)
        return found

    def _remember(self, hashes: TopicHashes, shape: bytes) -> None:
        filter = hashes.filter(shape)
        if len(filter) <= LONGEST:
            if len(self._filters) >= REMEMBERED:
                self._filters.clear()
            self._filters[bytes((len(shape),)) + shape + hashes.of(shape)] = filter

    def size(self) -> int:
        """Bytes of memory."""
        size = FILTER_BYTES * len(self._filters)
        for known in self.sets.values():
            size += known.size()
        return size
