import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.reasons import DropReason
from broker.routing.retained import Retained, RetainedScan
from broker.routing.sizes import LEVEL, RETAINED
from broker.session.message import Message
from tests.routing.reference import filters, matches, topics

PLENTY = 1 << 40
FULL = DropReason.RETAINED_FULL
PER_CLIENT = DropReason.RETAINED_PER_CLIENT


def message(topic: bytes, payload: bytes = b"x", expires: float = 0.0) -> Message:
    return Message(topic, payload, 0, True, b"", expires)


def holding(*names: bytes) -> Retained:
    retained = Retained(messages=PLENTY, bytes=PLENTY)
    for topic in names:
        assert retained.put(message(topic), 0.0) is None
    return retained


def next_page(scan: RetainedScan, limit: int, now: float) -> list[Message]:
    """The next page that is not empty; empty when the scan is done."""
    page = scan.next_page(limit, limit, now)
    while not page and not scan.done:
        page = scan.next_page(limit, limit, now)
    return page


def rest_of(scan: RetainedScan, limit: int = 2, now: float = 0.0) -> list[bytes]:
    seen: list[bytes] = []
    while page := next_page(scan, limit, now):
        assert len(page) <= limit
        seen += [m.topic for m in page]
    return seen


def test_the_last_message_of_a_topic_is_kept() -> None:
    """A new subscriber would see an old state, or the state of another topic."""
    retained = holding(b"a", b"b")
    newest = message(b"a", b"newest")
    retained.put(newest, 0.0)

    assert [b"newest"] == [m.payload for m in next_page(retained.match(b"a"), 10, 0.0)]
    kept = retained.get(b"a", 0.0)
    assert kept is not None and b"newest" == kept.payload and kept.retain
    assert retained.get(b"c", 0.0) is None
    assert (2, 9) == (retained.statistics().count, retained.statistics().bytes)


def test_a_deleted_message_is_gone() -> None:
    """An empty retained publish would not clear the topic, or leak its place."""
    retained = holding(b"a/b", b"a")

    assert [True, False] == [retained.delete(b"a/b"), retained.delete(b"a/b")]
    assert [b"a"] == rest_of(retained.match(b"#"))
    assert retained.delete(b"a")
    assert (0, 0, 0) == (retained.statistics().count, retained.statistics().bytes, retained._topics.levels)


@given(st.lists(topics, max_size=20), filters, st.integers(1, 5))
def test_a_scan_finds_what_the_rules_say(names: list[bytes], filter: bytes, limit: int) -> None:
    """A subscriber would miss a retained message, get one twice, or one that it did not ask for."""
    scan = holding(*names).match(filter)

    assert sorted({topic for topic in names if matches(filter, topic)}) == sorted(rest_of(scan, limit))
    assert scan.done


@given(
    st.sets(topics, max_size=12),
    filters,
    st.lists(st.tuples(st.sampled_from(["put", "delete", "page", "step"]), topics), max_size=30),
)
def test_a_scan_bears_changes(names: set[bytes], filter: bytes, steps: list[tuple[str, bytes]]) -> None:
    """A replay in pages would crash, repeat, deliver what is deleted, or lose what was there all the time."""
    retained = holding(*sorted(names))
    scan = retained.match(filter)
    present, stayed = set(names), set(names)
    seen: list[bytes] = []
    for action, topic in steps:
        if action == "put":
            retained.put(message(topic), 0.0)
            present.add(topic)
        elif action == "delete":
            assert (topic in present) == retained.delete(topic)
            present.discard(topic)
            stayed.discard(topic)
        else:
            page = [m.topic for m in (next_page(scan, 1, 0.0) if action == "page" else scan.next_page(2, 2, 0.0))]
            assert all(found in present and matches(filter, found) for found in page)
            seen += page
    seen += rest_of(scan)

    assert all(1 == seen.count(topic) for topic in stayed if matches(filter, topic))
    assert all(matches(filter, topic) for topic in seen)


def test_a_scan_goes_on_where_everything_around_it_went() -> None:
    """A replay would end early when the branch it stands in is deleted and made again."""
    retained = holding(b"a/1", b"a/2", b"b/1", b"b/2")
    scan = retained.match(b"+/+")
    assert [b"a/1"] == [m.topic for m in next_page(scan, 1, 0.0)]
    for topic in (b"a/1", b"a/2"):
        retained.delete(topic)
    retained.put(message(b"a/3"), 0.0)

    assert [b"b/1", b"b/2", b"a/3"] == rest_of(scan)


def test_a_step_visits_a_bounded_part_of_the_tree() -> None:
    """A filter that matches nothing among many topics would hold the loop."""
    retained = holding(*[b"%d/a" % number for number in range(1000)])
    scan = retained.match(b"+/b")
    steps = 0
    while not scan.done:
        assert [] == scan.next_page(10, 100, 0.0)
        steps += 1

    assert 10 <= steps <= 12
    assert [] == next_page(retained.match(b"+/b"), 10, 0.0)


def test_named_levels_count_as_visited() -> None:
    """A step would hold the loop for as many levels as a filter has, times those it was to visit."""
    scan = holding(*[b"%d/x/y" % number for number in range(100)]).match(b"+/x/y/z")  # three levels each
    steps = 0
    while not scan.done:
        assert [] == scan.next_page(10, 30, 0.0)
        steps += 1

    assert 10 <= steps <= 12


def test_ten_thousand_levels() -> None:
    """One topic of a hostile client would overflow the stack, or its filter would not end."""
    deep = b"a/" * 10_000 + b"a"
    retained = holding(deep)

    for filter in (deep, b"#", b"+/" * 10_000 + b"+", b"a/" * 9_000 + b"#"):
        assert [deep] == rest_of(retained.match(filter))
    assert retained.delete(deep)
    assert 0 == retained._topics.levels


@pytest.mark.parametrize(
    ("messages", "size"),
    [
        pytest.param(2, PLENTY, id="messages"),
        pytest.param(PLENTY, 2 * (2 + RETAINED + LEVEL), id="bytes"),
    ],
)
def test_full_refuses_and_counts(messages: int, size: int) -> None:
    """Retained messages would grow without end, or push out those of others."""
    limited = Retained(messages=messages, bytes=size)

    assert [None, None, FULL] == [limited.put(message(topic), 0.0) for topic in (b"a", b"b", b"c")]
    assert limited.put(message(b"a", b"y"), 0.0) is None
    assert [b"a", b"b"] == rest_of(limited.match(b"#"))
    assert 1 == limited.statistics().refused

    limited.delete(b"a")
    assert limited.put(message(b"c"), 0.0) is None


def test_a_replacement_that_does_not_fit_changes_nothing() -> None:
    """A limit in bytes would be passed by replacing, or a refusal would delete what it refused to replace."""
    retained = Retained(messages=1, bytes=4 + RETAINED + LEVEL)
    assert [None, None, FULL] == [retained.put(message(b"a", b"x" * size), 0.0) for size in (1, 3, 4)]

    kept = retained.get(b"a", 0.0)
    assert kept is not None and b"xxx" == kept.payload
    assert 4 == retained.statistics().bytes


def test_an_expired_message_is_not_delivered() -> None:
    """A subscriber would get a message after its expiry interval [MQTT-3.3.2-5]."""
    retained = holding(b"b")
    retained.put(message(b"a", expires=10.0), 0.0)

    assert retained.get(b"a", 9.9) is not None
    assert retained.get(b"a", 10.0) is None
    assert [b"a", b"b"] == sorted(rest_of(retained.match(b"+"), now=9.9))
    assert [b"b"] == rest_of(retained.match(b"+"), now=10.0)
    assert [] == rest_of(retained.match(b"a"), now=10.0)


def test_expired_messages_are_dropped_some_at_a_time() -> None:
    """Expired messages would stay for ever, or go all at once and hold the loop, or take others with them."""
    retained = holding(b"forever", b"was to expire")
    for number in range(5):
        retained.put(message(b"%d" % number, expires=1.0 + number), 0.0)
    retained.put(message(b"was to expire", expires=1.0), 0.0)
    retained.put(message(b"was to expire"), 0.0)
    retained.put(message(b"1", expires=9.0), 0.0)

    assert [0, 2, 1, 0] == [retained.expire(now, 2) for now in (0.5, 4.0, 4.0, 4.0)]
    assert [b"1", b"4", b"forever", b"was to expire"] == sorted(rest_of(retained.match(b"#"), now=4.0))


def test_a_deleted_message_has_no_deadline() -> None:
    """A topic that is set with a long expiry and deleted, again and again, would leave a deadline each time."""
    retained = Retained(messages=PLENTY, bytes=PLENTY)
    retained.put(message(b"a", expires=5.0), 0.0)
    retained.delete(b"a")

    assert 0 == retained.expire(5.0, 10)


def test_a_put_takes_the_room_of_the_expired() -> None:
    """A full store would refuse although part of it is dead."""
    retained = Retained(messages=1, bytes=PLENTY)
    retained.put(message(b"a", expires=5.0), 0.0)

    assert [FULL, None] == [retained.put(message(b"b"), now) for now in (4.0, 5.0)]
    assert [b"b"] == rest_of(retained.match(b"#"), now=5.0)


def test_a_step_returns_a_bounded_number_of_messages() -> None:
    """A replay would put more than a page into the buffer of a slow reader."""
    scan = holding(b"a", b"b", b"c").match(b"+")

    assert [[b"a", b"b"], [b"c"]] == [[m.topic for m in scan.next_page(2, 1000, 0.0)] for _ in range(2)]
    assert scan.done


def test_deep_topics_count_with_their_levels() -> None:
    """A client could fill the memory with short messages under deep topics: each level costs more than it says."""
    deep = b"a/" * 99 + b"a"
    retained = Retained(messages=PLENTY, bytes=150 * LEVEL + RETAINED)

    assert [None, FULL] == [retained.put(message(topic), 0.0) for topic in (deep, b"b" + deep)]
    assert retained.put(message(deep, b"xx"), 0.0) is None
    assert retained.delete(deep)
    assert retained.put(message(b"b" + deep), 0.0) is None


def test_levels_that_topics_share_count_once() -> None:
    """A fleet under one prefix would be refused room that it does not use."""
    retained = Retained(messages=PLENTY, bytes=30 * RETAINED + 40 * LEVEL + 2000)

    assert all(retained.put(message(b"site/hall/%d" % number), 0.0) is None for number in range(30))


def test_a_scan_that_had_to_wait_delivers_nothing_that_expired_meanwhile() -> None:
    """A slow reader would get messages after their expiry interval [MQTT-3.3.2-5]."""
    retained = holding(b"b")
    retained.put(message(b"a", expires=10.0), 0.0)
    retained.put(message(b"c", expires=20.0), 0.0)
    scan = retained.match(b"+")
    assert [b"b"] == [m.topic for m in scan.next_page(1, 1000, 0.0)]

    assert [b"c"] == [m.topic for m in scan.next_page(10, 1000, 10.0)]


def owned(*, per_client: int, messages: int = PLENTY) -> Retained:
    return Retained(messages=messages, bytes=PLENTY, per_client=per_client)


def test_a_client_owns_so_many_topics_and_no_more() -> None:
    """One client could use up what all may retain; or would be held back for what others retained."""
    retained = owned(per_client=2)

    assert [None, None, PER_CLIENT] == [retained.put(message(topic), 0.0, "a") for topic in (b"1", b"2", b"3")]
    assert retained.put(message(b"1", b"new"), 0.0, "a") is None
    assert retained.put(message(b"3"), 0.0, "b") is None
    assert retained.delete(b"2")
    assert retained.put(message(b"4"), 0.0, "a") is None
    assert (3, 1) == (retained.statistics().count, retained.statistics().refused)


def test_who_sets_a_topic_last_owns_it() -> None:
    """A client would pay for ever for a topic that another one keeps, or set the topics of others beyond its limit."""
    retained = owned(per_client=1)
    retained.put(message(b"1"), 0.0, "a")

    assert retained.put(message(b"1"), 0.0, "b") is None
    assert retained.put(message(b"2"), 0.0, "a") is None
    assert PER_CLIENT == retained.put(message(b"1"), 0.0, "a")
    assert PER_CLIENT == retained.put(message(b"2"), 0.0, "b")


def test_what_expires_is_not_owned_any_more() -> None:
    """A client that lets its messages expire would have used up its topics."""
    retained = owned(per_client=1)
    retained.put(message(b"1", expires=5.0), 0.0, "a")

    assert [PER_CLIENT, None] == [retained.put(message(b"2"), now, "a") for now in (4.0, 5.0)]


def test_the_broker_itself_and_a_limit_of_zero_are_not_counted() -> None:
    """$SYS would stop at some topic."""
    retained, any_number = owned(per_client=1), Retained(messages=PLENTY, bytes=PLENTY)

    assert [None] * 3 == [retained.put(message(b"$SYS/%d" % number), 0.0) for number in range(3)]
    assert [None] * 3 == [any_number.put(message(b"%d" % number), 0.0, "a") for number in range(3)]
    assert {} == any_number._owners


def test_the_limit_of_all_holds_for_each() -> None:
    """A client that may have more than all together would have it."""
    retained = owned(per_client=5, messages=1)

    assert [None, FULL] == [retained.put(message(topic), 0.0, "a") for topic in (b"1", b"2")]


@given(st.lists(st.tuples(st.sampled_from(["put", "delete"]), st.sampled_from("abc"), topics), max_size=60))
def test_owners_are_those_who_set_last(steps: list[tuple[str, str, bytes]]) -> None:
    """A count would drift, and a client be refused, or not, for what happened long ago."""
    retained = owned(per_client=4)
    owner: dict[bytes, str] = {}
    for action, client, topic in steps:
        held = sum(1 for name in owner.values() if name == client)
        if action == "delete":
            assert (owner.pop(topic, None) is not None) == retained.delete(topic)
        elif held < 4 or owner.get(topic) == client:
            assert retained.put(message(topic), 0.0, client) is None
            owner[topic] = client
        else:
            assert PER_CLIENT == retained.put(message(topic), 0.0, client)

    counts = {client: sum(1 for name in owner.values() if name == client) for client in owner.values()}
    assert counts == {client: each.topics for client, each in retained._owners.items()}
