# A log of records in a stream of Redis, for which it is better to lose some records than to wait.
#
# A record that cannot be written now is dropped: the next one follows in a second, and readers see the gap by the
# sequence number. So nothing waits here for Redis to come back, and at most MOST records have no answer.
from typing import Final

from broker.metrics.counters import Counters
from broker.reasons import StoreFailure
from broker.store.redis.connection import READY, packed
from broker.store.redis.pipeline import Command, CommandPipeline

FIELD: Final = "record"  # of an entry of the stream
MOST: Final = 10  # records without an answer: those of ten seconds
TIMEOUT: Final = 5.0  # seconds; nothing waits for it


class RedisRecordLog:
    """Writes to one stream. Records that were written, and those that were dropped, are counted in *counters*."""

    def __init__(self, commands: CommandPipeline, key: bytes, length: int, counters: Counters) -> None:
        """*length*: how many of the newest records Redis keeps, approximately."""
        self._commands = commands
        self._key = key
        self._length = length
        self._counters = counters
        self._unanswered = 0

    def append(self, record: bytes, now: float) -> None:
        """Write *record*, or drop it and count that; never waits."""
        if self._commands.state != READY:  # or the record would wait in the pipeline
            self._counters.record_dropped(StoreFailure.UNREACHABLE)
        elif self._unanswered >= MOST:
            self._counters.record_dropped(StoreFailure.BACKLOG_FULL)
        else:
            self._unanswered += 1
            words = packed("XADD", self._key, "MAXLEN", "~", self._length, "*", FIELD, record)
            self._commands.submit(_Append(self, words), now)

    def answered(self, failure: StoreFailure | None) -> None:
        """Redis has written a record; or it has not, or may not have, because of *failure*."""
        self._unanswered -= 1
        if failure is None:
            self._counters.records_written += 1
        else:
            self._counters.record_dropped(failure)


class _Append(Command):
    def __init__(self, log: RedisRecordLog, command: bytes) -> None:
        super().__init__(command, TIMEOUT)
        self._log = log

    def replied(self, reply: object, now: float) -> None:
        self._log.answered(None)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._log.answered(failure)
