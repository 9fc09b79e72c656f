# What is to be shown, as values: from the records of the workers and the rows of the analysis to words and numbers.
#
# Whoever opens the page in the middle of trouble asks: how bad, because of what, because of whom, and who pays. The
# first sentences answer that, from the live records alone, so they hold while the analysis does not run. The rest is
# what they rest on. Nothing here waits, and nothing knows of browsers: page.py shows a Board, and a test reads one.
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from analytics.dashboard import words
from analytics.dashboard.live import COUNTED, HITTING, Counts, Heard, Hits, Live, per_second
from analytics.rows import VERSION, Episode, Findings, Status
from broker.insight.explain import span

HIGHEST: Final = 10
NONE: Final = "\N{EN DASH}"
ROWS: Final = 10  # clients, and topics
REASONS: Final = 8
WORKERS: Final = 48  # rows; of more, the worst
NOTES: Final = 8
EPISODES: Final = 30
LATE: Final = 15.0  # seconds without a batch, and the analysis counts as not running
BEHIND: Final = 20.0  # seconds between what it knows and now that are worth a word
CULPRIT: Final = 0.3  # of the cost; who has less is not to blame alone
STORM: Final = 20  # CONNECTs a second that are worth a word

START: Final = "`weir analytics run` starts it."


@dataclass(frozen=True)
class Cell:
    text: str
    kind: str = ""  # a class of the style sheet
    href: str = ""
    share: float | None = None  # 0 to 1: a bar behind the text
    title: str = ""  # the whole of what is cut


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
    """Of a sentence: a text, or a link."""

    text: str
    href: str = ""


@dataclass(frozen=True)
class Story:
    """An episode."""

    key: str
    open: bool
    current: bool  # it goes on now
    peak: int
    tone: str
    start: float
    end: float | None
    until: float  # the end, or how far it is known
    when: str
    lasted: str
    cause: str
    culprit: str  # the client; "" if nobody is to blame alone
    story: tuple[str, ...]
    clients: tuple[Row, ...]
    throttled: tuple[Row, ...]
    losses: tuple[Row, ...]


@dataclass(frozen=True)
class Analysis:
    """What the job left in Redis, as it was found there: nothing of it is certain to be whole."""

    status: Status | None = None
    findings: Findings | None = None
    episodes: tuple[Episode, ...] = ()  # the newest first
    unreadable: int = 0


@dataclass(frozen=True)
class Away:
    """Redis does not answer."""

    since: float
    why: str
    nodes_speak: bool = False  # those of this machine, which are asked instead


@dataclass(frozen=True)
class Board:
    moment: str
    trouble: str  # what is wrong with what is shown, in a sentence or two; "": nothing
    empty: str  # why there is nothing to show; "": there is something
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
    analysis: str  # how the job is, in a sentence
    analysing: bool
    current: bool  # it knows what is now
    notes: tuple[Note, ...]
    stories: tuple[Story, ...]
    footnote: str
    marks: tuple[tuple[float, float], ...] = field(default=())  # begin and end of episodes, for the charts


def board(live: Live, analysis: Analysis, away: Away | None, now: float) -> Board:
    """What there is to see; *now*: by the clock of the log."""
    fresh = live.fresh(now)
    level = max((max(one.record["level"], one.record["cluster_level"]) for one in fresh.values()), default=0)
    level = min(level, HIGHEST)
    name, meaning = words.word(level)
    analysing, said = _job(analysis.status, now)
    clients = live.hitters("client", now)
    told, more = _workers(live, now)
    known = _known(analysis.status, now)
    current = analysing and now - known <= BEHIND
    stories = tuple(_stories(analysis.episodes, now if current else known, now))
    return Board(
        moment=words.clock(now),
        trouble=_trouble(live, fresh, away, now),
        empty=_empty(live, away),
        summary=_summary(fresh),
        level=level,
        tone=words.tone(level) if fresh else "unknown",
        word=name if fresh else "Unknown",
        sentences=tuple(_sentences(live, fresh, level, clients, meaning, now)) if fresh else (),
        tiles=tuple(_tiles(live, fresh, now)),
        workers=told,
        workers_more=more,
        clients=tuple(_clients(clients, _minute(analysis, analysing, "clients"))),
        topics=tuple(_topics(live.hitters("topic", now), _minute(analysis, analysing, "topics"))),
        dropped=tuple(_reasons(live.counted(now).dropped)),
        refused=tuple(_reasons(live.counted(now).refused | _closed_connects(live, now))),
        held=tuple(_held(live.counted(now).held_ms)),
        analysis=said,
        analysing=analysing,
        current=current,
        notes=tuple(_notes(analysis.findings))[:NOTES] if current and analysis.findings else (),
        stories=stories,
        footnote=_footnote(live, analysis),
        marks=tuple((one.start, one.until) for one in stories),
    )


def client_page(name: str) -> str:
    """Where the page of a client is."""
    return f"/client/{quote(name, safe='')}"


def lately(live: Live, name: str, now: float) -> str:
    """What a client did in the last seconds."""
    found = [one for one in live.hitters("client", now) if one.name == name]
    if not found:
        return "It is not among the clients that cost most."
    one, total = found[0], sum(other.cost for other in live.hitters("client", now))
    told = f"{words.count(one.messages / HITTING)} messages and {words.size(one.bytes / HITTING)} a second, "
    told += f"{words.share(one.cost / max(1, total))} of the cost of all publishes that are known of."
    return f"{told} It was held back for {span(one.paused_ms / 1e3)}." if one.paused_ms else told


# How bad, because of what and whom, and who pays.


def _sentences(
    live: Live, fresh: Mapping[Any, Heard], level: int, clients: list[Hits], meaning: str, now: float
) -> Iterator[tuple[Part, ...]]:
    yield (Part(meaning),)
    if level == 0:
        return
    worst = max((one.record for one in fresh.values()), key=_badness)
    if worst["level"] and worst["cause"]:
        value = worst["signals"].get(worst["cause"], 0.0)
        who = f"Worker {worst['worker']} of node {words.shown(worst['node'])}"
        how = f"at {value:.2g} times its target" if value >= 1.0 else "falling again"
        yield (Part(f"The cause: {words.signal(worst['cause'])}. {who} has this signal {how}."),)
    elif not worst["level"]:
        yield (Part("The cause is at a node that writes to another log: its own dashboard knows more."),)
    recent = live.counted(now, HITTING)
    if worst["cause"] == "connect":
        rate = recent.connects / HITTING
        refused = (
            f", {words.count(recent.connects_refused / HITTING)} of them refused" if recent.connects_refused else ""
        )
        yield (
            Part(f"A storm of connects: {words.count(rate)} CONNECTs a second{refused}, over the last {HITTING} s."),
        )
    else:
        yield _blame(clients)
    held = sum(one.record["clients"]["throttled"] for one in fresh.values())
    waiting = sum(recent.held_ms.values())
    if held or waiting:
        yield (
            Part(
                f"{words.plural(held, 'client is', 'clients are')} held back now, "
                f"{span(waiting / 1e3)} of waiting in the last {HITTING} s."
            ),
        )


def _blame(clients: list[Hits]) -> tuple[Part, ...]:
    total = sum(one.cost for one in clients)
    if not total:
        return (Part("No client stands out by what it costs."),)
    first = clients[0]
    part = first.cost / total
    if part < CULPRIT:
        return (Part(f"No single client is behind it: the most costly has {words.share(part)} of the cost."),)
    return (
        Part("Most of it is due to " if part >= 0.5 else "Much of it is due to "),
        Part(words.shown(first.name), client_page(first.name)),
        Part(f": {words.share(part)} of the cost, {words.count(first.messages / HITTING)} messages a second."),
    )


def _badness(record: dict[str, Any]) -> tuple[int, float]:
    return record["level"], float(record["signals"].get(record["cause"], 0.0))


# What is wrong with the picture itself.


def _empty(live: Live, away: Away | None) -> str:
    if live.taken:
        return ""
    if away is not None:
        return "There is nothing to show until Redis answers."
    return (
        "No worker has written a record yet. They do each second: `weir start --detach` starts a node, "
        "and `weir status` says whether one runs."
    )


def _trouble(live: Live, fresh: Mapping[Any, Heard], away: Away | None, now: float) -> str:
    if away is not None:
        told = f"Redis does not answer since {words.clock(away.since)} ({away.why})."
        if fresh and away.nodes_speak:
            return (
                f"{told} What you see comes from the nodes of this machine. This goes on by itself when Redis is back."
            )
        return (
            f"{told} What you see is what was. This goes on by itself when Redis is back: `weir status` shows the node."
        )
    if live.workers and not fresh:
        last = max(heard.at for heard in live.workers.values())
        return (
            f"No worker has written for {span(now - last)}: what you see is what was. "
            "`weir status` says whether the node runs, `weir logs` why not."
        )
    return ""


def _footnote(live: Live, analysis: Analysis) -> str:
    told = []
    if live.unfit:
        told.append(f"{words.plural(live.unfit, 'entry', 'entries')} of the log could not be read and were left out.")
    status = analysis.status
    if status is not None and _number(status.get("unfit")):
        unfit = int(_number(status.get("unfit")))
        told.append(f"The analysis set {words.plural(unfit, 'entry', 'entries')} aside that are no records.")
    if status is not None and _number(status.get("lost")):
        lost = int(_number(status.get("lost")))
        told.append(f"Redis cut {words.plural(lost, 'entry', 'entries')} off before the analysis had read them.")
    if analysis.unreadable:
        told.append(f"{words.plural(analysis.unreadable, 'row')} of the analysis could not be read.")
    return " ".join(told)


def _summary(fresh: Mapping[Any, Heard]) -> str:
    nodes = len({node for node, _ in fresh})
    clients = sum(one.record["clients"]["connected"] for one in fresh.values())
    return (
        f"{words.plural(nodes, 'node')}, {words.plural(len(fresh), 'worker')}, "
        f"{words.count(clients)} {'client' if clients == 1 else 'clients'}"
    )


# Figures.


def _tiles(live: Live, fresh: Mapping[Any, Heard], now: float) -> Iterator[Tile]:
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
    yield Tile("Held back", words.count(throttled), "clients", f"{words.count(credits)} credits each 200 ms")
    yield Tile("Slow readers", words.count(slow), "clients", f"{words.count(dropped)} dropped in {COUNTED} s")
    yield Tile("Latency p99", f"{p99:.3g}", "ms", "of acknowledged publishes")


def _bytes(records: list[dict[str, Any]], way: str) -> float:
    return sum(per_second(one, one[way]["bytes"]) for one in records)


def _workers(live: Live, now: float) -> tuple[tuple[Row, ...], str]:
    """A row for each worker in the order of their names, the worst if there are too many; how many are left out."""
    listed = sorted(live.workers.items())
    if len(listed) > WORKERS:
        listed = sorted(sorted(listed, key=_worst_first)[:WORKERS])
    left = len(live.workers) - len(listed)
    more = (
        f"{words.plural(left, 'more worker is', 'more workers are')} not shown, which have less to do." if left else ""
    )
    fresh = live.fresh(now)
    return tuple(_worker(name, heard, name in fresh, now) for name, heard in listed), more


def _worker(name: tuple[str, int], heard: Heard, fresh: bool, now: float) -> Row:
    node, number = name
    record = heard.record
    level, cause, clients = min(record["level"], HIGHEST), record["cause"], record["clients"]
    key = f"{node}/{number}"
    if not fresh:
        silence = f"silent for {span(now - heard.at)}"
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


def _worst_first(item: tuple[tuple[str, int], Heard]) -> tuple[int, int]:
    record = item[1].record
    return -record["level"], -record["in"]["messages"] - record["out"]["messages"]


def _minute(analysis: Analysis, analysing: bool, what: str) -> dict[str, float] | None:
    """Of each client or topic its share of the cost of the last minute, as the analysis has it; None: it has not."""
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
        means = "clients that were not let in" if label == "CONNECT" else words.reason(label)
        yield Row(label, (Cell(label, "name", title=means), Cell(means, "means"), Cell(words.count(number))))


def _held(counts: Counts) -> Iterator[Row]:
    for label, number in _largest(counts):
        means = words.reason(label)
        yield Row(label, (Cell(label, "name", title=means), Cell(means, "means"), Cell(span(number / 1e3))))


def _largest(counts: Counts) -> list[tuple[str, int]]:
    return sorted(((label, number) for label, number in counts.items() if number), key=_most_first)[:REASONS]


def _most_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


# What the analysis says.


def _job(status: Status | None, now: float) -> tuple[bool, str]:
    """Whether the job runs, and how it is."""
    if status is None:
        return False, f"The analysis is not running: {START}"
    if status.get("version") != VERSION:
        return False, "The analysis that runs is of another version of Weir: stop it, and start it again from this one."
    updated = _number(status.get("updated"))
    if now - updated > LATE:
        return False, f"The analysis is not running, and wrote last at {words.clock(updated)}: {START}"
    if not _number(status.get("newest")):
        return True, "The analysis runs, and has not read a record yet."
    behind = now - _number(status.get("newest"))
    if behind > BEHIND:
        return True, f"The analysis runs, and is {span(behind)} behind."
    return True, f"The analysis runs; a batch took {span(_number(status.get('batch_s')))}."


def _known(status: Status | None, now: float) -> float:
    """The last second that the analysis knows of."""
    return now if status is None else min(now, _number(status.get("newest")))


def _notes(findings: Findings) -> Iterator[Note]:
    """What is worth a look, the urgent first. Rows that are no such rows are left out."""
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
        f"live on their credits: {words.count(row['average_credits'])} each on average, "
        f"{words.count(row['credits_per_tick'])} more each 200 ms."
    )


def _stories(episodes: tuple[Episode, ...], known: float, now: float) -> Iterator[Story]:
    """*known*: how far the analysis is; what goes on may have ended since."""
    for episode in episodes[:EPISODES]:
        try:
            if episode["state"] == "merged":
                continue  # it is a part of another one
            yield _story(episode, known, now)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            continue  # it is no episode, or of another version; the next may be one


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
        lasted=span(max(0.0, last - start)),
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
