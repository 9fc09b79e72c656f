# A durable queue that knows since when the oldest message that was sent is not done: see protocol/pack_timeouts.py.
from typing import Final

from broker.session.expiry import ExpirySchedule
from broker.session.message import Message
from broker.session.queue import MessageBudget
from broker.store.durable.group_commit import GroupCommit
from broker.store.durable.pack import position_of
from broker.store.durable.queue import DurableQueue, QueueReader
from broker.store.redis.keys import SessionKeys

NOTHING_SENT: Final = -1.0
UNKNOWN: Final = -2.0  # a time: that of the next look
GRAIN: Final = 0.1  # seconds: messages that are sent within this time count as sent together


class TimedQueue(DurableQueue):
    def __init__(
        self,
        keys: SessionKeys,
        client: bytes,
        budget: MessageBudget,
        commit: GroupCommit,
        reader: QueueReader,
        expiry: ExpirySchedule,
    ) -> None:
        super().__init__(keys, client, budget, commit, reader, expiry)
        self.retries = 0  # time-outs in a row of the same message, for whoever counts them
        self._timed = True
        self._timed_out = 0  # the position of that message
        self._sent: list[tuple[int, float]] = []  # over this connection: the first position that was sent at a time

    def wake(self) -> None:
        super().wake()
        self._sent = [(0, UNKNOWN)]

    def pop(self) -> Message | None:
        message = super().pop()
        if message is None or not self._timed:
            return message
        if not self._sent or self._commit.now - self._sent[-1][1] >= GRAIN:
            self._sent.append((position_of(self.packet_id, self._sent_to), self._commit.now))
        return message

    def is_overdue(self, now: float, timeout: float) -> bool:
        """Whether the oldest message was not done in time, over this connection or the one before."""
        since = self.sent_since(now)
        if since != NOTHING_SENT and now - since >= timeout:
            return True
        return self.retries > 0 and self.first_unfinished() == self._timed_out

    def sent_since(self, now: float) -> float:
        """When the oldest message was sent that is not done, over this connection; NOTHING_SENT: there is none."""
        first, sent = self.first_unfinished(), self._sent
        if sent and sent[0][1] == UNKNOWN:
            sent[0] = (0, now)
        if first > self._sent_to or not sent:
            return NOTHING_SENT
        while len(sent) > 1 and sent[1][0] <= first:
            sent.pop(0)
        return sent[0][1]

    def count_time_out(self, now: float) -> int:
        """The oldest message is not done in time, whose time begins anew; how often in a row that is so."""
        first = self.first_unfinished()
        self.retries = self.retries + 1 if first == self._timed_out else 1
        self._timed_out = first
        self._sent = [(0, now)]
        return self.retries

    def end_timing(self) -> None:
        """Nobody asks from now on."""
        self._timed = False
        self._sent = []

    def last_position(self) -> int:
        """The position of the newest message."""
        return self._last

    def first_unfinished(self) -> int:
        """The position of the first message that is not done; that of the next one, if all are."""
        first = self._ready_to + 1 if self.stored.unread else self._last + 1
        first = min(first, next(iter(self.stored.pack_of), first), next(iter(self._writing), first))
        first = min(first, next(iter(self._new), first))
        for position in self._marks.stored:
            first = min(first, position)
        return first
