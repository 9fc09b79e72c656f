# The import of a session: what comes from another worker, in the form of pages.py, becomes a session here.
from collections import deque
from collections.abc import Callable

import msgpack

from broker.metrics.counters import Counters
from broker.reasons import DropReason, ProtocolError
from broker.session.gap import OwedGap
from broker.session.gap import unpack as unpack_gap
from broker.session.limits import SessionLimits
from broker.session.message import RELEASED, Message
from broker.session.packet_ids import unpack
from broker.session.principal import UNJUDGED, Principal
from broker.session.queue import MessageBudget, MessageQueue
from broker.session.session import Session
from broker.session.storage import SessionStorage
from broker.session.subscription import Subscription
from broker.session.transfer.entries import (
    shifted,
    to_bytes,
    to_float,
    to_int,
    to_list,
    to_message,
    to_str,
    to_subscription,
    to_will,
)
from broker.session.transfer.pages import (
    END,
    FORMAT,
    HEAD,
    HELD,
    KINDS,
    LARGEST,
    PAGE,
    SUBSCRIPTIONS,
    UNACKNOWLEDGED,
    WAITING,
)


class SessionImportError(Exception):
    """The chunks are not those of a session; the text says why."""


class SessionImport:
    """Makes a session from the chunks of an export, which it takes one after the other."""

    def __init__(
        self,
        limits_of: Callable[[str, str | None], SessionLimits],
        budget: MessageBudget,
        counters: Counters,
        expect: Callable[[str, bool], tuple[SessionStorage, MessageQueue] | None],
        shift: float = 0.0,
    ) -> None:
        """*limits_of* a client id and a user: what the session may hold. What waits counts in *budget*.

        *expect* makes what stores the durable session of a client id, whose client is of the kind APPLICATION or not;
        None: this worker has none. *shift*: seconds to add to times of the other worker's clock for those of ours.
        """
        self.client_id = ""  # once the first page is here
        self.session: Session | None = None  # all that it held has come: its subscriptions may be registered
        self.complete = False  # the messages that came since have come, too: `finish()` may be called
        self.subscriptions: list[Subscription] = []
        self.owed: list[Subscription] = []
        self.state = b""  # of a durable session that is complete, see `SessionStorage.give()`
        self.owed_gap: OwedGap | None = None  # what the client lost at the other worker; None: that did not say it
        self.expires = 0.0
        self.will_due = 0.0
        self._limits_of = limits_of
        self._budget = budget
        self._counters = counters
        self._expect = expect
        self._shift = shift
        self._unfinished: Session | None = None
        self._unacknowledged: dict[int, Message] = {}
        self._waiting: deque[Message] = deque()
        self._dropped = 0  # messages for which the budget had no room
        self._counts: list[int] = [0] * KINDS
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=LARGEST, max_array_len=PAGE, max_map_len=0, max_ext_len=0, raw=False
        )

    def take(self, chunk: bytes) -> None:
        """Take the next chunk. SessionImportError if it cannot be read: the import has to be abandoned."""
        try:
            self._unpacker.feed(chunk)
            for page in self._unpacker:
                self._take_page(to_list(page))
        except (ValueError, TypeError, IndexError, ProtocolError, msgpack.UnpackException) as error:
            raise SessionImportError(f"A session that was handed over cannot be read: {error}.") from error

    def cut_off(self) -> None:
        """The other worker has died: what it has stored of a durable session is all that comes."""
        self.complete = True

    def finish(self) -> Session:
        """The session, once it is complete."""
        session = self.session
        if session is None or not self.complete:
            raise SessionImportError("A session is not here yet, as there are chunks to come.")
        session.put_before(self._waiting)
        if self._dropped:
            session.missed(DropReason.QUEUE_FULL, self._dropped)
        self._waiting = deque()
        self._unfinished = self.session = None  # `abandon()` concerns it no longer
        return session

    def abandon(self) -> None:
        """Drop what has come, and give its places in the budget back."""
        for message in self._waiting:
            self._budget.give_back(message)
        self._waiting = deque()
        if self._unfinished is not None:
            self._unfinished.restore({})  # its messages are not lost: the other worker still has them
            self._unfinished.end()

    def _take_page(self, page: list[object]) -> None:
        kind = to_int(page[0])
        if not self._expects(kind):
            raise ValueError(f"a page of kind {kind} in the wrong place")
        session = self._unfinished
        if session is None:
            self._unfinished = self._begin(page)
        elif kind in (HELD, END):
            if page[1] != self._counts:
                raise ValueError("a part of it is missing")
            session.restore(self._unacknowledged)
            self.session = session
            self.complete = kind == END
            if self.complete and session.storage is not None:
                self.state = to_bytes(page[2])
            if self.complete and len(page) > 3:  # a former version did not say it
                self.owed_gap = unpack_gap(to_bytes(page[3]))
        else:
            for entry in to_list(page[1]):
                self._counts[kind] += 1
                self._take_entry(session, kind, to_list(entry))

    def _expects(self, kind: int) -> bool:
        """Whether a page of *kind* may come now."""
        if self._unfinished is None:
            return kind == HEAD
        if self.session is None:
            return SUBSCRIPTIONS <= kind <= HELD
        return not self.complete and kind in (WAITING, END)

    def _begin(self, page: list[object]) -> Session:
        if page[1] != FORMAT:
            raise ValueError(f"it has format {page[1]}, and this worker knows format {FORMAT}")
        self.client_id = client_id = to_str(page[2])
        user = None if page[3] is None else to_str(page[3])
        stored = len(page) > 10 and page[10] is True  # a former version did not say it, nor the next one
        session = self._session(client_id, user, stored, len(page) > 11 and page[11] is True)
        session.principal = Principal(client_id, user, UNJUDGED)
        session.expiry = to_int(page[4])
        session.last_id = to_int(page[5])
        incoming = to_bytes(page[6])
        session.incoming = unpack(incoming) if incoming else None
        session.will = None if page[7] is None else to_will(to_list(page[7]))
        self.expires = shifted(to_float(page[8]), self._shift)
        self.will_due = shifted(to_float(page[9]), self._shift)
        return session

    def _session(self, client_id: str, user: str | None, stored: bool, application: bool) -> Session:
        """A new one, for what it held at the other worker; *stored*: for what that has stored.

        *application*: the client is of that kind.
        """
        limits = self._limits_of(client_id, user)
        if not stored:
            return Session(client_id, limits, self._counters)
        expected = self._expect(client_id, application)
        if expected is None:
            raise ValueError("it is durable, and this worker keeps sessions in memory")
        session = Session(client_id, limits, self._counters, expected[1])
        session.storage = expected[0]
        session.limit(limits)
        return session

    def _take_entry(self, session: Session, kind: int, entry: list[object]) -> None:
        if kind == WAITING:
            self._wait(to_message(entry, self._shift))
        elif kind == UNACKNOWLEDGED:
            sent = RELEASED if entry[1] is None else to_message(to_list(entry[1]), self._shift)
            self._unacknowledged[to_int(entry[0])] = sent
        else:
            subscription, owed = to_subscription(session, entry)
            self.subscriptions.append(subscription)
            if owed:
                self.owed.append(subscription)

    def _wait(self, message: Message) -> None:
        """Keep *message*; drop the oldest if the budget is used up. `finish()` applies the limits of the session."""
        budget = self._budget
        waiting = self._waiting
        waiting.append(message)
        budget.take(message)
        while waiting and budget.used > budget.limit:
            budget.give_back(waiting.popleft())
            self._counters.dropped(DropReason.QUEUE_FULL, 1)
            self._dropped += 1
