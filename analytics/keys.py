# The Redis keys of the analysis. The keys of the broker are in broker/store/redis/keys.py. PREFIX is `redis.prefix`.
#
#   PREFIX:analytics:windows:SPAN   hash  start of the window -> Window
#   PREFIX:analytics:episodes       hash  id of the episode -> Episode
#   PREFIX:analytics:incidents      hash  id of the incident -> Incident
#   PREFIX:analytics:findings       string  Findings
#   PREFIX:analytics:status         string  Status
#   PREFIX:analytics:unfit          stream  invalid entries of the metrics stream: `id`, `problem`, `record` (cut)
from typing import Final

KEPT: Final = {1: 900, 10: 3 * 3600, 60: 24 * 3600}  # seconds of windows, by span
EPISODES: Final = 2000  # the newest are kept: with a hundred nodes, some of each
INCIDENTS: Final = 500  # likewise
UNFIT: Final = 1000  # entries, approximately


class AnalyticsKeys:
    def __init__(self, prefix: str) -> None:
        self.metrics = f"{prefix}:metrics"  # written by the broker: the stream that is analysed
        self.episodes = f"{prefix}:analytics:episodes"
        self.incidents = f"{prefix}:analytics:incidents"
        self.findings = f"{prefix}:analytics:findings"
        self.status = f"{prefix}:analytics:status"
        self.unfit = f"{prefix}:analytics:unfit"
        self._windows = f"{prefix}:analytics:windows:"

    def windows(self, span: int) -> str:
        return f"{self._windows}{span}"


def start_of(id: str) -> float:
    """Return the first second of the episode or incident *id*; 0.0 if it is none."""
    start = id.partition(" ")[0]
    return float(start) if start.isdecimal() else 0.0
