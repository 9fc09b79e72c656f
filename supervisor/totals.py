# Totals: what all workers of a node report, summed; and over the lives of each, so that a counter never goes back.
from collections import Counter
from typing import Any

Report = dict[str, Any]  # broker/metrics/report.py


class Totals:
    def __init__(self) -> None:
        self._counters: Counter[str] = Counter()  # of workers that are no more
        self._reasons: dict[str, Counter[str]] = {"dropped": Counter(), "closed": Counter(), "refused": Counter()}

    def bury(self, last: Report) -> None:
        """A worker has ended; *last* is its last report, {} if it never made one."""
        self._counters.update(last.get("counters", {}))
        for kind, counts in last.get("reasons", {}).items():
            self._reasons[kind].update(counts)

    def with_(self, living: list[Report]) -> Report:
        """The sum of all, with the last reports of those who live."""
        counters = Counter(self._counters)
        reasons = {kind: Counter(counts) for kind, counts in self._reasons.items()}
        gauges: Counter[str] = Counter()
        for report in living:
            counters.update(report.get("counters", {}))
            gauges.update(report.get("gauges", {}))
            for kind, counts in report.get("reasons", {}).items():
                reasons[kind].update(counts)
        return {"counters": dict(counters), "reasons": {k: dict(v) for k, v in reasons.items()}, "gauges": dict(gauges)}
