# The requests about retained messages: a list, one message, and to clear some. Every worker has all of them.
#
# A list or a clearing is a scan (routing/retained.py) that goes on with each page, as the replay to a subscriber does.
# A page is bounded in messages and in levels of topics that are visited. The scan waits here for the next page. At most
# SCANS wait; the one that has waited longest gives way, and who asks for its next page is told to begin again.
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from broker.insight.pending_answers import Arguments, PendingAnswers, RequestRefused
from broker.insight.queue_requests import LARGEST, checked
from broker.mqtt.topics import split_share
from broker.protocol.publishing import Publishing
from broker.routing.hybrid_clock import WRITER_BITS
from broker.routing.retained import Retained, RetainedMessage, RetainedScan
from broker.session.message import NEVER
from broker.store.durable.store import DurableStore

LISTED: Final = 500  # messages of a page of a list: about a millisecond
CLEARED: Final = 50  # of a clearing: each is a publish
LEVELS: Final = 2000  # of topics that a page visits
SCANS: Final = 8
OWN: Final = b"$SYS"  # the broker retains those itself, and would again
FULL: Final = "Redis does not store changes, and too many wait for it; try again later."
LATE: Final = "Redis did not confirm in time that messages were cleared; look, and try again."


class RetainedRequests:
    def __init__(
        self,
        retained: Retained,
        publishing: Publishing,
        durable: DurableStore | None,
        pending: PendingAnswers,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """*durable*: where messages are stored, if they are. *wall*: Unix time in seconds."""
        self._retained = retained
        self._publishing = publishing
        self._durable = durable
        self._pending = pending
        self._clock = clock
        self._wall = wall
        self._scans: dict[int, RetainedScan] = {}  # by number, the oldest first
        self._begun = 0

    def page(self, arguments: Arguments) -> object:
        """Messages whose topics match *filter*, behind those of *scan*; 0: the first ones.

        `scan`: that of the next page, 0 if there is none.
        """
        number, scan = self._scan(arguments)
        topics = [message.topic for message in scan.next_page(LISTED, LEVELS, self._clock())]
        found = [message for topic in topics if (message := self._retained.peek(topic)) is not None]
        return {"messages": [self._described(message) for message in found], "scan": self._next(number, scan)}

    def clear(self, arguments: Arguments) -> object:
        """Clear messages whose topics match *filter*, as `page()` lists them; how many, and the `scan`.

        The answer comes when that is stored, if retained messages are.
        """
        if cast(str, arguments["filter"]).encode().startswith(OWN):
            raise RequestRefused("The broker itself retains what is below $SYS, and would again.")
        number, scan = self._scan(arguments)
        answer = None if self._durable is None else self._pending.begin(LATE)
        now = self._clock()
        topics = [message.topic for message in scan.next_page(CLEARED, LEVELS, now)]
        for cleared, topic in enumerate(topics):
            if self._publishing.clear_retained(topic, now) is not None:
                raise RequestRefused(f"{FULL} Of the last {len(topics)} messages, {cleared} were cleared.")
        outcome = {"messages": len(topics), "scan": self._next(number, scan)}
        if self._durable is None or answer is None:
            return outcome
        self._durable.commit.when_written(partial(answer.reply, outcome))
        return answer

    def show(self, arguments: Arguments) -> object:
        """The message of *topic*, with its payload; None if there is none."""
        topic = cast(str, arguments["topic"]).encode()
        message = self._retained.peek(topic)
        if message is None or message.expired(self._clock()):
            return None
        if len(message.payload) > LARGEST:
            raise RequestRefused(f"The payload has {len(message.payload)} bytes: more than {LARGEST} cannot be shown.")
        return {**self._described(message), "payload": message.payload, "properties": message.properties}

    def _scan(self, arguments: Arguments) -> tuple[int, RetainedScan]:
        number = cast(int, arguments["scan"])
        if number:
            known = self._scans.pop(number, None)
            if known is None:
                raise RequestRefused(f"More than {SCANS} lists of retained messages are made at once; try again later.")
            return number, known
        filter = cast(str, arguments["filter"]).encode()
        checked(filter)
        if split_share(filter) is not None:
            raise RequestRefused("A filter of retained messages is not shared.")
        self._begun += 1
        return self._begun, self._retained.match(filter)

    def _next(self, number: int, scan: RetainedScan) -> int:
        """Keep *scan* for its next page; its number, or 0 if it is done."""
        if scan.done:
            return 0
        if len(self._scans) >= SCANS:
            del self._scans[next(iter(self._scans))]
        self._scans[number] = scan
        return number

    def _described(self, message: RetainedMessage) -> dict[str, Any]:
        now = self._clock()
        since = (message.stamp >> WRITER_BITS) / 1e6
        return {
            "topic": message.topic.decode(),
            "qos": message.qos,
            "size": len(message.payload),
            "client": message.client_id,
            "age": max(0.0, round(self._wall() - since, 1)) if message.stamp else None,
            "expires_in": None if message.expires == NEVER else max(0.0, round(message.expires - now, 1)),
        }
