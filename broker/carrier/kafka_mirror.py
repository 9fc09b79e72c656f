# How far consumer groups have read, committed to Kafka for its tools: `kafka-consumer-groups.sh` shows lag then.
#
# Nothing is read back (log_mirror.py of workers says why), so nothing waits for a commit, and one that fails costs
# nobody anything. Only the newest offset of a partition waits. A request is for one group, and costs Kafka and its
# client a millisecond or two of CPU: so GROUPS of them are sent in PACE seconds at most, whatever workers tell. With
# ten thousand services that all read, each is ten minutes behind.
#
# A group without members takes offsets of anybody, and one that has some (kafka_groups.py) of these only. Kafka forgets
# the offsets of a topic that is deleted, and its group is deleted with it.
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from math import inf
from typing import Final

from broker.carrier.kafka_admin import NOBODY, KafkaAdmin
from broker.log import Log as Lines
from broker.reasons import LogFailure
from broker.store.durable.log_topics import group_of
from broker.store.logs.topics import LogError, Partition

GROUPS: Final = 20  # that are committed one after the other
PACE: Final = 1.0  # seconds until the next ones are
RETRY: Final = 5.0  # seconds until that when Kafka could not be asked
MOST: Final = 100_000  # offsets that wait: 30 MB; those of further partitions are dropped
PATIENCE: Final = 20.0  # seconds until it is logged that commits fail: a new Kafka makes a topic for them first
CALM: Final = 60.0  # seconds without a group that is refused, until it is logged that commits do not fail any more

CHANGES: Final = LogError(LogFailure.REFUSED, "the members of the group change")

Offsets = dict[Partition, int]


class KafkaMirror:
    """A `GroupOffsets`."""

    def __init__(
        self, admin: KafkaAdmin, who: Callable[[str], tuple[str, int]], clock: Callable[[], float], lines: Lines
    ) -> None:
        """*who*: may commit offsets of a group; called in any thread."""
        self.committed = 0  # offsets
        self.failed = 0  # offsets that Kafka refused, or that were dropped
        self.trouble: LogError | None = None  # why Kafka has not got some
        self._admin = admin
        self._who = who
        self._clock = clock
        self._lines = lines
        self._waiting: dict[str, Offsets] = {}  # by group; the one that waits longest is the first
        self._size = 0  # offsets that wait
        self._busy = False
        self._next = -inf  # not before this time
        self._failing_since = inf
        self._calm_at = -inf  # a success before this time does not say that all is well
        self._logged = False
        self._drops_logged = False  # once: the counter tells of further ones

    def done(self, group: str, partition: Partition, offset: int) -> None:
        waiting = self._waiting.get(group)
        if waiting is None or partition not in waiting:
            if self._size >= MOST:
                self.failed += 1
                if not self._drops_logged:
                    self._drops_logged = True
                    self._lines.warning("group_offsets_dropped", most=MOST)
                return
            waiting = self._waiting.setdefault(group, {})
            self._size += 1
        waiting[partition] = offset

    def forget(self, topic: str) -> None:
        """*topic*, of a client, has been deleted."""
        group = group_of(topic)
        self._size -= len(self._waiting.pop(group, ()))
        self._admin.run(partial(self._admin.delete_group, group), _ignored)  # if that fails, Kafka forgets it in time

    def tick(self, now: float) -> float:
        """Commit what waits, if that is due; when it will be."""
        if self._busy or not self._waiting:
            return inf
        if now < self._next:
            return self._next
        groups = {group: self._waiting[group] for group in [*islice(self._waiting, GROUPS)]}
        for group, offsets in groups.items():
            del self._waiting[group]
            self._size -= len(offsets)
        self._busy = True
        answers: dict[str, LogError | None] = {}
        self._admin.run(partial(self._commit, groups, answers), partial(self._committed, groups, answers))
        return inf

    def _commit(self, groups: Mapping[str, Offsets], answers: dict[str, LogError | None]) -> None:
        """In the thread: put the answer for each group into *answers*. KafkaError: the next one cannot be asked for."""
        for group, offsets in groups.items():
            try:
                taken = self._admin.commit(group, offsets, self._who(group))
            except LogError as error:
                answers[group] = error
            else:
                answers[group] = None if taken else CHANGES

    def _committed(
        self,
        groups: Mapping[str, Offsets],
        answers: Mapping[str, LogError | None],
        result: object,
        error: LogError | None,
    ) -> None:
        self._busy = False
        now = self._clock()
        self._next = now + (PACE if error is None else RETRY)
        refusal: LogError | None = None
        for group, answer in answers.items():
            if answer is CHANGES and self._who(group) != NOBODY:
                self._put_back(group, groups[group])
            elif answer is CHANGES:  # it is for those to tell who have members
                self.failed += len(groups[group])
            elif answer is None:
                self.committed += len(groups[group])
            else:
                self.failed += len(groups[group])
                refusal = answer
        rest = [group for group in groups if group not in answers]
        for group in [*rest[1:], *rest[:1]]:  # the first one has failed: it is not to hold up the others
            self._put_back(group, groups[group])
        if refusal is not None:
            self._calm_at = now + CALM
        self._note(refusal if error is None else error, now)

    def _put_back(self, group: str, offsets: Offsets) -> None:
        waiting = self._waiting.setdefault(group, {})
        for partition, offset in offsets.items():
            if partition not in waiting:
                waiting[partition] = offset
                self._size += 1

    def _note(self, trouble: LogError | None, now: float) -> None:
        if trouble is not None:
            self.trouble = trouble
            self._failing_since = min(self._failing_since, now)
            if not self._logged and now - self._failing_since >= PATIENCE:
                self._logged = True
                self._lines.warning("group_offsets_failed", why=str(trouble))
        elif self.trouble is not None and now >= self._calm_at:
            self.trouble = None
            self._failing_since = inf
            if self._logged:
                self._logged = False
                self._lines.info("group_offsets_recovered")


def _ignored(result: object, error: LogError | None) -> None:
    pass
