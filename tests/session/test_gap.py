# What a client lost and has not been told: how it is counted, named, kept and encoded.
import json
import tracemalloc

import pytest

from broker.mqtt.topics import check_filter, check_topic
from broker.reasons import DropReason
from broker.routing.filters import matches
from broker.session.gap import LOSSES, TOPIC_BYTES, TOPICS, Gap, OwedGap, unpack
from broker.session.gap_topic import filters_of, gap_topic
from broker.session.losses import Losses
from tests.session.receiver import Receiver, message

FULL = DropReason.QUEUE_FULL.label
EXPIRED = DropReason.EXPIRED.label
OFFLINE = DropReason.OFFLINE_QOS0.label


def test_only_losses_are_a_gap() -> None:
    """A client would be told that it was away; or of topics that it may not read."""
    losses = Losses()

    losses.add(OFFLINE, 5, b"", 0)
    assert not losses.begins(OFFLINE)
    assert losses.gap(1) is None
    losses.add(FULL, 2, b"a", 0)
    assert losses.begins(FULL)
    gap = losses.gap(1)
    assert gap is not None
    assert ({FULL: 2}, 2, [b"a"]) == (gap.counts, gap.total(), gap.topics)
    assert {OFFLINE: 5, FULL: 2} == losses.counts()


@pytest.mark.parametrize("reason", DropReason)
def test_reasons_that_concern_the_publisher_or_access_are_no_losses(reason: DropReason) -> None:
    """A new reason would be told to clients whom it does not concern; or a loss not be told, as nobody decided."""
    by_publisher = ("quota_session_m", "quota_session_b", "quota_tenant_m", "quota_tenant_b", "quota_cluster_m")
    others = ("quota_cluster_b", "quota_cluster_t", "retained_", "gate_", "not_authorized", "may_not_read")
    none = (*by_publisher, *others, "offline_", "session_ended", "no_shared_member", "backbone_")

    assert (reason.label in LOSSES) != reason.label.startswith(none)


def test_a_gap_ends_when_the_client_is_told() -> None:
    """Each notice would tell of all that was ever lost."""
    losses = Losses()
    losses.add(FULL, 2, b"a", 0)
    losses.note(1000)
    losses.close_gap()
    assert (None, 0) == (losses.gap(2000), losses.lost())
    losses.add(EXPIRED, 1, b"b", 0)
    losses.note(3000)
    losses.add(EXPIRED, 1, b"b", 0)
    gap = losses.gap(4000)

    assert gap is not None
    assert ({EXPIRED: 2}, 3000, 4000, [b"b"]) == (gap.counts, gap.first, gap.last, gap.topics)
    assert gap.last == (losses.gap(9000) or gap).last  # nothing was lost since


def test_topics_are_named_only_if_they_are_few_and_all_known() -> None:
    """A client would believe that it lost nothing of the others; or topics would fill the memory."""
    few, many, unknown, long = Losses(), Losses(), Losses(), Losses()
    for number in range(TOPICS + 1):
        few.add(FULL, 1, b"%d" % (number % TOPICS), 0)
        many.add(FULL, 1, b"%d" % number, 0)
    unknown.add(FULL, 1, b"a", 0)
    unknown.add(FULL, 1, b"", 0)
    long.add(FULL, 1, bytes(TOPIC_BYTES + 1), 0)

    assert [b"%d" % number for number in range(TOPICS)] == (few.gap(1) or Gap({}, 0, 0, None)).topics
    for each in (many, unknown, long):
        gap = each.gap(1)
        assert gap is not None
        assert gap.topics is None
    many.close_gap()
    many.add(FULL, 1, b"a", 0)
    assert [b"a"] == (many.gap(1) or Gap({}, 0, 0, None)).topics


@pytest.mark.interpreted  # a compiled session has no dict
def test_a_session_has_no_attribute_more_than_python_finds_at_once() -> None:
    """With the thirtieth, CPython gives each session a dict of its own: every delivery would cost 40 ns more."""
    assert len(vars(Receiver().session)) < 30


@pytest.mark.usefixtures("traced")
def test_what_a_client_lost_takes_a_few_hundred_bytes() -> None:
    """A million sessions that lost something would need as much memory as their subscriptions."""
    many: list[Losses] = []
    before = size_of_all()
    for _ in range(100):
        many.append(Losses())
        many[-1].add(FULL, 1, b"a", 0)
        many[-1].close_gap()

    assert (size_of_all() - before) / 100 < 800


def size_of_all() -> int:
    """Bytes that the allocator has given."""
    return tracemalloc.get_traced_memory()[0]


def test_a_full_queue_names_what_it_drops() -> None:
    """A client would learn how much it lost, and not what."""
    receiver = Receiver(expiry=60, queue=1)
    receiver.offer(*[message(b"", 1, topic=b"%d" % number) for number in range(3)])
    losses = receiver.session.losses
    assert losses is not None
    gap = losses.gap(1)

    assert gap is not None
    assert ({FULL: 2}, [b"0", b"1"]) == (gap.counts, gap.topics)


def test_what_was_lost_elsewhere_comes_first() -> None:
    """A session that moves would forget what was lost before, or count it anew each time."""
    losses = Losses()
    losses.bring(Gap({FULL: 2}, 10, 20, [b"a"]))
    losses.add(FULL, 1, b"b", 0)
    losses.add(EXPIRED, 1, b"b", 0)
    losses.note(30)
    gap = losses.gap(30)

    assert gap is not None
    assert ({FULL: 3, EXPIRED: 1}, 10, 30, [b"a", b"b"]) == (gap.counts, gap.first, gap.last, gap.topics)
    assert 4 == losses.lost()
    losses.close_gap()
    assert losses.gap(40) is None


@pytest.mark.parametrize(
    "owed",
    [
        OwedGap(False, None),
        OwedGap(True, None),
        OwedGap(False, Gap({FULL: 1 << 40}, 1_800_000_000_000, 1_800_000_000_001, None)),
        OwedGap(True, Gap({FULL: 1, EXPIRED: 2}, 0, 0, [b"a", "ä".encode()])),
    ],
)
def test_what_is_packed_can_be_read(owed: OwedGap) -> None:
    """A client would not learn after a restart what it lost before."""
    read = unpack(owed.pack())

    assert owed.asked == read.asked
    before, after = owed.gap, read.gap
    assert (before is None) == (after is None)
    if before is not None and after is not None:
        assert (before.counts, before.topics) == (after.counts, after.topics)
        assert (before.first, before.last) == (after.first, after.last)


def test_a_stored_gap_is_small() -> None:
    """A million sessions that lost something would take as much as their queues."""
    counts = dict.fromkeys(LOSSES, 1 << 40)
    largest = Gap(counts, 1 << 41, 1 << 41, [bytes(TOPIC_BYTES // TOPICS)] * TOPICS)

    assert len(OwedGap(False, Gap({FULL: 100_000}, 1 << 41, 1 << 41, None)).pack()) < 64
    assert len(OwedGap(True, largest).pack()) < 704
    assert b"" == OwedGap(False, None).pack()


@pytest.mark.parametrize("damage", [b"\0", b"\xc1", b"\x93\x02\xc2\xc0", b"\x93\x01\xc2\x94\x90\x00\x00\xc0", b"\x01"])
def test_what_is_no_gap_is_refused(damage: bytes) -> None:
    """A damaged record would end the worker, or be told to a client."""
    with pytest.raises(ValueError, match="gap"):
        unpack(damage)


@pytest.mark.parametrize(
    ("client_id", "level"),
    [("a", b"a"), ("a/b", b"a%2Fb"), ("+", b"%2B"), ("#", b"%23"), ("%2F", b"%252F"), ("ä b", "ä b".encode())],
)
def test_a_client_id_is_one_level_of_its_topic(client_id: str, level: bytes) -> None:
    """Two clients would have one topic, or one client none that can be subscribed to."""
    topic = gap_topic(client_id)
    check_topic(topic)

    assert b"$SYS/broker/clients/" + level + b"/gap" == topic


def test_all_filters_that_match_are_found() -> None:
    """A client that subscribed with a wildcard would get no notices."""
    topic = gap_topic("me/1")
    found = filters_of(topic)
    levels = [b"$SYS", b"+", b"broker", b"clients", b"me%2F1", b"gap", b"other", b"#"]
    wanted = set()
    filters = [[level] for level in levels]
    while filters:
        filter = b"/".join(each := filters.pop())
        if each[-1] != b"#" and len(each) < 6:
            filters += [[*each, level] for level in levels]
        if matches(filter, topic):
            wanted.add(filter)

    assert len(found) == len(set(found))
    assert wanted == set(found)
    for filter in found:
        check_filter(filter)


def test_a_notice_is_json() -> None:
    """Nobody could read it."""
    gap = Gap({FULL: 3, EXPIRED: 1}, 5, 7, [b'a"b', "ä".encode()])
    facts = {"count": 4, "reasons": {FULL: 3, EXPIRED: 1}, "first": 5, "last": 7}

    assert facts == json.loads(gap.json(False))
    assert {**facts, "topics": ['a"b', "ä"]} == json.loads(gap.json(True))
