# Incidents and episodes as a page shows them.
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from analytics import resources
from analytics.dashboard import words
from analytics.dashboard.tables import beyond, reasons
from analytics.dashboard.values import NONE, Cell, Row, client_page, node_page
from analytics.resources import node_of
from analytics.rows import Overload
from broker.insight.explain import span

CULPRIT: Final = 0.3  # share of the cost: a client with less is not named as the cause


@dataclass(frozen=True)
class Story:
    """An incident or an episode."""

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
    where: str  # what was overloaded
    culprit: str  # the client; "" if no single client is the cause
    story: tuple[str, ...]
    clients: tuple[Row, ...]
    throttled: tuple[Row, ...]
    losses: tuple[Row, ...]
    nodes: frozenset[str]  # that are affected
    slowed: tuple[Row, ...]  # nodes
    slowed_more: str
    members: tuple[Row, ...]  # the episodes of an incident
    members_more: str


def stories(rows: Sequence[Overload], known: float, now: float) -> Iterator[Story]:
    """Yield the stories of *rows*. *known* is the newest second of the analysis: an open one may have ended since."""
    for episode in rows:
        try:
            if episode["state"] == "merged":
                continue  # it is part of another episode
            yield _story(episode, known, now)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            continue  # malformed, or of another version


def _story(episode: Overload, known: float, now: float) -> Story:
    row: Any = episode
    members = row.get("episodes", ())
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
        where=_where(row),
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
        losses=tuple(reasons(lost)),
        nodes=frozenset([*episode["nodes"], *(one["node"] for one in episode["slowed"])]),
        slowed=tuple(
            Row(
                one["node"],
                (
                    Cell(words.shown(one["node"]), "name", node_page(one["node"]), title=one["node"]),
                    Cell(words.count(one["throttled_most"])),
                    Cell(span(one["paused_ms"] / 1e3)),
                ),
            )
            for one in episode["slowed"]
        ),
        slowed_more=beyond(int(episode["slowed_nodes"]), len(episode["slowed"]), "node"),
        members=tuple(_member(one, known, now) for one in members),
        members_more=beyond(int(row.get("episodes_all", 0)), len(members), "episode"),
    )


def _member(member: Any, known: float, now: float) -> Row:
    start, end = float(member["start"]), member["end"]
    node, peak = node_of(member["resource"]), int(member["peak"])
    last = float(known if end is None else end)
    return Row(
        str(member["id"]),
        (
            Cell(words.shown(resources.words(member["resource"])), "name", node_page(node) if node else ""),
            Cell(words.cause(str(member["cause"]))),
            Cell(str(peak), f"level {words.tone(peak)}"),
            Cell(f"{words.clock(start)} {NONE} {'now' if end is None and known == now else words.clock(last)}"),
        ),
    )


def _where(row: Any) -> str:
    """Return what was overloaded, in a few words; "" if that is one node, and the page need not say it."""
    if "resource" in row:
        return words.shown(resources.words(row["resource"]))
    named = {resources.words(one["resource"]): one["resource"] for one in row["episodes"]}
    if len(named) == 1 == row["episodes_all"]:
        (name,) = named
        return words.shown(name)
    nodes = len(row["nodes"])
    more = "+" if row["further_nodes"] else ""
    return f"{row['episodes_all']} episodes, {nodes}{more} {'node' if nodes == 1 and not more else 'nodes'}"
