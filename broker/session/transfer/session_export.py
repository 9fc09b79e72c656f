# The export of a session: what leaves the worker that has it, in the form of pages.py.
from collections import deque
from collections.abc import Iterator

import msgpack

from broker.session.message import RELEASED, Message
from broker.session.principal import NOBODY
from broker.session.queue import MessageBudget
from broker.session.session import Session
from broker.session.subscription import Subscription
from broker.session.transfer.entries import Fields, message_fields, subscription_fields, will_fields
from broker.session.transfer.pages import (
    CHUNK,
    END,
    FORMAT,
    HEAD,
    HELD,
    KINDS,
    PAGE,
    PAGE_BYTES,
    SUBSCRIPTIONS,
    UNACKNOWLEDGED,
    WAITING,
)


class SessionExport:
    """*session*, which has no connection, while it moves to another worker.

    Each chunk is made when it is asked for, so that a queue of any length holds the loop of neither worker. The session
    keeps what is exported: if the other worker dies, `undo()` restores it. Messages that wait count in *budget*.
    *expires* and *will_due* are times of the monotonic clock in seconds, 0.0 where there is no such time. *owed* are
    the subscriptions whose retained messages have not all been sent.
    """

    def __init__(
        self, session: Session, budget: MessageBudget, expires: float, will_due: float, owed: list[Subscription]
    ) -> None:
        self.session = session
        self.subscriptions: list[Subscription] = list(session.subscriptions.values())
        self.owed = owed
        self.expires = expires
        self.will_due = will_due
        self.leaving = False  # the subscriptions are being removed here; after the last one, no message follows
        self.finished = False  # all chunks were made
        self.stored = session.storage is not None  # its messages are
        self.giving = False  # it is being given to its new worker, or has been: only that decides whether it stays
        self.state: bytes | None = None  # of a stored one, see `SessionStorage.give()`
        self._owed = set(owed)
        self._budget = budget
        self._stage = HEAD
        # All that was taken, for `undo()`.
        self._batches: list[deque[Message]] = [deque() if self.stored else session.take_waiting()]
        self._waiting: Iterator[Message] = iter(self._batches[0])
        self._subscriptions: Iterator[Subscription] = iter(self.subscriptions)
        unacknowledged = {} if self.stored else session.unacknowledged()
        self._unacknowledged: Iterator[tuple[int, Message]] = iter(unacknowledged.items())
        self._counts: list[int] = [0] * KINDS  # entries sent, by kind of page
        self._page = b""
        self._at = 0

    def next_chunk(self) -> bytes:
        """The next chunk; b"" if there is none yet, or no more: see `finished`."""
        if not self._page:
            self._page = self._next_page()
        page = self._page
        start = self._at
        if start + CHUNK >= len(page):
            self._page = b""
            self._at = 0
            return page[start:] if start else page
        self._at = start + CHUNK
        return page[start : self._at]

    def release(self) -> None:
        """End the session at this worker, as the other worker has all of it."""
        for batch in self._batches:
            for message in batch:
                self._budget.give_back(message)
        self._batches = []
        self.session.restore({})  # its messages are not lost
        self.session.end()

    def undo(self) -> None:
        """Keep the session here: what it held waits again, before what came since."""
        while self._batches:
            self.session.put_before(self._batches.pop())

    def _next_page(self) -> bytes:
        if self._stage == HEAD:
            self._stage = SUBSCRIPTIONS
            return _pack(self._head())
        if self._stage == SUBSCRIPTIONS:
            subscriptions = self._next_subscriptions()
            if subscriptions:
                return self._list(SUBSCRIPTIONS, subscriptions)
            self._stage = UNACKNOWLEDGED
        if self._stage == UNACKNOWLEDGED:
            unacknowledged = self._next_unacknowledged()
            if unacknowledged:
                return self._list(UNACKNOWLEDGED, unacknowledged)
            self._stage = WAITING
        if self._stage == WAITING:
            waiting = self._next_waiting()
            if waiting:
                return self._list(WAITING, waiting)
            self._stage = HELD
            return self._sums(HELD)
        return self._late_page()

    def _late_page(self) -> bytes:
        """The messages that came since the export began, and the end."""
        waiting = self._next_waiting()
        if not waiting and self.session.waiting() and not self.stored:
            self._batches.append(self.session.take_waiting())
            self._waiting = iter(self._batches[-1])
            waiting = self._next_waiting()
        if waiting:
            return self._list(WAITING, waiting)
        left = not self.leaving or len(self.session.subscriptions) > 0 or (self.stored and self.state is None)
        if self.finished or left:
            return b""
        self.finished = True
        return self._sums(END)

    def _list(self, kind: int, entries: list[Fields]) -> bytes:
        self._counts[kind] += len(entries)
        return _pack((kind, entries))

    def _sums(self, kind: int) -> bytes:
        """How many entries of each kind were sent: the other side notices if a chunk was lost."""
        if kind != END:
            return _pack((kind, self._counts, None))
        return _pack((kind, self._counts, self.state, self.session.owed_gap().pack()))

    def _head(self) -> Fields:
        session = self.session
        principal = session.principal
        will = session.will
        return (
            HEAD,
            FORMAT,
            session.client_id,
            None if principal is NOBODY or principal.user is None else principal.user.decode(),
            session.expiry,
            session.last_id,
            b"" if session.incoming is None else session.incoming.pack(),
            None if will is None else will_fields(will),
            self.expires,
            self.will_due,
            self.stored,
            session.storage is not None and session.storage.application,
        )

    def _next_subscriptions(self) -> list[Fields]:
        page: list[Fields] = []
        size = 0
        for subscription in self._subscriptions:
            page.append(subscription_fields(subscription, subscription in self._owed))
            size += len(subscription.filter)
            if len(page) == PAGE or size >= PAGE_BYTES:
                break
        return page

    def _next_unacknowledged(self) -> list[Fields]:
        page: list[Fields] = []
        size = 0
        for packet_id, message in self._unacknowledged:
            page.append((packet_id, None if message is RELEASED else message_fields(message)))
            size += message.size
            if len(page) == PAGE or size >= PAGE_BYTES:
                break
        return page

    def _next_waiting(self) -> list[Fields]:
        page: list[Fields] = []
        size = 0
        for message in self._waiting:
            page.append(message_fields(message))
            size += message.size
            if len(page) == PAGE or size >= PAGE_BYTES:
                break
        return page


def _pack(page: Fields) -> bytes:
    packed = msgpack.packb(page)
    assert isinstance(packed, bytes)
    return packed
