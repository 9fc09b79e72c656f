# The frames between a worker and the carrier: what is written is read, and what is no frame is an error.
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.reasons import LogFailure
from broker.store.logs import frames
from broker.store.logs.frames import HEAD, Body, LaneError, LogStatus
from broker.store.logs.records import LOG_BYTES, Pack, Record
from broker.store.logs.topics import LogError, TopicDescription, TopicProperties

NUMBERS = st.integers(min_value=0, max_value=2**64 - 1)
SIGNED = st.integers(min_value=-(2**63), max_value=2**63 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
PACKS = st.lists(st.builds(Pack, NUMBERS, NUMBERS, st.binary(max_size=40)), max_size=5)
LOGS = st.one_of(st.just(b""), st.binary(min_size=LOG_BYTES, max_size=LOG_BYTES).filter(any))
ERRORS = st.builds(LogError, st.sampled_from(LogFailure), TEXTS)
PROPERTIES = st.builds(
    TopicProperties,
    partitions=st.integers(min_value=0, max_value=5),
    retention=SIGNED,
    retention_bytes=SIGNED,
    replication=SIGNED,
)


@st.composite
def descriptions(draw: st.DrawFn) -> TopicDescription:
    properties = draw(PROPERTIES)
    count = properties.partitions
    each = st.lists(NUMBERS, min_size=count, max_size=count)
    return TopicDescription(properties=properties, log=draw(LOGS), first=draw(each), next=draw(each))


def body(frame: bytes, kind: int) -> tuple[bytes, int, int]:
    """Where the body of *frame* is, behind other bytes and before others, as in the input of a stream."""
    assert kind == frame[HEAD - 1]
    assert len(frame) == frames.frame_length(frame, 0)
    return b"before" + frame + b"behind", len(b"before") + HEAD, len(b"before") + len(frame)


def told(error: LogError | None) -> tuple[LogFailure, str] | None:
    return None if error is None else (error.failure, error.detail)


@given(NUMBERS, TEXTS, NUMBERS, st.binary(max_size=60))
def test_a_pack_comes_as_it_was_appended(sequence: int, topic: str, partition: int, pack: bytes) -> None:
    """A message would change on its way, or go to another topic."""
    found = Body(*body(frames.append_head(sequence, topic, partition, len(pack)) + pack, frames.APPEND))

    assert (sequence, partition, topic, pack) == (found.number(), found.number(), found.text(), found.rest())


@given(NUMBERS, NUMBERS, PACKS, LOGS)
def test_a_record_comes_as_it_was_read(reading: int, offset: int, packs: list[Pack], log: bytes) -> None:
    """A message would change, or what a reader holds be counted differently at both ends."""
    record = Record(offset, packs, log)
    frame = frames.record(reading, record)

    assert (reading, record) == frames.read_record(*body(frame, frames.RECORD))
    assert frames.size_of(record) == 32 + sum(20 + len(pack.body) for pack in packs)


@given(NUMBERS, TEXTS, NUMBERS, NUMBERS, st.binary(max_size=60))
def test_a_reading_goes_on_where_it_was(reading: int, topic: str, number: int, held: int, position: bytes) -> None:
    """A reader would miss records, or get some twice."""
    found = Body(*body(frames.read(reading, topic, number, held, position), frames.READ))

    assert (reading, number, held) == (found.number(), found.number(), found.number())
    assert (topic, position) == (found.text(), found.rest())


@given(NUMBERS, NUMBERS)
def test_small_frames_come_as_they_were_sent(one: int, two: int) -> None:
    """A window would open too far, or another reading end."""
    for frame, kind, numbers in (
        (frames.hello(one), frames.HELLO, [frames.VERSION, one]),
        (frames.taken(one, two), frames.TAKEN, [one, two]),
        (frames.stop(two), frames.STOP, [two]),
        (frames.jumped(one, two, one), frames.JUMPED, [one, two, one]),
    ):
        found = Body(*body(frame, kind))
        assert numbers == [found.number() for _ in numbers]
        assert 0 == found.left()


@given(TEXTS, TEXTS, NUMBERS, NUMBERS)
def test_how_far_a_group_is_comes(group: str, topic: str, partition: int, offset: int) -> None:
    """Another group would seem to be that far."""
    found = Body(*body(frames.done(group, topic, partition, offset), frames.DONE))

    assert (partition, offset) == (found.number(), found.number())
    assert (topic, group, 0) == (found.text(), found.text(), found.left())


@given(TEXTS, TEXTS, NUMBERS, NUMBERS, st.lists(NUMBERS, max_size=9))
def test_members_of_groups_come(group: str, topic: str, member: int, partitions: int, assigned: list[int]) -> None:
    """A member would join another group, or read what it was not given."""
    found = Body(*body(frames.join(member, group, topic, partitions), frames.JOIN))
    assert (member, partitions) == (found.number(), found.number())
    assert (topic, group, 0) == (found.text(), found.text(), found.left())
    found = Body(*body(frames.leave(member), frames.LEAVE))
    assert (member, 0) == (found.number(), found.left())

    assert (member, assigned, topic) == frames.read_assigned(
        *body(frames.assigned(member, assigned, topic), frames.ASSIGNED)
    )


@given(NUMBERS, TEXTS, PROPERTIES)
def test_what_is_asked_about_a_topic_comes(request: int, topic: str, properties: TopicProperties) -> None:
    """A topic would be made with other properties, or another one be deleted."""
    created = Body(*body(frames.create(request, topic, properties), frames.CREATE))
    assert (request, topic, properties) == (created.number(), created.text(), created.properties())

    for log in (b"", bytes(range(LOG_BYTES))):
        asked = Body(*body(frames.delete(request, topic, log), frames.DELETE))
        assert (request, topic, log, 0) == (asked.number(), asked.text(), asked.log(), asked.left())
    asked = Body(*body(frames.describe(request, topic), frames.DESCRIBE))
    assert (request, topic, 0) == (asked.number(), asked.text(), asked.left())


@given(NUMBERS, st.none() | ERRORS, st.none() | descriptions())
def test_an_answer_comes(request: int, error: LogError | None, description: TopicDescription | None) -> None:
    """A failure would be told as another one, or a topic seem to be missing."""
    found = frames.read_answer(*body(frames.answer(request, error, description), frames.ANSWER))

    assert (request, told(error), description) == (found[0], told(found[1]), found[2])


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5), NUMBERS, ERRORS)
def test_what_became_of_packs_comes(packs: list[tuple[int, int]], sequence: int, error: LogError) -> None:
    """A publisher would be answered for another publish."""
    assert packs == frames.read_stored(*body(frames.stored(packs), frames.STORED))
    refused = Body(*body(frames.refused(sequence, error), frames.REFUSED))

    assert (sequence, told(error), 0) == (refused.number(), told(refused.error()), refused.left())


@given(NUMBERS, NUMBERS, TEXTS, st.binary(max_size=60), ERRORS)
def test_what_went_wrong_with_a_reading_comes(
    reading: int, offset: int, why: str, record: bytes, error: LogError
) -> None:
    """Nobody would know which record is damaged, or why nothing comes."""
    damaged = Body(*body(frames.damaged(reading, offset, why, record), frames.DAMAGED))
    assert (reading, offset, why, record) == (damaged.number(), damaged.number(), damaged.text(), damaged.rest())
    failed = Body(*body(frames.failed(reading, error), frames.FAILED))

    assert (reading, told(error)) == (failed.number(), told(failed.error()))


@given(NUMBERS, NUMBERS, NUMBERS, st.lists(st.tuples(TEXTS, NUMBERS, TEXTS), max_size=4), TEXTS)
def test_the_status_comes(
    waiting: int, size: int, failing: int, named: list[tuple[str, int, str]], unusable: str
) -> None:
    """`weir why` would name another partition."""
    alone = [(topic, number) for topic, number, _ in named[1:]]
    found = frames.read_status(*body(LogStatus(waiting, size, failing, named, unusable, alone).encode(), frames.STATUS))

    assert (waiting, size, failing, named) == (found.waiting, found.waiting_bytes, found.failing, found.named)
    assert {(topic, number) for topic, number, _ in named[1:]} == found.alone
    assert unusable == found.unusable


def test_what_is_long_is_cut() -> None:
    """A text of a server, or a record of somebody else, would be more than a frame can hold, and end the carrier."""
    error = LogError(LogFailure.REFUSED, "ä" * 100_000)
    refused = Body(*body(frames.refused(1, error), frames.REFUSED))
    assert 1 == refused.number()
    failure = refused.error()
    assert failure is not None
    assert "ä" * 32_767 == failure.detail
    damaged = Body(*body(frames.damaged(1, 2, "why", bytes(1_000_000)), frames.DAMAGED))

    assert (1, 2, "why") == (damaged.number(), damaged.number(), damaged.text())
    assert frames.SHOWN == damaged.left()


READERS: list[Callable[[bytes, int, int], Any]] = [
    frames.read_stored,
    frames.read_answer,
    frames.read_record,
    frames.read_status,
    lambda data, start, stop: Body(data, start, stop).text(),
    lambda data, start, stop: Body(data, start, stop).number(),
    lambda data, start, stop: Body(data, start, stop).error(),
    lambda data, start, stop: Body(data, start, stop).properties(),
]


@pytest.mark.parametrize("read", READERS)
@given(st.binary(max_size=80))
def test_what_is_no_frame_is_an_error(read: Callable[[bytes, int, int], Any], garbage: bytes) -> None:
    """A mistake would be taken for a frame, read beyond its end, or end in an exception that nobody expects."""
    data = garbage + b"\xff" * 20
    try:
        read(data, 0, len(garbage))
    except LaneError:
        pass


@given(PACKS.filter(bool), st.data())
def test_a_record_that_was_cut_is_an_error(packs: list[Pack], data: st.DataObject) -> None:
    """What follows in the input of the stream would be taken for a part of a message."""
    content, start, stop = body(frames.record(1, Record(2, packs)), frames.RECORD)
    ends = {start + 32}
    for pack in packs:
        ends.add(max(ends) + 24 + len(pack.body))
    cut = data.draw(st.integers(min_value=start, max_value=stop - 1).filter(lambda at: at not in ends))

    with pytest.raises(LaneError):
        frames.read_record(content, start, cut)


@pytest.mark.parametrize("length", [0, frames.LARGEST + 1, 0xFFFF_FFFF])
def test_no_frame_has_an_impossible_length(length: int) -> None:
    """Memory for gigabytes would be asked for, or the lane wait for ever."""
    with pytest.raises(LaneError):
        frames.frame_length(length.to_bytes(4, "big") + b"\x01", 0)


@given(st.none() | st.sampled_from(LogFailure))
def test_what_became_of_a_metrics_record_is_told(failure: LogFailure | None) -> None:
    """It would be counted as what it is not."""
    assert failure == Body(*body(frames.recorded(failure), frames.RECORDED)).failure()
