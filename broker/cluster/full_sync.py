# Full synchronisation: a worker that joins is told all that is subscribed to here, and all that is retained.
#
# It goes in pages between other work, as there may be millions of filters; to another node, as it takes them. Filters
# and members go on the control lane, then ALL_TOLD; retained messages and recent deletions on the data lane, which may
# be full for a while, then ALL_RETAINED. The newcomer serves no client before it has both from every peer.
#
# Every peer tells the newcomer the retained messages that it set itself. Those that a dead worker set are told by all.
# If a peer dies before it has told its part, the newcomer asks the others to tell theirs again, and its (RETELL).
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.cluster import wire
from broker.cluster.peer import Peer
from broker.cluster.peers import Peers
from broker.routing.hybrid_clock import WRITER_MASK, HybridClock
from broker.routing.retained import Retained
from broker.routing.route import RESERVED
from broker.routing.routes import Routes
from broker.routing.shared import SharedGroup
from broker.session.message import NEVER, Message

PAGE: Final = 256  # filters, or retained messages, between two looks at the clock
MOST_UNSENT: Final = 1024 * 1024  # bytes on the control lane to another node, beyond which no interest is told
COLD_PAGE: Final = 512  # entries of cold sessions, about: to tell one takes a tenth of the time


class Progress:
    """What *peer* still has to be told."""

    def __init__(
        self, peer: Peer, filters: list[bytes], groups: list[SharedGroup], topics: list[bytes], dead: int = -1
    ) -> None:
        """*dead*: the lower bits in the stamps of a worker that is known to be gone."""
        self.dead = dead
        self.peer = peer
        self.filters = filters
        self.groups = groups
        self.topics = topics
        self.cold = 0  # where the entries of cold sessions go on that are to be told; -1: they all are
        self.interest_told = False


class FullSync:
    def __init__(
        self,
        peers: Peers,
        routes: Routes,
        retained: Retained,
        stamps: HybridClock,
        adopted: Callable[[], bool],
        told: Callable[[Peer], None],
    ) -> None:
        """*stamps*: of the retained messages that this worker sets. *told* is called when a peer was told all interest.

        *adopted*: whether this worker has the durable sessions of its predecessor: before, it has not told all.
        """
        self._stamps = stamps
        self._told = told
        self._peers = peers
        self._routes = routes
        self._retained = retained
        self._adopted = adopted
        self.pending: deque[Progress] = deque()  # read in every slice: an attribute, and no call

    def begin(self, peer: Peer) -> None:
        """*peer* has joined: tell it everything."""
        filters, groups = self._routes.index.names(), list(self._routes.shared_groups())
        self.pending.append(Progress(peer, filters, groups, self._topics()))

    def repeat_retained(self, peer: Peer, writer: int) -> None:
        """*peer* asks for the retained messages again: the worker with the number *writer*, which was to tell its part,
        has died. This worker may not have heard of that.
        """
        self.pending.append(Progress(peer, [], [], self._topics(), writer))

    def step(self) -> bool:
        """Tell the next page; false if nothing can be told now, as each peer's lanes are full or all is told."""
        pending = self.pending
        for _ in range(len(pending)):
            progress = pending[0]
            if progress.peer.gone:
                pending.popleft()
                return True
            behind = progress.peer.distant and progress.peer.control.outbox.size > MOST_UNSENT
            has_interest = progress.filters or progress.groups or self._adopted()
            if not progress.interest_told and has_interest and not behind:
                self._tell_interest(progress)
                return True
            if not progress.interest_told:
                pending.rotate(-1)
                continue
            if progress.peer.gate.open:
                if self._tell_retained(progress):
                    pending.popleft()
                return True
            pending.rotate(-1)
        return False

    def _topics(self) -> list[bytes]:
        return self._retained.topics() + self._retained.deleted()

    def _tell_interest(self, progress: Progress) -> None:
        """Tell a page of filters and members.

        A filter that has lost its last subscriber since `begin()` was announced as lost, perhaps before its turn came
        here: it is left out.
        """
        peer = progress.peer
        for _ in range(min(PAGE, len(progress.filters))):
            filter = progress.filters.pop()
            if self._routes.index.has(filter):
                peer.tell(wire.change(wire.GAINED, 0, filter))
                if filter in self._routes.durable:
                    peer.tell(wire.change(wire.GAINED_DURABLE, 0, filter))
        for _ in range(min(PAGE, len(progress.groups))):
            group = progress.groups.pop()
            if len(group):
                peer.tell(wire.members(0, group.share, group.filter, *group.here()))
        if progress.filters or progress.groups or not self._adopted():
            return
        if progress.cold >= 0:
            self._tell_cold(progress)
        if progress.cold < 0:
            progress.interest_told = True
            peer.tell(wire.frame(wire.ALL_TOLD))
            peer.knows_all = True
            self._told(peer)

    def _tell_cold(self, progress: Progress) -> None:
        """Tell a page of entries of cold sessions. Only when all sessions are adopted, so they are not told twice."""
        index = self._routes.cold
        if index is None:
            progress.cold = -1
            return
        self._routes.announce_cold()
        entries, progress.cold = index.entries(progress.cold, COLD_PAGE)
        if entries:
            progress.peer.tell(wire.change(wire.COLD_GAINED, 0, entries))

    def _tell_retained(self, progress: Progress) -> bool:
        """Tell a page of retained messages; true if that was the last."""
        peer = progress.peer
        for _ in range(PAGE):
            if not peer.gate.open or not progress.topics:
                break
            self._tell_topic(peer, progress.topics.pop(), progress.dead)
        if progress.topics:
            return False
        peer.write(wire.DATA_HEAD + wire.frame(wire.ALL_RETAINED))
        return True

    def _tell_topic(self, peer: Peer, topic: bytes, dead: int) -> None:
        """Tell the message or the deletion of *topic*, unless another peer tells it."""
        if topic.startswith(RESERVED):
            return  # every worker has its own
        kept = self._retained.peek(topic)
        if kept is None:
            stamp = self._retained.tombstone(topic)
            if stamp and self._is_ours_to_tell(stamp, dead):
                peer.write(wire.message(Message(topic, b"", 0, True, b"", NEVER), wire.KEEP, "", stamp))
        elif self._is_ours_to_tell(kept.stamp, dead):
            peer.write(wire.message(kept, wire.KEEP, kept.client_id, kept.stamp))

    def _is_ours_to_tell(self, stamp: int, dead: int) -> bool:
        """Whether this worker made the write with *stamp*, or a worker that is gone.

        Of two workers whose stamps look alike, which is most improbable, each tells those of both.
        """
        writer = stamp & WRITER_MASK
        if writer == dead or self._stamps.gave(stamp):
            return True
        return all(peer.writer != writer for peer in self._peers.all)
