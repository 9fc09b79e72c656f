# What a broker counts, cumulative since its start; who wants a rate takes the difference of two readings.
#
# What happens per packet or per message is a plain attribute that its place increments, no call and no lock: a
# worker is one thread. What has a reason goes by the reason's label, so that no close and no drop is nameless.
from broker.reasons import CloseReason, DropReason, FilterRefusal, FlushCause, PauseReason, PublishRefusal, StoreFailure


class Counters:
    def __init__(self) -> None:
        # Per packet. Mosquitto's "messages" are packets of any kind.
        self.packets_received = 0
        self.answers_sent = 0  # packets that are no PUBLISH
        self.bytes_received = 0  # as the transport carries them
        self.bytes_sent = 0
        # Per PUBLISH; bytes are those of payloads.
        self.publishes_received = 0
        self.publishes_sent = 0
        self.publish_bytes_received = 0
        self.publish_bytes_sent = 0
        self.publishes_dropped = 0  # one for each receiver that went without
        self.dropped_by_reason = dict.fromkeys([reason.label for reason in DropReason], 0)
        # Per connection.
        self.sockets_opened = 0  # accepted by the listener, whatever came of them
        self.sockets_closed = 0
        self.connects_received = 0  # CONNECT packets
        self.connects_delayed = 0  # those of them that had to wait for their turn
        self.connects_accepted = 0
        self.connects_refused = 0
        self.closed_by_reason = dict.fromkeys([reason.label for reason in CloseReason], 0)
        self.internal_errors = 0  # our own mistakes
        self.protocol_errors = dict.fromkeys([reason.label for reason in CloseReason], 0)
        # Per report of an overload, and way; sent: one for each peer, or once by Redis.
        self.reports_sent_mesh = 0
        self.reports_heard_mesh = 0
        self.reports_sent_redis = 0
        self.reports_lost_redis = 0  # Redis did not take it, or not in time
        self.reports_heard_redis = 0  # with our own, which come back
        # Per request.
        self.subscribes = 0  # filters, not packets
        self.subscribes_refused = 0  # filters
        self.refused_by_reason = dict.fromkeys([reason.label for reason in FilterRefusal], 0)
        self.unsubscribes = 0
        self.retained_set = 0
        self.retained_deleted = 0
        # Of slow readers, and of clients that are held back.
        self.became_non_writable = 0  # times that a client came over its high watermark
        self.publishes_refused_by_reason = dict.fromkeys([reason.label for reason in PublishRefusal], 0)
        self.flushes_by_cause = dict.fromkeys([cause.label for cause in FlushCause], 0)
        self.pauses_by_reason = dict.fromkeys([reason.label for reason in PauseReason], 0)
        self.paused_ms_by_reason = dict.fromkeys([reason.label for reason in PauseReason], 0)  # of all clients together
        # Of the metrics record.
        self.records_written = 0
        self.records_dropped_by_reason = dict.fromkeys([failure.label for failure in StoreFailure], 0)

    @property
    def packets_sent(self) -> int:
        """Packets of any kind."""
        return self.publishes_sent + self.answers_sent

    def closed(self, reason: CloseReason) -> None:
        """A connection ended."""
        self.sockets_closed += 1
        self.closed_by_reason[reason.label] += 1

    def dropped(self, reason: DropReason, count: int) -> None:
        """*count* receivers did not get a message."""
        self.publishes_dropped += count
        self.dropped_by_reason[reason.label] += count

    def paused(self, reason: PauseReason) -> None:
        """A client is not read from now on."""
        self.pauses_by_reason[reason.label] += 1

    def publish_refused(self, reason: PublishRefusal) -> None:
        """A publish of QoS 1 or 2 was answered that it is not taken."""
        self.publishes_refused_by_reason[reason.label] += 1

    def record_dropped(self, reason: StoreFailure) -> None:
        """A metrics record did not get into the log, or nobody knows whether it did."""
        self.records_dropped_by_reason[reason.label] += 1

    def filter_refused(self, reason: FilterRefusal) -> None:
        """A filter was not subscribed to."""
        self.subscribes_refused += 1
        self.refused_by_reason[reason.label] += 1

    def protocol_error(self, reason: CloseReason) -> None:
        """A peer broke MQTT; that its connection ends is counted by closed()."""
        self.protocol_errors[reason.label] += 1
