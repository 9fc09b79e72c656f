# The report: what a worker tells its supervisor each second, for `weir status`, for Prometheus and for $SYS.
#
# Counters are cumulative since the worker's start and gauges are what holds now; who sums them over workers, and over
# the lives of one, is the supervisor (supervisor/totals.py), which tells each worker the sum of the others: what $SYS
# says is of the whole node. By reason only what has happened is told.
from collections import Counter
from dataclasses import asdict
from typing import Any, Final

from broker.metrics.counters import Counters
from broker.metrics.overload_figures import OverloadFigures, together
from broker.metrics.sys_topics import Gauges

Report = dict[str, Any]
# Gauges of which the greatest is that of the node: each worker holds all of it, or a sum means nothing.
GREATEST: Final = ("retained", "retained_bytes", "p50_ms", "p99_ms")
# What is told by reason, and what Counters calls it.
REASONS: Final = {
    "dropped": "dropped_by_reason",
    "closed": "closed_by_reason",
    "refused": "refused_by_reason",
    "publishes_refused": "publishes_refused_by_reason",
    "pauses": "pauses_by_reason",
    "paused_ms": "paused_ms_by_reason",
    "flushes": "flushes_by_cause",
    "records_dropped": "records_dropped_by_reason",
}
SUMMED: Final = (
    "packets_received",
    "answers_sent",
    "bytes_received",
    "bytes_sent",
    "publishes_received",
    "publishes_sent",
    "publish_bytes_received",
    "publish_bytes_sent",
    "publishes_dropped",
    "sockets_opened",
    "connects_received",
    "connects_delayed",
    "connects_accepted",
    "connects_refused",
    "subscribes",
    "unsubscribes",
    "became_non_writable",
    "records_written",
)


def report(counters: Counters, gauges: Gauges) -> Report:
    """{"counters": {name: count}, "reasons": {name: {label: count}}, "gauges": {name: value}, "overload": figures}."""
    return {
        "counters": {
            "packets_received": counters.packets_received,
            "packets_sent": counters.packets_sent,
            "answers_sent": counters.answers_sent,
            "bytes_received": counters.bytes_received,
            "bytes_sent": counters.bytes_sent,
            "publishes_received": counters.publishes_received,
            "publishes_sent": counters.publishes_sent,
            "publish_bytes_received": counters.publish_bytes_received,
            "publish_bytes_sent": counters.publish_bytes_sent,
            "publishes_dropped": counters.publishes_dropped,
            "sockets_opened": counters.sockets_opened,
            "connects_received": counters.connects_received,
            "connects_delayed": counters.connects_delayed,
            "connects_accepted": counters.connects_accepted,
            "connects_refused": counters.connects_refused,
            "internal_errors": counters.internal_errors,
            "reports_sent_mesh": counters.reports_sent_mesh,
            "reports_heard_mesh": counters.reports_heard_mesh,
            "reports_sent_redis": counters.reports_sent_redis,
            "reports_lost_redis": counters.reports_lost_redis,
            "reports_heard_redis": counters.reports_heard_redis,
            "subscribes": counters.subscribes,
            "unsubscribes": counters.unsubscribes,
            "sessions_expired": gauges.clients_expired,
            "became_non_writable": counters.became_non_writable,
            "records_written": counters.records_written,
        },
        "reasons": {
            kind: {label: count for label, count in getattr(counters, attribute).items() if count}
            for kind, attribute in REASONS.items()
        },
        "gauges": {
            "connected": gauges.clients_connected,
            "sessions": gauges.clients_total,
            "connects_waiting": gauges.connects_waiting,
            "subscriptions": gauges.subscriptions,
            "shared_subscriptions": gauges.shared_subscriptions,
            "retained": gauges.retained,
            "retained_bytes": gauges.retained_bytes,
            "queued": gauges.queued,
            "queued_bytes": gauges.queued_bytes,
            "resident_bytes": gauges.heap_bytes,
            "non_writable": gauges.non_writable,
            "paused": gauges.paused,
            "outbound_bytes": gauges.outbound_bytes,
            "p50_ms": gauges.p50_ms,
            "p99_ms": gauges.p99_ms,
        },
        "overload": asdict(gauges.overload),
    }


def with_others(counters: Counters, gauges: Gauges, others: Report) -> tuple[Counters, Gauges]:
    """What the whole node counts and holds: this worker, and *others*, the sum of the rest ({}: there is none)."""
    if not others:
        return counters, gauges
    counted = others["counters"]
    total = Counters()
    for name in SUMMED:
        setattr(total, name, getattr(counters, name) + counted.get(name, 0))
    for kind, attribute in REASONS.items():
        setattr(total, attribute, _added(getattr(counters, attribute), others["reasons"][kind]))
    held = others["gauges"]
    return total, Gauges(
        clients_connected=gauges.clients_connected + held.get("connected", 0),
        clients_total=gauges.clients_total + held.get("sessions", 0),
        clients_expired=gauges.clients_expired + counted.get("sessions_expired", 0),
        subscriptions=gauges.subscriptions + held.get("subscriptions", 0),
        shared_subscriptions=gauges.shared_subscriptions + held.get("shared_subscriptions", 0),
        retained=gauges.retained,
        retained_bytes=gauges.retained_bytes,
        queued=gauges.queued + held.get("queued", 0),
        queued_bytes=gauges.queued_bytes + held.get("queued_bytes", 0),
        heap_bytes=gauges.heap_bytes + held.get("resident_bytes", 0),
        non_writable=gauges.non_writable + held.get("non_writable", 0),
        paused=gauges.paused + held.get("paused", 0),
        p50_ms=max(gauges.p50_ms, held.get("p50_ms", 0.0)),
        p99_ms=max(gauges.p99_ms, held.get("p99_ms", 0.0)),
        overload=together(
            [
                (gauges.overload, gauges.clients_connected),
                (OverloadFigures(**others["overload"]), held.get("connected", 0)),
            ]
        ),
    )


def overload_of(reports: list[Report]) -> OverloadFigures:
    """That of all workers together, from the reports of those who live."""
    return together([(OverloadFigures(**told["overload"]), told["gauges"]["connected"]) for told in reports if told])


def _added(own: dict[str, int], others: dict[str, int]) -> dict[str, int]:
    return dict(Counter(own) + Counter(others))
