# Incidents: which episodes belong together, whatever comes how; and what is told of them.
from itertools import combinations
from random import Random
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.episodes import AMENDED_FOR, HORIZON
from analytics.incidents import MEMBERS, SKEW, joined
from analytics.resources import node_of
from analytics.rows import Episode
from analytics.second import Second
from tests.analytics.seconds import Fold, T, hitter, overloaded, second
from tests.analytics.test_folding import batches


def calm(start: int, end: int, node: str = "a") -> list[Second]:
    return [second(at, node=node) for at in range(start, end)]


def bad(start: int, end: int, node: str, cause: str = "lag", **said: Any) -> list[Second]:
    return [overloaded(at, node=node, cause=cause, **said) for at in range(start, end)]


def groups(fold: Fold) -> list[list[str]]:
    """The resources of each incident."""
    found = sorted(fold.incidents.values(), key=lambda one: (one["start"], one["id"]))
    return [sorted(member["resource"] for member in one["episodes"]) for one in found]


def test_one_cause_at_two_nodes_is_one_incident() -> None:
    """Who is on call would be called for each node of a load that is too much for all of them."""
    fold = Fold().add(*bad(0, 6, "a", level=4), *bad(4, 9, "b", level=8), *calm(9, 30))

    incident = fold.incident()
    assert (0, 9, 8, 4, "lag", "b/1", ["a", "b"], 2) == (
        incident["start"] - T,
        cast(float, incident["end"]) - T,
        incident["peak"],
        incident["peak_at"] - T,
        incident["cause"],
        incident["cause_worker"],
        incident["nodes"],
        incident["episodes_all"],
    )
    assert [
        "At 22:13:20 UTC worker b/1 became overloaded: clients wait too long to be served (lag).",
        "The overload ended at 22:13:29, after 9.0 s; the level reached 8 of 10 at 22:13:24; 2 nodes were affected.",
        "It has 2 episodes: node b (lag) reached 8 and node a (lag) reached 4.",
    ] == incident["story"]


def test_a_slow_worker_and_those_that_wait_for_it_are_one_incident() -> None:
    """The nodes that wait would seem to have an overload of their own."""
    fold = Fold().add(*bad(0, 6, "b", "memory"), *bad(3, 9, "a", "b/1"), *bad(2, 5, "c", "b/2 store"), *calm(9, 30))

    assert [["b/1", "b/2 store", "node b"]] == groups(fold)


def test_different_causes_at_different_nodes_are_two_incidents() -> None:
    """The second would go unnoticed, as somebody looks after the first already."""
    fold = Fold().add(*bad(0, 9, "a", "memory"), *bad(2, 7, "b", "outbound"), *calm(9, 30))

    assert [["node a"], ["node b"]] == groups(fold)


def test_one_after_the_other_are_two_incidents() -> None:
    """An overload each hour would be one of all day."""
    fold = Fold().add(*bad(0, 3, "a"), *calm(3, 30), *bad(3 + int(SKEW) + 1, 12, "b"))

    assert [["node a"], ["node b"]] == groups(fold)


def test_a_client_that_moves_from_node_to_node_is_named_with_its_share_of_all() -> None:
    """Its part of each episode is small, and nobody would look for it in ten of them."""
    fold = Fold()
    for at, node in enumerate("abcde"):
        names = [hitter("mover", 600), hitter(f"of-{node}", 300)]
        fold.add(*bad(at, at + 3, node, clients=names, cost_in=1000, throttled=2, paused={"credits": 500}))
    fold.add(*calm(9, 40))

    incident = fold.incident()
    assert {"name": "mover", "share": 0.6} == incident["culprits"][0]
    assert (10, 5, 7500) == (incident["throttled_most"], incident["slowed_nodes"], incident["paused_ms"])
    assert 5 * 3 * 600 == incident["clients"][0]["cost"]


def test_many_episodes_are_named_as_far_as_there_is_room_and_all_are_counted() -> None:
    """A hundred nodes would fill the page, or most of them be left out and nobody know."""
    fold = Fold()
    for at in range(4):
        fold.add(*(overloaded(at, node=f"n{one}", level=3 + (one == 70)) for one in range(100)))

    incident = fold.incident()
    assert (100, MEMBERS, 100) == (incident["episodes_all"], len(incident["episodes"]), len(incident["nodes"]))
    assert (
        "It has 100 episodes: node n70 (lag) reached 4, node n0 (lag) reached 3, node n1 (lag) reached 3 and 97 more."
        in (incident["story"])
    )


def test_a_node_that_vanishes_in_the_middle_ends_its_episode_and_not_the_incident() -> None:
    """It died of it: its episode would stay open for ever, or the others with it."""
    fold = Fold().add(*bad(0, 3, "a", level=9), *bad(1, 3, "b"))
    for at in range(3, 40):
        fold.add(overloaded(at, node="b"))

    assert {"node a": T + 3.0, "node b": None} == {one["resource"]: one["end"] for one in fold.episodes.values()}
    assert ("open", [T + 3.0, None]) == (fold.incident()["state"], [one["end"] for one in fold.incident()["episodes"]])


def test_an_episode_that_is_long_over_stays_in_an_incident_that_goes_on() -> None:
    """After ten minutes its messages would be forgotten, or what it connected fall apart."""
    fold = Fold().add(*bad(0, 3, "a", "memory", dropped={"expired": 5}), *bad(2, 4, "b", "a/1"))
    # What "c" has is connected with "d" only by "a", which is long over.
    for at in range(0, AMENDED_FOR + 3 * HORIZON, 5):
        rows = [*bad(at, at + 5, "c", "a/2"), *bad(at, at + 5, "d", "memory")]
        fold.add(*rows, *(calm(at, at + 5) if at > 4 else []))
    assert ["c", "d"] == sorted(one["nodes"][0] for one in fold.state["episodes"]["told"].values())

    incident = fold.incident()
    assert [["a/1", "a/2", "node a", "node d"]] == groups(fold)
    assert (4, {"expired": 15}, f"{T} a/2") == (incident["episodes_all"], incident["dropped"], incident["id"])
    end = AMENDED_FOR + 3 * HORIZON
    for at in range(end, end + AMENDED_FOR + 3 * HORIZON, 10):
        fold.add(*calm(at, at + 10))
    assert ("closed", {"expired": 15}) == (fold.incident()["state"], fold.incident()["dropped"])
    assert {"told": {}, "carried": []} == fold.state["incidents"]


def test_a_late_record_that_connects_two_incidents_merges_them() -> None:
    """The second would be listed for ever, as an incident that is none."""
    fold = Fold().add(*bad(0, 9, "a", "memory"), *bad(2, 9, "b", "outbound"))
    first, later = f"{T} node a", f"{T + 2} node b"
    assert {first, later} == fold.incidents.keys()

    fold.add(*bad(4, 6, "b", "a/1", worker=2))
    assert {first: "open", later: "merged"} == {one["id"]: one["state"] for one in fold.told_incidents}
    assert [["a/1", "node a", "node b"]] == groups(fold)


def load(chance: Random) -> list[Second]:
    """Two minutes of eight nodes with clocks that differ; each is overloaded now and then, some vanish meanwhile."""
    rows: list[Second] = []
    for node in "abcdefgh":
        skew = chance.randint(-2, 3)
        at, ends = 0, chance.choice([120, 120, chance.randint(5, 60)])
        while at < ends:
            lasts = chance.randint(2, 15)
            said: dict[str, Any] = {"clients": [hitter(chance.choice("xyz"), chance.randint(1, 100), 3)]}
            if chance.random() < 0.3:
                said |= {"level": chance.randint(1, 9), "throttled": 2, "dropped": {"expired": 1}}
                said["cause"] = chance.choice(["lag", "memory", "redis", f"{chance.choice('abcdefgh')}/1"])
            elif chance.random() < 0.3:
                said |= {"cluster_level": 4, "paused": {"credits": 300}, "throttled": 1}
            rows += [second(each + skew, node=node, **said) for each in range(at, min(ends, at + lasts))]
            at += lasts
    return rows


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32))
def test_any_order_and_any_batches_of_the_same_seconds_give_the_same_incidents(seed: int) -> None:
    """A restart makes other batches: incidents would change under those who look at them."""
    chance = Random(seed)
    rows = load(chance)
    expected = Fold().add(*rows).add(second(300, node="z"))
    found = Fold()
    for batch in batches(chance, rows):
        found.add(*batch)
    found.add(second(300, node="z"))

    assert expected.episodes == found.episodes
    assert expected.incidents == found.incidents
    assert sum(row["dropped"].get("expired", 0) for row in rows) >= sum(
        one["dropped"].get("expired", 0) for one in found.incidents.values()
    )
    assert sorted(found.episodes) == sorted(
        member["id"] for one in found.incidents.values() for member in one["episodes"]
    ) or any(one["episodes_all"] > MEMBERS for one in found.incidents.values())


def touch(one: Episode, other: Episode) -> bool:
    """Whether two episodes belong together, by the words of the rule."""
    ends = [float("inf") if each["end"] is None else each["end"] + SKEW for each in (one, other)]
    nodes = [{*each["nodes"], node_of(each["resource"])} - {""} for each in (one, other)]
    overlap = one["start"] <= ends[1] and other["start"] <= ends[0]
    return overlap and (one["cause"] == other["cause"] or bool(nodes[0] & nodes[1]))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 60), st.integers(1, 20), st.sampled_from("abcd"), st.sampled_from(["lag", "memory", "b/1"])
        ),
        max_size=14,
    ),
    st.randoms(use_true_random=False),
)
def test_incidents_are_what_is_connected(found: list[tuple[int, int, str, str]], chance: Random) -> None:
    """The sweep looks at the one that ends last only: it would miss another one, or join what does not touch."""
    episodes: list[Any] = [
        {
            "id": f"{number}",
            "start": float(start),
            "end": None if lasts == 20 else float(start + lasts),
            "cause": cause,
            "nodes": [node],
            "resource": cause if "/" in cause else f"node {node}",
        }
        for number, (start, lasts, node, cause) in enumerate(found)
    ]
    group = {one["id"]: {one["id"]} for one in episodes}
    for one, other in combinations(episodes, 2):
        if touch(one, other) and group[one["id"]] is not group[other["id"]]:
            both = group[one["id"]] | group[other["id"]]
            group |= dict.fromkeys(both, both)
    shuffled = chance.sample(episodes, len(episodes))

    assert {frozenset(ids) for ids in group.values()} == {
        frozenset(one["id"] for one in each) for each in joined(shuffled)
    }
