# The sink in Redis, on a real server; what it is given is made by hand.
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from analytics.keys import EPISODES, INCIDENTS, KEPT, AnalyticsKeys
from analytics.rows import Episode, Findings, Incident, Status, Window
from tests.analytics.seconds import Fold, overloaded
from tests.redis_servers import RunningRedis

if TYPE_CHECKING:
    import redis

    from analytics.sinks import RedisSink

pytest.importorskip("pyspark")
T: Final = 1_700_000_000
KEYS: Final = AnalyticsKeys("weir")
FINDINGS: Final = cast(Findings, {"at": T})
STATUS: Final = cast(Status, {"version": 1})


@pytest.fixture
def server(start_redis: Callable[..., RunningRedis]) -> RunningRedis:
    return start_redis()


@pytest.fixture
def client(server: RunningRedis) -> "Iterator[redis.Redis]":
    with server.client(decode_responses=True) as made:
        yield made


@pytest.fixture
def sink(server: RunningRedis) -> "Iterator[RedisSink]":
    from analytics.sinks import RedisSink

    with server.client() as made:
        yield RedisSink(made, "weir")


def window(start: int, span: int = 1, nodes: int = 1, **more: Any) -> Window:
    return cast(Window, {"start": start, "span": span, "nodes": {f"n{one}": {} for one in range(nodes)}, **more})


def episode(start: int, state: str = "closed") -> Episode:
    return cast(Episode, {"id": f"{start} node a", "start": float(start), "state": state})


def incident(start: int, state: str = "closed") -> Incident:
    return cast(Incident, episode(start, state))


def test_what_is_written_again_is_there_once(client: "redis.Redis", sink: "RedisSink") -> None:
    """A batch that is repeated after a failure would double what it says."""
    for _ in range(2):
        sink.write([window(T), window(T, 10)], [episode(T, "open")], [incident(T, "open")], FINDINGS, STATUS)
    sink.write([window(T, more=1)], [episode(T)], [incident(T)], FINDINGS, STATUS)

    assert {f"{T}": window(T, more=1)} == {at: json.loads(one) for at, one in client.hgetall(KEYS.windows(1)).items()}
    assert [f"{T}"] == client.hkeys(KEYS.windows(10))
    for key in (KEYS.episodes, KEYS.incidents):
        assert {f"{T} node a": episode(T)} == {id: json.loads(one) for id, one in client.hgetall(key).items()}


def test_an_episode_that_was_merged_into_another_is_gone(client: "redis.Redis", sink: "RedisSink") -> None:
    """One overload would be listed twice."""
    for state, later in (("open", "open"), ("closed", "merged")):
        episodes, incidents = ([of(T, state), of(T + 20, later)] for of in (episode, incident))
        sink.write([], cast(Any, episodes), cast(Any, incidents), FINDINGS, STATUS)

    assert [f"{T} node a"] == client.hkeys(KEYS.episodes) == client.hkeys(KEYS.incidents)


@pytest.mark.parametrize(("nodes", "share"), [(1, 1.0), (64, 0.5)])
def test_windows_are_kept_for_so_long_and_of_many_nodes_for_less(
    client: "redis.Redis", sink: "RedisSink", nodes: int, share: float
) -> None:
    """Redis would be full one day, and the broker's sessions with it."""
    kept = int(KEPT[10] * share)
    sink.write([window(T, 10), window(T + 10, 10)], [], [], FINDINGS, STATUS)

    sink.write([window(T + kept, 10, nodes)], [], [], FINDINGS, STATUS)

    assert {f"{T + 10}", f"{T + kept}"} == set(client.hkeys(KEYS.windows(10)))


def test_an_episode_that_a_lost_checkpoint_left_open_is_closed(client: "redis.Redis", sink: "RedisSink") -> None:
    """It would go on for ever on the page, though nobody follows it any more."""
    fold = Fold().add(overloaded(0), overloaded(1), overloaded(0, node="b"))
    left, together = fold.episodes[f"{T} node a"], fold.incident()
    assert "open" == left["state"] == together["state"]
    done = {**left, "id": "1 node a", "start": 1.0, "end": 2.0, "state": "closed"}
    status = cast(Status, {"version": 1, "newest": T + 9})
    sink.write([], [left, cast(Episode, done)], [together], FINDINGS, status)
    for old in ('{"state": "open"}', '{"state": "closed", "start": 2.0, "story": []}', "no JSON"):  # of version 2
        client.hset(KEYS.episodes, f"{len(old)}", old)

    for _ in range(2):
        sink.close_left_open()

    found = {id: json.loads(one) for id, one in client.hgetall(KEYS.episodes).items()}
    assert {"1 node a": done} == {id: one for id, one in found.items() if id != left["id"]}
    (of_both,) = [json.loads(one) for one in client.hvals(KEYS.incidents)]
    for closed in (found[left["id"]], of_both):
        assert (T + 9.0, "closed", True) == (closed["end"], closed["state"], closed["interrupted"])
        assert "The analysis lost its checkpoint during this overload" in " ".join(closed["story"])
    assert [T + 9.0, T + 9.0] == [one["end"] for one in of_both["episodes"]]
    assert "It has 2 episodes" in " ".join(of_both["story"])


def test_the_newest_episodes_and_incidents_are_kept(client: "redis.Redis", sink: "RedisSink") -> None:
    """The same, with a cluster that is overloaded each minute."""
    for start in range(0, EPISODES, 100):
        many = range(T + start, T + start + 100)
        sink.write([], [*map(episode, many)], [*map(incident, many)], FINDINGS, STATUS)

    last = (T + EPISODES, T + EPISODES + 1)
    sink.write([], [*map(episode, last)], [*map(incident, last)], FINDINGS, STATUS)

    for key, most in ((KEYS.episodes, EPISODES), (KEYS.incidents, INCIDENTS)):
        left = sorted(int(id.partition(" ")[0]) for id in cast(list[str], client.hkeys(key)))
        assert (last[1] - most + 1, last[1], most) == (left[0], left[-1], len(left))


def test_what_is_no_record_is_kept_once_with_what_is_wrong(client: "redis.Redis", sink: "RedisSink") -> None:
    """Nobody would know what to repair, or a repeated batch would show it twice."""
    found = {"5-0": "{", "5-10": '{"version": 1}', "5-9": "", "6-0": "\ud800"}
    sink.write_unfit(found)

    sink.write_unfit(found)

    told = [(id, fields["id"], fields["problem"]) for id, fields in cast(list[Any], client.xrange(KEYS.unfit))]
    assert [
        ("5-0", "5-0", "not JSON, or too long"),
        ("5-9", "5-9", "the entry has no record"),
        ("5-10", "5-10", "ts: missing"),
        ("6-0", "6-0", "not JSON, or too long"),
    ] == told
