# Episodes: when the cluster was overloaded, the cause, the clients that caused the overload, and its effects.
#
# A second is warm if a worker has at least level WARM, or clients were throttled. Warm seconds that are at most GAP
# apart belong together. They are an episode if one of them is serious: level SERIOUS, clients throttled by credits or
# gates for THROTTLED_MS, CONNECTs delayed for CONNECTS_MS, or CONNECTs delayed and refused in one second. A worker that
# reaches level 1 now and then is thus not an episode. An episode includes the warm seconds before the first serious
# one, but at most LEAD of them. A storm of CONNECTs need not raise any level: such seconds have the cause "connects",
# as have seconds in which the signal `connect` raised the level.
#
# The culprits are the clients with the greatest share of the cost of the overloaded workers: a busy client of another
# worker did not cause the overload. In the state, "causing" are the clients of the warm workers of a second, and
# "warm_cost" is the cost of these workers.
#
# So an episode is a function of the seconds alone, not of their order or of the batches. Rows arrive late and with the
# times of several clocks; therefore each second of the last HORIZON is kept separately, as a moment. Older moments are
# merged into the one span that may still continue. The id of an episode is its first second. If a late row extends the
# episode backwards, or bridges two episodes, the later id is reported once more, with state "merged".
#
# The state, JSON: {"moments": second -> Moment, "span": Span or None, "told": id -> Episode (the episodes that were
# reported), "rolled_to": second}.
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Any, Final

from analytics.rows import Episode, Share
from analytics.second import Second
from analytics.sequences import Hole
from analytics.story import story
from analytics.tops import COST, PAUSED, Tops, add_counts, add_hitters, add_tops, copied, cut, first

WARM: Final = 1  # level
SERIOUS: Final = 3  # level: a brief peak reaches 1 or 2, which no client notices
THROTTLED_MS: Final = 200  # in one second of a worker: for example, one client throttled for a fifth of the second
CONNECTS_MS: Final = 1000  # in one second of a worker: for example, one CONNECT that waits all the time
GAP: Final = 10  # seconds without a warm one that end an episode: the level takes some seconds to fall and rise again
LEAD: Final = 15  # seconds
HORIZON: Final = 30  # seconds: records may be 15 s late, and clocks may differ by as much

CONNECTS: Final = "connects"
CONNECT_SIGNAL: Final = "connect"  # of broker/overload/level.py; also the reason of the pauses
OVERLOAD_REASONS: Final = ("credits", "gate")  # of pauses; pauses by quotas are configured, not caused by overload

REPORTED: Final = 50  # episodes that may still change
AMENDED_FOR: Final = 600  # seconds after its end during which an episode may change
NODES: Final = 200
CAUSES: Final = 200
CULPRITS: Final = 5
LEAST_SHARE: Final = 0.05  # of the cost: a client with less is no culprit
SHOWN: Final = 10

State = dict[str, Any]
Moment = dict[str, Any]
Span = dict[str, Any]
Lost = dict[int, int]  # records that are missing, by second


def begin() -> State:
    return {"moments": {}, "span": None, "told": {}, "rolled_to": 0}


def fold(
    state: State, seconds: list[Second], holes: list[Hole], newest: int, rolled_to: int
) -> tuple[State, list[Episode]]:
    """Return the new state and the episodes that changed.

    *newest* is the current second. No later row is of the second *rolled_to* or before.
    """
    moments = {int(at): moment for at, moment in state["moments"].items()}
    _add(moments, seconds)
    reported: dict[str, Episode] = dict(state["told"])
    changed: dict[str, Episode] = {}

    rolled = state["rolled_to"]
    span = _add_holes(state["span"], reported, changed, [hole for hole in holes if hole.new], rolled)
    lost = _lost(holes, rolled + 1 if span is None else span["last"] + 1, newest + 1)
    span, finished = _roll(span, moments, rolled_to, lost)
    last, live = _roll(_copied(span), dict(moments), max(moments, default=rolled_to), lost)
    spans = [*finished, *live] if last is None else [*finished, *live, last]
    current = [_episode(each, closed=newest - each["last"] > GAP) for each in spans]

    for id in [id for id in reported if any(_covers(each, reported[id]) for each in current)]:
        changed[id] = Episode(**{**reported.pop(id), "state": "merged"})
    for episode in current:
        if reported.get(episode["id"]) != episode:
            reported[episode["id"]] = changed[episode["id"]] = episode
    kept = sorted((id for id in reported if not _is_old(reported[id], newest)), key=int)[-REPORTED:]
    return {
        "moments": {str(at): moments[at] for at in sorted(moments)},
        "span": span,
        "told": {id: reported[id] for id in kept},
        "rolled_to": rolled_to,
    }, [changed[id] for id in sorted(changed, key=int)]


# Moments.


def _add(moments: dict[int, Moment], seconds: list[Second]) -> None:
    """Add *seconds* to *moments*. A moment that changes is replaced by a changed copy."""
    fresh: set[int] = set()
    for second in seconds:
        at = second["second"]
        if at not in fresh:
            moments[at] = _moment(moments.get(at))
            fresh.add(at)
        _count(moments[at], second)
    for at in fresh:
        moments[at]["clients"] = cut(moments[at]["clients"])
        moments[at]["topics"] = cut(moments[at]["topics"])
        moments[at]["causing"] = cut(moments[at]["causing"])


def _moment(known: Moment | None) -> Moment:
    if known is not None:
        return {
            **known,
            "nodes": list(known["nodes"]),
            "throttled": dict(known["throttled"]),
            "dropped": dict(known["dropped"]),
            "refused": dict(known["refused"]),
            "clients": copied(known["clients"]),
            "topics": copied(known["topics"]),
            "causing": copied(known["causing"]),
        }
    return {
        "warm": False,
        "serious": False,
        "level": 0,
        "cause": "",
        "worker": "",
        "nodes": [],
        "throttled": {},
        "warm_cost": 0,
        "paused_ms": 0,
        "dropped": {},
        "refused": {},
        "connects": 0,
        "connects_refused": 0,
        "clients": {},
        "topics": {},
        "causing": {},
    }


def _count(moment: Moment, second: Second) -> None:
    node, level = second["node"], second["level"]
    worker = f"{node}/{second['worker']}"
    paused = second["paused"]
    waited = paused.get(CONNECT_SIGNAL, 0)
    stormed = waited >= CONNECTS_MS or (waited > 0 and second["connects_refused"] > 0)
    throttled = sum(paused.get(reason, 0) for reason in OVERLOAD_REASONS) >= THROTTLED_MS
    if level >= WARM or stormed or throttled:
        moment["warm"] = True
        moment["serious"] = moment["serious"] or level >= SERIOUS or stormed or throttled
        cause = _cause(second, stormed)
        if not moment["worker"] or (-level, worker, cause) < (-moment["level"], moment["worker"], moment["cause"]):
            moment["level"], moment["worker"], moment["cause"] = level, worker, cause
        if node not in moment["nodes"]:
            moment["nodes"] = sorted([*moment["nodes"], node])
        moment["warm_cost"] += second["cost_in"]
        add_hitters(moment["causing"], second["clients"], node)
    if second["throttled"]:
        moment["throttled"][worker] = max(second["throttled"], moment["throttled"].get(worker, 0))
    moment["paused_ms"] += sum(paused.values())
    moment["connects"] += second["connects"]
    moment["connects_refused"] += second["connects_refused"]
    add_counts(moment["dropped"], second["dropped"])
    add_counts(moment["refused"], second["refused"])
    add_hitters(moment["clients"], second["clients"], node)
    add_hitters(moment["topics"], second["topics"], node)


def _cause(second: Second, stormed: bool) -> str:
    """Return the signal or pause reason that made this second of a worker warm."""
    if second["level"] and second["cause"]:
        return CONNECTS if second["cause"] == CONNECT_SIGNAL else second["cause"]
    if stormed:
        return CONNECTS
    signals = second["signals"]
    worst = min(signals, key=lambda name: (-signals[name], name), default="")
    return worst or max(OVERLOAD_REASONS, key=lambda reason: second["paused"].get(reason, 0))


# Spans.


def _roll(span: Span | None, moments: dict[int, Moment], upto: int, lost: Lost) -> tuple[Span | None, list[Span]]:
    """Move the moments up to *upto* from *moments* into *span* and new spans after it. *span* is changed.

    Return the span that may still continue, and the finished spans. Later moments decide what belongs together.
    """
    finished = []
    warm = sorted(at for at, moment in moments.items() if moment["warm"])
    serious = sorted(at for at in warm if moments[at]["serious"])
    for at in sorted(at for at in moments if at <= upto):
        if span is not None and _after(warm, span["last"], at) - span["last"] > GAP + 1:
            finished.append(span)
            span = None
        if span is None and not _leads(at, warm, serious):
            continue
        if span is None:
            span = _span(at)
        _merge(span, moments[at], at)
        if moments[at]["warm"]:
            first_new = span["last"] + (at > span["last"])
            span["lost"] += sum(lost.get(each, 0) for each in range(first_new, at + 1))
            span["last"] = at
    for at in [at for at in moments if at <= upto]:
        del moments[at]
    if span is not None and _after(warm, upto, upto + 1) - span["last"] > GAP + 1 and upto - span["last"] > GAP:
        finished.append(span)
        span = None
    return span, finished


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


def _span(at: int) -> Span:
    return {
        "start": at,
        "last": at,
        "peak": 0,
        "peak_at": at,
        "causes": {},
        "nodes": [],
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


def _copied(span: Span | None) -> Span | None:
    if span is None:
        return None
    return {
        **span,
        "causes": {cause: dict(workers) for cause, workers in span["causes"].items()},
        "nodes": list(span["nodes"]),
        "dropped": dict(span["dropped"]),
        "refused": dict(span["refused"]),
        "clients": copied(span["clients"]),
        "topics": copied(span["topics"]),
        "causing": copied(span["causing"]),
    }


def _merge(span: Span, moment: Moment, at: int) -> None:
    if moment["level"] > span["peak"]:
        span["peak"], span["peak_at"] = moment["level"], at
    if moment["warm"]:
        workers = span["causes"].setdefault(moment["cause"], {})
        workers[moment["worker"]] = workers.get(moment["worker"], 0) + max(1, moment["level"])
        _cut_causes(span["causes"])
        span["nodes"] = sorted({*span["nodes"], *moment["nodes"]})[:NODES]
    span["throttled_most"] = max(span["throttled_most"], sum(moment["throttled"].values()))
    for name in ("warm_cost", "paused_ms", "connects", "connects_refused"):
        span[name] += moment[name]
    add_counts(span["dropped"], moment["dropped"])
    add_counts(span["refused"], moment["refused"])
    for name in ("clients", "topics", "causing"):
        add_tops(span[name], moment[name])
        span[name] = cut(span[name])


def _cut_causes(causes: dict[str, dict[str, int]]) -> None:
    """Limit the number of causes, and of workers of each, to CAUSES: the one with the least weight is removed."""
    if len(causes) > CAUSES:
        del causes[min(causes, key=lambda cause: (sum(causes[cause].values()), cause))]
    for workers in causes.values():
        if len(workers) > CAUSES:
            del workers[min(workers, key=lambda worker: (workers[worker], worker))]


# Missing records.


def _lost(holes: list[Hole], start: int, end: int) -> Lost:
    """Return how many records are missing, by second, from *start* to before *end*."""
    missing: dict[int, int] = {}
    for hole in holes:
        for at in range(max(start, hole.start), min(end, hole.end)):
            missing[at] = missing.get(at, 0) + 1
    return missing


def _add_holes(
    span: Span | None, reported: dict[str, Episode], changed: dict[str, Episode], new: list[Hole], rolled: int
) -> Span | None:
    """Add the seconds up to *done* of *new* holes to *span* and to the ended episodes of *reported*. Return the span.

    If a worker was silent for longer than HORIZON, its missing records are known only when it reports again.
    """
    span = _copied(span)
    for hole in new:
        if span is not None:
            span["lost"] += hole.within(span["start"], min(span["last"], rolled) + 1)
        for id, episode in reported.items():
            end = episode["end"]
            if end is None or end > rolled + 1 or (span is not None and id == str(span["start"])):
                continue
            lost = hole.within(episode["start"], end)
            if lost:
                amended = Episode(**{**episode, "lost_seconds": episode["lost_seconds"] + lost})
                amended["story"] = story(amended)
                reported[id] = changed[id] = amended
    return span


# Rows.


def _episode(span: Span, closed: bool) -> Episode:
    cause, worker = _main_cause(span["causes"])
    episode = Episode(
        id=str(span["start"]),
        start=float(span["start"]),
        end=float(span["last"] + 1) if closed else None,
        state="closed" if closed else "open",
        peak=span["peak"],
        peak_at=float(span["peak_at"]),
        cause=cause,
        cause_worker=worker,
        nodes=span["nodes"],
        culprits=[] if cause == CONNECTS else _culprits(span["causing"], span["warm_cost"]),
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


def _main_cause(causes: dict[str, dict[str, int]]) -> tuple[str, str]:
    """Return the cause with the greatest weight (level times seconds), and its worker with the greatest weight."""
    cause = min(causes, key=lambda cause: (-sum(causes[cause].values()), cause))
    workers = causes[cause]
    return cause, min(workers, key=lambda worker: (-workers[worker], worker))


def _culprits(clients: Tops, cost: int) -> list[Share]:
    known = sum(entry[COST] for entry in clients.values())
    shares = [
        Share(name=client["name"], share=round(client["cost"] / max(1, cost, known), 3))
        for client in first(clients, CULPRITS, COST)
    ]
    return [share for share in shares if share["share"] >= LEAST_SHARE]


def _covers(episode: Episode, other: Episode) -> bool:
    """Return whether *other* has a different id and lies within *episode*."""
    end = float("inf") if episode["end"] is None else episode["end"]
    return episode["id"] != other["id"] and episode["start"] <= other["start"] < end


def _is_old(episode: Episode, newest: int) -> bool:
    return episode["end"] is not None and episode["end"] < newest - AMENDED_FOR
