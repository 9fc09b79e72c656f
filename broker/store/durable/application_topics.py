# The topics of the APPLICATION sessions of a worker: made when a session begins, deleted when it has ended.
#
# A topic has the name of its client, so a session may begin anew, here or at another worker, while the topic is being
# deleted for the former one; and a request to delete may be carried out late, or twice. What keeps a message of the new
# session from being deleted with it are two rules:
#
# - A topic is deleted by its identity, which no other topic of that name has.
# - A session that begins uses no topic that it finds: it deletes it, and makes another one. So nobody ever uses a topic
#   that somebody may still delete. Before it deletes, the worker stores something: then it knows that the session was
#   its own when the topic was found.
#
# One case is exempt, as it is frequent: a client that connects with a clean start has its session end and the next one
# begin in the same turn of one worker. Nobody else can have had the client in between, and the topic is used on: the
# era (application_queue.py) tells the messages of the two apart. TBMQ, too, keeps the topic then.
#
# What a session leaves is deleted when the keys of the session are, as far as this worker knows: if another worker had
# taken the session before, the topic is that worker's. It also waits for the packs that are under way: they would make
# the carrier try for ever. One topic is being deleted at a time, so a thousand sessions that expire together do not
# hold up the topics of those that begin.
#
# A topic stays, although its session has ended, until the next session of the client begins; retention deletes what is
# in it:
# - if the worker ends between the two deletions, or while the log is away
# - if its identity is not known: the session began under a version that did not store it, and its client has never read
# - if the session ends before its topic is known to be there
# - if more than MOST of them wait
# If the log forbids to delete topics (Kafka's access rules, delete.topic.enable), they stay, and sessions that begin
# use those that they find: nobody can delete them.
#
# The road not taken is a record in Redis of topics that are to be deleted. It would have to be taken over with the
# sessions of a worker, and be looked at by each session that begins, to save an empty topic after a crash.
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final

from broker.log import Log
from broker.reasons import LogFailure
from broker.store.durable.application_queue import ApplicationQueue
from broker.store.durable.log_topics import topic_of
from broker.store.logs.port import LogLink
from broker.store.logs.topics import LogError, TopicDescription, TopicProperties

RETRY: Final = 5.0  # seconds until a topic is made, looked for or deleted again
MOST: Final = 10_000  # topics that wait to be deleted: 4 MB; beyond it the oldest stay

StoreFirst = Callable[[Callable[[], None]], None]  # calls its argument when something is carried out


class Opening:
    """A topic that is made, or looked for, for the session of *queue*."""

    def __init__(self, queue: ApplicationQueue) -> None:
        self.queue = queue
        self.asked_for = queue  # when it was begun: another session of the client may have followed
        self.former: TopicDescription | None = None  # the topic that was found, and is deleted


class Ending:
    """A topic whose session has ended."""

    def __init__(self, queue: ApplicationQueue, log: bytes) -> None:
        self.queue: Final = queue
        self.log: Final = log
        self.confirmed = False  # the session was not taken from this worker, and its keys are removed


class ApplicationTopics:
    def __init__(
        self,
        link: LogLink,
        properties: TopicProperties,
        confirm: StoreFirst,
        when_removed: StoreFirst,
        note: Callable[[ApplicationQueue, str], None],
        log: Log | None,
    ) -> None:
        """*confirm*, *when_removed*: of the group commit. *note* is told why the topic of a queue cannot be used now;
        "": it can. *log*: is told which topics are deleted, and which are not.
        """
        self.left = 0  # topics that stay, as they may not be deleted, or too many were to be
        self._link = link
        self._properties = properties
        self._confirm = confirm
        self._when_removed = when_removed
        self._note = note
        self._log = log
        self._openings: dict[str, Opening] = {}
        self._again: dict[str, ApplicationQueue] = {}  # for the next attempt
        self._again_at = inf
        self._ended: dict[str, Ending] = {}  # in this turn
        self._endings: dict[str, Ending] = {}  # before it is known that the session was not taken
        self._waiting: dict[str, bytes] = {}  # topics that are to be deleted
        self._deleting = False  # one of them is
        self._failed = False  # the last attempt has
        self._delete_at = -inf  # not before this time

    def has_work(self) -> bool:
        return len(self._ended) > 0

    def tick(self, now: float) -> float:
        """Do what is due; when the next thing will be."""
        ended, self._ended = self._ended, {}
        for topic, ending in ended.items():
            self._endings[topic] = ending
            self._when_removed(partial(self._removed_session, ending))
        if self._again and self._again_at == inf:
            self._again_at = now + RETRY
        if now >= self._again_at:
            again, self._again, self._again_at = self._again, {}, inf
            for queue in again.values():
                self._try_again(queue)
        if self._failed:
            self._failed = False
            self._delete_at = now + RETRY
        if self._waiting and not self._deleting:
            if now < self._delete_at:
                return min(self._delete_at, self._again_at)
            self._delete_next()
        return self._again_at

    # A session begins.

    def begins(self, topic: str) -> bytes:
        """A session begins that is to have *topic*: the identity of one that it may use, left in this turn."""
        ending = self._ended.pop(topic, None)
        return b"" if ending is None else ending.log

    def open(self, queue: ApplicationQueue) -> None:
        """Have a topic for *queue*, of a session that has none yet; `opened()` follows, or `not_opened()`."""
        self._again.pop(queue.topic, None)
        opening = self._openings.get(queue.topic)
        if opening is not None:  # for a former session of the client: its next answer begins anew
            opening.queue = queue
            return
        opening = self._openings[queue.topic] = Opening(queue)
        self._look_for(opening)

    def _try_again(self, queue: ApplicationQueue) -> None:
        if queue.moves() or queue.damaged:
            self._note(queue, "")
            queue.not_opened()
        else:
            self.open(queue)

    def _goes_on(self, opening: Opening) -> bool:
        """Whether the session is there still for which *opening* was asked; else begin anew for another one, or end."""
        queue = opening.queue
        if queue.moves() or queue.damaged:
            del self._openings[queue.topic]
            self._note(queue, "")
            queue.not_opened()
            return False
        if queue is not opening.asked_for:
            opening.asked_for = queue
            self._look_for(opening)
            return False
        return True

    def _look_for(self, opening: Opening) -> None:
        opening.former = None
        self._link.describe(opening.queue.topic, partial(self._looked, opening))

    def _looked(self, opening: Opening, found: TopicDescription | None, error: LogError | None) -> None:
        if not self._goes_on(opening):
            return
        if error is not None:
            self._fail(opening, error)
        elif found is None:
            self._make(opening)
        elif not found.log or found.log == opening.queue.inherited:
            self._opened(opening, found)
        else:
            opening.former = found
            self._confirm(partial(self._delete_former, opening))

    def _delete_former(self, opening: Opening) -> None:
        """The session was this worker's when the topic was found: it is that of a former one."""
        if self._goes_on(opening):
            assert opening.former is not None
            self._link.delete(opening.queue.topic, opening.former.log, partial(self._deleted_former, opening))

    def _deleted_former(self, opening: Opening, error: LogError | None) -> None:
        if not self._goes_on(opening):
            return
        if error is None:
            self._tell_deleted(opening.queue.topic)
            self._make(opening)
        elif error.failure is LogFailure.FORBIDDEN:
            assert opening.former is not None
            self._opened(opening, opening.former)
        else:
            self._fail(opening, error)

    def _make(self, opening: Opening) -> None:
        former = opening.former  # people may have changed how much it keeps
        properties = self._properties if former is None else former.properties
        self._link.create(opening.queue.topic, properties, partial(self._made, opening))

    def _made(self, opening: Opening, error: LogError | None) -> None:
        if not self._goes_on(opening):
            return
        if error is not None:
            self._fail(opening, error)
        else:
            self._link.describe(opening.queue.topic, partial(self._found, opening))

    def _found(self, opening: Opening, found: TopicDescription | None, error: LogError | None) -> None:
        if not self._goes_on(opening):
            return
        if error is not None:
            self._fail(opening, error)
        elif found is None:  # it was deleted meanwhile
            self._make(opening)
        elif (
            opening.former is not None and opening.former.log == found.log
        ):  # the broker of Kafka that was asked is late
            self._fail(opening, LogError(LogFailure.OTHER_TOPIC, f"{opening.queue.topic} is being deleted"))
        else:
            self._opened(opening, found)

    def _opened(self, opening: Opening, found: TopicDescription) -> None:
        queue = opening.queue
        del self._openings[queue.topic]
        self._waiting.pop(queue.topic, None)  # it could not be deleted, or is gone
        self._note(queue, "")
        queue.opened(found.next[0], found.log)

    def _fail(self, opening: Opening, error: LogError) -> None:
        queue = opening.queue
        del self._openings[queue.topic]
        self._again[queue.topic] = queue
        self._note(queue, str(error))

    # A session ends.

    def ended(self, queue: ApplicationQueue, log: bytes) -> None:
        """The session of *queue*, which has the topic *log*, ends. It was not taken, as far as this worker knows."""
        self._ended[queue.topic] = Ending(queue, log)

    def taken(self, client: bytes) -> None:
        """Another worker has taken the session of *client*: its topic is that worker's, also if the session ended."""
        topic = topic_of(client)
        self._ended.pop(topic, None)
        self._endings.pop(topic, None)

    def settled(self, queue: ApplicationQueue) -> None:
        """Nothing of *queue*, whose session has ended, is on its way to the log any more."""
        ending = self._endings.get(queue.topic)
        if ending is not None and ending.queue is queue and ending.confirmed:
            self._have_deleted(ending)

    def _removed_session(self, ending: Ending) -> None:
        if self._endings.get(ending.queue.topic) is not ending:
            return
        ending.confirmed = True
        if ending.queue.nothing_under_way():
            self._have_deleted(ending)

    def _have_deleted(self, ending: Ending) -> None:
        topic = ending.queue.topic
        del self._endings[topic]
        self._waiting.pop(topic, None)
        self._waiting[topic] = ending.log
        if len(self._waiting) > MOST:
            del self._waiting[next(iter(self._waiting))]
            self.left += 1

    def _delete_next(self) -> None:
        topic = next(iter(self._waiting))
        log = self._waiting.pop(topic)
        self._deleting = True
        self._link.delete(topic, log, partial(self._deleted, topic, log))

    def _deleted(self, topic: str, log: bytes, error: LogError | None) -> None:
        self._deleting = False
        if error is None:
            self._tell_deleted(topic)
        elif error.failure is LogFailure.FORBIDDEN:
            self.left += 1
            if self._log is not None and self.left == 1:
                self._log.warning("application_log_left", topic=topic, why=str(error))
        else:
            self._failed = True
            self._waiting.setdefault(topic, log)

    def _tell_deleted(self, topic: str) -> None:
        if self._log is not None:
            self._log.info("application_log_deleted", topic=topic)
