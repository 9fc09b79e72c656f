# Nodes and workers: the rows of the overview, and the pages that show one of them.
#
# The overview shows the nodes with the most trouble first. What a page of a node or a worker shows is computed only for
# pages that are open, from records that the reader has anyway.
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from analytics.dashboard import words
from analytics.dashboard.live import FRESH, Counted, Counts, LastRecord, Live, last_hits, per_second
from analytics.dashboard.tables import LoadTables, beyond, load_tables, tiles, workers
from analytics.dashboard.values import HIGHEST, NONE, Cell, Part, Row, Tile, node_page
from broker.insight.explain import span

PAGE: Final = 50  # nodes of a page of the list of all
SILENT: Final = 4.5  # a silent node is as bad as one of this level
SIGNALS: Final = 20  # a worker has one for each peer


@dataclass(frozen=True)
class NodeBoard:
    missing: str  # why there is nothing to show; ""
    level: int
    tone: str
    sentence: str
    tiles: tuple[Tile, ...]
    workers: tuple[Row, ...]
    workers_more: str
    tables: LoadTables


@dataclass(frozen=True)
class WorkerBoard:
    missing: str
    level: int
    tone: str
    sentence: str
    signals: tuple[Row, ...]
    signals_more: str
    figures: tuple[Row, ...]
    tables: LoadTables


def node_rows(live: Live, now: float) -> list[Row]:
    """Return a row for each node, those with the most trouble first, equal ones by name."""
    of_nodes: dict[str, list[LastRecord]] = {}
    for (node, _), last in live.workers.items():
        of_nodes.setdefault(node, []).append(last)
    found = [_node(name, lasts, now) for name, lasts in of_nodes.items()]
    return [row for _, row in sorted(found, key=lambda each: each[0])]


def _node(name: str, lasts: list[LastRecord], now: float) -> tuple[tuple[Any, ...], Row]:
    """Return the trouble of a node, as a key to sort by, and its row."""
    fresh = [last.record for last in lasts if now - last.at <= FRESH]
    link = Cell(words.shown(name), "name", node_page(name), title=name)
    if not fresh:
        silence = f"silent for {span(now - max(last.at for last in lasts))}"
        cells = (link, Cell(NONE, "level unknown"), Cell(silence), Cell(f"0 of {len(lasts)}", "some"))
        return (-SILENT, 0, False, False, name), Row(name, (*cells, *(Cell(""),) * 6))
    worst = max(fresh, key=_severity)
    level, cause = min(worst["level"], HIGHEST), worst["cause"]
    silent = len(lasts) - len(fresh)
    throttled = sum(one["clients"]["throttled"] for one in fresh)
    slow = sum(one["clients"]["non_writable"] for one in fresh)
    # Not by how many are throttled: the rows would change their order each second.
    return (-level, -silent, not throttled, not slow, name), Row(
        name,
        (
            link,
            Cell(str(level), f"level {words.tone(level)}"),
            Cell(f"{cause} {worst['signals'].get(cause, 0.0):.2f} (worker {worst['worker']})" if cause else NONE),
            Cell(f"{len(fresh)} of {len(lasts)}" if silent else str(len(fresh)), "some" if silent else ""),
            Cell(words.count(sum(one["clients"]["connected"] for one in fresh))),
            Cell(words.count(throttled), "some" if throttled else ""),
            Cell(words.count(slow), "some" if slow else ""),
            Cell(words.count(sum(per_second(one, one["in"]["messages"]) for one in fresh))),
            Cell(words.count(sum(per_second(one, one["out"]["messages"]) for one in fresh))),
            Cell(words.latency(max(one["latency"]["p99_ms"] for one in fresh))),
        ),
    )


def _severity(record: dict[str, Any]) -> tuple[int, float]:
    return record["level"], float(record["signals"].get(record["cause"], 0.0))


def node_board(live: Live, name: str, now: float) -> NodeBoard:
    """Return the content of the page of the node *name*."""
    lasts = [last for (node, _), last in sorted(live.workers.items()) if node == name]
    fresh = [last for last in lasts if now - last.at <= FRESH]
    worst = max((last.record for last in fresh), key=_severity, default=None)
    level = 0 if worst is None else min(worst["level"], HIGHEST)
    listed, more = workers(live, now, name)
    counted = live.counted(now, node=name)
    return NodeBoard(
        missing="" if lasts else "No worker of this node has written a record in the last minute.",
        level=level,
        tone=words.tone(level) if fresh else "unknown",
        sentence=_state(worst, lasts, now),
        tiles=tuple(tiles(live, fresh, now, name)),
        workers=listed,
        workers_more=more,
        tables=load_tables(
            live.hitters("client", now, name),
            live.hitters("topic", now, name),
            counted.dropped,
            counted.refused | closed_connects(counted),
            counted.held_ms,
        ),
    )


def worker_board(live: Live, node: str, worker: int, now: float) -> WorkerBoard:
    """Return the content of the page of a worker: its last record."""
    last = live.workers.get((node, worker))
    if last is None:
        missing = "This worker has not written a record in the last minute."
        return WorkerBoard(missing, 0, "unknown", "", (), "", (), LoadTables())
    record = last.record
    fresh = now - last.at <= FRESH
    level = min(record["level"], HIGHEST)
    connects = record["connects"]["refused"]
    of_clients, of_topics = last_hits(record, "client"), last_hits(record, "topic")
    return WorkerBoard(
        missing="",
        level=level if fresh else 0,
        tone=words.tone(level) if fresh else "unknown",
        sentence=_state(record if fresh else None, [last], now),
        signals=tuple(_signals(record)),
        signals_more=beyond(len(record["signals"]), SIGNALS, "lower signal"),
        figures=tuple(_figures(record)),
        tables=load_tables(
            (of_clients, sum(one.cost for one in of_clients)),
            (of_topics, sum(one.cost for one in of_topics)),
            record["dropped"],
            record["refused"] | ({"CONNECT": connects} if connects else {}),
            {reason: figures["ms"] for reason, figures in record["paused"].items()},
        ),
    )


def _state(worst: dict[str, Any] | None, lasts: list[LastRecord], now: float) -> str:
    """Return a sentence about the level of the worker *worst*, or since when all are silent."""
    if not lasts:
        return ""
    if worst is None:
        return f"Silent for {span(now - max(last.at for last in lasts))}: these figures are old."
    level, cause, cluster = worst["level"], worst["cause"], worst["cluster_level"]
    if level and cause:
        value = worst["signals"].get(cause, 0.0)
        return f"Worker {worst['worker']}: {words.signal(cause)}. This signal is at {value:.2g} times its target."
    if cluster:
        return f"Not overloaded. Level {min(cluster, HIGHEST)} is in force, because of another worker of the cluster."
    return "Not overloaded."


def closed_connects(counted: Counted) -> Counts:
    return {"CONNECT": counted.connects_refused} if counted.connects_refused else {}


def _signals(record: dict[str, Any]) -> Iterator[Row]:
    """Yield the first SIGNALS signals, the highest first."""
    for name, value in sorted(record["signals"].items(), key=lambda each: (-each[1], each[0]))[:SIGNALS]:
        kind = "some" if value > 1.0 else ""
        means = words.signal(name).removesuffix(f" ({name})")
        yield Row(name, (Cell(name, "name"), Cell(means, "means"), Cell(f"{value:.2f}", kind)))


def _figures(record: dict[str, Any]) -> Iterator[Row]:
    queues, latency, people = record["queues"], record["latency"], record["clients"]
    for name, value in (
        ("Clients", words.count(people["connected"])),
        ("Throttled", words.count(people["throttled"])),
        ("Slow readers", words.count(people["non_writable"])),
        ("Credits per 200 ms", words.count(record["credits_per_tick"])),
        ("Messages in", f"{words.count(per_second(record, record['in']['messages']))}/s"),
        ("Messages out", f"{words.count(per_second(record, record['out']['messages']))}/s"),
        ("Latency p50, p99", f"{words.latency(latency['p50_ms'])} ms, {words.latency(latency['p99_ms'])} ms"),
        ("Queued", f"{words.count(queues['messages'])} messages, {_of(queues['bytes'], queues['limit_bytes'])}"),
        ("Outbound", _of(queues["outbound_bytes"], queues["outbound_limit_bytes"])),
    ):
        yield Row(name, (Cell(name), Cell(value)))
    for name, store in sorted(record["stores"].items()):
        used = _of(store["used_bytes"], store["limit_bytes"])
        yield Row(
            f"store {name}",
            (Cell(f"Store {words.shown(name)}"), Cell(f"{used}, {words.count(store['ops'])} operations")),
        )


def _of(used: int, limit: int) -> str:
    return f"{words.size(used)} of {words.size(limit)}" if limit else words.size(used)


def pages(rows: list[Row], number: int) -> tuple[list[Row], int, int]:
    """Return the rows of page *number* of *rows*, that number within its limits, and how many pages there are."""
    last = max(1, -(-len(rows) // PAGE))
    number = min(max(1, number), last)
    return rows[(number - 1) * PAGE : number * PAGE], number, last


def heading(node: str, worker: int | None = None) -> tuple[Part, ...]:
    """Return the links above the page of a node or a worker."""
    cluster = Part("The cluster", "/")
    if worker is None:
        return cluster, Part(" / "), Part(words.shown(node))
    return cluster, Part(" / "), Part(words.shown(node), node_page(node)), Part(f" / worker {worker}")
