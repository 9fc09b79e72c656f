# Removes messages that wait from a durable queue for an operator, one page at a time.
#
# 1. What is unread stays as it is (`purging`): no page is read for the client any more, and a sweep gives way.
# 2. When all that is to be written of the queue is written, a page of packs is read by position.
# 3. The unwanted messages are dropped as those that have ended are: from memory now, as if the queue were full, and
#    from packs that are unread with the next transaction of the queue, before which it reads none (stored_list.py).
#
# A message in memory that shares a pack with one that stays is only marked as done, as an acknowledged one is: it may
# come back if the worker is killed before its client has acknowledged the rest of the pack.
#
# What is in flight stays: up to the last position that was sent over this worker, and what waits for PUBCOMP. After a
# crash nobody knows what was sent, so all that is not known to be received may be removed. Rejected: to note what is
# removed in memory, and drop it when it is read. A worker that ends would bring the messages back.
#
# It is no kind of sweep, which looks through the whole queue: nobody waits for a sweep, but an operator does for this.
from collections.abc import Callable
from typing import Final

from broker.reasons import DropReason
from broker.session.message import Message
from broker.session.queue_pages import PurgedPage
from broker.store.durable.pack import Pack, StoredMessage
from broker.store.durable.queue import DurableQueue
from broker.store.durable.queue_browser import DAMAGED, MOVES, QueueBrowser, refused
from broker.store.durable.store import DurableStore

AWAY: Final = "Redis does not take what is to be written; nothing was removed."
BUSY: Final = "Messages of this queue are being removed already."

Then = Callable[[PurgedPage | None, str], None]  # what was removed, or None and why nothing was


class QueuePurge:
    """Removes the *unwanted* messages of a page of *queue*; *after*, *last* as for `QueuePage`."""

    def __init__(
        self,
        store: DurableStore,
        browser: QueueBrowser,
        queue: DurableQueue,
        unwanted: Callable[[Message], bool],
        after: int,
        last: int,
        then: Then,
    ) -> None:
        self._store = store
        self._browser = browser
        self._queue = queue
        self._unwanted = unwanted
        self._after = after
        self._last = last or queue.newest()
        self._then = then
        self._first_unread = 0  # index in the list
        self._removed = PurgedPage(0, 0, 0, self._last)

    def begin(self, now: float) -> None:
        """*now*: of the worker. `then` may be called before this returns."""
        refusal = refused(self._queue) or (BUSY if self._queue.purging else "")
        if not refusal and not self._store.takes_sessions(now):
            refusal = AWAY
        if refusal:
            self._then(None, refusal)
            return
        self._queue.purging = True
        self._store.commit.when_written(self._written)

    def _written(self) -> None:
        queue = self._queue
        refusal = refused(queue)
        if refusal:
            self._refuse(refusal)
        elif not queue.at_rest():  # of a page or a sweep that had begun: none begins now
            self._store.commit.confirm(self._written)
        else:
            self._after = max(self._after, queue.sent_to())
            self._first_unread = queue.stored.first_unread()
            self._browser.packs(queue, self._after + 1, self._read)

    def _read(self, first: int, packs: list[Pack] | None, why: str) -> None:
        queue = self._queue
        refusal = why or refused(queue)
        if packs is None or refusal:
            self._refuse(refusal)
            return
        now, removed = self._browser.clock(), self._removed
        index = max(0, first - self._first_unread)
        unread = packs[max(0, self._first_unread - first) :]
        removed.messages, removed.size = queue.drop(unread, index, self._keeps, now, self._store.wall())
        reached = packs[-1].messages[-1].position if packs else 0
        if self._after < reached < self._last:
            removed.following = reached
        queue.report(DropReason.PURGED, removed.messages)
        self._store.commit.when_written(self._done)

    def _done(self) -> None:
        queue = self._queue
        refusal = MOVES if queue.ended else f"{DAMAGED}: {queue.damaged}." if queue.damaged else ""
        if refusal:
            self._refuse(refusal)
            return
        queue.recount()
        self._end()
        self._then(self._removed, "")

    def _keeps(self, stored: StoredMessage) -> bool:
        return not self._after < stored.position <= self._last or not self._unwanted(stored.message)

    def _refuse(self, refusal: str) -> None:
        self._end()
        self._then(None, refusal)

    def _end(self) -> None:
        self._queue.end_purge(self._browser.clock())
