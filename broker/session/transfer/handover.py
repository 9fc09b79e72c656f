# A session on its way from one worker's memory to another's, as a row of chunks.
#
# The worker that has it freezes it: from then on it has no connection there, and what it holds is written in chunks,
# each made when it is asked for, so that a queue of any length holds the loop of neither worker. What is routed to it
# meanwhile follows, in its order, until its subscriptions have left there. Nothing is taken from the frozen session:
# if the other worker dies, it is put back together. What is thawed is a session only when all of it has come.
#
#   HEAD          who it is, how long it lasts, packet ids, its will
#   SUBSCRIPTIONS UNACKNOWLEDGED WAITING    pages of each, in this order
#   HELD          that was all it held when it was frozen: its subscriptions may be registered, so that nothing is
#                 missed when they leave their former place
#   WAITING       what came since: it goes before what is delivered at the new place already
#   END           nothing follows
#
# Each page is a msgpack array, and a chunk at most CHUNK bytes of one: only a message that is larger needs several.
# CLOCK_MONOTONIC is the same for all processes of a machine, so times are carried as they are. What is not carried is
# the connection's: window, aliases, maximum packet size, and which of the QoS 2 ids came over it.
#
# Retained messages still owed are carried as a mark on their subscription: their replay begins anew. So some may come
# twice, each as a publish of its own: they must be sent [MQTT-3.3.1-9], nothing says only once, and they are no part of
# a session (4.1). The principal is carried without its judgement: each worker counts the generations of its rules by
# itself, so they are asked again.
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import msgpack

from broker.metrics.counters import Counters
from broker.reasons import DropReason, ProtocolError
from broker.session.limits import SessionLimits
from broker.session.message import Message, SharedMessage
from broker.session.packet_ids import unpack
from broker.session.principal import NOBODY, Principal
from broker.session.queue import QueueBudget
from broker.session.session import RELEASED, Session, Subscription
from broker.session.subscriber import Subscriber
from broker.session.transfer.entries import (
    Fields,
    message_fields,
    plain_fields,
    subscription_fields,
    to_bytes,
    to_float,
    to_int,
    to_list,
    to_message,
    to_str,
    to_subscription,
    to_will,
    will_fields,
)

FORMAT: Final = 1  # another number: other pages
CHUNK: Final = 256 * 1024  # bytes
PAGE: Final = 256  # messages or subscriptions of a page: half a millisecond
PAGE_BYTES: Final = 128 * 1024  # of messages, after which a page is full
LARGEST: Final = 1 << 29  # bytes of a page: MQTT has no message that is larger than half of it

HEAD: Final = 0
SUBSCRIPTIONS: Final = 1
UNACKNOWLEDGED: Final = 2
WAITING: Final = 3
HELD: Final = 4
END: Final = 5
SENT: Final = 6  # what comes after the end: nothing

UNJUDGED: Final = -1  # no generation of any rules


class SessionImportError(Exception):
    """What came is no session; the sentence says why."""


class SessionExport:
    """*session*, which has no connection, while it is handed over; what it lets wait counts in *budget*.

    *expires* and *will_due* are times of the monotonic clock in seconds, 0.0 where there is no such time. *owed*:
    subscriptions whose retained messages have not all been sent.
    """

    def __init__(
        self, session: Session, budget: QueueBudget, expires: float, will_due: float, owed: list[Subscription]
    ) -> None:
        self.session = session
        self.subscriptions: list[Subscription] = list(session.subscriptions.values())
        self.owed = owed
        self.expires = expires
        self.will_due = will_due
        self.leaving = False  # its subscriptions are on their way out: when the last one is, nothing follows
        self.finished = False  # all chunks were made
        self._owed = set(owed)
        self._budget = budget
        self._stage = HEAD
        self._batches: list[deque[Message]] = [session.take_waiting()]  # all that was taken, for who wants it back
        self._waiting: Iterator[Message] = iter(self._batches[0])
        self._subscriptions: Iterator[Subscription] = iter(self.subscriptions)
        self._unacknowledged: Iterator[tuple[int, Message]] = iter(session.unacknowledged().items())
        self._counts: list[int] = [0] * SENT  # by kind of page
        self._page = b""
        self._at = 0

    def next_chunk(self) -> bytes:
        """The next chunk; b"" if there is none now, or never again: see `finished`."""
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
        """It lives somewhere else: nothing of it is left here."""
        for batch in self._batches:
            for message in batch:
                self._budget.give_back(message)
        self._batches = []
        self.session.restore({})  # not lost, but elsewhere
        self.session.end()

    def undo(self) -> None:
        """It stays here: what it held waits again, before what came since."""
        while self._batches:
            self.session.put_before(self._batches.pop())

    def _next_page(self) -> bytes:
        if self._stage == HEAD:
            self._stage = SUBSCRIPTIONS
            return _pack(_head(self))
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
        waiting = self._next_waiting()
        if not waiting and self.session.waiting():
            self._batches.append(self.session.take_waiting())
            self._waiting = iter(self._batches[-1])
            waiting = self._next_waiting()
        if waiting:
            return self._list(WAITING, waiting)
        if self.finished or not self.leaving or self.session.subscriptions:
            return b""
        self.finished = True
        return self._sums(END)

    def _list(self, kind: int, entries: list[Fields]) -> bytes:
        self._counts[kind] += len(entries)
        return _pack((kind, entries))

    def _sums(self, kind: int) -> bytes:
        """How much of each there was: it would be noticed if a chunk had been lost."""
        return _pack((kind, self._counts))

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
            page.append((packet_id, None if message is RELEASED else plain_fields(message)))
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


class SessionImport:
    """Makes a session with *limits* of the chunks of a frozen one, which it takes one after the other."""

    def __init__(self, limits: SessionLimits, counters: Counters) -> None:
        self.session: Session | None = None  # all that it held is here: its subscriptions may be registered
        self.complete = False  # and what came since as well: `finish()` it
        self.subscriptions: list[Subscription] = []
        self.owed: list[Subscription] = []
        self.expires = 0.0
        self.will_due = 0.0
        self._limits = limits
        self._counters = counters
        self._thawing: Session | None = None
        self._unacknowledged: dict[int, Message] = {}
        self._waiting: deque[Message] = deque()
        self._shared: list[SharedMessage] = []
        self._counts: list[int] = [0] * SENT
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=LARGEST, max_array_len=PAGE, max_map_len=0, max_ext_len=0, raw=False
        )

    def take(self, chunk: bytes) -> None:
        """The next chunk. SessionImportError if it is none; then all is to be abandoned."""
        try:
            self._unpacker.feed(chunk)
            for page in self._unpacker:
                self._take_page(to_list(page))
        except (ValueError, TypeError, IndexError, ProtocolError, msgpack.UnpackException) as error:
            raise SessionImportError(f"A session that was handed over cannot be read: {error}.") from error

    def finish(self, group_of: Callable[[bytes, bytes], Subscriber]) -> Session:
        """The session, once it is complete. What waits in it for a shared subscription does so for *group_of* its name.

        Share name and filter, that is.
        """
        session = self.session
        if session is None or not self.complete:
            raise SessionImportError("A session is not here yet, as there are chunks to come.")
        for message in self._shared:
            message.group = group_of(message.group.share, message.group.filter)
        session.put_before(self._waiting)
        self._waiting = deque()
        self._thawing = self.session = None  # it is not ours to abandon any more
        return session

    def abandon(self) -> None:
        """Nothing comes of it: what it took of the budget is given back."""
        for message in self._waiting:
            self._limits.budget.give_back(message)
        self._waiting = deque()
        if self._thawing is not None:
            self._thawing.restore({})  # not lost: where it came from it is still there
            self._thawing.end()

    def _take_page(self, page: list[object]) -> None:
        kind = to_int(page[0])
        if not self._expects(kind):
            raise ValueError(f"a page of kind {kind} in the wrong place")
        session = self._thawing
        if session is None:
            self._thawing = self._begin(page)
        elif kind in (HELD, END):
            if page[1] != self._counts:
                raise ValueError("a part of it is missing")
            session.restore(self._unacknowledged)
            self.session = session
            self.complete = kind == END
        else:
            for entry in to_list(page[1]):
                self._counts[kind] += 1
                self._take_entry(session, kind, to_list(entry))

    def _expects(self, kind: int) -> bool:
        """Whether a page of *kind* may come now."""
        if self._thawing is None:
            return kind == HEAD
        if self.session is None:
            return SUBSCRIPTIONS <= kind <= HELD
        return not self.complete and kind in (WAITING, END)

    def _begin(self, page: list[object]) -> Session:
        if page[1] != FORMAT:
            raise ValueError(f"it has format {page[1]}, and this worker knows format {FORMAT}")
        client_id = to_str(page[2])
        session = Session(client_id, self._limits, self._counters)
        session.principal = Principal(client_id, None if page[3] is None else to_str(page[3]), UNJUDGED)
        session.expiry = to_int(page[4])
        session.last_id = to_int(page[5])
        incoming = to_bytes(page[6])
        session.incoming = unpack(incoming) if incoming else None
        session.will = None if page[7] is None else to_will(to_list(page[7]))
        self.expires = to_float(page[8])
        self.will_due = to_float(page[9])
        return session

    def _take_entry(self, session: Session, kind: int, entry: list[object]) -> None:
        if kind == WAITING:
            self._wait(to_message(entry))
        elif kind == UNACKNOWLEDGED:
            sent = RELEASED if entry[1] is None else to_message(to_list(entry[1]))
            self._unacknowledged[to_int(entry[0])] = sent
        else:
            subscription, owed = to_subscription(session, entry)
            self.subscriptions.append(subscription)
            if owed:
                self.owed.append(subscription)

    def _wait(self, message: Message) -> None:
        """Keep *message*; the oldest go if the budget of the worker is used up. The session's own limits come last."""
        budget = self._limits.budget
        waiting = self._waiting
        waiting.append(message)
        if isinstance(message, SharedMessage):
            self._shared.append(message)
        budget.take(message)
        while waiting and budget.used > budget.limit:
            budget.give_back(waiting.popleft())
            self._counters.dropped(DropReason.QUEUE_FULL, 1)


def _head(frozen: SessionExport) -> Fields:
    session = frozen.session
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
        None if will is None else will_fields(will.fields),
        frozen.expires,
        frozen.will_due,
    )


def _pack(page: Fields) -> bytes:
    packed = msgpack.packb(page)
    assert isinstance(packed, bytes)
    return packed
