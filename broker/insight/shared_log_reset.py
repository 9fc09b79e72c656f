# Another place in the log that a group of APPLICATION clients shares: while no member has leased any of it, what is
# saved of all partitions is replaced at once. What was passed on to members already stays with their sessions.
from functools import partial
from typing import Final

from broker.insight.pending_answers import PendingAnswer
from broker.reasons import StoreFailure
from broker.store.durable.leases import first_saved
from broker.store.durable.log_browser import LogSearch
from broker.store.durable.shared_logs import DurableSharedLogs
from broker.store.durable.shared_readers import ReadGroup
from broker.store.logs.topics import LogError, TopicDescription

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
MOVED: Final = 1
NO_GROUP: Final = -1
LEASED: Final = "A member of the group is connected, or has just been: stop all of them, and try again."


class SharedLogReset:
    """Until the log has been asked where to go on, and Redis has stored it."""

    def __init__(self, logs: DurableSharedLogs, group: ReadGroup, answer: PendingAnswer, to: str, time: float) -> None:
        """*to*: EARLIEST, LATEST, or "": at *time* (Unix, seconds)."""
        self._logs = logs
        self._group = group
        self._answer = answer
        self._to = to
        self._time = time
        self._log = b""  # the identity of the topic
        self._first: list[int] = []
        self._next: list[int] = []
        self._offsets: list[int] = []  # where to go on, of the partitions that are known by now

    def begin(self) -> None:
        self._logs.link.describe(self._group.topic.name, self._described)

    def _described(self, found: TopicDescription | None, error: LogError | None) -> None:
        if self._answer.done:
            return
        if found is None:
            self._answer.refuse(f"The topic {self._group.topic.name} cannot be read: {error or 'it does not exist'}.")
            return
        self._log, self._first, self._next = found.log, list(found.first), list(found.next)
        if self._to == EARLIEST:
            self._store(self._first)
        elif self._to == LATEST:
            self._store(self._next)
        else:
            self._search()

    def _search(self) -> None:
        """Find the place in the next partition."""
        number = len(self._offsets)
        if number == len(self._next):
            self._store(self._offsets)
            return
        link, topic = self._logs.link, self._group.topic.name
        first, following = self._first[number], self._next[number]
        search = LogSearch(link, topic, first, following, self._time, self._searched, number)
        self._answer.when_late = search.end
        search.go_on()

    def _searched(self, offset: int) -> None:
        if not self._answer.done:
            self._offsets.append(offset)
            self._search()

    def _store(self, offsets: list[int]) -> None:
        saved = [first_saved(offset, self._log) for offset in offsets]
        self._logs.move(self._group, saved, partial(self._stored, offsets))

    def _stored(self, offsets: list[int], reply: object, failure: StoreFailure | None) -> None:
        if failure is not None:
            self._answer.refuse(f"Redis did not store it: {failure.words}.")
        elif reply == MOVED:
            left = sum([following - offset for following, offset in zip(self._next, offsets, strict=True)])
            self._answer.reply({"partitions": len(offsets), "lag": left})
        elif reply == NO_GROUP:
            self._answer.refuse("The group has ended.")
        else:
            self._answer.refuse(LEASED)
