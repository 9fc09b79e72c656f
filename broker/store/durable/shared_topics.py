# The topics of filters that APPLICATION clients share: each is made when a worker first needs it.
#
# A topic that exists is used with the partitions that it has: `application.shared_partitions` is for new ones. Of two
# workers that make one at the same time, both find it made.
#
# A topic that nobody subscribes to any more is deleted some time later (unused_topics.py).
# `application.shared_filters` is what one client may cause at a time.
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final

from broker.log import Log
from broker.store.durable.log_topics import shared_topic_of
from broker.store.logs.port import LogLink
from broker.store.logs.topics import LogError, TopicDescription, TopicProperties

RETRY: Final = 5.0  # seconds until a topic is made, or looked for, again


class SharedTopic:
    def __init__(self, filter: bytes) -> None:
        self.filter: Final = filter
        self.name: Final = shared_topic_of(filter)
        self.partitions = 0  # 0: it is not ready to be appended to, as far as this worker knows
        self.trouble = ""  # why it cannot be made or found; "": nothing is known to be wrong
        self.waiting: list[Callable[[], None]] = []  # until it is ready
        self.looking: list[Callable[[TopicDescription], None]] = []  # who asks where it begins and ends
        self.asked = False
        self.unused = False  # nobody here needs it, but for what is under way


class SharedTopics:
    def __init__(self, link: Callable[[], LogLink], properties: Callable[[], TopicProperties], log: Log) -> None:
        """*properties*: of a new topic."""
        self._link = link
        self._properties = properties
        self._log = log
        self._topics: dict[bytes, SharedTopic] = {}  # by filter
        self._again: dict[SharedTopic, None] = {}
        self._again_at = inf

    def find(self, filter: bytes) -> SharedTopic:
        topic = self._topics.get(filter)
        if topic is None:
            topic = self._topics[filter] = SharedTopic(filter)
        topic.unused = False
        return topic

    def forget(self, topic: SharedTopic) -> None:
        """Nobody here needs *topic* any more."""
        topic.unused = True
        if not (topic.asked or topic.waiting or topic.looking) and topic not in self._again:
            self._topics.pop(topic.filter, None)

    def when_ready(self, topic: SharedTopic, then: Callable[[], None]) -> None:
        """Call *then* once *topic* is ready to be appended to: at once if it is."""
        if topic.partitions:
            then()
            return
        topic.waiting.append(then)
        self._ask(topic)

    def look(self, topic: SharedTopic, then: Callable[[TopicDescription], None]) -> None:
        """Call *then* with where the partitions of *topic* begin and end, from now on at the earliest."""
        topic.looking.append(then)
        self.when_ready(topic, partial(self._look, topic))

    def replace(self, topic: SharedTopic, log: bytes, then: Callable[[LogError | None], None]) -> None:
        """*topic*, with the identity *log*, is being deleted: delete it, and have it made anew when it is needed."""
        self._link().delete(topic.name, log, partial(self._deleted, topic, then))

    def _deleted(self, topic: SharedTopic, then: Callable[[LogError | None], None], error: LogError | None) -> None:
        if error is None:
            topic.partitions = 0
        then(error)

    def tick(self, now: float) -> float:
        """Ask again what has failed; when the next time for that is."""
        if self._again and self._again_at == inf:
            self._again_at = now + RETRY
        if now >= self._again_at:
            again, self._again, self._again_at = self._again, {}, inf
            for topic in again:
                if topic.partitions:
                    self._look(topic)
                else:
                    self._ask(topic)
        return self._again_at

    def _ask(self, topic: SharedTopic) -> None:
        if not topic.asked and topic not in self._again:
            topic.asked = True
            self._link().describe(topic.name, partial(self._described, topic))

    def _described(self, topic: SharedTopic, found: TopicDescription | None, error: LogError | None) -> None:
        if error is not None:
            self._failed(topic, error)
            return
        properties = self._properties()
        if found is not None:
            properties = replace(properties, partitions=found.properties.partitions)
        self._link().create(topic.name, properties, partial(self._created, topic, properties.partitions))

    def _created(self, topic: SharedTopic, partitions: int, error: LogError | None) -> None:
        if error is not None:
            self._failed(topic, error)
            return
        topic.asked = False
        topic.partitions = partitions
        self._note(topic, "")
        waiting, topic.waiting = topic.waiting, []
        for then in waiting:
            then()
        if topic.unused:
            self.forget(topic)

    def _look(self, topic: SharedTopic) -> None:
        if topic.looking and not topic.asked:
            topic.asked = True
            looking, topic.looking = topic.looking, []
            self._link().describe(topic.name, partial(self._looked, topic, looking))

    def _looked(
        self,
        topic: SharedTopic,
        looking: list[Callable[[TopicDescription], None]],
        found: TopicDescription | None,
        error: LogError | None,
    ) -> None:
        if found is None:
            topic.looking = looking + topic.looking
            topic.partitions = 0 if error is None else topic.partitions  # somebody has deleted it
            self._failed(topic, error)
            if not topic.partitions:
                topic.waiting.append(partial(self._look, topic))
            return
        topic.asked = False
        self._note(topic, "")
        for then in looking:
            then(found)
        self._look(topic)
        if topic.unused:
            self.forget(topic)

    def _failed(self, topic: SharedTopic, error: LogError | None) -> None:
        topic.asked = False
        self._again[topic] = None
        self._note(topic, "the topic was deleted" if error is None else str(error))

    def _note(self, topic: SharedTopic, why: str) -> None:
        if why == topic.trouble:
            return
        topic.trouble = why
        filter = topic.filter.decode(errors="replace")
        if why:
            self._log.warning("shared_log_failed", filter=filter, topic=topic.name, why=why)
        else:
            self._log.info("shared_log_recovered", filter=filter, topic=topic.name)
