# The metrics of a node for Prometheus: those that workers report (broker/metrics/table.py), and the node's own.
#
# Names follow Prometheus' conventions: a unit at the end, seconds and bytes, `_total` for counters. Labels are bounded:
# a reason is a member of broker/reasons.py, a worker is a number. Nothing that a client chose is a label.
from collections.abc import Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from broker.metrics.report import Report
from broker.metrics.table import COUNTERS, GAUGES, OVERLOAD, REASONS
from broker.version import VERSION, form
from supervisor.node import Node

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
SERVING: Final = "serving"
# Of the report of the carrier (broker/carrier/carrier.py).
CARRIER_COUNTERS: Final = (
    ("stored_packs", "Packs of messages that the log has stored."),
    ("stored_records", "Records that these packs were stored in."),
    ("resent_records", "Records that were sent again, as it was not known whether the log has them."),
    ("read_records", "Records that were read for workers."),
    ("repeated_packs", "Packs that were read twice, and left out."),
    ("damaged_records", "Records that could not be decoded."),
    ("committed_offsets", "Offsets of consumer groups that were committed to Kafka, for its tools."),
    ("failed_offsets", "Offsets that Kafka has refused, or that were dropped."),
)
CARRIER_GAUGES: Final = (
    ("waiting_packs", "Packs that the log has not stored yet."),
    ("waiting_bytes", "Bytes that these take."),
    ("failing_partitions", "Partitions that nothing can be appended to."),
    ("readings", "Partitions that are read for workers."),
    ("resident_bytes", "Memory of the carrier."),
)


class NodeCollector(Collector):
    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        node = self._node
        info = GaugeMetricFamily("weir_build_info", "Version of Weir.", labels=["version", "form"])
        info.add_metric([VERSION, form()], 1)
        yield info
        yield GaugeMetricFamily("weir_ready", "1 if the node takes clients, else 0.", value=float(node.ready()))
        draining = float(bool(node.drain.state))
        yield GaugeMetricFamily("weir_draining", "1 while the node is drained (weir drain), else 0.", value=draining)
        yield GaugeMetricFamily("weir_start_time_seconds", "Start of the node, in Unix time.", value=node.started_at)
        yield CounterMetricFamily(
            "weir_admin_connections_dropped",
            "Connections to the admin port that were dropped for newer ones.",
            value=node.admin_connections_dropped,
        )
        yield from _from_table(node.statistics())
        yield from self._workers()
        if node.carrier is not None:
            yield from _carrier(node.carrier.describe())

    def _workers(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("weir_worker_up", "1 if the worker serves, else 0.", labels=["worker"])
        deaths = CounterMetricFamily("weir_worker_deaths", "Processes of the worker that died.", labels=["worker"])
        connected = GaugeMetricFamily(
            "weir_worker_clients_connected", "Clients that are connected to the worker.", labels=["worker"]
        )
        level = GaugeMetricFamily(
            "weir_worker_overload_level", "Overload level of the worker, 0 to 10.", labels=["worker"]
        )
        for shard in self._node.shards:
            process = shard.process
            serves = process is not None and process.state == "serving"
            told = process.statistics if process is not None and serves else {}
            up.add_metric([str(shard.number)], float(serves))
            deaths.add_metric([str(shard.number)], shard.deaths)
            connected.add_metric([str(shard.number)], told.get("gauges", {}).get("connected", 0))
            level.add_metric([str(shard.number)], told.get("overload", {}).get("level", 0))
        yield from (up, deaths, connected, level)


def _carrier(told: dict[str, Any]) -> Iterator[Metric]:
    """The carrier, and what it reports; its counters begin at 0 with each process."""
    yield GaugeMetricFamily(
        "weir_carrier_up", "1 if the carrier serves, else 0.", value=float(told["state"] == SERVING)
    )
    yield CounterMetricFamily("weir_carrier_deaths", "Processes of the carrier that died.", value=told["deaths"])
    report = told["report"]
    for name, meaning in CARRIER_COUNTERS:
        yield CounterMetricFamily(f"weir_carrier_{name}", meaning, value=report.get(name, 0))
    for name, meaning in CARRIER_GAUGES:
        yield GaugeMetricFamily(f"weir_carrier_{name}", meaning, value=report.get(name, 0))


def _from_table(told: Report) -> Iterator[Metric]:
    """What the workers report, summed."""
    for row in COUNTERS:
        if row.prometheus:
            count = told["counters"].get(row.attribute, 0)
            yield CounterMetricFamily(f"weir_{row.prometheus}", row.meaning, value=count)
    for by in REASONS:
        family = CounterMetricFamily(f"weir_{by.prometheus}", by.meaning, labels=[by.label])
        for label, count in sorted(told["reasons"][by.reported].items()):
            family.add_metric([label], count * by.scale)
        yield family
    quantiles: dict[str, GaugeMetricFamily] = {}
    for gauge in GAUGES:
        name, value = f"weir_{gauge.prometheus}", told["gauges"].get(gauge.reported, 0) * gauge.scale
        if gauge.quantile:
            if name not in quantiles:
                quantiles[name] = GaugeMetricFamily(name, gauge.meaning, labels=["quantile"])
            quantiles[name].add_metric([gauge.quantile], value)
        elif gauge.prometheus:
            yield GaugeMetricFamily(name, gauge.meaning, value=value)
    yield from quantiles.values()
    for figure in OVERLOAD:
        if figure.prometheus:
            value = told["overload"][figure.attribute]
            yield GaugeMetricFamily(f"weir_{figure.prometheus}", figure.meaning, value=value)
    signals = GaugeMetricFamily(
        "weir_overload_signal", "Highest value of the signal of all workers, 1 being its target.", labels=["signal"]
    )
    for name, value in sorted(told["overload"]["signals"].items()):
        signals.add_metric([name], value)
    yield signals


def exposition(node: Node) -> bytes:
    """All metrics of *node*, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(NodeCollector(node))
    return generate_latest(registry)
