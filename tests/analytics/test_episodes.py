# Episodes: when they begin and end, whatever comes how; and what is told of them.
import pytest

from analytics.episodes import AMENDED_FOR, GAP, HORIZON, LEAD, NAMES
from analytics.moments import NODES, RESOURCES
from analytics.resources import OTHER
from analytics.second import Second
from tests.analytics.seconds import Fold, T, hitter, overloaded, second


def calm(start: int, end: int, worker: int = 1, node: str = "a") -> list[Second]:
    return [second(at, worker, node) for at in range(start, end)]


def bad(start: int, end: int, worker: int = 1, node: str = "a", level: int = 5) -> list[Second]:
    return [overloaded(at, worker, node, level) for at in range(start, end)]


def test_an_overload_is_one_episode_from_its_first_second_to_the_end_of_its_last() -> None:
    """Its row is what people look at afterwards: each field is exact."""
    fold = Fold().add(*calm(0, 3), *bad(3, 5), overloaded(5, level=7), *bad(6, 8), *calm(8, 30))

    episode = fold.only()
    assert episode == {
        "id": f"{T + 3} node a",
        "resource": "node a",
        "start": T + 3.0,
        "end": T + 8.0,
        "state": "closed",
        "peak": 7,
        "peak_at": T + 5.0,
        "cause": "lag",
        "cause_worker": "a/1",
        "weight": 27,
        "cost": 5000,
        "nodes": ["a"],
        "further_nodes": False,
        "slowed": [],
        "slowed_nodes": 0,
        "culprits": [],
        "clients": [],
        "topics": [],
        "throttled": [],
        "throttled_most": 0,
        "paused_ms": 0,
        "dropped": {},
        "refused": {},
        "connects": 0,
        "connects_refused": 0,
        "lost_seconds": 0,
        "interrupted": False,
        "story": [
            "At 22:13:23 UTC worker a/1 became overloaded: clients wait too long to be served (lag).",
            "The overload ended at 22:13:28, after 5.0 s; the level reached 7 of 10 at 22:13:25.",
        ],
    }


def test_an_episode_is_open_until_it_was_quiet_for_the_gap() -> None:
    """Who looks in the meantime is told that it goes on, and once more when it is over."""
    fold = Fold().add(*calm(0, 3), *bad(3, 5))
    assert [(3, None)] == fold.overloads()

    fold.add(*calm(5, 5 + GAP))
    assert [(3, None)] == fold.overloads()
    assert [] == fold.told

    fold.add(second(5 + GAP))
    assert [(3, 5)] == fold.overloads()
    assert ["closed"] == [episode["state"] for episode in fold.told]


@pytest.mark.parametrize(("quiet", "found"), [(0, [(0, 4)]), (GAP, [(0, 4 + GAP)]), (GAP + 1, [(0, 2), (13, 15)])])
def test_episodes_that_touch_are_one_and_those_more_than_the_gap_apart_are_two(
    quiet: int, found: list[tuple[int, int]]
) -> None:
    """One overload that falters would be told of as many, or two as one."""
    fold = Fold().add(*bad(0, 2), *calm(2, 2 + quiet), *bad(2 + quiet, 4 + quiet), *calm(4 + quiet, 40 + quiet))

    assert found == fold.overloads()


def test_each_node_and_resource_has_its_own_episode() -> None:
    """It was one for the whole cluster: nobody could tell which node began, and which one only had slow clients."""
    gate = [overloaded(at, node="c", cause="b/1") for at in range(6)]
    store = [overloaded(at, worker=2, node="a", cause="a/2 store") for at in range(2, 4)]
    fold = Fold().add(*bad(0, 6, node="a", level=4), *bad(4, 9, node="b", level=8), *gate, *store)
    fold.add(*(overloaded(at, worker=3, node=node, cause="redis") for at in range(3, 5) for node in "ab"), *calm(9, 30))

    found = {one["resource"]: (one["start"] - T, one["end"], one["nodes"]) for one in fold.episodes.values()}
    assert {
        "node a": (0, T + 6, ["a"]),
        "node b": (4, T + 9, ["b"]),
        "b/1": (0, T + 6, ["c"]),
        "a/2 store": (2, T + 4, ["a"]),
        "redis": (3, T + 5, ["a", "b"]),
    } == found


def test_who_is_throttled_elsewhere_suffers_from_the_resource_with_the_highest_level() -> None:
    """The level is in force everywhere: each node would seem to be overloaded, and the one that is be one of many."""
    held = [hitter("victim", 10, 400)]
    fold = Fold()
    for at in range(4):
        rows = [second(at, node=f"n{one:02}", cluster_level=5, paused={"credits": 400 + one}) for one in range(12)]
        rows.append(second(at, node="v", cluster_level=5, paused={"credits": 900}, throttled=3, clients=held))
        fold.add(*rows, overloaded(at, node="b"), overloaded(at, node="a", level=2, cause="memory"))
    fold.add(*calm(4, 30))

    episode = fold.only()
    assert ("node b", ["b"], 13, 10) == (
        episode["resource"],
        episode["nodes"],
        episode["slowed_nodes"],
        len(episode["slowed"]),
    )
    assert {"node": "v", "throttled_most": 3, "paused_ms": 3600} == episode["slowed"][0]
    assert ("victim", "v") == (episode["throttled"][0]["name"], episode["throttled"][0]["node"])
    assert (
        "Clients of 13 nodes were throttled, the longest at v (3.6 s, 3 clients at the same time), n11 (1.6 s), "
        "n10 (1.6 s) and 10 more."
    ) in episode["story"]


def test_an_overload_of_a_worker_without_records_is_an_episode_of_it() -> None:
    """The node that raised the level uses another Redis, and nobody would know why clients are throttled here."""
    rows = [second(at, cluster_level=5, paused={"credits": 900}, throttled=3) for at in range(3, 6)]
    fold = Fold().add(*calm(0, 3), *rows, *calm(6, 30))

    assert "elsewhere" == fold.only()["resource"]
    assert [
        "At 22:13:23 UTC clients of worker a/1 were throttled because of a worker that has no records here.",
        "The overload ended at 22:13:26, after 3.0 s; the overload level stayed 0.",
        "Up to 3 clients were throttled at the same time, for 2.7 s in total.",
    ] == fold.only()["story"]


def test_clients_that_wait_a_moment_longer_than_the_level_is_raised_make_no_episode() -> None:
    """Each overload would be followed by another one, of nobody."""
    after = [second(at, node="v", cluster_level=1, paused={"credits": 900}) for at in range(12)]
    fold = Fold().add(*bad(0, 9), *after, *calm(9, 40))

    assert ["node a"] == [one["resource"] for one in fold.episodes.values()]
    assert 9 * 900 == fold.only()["slowed"][0]["paused_ms"]


def test_an_episode_that_never_ends_stays_open_and_costs_no_more() -> None:
    """A state that grows with the length of an overload would end the job in the middle of it."""
    fold = Fold()
    sizes = []
    for start in range(0, 1200, 20):
        rows = [hitter(f"client-{start}-{i}", 10 + i % 7) for i in range(30)]
        fold.add(*(overloaded(at, clients=rows, topics=rows) for at in range(start, start + 20)))
        if start >= 600:
            sizes.append(len(str(fold.state)))

    assert [(0, None)] == fold.overloads()
    assert max(sizes) < 1.1 * min(sizes)
    assert len(fold.state["episodes"]["spans"]["node a"]["clients"]) <= 4 * NAMES


def test_what_is_lost_in_a_gap_of_an_episode_is_lost_by_it() -> None:
    """Its messages are dropped while the level is 0 for some seconds: nobody would be told of them."""
    gap = [second(at, dropped={"expired": 2}) for at in range(2, 6)]
    fold = Fold().add(*bad(0, 2), *gap, *bad(6, 8), *(second(at, dropped={"expired": 50}) for at in range(8, 30)))

    assert {"expired": 8} == fold.only()["dropped"]


def test_a_late_second_that_bridges_two_episodes_merges_them() -> None:
    """The later one would stay for ever, as an episode that was none."""
    fold = Fold().add(*bad(0, 3), *bad(3 + GAP + 1, 17))
    assert [(0, 3), (14, None)] == fold.overloads()

    fold.add(overloaded(8, sequence=5, worker=2))
    assert [(0, None)] == fold.overloads()
    told = [(each["id"], each["state"]) for each in fold.told]
    assert [(f"{T} node a", "open"), (f"{T + 14} node a", "merged")] == told
    assert told == [(each["id"], each["state"]) for each in fold.told_incidents]


def test_a_late_second_before_the_first_renames_the_episode() -> None:
    """The name is the first second, whichever came first: a replay in other batches would else double it."""
    fold = Fold().add(*bad(5, 8)).add(overloaded(3, worker=2))

    assert [(3, None)] == fold.overloads()
    told = [(each["id"], each["state"]) for each in fold.told]
    assert [(f"{T + 3} node a", "open"), (f"{T + 5} node a", "merged")] == told


def test_a_record_that_comes_again_counts_once() -> None:
    """A replayed batch would double what was dropped."""
    rows = [overloaded(at, dropped={"not_writable": 10}, paused={"credits": 500}) for at in range(4)]
    fold = Fold().add(*rows).add(*rows).add(*rows[2:], *calm(4, 20))

    assert ({"not_writable": 40}, 2000) == (fold.only()["dropped"], fold.only()["paused_ms"])


def test_what_is_too_late_is_left_out_and_counted() -> None:
    """It would be taken into an episode that is done with, or double what was rolled up already."""
    fold = Fold().add(*bad(0, 3), *calm(3, HORIZON + 5)).add(overloaded(4, worker=2, level=9))

    assert [(0, 3)] == fold.overloads()
    assert 1 == fold.late


def test_a_node_that_goes_silent_does_not_keep_an_episode_open() -> None:
    """Its last word was level 9, and it has died of it: the others are well."""
    fold = Fold().add(*bad(0, 3, node="b", level=9), *calm(0, 3))
    for at in range(3, 20):
        fold.add(second(at))

    assert [(0, 3)] == fold.overloads()


def test_an_episode_ends_although_nobody_says_anything_any_more() -> None:
    """All nodes were stopped in the middle of it: batches are empty, and only our clock goes on."""
    fold = Fold().add(*bad(0, 3), now=T + 3.0).add(now=T + 20.0)
    assert [(0, None)] == fold.overloads()

    fold.add(now=T + 3.0 + GAP + HORIZON)
    assert [(0, 3)] == fold.overloads()


def test_seconds_that_are_missing_are_counted() -> None:
    """An overload that keeps a worker from telling of it would look smaller than it was."""
    fold = Fold().add(*bad(0, 3), *bad(0, 3, worker=2), *bad(3, 8), *bad(6, 8, worker=2), *calm(8, 30))

    assert 3 == fold.only()["lost_seconds"]
    assert (
        "3 records are missing (each of one second of one worker): the real figures may be higher."
        in (fold.only()["story"])
    )


def test_seconds_that_came_after_all_are_not_missing() -> None:
    """Late is not lost."""
    fold = Fold().add(*bad(0, 3), *bad(6, 8))
    assert 3 == fold.only()["lost_seconds"]

    fold.add(*bad(3, 6)).add(*calm(8, 60))
    assert 0 == fold.only()["lost_seconds"]


@pytest.mark.parametrize("silence", [5, 20, HORIZON + 15, 300])
def test_a_worker_that_was_silent_for_long_lost_what_it_could_not_tell(silence: int) -> None:
    """It is known only when it is back, by a gap in its sequence, and the episode may be over by then."""
    fold = Fold().add(*bad(-5, 0), second(-1, worker=2))
    for at in range(50):
        fold.add(overloaded(at) if at < 20 else second(at), *([second(at, worker=2)] if at >= silence else []))
    for at in range(50, 320, 5):
        rows = [second(each, worker=2) for each in range(at, at + 5) if each >= silence]
        fold.add(*calm(at, at + 5), *rows)

    assert [(-5, 20)] == fold.overloads()
    assert min(20, silence) == fold.only()["lost_seconds"]


@pytest.mark.parametrize("skew", [-7, 7])
def test_clocks_that_differ_by_seconds_make_one_episode(skew: int) -> None:
    """The same overload, seen by two nodes, would be told of twice."""
    fold = Fold()
    for at in range(40):
        level = 6 if 5 <= at < 10 else 0
        fold.add(second(at, level=level, cause="lag"), second(at + skew, node="b", level=level, cause="lag"))

    assert [(min(5, 5 + skew), max(10, 10 + skew))] == fold.overloads()
    assert 0 == fold.late


def test_a_clock_that_is_an_hour_ahead_leaves_the_others_what_they_are() -> None:
    """One wrong clock would make the records of all other nodes too late, for an hour."""
    fold = Fold()
    for at in range(40):
        level = 6 if 5 <= at < 10 else 0
        fold.add(second(at, level=level, cause="lag"), second(at + 3600, node="b"), now=T + at + 1.0)

    assert [(5, 10)] == fold.overloads()
    assert 0 == fold.late


def test_a_hiccup_is_no_episode() -> None:
    """Level 1 and 2 for a moment is protection that works: nobody is called for it."""
    fold = Fold().add(*calm(0, 3), *bad(3, 5, level=2), *calm(5, 30), *bad(30, 33, level=1), *calm(33, 60))

    assert {} == fold.episodes


@pytest.mark.parametrize(("lead", "start"), [(5, 10), (LEAD, 0), (LEAD + 30, 30)])
@pytest.mark.parametrize("batch", [1, 2, 1000])
def test_an_episode_begins_with_level_1_but_not_long_before_it_is_serious(lead: int, start: int, batch: int) -> None:
    """A worker that is at level 1 all day would make an episode of the whole day."""
    began = LEAD - lead if lead <= LEAD else 0
    rows = [*bad(began, began + lead, level=1), *bad(began + lead, began + lead + 3)]
    rows += calm(began + lead + 3, began + lead + 60)
    fold = Fold()
    for at in range(0, len(rows), batch):
        fold.add(*rows[at : at + batch])

    assert [(start, began + lead + 3)] == fold.overloads()


def test_a_storm_of_connects_is_an_episode_without_any_level() -> None:
    """Thousands of clients wait outside while all who are in are well: someone has to know."""
    storm = [
        second(at, paused={"connect": 40_000}, connects=500, connects_refused=20, clients=[hitter("busy", 900)])
        for at in range(3, 9)
    ]
    fold = Fold().add(*calm(0, 3), *storm, *calm(9, 30))

    episode = fold.only()
    assert [(3, 9)] == fold.overloads()
    assert ("connects", "a/1", 0, 3000, 120, 240_000, []) == (
        episode["cause"],
        episode["cause_worker"],
        episode["peak"],
        episode["connects"],
        episode["connects_refused"],
        episode["paused_ms"],
        episode["culprits"],
    )
    assert [
        "At 22:13:23 UTC more clients connected than can be accepted at once; most of them waited at worker a/1.",
        "The overload ended at 22:13:29, after 6.0 s; the overload level stayed 0.",
        "3 000 CONNECTs arrived and waited for 4 min 0 s in total; 120 of them were refused.",
    ] == episode["story"]


def test_who_was_held_back_in_a_storm_did_not_wait_for_as_long_as_all_connects() -> None:
    """Ten clients would seem to have been held back for hours in a storm of seconds."""
    hit = [hitter("busy", 900, 200)]
    storm = [second(at, paused={"connect": 40_000, "gate": 200}, throttled=1, clients=hit) for at in range(3, 9)]

    story = Fold().add(*calm(0, 3), *storm, *calm(9, 30)).only()["story"]

    assert "Up to 1 client was throttled at the same time; longest busy (1.2 s)." in story


def test_a_storm_that_raises_the_level_is_a_storm_still() -> None:
    """The signal and the storm are one cause; counted as two, something else could seem to be worse."""
    storm = [second(at, paused={"connect": 40_000}, connects=500) for at in range(4)]
    raised = [overloaded(at, level=2, cause="connect", paused={"connect": 90_000}) for at in range(4, 8)]
    fold = Fold().add(*storm, *raised, overloaded(8, level=5, cause="lag"), *calm(9, 30))

    assert "connects" == fold.only()["cause"]


def test_connects_that_wait_for_a_moment_or_have_a_wrong_password_are_no_storm() -> None:
    """A fleet that comes in as fast as it may is well."""
    fold = Fold().add(*(second(at, connects=100, connects_refused=90) for at in range(5)))
    fold.add(*(second(at, connects=100, paused={"connect": 300}) for at in range(5, 10)), *calm(10, 30))

    assert {} == fold.episodes


def test_one_client_that_asks_for_too_much_is_named() -> None:
    """The question is always: who?"""
    rows = [
        overloaded(
            at,
            level=2,
            cause="a/2",
            throttled=1,
            cost_in=10_000,
            paused={"credits": 700, "quota_session_messages": 50},
            dropped={"not_writable": 30},
            clients=[hitter("aggressor", 9_000, 700), hitter("b", 600), hitter("c", 100)],
            topics=[hitter("t", 10_000)],
        )
        for at in range(4)
    ]
    fold = Fold().add(*calm(-2, 0), *rows, *calm(4, 30))

    episode = fold.only()
    assert [{"name": "aggressor", "share": 0.9}, {"name": "b", "share": 0.06}] == episode["culprits"]
    assert ["aggressor", "b", "c"] == [each["name"] for each in episode["clients"]]
    assert [
        {"name": "aggressor", "node": "a", "cost": 36_000, "messages": 3600, "bytes": 36_000, "paused_ms": 2800}
    ] == episode["throttled"]
    assert ("a/2", 1, 3000) == (episode["cause"], episode["throttled_most"], episode["paused_ms"])
    assert [
        "At 22:13:20 UTC worker a/1 became overloaded: worker a/2 was slower than without load (a/2).",
        "The overload ended at 22:13:24, after 4.0 s; the level reached 2 of 10 at 22:13:20.",
        "Most of the work of the overloaded workers came from aggressor (90%) and b (6%).",
        "Up to 1 client was throttled at the same time, for 3.0 s in total; longest aggressor (2.8 s).",
        "120 messages were dropped: 120 not_writable (QoS 0 messages were skipped, as the client reads too slowly).",
    ] == episode["story"]


def test_a_busy_client_of_a_worker_that_is_well_is_no_culprit() -> None:
    """An operator would limit a client that the overload is not due to."""
    small = [hitter(f"c{one}", 200) for one in range(3)]
    for at in range(4):
        bulk = second(at, worker=2, cost_in=90_000, clients=[hitter("bulk", 90_000)])
        fold = Fold().add(overloaded(at, cost_in=1000, clients=small), bulk)

    fold.add(*calm(4, 30))

    assert [("c0", 0.2), ("c1", 0.2), ("c2", 0.2)] == [(one["name"], one["share"]) for one in fold.only()["culprits"]]
    assert "bulk" == fold.only()["clients"][0]["name"]


@pytest.mark.parametrize(("cost", "words"), [(200, "Most of"), (150, "45% of")])
def test_most_of_the_work_is_more_than_half_of_it(cost: int, words: str) -> None:
    """An operator would limit three clients, and the overload would go on."""
    names = [hitter(f"c{one}", cost) for one in range(3)]
    fold = Fold().add(*(overloaded(at, cost_in=1000, clients=names) for at in range(4)), *calm(4, 30))

    assert f"{words} the work of the overloaded workers came from c0" in " ".join(fold.only()["story"])


def test_the_cause_is_what_held_the_highest_level_longest() -> None:
    """The signal that began it may be gone at once, and another one is what kept it up."""
    fold = Fold().add(overloaded(0, level=6, cause="lag"), *(overloaded(at, cause="memory") for at in range(1, 5)))
    fold.add(*(overloaded(at, worker=2, level=4, cause="outbound") for at in range(5)))

    fold.add(*(overloaded(at, level=1) for at in range(5, 14)), *calm(14, 30))

    assert ("memory", "a/1", 6) == (fold.only()["cause"], fold.only()["cause_worker"], fold.only()["peak"])


def test_who_is_held_back_at_once_is_added_over_workers_of_one_second() -> None:
    """Not over time: the same client is held second after second."""
    fold = Fold().add(
        *(overloaded(at, worker, throttled=at + worker) for at in range(3) for worker in (1, 2)), *calm(3, 30)
    )

    assert 3 + 4 == fold.only()["throttled_most"]


def test_an_old_episode_is_not_amended_any_more() -> None:
    """What is told must not be remembered for ever."""
    fold = Fold().add(*bad(0, 3))
    for at in range(3, AMENDED_FOR + 20, 10):
        fold.add(*calm(at, at + 10))

    assert {} == fold.state["episodes"]["told"]
    assert [(0, 3)] == fold.overloads()


def test_any_number_of_nodes_and_labels_is_bounded() -> None:
    """Names come from records, and those from whoever can write them. What has no room is in an episode of its own."""
    fold = Fold()
    rows = [overloaded(at, node=f"n{at * 60 + i}", dropped={f"{at}-{i}": 1}) for at in range(60) for i in range(60)]
    for start in range(0, 3600, 900):
        fold.add(*rows[start : start + 900])

    of_resource = {one["resource"] for one in fold.episodes.values()}
    assert OTHER in of_resource
    assert len(fold.state["episodes"]["spans"]) <= RESOURCES + 1
    assert len(fold.incident()["nodes"]) <= NODES
    assert fold.incident()["further_nodes"]
    assert len(fold.incident()["dropped"]) < 110
    assert 3600 == sum(fold.incident()["dropped"].values())
