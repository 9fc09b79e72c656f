# Windows: figures of the cluster, its nodes and workers, per second, per ten seconds and per minute.
#
# A row of a worker is added to the one-second window of its node; the difference is added to the longer windows.
# Counters are summed. Gauges (throttled clients, slow readers) are summed over the workers of each second, and a longer
# window has the greatest of these sums. A sum only grows as rows arrive, so the result does not depend on their order.
#
# A worker whose records end near the boundary of a second has two rows in one second and none in the next. Of the
# gauges of such rows, the second takes the greater value, not the sum; therefore each second keeps the gauges of each
# worker.
#
# The state, JSON: span -> start -> {"nodes": name -> Figures, "cluster": Figures, "levels": "NODE/NUMBER" -> level,
# "said": name -> number -> [connected, throttled, non_writable] (span 1), "last": name or "" -> [workers, second] that
# `connected` was taken from (other spans)}. A window is removed from the state when no more rows can arrive for it.
from typing import Any, Final

from analytics.rows import SPANS, Figures, Window
from analytics.second import Second
from analytics.tops import add_counts

State = dict[str, dict[str, Any]]

COUNTS: Final = ("paused_ms", "messages_in", "messages_out")
GREATEST: Final = ("workers", "throttled", "non_writable", "p99_ms")
LEAST: Final = ("credits_per_tick", "average_credits")
BY_REASON: Final = ("dropped", "refused")
CLUSTER: Final = ""  # the key of the cluster in "last"; the keys of nodes are their names
UNKNOWN: Final = -1  # credits, before the first row


def begin() -> State:
    return {str(span): {} for span in SPANS}


def fold(state: State, seconds: list[Second], rolled_to: int) -> tuple[State, list[Window]]:
    """Return the new state and the windows that changed. No later row is of the second *rolled_to* or before."""
    state = {span: dict(windows) for span, windows in state.items()}
    rows: dict[int, dict[str, list[Second]]] = {}
    for second in seconds:
        rows.setdefault(second["second"], {}).setdefault(second["node"], []).append(second)
    touched: dict[tuple[int, int], None] = {}
    for at in sorted(rows):
        before = state["1"].get(str(at))
        after = state["1"][str(at)] = _add(before, rows[at])
        touched[1, at] = None
        for span in SPANS[1:]:
            start = at - at % span
            windows = state[str(span)]
            if (span, start) not in touched:
                windows[str(start)] = _copied(windows.get(str(start)))
                touched[span, start] = None
            _widen(windows[str(start)], before, after, list(rows[at]), at)
    changed = [_window(state[str(span)][str(start)], start, span) for span, start in sorted(touched)]
    for span in SPANS:
        windows = state[str(span)]
        for name in [start for start in windows if int(start) + span - 1 <= rolled_to]:
            del windows[name]
    return state, changed


def _figures() -> dict[str, Any]:
    figures = Figures(
        level=0,
        cause="",
        cause_worker="",
        workers=0,
        throttled=0,
        connected=0,
        non_writable=0,
        credits_per_tick=UNKNOWN,
        average_credits=UNKNOWN,
        paused_ms=0,
        messages_in=0,
        messages_out=0,
        dropped={},
        refused={},
        p99_ms=0.0,
    )
    return dict(figures)


def _add(window: dict[str, Any] | None, rows: dict[str, list[Second]]) -> dict[str, Any]:
    """Return a copy of a one-second *window* with *rows* (by node) added."""
    if window is None:
        window = {"nodes": {}, "cluster": {}, "levels": {}, "said": {}}
    nodes, said, levels = dict(window["nodes"]), dict(window["said"]), dict(window["levels"])
    for node, of_node in rows.items():
        figures = nodes[node] = _copied_figures(nodes.get(node))
        workers = said[node] = dict(said.get(node, {}))
        for row in of_node:
            _count(figures, row)
            number = str(row["worker"])
            now = [row["connected"], row["throttled"], row["non_writable"]]
            known = workers.get(number)
            workers[number] = now if known is None else [max(pair) for pair in zip(known, now, strict=True)]
            if row["level"]:
                worker = f"{node}/{number}"
                levels[worker] = max(row["level"], levels.get(worker, 0))
        figures["workers"] = len(workers)
        totals = [sum(column) for column in zip(*workers.values(), strict=True)]
        figures["connected"], figures["throttled"], figures["non_writable"] = totals
    cluster = _figures()
    for figures in nodes.values():
        _sum(cluster, figures)
    return {"nodes": nodes, "cluster": cluster, "levels": levels, "said": said}


def _count(figures: dict[str, Any], row: Second) -> None:
    """Add the counters and extremes of *row*; the gauges are added elsewhere."""
    _raise_level(figures, row["level"], row["cause"], f"{row['node']}/{row['worker']}")
    figures["paused_ms"] += sum(row["paused"].values())
    figures["messages_in"] += row["messages_in"]
    figures["messages_out"] += row["messages_out"]
    figures["p99_ms"] = max(figures["p99_ms"], row["p99_ms"])
    for name in BY_REASON:
        add_counts(figures[name], row[name])
    for name in LEAST:
        _lower(figures, name, row[name])  # type: ignore[literal-required]


def _sum(cluster: dict[str, Any], node: dict[str, Any]) -> None:
    """Add the figures of one node in a second to those of the cluster."""
    _raise_level(cluster, node["level"], node["cause"], node["cause_worker"])
    for name in (*COUNTS, "workers", "connected", "throttled", "non_writable"):
        cluster[name] += node[name]
    cluster["p99_ms"] = max(cluster["p99_ms"], node["p99_ms"])
    for name in BY_REASON:
        add_counts(cluster[name], node[name])
    for name in LEAST:
        _lower(cluster, name, node[name])


def _widen(
    window: dict[str, Any], before: dict[str, Any] | None, after: dict[str, Any], nodes: list[str], at: int
) -> None:
    """Add the change of the second *at* to a longer *window*, which already includes *before*."""
    for node in nodes:
        figures = window["nodes"].setdefault(node, _figures())
        _grow_figures(figures, before and before["nodes"].get(node), after["nodes"][node], window["last"], node, at)
    _grow_figures(window["cluster"], before and before["cluster"], after["cluster"], window["last"], CLUSTER, at)
    levels = window["levels"]
    for worker, level in after["levels"].items():
        levels[worker] = max(level, levels.get(worker, 0))


def _grow_figures(
    figures: dict[str, Any],
    before: dict[str, Any] | None,
    after: dict[str, Any],
    last: dict[str, list[int]],
    whose: str,
    at: int,
) -> None:
    _raise_level(figures, after["level"], after["cause"], after["cause_worker"])
    for name in COUNTS:
        figures[name] += after[name] - (before[name] if before else 0)
    for name in GREATEST:
        figures[name] = max(figures[name], after[name])
    for name in LEAST:
        _lower(figures, name, after[name])
    for name in BY_REASON:
        known = before[name] if before else {}
        more = {label: count - known.get(label, 0) for label, count in after[name].items()}
        add_counts(figures[name], more)
    # `connected` is of the last second with the most workers: while rows of some workers are missing, the sum is too
    # low.
    if [after["workers"], at] >= last.get(whose, [0, 0]):
        last[whose] = [after["workers"], at]
        figures["connected"] = after["connected"]


def _raise_level(figures: dict[str, Any], level: int, cause: str, worker: str) -> None:
    """Take over level, cause and worker if the level is higher. Of equal levels, the first worker by name wins."""
    if not level or level < figures["level"]:
        return
    if level > figures["level"] or (worker, cause) < (figures["cause_worker"], figures["cause"]):
        figures["level"], figures["cause"], figures["cause_worker"] = level, cause, worker


def _lower(figures: dict[str, Any], name: str, value: float) -> None:
    if figures[name] == UNKNOWN or value < figures[name]:
        figures[name] = value


def _copied_figures(figures: dict[str, Any] | None) -> dict[str, Any]:
    if figures is None:
        return _figures()
    return {**figures, "dropped": dict(figures["dropped"]), "refused": dict(figures["refused"])}


def _copied(window: dict[str, Any] | None) -> dict[str, Any]:
    """Return a copy of a longer window, or an empty window."""
    if window is None:
        return {"nodes": {}, "cluster": _figures(), "levels": {}, "last": {}}
    return {
        "nodes": {name: _copied_figures(figures) for name, figures in window["nodes"].items()},
        "cluster": _copied_figures(window["cluster"]),
        "levels": dict(window["levels"]),
        "last": dict(window["last"]),
    }


def _window(window: dict[str, Any], start: int, span: int) -> Window:
    return Window(
        start=start,
        span=span,
        cluster=_row(window["cluster"]),
        nodes={name: _row(window["nodes"][name]) for name in sorted(window["nodes"])},
        worker_levels=dict(sorted(window["levels"].items())),
    )


def _row(figures: dict[str, Any]) -> Figures:
    row: Figures = _copied_figures(figures)  # type: ignore[assignment]
    return row
