# The requests about the logs that APPLICATION clients share: a list of their groups, and how old is what waits.
#
# How far a group has read a partition is known to the worker where it is leased, else to Redis; where its log ends is
# known to the log. So each worker tells of the groups that have members there what it knows, and what Redis and the log
# answer; the supervisor puts it together.
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from broker.insight.pending_answers import Arguments, PendingAnswer, PendingAnswers
from broker.insight.shared_log_reset import SharedLogReset
from broker.store.durable.leases import saved_position
from broker.store.durable.log_browser import UNDATED, LogLook
from broker.store.durable.shared_logs import DurableSharedLogs
from broker.store.durable.shared_readers import ReadGroup
from broker.store.durable.store import DurableStore
from broker.store.logs.topics import LogError, TopicDescription

PAGE: Final = 20  # groups in one answer: for each of them, Redis and the log are asked
SCANNED: Final = 5000  # groups that are looked at for one answer: about a millisecond
LOOKS: Final = 64  # partitions whose oldest record is looked for
LATE: Final = "The log or Redis has not answered in time; try again."


class SharedLogRequests:
    def __init__(self, durable: DurableStore | None, pending: PendingAnswers, wall: Callable[[], float]) -> None:
        """*wall*: Unix time in seconds."""
        self._durable = durable
        self._pending = pending
        self._wall = wall

    def page(self, arguments: Arguments) -> object:
        """A page of groups from *position* on with *match* in `$share/NAME/FILTER`, and where the next begins.

        *exact*: that is the whole of it.
        """
        logs = self._logs()
        if logs is None:
            return {"shared": [], "next": None}
        position, match = cast(int, arguments["position"]), cast(str, arguments["match"])
        exact = cast(bool, arguments["exact"])
        found: list[ReadGroup] = []
        scanned = 0
        for group in logs.groups()[position : position + SCANNED]:
            scanned += 1
            name = group.name()
            if match == name or (match in name and not exact):
                found.append(group)
                if len(found) == PAGE:
                    break
        following = position + scanned if scanned == SCANNED or len(found) == PAGE else None
        if not found:
            return {"shared": [], "next": following}
        page = SharedLogPage(logs, found, following, self._pending.begin(LATE))
        page.ask()
        return page.answer

    def oldest(self, arguments: Arguments) -> object:
        """How many seconds ago the first of the records was offered that *topic* has at *positions*; None: unknown.

        *positions*: pairs of a partition and an offset, where there is a record. Of many, some are looked at.
        """
        logs = self._logs()
        positions: list[list[int]] = arguments["positions"]
        if logs is None or not positions:
            return None
        age = SharedLogAge(self._pending.begin(LATE), self._wall)
        age.look(logs, cast(str, arguments["topic"]), positions[:LOOKS])
        return age.answer

    def reset(self, arguments: Arguments) -> object:
        """Have the group *name* go on at *to*, or at *time*: see `SharedLogReset`. None: it has no member here."""
        logs = self._logs()
        if logs is None:
            return None
        for group in logs.groups():
            if group.name() == arguments["name"]:
                answer = self._pending.begin(LATE)
                SharedLogReset(logs, group, answer, arguments["to"], arguments["time"]).begin()
                return answer
        return None

    def _logs(self) -> DurableSharedLogs | None:
        logs = None if self._durable is None else self._durable.shared_logs
        return logs if isinstance(logs, DurableSharedLogs) else None


class SharedLogPage:
    """A page of a list, while Redis and the log are asked about its groups."""

    def __init__(
        self, logs: DurableSharedLogs, groups: list[ReadGroup], following: int | None, answer: PendingAnswer
    ) -> None:
        self.answer: Final = answer
        self._logs = logs
        self._groups = groups
        self._following = following
        self._asked = 0
        self._saved: dict[ReadGroup, list[list[int]]] = {}
        self._ends: dict[str, list[int]] = {}  # by topic
        self._troubles: dict[str, str] = {}

    def ask(self) -> None:
        topics = dict.fromkeys([group.topic.name for group in self._groups])
        self._asked = len(self._groups) + len(topics)
        for group in self._groups:
            self._logs.read_state(group, partial(self._read, group))
        for topic in topics:
            self._logs.link.describe(topic, partial(self._described, topic))

    def _read(self, group: ReadGroup, state: dict[bytes, bytes] | None) -> None:
        """Redis has answered what is *saved* of *group*; None: it has not."""
        saved: list[list[int]] = []
        for field, value in (state or {}).items():
            position = saved_position(value)
            if field[:1] == b"p" and field[1:].isdigit() and position is not None:
                saved.append([int(field[1:]), position])
        self._saved[group] = saved
        self._one_less()

    def _described(self, topic: str, found: TopicDescription | None, error: LogError | None) -> None:
        if found is not None:
            self._ends[topic] = list(found.next)
        else:
            self._troubles[topic] = "The topic does not exist." if error is None else str(error)
        self._one_less()

    def _one_less(self) -> None:
        self._asked -= 1
        if not self._asked and not self.answer.done:
            facts = [self._facts(group) for group in self._groups if group.members]
            self.answer.reply({"shared": facts, "next": self._following})

    def _facts(self, group: ReadGroup) -> dict[str, Any]:
        share, filter = group.share_and_filter()
        members = list(group.members.values())
        leases = [lease for member in members for lease in member.queue.leases.all.values()]
        leases = [lease for lease in leases if lease.group == group.digest]
        troubles = [trouble for lease in leases if (trouble := lease.trouble())]
        topic = group.topic
        return {
            "name": share,
            "filter": filter,
            "topic": topic.name,
            "members": len(members),
            "connected": len([member for member in members if not member.queue.is_resting()]),
            "reads": sorted(lease.partition for lease in leases if not lease.releasing),
            "positions": [[lease.partition, lease.position.offset] for lease in leases],
            "saved": self._saved.get(group, []),
            "ends": self._ends.get(topic.name),
            "trouble": topic.trouble or self._troubles.get(topic.name, "") or (troubles[0] if troubles else ""),
        }


class SharedLogAge:
    """Until the log has told of the first records of partitions."""

    def __init__(self, answer: PendingAnswer, wall: Callable[[], float]) -> None:
        self.answer: Final = answer
        self._wall = wall
        self._looks: list[LogLook] = []
        self._to_come = 0
        self._oldest = UNDATED
        answer.when_late = self._end

    def look(self, logs: DurableSharedLogs, topic: str, positions: list[list[int]]) -> None:
        self._to_come = len(positions)
        for number, offset in positions:
            self._looks.append(LogLook(logs.link, topic, offset, self._looked, number))

    def _looked(self, offset: int, time: int) -> None:
        if time != UNDATED and (self._oldest == UNDATED or time < self._oldest):
            self._oldest = time
        self._to_come -= 1
        if not self._to_come:
            known = self._oldest != UNDATED
            self.answer.reply(max(0.0, round(self._wall() - self._oldest, 1)) if known else None)

    def _end(self) -> None:
        for look in self._looks:
            look.end()
