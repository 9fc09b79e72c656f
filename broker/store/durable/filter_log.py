# What is appended to the log of a filter that APPLICATION clients share, at the worker where it is published.
#
# A message is appended once, whatever the groups and members of the filter are. It waits for the end of the slice, when
# the messages of each partition become packs; or until its topic is made, and its publisher waits for its answer then
# (`Completion.needs_long()`), so each client has one such message. It is settled when the log has it, or has refused it
# for good. So nothing that was taken is ever dropped: a log that nobody needs any more still gets what is under way.
from collections.abc import Callable
from typing import Final

from broker.delivery.completion import Completion
from broker.routing.shared_log import FilterLog
from broker.session.message import Message
from broker.session.queue import MessageBudget
from broker.store.durable.leases import SHARED_ERA
from broker.store.durable.log_pack import PACK, PACK_BYTES, encode_log_pack
from broker.store.durable.log_topics import partition_of
from broker.store.durable.shared_topics import SharedTopic
from broker.store.logs.pack_appender import PackAppender
from broker.store.logs.port import LogLink
from broker.store.logs.topics import LogError

Refused = Callable[[SharedTopic, int, LogError, float], None]


class SharedFilterLog(FilterLog):
    def __init__(
        self,
        topic: SharedTopic,
        budget: MessageBudget,
        soon: Callable[["SharedFilterLog"], None],
        refused: Refused,
    ) -> None:
        """*soon* has `hand_over()` called at the end of the slice. *refused*: is told what the log will never have."""
        self.topic: Final = topic
        self.groups = 0  # that have it
        self.refused: Final = refused
        self._budget = budget
        self._soon = soon
        self._offered: list[Message] = []

    def append(self, message: Message, now: float) -> None:
        completion = message.hold()
        completion.logged = True
        if not self.topic.partitions:
            completion.needs_long(log=True)
        self._offered.append(message)
        self._budget.take(message)
        if len(self._offered) == 1:
            self._soon(self)

    def waits(self) -> bool:
        """Whether messages wait to be appended."""
        return len(self._offered) > 0

    def hand_over(self, link: LogLink, now: float, wall: float) -> None:
        """Append what was offered. To be called when the topic is ready."""
        offered, self._offered = self._offered, []
        partitions = self.topic.partitions
        packs: dict[int, list[Message]] = {}
        sizes: dict[int, int] = {}
        for message in offered:
            self._budget.give_back(message)
            partition = partition_of(message.topic, partitions)
            messages = packs.get(partition)
            if messages and (len(messages) == PACK or sizes[partition] + message.size > PACK_BYTES):
                self._append(link, partition, messages, now, wall)
                messages = None
            if messages is None:
                messages = packs[partition] = []
                sizes[partition] = 0
            messages.append(message)
            sizes[partition] += message.size
        for partition, messages in packs.items():
            self._append(link, partition, messages, now, wall)

    def _append(self, link: LogLink, partition: int, messages: list[Message], now: float, wall: float) -> None:
        body = encode_log_pack(messages, SHARED_ERA, False, now, wall)
        completions = [each for message in messages if (each := message.as_published().completion) is not None]
        link.append(self.topic.name, partition, body, SharedAppended(self, completions), now)


class SharedAppended(PackAppender):
    """A pack that is under way, and the publishers that wait for it."""

    def __init__(self, log: SharedFilterLog, completions: list[Completion]) -> None:
        super().__init__(completions)
        self._log = log

    def stored(self, offset: int, now: float) -> None:
        self._settle(now)

    def refused(self, error: LogError, now: float) -> None:
        self._log.refused(self._log.topic, len(self._completions), error, now)
        self._settle(now)
