from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.mqtt.packets import V5
from cli.load.plan import BadPlan, Pattern, Plan, enough_processes

PATTERNS: list[Pattern] = ["pairs", "fan-out", "fan-in"]


def plan(**changes: Any) -> Plan:
    normal = Plan(
        pattern="pairs",
        publishers=4,
        subscribers=4,
        topic="b/%i",
        qos=1,
        payload=64,
        version=V5,
        rate=0,
        window=10,
        seconds=1,
        messages=0,
        connect_rate=0,
        processes=1,
        run=b"run!",
        client_id="b",
    )
    return replace(normal, **changes)


@given(st.sampled_from(PATTERNS), st.integers(0, 9), st.integers(0, 9), st.integers(1, 4))
def test_every_client_is_in_one_process(pattern: Pattern, publishers: int, subscribers: int, processes: int) -> None:
    """Clients would be missing, or take over each other's sessions."""
    parts = plan(pattern=pattern, publishers=publishers, subscribers=subscribers, processes=processes).parts()

    assert list(range(publishers)) == sorted(number for part in parts for number in part.publishers)
    assert list(range(subscribers)) == sorted(number for part in parts for number in part.subscribers)


@given(st.sampled_from(PATTERNS), st.integers(1, 9), st.integers(0, 9), st.integers(1, 4))
def test_copies_are_what_subscriptions_match(
    pattern: Pattern, publishers: int, subscribers: int, processes: int
) -> None:
    """Messages would count as lost that nobody asked for, or a window wait for them."""
    topic = "b/all" if pattern == "fan-out" else "b/%i"
    wanted = plan(pattern=pattern, publishers=publishers, subscribers=subscribers, processes=processes, topic=topic)

    def matching(publisher: int, numbers: list[int]) -> int:
        filters = [wanted.filter_of(number) for number in numbers]
        return sum(one in (wanted.topic_of(publisher), b"b/+") for one in filters)

    for part in wanted.parts():
        for publisher in part.publishers:
            assert wanted.copies(publisher) == matching(publisher, list(range(subscribers)))
            assert part.copies(publisher) == matching(publisher, part.subscribers)


@given(st.integers(1, 9), st.integers(1, 100))
def test_quotas_add_up_to_the_messages(publishers: int, messages: int) -> None:
    """`--messages 100` would publish 99."""
    wanted = plan(publishers=publishers, messages=messages)
    assert messages == sum(wanted.quota(number) for number in range(publishers))


def test_a_rate_has_as_many_messages_as_fit_into_the_time() -> None:
    """The message that is due when the time is up would be sent, or not, as the clock will."""
    assert [75, 75, 75, 75] == [plan(rate=150, seconds=2).quota(number) for number in range(4)]
    assert [5, 5, 5, 5] == [plan(rate=150, seconds=2, messages=20).quota(number) for number in range(4)]
    assert -1 == plan().quota(0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"payload": 15}, "--payload 15 is too small: a message carries 16 bytes"),
        ({"payload": 1 << 28}, "is too large"),
        ({"publishers": 0, "subscribers": 0}, "nothing to do"),
        ({"topic": "b/all"}, "needs %i for pairs"),
        ({"topic": "b/+/%i"}, "--topic b/+/%i is not valid: wildcard in a topic name."),
        ({"topic": "b/x%i", "pattern": "fan-in"}, "--topic b/x%i is not valid: + is not a whole level."),
        ({"topic": "\udcff%i"}, "not UTF-8"),
        ({"seconds": 0}, "would never end"),
        ({"processes": 5}, "--processes 5 is too large: some would have no clients; at most 4."),
        ({"qos": 0, "subscribers": 3}, "use --rate, --qos 1 or fewer --processes."),
        ({"qos": 0, "pattern": "fan-out", "subscribers": 1, "processes": 2}, "fewer --processes"),
    ],
)
def test_a_load_that_cannot_be_is_refused_with_what_would_be_right(changes: dict[str, Any], words: str) -> None:
    """It would stall, fail in the middle, or measure something else."""
    with pytest.raises(BadPlan) as error:
        plan(**changes).check()
    assert words in str(error.value)


def test_the_same_without_the_mistake_is_fine() -> None:
    """The checks would refuse what works."""
    plan().check()
    plan(qos=0, subscribers=3, window=0, rate=10).check()
    plan(pattern="fan-out", topic="b/all", processes=4, window=0, rate=1).check()
    plan(publishers=0).check()


def test_no_secret_is_printed() -> None:
    """Passwords would be in every published measurement."""
    assert "pa55word" not in str(plan(user="ann", password=b"pa55word").as_json())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_processes_are_enough_and_not_idle(pattern: Pattern) -> None:
    """The default would refuse to run, or have processes without a client."""
    for publishers, subscribers, rate in [(1, 1, 0), (100, 100, 0), (1, 500, 1e9), (10, 1, 5), (0, 3, 0), (3, 0, 0)]:
        number = enough_processes(pattern, publishers, subscribers, rate)
        topic = "b/all" if pattern == "fan-out" else "b/%i"
        plan(
            pattern=pattern, publishers=publishers, subscribers=subscribers, processes=number, rate=rate, topic=topic
        ).check()
