# Episodes: when a resource was overloaded, the cause, the clients that caused the overload, and its effects.
#
# Each resource (resources.py) has its own episodes; incidents.py joins those that belong together. The warm seconds of
# a resource (moments.py) that are at most GAP apart belong together. They are an episode if one of them is serious. A
# worker that reaches level 1 now and then is thus not an episode. An episode includes the warm seconds before the first
# serious one, but at most LEAD of them.
#
# The effects of an episode are those at the nodes that are affected in a second: `_owners` assigns each node to at most
# one episode, so nothing counts twice. A node that is overloaded belongs to its worst resource. A node that is not, but
# whose clients are throttled, belongs to the worst resource of the cluster: the highest level is in force everywhere.
#
# The culprits are the clients with the greatest share of the cost of the overloaded workers: a busy client of another
# worker did not cause the overload.
#
# So an episode is a function of the seconds alone, not of their order or of the batches. Rows arrive late and with the
# times of several clocks; therefore each second of the last HORIZON is kept separately, as a moment. Older moments are
# merged into the one span of each resource that may still continue. The id of an episode is its first second with its
# resource. If a late row extends the episode backwards, bridges two episodes, or shows that the clients were throttled
# because of another resource, the id that is none any more is reported once more, with state "merged".
#
# The state, JSON: {"moments": second -> Moment, "spans": resource -> Span, "told": id -> Episode (the episodes that
# were reported and may still change), "rolled_to": second, "last": the last second before the moments with an
# overload, "current": the ids of the episodes that the moments contribute to}.
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Any, Final

from analytics.moments import CONNECTS, FURTHER, NODES, Moment, Warm, add, overloads, worst
from analytics.resources import ELSEWHERE
from analytics.rows import Episode, Share, Slowed
from analytics.second import Second
from analytics.sequences import Hole
from analytics.story import story
from analytics.tops import COST, NODE, PAUSED, Tops, add_counts, add_tops, copied, cut, first

GAP: Final = 10  # seconds without a warm one that end an episode: the level takes some seconds to fall and rise again
LEAD: Final = 15  # seconds
HORIZON: Final = 30  # seconds: records may be 15 s late, and clocks may differ by as much

REPORTED: Final = 600  # episodes that may still change
AMENDED_FOR: Final = 600  # seconds after its end during which an episode may change
CAUSES: Final = 64  # of an episode, and workers of each
NAMES: Final = 20  # clients and topics of an episode, by each measure
CULPRITS: Final = 5
LEAST_SHARE: Final = 0.05  # of the cost: a client with less is no culprit
SHOWN: Final = 10

OVERLOADED, THROTTLED, HELD = range(3)  # figures of a node in a span: warm seconds, clients at the same time, ms

State = dict[str, Any]
Span = dict[str, Any]
Lost = dict[str, dict[int, int]]  # records that are missing, by node and second


def begin() -> State:
    return {"moments": {}, "spans": {}, "told": {}, "rolled_to": 0, "last": 0, "current": []}


def fold(
    state: State, seconds: list[Second], holes: list[Hole], newest: int, rolled_to: int
) -> tuple[State, list[Episode], list[Episode]]:
    """Return the new state, the episodes that changed, and those that do not change any more.

    *newest* is the current second. No later row is of the second *rolled_to* or before.
    """
    moments = {int(at): moment for at, moment in state["moments"].items()}
    known = {name for moment in moments.values() for name in moment["resources"]} | state["spans"].keys()
    add(moments, seconds, known)
    reported: dict[str, Episode] = dict(state["told"])
    changed: dict[str, Episode] = {}

    rolled = state["rolled_to"]
    spans = _copied(state["spans"])
    _add_holes(spans, reported, changed, [hole for hole in holes if hole.new], rolled)
    lost = _lost(holes, min([rolled + 1, *(span["last"] + 1 for span in spans.values())]), newest + 1)
    ended, last = _roll(spans, moments, rolled_to, lost, state["last"])
    live = _copied(spans)
    open_ended = _roll(live, dict(moments), max(moments, default=rolled_to), lost, last)[0]
    final = [_episode(each, closed=newest - each["last"] > GAP) for each in ended]
    current = [_episode(each, closed=newest - each["last"] > GAP) for each in [*open_ended, *live.values()]]

    for id in set(state["current"]).difference(one["id"] for one in [*final, *current]):
        if id in reported:
            changed[id] = Episode(**{**reported.pop(id), "state": "merged"})
    for episode in [*final, *current]:
        if reported.get(episode["id"]) != episode:
            reported[episode["id"]] = changed[episode["id"]] = episode
    over = sorted((one for one in reported.values() if one["end"] is not None), key=_end, reverse=True)
    room = max(0, REPORTED - (len(reported) - len(over)))
    settled = [one for number, one in enumerate(over) if number >= room or _end(one) < newest - AMENDED_FOR]
    for episode in settled:
        del reported[episode["id"]]
    return (
        {
            "moments": {str(at): moments[at] for at in sorted(moments)},
            "spans": spans,
            "told": {one["id"]: one for one in sorted(reported.values(), key=by_start)},
            "rolled_to": rolled_to,
            "last": last,
            "current": [one["id"] for one in current],
        },
        sorted(changed.values(), key=by_start),
        sorted(settled, key=by_start),
    )


def by_start(episode: Episode) -> tuple[float, str]:
    return episode["start"], episode["id"]


def _end(episode: Episode) -> float:
    return float("inf") if episode["end"] is None else episode["end"]


# Spans.


def _roll(
    spans: dict[str, Span], moments: dict[int, Moment], upto: int, lost: Lost, last: int
) -> tuple[list[Span], int]:
    """Move the moments up to *upto* from *moments* into *spans*, by resource. Both are changed.

    Return the finished spans, and the new *last*: the last second before *moments* with an overload that is known here.
    Later moments decide what belongs together.
    """
    finished = []
    found = overloads(moments, last, GAP)
    warm: dict[str, list[int]] = {}
    serious: dict[str, list[int]] = {}
    for at in sorted(found):
        for name, one in found[at].items():
            warm.setdefault(name, []).append(at)
            if one["serious"]:
                serious.setdefault(name, []).append(at)
    for at in sorted(at for at in moments if at <= upto):
        for name in sorted(spans):
            if _after(warm.get(name, []), spans[name]["last"], at) - spans[name]["last"] > GAP + 1:
                finished.append(spans.pop(name))
        if found[at].keys() - {ELSEWHERE}:
            last = at
        for name in found[at]:
            if name not in spans and _leads(at, warm[name], serious.get(name, [])):
                spans[name] = _span(name, at)
        _merge_effects(spans, moments[at], found[at])
        for name, one in found[at].items():
            if name in spans:
                _merge_overload(spans[name], one, at, lost)
        del moments[at]
    for name in sorted(spans):
        since = spans[name]["last"]
        if _after(warm.get(name, []), upto, upto + 1) - since > GAP + 1 and upto - since > GAP:
            finished.append(spans.pop(name))
    return finished, last


def _after(warm: list[int], last: int, at: int) -> float:
    """Return the first warm second that is at least *at* and after *last*; infinity if there is none."""
    place = bisect_left(warm, max(at, last + 1))
    return warm[place] if place < len(warm) else float("inf")


def _leads(at: int, warm: list[int], serious: list[int]) -> bool:
    """Return whether *at* may begin an episode: it is warm, and a serious second follows within LEAD, without a gap."""
    place = bisect_left(warm, at)
    if place == len(warm) or warm[place] != at:
        return False
    if bisect_left(serious, at) == bisect_right(serious, at + LEAD):
        return False
    until = serious[bisect_left(serious, at)]
    run = warm[place : bisect_right(warm, until)]
    return all(later - earlier <= GAP + 1 for earlier, later in pairwise(run))


def _span(resource: str, at: int) -> Span:
    return {
        "resource": resource,
        "start": at,
        "last": at,
        "peak": 0,
        "peak_at": at,
        "causes": {},
        "nodes": {},
        "throttled_most": 0,
        "warm_cost": 0,
        "paused_ms": 0,
        "dropped": {},
        "refused": {},
        "connects": 0,
        "connects_refused": 0,
        "clients": {},
        "topics": {},
        "causing": {},
        "lost": 0,
    }


def _copied(spans: dict[str, Span]) -> dict[str, Span]:
    return {
        name: {
            **span,
            "causes": {cause: dict(workers) for cause, workers in span["causes"].items()},
            "nodes": {node: list(figures) for node, figures in span["nodes"].items()},
            "dropped": dict(span["dropped"]),
            "refused": dict(span["refused"]),
            "clients": copied(span["clients"]),
            "topics": copied(span["topics"]),
            "causing": copied(span["causing"]),
        }
        for name, span in spans.items()
    }


def _merge_overload(span: Span, warm: Warm, at: int, lost: Lost) -> None:
    """Add the overload of the resource in the second *at* to *span*."""
    if warm["level"] > span["peak"]:
        span["peak"], span["peak_at"] = warm["level"], at
    workers = span["causes"].setdefault(warm["cause"], {})
    workers[warm["worker"]] = workers.get(warm["worker"], 0) + max(1, warm["level"])
    _cut_causes(span["causes"])
    for node in warm["nodes"]:
        _node(span, node)[OVERLOADED] += 1
    span["warm_cost"] += warm["warm_cost"]
    add_tops(span["causing"], warm["causing"])
    span["causing"] = cut(span["causing"], NAMES)
    for node in [node for node, figures in span["nodes"].items() if figures[OVERLOADED]]:
        missing = lost.get(node, {})
        span["lost"] += sum(missing.get(each, 0) for each in range(span["last"] + (at > span["last"]), at + 1))
    span["last"] = at


def _merge_effects(spans: dict[str, Span], moment: Moment, resources: dict[str, Warm]) -> None:
    """Add the figures of the nodes in a second to *spans*."""
    owners = _owners(spans, moment, resources)
    throttled: dict[str, int] = {}
    for node, name in owners.items():
        span, figures = spans[name], moment["nodes"][node]
        clients = sum(figures["throttled"].values())
        throttled[name] = throttled.get(name, 0) + clients
        if clients or figures["slowed_ms"]:
            of_node = _node(span, node)
            of_node[THROTTLED] = max(of_node[THROTTLED], clients)
            of_node[HELD] += figures["slowed_ms"]
        for what in ("paused_ms", "connects", "connects_refused"):
            span[what] += figures[what]
        add_counts(span["dropped"], figures["dropped"])
        add_counts(span["refused"], figures["refused"])
    for name, clients in throttled.items():
        spans[name]["throttled_most"] = max(spans[name]["throttled_most"], clients)
    for what in ("clients", "topics"):
        for name, entry in moment[what].items():
            owner = owners.get(entry[NODE])
            if owner is not None:
                add_tops(spans[owner][what], {name: entry})
        for owner in throttled:
            spans[owner][what] = cut(spans[owner][what], NAMES)


def _owners(spans: dict[str, Span], moment: Moment, resources: dict[str, Warm]) -> dict[str, str]:
    """Return the resource, of *spans*, that each node of *moment* is affected by, if there is one."""
    overloaded = {name: warm for name, warm in resources.items() if name in spans}
    highest = worst(overloaded) if overloaded else None
    before: dict[str, str] = {}  # the oldest span of each node: it continues while nothing is overloaded
    for name in sorted(spans, key=lambda name: (spans[name]["start"], name)):
        for node in spans[name]["nodes"]:
            before.setdefault(node, name)
    owners = {}
    for node, figures in moment["nodes"].items():
        slowed = figures["throttled"] or figures["slowed_ms"]
        found = figures["resource"] if figures["resource"] in spans else highest if slowed else None
        found = found or before.get(node)
        if found is not None:
            owners[node] = found
    return owners


def _node(span: Span, node: str) -> list[int]:
    """Return the figures of *node* in *span*."""
    nodes = span["nodes"]
    found: list[int] = nodes.setdefault(node if node in nodes or len(nodes) < NODES else FURTHER, [0, 0, 0])
    return found


def _cut_causes(causes: dict[str, dict[str, int]]) -> None:
    """Limit the number of causes, and of workers of each, to CAUSES: the one with the least weight is removed."""
    if len(causes) > CAUSES:
        del causes[min(causes, key=lambda cause: (sum(causes[cause].values()), cause))]
    for workers in causes.values():
        if len(workers) > CAUSES:
            del workers[min(workers, key=lambda worker: (workers[worker], worker))]


# Missing records.


def _lost(holes: list[Hole], start: int, end: int) -> Lost:
    """Return how many records are missing, by node and second, from *start* to before *end*."""
    missing: Lost = {}
    for hole in holes:
        of_node = missing.setdefault(hole.node, {})
        for at in range(max(start, hole.start), min(end, hole.end)):
            of_node[at] = of_node.get(at, 0) + 1
    return missing


def _add_holes(
    spans: dict[str, Span], reported: dict[str, Episode], changed: dict[str, Episode], new: list[Hole], rolled: int
) -> None:
    """Add the seconds up to *rolled* of *new* holes to *spans* and to the ended episodes of *reported*.

    If a worker was silent for longer than HORIZON, its missing records are known only when it reports again.
    """
    for hole in new:
        for span in spans.values():
            if hole.node in span["nodes"] and span["nodes"][hole.node][OVERLOADED]:
                span["lost"] += hole.within(span["start"], min(span["last"], rolled) + 1)
        for id, episode in reported.items():
            end = episode["end"]
            open_span = spans.get(episode["resource"])
            if end is None or end > rolled + 1 or (open_span is not None and id == _id(open_span)):
                continue
            lost = hole.within(episode["start"], end) if hole.node in episode["nodes"] else 0
            if lost:
                amended = Episode(**{**episode, "lost_seconds": episode["lost_seconds"] + lost})
                amended["story"] = story(amended)
                reported[id] = changed[id] = amended


# Rows.


def _id(span: Span) -> str:
    return f"{span['start']} {span['resource']}"


def _episode(span: Span, closed: bool) -> Episode:
    cause, worker = _main_cause(span["causes"])
    slowed = [
        Slowed(node=node, throttled_most=figures[THROTTLED], paused_ms=figures[HELD])
        for node, figures in span["nodes"].items()
        if figures[THROTTLED] or figures[HELD]
    ]
    episode = Episode(
        id=_id(span),
        resource=span["resource"],
        start=float(span["start"]),
        end=float(span["last"] + 1) if closed else None,
        state="closed" if closed else "open",
        peak=span["peak"],
        peak_at=float(span["peak_at"]),
        cause=cause,
        cause_worker=worker,
        weight=sum(span["causes"][cause].values()),
        cost=span["warm_cost"],
        nodes=sorted(node for node, figures in span["nodes"].items() if node != FURTHER and figures[OVERLOADED]),
        further_nodes=FURTHER in span["nodes"],
        slowed=sorted(slowed, key=longest_first)[:SHOWN],
        slowed_nodes=len(slowed),
        culprits=[] if cause == CONNECTS else culprits(span["causing"], span["warm_cost"]),
        clients=first(span["clients"], SHOWN, COST),
        topics=first(span["topics"], SHOWN, COST),
        throttled=first(span["clients"], SHOWN, PAUSED),
        throttled_most=span["throttled_most"],
        paused_ms=span["paused_ms"],
        dropped=dict(sorted(span["dropped"].items())),
        refused=dict(sorted(span["refused"].items())),
        connects=span["connects"],
        connects_refused=span["connects_refused"],
        lost_seconds=span["lost"],
        interrupted=False,
        story=[],
    )
    episode["story"] = story(episode)
    return episode


def longest_first(slowed: Slowed) -> tuple[int, int, str]:
    return -slowed["paused_ms"], -slowed["throttled_most"], slowed["node"]


def _main_cause(causes: dict[str, dict[str, int]]) -> tuple[str, str]:
    """Return the cause with the greatest weight (level times seconds), and its worker with the greatest weight."""
    cause = min(causes, key=lambda cause: (-sum(causes[cause].values()), cause))
    workers = causes[cause]
    return cause, min(workers, key=lambda worker: (-workers[worker], worker))


def culprits(clients: Tops, cost: int) -> list[Share]:
    """Return the clients with the greatest share of *cost*, that of the overloaded workers."""
    known = sum(entry[COST] for entry in clients.values())
    shares = [
        Share(name=client["name"], share=round(client["cost"] / max(1, cost, known), 3))
        for client in first(clients, CULPRITS, COST)
    ]
    return [share for share in shares if share["share"] >= LEAST_SHARE]
