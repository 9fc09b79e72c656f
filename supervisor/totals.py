# Totals: what all workers of a node report, summed; and over the lives of each, so that a counter never goes back.
from collections import Counter
from dataclasses import asdict
from typing import Any

from broker.metrics.report import BY_REASON, HIGHEST, Report, overload_of


class Totals:
    def __init__(self) -> None:
        self._counters: Counter[str] = Counter()  # of workers that are no more
        self._reasons: dict[str, Counter[str]] = {kind: Counter() for kind in BY_REASON}

    def bury(self, last: Report) -> None:
        """A worker has ended; *last* is its last report, {} if it never made one."""
        self._counters.update(last.get("counters", {}))
        for kind, counts in last.get("reasons", {}).items():
            self._reasons[kind].update(counts)

    def with_(self, living: list[Report]) -> Report:
        """The sum of all, with the last reports of those who live."""
        counters = Counter(self._counters)
        reasons = {kind: Counter(counts) for kind, counts in self._reasons.items()}
        gauges: dict[str, Any] = dict.fromkeys(HIGHEST, 0)
        for report in living:
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
            "overload": asdict(overload_of(living)),
        }
