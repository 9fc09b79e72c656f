# The content of the page as values: texts and numbers from the records of the workers and the rows of the analysis.
#
# During an overload an operator asks: how severe is it, what is the cause, which client causes it, which clients are
# affected? The first sentences answer that from the live records alone, so they do not depend on the analysis. The rest
# of the page shows the details. Nothing here blocks or depends on browsers: page.py renders a Board, tests read one.
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from analytics.dashboard import words
from analytics.dashboard.live import HITTING, WORKERS, Hits, LastRecord, Live
from analytics.dashboard.nodes import closed_connects, node_rows
from analytics.dashboard.stories import CULPRIT, Story, stories
from analytics.dashboard.tables import LoadTables, beyond, largest, load_tables, tiles, workers
from analytics.dashboard.values import HIGHEST, NONE, Note, Part, Row, Tile, all_nodes_page, client_page
from analytics.rows import VERSION, Findings, Incident, Status
from broker.insight.explain import span

NOTES: Final = 8
NODES: Final = 12  # rows of the overview: the others are on the page of all nodes
INCIDENTS: Final = 30
EPISODES: Final = 20  # on the page of a node
AT_MOST: Final = 4000  # records that the reader takes per update, so that it always comes to showing them
LATE: Final = 15.0  # seconds since the status of the analysis was updated: it counts as not running
BEHIND: Final = 20.0  # seconds of delay of the analysis that are reported
HALF: Final = 0.5  # share of the cost that is called most of it

START: Final = "`weir analytics run` starts it."


@dataclass(frozen=True)
class Analysis:
    """The rows of the job as they were found in Redis. Any of them may be malformed."""

    status: Status | None = None
    findings: Findings | None = None
    incidents: tuple[Incident, ...] = ()  # the newest first
    incidents_all: int = 0  # that there are
    unreadable: int = 0


@dataclass(frozen=True)
class Away:
    """Redis is unavailable."""

    since: float
    why: str
    nodes_answer: bool = False  # the nodes of this machine, which the reader queries instead


@dataclass(frozen=True)
class Board:
    at: float  # the time that it shows
    moment: str
    trouble: str  # why the page is not up to date, in one or two sentences; ""
    empty: str  # why there is nothing to show; ""
    summary: str
    level: int
    tone: str
    word: str
    sentences: tuple[tuple[Part, ...], ...]
    tiles: tuple[Tile, ...]
    nodes: tuple[Row, ...]  # those with the most trouble first; empty if there is one node only
    nodes_more: tuple[Part, ...]
    workers: tuple[Row, ...]  # empty if there are several nodes: each has a page
    workers_more: str
    tables: LoadTables
    analysis: str  # the status of the job, in a sentence
    analysing: bool
    current: bool  # the analysis runs without much delay
    known: float  # the newest second that the analysis knows; now, if it is current
    notes: tuple[Note, ...]
    notes_more: str
    stories: tuple[Story, ...]
    stories_more: str
    footnote: str
    marks: tuple[tuple[float, float], ...] = field(default=())  # start and end of the incidents, for the charts


def board(live: Live, analysis: Analysis, away: Away | None, now: float, behind: float = 0.0) -> Board:
    """Return the content of the page at the time *now* of the clock of Redis, which is *behind* seconds ago."""
    fresh = live.fresh(now)
    level = max((max(one.record["level"], one.record["cluster_level"]) for one in fresh.values()), default=0)
    level = min(level, HIGHEST)
    name, meaning = words.word(level)
    analysing, status = _job(analysis.status, now)
    counted = live.counted(now)
    nodes = node_rows(live, now)
    listed, more = workers(live, now) if len(nodes) < 2 else ((), "")
    notes = tuple(_notes(analysis.findings)) if analysis.findings else ()
    known = _known(analysis.status, now)
    current = analysing and now - known <= BEHIND
    told = tuple(stories(analysis.incidents[:INCIDENTS], now if current else known, now))
    return Board(
        at=now,
        moment=f"{words.clock(now)} UTC",
        trouble=_trouble(live, fresh, away, now, behind),
        empty=_empty(live, away),
        summary=_summary(fresh),
        level=level,
        tone=words.tone(level) if fresh else "unknown",
        word=name if fresh else "Unknown",
        sentences=tuple(_sentences(live, fresh, level, meaning, now)) if fresh else (),
        tiles=tuple(tiles(live, fresh.values(), now)),
        nodes=tuple(nodes[:NODES]) if len(nodes) > 1 else (),
        nodes_more=_nodes_more(nodes),
        workers=listed,
        workers_more=more,
        tables=load_tables(
            live.hitters("client", now),
            live.hitters("topic", now),
            counted.dropped,
            counted.refused | closed_connects(counted),
            counted.held_ms,
            [_minute(analysis, analysing, what) for what in ("clients", "topics")],
        ),
        analysis=status,
        analysing=analysing,
        current=current,
        known=now if current else known,
        notes=notes[:NOTES] if current else (),
        notes_more=beyond(len(notes), NOTES, "observation") if current else "",
        stories=told,
        stories_more=beyond(analysis.incidents_all, INCIDENTS, "incident"),
        footnote=_footnote(live, analysis),
        marks=tuple((one.start, one.until) for one in told),
    )


def _nodes_more(nodes: list[Row]) -> tuple[Part, ...]:
    if len(nodes) <= NODES:
        return ()
    left = len(nodes) - NODES
    worst = nodes[NODES].cells[1].text  # they are in the order of their trouble
    state = {NONE: "silent or at level 4 or less", "0": "not overloaded"}.get(worst, f"at level {worst} or less")
    return (
        Part(f"{words.plural(left, 'more node', 'more nodes')}, {state}: "),
        Part(f"all {len(nodes)} nodes", all_nodes_page()),
        Part("."),
    )


def lately(live: Live, name: str, now: float) -> str:
    """Return sentences about the activity of a client in the last seconds."""
    hits, total = live.hitters("client", now)
    one = next((each for each in hits if each.name == name), None)
    if one is None:
        return "This client is not among the most costly clients."
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
            yield (Part(_throttled(held, waiting, largest(recent.held_ms))),)
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
        yield _main_client(*live.hitters("client", now, overloaded=True))
    if held or waiting:
        yield (Part(_throttled(held, waiting)),)


def _throttled(held: int, waiting: int, reasons: Sequence[tuple[str, int]] = ()) -> str:
    """Return how many clients are throttled now, and how long clients *waiting* (in ms) did, with the *reasons*."""
    because = f", because of {', '.join(label for label, _ in reasons)}" if reasons else ""
    return (
        f"{words.plural(held, 'client is', 'clients are')} throttled now; "
        f"clients waited {span(waiting / 1e3)} in total in the last {HITTING} s{because}."
    )


def _main_client(clients: list[Hits], total: int) -> tuple[Part, ...]:
    """Return a sentence about the most costly of *clients*, which are those of the overloaded workers."""
    if not clients or not total:
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
    if live.turned_away:
        ignored = words.plural(live.turned_away, "record is", "records are")
        sentences.append(f"{ignored} not shown: they are from more than {WORKERS} workers.")
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


def _number(found: object) -> float:
    return float(found) if isinstance(found, int | float) else 0.0
