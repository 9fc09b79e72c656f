# Episodes: when the cluster was overloaded, by what, who caused it and what it cost.
#
# A second is warm while a worker has level FROM or more, or clients were held back. Warm seconds that are at most GAP
# apart belong together, and are an episode if one of them is serious: level SERIOUS, clients held back by credits or
# gates for HELD_MS, or CONNECTs kept waiting for CONNECTS_MS or turned away meanwhile. A worker that touches level 1
# now and then is thus no news, and an episode that begins with level 1 begins there, but at most LEAD before it is
# serious. A storm of connects need not raise any level: those seconds have the cause "connects", and so have those in
# which the signal `connect` is what raised it.
#
# So an episode follows from the seconds alone, not from the order in which they came, nor from the batches. As they
# come late and from several clocks, each second of the last HORIZON is kept apart, as a moment; what is older is rolled
# into the one span that may still go on. An episode is named by its first second: when a late one comes before it, or
# bridges two, the later name is told once more, as "merged".
#
# The state, JSON: {"moments": second -> Moment, "span": Span or None, "told": id -> Episode, "rolled_to": second}.
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Any, Final

from analytics.rows import Episode, Share
from analytics.second import Second
from analytics.sequences import Hole
from analytics.story import story
from analytics.tops import COST, PAUSED, Tops, add_counts, add_hitters, add_tops, copied, cut, first

FROM: Final = 1  # level: anything above 0 is
SERIOUS: Final = 3  # level: a hiccup of a moment reaches 1 or 2, and a client notices nothing
HELD_MS: Final = 200  # in one second of a worker: one client that was held for a fifth of it
CONNECTS_MS: Final = 1000  # in one second of a worker: all the time somebody waited to be let in
GAP: Final = 10  # seconds: quiet for so long, it was over; the level takes some to fall and come back
LEAD: Final = 15  # seconds
HORIZON: Final = 30  # seconds: 15 that records are late, and clocks that differ by as much

CONNECTS: Final = "connects"
CONNECT_SIGNAL: Final = "connect"  # of broker/overload/level.py, and the reason of the pauses
HELD: Final = ("credits", "gate")  # reasons of pauses that are overload's; quotas are somebody's wish

TOLD: Final = 50  # episodes that may still be amended
AMENDED: Final = 600  # seconds after which one is not any more
NODES: Final = 200
CAUSES: Final = 200
CULPRITS: Final = 5
GUILTY: Final = 0.05  # share of the cost: who has less did not cause it
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
    """The state and the episodes that changed. *newest*: the second it is; nothing of *rolled_to* or before comes now.

    None of *seconds* is of a second that was rolled before.
    """
    moments = {int(at): moment for at, moment in state["moments"].items()}
    _add(moments, seconds)
    told: dict[str, Episode] = dict(state["told"])
    changed: dict[str, Episode] = {}

    done = state["rolled_to"]
    span = _tell_of_holes(state["span"], told, changed, [hole for hole in holes if hole.new], done)
    lost = _lost(holes, done + 1 if span is None else span["last"] + 1, newest + 1)
    span, finished = _roll(span, moments, rolled_to, lost)
    last, live = _roll(_copied(span), dict(moments), max(moments, default=rolled_to), lost)
    spans = [*finished, *live] if last is None else [*finished, *live, last]
    now = [_episode(each, closed=newest - each["last"] > GAP) for each in spans]

    for id in [id for id in told if any(_covers(each, told[id]) for each in now)]:
        changed[id] = Episode(**{**told.pop(id), "state": "merged"})
    for episode in now:
        if told.get(episode["id"]) != episode:
            told[episode["id"]] = changed[episode["id"]] = episode
    kept = sorted((id for id in told if not _is_old(told[id], newest)), key=int)[-TOLD:]
    return {
        "moments": {str(at): moments[at] for at in sorted(moments)},
        "span": span,
        "told": {id: told[id] for id in kept},
        "rolled_to": rolled_to,
    }, [changed[id] for id in sorted(changed, key=int)]


# Moments.


def _add(moments: dict[int, Moment], seconds: list[Second]) -> None:
    """Add *seconds*; a moment that changes is another object."""
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
        }
    return {
        "warm": False,
        "serious": False,
        "level": 0,
        "cause": "",
        "worker": "",
        "nodes": [],
        "throttled": {},
        "cost": 0,
        "paused_ms": 0,
        "dropped": {},
        "refused": {},
        "connects": 0,
        "connects_refused": 0,
        "clients": {},
        "topics": {},
    }


def _count(moment: Moment, second: Second) -> None:
    node, level = second["node"], second["level"]
    worker = f"{node}/{second['worker']}"
    paused = second["paused"]
    waited = paused.get(CONNECT_SIGNAL, 0)
    stormed = waited >= CONNECTS_MS or (waited > 0 and second["connects_refused"] > 0)
    held = sum(paused.get(reason, 0) for reason in HELD) >= HELD_MS
    if level >= FROM or stormed or held:
        moment["warm"] = True
        moment["serious"] = moment["serious"] or level >= SERIOUS or stormed or held
        cause = _cause(second, stormed)
        if not moment["worker"] or (-level, worker, cause) < (-moment["level"], moment["worker"], moment["cause"]):
            moment["level"], moment["worker"], moment["cause"] = level, worker, cause
        if node not in moment["nodes"]:
            moment["nodes"] = sorted([*moment["nodes"], node])
    if second["throttled"]:
        moment["throttled"][worker] = max(second["throttled"], moment["throttled"].get(worker, 0))
    moment["cost"] += second["cost_in"]
    moment["paused_ms"] += sum(paused.values())
    moment["connects"] += second["connects"]
    moment["connects_refused"] += second["connects_refused"]
    add_counts(moment["dropped"], second["dropped"])
    add_counts(moment["refused"], second["refused"])
    add_hitters(moment["clients"], second["clients"], node)
    add_hitters(moment["topics"], second["topics"], node)


def _cause(second: Second, stormed: bool) -> str:
    """What made this second of a worker warm."""
    if second["level"] and second["cause"]:
        return CONNECTS if second["cause"] == CONNECT_SIGNAL else second["cause"]
    if stormed:
        return CONNECTS
    signals = second["signals"]
    worst = min(signals, key=lambda name: (-signals[name], name), default="")
    return worst or max(HELD, key=lambda reason: second["paused"].get(reason, 0))


# Spans.


def _roll(span: Span | None, moments: dict[int, Moment], upto: int, lost: Lost) -> tuple[Span | None, list[Span]]:
    """Take the moments up to *upto* out of *moments*, into *span* and those that follow it.

    The one that may still go on, and those that do not. What comes later is looked at, to see what belongs together.
    *span* is changed.
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
    """The first warm second from *at* on, infinity if there is none."""
    place = bisect_left(warm, max(at, last + 1))
    return warm[place] if place < len(warm) else float("inf")


def _leads(at: int, warm: list[int], serious: list[int]) -> bool:
    """Whether an episode may begin at *at*: it is warm, and a serious second follows within LEAD without a gap."""
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
        "cost": 0,
        "paused_ms": 0,
        "dropped": {},
        "refused": {},
        "connects": 0,
        "connects_refused": 0,
        "clients": {},
        "topics": {},
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
    for name in ("cost", "paused_ms", "connects", "connects_refused"):
        span[name] += moment[name]
    add_counts(span["dropped"], moment["dropped"])
    add_counts(span["refused"], moment["refused"])
    for name in ("clients", "topics"):
        add_tops(span[name], moment[name])
        span[name] = cut(span[name])


def _cut_causes(causes: dict[str, dict[str, int]]) -> None:
    """A cause, and a worker of it, that held the highest level shortest goes when there are too many."""
    if len(causes) > CAUSES:
        del causes[min(causes, key=lambda cause: (sum(causes[cause].values()), cause))]
    for workers in causes.values():
        if len(workers) > CAUSES:
            del workers[min(workers, key=lambda worker: (workers[worker], worker))]


# What was lost.


def _lost(holes: list[Hole], start: int, end: int) -> Lost:
    """How many records are missing, by second, from *start* to before *end*."""
    missing: dict[int, int] = {}
    for hole in holes:
        for at in range(max(start, hole.start), min(end, hole.end)):
            missing[at] = missing.get(at, 0) + 1
    return missing


def _tell_of_holes(
    span: Span | None, told: dict[str, Episode], changed: dict[str, Episode], new: list[Hole], done: int
) -> Span | None:
    """*span*, and the episodes of *told* that are over, with what *new* holes have of the seconds up to *done*.

    A worker that was silent for longer than HORIZON tells only afterwards that records are missing.
    """
    span = _copied(span)
    for hole in new:
        if span is not None:
            span["lost"] += hole.within(span["start"], min(span["last"], done) + 1)
        for id, episode in told.items():
            end = episode["end"]
            if end is None or end > done + 1 or (span is not None and id == str(span["start"])):
                continue
            lost = hole.within(episode["start"], end)
            if lost:
                amended = Episode(**{**episode, "lost_seconds": episode["lost_seconds"] + lost})
                amended["story"] = story(amended)
                told[id] = changed[id] = amended
    return span


# Rows.


def _episode(span: Span, closed: bool) -> Episode:
    cause, worker = _blamed(span["causes"])
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
        culprits=[] if cause == CONNECTS else _culprits(span["clients"], span["cost"]),
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
        story=[],
    )
    episode["story"] = story(episode)
    return episode


def _blamed(causes: dict[str, dict[str, int]]) -> tuple[str, str]:
    """The cause that held the highest level longest, in levels times seconds, and the worker where it did."""
    cause = min(causes, key=lambda cause: (-sum(causes[cause].values()), cause))
    workers = causes[cause]
    return cause, min(workers, key=lambda worker: (-workers[worker], worker))


def _culprits(clients: Tops, cost: int) -> list[Share]:
    known = sum(entry[COST] for entry in clients.values())
    shares = [
        Share(name=client["name"], share=round(client["cost"] / max(1, cost, known), 3))
        for client in first(clients, CULPRITS, COST)
    ]
    return [share for share in shares if share["share"] >= GUILTY]


def _covers(episode: Episode, other: Episode) -> bool:
    """Whether *other*, which is another one by name, is a part of *episode*."""
    end = float("inf") if episode["end"] is None else episode["end"]
    return episode["id"] != other["id"] and episode["start"] <= other["start"] < end


def _is_old(episode: Episode, newest: int) -> bool:
    return episode["end"] is not None and episode["end"] < newest - AMENDED
