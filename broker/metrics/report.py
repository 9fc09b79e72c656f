# The report: what a worker tells its supervisor each second, for `weir status`, for Prometheus and for $SYS.
#
# Counters are cumulative since the worker's start and gauges are what holds now; who sums them over workers, and over
# the lives of one, is the supervisor (supervisor/totals.py), which tells each worker the sum of the others: what $SYS
# says is of the whole node. By reason only what has happened is told.
from collections import Counter
from typing import Any, Final

from broker.metrics.counters import Counters
from broker.metrics.sys_topics import Gauges

Report = dict[str, Any]
EVERYWHERE: Final = ("retained", "retained_bytes")  # gauges of what each worker holds whole: no sum means anything
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
    "connects_accepted",
    "connects_refused",
    "subscribes",
    "unsubscribes",
)


def report(counters: Counters, gauges: Gauges) -> Report:
    """{"counters": {name: count}, "reasons": {name: {label: count}}, "gauges": {name: value}}."""
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
            "connects_accepted": counters.connects_accepted,
            "connects_refused": counters.connects_refused,
            "internal_errors": counters.internal_errors,
            "subscribes": counters.subscribes,
            "unsubscribes": counters.unsubscribes,
            "sessions_expired": gauges.clients_expired,
        },
        "reasons": {
            "dropped": {label: count for label, count in counters.dropped_by_reason.items() if count},
            "closed": {label: count for label, count in counters.closed_by_reason.items() if count},
            "refused": {label: count for label, count in counters.refused_by_reason.items() if count},
        },
        "gauges": {
            "connected": gauges.clients_connected,
            "sessions": gauges.clients_total,
            "subscriptions": gauges.subscriptions,
            "shared_subscriptions": gauges.shared_subscriptions,
            "retained": gauges.retained,
            "retained_bytes": gauges.retained_bytes,
            "queued": gauges.queued,
            "queued_bytes": gauges.queued_bytes,
            "resident_bytes": gauges.heap_bytes,
        },
    }


def with_others(counters: Counters, gauges: Gauges, others: Report) -> tuple[Counters, Gauges]:
    """What the whole node counts and holds: this worker, and *others*, the sum of the rest ({}: there is none)."""
    if not others:
        return counters, gauges
    counted = others["counters"]
    total = Counters()
    for name in SUMMED:
        setattr(total, name, getattr(counters, name) + counted.get(name, 0))
    total.dropped_by_reason = _added(counters.dropped_by_reason, others["reasons"]["dropped"])
    total.closed_by_reason = _added(counters.closed_by_reason, others["reasons"]["closed"])
    total.refused_by_reason = _added(counters.refused_by_reason, others["reasons"]["refused"])
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
    )


def _added(own: dict[str, int], others: dict[str, int]) -> dict[str, int]:
    return dict(Counter(own) + Counter(others))
