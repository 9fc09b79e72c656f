# Incidents: episodes that belong together, so that an operator is called once.
#
# Two episodes belong together if they overlap in time and have the same cause, or affect the same node: the node of
# their resource, or one with workers that it overloaded. (Clients are throttled at all nodes while one is overloaded:
# that alone connects nothing.) The clocks of nodes may differ by SKEW, so episodes overlap if that much later or
# earlier they would. An incident is a set of episodes that are connected in this way, directly or by others.
#
# So the incidents are a function of the set of episodes. The id of an incident is that of its first episode. If a late
# record joins two incidents, the later id is reported once more, with state "merged".
#
# An episode that does not change any more leaves the state. If its incident has others that may, its figures remain,
# and so does what it connected.
#
# The state, JSON: {"told": id -> Incident, "carried": [{"past": the Incident of the episodes that left, "with": the ids
# of the others}]}. It is bounded as the episodes are.
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

from analytics.episodes import CULPRITS, LEAST_SHARE, SHOWN, by_start, longest_first
from analytics.moments import CONNECTS, NODES
from analytics.resources import node_of
from analytics.rows import Episode, Incident, Member, Overload, Share, Slowed
from analytics.story import story
from analytics.tops import COST, PAUSED, Tops, add_counts, add_tops, entry_of, first

SKEW: Final = 5.0  # seconds by which the clocks of nodes may differ
MEMBERS: Final = 20

State = dict[str, Any]


def begin() -> State:
    return {"told": {}, "carried": {}}


def fold(state: State, live: list[Episode], settled: list[Episode]) -> tuple[State, list[Incident]]:
    """Return the new state and the incidents that changed.

    *live*: the episodes that may still change; *settled*: those that have ceased to with this batch.
    """
    carried: list[dict[str, Any]] = state["carried"]
    past_of = {id: each["past"] for each in carried for id in each["with"]}
    reported: dict[str, Incident] = dict(state["told"])
    gone = {episode["id"] for episode in settled}
    told: dict[str, Incident] = {}
    found: dict[str, Incident] = {}
    kept: list[dict[str, Any]] = []
    for group in joined([*live, *settled], [each["with"] for each in carried]):
        past = [*{one["id"]: one for one in (past_of.get(each["id"]) for each in group) if one is not None}.values()]
        incident = together(group, past)
        found[incident["id"]] = incident
        remaining = [one["id"] for one in group if one["id"] not in gone]
        if not remaining:
            continue
        told[incident["id"]] = incident
        over = [one for one in group if one["id"] in gone]
        if over or past:
            kept.append({"past": together(over, past), "with": remaining})
    changed = [incident for id, incident in found.items() if reported.get(id) != incident]
    changed += [Incident(**{**reported[id], "state": "merged"}) for id in reported if id not in found]
    return {"told": told, "carried": kept}, sorted(changed, key=lambda one: (one["start"], one["id"]))


def joined(episodes: list[Episode], known: Iterable[list[str]] = ()) -> list[list[Episode]]:
    """Return the groups of *episodes* that are connected. Groups and their members are in the order of their start.

    *known*: ids that are connected by episodes that are not here any more.
    """
    ordered = sorted(episodes, key=by_start)
    parents = list(range(len(ordered)))

    def root(of: int) -> int:
        while parents[of] != of:
            parents[of] = parents[parents[of]]
            of = parents[of]
        return of

    # Of those with the same cause or node, only the one that ends last matters for an episode that starts later: all
    # others that overlap with the later one also overlap with this one.
    latest: dict[tuple[str, str], int] = {}
    for number, episode in enumerate(ordered):
        for link in _links(episode):
            before = latest.get(link)
            if before is not None and episode["start"] <= _end(ordered[before]) + SKEW:
                one, other = sorted((root(before), root(number)))
                parents[other] = one
            if before is None or _end(episode) >= _end(ordered[before]):
                latest[link] = number
    numbers = {episode["id"]: number for number, episode in enumerate(ordered)}
    for ids in known:
        for one, other in pairwise(sorted(root(numbers[id]) for id in ids if id in numbers)):
            parents[root(other)] = root(one)
    groups: dict[int, list[Episode]] = {}
    for number, episode in enumerate(ordered):
        groups.setdefault(root(number), []).append(episode)
    return sorted(groups.values(), key=lambda group: by_start(group[0]))


def _links(episode: Episode) -> Iterable[tuple[str, str]]:
    """Return what connects *episode* with others."""
    nodes = {*episode["nodes"], node_of(episode["resource"])} - {""}
    return [("cause", episode["cause"]), *(("node", node) for node in sorted(nodes))]


def _end(overload: Overload) -> float:
    return float("inf") if overload["end"] is None else overload["end"]


def together(group: list[Episode], past: list[Incident]) -> Incident:
    """Return the incident of the episodes in *group* and in *past*."""
    parts = sorted((*group, *past), key=lambda part: (part["start"], part["id"]))
    is_open = any(part["end"] is None for part in parts)
    highest = min(parts, key=lambda part: (-part["peak"], part["peak_at"], part["id"]))
    main = _main(parts)
    nodes = sorted({node for part in parts for node in part["nodes"]})
    slowed = _slowed(parts)
    members = [*map(_member, group), *(member for one in past for member in one["episodes"])]
    members = sorted(members, key=lambda one: (-one["peak"], one["start"], one["id"]))[:MEMBERS]
    clients, throttled = _summed(parts, "clients"), _summed(parts, "throttled")
    incident = Incident(
        id=parts[0]["id"],
        start=parts[0]["start"],
        end=None if is_open else max(_end(part) for part in parts),
        state="open" if is_open else "closed",
        peak=highest["peak"],
        peak_at=highest["peak_at"],
        cause=main["cause"],
        cause_worker=main["cause_worker"],
        weight=sum(part["weight"] for part in parts if part["cause"] == main["cause"]),
        cost=sum(part["cost"] for part in parts),
        nodes=nodes[:NODES],
        further_nodes=len(nodes) > NODES or any(part["further_nodes"] for part in parts),
        slowed=slowed[:SHOWN],
        slowed_nodes=max(len(slowed), *(part["slowed_nodes"] for part in parts)),
        culprits=[] if main["cause"] == CONNECTS else _culprits(parts),
        clients=first(clients, SHOWN, COST),
        topics=first(_summed(parts, "topics"), SHOWN, COST),
        throttled=first(throttled, SHOWN, PAUSED),
        throttled_most=max(sum(one["throttled_most"] for one in slowed), *(part["throttled_most"] for part in parts)),
        paused_ms=sum(part["paused_ms"] for part in parts),
        dropped=_counts(parts, "dropped"),
        refused=_counts(parts, "refused"),
        connects=sum(part["connects"] for part in parts),
        connects_refused=sum(part["connects_refused"] for part in parts),
        lost_seconds=max(part["lost_seconds"] for part in parts),  # episodes of a node may count the same ones
        interrupted=any(part["interrupted"] for part in parts),
        story=[],
        episodes=sorted(members, key=lambda one: (one["start"], one["id"])),
        episodes_all=len(group) + sum(one["episodes_all"] for one in past),
    )
    incident["story"] = story(incident, incident["episodes"], incident["episodes_all"])
    return incident


def _member(episode: Episode) -> Member:
    return Member(
        id=episode["id"],
        resource=episode["resource"],
        cause=episode["cause"],
        peak=episode["peak"],
        start=episode["start"],
        end=episode["end"],
    )


def _main(parts: list[Any]) -> Overload:
    """Return the part with the greatest weight of those with the cause of the greatest weight."""
    weights: dict[str, int] = {}
    for part in parts:
        weights[part["cause"]] = weights.get(part["cause"], 0) + part["weight"]
    cause = min(weights, key=lambda cause: (-weights[cause], cause))
    found: Overload = min(
        (part for part in parts if part["cause"] == cause), key=lambda part: (-part["weight"], part["cause_worker"])
    )
    return found


def _slowed(parts: list[Any]) -> list[Slowed]:
    """Return the nodes with throttled clients. An episode of *parts* has figures of a second or none of them has."""
    found: dict[str, Slowed] = {}
    for part in parts:
        for one in part["slowed"]:
            known = found.setdefault(one["node"], Slowed(node=one["node"], throttled_most=0, paused_ms=0))
            known["throttled_most"] = max(known["throttled_most"], one["throttled_most"])
            known["paused_ms"] += one["paused_ms"]
    return sorted(found.values(), key=longest_first)


def _summed(parts: list[Any], what: str) -> Tops:
    total: Tops = {}
    for part in parts:
        add_tops(total, {one["name"]: entry_of(one) for one in part[what]})
    return total


def _counts(parts: list[Any], what: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        add_counts(total, part[what])
    return dict(sorted(total.items()))


def _culprits(parts: list[Any]) -> list[Share]:
    """Return the culprits, with their shares of the cost of all overloaded workers."""
    if len(parts) == 1:
        only: list[Share] = parts[0]["culprits"]
        return only
    total = max(1, sum(part["cost"] for part in parts))
    costs: dict[str, float] = {}
    for part in parts:
        for one in part["culprits"]:
            costs[one["name"]] = costs.get(one["name"], 0.0) + one["share"] * part["cost"]
    names = sorted(costs, key=lambda name: (-costs[name], name))[:CULPRITS]
    shares = [Share(name=name, share=round(min(1.0, costs[name] / total), 3)) for name in names]
    return [share for share in shares if share["share"] >= LEAST_SHARE]
