# The content of the page as values: texts and numbers from the records of the workers and the rows of the analysis.
#
# During an overload an operator asks: how severe is it, what is the cause, which client causes it, which clients are
# affected? The first sentences answer that from the live records alone, so they do not depend on the analysis. The rest
# of the page shows the details. Nothing here blocks or depends on browsers: page.py renders a Board, tests read one.
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from analytics.dashboard import words
from analytics.dashboard.live import COUNTED, HITTING, Counts, Hits, LastRecord, Live, per_second
from analytics.rows import VERSION, Episode, Findings, Status
from broker.insight.explain import span

HIGHEST: Final = 10
NONE: Final = "\N{EN DASH}"
ROWS: Final = 10  # clients, and topics
REASONS: Final = 8
WORKERS: Final = 48  # rows; if there are more workers, the most loaded are shown
NOTES: Final = 8
EPISODES: Final = 30
AT_MOST: Final = 4000  # records that the reader takes per update, so that it always comes to showing them
LATE: Final = 15.0  # seconds since the status of the analysis was updated: it counts as not running
BEHIND: Final = 20.0  # seconds of delay of the analysis that are reported
HALF: Final = 0.5  # share of the cost that is called most of it
CULPRIT: Final = 0.3  # share of the cost: a client with less is not named as the cause

START: Final = "`weir analytics run` starts it."


@dataclass(frozen=True)
class Cell:
    text: str
    kind: str = ""  # a class of the style sheet
    href: str = ""
    share: float | None = None  # 0 to 1: a bar behind the text
    title: str = ""  # the full text, if *text* is shortened


@dataclass(frozen=True)
class Row:
    key: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Tile:
    label: str
    value: str
    unit: str
    note: str


@dataclass(frozen=True)
class Note:
    key: str
    kind: str  # "warning" or "fact"
    text: str


@dataclass(frozen=True)
class Part:
    """A part of a sentence: a text or a link."""

    text: str
    href: str = ""


@dataclass(frozen=True)
class Story:
    """An episode."""

    key: str
    open: bool
    current: bool  # still open now
    peak: int
    tone: str
    start: float
    end: float | None
    until: float  # the end; for an open episode, the newest second of the analysis
    when: str
    lasted: str
    cause: str
    culprit: str  # the client; "" if no single client is the cause
    story: tuple[str, ...]
    clients: tuple[Row, ...]
    throttled: tuple[Row, ...]
    losses: tuple[Row, ...]


@dataclass(frozen=True)
class Analysis:
    """The rows of the job as they were found in Redis. Any of them may be malformed."""

    status: Status | None = None
    findings: Findings | None = None
    episodes: tuple[Episode, ...] = ()  # the newest first
    unreadable: int = 0


@dataclass(frozen=True)
class Away:
    """Redis is unavailable."""

    since: float
    why: str
    nodes_answer: bool = False  # the nodes of this machine, which the reader queries instead


@dataclass(frozen=True)
class Board:
    moment: str
    trouble: str  # why the page is not up to date, in one or two sentences; ""
    empty: str  # why there is nothing to show; ""
    summary: str
    level: int
    tone: str
    word: str
    sentences: tuple[tuple[Part, ...], ...]
    tiles: tuple[Tile, ...]
    workers: tuple[Row, ...]
    workers_more: str
    clients: tuple[Row, ...]
    topics: tuple[Row, ...]
    dropped: tuple[Row, ...]
    refused: tuple[Row, ...]
    held: tuple[Row, ...]
    analysis: str  # the status of the job, in a sentence
    analysing: bool
    current: bool  # the analysis runs without much delay
    notes: tuple[Note, ...]
    stories: tuple[Story, ...]
    footnote: str
    marks: tuple[tuple[float, float], ...] = field(default=())  # start and end of the episodes, for the charts


def board(live: Live, analysis: Analysis, away: Away | None, now: float, behind: float = 0.0) -> Board:
    """Return the content of the page at the time *now* of the clock of Redis, which is *behind* seconds ago."""
    fresh = live.fresh(now)
    level = max((max(one.record["level"], one.record["cluster_level"]) for one in fresh.values()), default=0)
    level = min(level, HIGHEST)
    name, meaning = words.word(level)
    analysing, status = _job(analysis.status, now)
    clients = live.hitters("client", now)
    workers, more = _workers(live, now)
    known = _known(analysis.status, now)
    current = analysing and now - known <= BEHIND
    stories = tuple(_stories(analysis.episodes, now if current else known, now))
    return Board(
        moment=f"{words.clock(now)} UTC",
        trouble=_trouble(live, fresh, away, now, behind),
        empty=_empty(live, away),
        summary=_summary(fresh),
        level=level,
        tone=words.tone(level) if fresh else "unknown",
        word=name if fresh else "Unknown",
        sentences=tuple(_sentences(live, fresh, level, meaning, now)) if fresh else (),
        tiles=tuple(_tiles(live, fresh, now)),
        workers=workers,
        workers_more=more,
        clients=tuple(_clients(clients, _minute(analysis, analysing, "clients"))),
        topics=tuple(_topics(live.hitters("topic", now), _minute(analysis, analysing, "topics"))),
        dropped=tuple(_reasons(live.counted(now).dropped)),
        refused=tuple(_reasons(live.counted(now).refused | _closed_connects(live, now))),
        held=tuple(_held(live.counted(now).held_ms)),
        analysis=status,
        analysing=analysing,
        current=current,
        notes=tuple(_notes(analysis.findings))[:NOTES] if current and analysis.findings else (),
        stories=stories,
        footnote=_footnote(live, analysis),
        marks=tuple((one.start, one.until) for one in stories),
    )


def client_page(name: str) -> str:
    """Return the path of the page of a client."""
    return f"/client/{quote(name, safe='')}"


def lately(live: Live, name: str, now: float) -> str:
    """Return sentences about the activity of a client in the last seconds."""
    found = [one for one in live.hitters("client", now) if one.name == name]
    if not found:
        return "This client is not among the most costly clients."
    one, total = found[0], sum(other.cost for other in live.hitters("client", now))
    activity = f"{words.count(one.messages / HITTING)} messages and {words.size(one.bytes / HITTING)} per second, "
    activity += f"{words.share(one.cost / max(1, total))} of the cost of the publishes of the most costly clients."
    return f"{activity} The client was throttled for {span(one.paused_ms / 1e3)}." if one.paused_ms else activity


# Severity, cause, culprits and effects.


def _sentences(
    live: Live, fresh: Mapping[Any, LastRecord], level: int, meaning: str, now: float
) -> Iterator[tuple[Part, ...]]:
    recent = live.counted(now, HITTING)
    held = sum(one.record["clients"]["throttled"] for one in fresh.values())
    waiting = sum(recent.held_ms.values())
    if level == 0:
        yield (Part(meaning if held or waiting else f"{meaning} No client is throttled."),)
        if held or waiting:
            yield (Part(_throttled(held, waiting, _largest(recent.held_ms))),)
        return
    yield (Part(meaning),)
    worst = max((one.record for one in fresh.values()), key=_severity)
    if worst["level"] and worst["cause"]:
        value = worst["signals"].get(worst["cause"], 0.0)
        worker = f"worker {worst['worker']} of node {words.shown(worst['node'])}"
        how = f"is at {value:.2g} times its target" if value >= 1.0 else "is falling again"
        yield (Part(f"The cause: {words.signal(worst['cause'])}. This signal of {worker} {how}."),)
    elif not worst["level"]:
        yield (Part("The cause is at a node that uses another Redis: see the dashboard of that node."),)
    if worst["cause"] == "connect":
        rate = recent.connects / HITTING
        refused = (
            f", {words.count(recent.connects_refused / HITTING)} of them refused" if recent.connects_refused else ""
        )
        yield (
            Part(f"A storm of connects: {words.count(rate)} CONNECTs per second{refused}, over the last {HITTING} s."),
        )
    elif worst["level"]:
        overloaded = {name for name, one in fresh.items() if one.record["level"]}
        yield _main_client(live.hitters("client", now, overloaded))
    if held or waiting:
        yield (Part(_throttled(held, waiting)),)


def _throttled(held: int, waiting: int, reasons: Sequence[tuple[str, int]] = ()) -> str:
    """Return how many clients are throttled now, and how long clients *waiting* (in ms) did, with the *reasons*."""
    because = f", because of {', '.join(label for label, _ in reasons)}" if reasons else ""
    return (
        f"{words.plural(held, 'client is', 'clients are')} throttled now; "
        f"clients waited {span(waiting / 1e3)} in total in the last {HITTING} s{because}."
    )


def _main_client(clients: list[Hits]) -> tuple[Part, ...]:
    """Return a sentence about the most costly of *clients*, which are those of the overloaded workers."""
    total = sum(one.cost for one in clients)
    if not total:
        return (Part("No client of the overloaded workers stands out by its cost."),)
    first = clients[0]
    part = first.cost / total
    if part < CULPRIT:
        return (Part(f"No single client is the cause: the most costly one has {words.share(part)} of the cost."),)
    return (
        Part("Most of the load is due to " if part > HALF else "Much of the load is due to "),
        Part(words.shown(first.name), client_page(first.name)),
        Part(
            f": {words.share(part)} of the cost of the overloaded workers, "
            f"{words.count(first.messages / HITTING)} messages per second."
        ),
    )


def _severity(record: dict[str, Any]) -> tuple[int, float]:
    return record["level"], float(record["signals"].get(record["cause"], 0.0))


# Why the page is empty, outdated or incomplete.


def _empty(live: Live, away: Away | None) -> str:
    if live.taken:
        return ""
    if away is not None:
        return "There is nothing to show until Redis is available."
    return (
        "No worker has written a record yet. Each worker writes one per second: `weir start --detach` starts a node, "
        "`weir status` shows whether one runs."
    )


def _trouble(live: Live, fresh: Mapping[Any, LastRecord], away: Away | None, now: float, behind: float) -> str:
    if away is not None:
        outage = f"Redis has not been available since {words.clock(away.since)} ({away.why})."
        if fresh and away.nodes_answer:
            return (
                f"{outage} This page shows data from the nodes of this machine. "
                "It returns to normal when Redis is available again."
            )
        return (
            f"{outage} This page shows old data. It is updated again when Redis is available: "
            "`weir status` shows the state of the node."
        )
    if behind:
        return (
            f"This page shows the cluster of {span(behind)} ago: the dashboard reads at most {AT_MOST} records per "
            "second. If the delay grows, there are more workers than one dashboard can show."
        )
    if live.workers and not fresh:
        latest = max(last.at for last in live.workers.values())
        return (
            f"No worker has written a record for {span(now - latest)}: this page shows old data. "
            "`weir status` shows whether the node runs, `weir logs` why it does not."
        )
    return ""


def _footnote(live: Live, analysis: Analysis) -> str:
    sentences = []
    if live.unfit:
        sentences.append(f"{words.plural(live.unfit, 'invalid entry', 'invalid entries')} of the log skipped.")
    if live.lost:
        missing = words.plural(live.lost, "record is", "records are")
        sentences.append(f"{missing} missing since this dashboard started: figures of these seconds are too low.")
    status = analysis.status
    if status is not None and _number(status.get("late")):
        late = int(_number(status.get("late")))
        sentences.append(f"The analysis ignored {words.plural(late, 'late record')}.")
    if status is not None and isinstance(status.get("clocks"), dict):
        for node, ahead in list(status["clocks"].items())[:NOTES]:
            if _number(ahead):
                way = "ahead" if _number(ahead) > 0 else "behind"
                sentences.append(
                    f"The clock of node {words.shown(node)} is {span(abs(_number(ahead)))} {way}: "
                    "its records count at the time at which the log received them."
                )
    if status is not None and _number(status.get("unfit")):
        unfit = int(_number(status.get("unfit")))
        sentences.append(f"The analysis skipped {words.plural(unfit, 'invalid entry', 'invalid entries')}.")
    if status is not None and _number(status.get("lost")):
        lost = int(_number(status.get("lost")))
        sentences.append(f"The log lost {words.plural(lost, 'entry', 'entries')} before the analysis read them.")
    if analysis.unreadable:
        sentences.append(f"{words.plural(analysis.unreadable, 'invalid row')} of the analysis skipped.")
    return " ".join(sentences)


def _summary(fresh: Mapping[Any, LastRecord]) -> str:
    nodes = len({node for node, _ in fresh})
    clients = sum(one.record["clients"]["connected"] for one in fresh.values())
    return (
        f"{words.plural(nodes, 'node')}, {words.plural(len(fresh), 'worker')}, "
        f"{words.count(clients)} {'client' if clients == 1 else 'clients'}"
    )


# Figures.


def _clients_unit(number: int) -> str:
    return "client" if number == 1 else "clients"


def _tiles(live: Live, fresh: Mapping[Any, LastRecord], now: float) -> Iterator[Tile]:
    records = [one.record for one in fresh.values()]
    incoming = sum(per_second(one, one["in"]["messages"]) for one in records)
    outgoing = sum(per_second(one, one["out"]["messages"]) for one in records)
    throttled = sum(one["clients"]["throttled"] for one in records)
    slow = sum(one["clients"]["non_writable"] for one in records)
    p99 = max((one["latency"]["p99_ms"] for one in records), default=0.0)
    credits = min((one["credits_per_tick"] for one in records), default=0)
    dropped = sum(live.counted(now).dropped.values())
    yield Tile("Messages in", words.count(incoming), "/s", f"{words.size(_bytes(records, 'in'))}/s of payload")
    yield Tile("Messages out", words.count(outgoing), "/s", f"{words.size(_bytes(records, 'out'))}/s of payload")
    yield Tile(
        "Throttled", words.count(throttled), _clients_unit(throttled), f"{words.count(credits)} credits per 200 ms"
    )
    yield Tile("Slow readers", words.count(slow), _clients_unit(slow), f"{words.count(dropped)} dropped in {COUNTED} s")
    yield Tile("Latency p99", f"{p99:.3g}", "ms", "of acknowledged publishes")


def _bytes(records: list[dict[str, Any]], way: str) -> float:
    return sum(per_second(one, one[way]["bytes"]) for one in records)


def _workers(live: Live, now: float) -> tuple[tuple[Row, ...], str]:
    """Return a row for each worker, by name, and a sentence about workers that are not shown: the least loaded ones."""
    listed = sorted(live.workers.items())
    if len(listed) > WORKERS:
        listed = sorted(sorted(listed, key=_worst_first)[:WORKERS])
    left = len(live.workers) - len(listed)
    more = f"{words.plural(left, 'more worker', 'more workers')} with less load not shown." if left else ""
    fresh = live.fresh(now)
    return tuple(_worker(name, last, name in fresh, now) for name, last in listed), more


def _worker(name: tuple[str, int], last: LastRecord, fresh: bool, now: float) -> Row:
    node, number = name
    record = last.record
    level, cause, clients = min(record["level"], HIGHEST), record["cause"], record["clients"]
    key = f"{node}/{number}"
    if not fresh:
        silence = f"silent for {span(now - last.at)}"
        blank = (Cell(""),) * 8
        return Row(key, (Cell(words.shown(key), title=node), Cell(NONE, "level unknown"), Cell(silence), *blank))
    return Row(
        key,
        (
            Cell(words.shown(key), title=node),
            Cell(str(level), f"level {words.tone(level)}"),
            Cell(f"{cause} {record['signals'].get(cause, 0.0):.2f}" if cause else NONE),
            Cell(words.count(clients["connected"])),
            Cell(words.count(clients["throttled"]), "some" if clients["throttled"] else ""),
            Cell(words.count(clients["non_writable"]), "some" if clients["non_writable"] else ""),
            Cell(words.count(record["credits_per_tick"])),
            Cell(words.count(per_second(record, record["in"]["messages"]))),
            Cell(words.count(per_second(record, record["out"]["messages"]))),
            Cell(f"{record['latency']['p99_ms']:.3g}"),
            Cell(words.share(_outbound(record))),
        ),
    )


def _outbound(record: dict[str, Any]) -> float:
    queues = record["queues"]
    return float(min(1.0, queues["outbound_bytes"] / max(1, queues["outbound_limit_bytes"])))


def _worst_first(item: tuple[tuple[str, int], LastRecord]) -> tuple[int, int]:
    record = item[1].record
    return -record["level"], -record["in"]["messages"] - record["out"]["messages"]


def _minute(analysis: Analysis, analysing: bool, what: str) -> dict[str, float] | None:
    """Return the share of each client or topic in the cost of the last minute; None without analysis."""
    if not analysing or analysis.findings is None:
        return None
    try:
        rows = analysis.findings[what]["60"]  # type: ignore[literal-required]
        total = sum(row["cost"] for row in rows)
        return {row["name"]: row["cost"] / max(1, total) for row in rows}
    except (KeyError, TypeError):
        return None


def _clients(hits: list[Hits], minute: dict[str, float] | None) -> Iterator[Row]:
    total = max(1, sum(one.cost for one in hits))
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


def _topics(hits: list[Hits], minute: dict[str, float] | None) -> Iterator[Row]:
    total = max(1, sum(one.cost for one in hits))
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


def _of_minute(name: str, minute: dict[str, float] | None) -> str:
    if minute is None or name not in minute:
        return NONE
    return words.share(minute[name])


def _closed_connects(live: Live, now: float) -> Counts:
    refused = live.counted(now).connects_refused
    return {"CONNECT": refused} if refused else {}


def _reasons(counts: Counts) -> Iterator[Row]:
    for label, number in _largest(counts):
        means = "clients that were refused" if label == "CONNECT" else words.reason(label)
        yield Row(label, (Cell(label, "name", title=means), Cell(means, "means"), Cell(words.count(number))))


def _held(counts: Counts) -> Iterator[Row]:
    for label, number in _largest(counts):
        means = words.reason(label)
        yield Row(label, (Cell(label, "name", title=means), Cell(means, "means"), Cell(span(number / 1e3))))


def _largest(counts: Counts) -> list[tuple[str, int]]:
    return sorted(((label, number) for label, number in counts.items() if number), key=_most_first)[:REASONS]


def _most_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


# The results of the analysis.


def _job(status: Status | None, now: float) -> tuple[bool, str]:
    """Return whether the job runs, and a sentence about its status."""
    if status is None:
        return False, f"The analysis is not running: {START}"
    if status.get("version") != VERSION:
        return False, "The running analysis belongs to another version of Weir: stop it and start that of this version."
    updated = _number(status.get("updated"))
    if now - updated > LATE:
        return False, f"The analysis is not running; its last result is from {words.clock(updated)}: {START}"
    if not _number(status.get("newest")):
        return True, "The analysis runs and has not read a record yet."
    behind = now - _number(status.get("newest"))
    if behind > BEHIND:
        return True, f"The analysis runs with a delay of {span(behind)}."
    return True, f"The analysis runs; the last batch took {span(_number(status.get('batch_s')))}."


def _known(status: Status | None, now: float) -> float:
    """Return the newest second of the analysis."""
    return now if status is None else min(now, _number(status.get("newest")))


def _notes(findings: Findings) -> Iterator[Note]:
    """Return the findings as notes, the urgent first. Malformed rows are skipped."""
    for kind, of, text in _found(findings):
        try:
            for number, row in enumerate(findings[of]):  # type: ignore[literal-required]
                yield Note(f"{of}/{number}", kind, text(row))
        except (KeyError, TypeError, ValueError):
            continue


def _found(findings: Findings) -> Iterator[tuple[str, str, Any]]:
    yield "warning", "warnings", lambda row: str(row["said"])
    yield "fact", "skew", lambda row: str(row["said"])
    yield "fact", "slow_readers", _slow
    yield "fact", "credit_pressure", _pressure


def _slow(row: Any) -> str:
    readers = words.plural(row["non_writable"], "slow reader")
    return (
        f"Worker {row['worker']} of node {words.shown(row['node'])} has {readers} "
        f"since {words.clock(row['since'])}; {words.share(row['outbound_share'])} of its outbound budget is used."
    )


def _pressure(row: Any) -> str:
    return (
        f"On node {words.shown(row['node'])} {row['using_credits']} of {words.plural(row['connected'], 'client')} "
        f"use their credits: {words.count(row['average_credits'])} each on average, "
        f"and {words.count(row['credits_per_tick'])} new ones per 200 ms."
    )


def _stories(episodes: tuple[Episode, ...], known: float, now: float) -> Iterator[Story]:
    """*known* is the newest second of the analysis: an open episode may have ended since."""
    for episode in episodes[:EPISODES]:
        try:
            if episode["state"] == "merged":
                continue  # it is part of another episode
            yield _story(episode, known, now)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            continue  # malformed, or of another version


def _story(episode: Episode, known: float, now: float) -> Story:
    start, end, peak = float(episode["start"]), episode["end"], int(episode["peak"])
    last = float(known if end is None else end)
    until = "now" if end is None and known == now else words.clock(last)
    when = " ".join([part for part in (words.day(start, now), f"{words.clock(start)} {NONE} {until}") if part])
    culprits = [one for one in episode["culprits"] if one["share"] >= CULPRIT]
    lost = {**episode["dropped"], **episode["refused"]}
    return Story(
        key=str(episode["id"]),
        open=episode["state"] == "open",
        current=end is None and known == now,
        peak=peak,
        tone=words.tone(peak),
        start=start,
        end=None if end is None else float(end),
        until=last,
        when=when,
        lasted=("at least " if episode.get("interrupted") else "") + span(max(0.0, last - start)),
        cause=words.cause(str(episode["cause"])),
        culprit=str(culprits[0]["name"]) if culprits else "",
        story=tuple(str(sentence) for sentence in episode["story"]),
        clients=tuple(
            Row(
                one["name"],
                (
                    Cell(words.shown(one["name"]), "name", client_page(one["name"]), title=one["name"]),
                    Cell(words.share(one["share"]), share=float(one["share"])),
                ),
            )
            for one in episode["culprits"]
        ),
        throttled=tuple(
            Row(
                one["name"],
                (
                    Cell(words.shown(one["name"]), "name", client_page(one["name"]), title=one["name"]),
                    Cell(span(one["paused_ms"] / 1e3)),
                ),
            )
            for one in episode["throttled"][:5]
        ),
        losses=tuple(_reasons(lost)),
    )


def _number(found: object) -> float:
    return float(found) if isinstance(found, int | float) else 0.0
