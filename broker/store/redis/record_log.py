# A log of records: what is told once and read by others, where losing some is better than waiting.
#
# Redis carries it as a stream that Redis keeps about so long. A record that cannot be written now never is: there will
# be another one in a second, and who reads sees the gap by the sequence. So nothing waits here for Redis to come back,
# and of what it has not answered there is little (MOST).
from typing import Final

from broker.metrics.counters import Counters
from broker.reasons import StoreFailure
from broker.store.redis.connection import READY, packed
from broker.store.redis.pipeline import Command, CommandPipeline

FIELD: Final = "record"  # of an entry of the stream
MOST: Final = 10  # records that are not answered yet: ten seconds of silence
PATIENCE: Final = 5.0  # seconds; nobody waits for it


class RedisRecordLog:
    """A stream of Redis, on a worker's line of commands. What became of a record is counted in *counters*."""

    def __init__(self, commands: CommandPipeline, key: bytes, length: int, counters: Counters) -> None:
        """*length*: the newest records, about, that Redis keeps."""
        self._commands = commands
        self._key = key
        self._length = length
        self._counters = counters
        self._asked = 0

    def append(self, record: bytes, now: float) -> None:
        """Write *record*, or drop it and count that; never waits."""
        if self._commands.state != READY:  # else it would wait on the line
            self._counters.record_dropped(StoreFailure.UNREACHABLE)
        elif self._asked >= MOST:
            self._counters.record_dropped(StoreFailure.BACKLOG_FULL)
        else:
            self._asked += 1
            words = packed("XADD", self._key, "MAXLEN", "~", self._length, "*", FIELD, record)
            self._commands.ask(_Append(self, words), now)

    def answered(self, failure: StoreFailure | None) -> None:
        """Redis has a record; or it has not, or nobody knows."""
        self._asked -= 1
        if failure is None:
            self._counters.records_written += 1
        else:
            self._counters.record_dropped(failure)


class _Append(Command):
    def __init__(self, log: RedisRecordLog, command: bytes) -> None:
        super().__init__(command, PATIENCE)
        self._log = log

    def replied(self, reply: object, now: float) -> None:
        self._log.answered(None)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._log.answered(failure)
