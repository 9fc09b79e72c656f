# Reads the messages that wait in a durable queue for an operator, page by page. It takes nothing out of the queue.
#
# What is in the memory of the worker is shown from there, the rest is read from Redis by position (pages.lua): packs of
# the list that nobody keeps, so it costs the memory of a page, whatever the queue has. The order is that of the queue:
#
#   ready    in memory, if the client is connected
#   unread   in Redis only
#   new      not stored yet, in memory
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any, Final, cast

from broker.reasons import StoreFailure
from broker.session.queue_pages import BYTES, MESSAGES, UNKNOWN, QueuePage, WaitingMessage
from broker.store.durable.pack import DamagedPack, Pack, StoredMessage, decode_pack
from broker.store.durable.queue import DurableQueue
from broker.store.durable.shared_bodies import ReadBodies
from broker.store.durable.store import DurableStore
from broker.store.redis.connection import packed
from broker.store.redis.pipeline import CallbackCommand

PATIENCE: Final = 2.0  # seconds: less than the whole answer has (insight/pending_answers.py)
PACKS: Final = 16  # of a page: 2 000 messages
SCRIPT: Final = files("broker.store.durable").joinpath("pages.lua").read_bytes()
MOVES: Final = "The session is moving to another worker; try again."
DAMAGED: Final = "What is stored of the session cannot be read"

Then = Callable[[QueuePage | None, str], None]  # the page, or None and why there is none
Packs = Callable[[int, list[Pack] | None, str], None]  # index of the first, packs; or None and why there are none


class QueueBrowser:
    def __init__(self, store: DurableStore, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._store = store

    def read(self, queue: DurableQueue, after: int, last: int, then: Then) -> None:
        """Read the page of *queue* behind the position *after*, up to *last* (0: up to the newest), and call *then*."""
        refusal = refused(queue)
        if refusal:
            then(None, refusal)
            return
        last = last or queue.newest()
        after = max(after, 0)
        ahead, _ = queue.waiting_in_memory()
        ready = [each for each in ahead if after < each.position <= last]
        if ready:
            then(_page(queue, ready, last), "")
            return
        after = max(after, queue.ready_to())  # those that are not ready any more have been sent
        new = [each for each in queue.unstored() if each.position > after]
        stored_to = new[0].position - 1 if new else queue.newest()
        if queue.stored.unread and after < min(stored_to, last):
            self.packs(queue, after + 1, partial(self._found, queue, after, stored_to, last, then))
        else:
            then(_page(queue, [each for each in new if each.position <= last], last), "")

    def packs(self, queue: DurableQueue, position: int, then: Packs) -> None:
        """Read the packs of *queue* from *position* on, as many as a page has; the first may begin before it."""
        command = packed("EVAL", SCRIPT, 1, queue.key(), position, PACKS, BYTES)
        self._store.submit(CallbackCommand(command, PATIENCE, partial(self._replied, then)), self.clock())

    def _replied(self, then: Packs, reply: object, failure: StoreFailure | None) -> None:
        if failure is not None:
            then(0, None, f"Redis does not give the messages: {failure.words}.")
            return
        first, found = cast(list[Any], reply)
        now, wall = self.clock(), self._store.wall()
        try:
            packs = [decode_pack(data, now, wall) for data in found]
        except DamagedPack as error:
            then(0, None, f"{DAMAGED}: {error}.")
            return
        if any(pack.writer for pack in packs):
            read = ReadBodies(self._store.commit.bodies, packs, PATIENCE, partial(self._whole, then, first, packs))
            self._store.submit(read, now)
        else:
            then(first, packs, "")

    def _whole(
        self, then: Packs, first: int, packs: list[Pack], missing: int, why: str, failure: StoreFailure | None
    ) -> None:
        """The bodies of *packs* were read; what is *missing* was delivered or has ended meanwhile."""
        if failure is not None:
            then(0, None, f"Redis does not give the messages: {failure.words}.")
        elif why:
            then(0, None, f"{DAMAGED}: {why}.")
        else:
            then(first, packs, "")

    def _found(
        self,
        queue: DurableQueue,
        after: int,
        stored_to: int,
        last: int,
        then: Then,
        first: int,
        packs: list[Pack] | None,
        why: str,
    ) -> None:
        if packs is None or queue.ended:
            then(None, why or MOVES)
            return
        found: list[WaitingMessage] = []
        reached, size = after, 0
        for pack in packs:
            for stored in pack.messages:
                position = stored.position
                if position <= after or position > last or size >= BYTES:
                    continue
                reached = position
                if stored.has_body() and queue.waits(stored):
                    size += stored.message.size
                    found.append(WaitingMessage(position, stored.message, pack.stored_at, queue.was_sent(position)))
        if reached == after:  # those were delivered meanwhile
            reached = stored_to
        then(QueuePage(found, reached if reached < last else 0, last), "")


def refused(queue: DurableQueue) -> str:
    """Why *queue* cannot be read now, as a sentence; "" if it can."""
    if queue.damaged:
        return f"{DAMAGED}: {queue.damaged}."
    return MOVES if queue.moves() else ""


def _page(queue: DurableQueue, messages: list[StoredMessage], last: int) -> QueuePage:
    """The first *messages*, all of which are in memory, as far as a page goes."""
    found: list[WaitingMessage] = []
    size = 0
    for stored in messages[:MESSAGES]:
        if size >= BYTES:
            break
        size += stored.message.size
        found.append(WaitingMessage(stored.position, stored.message, UNKNOWN, queue.was_sent(stored.position)))
    reached = found[-1].position if found else last
    return QueuePage(found, reached if reached < last else 0, last)
