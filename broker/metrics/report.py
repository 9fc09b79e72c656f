# The report: what a worker tells its supervisor each second, for `weir status` and for Prometheus.
#
# Counters are cumulative since the worker's start and gauges are what holds now; who sums them over workers, and over
# the lives of one, is the supervisor (supervisor/totals.py). By reason only what has happened is told.
from typing import Any

from broker.metrics.counters import Counters
from broker.metrics.sys_topics import Gauges


def report(counters: Counters, gauges: Gauges) -> dict[str, Any]:
    """{"counters": {name: count}, "reasons": {name: {label: count}}, "gauges": {name: value}}."""
    return {
        "counters": {
            "packets_received": counters.packets_received,
            "packets_sent": counters.packets_sent,
            "bytes_received": counters.bytes_received,
            "bytes_sent": counters.bytes_sent,
            "publishes_received": counters.publishes_received,
            "publishes_sent": counters.publishes_sent,
            "publish_bytes_received": counters.publish_bytes_received,
            "publish_bytes_sent": counters.publish_bytes_sent,
            "sockets_opened": counters.sockets_opened,
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
            "stored_messages": gauges.stored_messages,
            "stored_bytes": gauges.stored_bytes,
            "resident_bytes": gauges.heap_bytes,
        },
    }
