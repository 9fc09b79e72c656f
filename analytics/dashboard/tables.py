# The tables and figures that several pages have: of the cluster, of a node or of a worker.
#
# Each table has a bound; what it leaves out is counted (`beyond`).
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from analytics.dashboard import words
from analytics.dashboard.live import COUNTED, FRESH, HITTING, Counts, Hits, LastRecord, Live, per_second
from analytics.dashboard.values import HIGHEST, NONE, Cell, Row, Tile, client_page, worker_page
from broker.insight.explain import span

ROWS: Final = 10  # clients, and topics
REASONS: Final = 8
WORKERS: Final = 48  # rows; if there are more workers, the most loaded are shown


def beyond(number: int, shown: int, one: str, many: str = "") -> str:
    """Return a sentence about those of *number* that are not *shown*; "" if all are."""
    left = number - shown
    return f"{words.plural(left, f'more {one}', f'more {many or one + chr(115)}')} not shown." if left > 0 else ""


def _clients_unit(number: int) -> str:
    return "client" if number == 1 else "clients"


def tiles(live: Live, fresh: Iterable[LastRecord], now: float, node: str | None = None) -> Iterator[Tile]:
    """Yield the figures of the workers *fresh*, which are those of *node* or of the cluster."""
    records = [one.record for one in fresh]
    incoming = sum(per_second(one, one["in"]["messages"]) for one in records)
    outgoing = sum(per_second(one, one["out"]["messages"]) for one in records)
    throttled = sum(one["clients"]["throttled"] for one in records)
    slow = sum(one["clients"]["non_writable"] for one in records)
    p99 = max((one["latency"]["p99_ms"] for one in records), default=0.0)
    credits = min((one["credits_per_tick"] for one in records), default=0)
    dropped = sum(live.counted(now, node=node).dropped.values())
    yield Tile("Messages in", words.count(incoming), "/s", f"{words.size(_bytes(records, 'in'))}/s of payload")
    yield Tile("Messages out", words.count(outgoing), "/s", f"{words.size(_bytes(records, 'out'))}/s of payload")
    yield Tile(
        "Throttled", words.count(throttled), _clients_unit(throttled), f"{words.count(credits)} credits per 200 ms"
    )
    yield Tile("Slow readers", words.count(slow), _clients_unit(slow), f"{words.count(dropped)} dropped in {COUNTED} s")
    yield Tile("Latency p99", words.latency(p99), "ms", "of acknowledged publishes")


def _bytes(records: list[dict[str, Any]], way: str) -> float:
    return sum(per_second(one, one[way]["bytes"]) for one in records)


def workers(live: Live, now: float, node: str | None = None) -> tuple[tuple[Row, ...], str]:
    """Return a row for each worker, by name, and a sentence about workers that are not shown: the least loaded ones."""
    listed = sorted((name, last) for name, last in live.workers.items() if node is None or name[0] == node)
    known = len(listed)
    if len(listed) > WORKERS:
        listed = sorted(sorted(listed, key=_worst_first)[:WORKERS])
    left = known - len(listed)
    more = f"{words.plural(left, 'more worker', 'more workers')} with less load not shown." if left else ""
    return tuple(_worker(name, last, now - last.at <= FRESH, now) for name, last in listed), more


def _worker(name: tuple[str, int], last: LastRecord, fresh: bool, now: float) -> Row:
    node, number = name
    record = last.record
    level, cause, clients = min(record["level"], HIGHEST), record["cause"], record["clients"]
    key = f"{node}/{number}"
    if not fresh:
        silence = f"silent for {span(now - last.at)}"
        blank = (Cell(""),) * 8
        return Row(
            key,
            (
                Cell(words.shown(key), href=worker_page(node, number), title=key),
                Cell(NONE, "level unknown"),
                Cell(silence),
                *blank,
            ),
        )
    return Row(
        key,
        (
            Cell(words.shown(key), href=worker_page(node, number), title=key),
            Cell(str(level), f"level {words.tone(level)}"),
            Cell(f"{cause} {record['signals'].get(cause, 0.0):.2f}" if cause else NONE),
            Cell(words.count(clients["connected"])),
            Cell(words.count(clients["throttled"]), "some" if clients["throttled"] else ""),
            Cell(words.count(clients["non_writable"]), "some" if clients["non_writable"] else ""),
            Cell(words.count(record["credits_per_tick"])),
            Cell(words.count(per_second(record, record["in"]["messages"]))),
            Cell(words.count(per_second(record, record["out"]["messages"]))),
            Cell(words.latency(record["latency"]["p99_ms"])),
            Cell(words.share(_outbound(record))),
        ),
    )


def _outbound(record: dict[str, Any]) -> float:
    queues = record["queues"]
    return float(min(1.0, queues["outbound_bytes"] / max(1, queues["outbound_limit_bytes"])))


def _worst_first(item: tuple[tuple[str, int], LastRecord]) -> tuple[int, int]:
    record = item[1].record
    return -record["level"], -record["in"]["messages"] - record["out"]["messages"]


@dataclass(frozen=True)
class LoadTables:
    """What costs most and what was done about it, of the cluster, a node or a worker."""

    clients: tuple[Row, ...] = ()
    topics: tuple[Row, ...] = ()
    dropped: tuple[Row, ...] = ()
    refused: tuple[Row, ...] = ()
    held: tuple[Row, ...] = ()
    more: tuple[str, ...] = ("",) * 5  # about what each table leaves out


def load_tables(
    of_clients: tuple[list[Hits], int],
    of_topics: tuple[list[Hits], int],
    dropped: Counts,
    refused: Counts,
    held_ms: Counts,
    minutes: Sequence[Mapping[str, float] | None] = (),
) -> LoadTables:
    """Return the tables of these hits, which come with their total cost, and of these counts by reason.

    *minutes*: the shares of clients and of topics in the last minute, of which the analysis knows the whole cluster
    only; without it, their tables have no column for it.
    """
    of_minute = minutes or (None, None)
    costly = tuple(clients(*of_clients, of_minute[0])), tuple(topics(*of_topics, of_minute[1]))
    if not minutes:
        costly = _without_minute(costly[0]), _without_minute(costly[1])
    left = [beyond(len(of_clients[0]), ROWS, "client"), beyond(len(of_topics[0]), ROWS, "topic")]
    left += [beyond(sum(map(bool, one.values())), len(largest(one)), "reason") for one in (dropped, refused, held_ms)]
    return LoadTables(*costly, tuple(reasons(dropped)), tuple(reasons(refused)), tuple(held(held_ms)), tuple(left))


def _without_minute(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    return tuple(Row(row.key, row.cells[:-1]) for row in rows)


def clients(hits: list[Hits], total: int, minute: Mapping[str, float] | None) -> Iterator[Row]:
    """Yield the first of *hits*, which have a cost of *total*.

    *minute*: their shares of the last minute, in a column more; None: that is not known.
    """
    total = max(1, total)
    for one in hits[:ROWS]:
        held = min(1.0, one.paused_ms / 1e3 / HITTING)
        yield Row(
            one.name,
            (
                Cell(words.shown(one.name), "name", client_page(one.name), title=one.name),
                Cell(words.share(one.cost / total), share=one.cost / total),
                Cell(words.count(one.messages / HITTING)),
                Cell(words.size(one.bytes / HITTING)),
                Cell(words.share(held), "some" if held >= 0.01 else ""),
                Cell(_of_minute(one.name, minute)),
            ),
        )


def topics(hits: list[Hits], total: int, minute: Mapping[str, float] | None) -> Iterator[Row]:
    """Yield the first of *hits*: see `clients`."""
    total = max(1, total)
    for one in hits[:ROWS]:
        yield Row(
            one.name,
            (
                Cell(words.shown(one.name), "name", title=one.name),
                Cell(words.share(one.cost / total), share=one.cost / total),
                Cell(words.count(one.messages / HITTING)),
                Cell(words.size(one.bytes / HITTING)),
                Cell(_of_minute(one.name, minute)),
            ),
        )


def _of_minute(name: str, minute: Mapping[str, float] | None) -> str:
    if minute is None or name not in minute:
        return NONE
    return words.share(minute[name])


def reasons(counts: Counts) -> Iterator[Row]:
    for label, number in largest(counts):
        means = "clients that were refused" if label == "CONNECT" else words.reason(label)
        yield Row(label, (Cell(label, "name", title=means), Cell(means, "means"), Cell(words.count(number))))


def held(counts: Counts) -> Iterator[Row]:
    for label, number in largest(counts):
        means = words.reason(label)
        yield Row(label, (Cell(label, "name", title=means), Cell(means, "means"), Cell(span(number / 1e3))))


def largest(counts: Counts) -> list[tuple[str, int]]:
    """Return the labels with the greatest numbers."""
    return sorted(((label, number) for label, number in counts.items() if number), key=_most_first)[:REASONS]


def _most_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]
