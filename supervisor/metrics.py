# The node's figures for Prometheus, by its conventions: names with units, counters with _total, seconds and bytes.
#
# Labels are bounded: a reason is a member of broker/reasons.py, a worker is a shard. Nothing a client chose is one.
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from broker.metrics.report import Report
from broker.version import VERSION, form
from supervisor.node import Node

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

# From the names of broker/metrics/report.py to Prometheus' and what they mean.
COUNTERS: Final = {
    "packets_received": ("mqtt_packets_received", "MQTT packets of any kind from clients."),
    "packets_sent": ("mqtt_packets_sent", "MQTT packets of any kind to clients."),
    "bytes_received": ("received_bytes", "Bytes from clients, as the transport carries them."),
    "bytes_sent": ("sent_bytes", "Bytes to clients, as the transport carries them."),
    "publishes_received": ("messages_received", "PUBLISH packets from clients."),
    "publishes_sent": ("messages_sent", "PUBLISH packets to clients."),
    "publish_bytes_received": ("message_payload_received_bytes", "Payload bytes of PUBLISH packets from clients."),
    "publish_bytes_sent": ("message_payload_sent_bytes", "Payload bytes of PUBLISH packets to clients."),
    "sockets_opened": ("connections_opened", "Connections accepted by the listeners."),
    "connects_delayed": ("connects_delayed", "CONNECT packets that had to wait for their turn."),
    "connects_accepted": ("connects_accepted", "CONNECT packets that were granted."),
    "connects_refused": ("connects_refused", "CONNECT packets that were refused."),
    "internal_errors": ("internal_errors", "Mistakes of our own, each of which is in the log."),
    "reports_sent_mesh": ("overload_reports_sent_mesh", "Overload reports to other workers of the node."),
    "reports_heard_mesh": ("overload_reports_heard_mesh", "Overload reports from other workers of the node."),
    "reports_sent_redis": ("overload_reports_sent_redis", "Overload reports that Redis has published."),
    "reports_lost_redis": ("overload_reports_lost_redis", "Overload reports that Redis did not publish in time."),
    "reports_heard_redis": ("overload_reports_heard_redis", "Overload reports heard by Redis, one's own too."),
    "subscribes": ("subscribe_filters", "Filters that clients asked for."),
    "unsubscribes": ("unsubscribe_filters", "Filters that clients gave up."),
    "sessions_expired": ("sessions_expired", "Sessions whose client did not come back in time."),
    "became_non_writable": ("clients_became_non_writable", "Times that a client came over its high watermark."),
    "records_written": ("metrics_records_written", "Metrics records that are in their log."),
}
REASONS: Final = {
    "dropped": ("messages_dropped", "Messages that a receiver went without, by reason."),
    "closed": ("connections_closed", "Connections that ended, by reason."),
    "refused": ("subscribe_filters_refused", "Filters that were not subscribed to, by reason."),
    "publishes_refused": ("publishes_refused", "QoS 1 and 2 publishes of 5.0 that were not taken, by reason."),
    "pauses": ("client_pauses", "Times that a client was held back, by reason."),
    "records_dropped": ("metrics_records_dropped", "Metrics records that did not get into their log, by reason."),
}
GAUGES: Final = {
    "connected": ("clients_connected", "Clients that are connected."),
    "sessions": ("sessions", "Sessions, of clients that are connected or away."),
    "connects_waiting": ("connects_waiting", "CONNECT packets whose turn has not come."),
    "subscriptions": ("subscriptions", "Subscriptions, shared ones apart."),
    "shared_subscriptions": ("shared_subscriptions", "Shared subscriptions."),
    "retained": ("retained_messages", "Retained messages."),
    "retained_bytes": ("retained_bytes", "Bytes of retained messages."),
    "queued": ("queued_messages", "Messages that wait in sessions."),
    "queued_bytes": ("queued_bytes", "Bytes of messages that wait in sessions."),
    "resident_bytes": ("workers_resident_memory_bytes", "Resident memory of all workers."),
    "non_writable": ("clients_non_writable", "Slow readers: clients over their high watermark."),
    "paused": ("clients_paused", "Clients that are held back, for any reason."),
    "outbound_bytes": ("outbound_bytes", "Bytes that clients have not taken yet."),
}
OVERLOAD: Final = {
    "level": ("overload_level", "Overload of the worst worker, 0 to 10."),
    "cluster_level": ("overload_cluster_level", "The highest level of all nodes, which is in force."),
    "credits_per_tick": ("overload_credits_per_tick", "Credits that each client is granted every 200 ms."),
    "using_credits": ("overload_clients_using_credits", "Clients with less than the most credits they may have."),
    "average_credits": ("overload_clients_average_credits", "Credits that a client has, on average."),
    "throttled": ("overload_clients_throttled", "Clients that overload protection holds back."),
}
QUANTILES: Final = {"p50_ms": "0.5", "p99_ms": "0.99"}


class NodeCollector(Collector):
    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        node = self._node
        told = node.statistics()
        info = GaugeMetricFamily("weir_build_info", "Which Weir this is.", labels=["version", "form"])
        info.add_metric([VERSION, form()], 1)
        yield info
        yield GaugeMetricFamily("weir_ready", "Whether all workers serve.", value=float(node.ready()))
        yield GaugeMetricFamily("weir_start_time_seconds", "When the node began, as Unix time.", value=node.began)
        for name, (ours, text) in COUNTERS.items():
            yield CounterMetricFamily(f"weir_{ours}", text, value=told["counters"].get(name, 0))
        for name, (ours, text) in REASONS.items():
            family = CounterMetricFamily(f"weir_{ours}", text, labels=["reason"])
            for label, count in sorted(told["reasons"][name].items()):
                family.add_metric([label], count)
            yield family
        for name, (ours, text) in GAUGES.items():
            yield GaugeMetricFamily(f"weir_{ours}", text, value=told["gauges"].get(name, 0))
        yield from _overload(told)
        yield from self._workers()

    def _workers(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("weir_worker_up", "Whether the worker serves.", labels=["worker"])
        deaths = CounterMetricFamily("weir_worker_deaths", "Deaths of the worker's processes.", labels=["worker"])
        connected = GaugeMetricFamily("weir_worker_clients_connected", "Its clients.", labels=["worker"])
        level = GaugeMetricFamily("weir_worker_overload_level", "Its overload, 0 to 10.", labels=["worker"])
        for shard in self._node.shards:
            process = shard.process
            serves = process is not None and process.state == "serving"
            told = process.statistics if process is not None and serves else {}
            up.add_metric([str(shard.number)], float(serves))
            deaths.add_metric([str(shard.number)], shard.deaths)
            connected.add_metric([str(shard.number)], told.get("gauges", {}).get("connected", 0))
            level.add_metric([str(shard.number)], told.get("overload", {}).get("level", 0))
        yield from (up, deaths, connected, level)


def _overload(told: Report) -> Iterator[Metric]:
    """What protects, and what it costs whom."""
    for name, (ours, text) in OVERLOAD.items():
        yield GaugeMetricFamily(f"weir_{ours}", text, value=told["overload"][name])
    signals = GaugeMetricFamily(
        "weir_overload_signal", "The worst of all workers, in units of its target.", labels=["signal"]
    )
    for name, value in sorted(told["overload"]["signals"].items()):
        signals.add_metric([name], value)
    yield signals
    held = CounterMetricFamily(
        "weir_client_paused_seconds", "Time that clients were held back, of all of them together.", labels=["reason"]
    )
    for label, milliseconds in sorted(told["reasons"]["paused_ms"].items()):
        held.add_metric([label], milliseconds / 1000)
    yield held
    flushes = CounterMetricFamily("weir_flushes", "Times that a client was sent what it was owed.", labels=["cause"])
    for label, count in sorted(told["reasons"]["flushes"].items()):
        flushes.add_metric([label], count)
    yield flushes
    latency = GaugeMetricFamily(
        "weir_publish_latency_seconds",
        "From when a publish was read to its acknowledgement, in the last second, at the worst worker.",
        labels=["quantile"],
    )
    for name, quantile in QUANTILES.items():
        latency.add_metric([quantile], told["gauges"].get(name, 0.0) / 1000)
    yield latency


def exposition(node: Node) -> bytes:
    """All of it, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(node))
    return generate_latest(registry)
