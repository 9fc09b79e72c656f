# The charts, as options of ECharts.
#
# Colours are CSS variables of the style sheet, which has a light and a dark theme: the charts are SVG, so a change of
# the theme needs no new options. Animations are off: a chart that moves every second is hard to read.
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from analytics.dashboard.live import KEPT, Second

NODES: Final = 6  # lines of nodes, in addition to that of the cluster: those with the highest levels
RANGES: Final = {"5 min": 1, "1 hour": 10, "24 hours": 60}  # time ranges, with the span of their windows


@dataclass(frozen=True)
class Mark:
    """The figures of a window that the charts need."""

    level: int
    levels: Mapping[str, int]
    incoming: float  # per second
    outgoing: float


Point = list[float | None]


def mark_of(window: object) -> Mark | None:
    """Return the figures of *window*; None if it is malformed."""
    found: Any = window
    try:
        span = int(found["span"])
        cluster = found["cluster"]
        return Mark(
            int(cluster["level"]),
            {str(node): int(figures["level"]) for node, figures in found["nodes"].items()},
            float(cluster["messages_in"]) / span,
            float(cluster["messages_out"]) / span,
        )
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


@dataclass
class Lines:
    """The lines of the charts from *begin* to *end*; times in seconds."""

    begin: float
    end: float
    level: list[Point]
    nodes: dict[str, list[Point]]
    incoming: list[Point]
    outgoing: list[Point]
    left_out: int = 0  # nodes without a line


def of_seconds(seconds: Iterable[Second], now: float) -> Lines:
    """Return the lines of the last minutes, from the records of the workers."""
    made = Lines(int(now) - KEPT, int(now), [], {}, [], [])
    listed = [one for one in seconds if one.at >= made.begin]
    names, made.left_out = _worst(one.levels for one in listed)
    for one in listed:
        made.level.append(_point(one.at, one.level))
        made.incoming.append(_point(one.at, one.incoming))
        made.outgoing.append(_point(one.at, one.outgoing))
    if len(names) > 1:
        for name in names:
            made.nodes[name] = [_point(one.at, one.levels.get(name)) for one in listed]
    return made


def of_windows(windows: Mapping[int, Mark], span: int, many: int, now: float) -> Lines:
    """Return the lines of the last *many* windows of *span* seconds; a missing window is a gap."""
    last = int(now // span) * span
    starts = range(last - many * span, last + 1, span)
    made = Lines(starts[0], now, [], {}, [], [])
    names, made.left_out = _worst(mark.levels for mark in windows.values())
    for start in starts:
        mark = windows.get(start)
        made.level.append(_point(start, None if mark is None else mark.level))
        made.incoming.append(_point(start, None if mark is None else mark.incoming))
        made.outgoing.append(_point(start, None if mark is None else mark.outgoing))
        for name in names if len(names) > 1 else ():
            made.nodes.setdefault(name, []).append(_point(start, None if mark is None else mark.levels.get(name)))
    return made


def _worst(levels: Iterable[Mapping[str, int]]) -> tuple[list[str], int]:
    """Return the names of the NODES nodes with the highest levels, in their order, and how many others there are."""
    sums: dict[str, int] = {}
    for one in levels:
        for node, level in one.items():
            sums[node] = sums.get(node, 0) + level
    return sorted(sorted(sums, key=lambda node: (-sums[node], node))[:NODES]), max(0, len(sums) - NODES)


def level_options(lines: Lines, marks: Iterable[tuple[float, float]]) -> dict[str, Any]:
    areas = [[{"xAxis": begin * 1e3}, {"xAxis": end * 1e3}] for begin, end in marks if end >= lines.begin]
    cluster = _series("cluster", lines.level, "var(--level)", filled=True, step=True)
    cluster["markArea"] = {"silent": True, "itemStyle": {"color": "var(--warn)", "opacity": 0.12}, "data": areas}
    others = [
        _series(name, points, f"var(--line-{at})", filled=False, step=True)
        for at, (name, points) in enumerate(lines.nodes.items())
    ]
    for one in others:
        one["lineStyle"] |= {"width": 1.5, "type": "dashed"}
    cluster["z"] = 3  # in front of the lines of the nodes
    options = _options(lines, [cluster, *others])
    options["yAxis"] |= {"min": 0, "max": 10, "interval": 2}
    return options


def traffic_options(lines: Lines) -> dict[str, Any]:
    series = [
        _series("in", lines.incoming, "var(--accent)", filled=True, step=False),
        _series("out", lines.outgoing, "var(--second)", filled=False, step=False),
    ]
    return _options(lines, series)


def _options(lines: Lines, series: list[dict[str, Any]]) -> dict[str, Any]:
    label = {"color": "var(--muted)", "fontSize": 12, "hideOverlap": True}
    return {
        "animation": False,
        "useUTC": True,
        "aria": {"enabled": True},
        "grid": {"left": 8, "right": 14, "top": 34, "bottom": 4, "containLabel": True},
        "legend": {"top": 0, "right": 0, "textStyle": {"color": "var(--muted)"}, "icon": "roundRect", "itemHeight": 4},
        "tooltip": {"trigger": "axis", "transitionDuration": 0, "confine": True, "axisPointer": {"animation": False}},
        "xAxis": {
            "type": "time",
            "min": lines.begin * 1e3,
            "max": lines.end * 1e3,
            "axisLabel": label,
            "axisLine": {"lineStyle": {"color": "var(--rule)"}},
            "axisTick": {"show": False},
            "splitNumber": 4,
        },
        "yAxis": {
            "type": "value",
            "min": 0,
            "minInterval": 1,
            "axisLabel": label,
            "splitLine": {"lineStyle": {"color": "var(--rule)"}},
            "splitNumber": 4,
        },
        "series": series,
    }


def _series(name: str, points: list[Point], color: str, *, filled: bool, step: bool) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": name,
        "type": "line",
        "data": points,
        "showSymbol": False,
        "lineStyle": {"color": color, "width": 2},
        "itemStyle": {"color": color},
        "emphasis": {"disabled": True},
    }
    if step:
        made["step"] = "end"
    if filled:
        made["areaStyle"] = {"color": color, "opacity": 0.16}
    return made


def _point(at: float, value: float | None) -> Point:
    return [at * 1e3, value]
