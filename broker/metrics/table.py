# The table of everything that a worker counts or holds. Each counter and each gauge is declared here, once.
#
# A row names an attribute and says where its value goes. From the rows follow the report to the supervisor and the sums
# over workers (report.py), the topics of $SYS (sys_topics.py), the metrics record (recorder.py) and the metrics for
# Prometheus (supervisor/metrics.py). "" and (): the value is not shown there.
#
# To add a counter: an attribute in counters.py (or gauges.py), and a row here; a field of the record is also described
# in record.py. tests/metrics/test_table.py checks that rows and attributes belong together.
#
# Why are counters not made from the table? The hot path increments `counters.publishes_sent`, a plain attribute of a
# compiled class: a dictionary or a call would cost more than the work that is counted.
from enum import Enum
from typing import Final, NamedTuple

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

SUM: Final = "sum"  # the node has as much as its workers together
GREATEST: Final = "greatest"  # each worker holds all of it, or a sum means nothing


class CounterRow(NamedTuple):
    """A number that only rises, of `Counters`."""

    attribute: str
    meaning: str
    prometheus: str = ""  # weir_<name>_total
    topics: tuple[str, ...] = ()  # $SYS/broker/<topic>
    load: str = ""  # $SYS/broker/load/<name>/1min, 5min and 15min: the same per minute
    record: str = ""  # path of the field in the metrics record: the difference to the record before
    computed: bool = False  # a property, made of other counters


class ReasonRow(NamedTuple):
    """A counter for each member of an enumeration, of `Counters`: a dictionary by label."""

    attribute: str
    reported: str  # its name in the report
    reasons: type[Enum]
    meaning: str
    prometheus: str = ""  # weir_<name>_total
    label: str = "reason"  # the label of Prometheus that has the member
    scale: float = 1.0  # from our unit to that of Prometheus
    topic: str = ""  # $SYS/broker/<topic>, where {} is the member; only of members that were counted
    record: str = ""  # path of the table in the metrics record; rows with one path share it


class GaugeRow(NamedTuple):
    """A number that rises and falls, of `Gauges`."""

    attribute: str
    reported: str  # its name in the report
    meaning: str
    node: str = SUM  # how the workers' values make that of the node
    prometheus: str = ""  # weir_<name>
    quantile: str = ""  # the label of Prometheus that keeps rows with one name apart
    scale: float = 1.0
    topics: tuple[str, ...] = ()
    form: str = ""  # of the number in $SYS
    record: str = ""


class OverloadRow(NamedTuple):
    """A figure of overload protection, of `OverloadFigures`. `overload_figures.together()` says what a node's is."""

    attribute: str
    meaning: str
    prometheus: str = ""
    topic: str = ""
    form: str = ""
    record: str = ""
    digits: int = -1  # of a fraction in the record; -1: all


COUNTERS: Final = (
    CounterRow(
        "packets_received",
        "MQTT packets of any kind from clients.",
        prometheus="mqtt_packets_received",
        topics=("messages/received",),  # Mosquitto calls packets messages
        load="messages/received",
    ),
    CounterRow(
        "packets_sent",
        "MQTT packets of any kind to clients.",
        prometheus="mqtt_packets_sent",
        topics=("messages/sent",),
        load="messages/sent",
        computed=True,
    ),
    CounterRow("answers_sent", "MQTT packets to clients that are no PUBLISH."),
    CounterRow(
        "bytes_received",
        "Bytes from clients, as the transport carries them.",
        prometheus="received_bytes",
        topics=("bytes/received",),
        load="bytes/received",
    ),
    CounterRow(
        "bytes_sent",
        "Bytes to clients, as the transport carries them.",
        prometheus="sent_bytes",
        topics=("bytes/sent",),
        load="bytes/sent",
    ),
    CounterRow(
        "publishes_received",
        "PUBLISH packets from clients.",
        prometheus="messages_received",
        topics=("publish/messages/received",),
        load="publish/received",
        record="in.messages",
    ),
    CounterRow(
        "publishes_sent",
        "PUBLISH packets to clients.",
        prometheus="messages_sent",
        topics=("publish/messages/sent",),
        load="publish/sent",
        record="out.messages",
    ),
    CounterRow(
        "publish_bytes_received",
        "Payload bytes of PUBLISH packets from clients.",
        prometheus="message_payload_received_bytes",
        topics=("publish/bytes/received",),
        record="in.bytes",
    ),
    CounterRow(
        "publish_bytes_sent",
        "Payload bytes of PUBLISH packets to clients.",
        prometheus="message_payload_sent_bytes",
        topics=("publish/bytes/sent",),
        record="out.bytes",
    ),
    CounterRow(
        "publishes_dropped",
        "Messages that a receiver does not get, one for each receiver. By reason: weir_messages_dropped_total.",
        topics=("publish/messages/dropped",),
        load="publish/dropped",
    ),
    CounterRow(
        "sockets_opened",
        "Connections that the listeners accepted, also those that end without a CONNECT.",
        prometheus="connections_opened",
        load="sockets",
    ),
    CounterRow("connects_received", "CONNECT packets.", load="connections", record="connects.received"),
    CounterRow("connects_delayed", "CONNECT packets that had to wait for their turn.", prometheus="connects_delayed"),
    CounterRow(
        "connects_accepted",
        "CONNECT packets that were accepted.",
        prometheus="connects_accepted",
        record="connects.accepted",
    ),
    CounterRow(
        "connects_refused",
        "CONNECT packets that were refused.",
        prometheus="connects_refused",
        record="connects.refused",
    ),
    CounterRow(
        "passwords_hashed",
        "Passwords that were hashed, right or wrong.",
        prometheus="passwords_hashed",
    ),
    CounterRow(
        "sessions_expired",
        "Sessions that expired while their client was away.",
        prometheus="sessions_expired",
        topics=("clients/expired",),
    ),
    CounterRow(
        "sessions_warmed",
        "Durable sessions that were read from Redis: for a client, a message, an operator, or as they had expired.",
        prometheus="sessions_warmed",
    ),
    CounterRow(
        "sessions_cooled",
        "Durable sessions that went on in Redis alone, as their clients had been away for some time.",
        prometheus="sessions_cooled",
    ),
    CounterRow(
        "sessions_damaged",
        "Durable sessions that ended because what Redis has of them cannot be read or written.",
        prometheus="sessions_damaged",
    ),
    CounterRow(
        "internal_errors",
        "Failures of Weir's own code. Each is logged as internal_error.",
        prometheus="internal_errors",
    ),
    CounterRow(
        "reports_sent_mesh",
        "Overload reports sent to other workers of the node.",
        prometheus="overload_reports_sent_mesh",
    ),
    CounterRow(
        "reports_heard_mesh",
        "Overload reports received from other workers of the node.",
        prometheus="overload_reports_heard_mesh",
    ),
    CounterRow(
        "reports_sent_redis",
        "Overload reports that Redis published.",
        prometheus="overload_reports_sent_redis",
    ),
    CounterRow(
        "reports_lost_redis",
        "Overload reports that Redis did not publish, or not in time.",
        prometheus="overload_reports_lost_redis",
    ),
    CounterRow(
        "reports_heard_redis",
        "Overload reports received through Redis, including the worker's own.",
        prometheus="overload_reports_heard_redis",
    ),
    CounterRow(
        "redis_forged",
        "Overload reports and wills in Redis that were ignored, as they are not sealed with the key of the cluster.",
        prometheus="redis_forged",
    ),
    CounterRow("subscribes", "Filters in SUBSCRIBE packets.", prometheus="subscribe_filters"),
    CounterRow("unsubscribes", "Filters in UNSUBSCRIBE packets.", prometheus="unsubscribe_filters"),
    CounterRow("retained_set", "Retained messages that were set or replaced."),
    CounterRow("retained_deleted", "Retained messages that were deleted."),
    CounterRow(
        "retained_damaged",
        "Stored retained messages that cannot be read and were set aside.",
        prometheus="retained_damaged",
    ),
    CounterRow(
        "retained_left",
        "Stored retained messages that were not read, as they exceed retained.messages or retained.bytes.",
        prometheus="retained_not_loaded",
    ),
    CounterRow(
        "became_non_writable",
        "Times that a client exceeded its high watermark.",
        prometheus="clients_became_non_writable",
        record="clients.became_non_writable",
    ),
    CounterRow(
        "records_written",
        "Metrics records that were written to their log.",
        prometheus="metrics_records_written",
    ),
    CounterRow(
        "store_transactions",
        "Transactions that wrote durable sessions to Redis.",
        prometheus="store_transactions",
    ),
    CounterRow("store_commands", "Commands of these transactions.", prometheus="store_commands"),
    CounterRow(
        "store_bytes",
        "Bytes of these commands.",
        prometheus="store_written_bytes",
    ),
    CounterRow("log_packs", "Packs of messages that logs of APPLICATION clients have stored.", prometheus="log_packs"),
    CounterRow("log_bytes", "Bytes of these packs.", prometheus="log_written_bytes"),
    CounterRow(
        "log_carriers",
        "Carriers that the worker was connected to: each but the first has replaced one that ended.",
        prometheus="log_carriers",
    ),
    CounterRow(
        "store_repeated",
        "Transactions that were sent again, as Redis had refused them or its answer was lost.",
        prometheus="store_repeated",
    ),
)

REASONS: Final = (
    ReasonRow(
        "dropped_by_reason",
        "dropped",
        DropReason,
        "Messages that a receiver does not get, one for each receiver, by reason.",
        prometheus="messages_dropped",
        topic="weir/dropped/{}",
        record="dropped",
    ),
    ReasonRow(
        "closed_by_reason",
        "closed",
        CloseReason,
        "Connections that ended, by reason.",
        prometheus="connections_closed",
        topic="weir/closed/{}",
        record="closed",
    ),
    ReasonRow(
        "refused_by_reason",
        "refused",
        FilterRefusal,
        "Filters that were refused in a SUBACK, by reason.",
        prometheus="subscribe_filters_refused",
        topic="weir/refused/{}",
        record="refused",
    ),
    ReasonRow(
        "publishes_refused_by_reason",
        "publishes_refused",
        PublishRefusal,
        "QoS 1 and 2 publishes of MQTT 5.0 clients that were refused, by reason.",
        prometheus="publishes_refused",
        topic="weir/refused/{}",  # no label is in FilterRefusal, too
        record="refused",
    ),
    ReasonRow(
        "pauses_by_reason",
        "pauses",
        PauseReason,
        "Times that a client was paused, by reason.",
        prometheus="client_pauses",
        topic="overload/paused/{}/pauses",
        record="paused.*.pauses",
    ),
    ReasonRow(
        "paused_ms_by_reason",
        "paused_ms",
        PauseReason,
        "Time that clients were paused, of all of them together, by reason.",
        prometheus="client_paused_seconds",
        scale=1e-3,
        topic="overload/paused/{}/ms",
        record="paused.*.ms",
    ),
    ReasonRow(
        "flushes_by_cause",
        "flushes",
        FlushCause,
        "Times that a client's outbox was flushed, by cause.",
        prometheus="flushes",
        label="cause",
        record="flushes",
    ),
    ReasonRow(
        "store_failures_by_reason",
        "store_failures",
        StoreFailure,
        "Transactions of durable sessions that Redis refused or did not answer; each is sent again, by reason.",
        prometheus="store_failures",
    ),
    ReasonRow(
        "log_refusals_by_reason",
        "log_refusals",
        LogFailure,
        "Packs of messages that the log refused, and that their clients do not get, by reason.",
        prometheus="log_refused_packs",
    ),
    ReasonRow(
        "records_dropped_by_reason",
        "records_dropped",
        StoreFailure,
        "Metrics records that were not written to their log, by reason.",
        prometheus="metrics_records_dropped",
    ),
)

GAUGES: Final = (
    GaugeRow(
        "clients_connected",
        "connected",
        "Clients that are connected.",
        prometheus="clients_connected",
        topics=("clients/connected", "clients/active"),  # the second is the former name
        record="clients.connected",
    ),
    GaugeRow(
        "clients_total",
        "sessions",
        "Sessions, of clients that are connected or away.",
        prometheus="sessions",
        topics=("clients/total",),
    ),
    GaugeRow(
        "sessions_cold",
        "sessions_cold",
        "Sessions of clients that are away which are in Redis alone.",
        prometheus="sessions_cold",
    ),
    GaugeRow(
        "sessions_in_memory",
        "sessions_in_memory",
        "Sessions that end with their worker, as they are in its memory alone.",
        prometheus="sessions_in_memory",
    ),
    GaugeRow(
        "connects_waiting",
        "connects_waiting",
        "CONNECT packets that wait for their turn.",
        prometheus="connects_waiting",
    ),
    GaugeRow(
        "subscriptions",
        "subscriptions",
        "Subscriptions, without shared ones.",
        prometheus="subscriptions",
        topics=("subscriptions/count",),
    ),
    GaugeRow(
        "shared_subscriptions",
        "shared_subscriptions",
        "Shared subscriptions.",
        prometheus="shared_subscriptions",
        topics=("shared_subscriptions/count",),
    ),
    GaugeRow(
        "store_waiting",
        "store_waiting",
        "Publishes that wait until Redis has stored them for durable sessions.",
        prometheus="store_waiting",
    ),
    GaugeRow(
        "store_ms",
        "store_ms",
        "Milliseconds that publishes wait for Redis: the mean of the last 100 to 200 ms.",
        node=GREATEST,
        prometheus="store_seconds",
        scale=1e-3,
    ),
    GaugeRow(
        "log_waiting",
        "log_waiting",
        "Packs of messages that wait until the log has stored them.",
        prometheus="log_waiting_packs",
    ),
    GaugeRow(
        "log_waiting_bytes",
        "log_waiting_bytes",
        "Bytes of these packs.",
        prometheus="log_waiting_bytes",
    ),
    GaugeRow(
        "log_held_bytes",
        "log_held_bytes",
        "Bytes of records that were read of logs, and wait for room in the queues of their clients.",
        prometheus="log_held_bytes",
    ),
    GaugeRow("log_readings", "log_readings", "Logs that are being read.", prometheus="log_readings"),
    GaugeRow(
        "log_failing",
        "log_failing",
        "Logs of APPLICATION clients that cannot be made, found or read.",
        prometheus="log_failing",
    ),
    GaugeRow(
        "log_ms",
        "log_ms",
        "Milliseconds that publishes wait for the log: the mean of the last 100 to 200 ms.",
        node=GREATEST,
        prometheus="log_seconds",
        scale=1e-3,
    ),
    GaugeRow(
        "store_fill",
        "store_fill",
        "Share of its maxmemory that Redis uses, 0 to 1; 0: not known, or there is no limit.",
        node=GREATEST,
        prometheus="store_fill",
        topics=("weir/store/fill",),
        form=".3f",
    ),
    GaugeRow(
        "retained",
        "retained",
        "Retained messages of clients, without those of the broker itself ($SYS).",
        node=GREATEST,
        prometheus="retained_messages",
        topics=("retained messages/count",),
    ),
    GaugeRow(
        "retained_bytes",
        "retained_bytes",
        "Bytes of these messages.",
        node=GREATEST,
        prometheus="retained_bytes",
    ),
    GaugeRow(
        "retained_unwritten",
        "retained_unwritten",
        "Retained messages whose last change is not stored in Redis yet.",
        prometheus="retained_unwritten",
    ),
    GaugeRow(
        "queued",
        "queued",
        "Messages that are queued in sessions.",
        prometheus="queued_messages",
        record="queues.messages",
    ),
    GaugeRow(
        "queued_bytes",
        "queued_bytes",
        "Bytes of messages that wait in sessions or are in flight.",
        prometheus="queued_bytes",
        record="queues.bytes",
    ),
    GaugeRow(
        "queued_limit",
        "queued_limit",
        "Bytes of messages that may wait in sessions or be in flight.",
        record="queues.limit_bytes",
    ),
    GaugeRow(
        "heap_bytes",
        "resident_bytes",
        "Resident memory of all workers.",
        prometheus="workers_resident_memory_bytes",
        topics=("heap/current",),
    ),
    GaugeRow(
        "non_writable",
        "non_writable",
        "Slow readers: clients over their high watermark.",
        prometheus="clients_non_writable",
        topics=("overload/clients/non_writable",),
        record="clients.non_writable",
    ),
    GaugeRow(
        "paused",
        "paused",
        "Clients that are paused, for any reason.",
        prometheus="clients_paused",
        topics=("overload/clients/paused",),
    ),
    GaugeRow(
        "outbound_bytes",
        "outbound_bytes",
        "Bytes that wait to be sent to clients.",
        prometheus="outbound_bytes",
        record="queues.outbound_bytes",
    ),
    GaugeRow(
        "outbound_limit",
        "outbound_limit",
        "Bytes that may wait to be sent to clients.",
        record="queues.outbound_limit_bytes",
    ),
    GaugeRow(
        "p50_ms",
        "p50_ms",
        "Time from reading a publish to its acknowledgement, in the last second, at the slowest worker.",
        node=GREATEST,
        prometheus="publish_latency_seconds",
        quantile="0.5",
        scale=1e-3,
        topics=("overload/latency/p50_ms",),
        form=".3f",
    ),
    GaugeRow(
        "p99_ms",
        "p99_ms",
        "Time from reading a publish to its acknowledgement, in the last second, at the slowest worker.",
        node=GREATEST,
        prometheus="publish_latency_seconds",
        quantile="0.99",
        scale=1e-3,
        topics=("overload/latency/p99_ms",),
        form=".3f",
    ),
)

OVERLOAD: Final = (
    OverloadRow(
        "level",
        "Overload level of the worst worker, 0 to 10.",
        prometheus="overload_level",
        topic="overload/level",
        record="level",
    ),
    OverloadRow(
        "cluster_level",
        "Highest overload level of all nodes, which is in force on each of them.",
        prometheus="overload_cluster_level",
        topic="overload/cluster_level",
        record="cluster_level",
    ),
    OverloadRow("cause", "Signal with the highest value, empty at level 0.", topic="overload/cause", record="cause"),
    OverloadRow(
        "credits_per_tick",
        "Credits that each client gets every 200 ms.",
        prometheus="overload_credits_per_tick",
        topic="overload/credits_per_tick",
        record="credits_per_tick",
    ),
    OverloadRow(
        "using_credits",
        "Clients that have fewer credits than the maximum.",
        prometheus="overload_clients_using_credits",
        topic="overload/clients/using_credits",
        record="clients.using_credits",
    ),
    OverloadRow(
        "average_credits",
        "Average number of credits of a client.",
        prometheus="overload_clients_average_credits",
        topic="overload/clients/average_credits",
        form=".0f",
        record="clients.average_credits",
        digits=1,
    ),
    OverloadRow(
        "throttled",
        "Clients that wait at a gate or for credits: in back-pressure, as HiveMQ calls it.",
        prometheus="overload_clients_throttled",
        topic="overload/clients/throttled",
        record="clients.throttled",
    ),
    OverloadRow("signals", "Highest value of each overload signal of all workers, 1 being its target."),
)
