# Moments: what all workers reported about one second. episodes.py makes episodes from moments.
#
# A worker is warm if it has at least level WARM, or its clients were throttled. A second is serious for a resource with
# level SERIOUS, clients throttled by credits or gates for THROTTLED_MS, CONNECTs delayed for CONNECTS_MS, or CONNECTs
# delayed and refused. A storm of CONNECTs need not raise any level: such seconds have the cause "connects", as have
# seconds in which the signal `connect` raised the level.
#
# A warm worker belongs to the resource that its cause names (resources.py). Its clients are those that may have caused
# the overload: "causing", with the cost of these workers as "warm_cost". A worker at level 0 whose clients wait for
# credits while the cluster has a level is not overloaded: it suffers from an overload elsewhere, and belongs to the
# resource ELSEWHERE. `overloads` decides where that is, when all records of the second have arrived.
#
# A moment, JSON: {"resources": name -> Warm, "nodes": name -> the figures of its workers, "clients", "topics": Tops}.
# Names are bounded: `known` resources and NODES nodes of a second have their own name, further ones share one.
from typing import Any, Final

from analytics.resources import ELSEWHERE, OTHER, resource_of
from analytics.second import Second
from analytics.tops import add_counts, add_hitters, copied, cut

WARM: Final = 1  # level
SERIOUS: Final = 3  # level: a brief peak reaches 1 or 2, which no client notices
THROTTLED_MS: Final = 200  # in one second of a worker: for example, one client throttled for a fifth of the second
CONNECTS_MS: Final = 1000  # in one second of a worker: for example, one CONNECT that waits all the time

CONNECTS: Final = "connects"
CONNECT_SIGNAL: Final = "connect"  # of broker/overload/level.py; also the reason of the pauses
CREDITS: Final = "credits"
OVERLOAD_REASONS: Final = (CREDITS, "gate")  # of pauses; pauses by quotas are configured, not caused by overload

RESOURCES: Final = 512  # with moments or episodes at the same time; further ones are OTHER
NODES: Final = 256  # of a moment; the figures of further ones are summed under FURTHER
FURTHER: Final = ""
FEW: Final = 32  # resources of a moment that have more names of clients each
NAMES: Final = 20  # clients of a resource by each measure
NAMES_OF_MANY: Final = 5

Moment = dict[str, Any]
Warm = dict[str, Any]


def add(moments: dict[int, Moment], seconds: list[Second], known: set[str]) -> None:
    """Add *seconds* to *moments*. A moment that changes is replaced by a changed copy.

    *known*: the resources that have a name of their own; new ones are added while there is room.
    """
    fresh: set[int] = set()
    for second in seconds:
        at = second["second"]
        if at not in fresh:
            moments[at] = _moment(moments.get(at))
            fresh.add(at)
        _count(moments[at], second, known)
    for at in fresh:
        moment = moments[at]
        moment["clients"], moment["topics"] = cut(moment["clients"]), cut(moment["topics"])
        kept = NAMES if len(moment["resources"]) <= FEW else NAMES_OF_MANY
        for warm in moment["resources"].values():
            warm["causing"] = cut(warm["causing"], kept)


def _moment(known: Moment | None) -> Moment:
    if known is None:
        return {"resources": {}, "nodes": {}, "clients": {}, "topics": {}}
    return {
        "resources": {
            name: {**warm, "nodes": list(warm["nodes"]), "causing": copied(warm["causing"])}
            for name, warm in known["resources"].items()
        },
        "nodes": {
            name: {
                **figures,
                "throttled": dict(figures["throttled"]),
                "dropped": dict(figures["dropped"]),
                "refused": dict(figures["refused"]),
            }
            for name, figures in known["nodes"].items()
        },
        "clients": copied(known["clients"]),
        "topics": copied(known["topics"]),
    }


def _figures() -> dict[str, Any]:
    return {
        "level": -1,  # of the worker that `resource` is from
        "resource": "",  # of the warm worker with the highest level; "" if no worker is warm
        "throttled": {},
        "slowed_ms": 0,
        "paused_ms": 0,
        "dropped": {},
        "refused": {},
        "connects": 0,
        "connects_refused": 0,
    }


def _warm() -> Warm:
    return {"serious": False, "level": 0, "cause": "", "worker": "", "nodes": [], "warm_cost": 0, "causing": {}}


def _count(moment: Moment, second: Second, known: set[str]) -> None:
    nodes = moment["nodes"]
    node = second["node"] if second["node"] in nodes or len(nodes) < NODES else FURTHER
    figures = nodes.get(node)
    if figures is None:
        figures = nodes[node] = _figures()
    paused, worker = second["paused"], f"{second['node']}/{second['worker']}"
    slowed = sum(paused.get(reason, 0) for reason in OVERLOAD_REASONS)
    _count_overload(moment, figures, second, slowed, known)
    if second["throttled"]:
        figures["throttled"][worker] = max(second["throttled"], figures["throttled"].get(worker, 0))
    figures["slowed_ms"] += slowed
    figures["paused_ms"] += sum(paused.values())
    figures["connects"] += second["connects"]
    figures["connects_refused"] += second["connects_refused"]
    add_counts(figures["dropped"], second["dropped"])
    add_counts(figures["refused"], second["refused"])
    add_hitters(moment["clients"], second["clients"], node)
    add_hitters(moment["topics"], second["topics"], node)


def _count_overload(moment: Moment, figures: dict[str, Any], second: Second, slowed: int, known: set[str]) -> None:
    """Add *second* to the resource that its worker has a shortage of, if it is warm."""
    level, paused, node = second["level"], second["paused"], second["node"]
    waited = paused.get(CONNECT_SIGNAL, 0)
    stormed = waited >= CONNECTS_MS or (waited > 0 and second["connects_refused"] > 0)
    throttled = slowed >= THROTTLED_MS
    if level < WARM and not stormed and not throttled:
        return
    cause = _cause(second, stormed)
    resource = resource_of(node, cause)
    if level < WARM and not stormed and second["cluster_level"] and 2 * paused.get(CREDITS, 0) > slowed:
        resource = ELSEWHERE
    elif resource not in known:
        if len(known) < RESOURCES:
            known.add(resource)
        else:
            resource = OTHER
    warm = moment["resources"].setdefault(resource, _warm())
    warm["serious"] = warm["serious"] or level >= SERIOUS or stormed or throttled
    worker = f"{node}/{second['worker']}"
    if not warm["worker"] or (-level, worker, cause) < (-warm["level"], warm["worker"], warm["cause"]):
        warm["level"], warm["worker"], warm["cause"] = level, worker, cause
    if node not in warm["nodes"] and len(warm["nodes"]) < NODES:
        warm["nodes"] = sorted([*warm["nodes"], node])
    warm["warm_cost"] += second["cost_in"]
    add_hitters(warm["causing"], second["clients"], node)
    if resource != ELSEWHERE and (-level, resource) < (-figures["level"], figures["resource"]):
        figures["level"], figures["resource"] = level, resource


def _cause(second: Second, stormed: bool) -> str:
    """Return the signal or pause reason that made this second of a worker warm."""
    if second["level"] and second["cause"]:
        return CONNECTS if second["cause"] == CONNECT_SIGNAL else second["cause"]
    if stormed:
        return CONNECTS
    signals = second["signals"]
    worst = min(signals, key=lambda name: (-signals[name], name), default="")
    return worst or max(OVERLOAD_REASONS, key=lambda reason: second["paused"].get(reason, 0))


def overloads(moments: dict[int, Moment], last: int, near: int) -> dict[int, dict[str, Warm]]:
    """Return the overloaded resources of each second.

    Clients that are throttled because of ELSEWHERE make the worst resource of their second serious. ELSEWHERE is a
    resource of its own only if no other one is overloaded at most *near* seconds away; *last* is the last second,
    before *moments*, at which one was.
    """
    found: dict[int, dict[str, Warm]] = {}
    own = [last, *sorted(at for at, moment in moments.items() if moment["resources"].keys() - {ELSEWHERE})]
    for at, moment in moments.items():
        resources = moment["resources"]
        victims = resources.get(ELSEWHERE)
        if victims is None:
            found[at] = resources
            continue
        others = {name: warm for name, warm in resources.items() if name != ELSEWHERE}
        if others:
            name = worst(others)
            serious = others[name]["serious"] or victims["serious"]
            found[at] = {**others, name: {**others[name], "serious": serious}}
        elif any(abs(at - each) <= near for each in own):
            found[at] = {}
        else:
            found[at] = resources
    return found


def worst(resources: dict[str, Warm]) -> str:
    """Return the resource of *resources* with the highest level."""
    return min(resources, key=lambda name: (-resources[name]["level"], name))
