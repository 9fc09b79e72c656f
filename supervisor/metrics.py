# The node's figures for Prometheus, by its conventions: names with units, counters with _total, seconds and bytes.
#
# Labels are bounded: a reason is a member of broker/reasons.py, a worker is a shard. Nothing a client chose is one.
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

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
    "connects_accepted": ("connects_accepted", "CONNECT packets that were granted."),
    "connects_refused": ("connects_refused", "CONNECT packets that were refused."),
    "internal_errors": ("internal_errors", "Mistakes of our own, each of which is in the log."),
    "subscribes": ("subscribe_filters", "Filters that clients asked for."),
    "unsubscribes": ("unsubscribe_filters", "Filters that clients gave up."),
    "sessions_expired": ("sessions_expired", "Sessions whose client did not come back in time."),
}
REASONS: Final = {
    "dropped": ("messages_dropped", "Messages that a receiver went without, by reason."),
    "closed": ("connections_closed", "Connections that ended, by reason."),
    "refused": ("subscribe_filters_refused", "Filters that were not subscribed to, by reason."),
}
GAUGES: Final = {
    "connected": ("clients_connected", "Clients that are connected."),
    "sessions": ("sessions", "Sessions, of clients that are connected or away."),
    "subscriptions": ("subscriptions", "Subscriptions, shared ones apart."),
    "shared_subscriptions": ("shared_subscriptions", "Shared subscriptions."),
    "retained": ("retained_messages", "Retained messages."),
    "stored_messages": ("stored_messages", "Messages retained or queued."),
    "stored_bytes": ("stored_bytes", "Bytes of messages retained or queued."),
    "resident_bytes": ("workers_resident_memory_bytes", "Resident memory of all workers."),
}


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
        yield from self._workers()

    def _workers(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("weir_worker_up", "Whether the worker serves.", labels=["worker"])
        deaths = CounterMetricFamily("weir_worker_deaths", "Deaths of the worker's processes.", labels=["worker"])
        connected = GaugeMetricFamily("weir_worker_clients_connected", "Its clients.", labels=["worker"])
        for shard in self._node.shards:
            process = shard.process
            serves = process is not None and process.state == "serving"
            gauges = process.statistics.get("gauges", {}) if process is not None and serves else {}
            up.add_metric([str(shard.number)], float(serves))
            deaths.add_metric([str(shard.number)], shard.deaths)
            connected.add_metric([str(shard.number)], gauges.get("connected", 0))
        yield from (up, deaths, connected)


def exposition(node: Node) -> bytes:
    """All of it, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(node))
    return generate_latest(registry)
