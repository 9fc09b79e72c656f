# The screen of `weir top`: nodes and workers, drops, and the clients and topics that cost most.
#
# All figures are of the last interval, per second. If there are more workers than fit on the screen, those with the
# highest level are shown, then those with the most traffic.
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from cli.clients import visible
from cli.heavy_hitters import Hitter, merged
from cli.nodes import short
from cli.overload_view import color
from cli.printing import table_of

if TYPE_CHECKING:
    from rich.console import RenderableType

KEYS: Final = "c cost  m messages  b bytes  q quit"
LONGEST: Final = 40  # characters of a name in a table
AROUND: Final = 13  # lines besides table rows and error sentences
FEWEST: Final = 2  # rows of each table, however small the screen is

Answer = dict[str, Any]


def together(nodes: list[Answer], by: str) -> Answer:
    """The JSON form: the answer of each node, and the heavy hitters of all nodes, ordered by *by*."""
    return {
        "nodes": nodes,
        "by": by,
        "clients": [_facts("client", one) for one in hitters(nodes, "client", by)],
        "topics": [_facts("topic", one) for one in hitters(nodes, "topic", by)],
    }


def screen(nodes: list[Answer], by: str, height: int, heading: str) -> "list[RenderableType]":
    """The whole screen in about *height* lines, below the line *heading*."""
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


def workers_table(nodes: list[Answer], most: int) -> Any:
    """A row per worker, at most *most* rows; the last one then says how many are missing."""
    numbers = ("worker", "level", "clients", "paused", "credit", "in/s", "out/s", "p99ms")
    table = table_of("node", *numbers, "cause", right=numbers)
    found = records(nodes)
    shown = found if len(found) <= most else sorted(found, key=_worst_first)[: most - 1]
    before = ""
    for node, worker, record in shown:
        level = record["level"]
        cause, clients, p99 = record["cause"], record["clients"], record["latency"]["p99_ms"]
        table.add_row(
            "" if node == before else visible(node),
            str(worker),
            f"[{color(level)}]{level}[/{color(level)}]",
            short(clients["connected"]),
            short(clients["throttled"]),
            short(record["credits_per_tick"]),
            _rate(record["in"]["messages"], record),
            _rate(record["out"]["messages"], record),
            f"{p99:.3g}" if p99 < 999.5 else f"{p99:.0f}",
            visible(f"{cause} {record['signals'].get(cause, 0.0):.2f}") if cause else "",
        )
        before = node
    if len(found) > most:
        table.add_row(f"{len(found) - most + 1} more")
    return table


def troubles(nodes: list[Answer]) -> Iterator[str]:
    """A sentence for each node and worker that did not answer."""
    for node in nodes:
        if "error" in node:
            yield node["error"]
        for one in node.get("workers", []):
            if "error" in one:
                yield f"{node['node']}: {one['error']}"
            elif one.get("record") is None:
                yield f"{node['node']}: worker {one['worker']} is {one['state']} and has no figures yet."


def losses(nodes: list[Answer]) -> str:
    """Dropped messages a second and throttled clients, by reason."""
    dropped: dict[str, float] = {}
    held: dict[str, int] = {}
    for _, _, record in records(nodes):
        for reason, count in record["dropped"].items():
            dropped[reason] = dropped.get(reason, 0.0) + count / _interval(record)
        for reason, figures in record["paused"].items():
            held[reason] = held.get(reason, 0) + figures["clients"]
    drops = ", ".join(f"{short(round(rate))} {reason}" for reason, rate in sorted(dropped.items(), key=_greatest))
    holds = ", ".join(f"{short(count)} for {reason}" for reason, count in sorted(held.items(), key=_greatest))
    return f"dropped/s: {drops or 'none'}   throttled: {holds or 'none'}"


def hitters(nodes: list[Answer], what: str, by: str) -> list[Hitter]:
    """The heaviest clients or topics of all workers, the heaviest first."""
    return merged([(record["top"][f"{what}s"], _interval(record)) for _, _, record in records(nodes)], what, by)


def hitters_table(listed: list[Hitter], what: str, by: str) -> Any:
    """A row per heavy hitter. The column of the order *by* is marked."""
    measures = ("cost", "messages", "bytes")
    titles = [f"{one}/s{' ▼' if one == by else ''}" for one in measures]
    throttled = ["paused"] if what == "client" else []
    table = table_of(what, *titles, *throttled, right=(*titles, *throttled))
    for one in listed:
        figures = [short(round(one.figures[name])) for name in measures]
        share = [f"{min(1.0, one.figures['paused_ms'] / 1e3):.0%}"] if throttled else []
        table.add_row(visible(_cut(one.name)), *figures, *share)
    return table


def error_of(listed: list[Hitter], by: str) -> str:
    """The error bounds of the column *by*, as a sentence."""
    above = max(one.above[by] for one in listed)
    below = max(one.below[by] for one in listed)
    if not above and not below:
        return f"{by} is exact"
    return f"{by} is at most {short(round(above))} too high and {short(round(below))} too low"


def records(nodes: list[Answer]) -> list[tuple[str, int, Answer]]:
    """(node, worker, metrics record) of each worker that has a record."""
    return [
        (node["node"], one["worker"], one["record"])
        for node in nodes
        for one in node.get("workers", [])
        if one.get("record") is not None
    ]


def _facts(what: str, hitter: Hitter) -> Answer:
    return {what: hitter.name, "per_second": hitter.figures, "above": hitter.above, "below": hitter.below}


def _rate(count: int, record: Answer) -> str:
    return short(round(count / _interval(record)))


def _interval(record: Answer) -> float:
    """The length of the interval in seconds, at least 1 ms: a clock step can make it 0 or negative."""
    return max(0.001, float(record["interval_s"]))


def _cut(name: str) -> str:
    """The beginning and the end of a long name: names often differ only there."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST // 2]}…{name[-LONGEST // 2 + 1 :]}"


def _worst_first(row: tuple[str, int, Answer]) -> tuple[int, int, str, int]:
    node, worker, record = row
    return -record["level"], -record["in"]["messages"] - record["out"]["messages"], node, worker


def _greatest(item: tuple[str, float]) -> tuple[float, str]:
    label, figure = item
    return -figure, label
