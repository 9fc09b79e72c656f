# Findings: what somebody should look at now, before it is an episode, or to see why it is one.
#
# A warning is a signal that rises: a line through its values of the last TREND seconds, if it is clearly no accident.
# When it will have brought the level to 5 follows from the broker's own rule (broker/overload/level.py): each 100 ms
# the level moves by how far the signal is off its target, and by how it has changed; a signal that rises evenly raises
# it with the square of the time. The gains are those that the broker has if nobody changed them.
#
# The state, JSON: {"workers": "NODE/NUMBER" -> what it told last, its signals of the last seconds, and its mean cost;
# "tops": second -> {"clients", "topics"}}. Unlike episodes, findings are of the moment: who is late is left out.
from math import sqrt
from typing import Any, Final

from analytics.rows import CreditPressure, Findings, Hitter, Skew, SlowReaders, Warning
from analytics.second import Second
from analytics.tops import Tops, add_tops, copied, cut, first
from broker.config.schema import Overload
from broker.metrics.overload_figures import CALM_CREDITS
from broker.overload.level import STEP

ALARM: Final = 5  # level: clients that ask for much are held back then
TREND: Final = 10  # seconds: a shorter line is noise, a longer one is late
POINTS: Final = 5  # of a line at least
CERTAIN: Final = 4.0  # times its own error that a slope has to be
STEEP: Final = 0.01  # targets a second: below that it takes minutes
HIGH: Final = 0.1  # targets: what has been below is at peace, and not remembered
SOON: Final = 60.0  # seconds
SIGNALS: Final = 3  # of a worker that are looked at, the highest
SHOWN: Final = 10  # of each kind

FRESH: Final = 5  # seconds: who has told nothing since is not spoken of
FORGOTTEN: Final = 60
RECENT: Final = 0.1  # of a mean cost is the last second's: what has been for ten seconds or so is no accident
UNEVEN: Final = 1.5  # times the mean
WORTH: Final = 1000  # units of cost a second of a worker on the mean: with less to do it does not matter who does it
SPANS: Final = (10, 60)  # seconds that heavy hitters are told over
KEPT: Final = 20  # names of one second, by each measure; ten are shown

DEFAULTS: Final = Overload()
CLIMB: Final = DEFAULTS.position_gain / STEP  # levels a second for a signal that is one target off
BRAKE: Final = DEFAULTS.trend_gain  # levels for a change by one target

State = dict[str, Any]


def begin() -> State:
    return {"workers": {}, "tops": {}}


def fold(
    state: State, seconds: list[Second], moments: dict[str, dict[str, Tops]], newest: int
) -> tuple[State, Findings]:
    """The state, and what is so at *newest*. *moments*: who cost most, by second, as the episodes have it."""
    workers = dict(state["workers"])
    tops = dict(state["tops"])
    for second in sorted(seconds, key=lambda second: second["second"]):
        worker = f"{second['node']}/{second['worker']}"
        workers[worker] = _told(workers.get(worker), second)
    for at in {str(second["second"]) for second in seconds}:
        moment = moments.get(at)
        if moment is not None:
            tops[at] = {what: copied(cut(moment[what], KEPT)) for what in ("clients", "topics")}
    tops = {at: found for at, found in tops.items() if int(at) > newest - SPANS[-1]}
    workers = {worker: told for worker, told in workers.items() if told["second"] > newest - FORGOTTEN}
    heard = {worker: told for worker, told in sorted(workers.items()) if told["second"] > newest - FRESH}
    return {"workers": workers, "tops": tops}, Findings(
        at=float(newest),
        warnings=_warnings(heard),
        skew=_skew(heard),
        slow_readers=_slow_readers(heard),
        credit_pressure=_credit_pressure(heard),
        clients={str(span): _heaviest(tops, "clients", newest - span) for span in SPANS},
        topics={str(span): _heaviest(tops, "topics", newest - span) for span in SPANS},
    )


def _told(known: dict[str, Any] | None, second: Second) -> dict[str, Any]:
    """What is known of a worker after *second*; another object."""
    at = second["second"]
    if known is not None and known["second"] > at:  # it comes late, and something newer is known already
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


def _warnings(heard: dict[str, dict[str, Any]]) -> list[Warning]:
    found = []
    for worker, told in heard.items():
        if told["level"] >= ALARM:
            continue
        for signal in told["signals"][-1][1]:
            points = [(at, values[signal]) for at, values in told["signals"] if signal in values]
            slope = _slope(points)
            if slope < STEEP:
                continue
            value = told["signals"][-1][1][signal]
            left = seconds_left(told["level"], value, slope)
            if left < SOON:
                said = (
                    f"{_name(signal)} of worker {worker} is at {value:.2f} of its target and rises by {slope:.2f} a "
                    f"second: level {ALARM} in about {left:.0f} s if it goes on."
                )
                found.append(
                    Warning(
                        node=told["node"],
                        worker=told["worker"],
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
    return f"The work before {signal}, as seen by a peer," if "/" in signal else f"The signal {signal}"


def _slope(points: list[tuple[int, float]]) -> float:
    """Of the line through *points*, by least squares; 0.0 if there are too few, or it could as well be level."""
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
    """Until a worker is at level 5 whose signal is *value* and rises by *slope* a second, which is above 0.

    The level moves by CLIMB * (signal - 1) + BRAKE * slope a second. While that is below 0 it falls, to 0 at least;
    from then on it grows by CLIMB * slope / 2 * t^2.
    """
    speed = CLIMB * (value - 1.0) + BRAKE * slope
    growth = CLIMB * slope
    waited = 0.0
    if speed < 0.0:
        waited = -speed / growth
        level = max(0.0, level + speed * waited / 2.0)
        speed = 0.0
    return waited + (-speed + sqrt(speed * speed + 2.0 * growth * max(0.0, ALARM - level))) / growth


# Who does more than their share.


def _skew(heard: dict[str, dict[str, Any]]) -> list[Skew]:
    nodes: dict[str, dict[str, float]] = {}
    for worker, told in heard.items():
        nodes.setdefault(told["node"], {})[worker] = told["cost"]
    found = [_uneven(f"workers of {node}", costs, 1) for node, costs in nodes.items()]
    mean = max(1.0, len(heard) / max(1, len(nodes)))  # a node has as many workers
    found.append(_uneven("nodes", {node: sum(costs.values()) for node, costs in nodes.items()}, mean))
    uneven = [each for each in found if each is not None]
    uneven.sort(key=lambda each: (-each["ratio"], each["of"]))
    return uneven[:SHOWN]


def _uneven(of: str, costs: dict[str, float], workers: float) -> Skew | None:
    """Something to say of who shares the work with *costs* a second; each is so many *workers* on the mean."""
    if len(costs) < 2:
        return None
    mean = sum(costs.values()) / len(costs)
    busiest = min(costs, key=lambda name: (-costs[name], name))
    if mean < WORTH * workers or costs[busiest] < UNEVEN * mean:
        return None
    ratio = round(costs[busiest] / mean, 2)
    said = f"{busiest} does {ratio:.1f} times as much as the mean of the {len(costs)} {of}."
    return Skew(of=of, busiest=busiest, ratio=ratio, said=said)


# Readers and credits.


def _slow_readers(heard: dict[str, dict[str, Any]]) -> list[SlowReaders]:
    slow = [
        SlowReaders(
            node=told["node"],
            worker=told["worker"],
            non_writable=told["non_writable"],
            outbound_share=told["outbound_share"],
            since=float(told["slow_since"]),
        )
        for told in heard.values()
        if told["non_writable"]
    ]
    slow.sort(key=lambda each: (-each["non_writable"], each["since"], each["node"], each["worker"]))
    return slow[:SHOWN]


def _credit_pressure(heard: dict[str, dict[str, Any]]) -> list[CreditPressure]:
    """Of the nodes whose clients are granted less than when all is calm, and have used some."""
    nodes: dict[str, list[dict[str, Any]]] = {}
    for told in heard.values():
        nodes.setdefault(told["node"], []).append(told)
    pressed = []
    for node, workers in nodes.items():
        connected = sum(told["connected"] for told in workers)
        using = sum(told["using_credits"] for told in workers)
        granted = min(told["credits_per_tick"] for told in workers)
        if using and granted < CALM_CREDITS:
            credits = sum(told["average_credits"] * told["connected"] for told in workers)
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
