# The counters of a worker, cumulative since its start. A rate is the difference of two readings.
#
# A counter is a plain attribute that the code at the event increments: no call and no lock, as a worker is one thread.
# Events that have a reason are counted by the reason's label. table.py has a row for each attribute, which says where
# its value is shown.
from broker.reasons import (
    CloseReason,
    DropReason,
    FilterRefusal,
    FlushCause,
    LogFailure,
    PauseReason,
    PublishRefusal,
    StoreFailure,
)


class Counters:
    def __init__(self) -> None:
        # Per packet.
        self.packets_received = 0
        self.answers_sent = 0  # packets that are no PUBLISH
        self.bytes_received = 0
        self.bytes_sent = 0
        # Per PUBLISH; bytes are those of payloads.
        self.publishes_received = 0
        self.publishes_sent = 0
        self.publish_bytes_received = 0
        self.publish_bytes_sent = 0
        self.publishes_dropped = 0  # one for each receiver that does not get the message
        self.dropped_by_reason = dict.fromkeys([reason.label for reason in DropReason], 0)
        self.publishes_refused_by_reason = dict.fromkeys([reason.label for reason in PublishRefusal], 0)
        # Per connection.
        self.sockets_opened = 0
        self.connects_received = 0
        self.connects_delayed = 0
        self.connects_accepted = 0
        self.connects_refused = 0
        self.passwords_hashed = 0
        self.closed_by_reason = dict.fromkeys([reason.label for reason in CloseReason], 0)
        self.sessions_expired = 0
        self.sessions_warmed = 0
        self.sessions_cooled = 0
        self.sessions_damaged = 0
        self.internal_errors = 0
        # Per overload report. A report to the node's other workers counts once for each of them.
        self.reports_sent_mesh = 0
        self.reports_heard_mesh = 0
        self.reports_sent_redis = 0
        self.reports_lost_redis = 0
        self.reports_heard_redis = 0
        self.redis_forged = 0  # per report, will or message of a lane
        # Of the lanes to workers of other nodes; messages are those of Redis pub/sub.
        self.lane_messages_sent = 0
        self.lane_bytes_sent = 0
        self.lane_bytes_resent = 0
        self.lane_messages_received = 0
        self.lane_bytes_received = 0
        self.lane_messages_ignored = 0
        self.lane_gaps = 0
        self.lane_restarts = 0
        # Per time that the lanes to a worker of another node are begun anew.
        self.lanes_malformed = 0
        self.lanes_silent = 0
        # Per filter of a SUBSCRIBE or UNSUBSCRIBE.
        self.subscribes = 0
        self.refused_by_reason = dict.fromkeys([reason.label for reason in FilterRefusal], 0)
        self.unsubscribes = 0
        self.subscriptions_not_confirmed = 0  # per SUBACK
        # Per change of a retained message.
        self.retained_set = 0
        self.retained_deleted = 0
        # Per value in Redis that was not read when the worker began.
        self.retained_damaged = 0
        self.retained_left = 0
        # Of the store of durable sessions.
        self.store_transactions = 0
        self.store_commands = 0
        self.store_bytes = 0
        self.store_repeated = 0
        self.store_failures_by_reason = dict.fromkeys([failure.label for failure in StoreFailure], 0)
        # Per pack for a log.
        self.log_packs = 0
        self.log_bytes = 0
        self.log_carriers = 0
        # Per publish of the inbound backbone, or record of it.
        self.backbone_appended = 0
        self.backbone_dispatched = 0
        self.backbone_left_out = 0
        self.backbone_deleted = 0
        self.backbone_damaged = 0
        self.log_refusals_by_reason = dict.fromkeys([failure.label for failure in LogFailure], 0)
        # Per client that reads slowly or is paused.
        self.became_non_writable = 0
        self.flushes_by_cause = dict.fromkeys([cause.label for cause in FlushCause], 0)
        self.pauses_by_reason = dict.fromkeys([reason.label for reason in PauseReason], 0)
        self.paused_ms_by_reason = dict.fromkeys([reason.label for reason in PauseReason], 0)
        # Per metrics record.
        self.records_written = 0
        self.records_dropped_by_reason = dict.fromkeys([failure.label for failure in StoreFailure], 0)
        self.kafka_records_written = 0
        self.kafka_records_dropped_by_reason = dict.fromkeys([failure.label for failure in LogFailure], 0)

    @property
    def packets_sent(self) -> int:
        """Packets of any kind."""
        return self.publishes_sent + self.answers_sent

    def closed(self, reason: CloseReason) -> None:
        """Count a connection that ended."""
        self.closed_by_reason[reason.label] += 1

    def dropped(self, reason: DropReason, count: int) -> None:
        """Count *count* receivers that do not get a message."""
        self.publishes_dropped += count
        self.dropped_by_reason[reason.label] += count

    def paused(self, reason: PauseReason) -> None:
        """Count the begin of a pause."""
        self.pauses_by_reason[reason.label] += 1

    def publish_refused(self, reason: PublishRefusal) -> None:
        """Count a publish of QoS 1 or 2 that is answered with an error code."""
        self.publishes_refused_by_reason[reason.label] += 1

    def record_dropped(self, reason: StoreFailure) -> None:
        """Count a metrics record that is not in the log, or may not be."""
        self.records_dropped_by_reason[reason.label] += 1

    def kafka_record_dropped(self, reason: LogFailure) -> None:
        """Count a metrics record that is not in Kafka, or may not be."""
        self.kafka_records_dropped_by_reason[reason.label] += 1

    def filter_refused(self, reason: FilterRefusal) -> None:
        """Count a filter that is refused in its SUBACK."""
        self.refused_by_reason[reason.label] += 1
