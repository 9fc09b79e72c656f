# The clients for a topic, found in steps.
#
# A topic may have a million receivers in an index of cold sessions. A walk finds the sessions that were cold when it
# began and still are when it comes to them. Sessions are numbered as they are added (`stamp`), and chains are in the
# order of the stamps, so a walk can say whether it has still to come to a session (`owes`): one that becomes warm
# meanwhile is to have the message, too, and only once.
from typing import TYPE_CHECKING

from broker.routing.cold_segments import BITS, LOW, NONE

if TYPE_CHECKING:
    from broker.routing.cold_index import ColdIndex


class ColdWalk:
    """The clients for a topic: those of sessions that were cold when it began, and still are.

    A session that is warmed before the walk has come to it is not found any more; `owes()` says so before.
    """

    def __init__(self, index: "ColdIndex", wanted: list[int], stamp: int) -> None:
        """*wanted*: the hashes of the filters that match the topic. Sessions behind *stamp* were added later."""
        self.node = NONE  # the next one; the index moves it when it removes that node
        self.done = not wanted
        self._index = index
        self._wanted = wanted
        self._stamp = stamp
        self._chain = -1  # its place in `wanted`
        if wanted:
            index.walks.append(self)
            self._next_chain()

    def take(self, most: int) -> list[bytes]:
        """The next clients, for *most* steps. There may be none although the walk is not done."""
        index = self._index
        single = len(self._wanted) == 1
        found: list[bytes] = []
        for _ in range(most):
            while self.node == NONE and not self.done:
                self._next_chain()
            if self.done:
                break
            nodes = index.nodes[self.node >> BITS]
            session: int = nodes.session[self.node & LOW]
            sessions = index.sessions[session >> BITS]
            if sessions.stamp[session & LOW] <= self._stamp and (single or self._place(session) == self._chain):
                found.append(sessions.name(session & LOW))
            self.node = nodes.later[self.node & LOW]
        while self.node == NONE and not self.done:
            self._next_chain()
        return found

    def owes(self, client: bytes) -> bool:
        """Whether `take()` has still to return *client*."""
        if self.done:
            return False
        index = self._index
        session = index.session_of(client)
        if session == NONE:
            return False
        stamp: int = index.sessions[session >> BITS].stamp[session & LOW]
        place = self._place(session)
        if place < self._chain or stamp > self._stamp:
            return False
        if place > self._chain:
            return place < len(self._wanted)
        if self.node == NONE:  # the rest of the chain has left
            return False
        there: int = index.nodes[self.node >> BITS].session[self.node & LOW]
        return stamp <= index.sessions[there >> BITS].stamp[there & LOW]

    def stop(self) -> None:
        """End the walk."""
        if not self.done:
            self.done = True
            self._index.walks.remove(self)

    def _next_chain(self) -> None:
        self._chain += 1
        if self._chain == len(self._wanted):
            self.stop()
        else:
            self.node = self._index.head(self._wanted[self._chain])

    def _place(self, session: int) -> int:
        """The first chain of the walk that *session* is in; the number of chains if it is in none. O(filters)."""
        wanted = self._wanted
        index = self._index
        place = len(wanted)
        node: int = index.sessions[session >> BITS].node[session & LOW]
        while node != NONE and place:
            nodes = index.nodes[node >> BITS]
            digest: int = nodes.digest[node & LOW]
            if digest in wanted:
                place = min(place, wanted.index(digest))
            node = nodes.sibling[node & LOW]
        return place
