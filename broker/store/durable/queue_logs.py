# What the queue of an APPLICATION session (application_queue.py) needs of the log: the port, and what waits for it.
from typing import TYPE_CHECKING, Protocol

from broker.delivery.completion import Completion
from broker.store.durable.lease_scripts import LeaseKeys
from broker.store.durable.log_feed import LogFeed
from broker.store.logs.pack_appender import PackAppender
from broker.store.logs.port import Appender, LogReading
from broker.store.logs.records import Position
from broker.store.logs.topics import LogError

if TYPE_CHECKING:
    from broker.store.durable.application_queue import ApplicationQueue


class QueueLogs(Protocol):
    """Works with the log for queues."""

    most: int  # messages of a queue that were passed on and are not done
    lease_keys: LeaseKeys

    def wall(self) -> float:
        """Unix time in seconds."""
        ...

    def soon(self, queue: "ApplicationQueue") -> None:
        """Call `hand_over()`, then `go_on()`, of *queue* at the end of the slice; and look whether it `may_part()`."""
        ...

    def begins(self, topic: str) -> bytes:
        """A queue is made that is to have *topic*: the identity of one that it may use; b"": it needs a new one."""
        ...

    def open(self, queue: "ApplicationQueue") -> None:
        """Have a log made for *queue*; `opened()` follows as soon as that can be, or `not_opened()`."""
        ...

    def ended(self, queue: "ApplicationQueue", log: bytes) -> None:
        """The session of *queue*, which has the log with the identity *log*, ends."""
        ...

    def settled(self, queue: "ApplicationQueue") -> None:
        """*queue*, whose session has ended, has nothing on its way to the log any more."""
        ...

    def append(self, queue: "ApplicationQueue", body: bytes, appender: Appender, now: float) -> None: ...

    def read(self, queue: "ApplicationQueue", position: Position, feed: LogFeed) -> LogReading: ...

    def rests(self, queue: "ApplicationQueue") -> None:
        """*queue* is not read any more."""
        ...

    def refused(self, queue: "ApplicationQueue", count: int, error: LogError, now: float) -> None:
        """The log of *queue* will never have *count* messages."""
        ...


class Appended(PackAppender):
    """A pack that is under way, and the publishes that wait for it."""

    def __init__(self, queue: "ApplicationQueue", completions: list[Completion]) -> None:
        super().__init__(completions)
        self._queue = queue

    def stored(self, offset: int, now: float) -> None:
        self._queue.log_reaches(offset + 1)
        self._settle(now)
        self._queue.appended(now)

    def refused(self, error: LogError, now: float) -> None:
        self._queue.refused(len(self._completions), error, now)
        self._settle(now)
        self._queue.appended(now)
