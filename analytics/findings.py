# Findings: what an operator should examine now, before an overload or during one.
#
# A warning is a rising signal: the slope of a line through its values of the last TREND seconds is positive with
# statistical certainty. The time until level 5 follows from the rule of the broker (broker/overload/level.py): every
# 100 ms the level changes by the distance of the signal from its target, and by the change of the signal. A signal that
# rises at a constant rate raises the level with the square of time. The gains are the defaults of the broker.
#
# The state, JSON: {"workers": "NODE/NUMBER" -> the latest figures, the signals of the last seconds, the mean cost;
# "tops": second -> {"clients", "topics"}}. Unlike episodes, findings describe the current moment: late rows are
# ignored.
from math import sqrt
from typing import Any, Final

from analytics.rows import CreditPressure, Findings, Hitter, Skew, SlowReaders, Warning
from analytics.second import Second
from analytics.tops import Tops, add_tops, copied, cut, first
from broker.config.schema import Overload
from broker.metrics.overload_figures import CALM_CREDITS
from broker.overload.level import STEP

ALARM: Final = 5  # level: costly clients are throttled from here on
TREND: Final = 10  # seconds: a shorter trend is noise, a longer one is noticed too late
POINTS: Final = 5  # of a trend, at least
CERTAIN: Final = 4.0  # a slope must be so many times its standard error
STEEP: Final = 0.01  # targets per second: a flatter slope needs minutes
HIGH: Final = 0.1  # targets: lower values are not kept
SOON: Final = 60.0  # seconds
SIGNALS: Final = 3  # per worker, the highest
SHOWN: Final = 10  # of each kind

FRESH: Final = 5  # seconds: findings ignore workers that have not reported for so long
FORGOTTEN: Final = 60
RECENT: Final = 0.1  # weight of the last second in the mean cost, which so spans about ten seconds
UNEVEN: Final = 1.5  # times the mean
WORTH: Final = 1000  # units of cost per second and worker, on average: uneven loads below that do not matter
SPANS: Final = (10, 60)  # seconds over which heavy hitters are summed
KEPT: Final = 20  # names of one second, by each measure; ten are shown

DEFAULTS: Final = Overload()
CLIMB: Final = DEFAULTS.position_gain / STEP  # levels per second, for a signal that is one target too high
BRAKE: Final = DEFAULTS.trend_gain  # levels for a change by one target

State = dict[str, Any]


def begin() -> State:
    return {"workers": {}, "tops": {}}


def fold(
    state: State, seconds: list[Second], moments: dict[str, dict[str, Tops]], newest: int
) -> tuple[State, Findings]:
    """Return the new state and the findings of the second *newest*. *moments* are the moments of episodes.py."""
    workers = dict(state["workers"])
    tops = dict(state["tops"])
    for second in sorted(seconds, key=lambda second: second["second"]):
        worker = f"{second['node']}/{second['worker']}"
        workers[worker] = _latest(workers.get(worker), second)
    for at in {str(second["second"]) for second in seconds}:
        moment = moments.get(at)
        if moment is not None:
            tops[at] = {what: copied(cut(moment[what], KEPT)) for what in ("clients", "topics")}
    tops = {at: found for at, found in tops.items() if int(at) > newest - SPANS[-1]}
    workers = {worker: latest for worker, latest in workers.items() if latest["second"] > newest - FORGOTTEN}
    current = {worker: latest for worker, latest in sorted(workers.items()) if latest["second"] > newest - FRESH}
    return {"workers": workers, "tops": tops}, Findings(
        at=float(newest),
        warnings=_warnings(current),
        skew=_skew(current),
        slow_readers=_slow_readers(current),
        credit_pressure=_credit_pressure(current),
        clients={str(span): _heaviest(tops, "clients", newest - span) for span in SPANS},
        topics={str(span): _heaviest(tops, "topics", newest - span) for span in SPANS},
    )


def _latest(known: dict[str, Any] | None, second: Second) -> dict[str, Any]:
    """Return the state of a worker after *second*, as a new object."""
    at = second["second"]
    if known is not None and known["second"] > at:  # *second* is late
        return known
    high = {name: value for name, value in second["signals"].items() if value >= HIGH}
    if len(high) > SIGNALS:
        high = dict(sorted(high.items(), key=lambda each: (-each[1], each[0]))[:SIGNALS])
    signals = [each for each in known["signals"] if at - TREND < each[0] != at] if known else []
    signals.append([at, high])
    cost = float(second["cost_in"])
    if known is not None:
        cost = round(known["cost"] + (cost - known["cost"]) * RECENT, 1)
    since = known["slow_since"] if known else None
    limit = second["outbound_limit_bytes"]
    return {
        "second": at,
        "node": second["node"],
        "worker": second["worker"],
        "level": second["level"],
        "signals": signals,
        "cost": cost,
        "non_writable": second["non_writable"],
        "outbound_share": round(min(1.0, second["outbound_bytes"] / limit), 3) if limit else 0.0,
        "slow_since": (at if since is None else since) if second["non_writable"] else None,
        "using_credits": second["using_credits"],
        "connected": second["connected"],
        "average_credits": second["average_credits"],
        "credits_per_tick": second["credits_per_tick"],
    }


# Warnings.


def _warnings(current: dict[str, dict[str, Any]]) -> list[Warning]:
    found = []
    for worker, latest in current.items():
        if latest["level"] >= ALARM:
            continue
        for signal in latest["signals"][-1][1]:
            points = [(at, values[signal]) for at, values in latest["signals"] if signal in values]
            slope = _slope(points)
            if slope < STEEP:
                continue
            value = latest["signals"][-1][1][signal]
            left = seconds_left(latest["level"], value, slope)
            if left < SOON:
                said = (
                    f"{_name(signal)} of worker {worker} is at {value:.2f} of its target and rises by {slope:.2f} per "
                    f"second: level {ALARM} in about {left:.0f} s if the trend continues."
                )
                found.append(
                    Warning(
                        node=latest["node"],
                        worker=latest["worker"],
                        signal=signal,
                        value=value,
                        slope=round(slope, 3),
                        seconds_left=round(left, 1),
                        said=said,
                    )
                )
    found.sort(key=lambda warning: (warning["seconds_left"], warning["node"], warning["worker"], warning["signal"]))
    return found[:SHOWN]


def _name(signal: str) -> str:
    return f"The queue to {signal}, measured by a peer," if "/" in signal else f"The signal {signal}"


def _slope(points: list[tuple[int, float]]) -> float:
    """Return the least-squares slope of *points*; 0.0 if the points are too few or the slope is not certain."""
    count = len(points)
    if count < POINTS:
        return 0.0
    mean_at = sum(at for at, _ in points) / count
    mean = sum(value for _, value in points) / count
    spread = sum((at - mean_at) ** 2 for at, _ in points)
    if not spread:
        return 0.0
    slope = sum((at - mean_at) * (value - mean) for at, value in points) / spread
    off = sum((value - mean - slope * (at - mean_at)) ** 2 for at, value in points)
    return slope if slope > CERTAIN * sqrt(off / (count - 2) / spread) else 0.0


def seconds_left(level: float, value: float, slope: float) -> float:
    """Return the seconds until a worker reaches level 5. Its signal is *value* and rises by *slope* (> 0) per second.

    The level changes by CLIMB * (signal - 1) + BRAKE * slope per second. While this is negative, the level falls, but
    not below 0; from then on it grows by CLIMB * slope / 2 * t^2.
    """
    speed = CLIMB * (value - 1.0) + BRAKE * slope
    growth = CLIMB * slope
    waited = 0.0
    if speed < 0.0:
        waited = -speed / growth
        level = max(0.0, level + speed * waited / 2.0)
        speed = 0.0
    return waited + (-speed + sqrt(speed * speed + 2.0 * growth * max(0.0, ALARM - level))) / growth


# Uneven load.


def _skew(current: dict[str, dict[str, Any]]) -> list[Skew]:
    nodes: dict[str, dict[str, float]] = {}
    for worker, latest in current.items():
        nodes.setdefault(latest["node"], {})[worker] = latest["cost"]
    found = [_uneven(f"workers of {node}", costs, 1) for node, costs in nodes.items()]
    mean = max(1.0, len(current) / max(1, len(nodes)))  # workers per node
    found.append(_uneven("nodes", {node: sum(costs.values()) for node, costs in nodes.items()}, mean))
    uneven = [each for each in found if each is not None]
    uneven.sort(key=lambda each: (-each["ratio"], each["of"]))
    return uneven[:SHOWN]


def _uneven(of: str, costs: dict[str, float], workers: float) -> Skew | None:
    """Return a Skew if *costs* (per second, by name) are uneven. Each name stands for *workers* workers on average."""
    if len(costs) < 2:
        return None
    mean = sum(costs.values()) / len(costs)
    busiest = min(costs, key=lambda name: (-costs[name], name))
    if mean < WORTH * workers or costs[busiest] < UNEVEN * mean:
        return None
    ratio = round(costs[busiest] / mean, 2)
    said = f"{busiest} has {ratio:.1f} times the mean load of the {len(costs)} {of}."
    return Skew(of=of, busiest=busiest, ratio=ratio, said=said)


# Readers and credits.


def _slow_readers(current: dict[str, dict[str, Any]]) -> list[SlowReaders]:
    slow = [
        SlowReaders(
            node=latest["node"],
            worker=latest["worker"],
            non_writable=latest["non_writable"],
            outbound_share=latest["outbound_share"],
            since=float(latest["slow_since"]),
        )
        for latest in current.values()
        if latest["non_writable"]
    ]
    slow.sort(key=lambda each: (-each["non_writable"], each["since"], each["node"], each["worker"]))
    return slow[:SHOWN]


def _credit_pressure(current: dict[str, dict[str, Any]]) -> list[CreditPressure]:
    """Return the nodes that grant fewer credits than without overload, and whose clients have used some."""
    nodes: dict[str, list[dict[str, Any]]] = {}
    for latest in current.values():
        nodes.setdefault(latest["node"], []).append(latest)
    pressed = []
    for node, workers in nodes.items():
        connected = sum(latest["connected"] for latest in workers)
        using = sum(latest["using_credits"] for latest in workers)
        granted = min(latest["credits_per_tick"] for latest in workers)
        if using and granted < CALM_CREDITS:
            credits = sum(latest["average_credits"] * latest["connected"] for latest in workers)
            pressed.append(
                CreditPressure(
                    node=node,
                    using_credits=using,
                    connected=connected,
                    average_credits=round(credits / max(1, connected), 1),
                    credits_per_tick=granted,
                )
            )
    pressed.sort(key=lambda each: (each["credits_per_tick"], -each["using_credits"], each["node"]))
    return pressed[:SHOWN]


def _heaviest(tops: dict[str, dict[str, Tops]], what: str, after: int) -> list[Hitter]:
    together: Tops = {}
    for at in sorted(tops, key=int):
        if int(at) > after:
            add_tops(together, tops[at][what])
    return first(together, SHOWN)
