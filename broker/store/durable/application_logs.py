# The logs of the APPLICATION sessions of a worker: what is appended at the end of a slice, and read.
#
# The topic of a client has one partition (application_topics.py).
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Final

from broker.config.applications import GROUPS, Application
from broker.log import Log
from broker.overload.gate import Gate
from broker.store.durable.adoption import client_id_of
from broker.store.durable.application_queue import ApplicationQueue
from broker.store.durable.application_topics import ApplicationTopics, StoreFirst
from broker.store.durable.lease_scripts import LeaseKeys
from broker.store.durable.log_browser import Found, LogLook, LogSearch
from broker.store.durable.log_feed import LogFeed
from broker.store.durable.log_mirror import LogMirror
from broker.store.durable.queue_logs import QueueLogs
from broker.store.durable.timed_queue import NOTHING_SENT
from broker.store.logs.port import Appender, GroupLink, LogReading
from broker.store.logs.records import Position
from broker.store.logs.topics import LogError, TopicDescription, TopicProperties

LOOK: Final = 1.0  # seconds between two looks for what is not acknowledged in time
REFUSALS: Final = 60.0  # seconds between two lines about messages that the log of a client refuses

Described = Callable[[TopicDescription | None, LogError | None], None]
Reached = Callable[[ApplicationQueue, float], None]


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    most: int = 200  # messages that were passed on to a client and are not done
    pack_timeout: float = 20.0  # seconds that the oldest message that was sent may not be done
    properties: TopicProperties = field(default_factory=TopicProperties)
    shared_partitions: int = 12  # of the topic of a filter that clients share, when it is made
    mirrored: bool = False  # the tools of Kafka, which has the logs, are to see how far they are read
    groups: bool = False  # Kafka says which members of a group read which partitions of a shared log


def log_settings(application: Application, mirrored: bool = False) -> LogSettings:
    """Those that the configuration has."""
    properties = TopicProperties(
        retention=int(application.retention),
        retention_bytes=application.retention_bytes,
        replication=application.replication or -1,
    )
    return LogSettings(
        most=application.max_poll_records,
        pack_timeout=application.pack_timeout,
        properties=properties,
        shared_partitions=application.shared_partitions,
        mirrored=mirrored,
        groups=application.shared == GROUPS,
    )


def _nobody_minds(queue: ApplicationQueue, now: float) -> None:
    pass


class LogHooks:
    """Called with a queue of a client that is connected."""

    def __init__(self) -> None:
        self.overdue: Reached = _nobody_minds  # it has not acknowledged in time
        self.drained: Reached = _nobody_minds  # `may_part()`


class ApplicationLogs(QueueLogs):
    def __init__(
        self,
        link: GroupLink,
        gate: Gate,
        settings: LogSettings,
        wall: Callable[[], float],
        hooks: LogHooks,
        confirm: StoreFirst,
        when_removed: StoreFirst,
        lease_keys: LeaseKeys,
        log: Log | None = None,
    ) -> None:
        """*gate*: of publishes for the sessions. *wall*: Unix time in seconds. *confirm*, *when_removed*: see
        `GroupCommit`.
        """
        self._hooks = hooks
        self.gate: Final = gate
        self.most = settings.most
        self.lease_keys = lease_keys
        self.troubles: dict[str, str] = {}  # topics that cannot be made, found or read, and why
        self.link: Final = link
        self.topics: Final = ApplicationTopics(link, settings.properties, confirm, when_removed, self._note, log)
        self.shared_properties: Final = replace(settings.properties, partitions=settings.shared_partitions)
        self.timeout: Final = settings.pack_timeout
        self.groups: Final = settings.groups
        self._look = min(LOOK, settings.pack_timeout / 20)
        self._look_at = 0.0
        self._mirror = LogMirror(link) if settings.mirrored else None
        self._wall = wall
        self._log = log
        self._awake: dict[ApplicationQueue, None] = {}  # whose clients are connected
        self._due: dict[ApplicationQueue, None] = {}

    def wall(self) -> float:
        return self._wall()

    def soon(self, queue: ApplicationQueue) -> None:
        self._due[queue] = None

    def has_work(self) -> bool:
        """Whether `tick()` has something to do at once."""
        return len(self._due) > 0 or self.topics.has_work()

    def tick(self, now: float) -> float:
        """Append what was offered, and do what is due; when the next thing will be."""
        if self._due:
            due, self._due = self._due, {}
            wall = self._wall()
            for queue in due:
                queue.hand_over(now, wall)
                queue.go_on(now)
                if queue.parting:
                    self._look_whether_drained(queue, now, False)
        if self._awake and now >= self._look_at:
            self._look_at = now + self._look
            for queue in list(self._awake):
                self._note(queue, queue.log_trouble())
                if queue.parting:
                    self._look_whether_drained(queue, now, True)
                since = queue.sent_since(now)
                if since != NOTHING_SENT and now - since >= self.timeout:
                    self._hooks.overdue(queue, now)
        topics_at = self.topics.tick(now)
        look_at = self._look_at if self._awake else inf
        if self._mirror is not None and self._awake:
            look_at = min(look_at, self._mirror.tick(now, self._awake))
        return now if self.has_work() else min(look_at, topics_at)

    def _look_whether_drained(self, queue: ApplicationQueue, now: float, again: bool) -> None:
        if queue.asks_for_end(again):
            self.describe(queue, partial(_found_end, queue))
        if queue.may_part(now):
            self._hooks.drained(queue, now)

    # Topics.

    def begins(self, topic: str) -> bytes:
        return self.topics.begins(topic)

    def open(self, queue: ApplicationQueue) -> None:
        self.topics.open(queue)

    def ended(self, queue: ApplicationQueue, log: bytes) -> None:
        self.topics.ended(queue, log)

    def settled(self, queue: ApplicationQueue) -> None:
        self.topics.settled(queue)

    def unusable(self) -> str:
        """Why no log can be made for a session that begins; "": nothing is known to be wrong."""
        return self.link.unusable()

    # What operators are told.

    def trouble(self, topic: str) -> str:
        """Why *topic*, of a session here, cannot be used now; "": nothing is known to be wrong."""
        return self.troubles.get(topic) or self.link.append_trouble(topic)

    def _note(self, queue: ApplicationQueue, why: str) -> None:
        """The log of *queue* cannot be used, for the reason *why*; "": it can."""
        topic = queue.topic
        if why == self.troubles.get(topic, ""):
            return
        if why:
            self.troubles[topic] = why
        else:
            del self.troubles[topic]
        if self._log is not None and not queue.ended:
            client = client_id_of(queue.client)
            if why:
                self._log.warning("application_log_failed", client=client, topic=topic, why=why)
            else:
                self._log.info("application_log_recovered", client=client, topic=topic)

    def refused(self, queue: ApplicationQueue, count: int, error: LogError, now: float) -> None:
        if self._log is not None and now >= queue.refusals_logged + REFUSALS:
            queue.refusals_logged = now
            client = client_id_of(queue.client)
            self._log.warning(
                "application_messages_refused", client=client, topic=queue.topic, count=count, why=str(error)
            )

    def describe(self, queue: ApplicationQueue, then: Described) -> None:
        """Tell *then* about the log of *queue*, as it is now."""
        self.link.describe(queue.topic, partial(_note_end, queue, then))

    def look(self, queue: ApplicationQueue, found: Found) -> LogLook:
        """Tell *found* of the first record of *queue* that was not passed on as a whole: when there is one."""
        return LogLook(self.link, queue.topic, max(0, queue.log_position()), found)

    def search(
        self, queue: ApplicationQueue, log: TopicDescription, time: float, then: Callable[[int], None]
    ) -> LogSearch:
        """Find the first record of *queue* that was offered at *time* (Unix, seconds) or later; `go_on()` begins."""
        return LogSearch(self.link, queue.topic, log.first[0], log.next[0], time, then)

    # Queues.

    def append(self, queue: ApplicationQueue, body: bytes, appender: Appender, now: float) -> None:
        self.link.append(queue.topic, 0, body, appender, now)

    def read(self, queue: ApplicationQueue, position: Position, feed: LogFeed) -> LogReading:
        self._awake[queue] = None
        return self.link.read(queue.topic, 0, position, feed)

    def rests(self, queue: ApplicationQueue) -> None:
        if queue in self._awake:
            del self._awake[queue]
            if self._mirror is not None:
                self._mirror.rests(queue)
        self.troubles.pop(queue.topic, None)  # whether it can be read is not known from now on


def _note_end(
    queue: ApplicationQueue, then: Described, description: TopicDescription | None, error: LogError | None
) -> None:
    if description is not None:
        queue.log_reaches(description.next[0])
    then(description, error)


def _found_end(queue: ApplicationQueue, description: TopicDescription | None, error: LogError | None) -> None:
    if description is not None:
        queue.found_end()
