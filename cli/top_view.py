# What `weir top` looks like: nodes and workers, what was dropped, and who and what costs most.
#
# All figures are those of the last interval, by the second. A screen has only so many lines: when there are more
# workers than fit, the worst of them are shown, and then those with the most work.
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from cli.clients import visible
from cli.hitters import Hitter, merged
from cli.nodes import short
from cli.overload_view import color
from cli.printing import table_of

if TYPE_CHECKING:
    from rich.console import RenderableType

KEYS: Final = "c cost  m messages  b bytes  q quit"
LONGEST: Final = 40  # characters of a name in a table
AROUND: Final = 13  # lines that are neither rows of tables nor troubles
FEWEST: Final = 2  # rows of each table, however small the screen is

Told = dict[str, Any]


def together(nodes: list[Told], by: str) -> Told:
    """What programs get: what each node said, and the heavy hitters of all of them, by *by*."""
    return {
        "nodes": nodes,
        "by": by,
        "clients": [_facts("client", one) for one in hitters(nodes, "client", by)],
        "topics": [_facts("topic", one) for one in hitters(nodes, "topic", by)],
    }


def screen(nodes: list[Told], by: str, height: int, heading: str) -> "list[RenderableType]":
    """All of it in about *height* lines; *heading*: what stands above it."""
    from rich.text import Text

    wrong = list(troubles(nodes))
    room = height - AROUND - len(wrong)
    workers = min(len(records(nodes)), max(FEWEST, room // 2))
    rows = max(FEWEST, (room - workers) // 2)
    parts: list[RenderableType] = [Text(heading, style="bold"), Text(), workers_table(nodes, workers)]
    parts += [Text.from_markup(f"[red]{visible(sentence)}[/red]") for sentence in wrong]
    parts.append(Text(losses(nodes)))
    for what in ("client", "topic"):
        listed = hitters(nodes, what, by)[:rows]
        if listed:
            parts += [Text(), hitters_table(listed, what, by)]
            parts.append(Text(error_of(listed, by), style="dim"))
    return parts


def workers_table(nodes: list[Told], most: int) -> Any:
    """A row for each worker, or *most* rows, of which the last says how many more there are."""
    numbers = ("worker", "level", "clients", "held", "credits", "in/s", "out/s", "p99 ms")
    table = table_of("node", *numbers, "cause", right=numbers)
    found = records(nodes)
    shown = found if len(found) <= most else sorted(found, key=_worst_first)[: most - 1]
    before = ""
    for node, worker, record in shown:
        level = record["level"]
        cause, clients = record["cause"], record["clients"]
        table.add_row(
            "" if node == before else visible(node),
            str(worker),
            f"[{color(level)}]{level}[/{color(level)}]",
            short(clients["connected"]),
            short(clients["throttled"]),
            short(record["credits_per_tick"]),
            _rate(record["in"]["messages"], record),
            _rate(record["out"]["messages"], record),
            f"{record['latency']['p99_ms']:.3g}",
            visible(f"{cause} {record['signals'].get(cause, 0.0):.2f}") if cause else "",
        )
        before = node
    if len(found) > most:
        table.add_row(f"{len(found) - most + 1} more")
    return table


def troubles(nodes: list[Told]) -> Iterator[str]:
    """Nodes and workers that say nothing, and why."""
    for node in nodes:
        if "error" in node:
            yield node["error"]
        for one in node.get("workers", []):
            if "error" in one:
                yield f"{node['node']}: {one['error']}"
            elif one.get("record") is None:
                yield f"{node['node']}: worker {one['worker']} is {one['state']} and has nothing to tell yet."


def losses(nodes: list[Told]) -> str:
    """What was dropped and who was held back, by reason."""
    dropped: dict[str, float] = {}
    held: dict[str, int] = {}
    for _, _, record in records(nodes):
        for reason, count in record["dropped"].items():
            dropped[reason] = dropped.get(reason, 0.0) + count / _interval(record)
        for reason, figures in record["paused"].items():
            held[reason] = held.get(reason, 0) + figures["clients"]
    drops = ", ".join(f"{short(round(rate))} {reason}" for reason, rate in sorted(dropped.items(), key=_greatest))
    holds = ", ".join(f"{short(count)} for {reason}" for reason, count in sorted(held.items(), key=_greatest))
    return f"dropped/s: {drops or 'nothing'}   held back: {holds or 'nobody'}"


def hitters(nodes: list[Told], what: str, by: str) -> list[Hitter]:
    """The clients or topics of all workers, the greatest first."""
    return merged([(record["top"][f"{what}s"], _interval(record)) for _, _, record in records(nodes)], what, by)


def hitters_table(listed: list[Hitter], what: str, by: str) -> Any:
    """A row for each of *listed*; the column that they are ordered by is marked."""
    measures = ("cost", "messages", "bytes")
    titles = [f"{one}/s{' ▼' if one == by else ''}" for one in measures]
    held = ["held"] if what == "client" else []
    table = table_of(what, *titles, *held, right=(*titles, *held))
    for one in listed:
        figures = [short(round(one.figures[name])) for name in measures]
        share = [f"{min(1.0, one.figures['paused_ms'] / 1e3):.0%}"] if held else []
        table.add_row(visible(_cut(one.name)), *figures, *share)
    return table


def error_of(listed: list[Hitter], by: str) -> str:
    """How far the figures may be from the truth."""
    above = max(one.above[by] for one in listed)
    below = max(one.below[by] for one in listed)
    if not above and not below:
        return f"{by} is exact"
    return f"{by} is at most {short(round(above))} too high and {short(round(below))} too low"


def records(nodes: list[Told]) -> list[tuple[str, int, Told]]:
    """(node, worker, its record) of all that have one."""
    return [
        (node["node"], one["worker"], one["record"])
        for node in nodes
        for one in node.get("workers", [])
        if one.get("record") is not None
    ]


def _facts(what: str, hitter: Hitter) -> Told:
    return {what: hitter.name, "per_second": hitter.figures, "above": hitter.above, "below": hitter.below}


def _rate(count: int, record: Told) -> str:
    return short(round(count / _interval(record)))


def _interval(record: Told) -> float:
    """Seconds; one that is none, as a clock was set, counts as a moment."""
    return max(0.001, float(record["interval_s"]))


def _cut(name: str) -> str:
    """The beginning and the end of a long name: often only one of them tells it from others."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST // 2]}…{name[-LONGEST // 2 + 1 :]}"


def _worst_first(row: tuple[str, int, Told]) -> tuple[int, int, str, int]:
    node, worker, record = row
    return -record["level"], -record["in"]["messages"] - record["out"]["messages"], node, worker


def _greatest(item: tuple[str, float]) -> tuple[float, str]:
    label, figure = item
    return -figure, label
