# The requests about the messages that wait for one session: a page of them, and to remove some.
#
# Each answer is one page: bounded in messages and bytes, whether it comes from the memory of the worker or from Redis.
# The supervisor asks for the next one, so however long a queue is, a worker never works on more than a page of it, and
# keeps nothing between two pages.
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from broker.insight.pending_answers import Arguments, PendingAnswer, PendingAnswers, RequestRefused
from broker.mqtt.topics import check_filter
from broker.reasons import DropReason, ProtocolError
from broker.routing.filters import matches
from broker.session.message import NEVER, Message
from broker.session.queue import MemoryQueue
from broker.session.queue_pages import UNKNOWN, PurgedPage, QueuePage, WaitingMessage
from broker.store.durable.queue import DurableQueue
from broker.store.durable.queue_browser import QueueBrowser
from broker.store.durable.queue_purge import QueuePurge
from broker.store.durable.store import DurableStore
from broker.store.sessions import SessionStore

LARGEST: Final = 8 * 1024 * 1024  # bytes of a payload in an answer; half of what a frame of the link may have
LATE: Final = "Redis did not give the messages in time; try again."
PURGE_LATE: Final = "Redis did not confirm in time that messages were removed; look, and try again."


class QueueRequests:
    def __init__(
        self,
        store: SessionStore,
        durable: DurableStore | None,
        pending: PendingAnswers,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """*durable*: where sessions are stored, if they are. *wall*: Unix time in seconds."""
        self._store = store
        self._durable = durable
        self._browser = None if durable is None else QueueBrowser(durable, clock)
        self._pending = pending
        self._clock = clock
        self._wall = wall

    def page(self, arguments: Arguments) -> object:
        """The messages that wait for *client* behind the position *after*, up to *last*; None if it has no session.

        *payloads*: with them, unless one is larger than LARGEST. *last*, *next*: see `QueuePage`.
        """
        session = self._store.find(cast(str, arguments["client"]))
        if session is None:
            return None
        after, last = cast(int, arguments["after"]), cast(int, arguments["last"])
        payloads = cast(bool, arguments["payloads"])
        queue = session.queue()
        if isinstance(queue, DurableQueue) and self._browser is not None:
            answer = self._pending.begin(LATE)
            self._browser.read(queue, after, last, partial(self._came, answer, payloads))
            return answer
        page = queue.page(after, last) if isinstance(queue, MemoryQueue) else QueuePage([], 0, last)
        return self._described(page, payloads)

    def _came(self, answer: PendingAnswer, payloads: bool, page: QueuePage | None, why: str) -> None:
        if page is None:
            answer.refuse(why)
        else:
            answer.reply(self._described(page, payloads))

    def purge(self, arguments: Arguments) -> object:
        """Remove the messages of a page whose topics match *filter* ("": all); None if *client* has no session.

        What is in flight stays. *after*, *last*: as for `page()`.
        """
        filter = cast(str, arguments["filter"]).encode()
        if filter:
            checked(filter)
        session = self._store.find(cast(str, arguments["client"]))
        if session is None:
            return None
        after, last = cast(int, arguments["after"]), cast(int, arguments["last"])
        unwanted = partial(_matches, filter)
        queue = session.queue()
        if isinstance(queue, DurableQueue) and self._durable is not None and self._browser is not None:
            answer = self._pending.begin(PURGE_LATE)
            then = partial(_purged, answer)
            QueuePurge(self._durable, self._browser, queue, unwanted, after, last, then).begin(self._clock())
            return answer
        if not isinstance(queue, MemoryQueue):
            return {"messages": 0, "bytes": 0, "next": 0, "last": last}
        page = queue.purge(unwanted, after, last)
        session.queue_dropped(DropReason.PURGED, page.messages)
        return _purge_facts(page)

    def _described(self, page: QueuePage, payloads: bool) -> dict[str, Any]:
        now, wall = self._clock(), self._wall()
        messages = [_message_facts(each, payloads, now, wall) for each in page.messages]
        return {"messages": messages, "next": page.following, "last": page.last}


def checked(filter: bytes) -> None:
    """Raise RequestRefused unless *filter* is a topic filter."""
    try:
        check_filter(filter)
    except ProtocolError as error:
        raise RequestRefused(f"{filter.decode()!r} is not a topic filter: {error.detail}.") from None


def _matches(filter: bytes, message: Message) -> bool:
    return not filter or matches(filter, message.topic)


def _purged(answer: PendingAnswer, page: PurgedPage | None, why: str) -> None:
    if page is None:
        answer.refuse(why)
    else:
        answer.reply(_purge_facts(page))


def _purge_facts(page: PurgedPage) -> dict[str, Any]:
    return {"messages": page.messages, "bytes": page.size, "next": page.following, "last": page.last}


def _message_facts(waiting: WaitingMessage, payloads: bool, now: float, wall: float) -> dict[str, Any]:
    """`expires_in`: by its own expiry, if it has one. `ends_in`: also by limits.queue_ttl, which drops it then."""
    message = waiting.message
    facts: dict[str, Any] = {
        "topic": message.topic.decode(),
        "qos": message.qos,
        "retain": message.retain,
        "size": message.size,
        "expires_in": _seconds_to(message.expires, now),
        "ends_in": _seconds_to(message.ends, now),
        "age": None if waiting.stored_at == UNKNOWN else max(0.0, round(wall - waiting.stored_at, 1)),
        "sent": waiting.sent,
    }
    if payloads:
        fits = len(message.payload) <= LARGEST
        facts["payload"] = message.payload if fits else None
        facts["properties"] = message.properties
    return facts


def _seconds_to(time: float, now: float) -> float | None:
    return None if time == NEVER else max(0.0, round(time - now, 1))
