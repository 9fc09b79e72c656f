# The sums of what the workers of a node report, over all workers and over their restarts: no counter ever decreases.
from collections import Counter
from dataclasses import asdict
from typing import Any

from broker.metrics.report import BY_REASON, HIGHEST, Report, overload_of


class Totals:
    def __init__(self) -> None:
        self._counters: Counter[str] = Counter()  # of ended workers
        self._reasons: dict[str, Counter[str]] = {kind: Counter() for kind in BY_REASON}

    def add_ended(self, last: Report) -> None:
        """Keep the counters of a worker that has ended. *last*: its last report, {} if there was none."""
        self._counters.update(last.get("counters", {}))
        for kind, counts in last.get("reasons", {}).items():
            self._reasons[kind].update(counts)

    def sum(self, running: list[Report]) -> Report:
        """The sum of the ended workers and of *running*, the last reports of the running ones."""
        counters = Counter(self._counters)
        reasons = {kind: Counter(counts) for kind, counts in self._reasons.items()}
        gauges: dict[str, Any] = dict.fromkeys(HIGHEST, 0)
        for report in running:
            counters.update(report.get("counters", {}))
            for name, value in report.get("gauges", {}).items():
                former = gauges.get(name, 0)
                gauges[name] = max(former, value) if name in HIGHEST else former + value
            for kind, counts in report.get("reasons", {}).items():
                reasons[kind].update(counts)
        return {
            "counters": dict(counters),
            "reasons": {kind: dict(counts) for kind, counts in reasons.items()},
            "gauges": gauges,
            "overload": asdict(overload_of(running)),
        }
