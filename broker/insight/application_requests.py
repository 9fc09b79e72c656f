# The requests about APPLICATION sessions: a list with their lags, the log of one, and to go on elsewhere in it.
#
# The lag is in records of the log that were not passed on to the client, each with up to 200 messages. Whoever appends
# knows where a log ends, so only what was appended at former workers has to be asked for, once.
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, cast

from broker.insight.pending_answers import Arguments, PendingAnswer, PendingAnswers, RequestRefused
from broker.insight.session_requests import SessionRequests
from broker.insight.shared_log_facts import members_of, shared_log_of
from broker.session.session import Session
from broker.store.durable.application_logs import ApplicationLogs
from broker.store.durable.application_queue import UNREAD, ApplicationQueue
from broker.store.durable.group_commit import GroupCommit
from broker.store.durable.log_browser import UNDATED, LogLook, LogSearch
from broker.store.durable.shared_readers import GroupMember
from broker.store.durable.store import DurableStore
from broker.store.logs.topics import LogError, TopicDescription
from broker.store.sessions import SessionStore

PAGE: Final = 50  # APPLICATION sessions in one answer: for each of them, the log may have to be asked
SCANNED: Final = 5000  # sessions that are looked at for one answer: about a millisecond
LATE: Final = "The log has not answered in time; try again."
MOVED: Final = "Redis did not confirm in time where reading goes on; look, and try again."
EARLIEST: Final = "earliest"
LATEST: Final = "latest"


class ApplicationRequests:
    def __init__(
        self,
        store: SessionStore,
        sessions: SessionRequests,
        durable: DurableStore | None,
        pending: PendingAnswers,
        wall: Callable[[], float],
    ) -> None:
        """*wall*: Unix time in seconds."""
        self._store = store
        self._sessions = sessions
        self._durable = durable
        self._pending = pending
        self._wall = wall

    def page(self, arguments: Arguments) -> object:
        """A page of APPLICATION sessions from *position* on with *match* in their ids, and where the next begins."""
        position, match = cast(int, arguments["position"]), cast(str, arguments["match"])
        found: list[Session] = []
        scanned = 0
        for session in islice(self._store.sessions(), position, position + SCANNED):
            scanned += 1
            if match in session.client_id and session.storage is not None and session.storage.application:
                found.append(session)
                if len(found) == PAGE:
                    break
        following = position + scanned if scanned == SCANNED or len(found) == PAGE else None
        logs = self._logs()
        queues = [queue for session in found if (queue := _queue_of(session)) is not None]
        unknown = [queue for queue in queues if queue.log_end() == UNREAD and queue.log_position() != UNREAD]
        page = ApplicationPage(self, found, following, len(unknown))
        if logs is None or not unknown:
            return page.result()
        answer = self._pending.begin(LATE)
        page.answer = answer
        for queue in unknown:
            logs.describe(queue, page.described)
        return answer

    def show(self, arguments: Arguments) -> object:
        """Everything about the log of the session of *client*; None if there is none."""
        found = self._find(arguments)
        if found is None:
            return None
        session, queue, logs = found
        if queue.log_position() == UNREAD:
            return self.summary(session)
        answer = self._pending.begin(LATE)
        logs.describe(queue, ApplicationView(self, session, queue, logs, answer).described)
        return answer

    def reset(self, arguments: Arguments) -> object:
        """Go on at *to* with the log of *client*, who is away: an offset, EARLIEST, LATEST, or *time* (Unix, seconds).

        What is passed on to it already stays, up to the position `passed_to` of its queue. None: there is no session.
        """
        found = self._find(arguments)
        if found is None:
            return None
        _, queue, logs = found
        _check(queue)
        assert self._durable is not None
        answer = self._pending.begin(MOVED)
        reset = ApplicationReset(queue, logs, self._durable.commit, answer, arguments["to"], arguments["time"])
        logs.describe(queue, reset.described)
        return answer

    def summary(self, session: Session) -> dict[str, Any]:
        queue, logs = _queue_of(session), self._logs()
        facts = {
            **self._sessions.summary(session),
            "topic": "",
            "position": None,
            "end": None,
            "lag": None,
            "trouble": "",
        }
        if queue is None or logs is None:
            return facts
        facts["topic"], facts["trouble"] = queue.topic, logs.trouble(queue.topic)
        position, end = queue.log_position(), queue.log_end()
        if position != UNREAD:
            facts["position"] = position
            if end != UNREAD:
                facts["end"], facts["lag"] = end, max(0, end - position)
        return facts

    def age(self, time: int) -> float | None:
        """Seconds since *time*; None if it is not known."""
        return None if time == UNDATED else max(0.0, round(self._wall() - time, 1))

    def _find(self, arguments: Arguments) -> tuple[Session, ApplicationQueue, ApplicationLogs] | None:
        """The session of `client`. RequestRefused: its messages wait in no log."""
        session = self._store.find(cast(str, arguments["client"]))
        if session is None:
            return None
        queue, logs = _queue_of(session), self._logs()
        if queue is None or logs is None:
            raise RequestRefused(
                f"The client {session.client_id!r} is no APPLICATION client: its messages wait in no log."
            )
        return session, queue, logs

    def members_of(self, session: Session) -> list[GroupMember]:
        """The memberships of *session* in groups of APPLICATION clients."""
        return members_of(self._durable, session)

    def _logs(self) -> ApplicationLogs | None:
        return None if self._durable is None else self._durable.logs


class ApplicationPage:
    """A page of a list, while the log is asked where the logs of some sessions end."""

    def __init__(
        self, requests: ApplicationRequests, sessions: list[Session], following: int | None, asked: int
    ) -> None:
        self.answer: PendingAnswer | None = None
        self._requests = requests
        self._sessions = sessions
        self._following = following
        self._asked = asked

    def described(self, description: TopicDescription | None, error: LogError | None) -> None:
        self._asked -= 1
        if not self._asked and self.answer is not None:
            self.answer.reply(self.result())

    def result(self) -> dict[str, Any]:
        here = [session for session in self._sessions if not session.ended]
        return {"applications": [self._requests.summary(session) for session in here], "next": self._following}


class ApplicationView:
    """The facts about one log, while the log is asked for them."""

    def __init__(
        self,
        requests: ApplicationRequests,
        session: Session,
        queue: ApplicationQueue,
        logs: ApplicationLogs,
        answer: PendingAnswer,
    ) -> None:
        self._requests = requests
        self._session = session
        self._queue = queue
        self._logs = logs
        self._answer = answer
        self._facts: dict[str, Any] = {}
        self._members: list[GroupMember] = []  # whose logs are to be asked for
        self._shared: list[dict[str, Any]] = []

    def described(self, description: TopicDescription | None, error: LogError | None) -> None:
        if self._answer.done:
            return
        facts = self._facts = self._requests.summary(self._session)
        facts["oldest"] = None
        if description is None:
            facts["trouble"] = facts["trouble"] or (str(error) if error is not None else "The topic does not exist.")
            self._tell_shared()
            return
        facts["first"] = description.first[0]
        facts["retention"] = description.properties.retention
        facts["retention_bytes"] = description.properties.retention_bytes
        facts["replication"] = description.properties.replication
        if facts["lag"]:
            look: LogLook = self._logs.look(self._queue, self._looked)
            self._answer.when_late = look.end
        else:
            self._tell_shared()

    def _looked(self, offset: int, time: int) -> None:
        self._facts["oldest"] = self._requests.age(time)
        self._tell_shared()

    def _tell_shared(self) -> None:
        """Tell of the logs that the client shares as well, which are asked one after the other."""
        self._members = self._requests.members_of(self._session)[::-1]
        self._facts["shared"] = self._shared
        self._ask_next()

    def _ask_next(self) -> None:
        if self._answer.done:
            return
        if self._members:
            self._logs.link.describe(self._members[-1].group.topic.name, self._shared_described)
        else:
            self._answer.reply(self._facts)

    def _shared_described(self, description: TopicDescription | None, error: LogError | None) -> None:
        member = self._members.pop()
        facts = dict(shared_log_of(member))
        facts["lag"] = None
        if description is not None:
            leases = member.queue.leases.of_group(member.group.digest)
            facts["lag"] = sum([max(0, description.next[one.partition] - one.position.offset) for one in leases])
        self._shared.append(facts)
        self._ask_next()


class ApplicationReset:
    """Another place in one log, while the log is asked for it, and until it is stored."""

    def __init__(
        self,
        queue: ApplicationQueue,
        logs: ApplicationLogs,
        commit: GroupCommit,
        answer: PendingAnswer,
        to: str,
        time: float,
    ) -> None:
        self._queue = queue
        self._logs = logs
        self._commit = commit
        self._answer = answer
        self._to = to
        self._time = time
        self._former = 0
        self._offset = 0

    def described(self, description: TopicDescription | None, error: LogError | None) -> None:
        if self._answer.done:
            return
        if description is None:
            self._answer.refuse(f"The topic {self._queue.topic} cannot be read: {error or 'it does not exist'}.")
            return
        first, following = description.first[0], description.next[0]
        if self._to == EARLIEST:
            self._go_to(first)
        elif self._to == LATEST:
            self._go_to(following)
        elif self._to:
            offset = int(self._to)
            if first <= offset <= following:
                self._go_to(offset)
            else:
                self._answer.refuse(f"The log has the offsets {first} to {following}, and not {offset}.")
        else:
            search: LogSearch = self._logs.search(self._queue, description, self._time, self._go_to)
            self._answer.when_late = search.end
            search.go_on()

    def _go_to(self, offset: int) -> None:
        if self._answer.done:
            return
        try:
            _check(self._queue)
        except RequestRefused as error:
            self._answer.refuse(str(error))
            return
        self._former, self._offset = self._queue.log_position(), offset
        self._queue.go_to(offset)
        self._commit.when_written(self._stored)

    def _stored(self) -> None:
        queue = self._queue
        self._answer.reply({"from": self._former, "to": self._offset, "passed_to": queue.newest()})


def _queue_of(session: Session) -> ApplicationQueue | None:
    queue = session.queue()
    return queue if isinstance(queue, ApplicationQueue) and not queue.parted else None


def _check(queue: ApplicationQueue) -> None:
    """RequestRefused: it cannot go on elsewhere now."""
    if not queue.is_resting():
        raise RequestRefused("The client is connected: stop it, and try again.")
    if not queue.may_go_to():
        raise RequestRefused("The session is moving to another worker, or its log is not there yet; try again.")
