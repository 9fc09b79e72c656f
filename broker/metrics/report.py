# What a worker reports to its supervisor each second, for `weir status`, Prometheus and $SYS. table.py lists it.
#
# Counters are cumulative since the worker's start, gauges are of this moment. The supervisor adds the reports of all
# workers, and of those that ended, and sends each worker the sum of the others (supervisor/totals.py): so $SYS is about
# the whole node. A reason that has not occurred is left out.
from collections import Counter
from dataclasses import asdict
from typing import Any, Final

from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.overload_figures import OverloadFigures, together
from broker.metrics.rows import GREATEST
from broker.metrics.table import COUNTERS, GAUGES, REASONS

Report = dict[str, Any]
BY_REASON: Final = tuple(row.reported for row in REASONS)  # names of the counters by reason, in a report
HIGHEST: Final = tuple(row.reported for row in GAUGES if row.node == GREATEST)  # gauges that are not added up


def report(counters: Counters, gauges: Gauges) -> Report:
    """{"counters": {name: count}, "reasons": {name: {label: count}}, "gauges": {name: value}, "overload": figures}."""
    return {
        "counters": {row.attribute: getattr(counters, row.attribute) for row in COUNTERS},
        "reasons": {
            row.reported: {label: count for label, count in getattr(counters, row.attribute).items() if count}
            for row in REASONS
        },
        "gauges": {row.reported: getattr(gauges, row.attribute) for row in GAUGES},
        "overload": asdict(gauges.overload),
    }


def with_others(counters: Counters, gauges: Gauges, others: Report) -> tuple[Counters, Gauges]:
    """The counters and gauges of the node: this worker's, and *others*, the sum of the other workers ({}: none)."""
    if not others:
        return counters, gauges
    total, all_gauges = Counters(), Gauges()
    for row in COUNTERS:
        if not row.computed:
            setattr(total, row.attribute, getattr(counters, row.attribute) + others["counters"].get(row.attribute, 0))
    for by in REASONS:
        added = Counter(getattr(counters, by.attribute)) + Counter(others["reasons"].get(by.reported, {}))
        setattr(total, by.attribute, dict(added))
    held = others["gauges"]
    for gauge in GAUGES:
        own, theirs = getattr(gauges, gauge.attribute), held.get(gauge.reported, 0)
        setattr(all_gauges, gauge.attribute, max(own, theirs) if gauge.node == GREATEST else own + theirs)
    all_gauges.overload = together(
        [
            (gauges.overload, gauges.clients_connected),
            (OverloadFigures(**others["overload"]), held.get("connected", 0)),
        ]
    )
    return total, all_gauges


def overload_of(reports: list[Report]) -> OverloadFigures:
    """The overload figures of a node, from the reports of its running workers ({}: a worker has not reported yet)."""
    return together([(OverloadFigures(**told["overload"]), told["gauges"]["connected"]) for told in reports if told])
