# Seconds of workers to fold: all is calm, but for what a test says.
import json
from typing import Any

from analytics import folding
from analytics.rows import Episode, Incident
from analytics.second import Heavy, Second

T = 1_700_000_000  # a multiple of 10, and 20 s into its minute


def second(at: int, worker: int = 1, node: str = "a", sequence: int | None = None, **said: Any) -> Second:
    """What *worker* told of the second T + *at*."""
    calm = Second(
        node=node,
        worker=worker,
        boot=f"{node}-{worker}",
        sequence=1000 + at if sequence is None else sequence,
        second=T + at,
        level=0,
        cluster_level=0,
        cause="",
        signals={},
        credits_per_tick=50_000,
        connected=10,
        throttled=0,
        using_credits=0,
        average_credits=50_000.0,
        non_writable=0,
        outbound_bytes=0,
        outbound_limit_bytes=1000,
        paused={},
        connects=0,
        connects_refused=0,
        messages_in=100,
        messages_out=200,
        cost_in=1000,
        dropped={},
        refused={},
        p99_ms=1.5,
        clients=[],
        topics=[],
    )
    calm.update(said)  # type: ignore[typeddict-item]
    return calm


def overloaded(at: int, worker: int = 1, node: str = "a", level: int = 5, cause: str = "lag", **said: Any) -> Second:
    return second(at, worker, node, level=level, cause=cause, signals={cause: 3.0}, **said)


def hitter(name: str, cost: int, paused_ms: int = 0) -> Heavy:
    return Heavy(name=name, cost=cost, messages=cost // 10, bytes=cost, paused_ms=paused_ms)


class Fold:
    """Folds batch after batch, and keeps what a sink would have: each row under its name."""

    def __init__(self) -> None:
        self.state = folding.begin()
        self.episodes: dict[str, Episode] = {}
        self.told: list[Episode] = []  # of the last batch
        self.incidents: dict[str, Incident] = {}
        self.told_incidents: list[Incident] = []  # of the last batch
        self.windows: dict[tuple[int, int], Any] = {}
        self.findings: Any = None
        self.late = 0

    def add(self, *seconds: Second, now: float | None = None) -> "Fold":
        """Fold one batch; its state must survive being saved."""
        newest = max([self.state["newest"], *(each["second"] for each in seconds)])
        folded = folding.fold(self.state, list(seconds), newest + 1.0 if now is None else now)
        self.state = json.loads(json.dumps(folded.state))
        assert self.state == folded.state
        self.told = folded.episodes
        for episode in folded.episodes:
            if episode["state"] == "merged":
                del self.episodes[episode["id"]]
            else:
                self.episodes[episode["id"]] = episode
        self.told_incidents = folded.incidents
        for incident in folded.incidents:
            if incident["state"] == "merged":
                del self.incidents[incident["id"]]
            else:
                self.incidents[incident["id"]] = incident
        for window in folded.windows:
            self.windows[window["span"], window["start"] - T] = window
        self.findings = folded.findings
        self.late += folded.late
        return self

    def overloads(self) -> list[tuple[int, int | None]]:
        """Start and end of each incident, after T. One whose id is that of no episode would be a wrong one."""
        found = sorted(self.incidents.values(), key=lambda each: each["start"])
        assert self.incidents.keys() <= self.episodes.keys()
        return [(int(each["start"]) - T, None if each["end"] is None else int(each["end"]) - T) for each in found]

    def only(self) -> Episode:
        (episode,) = self.episodes.values()
        return episode

    def incident(self) -> Incident:
        (incident,) = self.incidents.values()
        return incident
