# The metrics records that the carrier publishes to the Kafka topic `weir.metrics`. It is better to lose some than to
# wait.
#
# As in the stream of Redis (store/redis/record_log.py), a record that cannot be published now is dropped and counted,
# and readers see the gap by the sequence number. Records go over the control lane, which the carrier always reads: the
# data lane stands still while the log is full. Those that have no answer are few, here and therefore at the carrier,
# too.
from collections import deque
from typing import Final

from broker.metrics.counters import Counters
from broker.reasons import LogFailure
from broker.store.logs import frames
from broker.store.logs.lane import Lane

MOST: Final = 10  # records without an answer: those of ten seconds
MOST_BYTES: Final = 256 * 1024  # of them, beside the last one; a record has 3 to 6 KB, and 250 with the longest names


class CarrierRecordLog:
    """Sends to the carrier. Records that Kafka has, and those that were dropped, are counted in *counters*."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._control: Lane | None = None
        self._unanswered: deque[int] = deque()  # bytes of each record, the oldest first
        self._unanswered_bytes = 0

    def append(self, record: bytes, now: float) -> None:
        """Have *record* published, or drop it and count that; never waits."""
        if self._control is None:
            self._counters.kafka_record_dropped(LogFailure.CARRIER_AWAY)
        elif len(self._unanswered) >= MOST or self._unanswered_bytes >= MOST_BYTES:
            self._counters.kafka_record_dropped(LogFailure.BACKLOG_FULL)
        else:
            self._unanswered.append(len(record))
            self._unanswered_bytes += len(record)
            self._control.write(frames.metrics(record))

    # For the link to the carrier.

    def connect(self, control: Lane) -> None:
        """*control* leads to a new carrier; `disconnect()` was called if there was a former one."""
        self._control = control

    def disconnect(self) -> None:
        """There is no carrier."""
        self._control = None
        while self._unanswered:
            self.answered(LogFailure.CARRIER_AWAY)

    def answered(self, failure: LogFailure | None) -> None:
        """A record was published; or it was not, or may not have been, because of *failure*. LaneError."""
        if not self._unanswered:
            raise frames.LaneError("an answer to a metrics record that was not sent")
        self._unanswered_bytes -= self._unanswered.popleft()
        if failure is None:
            self._counters.kafka_records_written += 1
        else:
            self._counters.kafka_record_dropped(failure)
