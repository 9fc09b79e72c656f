# Fetch sessions and pages of Kafka: requests, answers and bytes, without a server.
from struct import pack_into
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import FetchSessionIdNotFoundError, InvalidFetchSessionEpochError, UnsupportedCodecError
from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.record.util import calc_crc32c

from broker.carrier.kafka_session import Entry, FetchSession, page_of
from broker.store.logs.topics import Partition

ONE, TWO = Partition("one"), Partition("two", 3)
ID_ONE, ID_TWO, ID_NEW = UUID(int=1), UUID(int=2), UUID(int=3)
CRC_AT: Final = 17  # of a batch of records: four bytes
ATTRIBUTES_AT: Final = 21  # of a batch of records: two bytes; the lowest three bits say how it is compressed
UNKNOWN_CODEC: Final = 7


def entry(topic: UUID, offset: int) -> Entry:
    return Entry(topic, offset, leader_epoch=5, last_epoch=-1)


def sent(request: Any) -> tuple[int, int, list[tuple[UUID, int, int]], list[tuple[UUID, list[int]]]]:
    """Session and epoch, what is to be fetched, and what is not any more."""
    return (
        request.session_id,
        request.session_epoch,
        [(topic.topic_id, one.partition, one.fetch_offset) for topic in request.topics for one in topic.partitions],
        [(topic.topic_id, topic.partitions) for topic in request.forgotten_topics_data],
    )


def answer(session: int, *parts: tuple[UUID, int], error: int = 0) -> Any:
    topics = [SimpleNamespace(topic_id=id_, partitions=[SimpleNamespace(partition_index=n)]) for id_, n in parts]
    return SimpleNamespace(error_code=error, session_id=session, responses=topics)


def opened() -> FetchSession:
    """A session whose partitions the broker knows."""
    session = FetchSession(wait=100)
    session.put(ONE, entry(ID_ONE, 10))
    session.put(TWO, entry(ID_TWO, 20))
    session.request()
    assert [] == [*session.answered(answer(77))]
    return session


def test_a_request_names_what_has_changed() -> None:
    """A thousand partitions that wait would be written, read and looked up with each fetch."""
    session = FetchSession(wait=100)
    session.put(ONE, entry(ID_ONE, 10))
    session.put(TWO, entry(ID_TWO, 20))
    first = sent(session.request())
    found = [*session.answered(answer(77, (ID_TWO, 3)))]
    session.put(TWO, entry(ID_TWO, 21))
    second = sent(session.request())
    [*session.answered(answer(77))]
    third = sent(session.request())

    assert (0, 0, [(ID_ONE, 0, 10), (ID_TWO, 3, 20)]) == (*first[:2], sorted(first[2]))
    assert [(TWO, entry(ID_TWO, 20))] == [(partition, asked) for partition, asked, _ in found]
    assert (77, 1, [(ID_TWO, 3, 21)], []) == second
    assert (77, 2, [], []) == third


def test_a_partition_that_is_dropped_is_forgotten_by_the_broker() -> None:
    """The broker would send the records of readings that are paused, again and again."""
    session = opened()
    session.drop(ONE)
    session.drop(ONE)
    session.put(TWO, entry(ID_TWO, 20))  # as before
    request = sent(session.request())

    assert (77, 1, [], [(ID_ONE, [0])]) == request
    assert [] == [*session.answered(answer(77, (ID_ONE, 0)))]  # it was on its way


def test_a_topic_that_was_made_anew_is_another_one() -> None:
    """The offset of the former topic would be read from the new one, and what is before it never."""
    session = opened()
    session.put(ONE, entry(ID_NEW, 0))
    request = sent(session.request())
    found = [*session.answered(answer(77, (ID_NEW, 0)))]

    assert (77, 1, [(ID_NEW, 0, 0)], [(ID_ONE, [0])]) == request
    assert [(ONE, entry(ID_NEW, 0))] == [(partition, asked) for partition, asked, _ in found]


@pytest.mark.parametrize(
    ("error", "session_id"), [(FetchSessionIdNotFoundError.errno, 0), (InvalidFetchSessionEpochError.errno, 77)]
)
def test_a_session_that_the_broker_does_not_know_is_opened_anew(error: int, session_id: int) -> None:
    """After a restart of the broker nothing would be read any more."""
    session = opened()
    session.request()
    [*session.answered(answer(0, error=error))]
    request = sent(session.request())

    assert (session_id, 0, [(ID_ONE, 0, 10), (ID_TWO, 3, 20)]) == (*request[:2], sorted(request[2]))


def test_a_request_that_may_not_have_arrived_is_followed_by_another_session() -> None:
    """The broker would fetch other partitions than those that are thought to be fetched."""
    session = opened()
    session.drop(ONE)
    session.request()
    session.reset()
    request = sent(session.request())

    assert (77, 0, [(ID_TWO, 3, 20)], []) == request


def test_a_broker_without_room_for_sessions_is_told_everything_each_time() -> None:
    """With more consumers than sessions nothing would be read."""
    session = FetchSession(wait=100)
    session.put(ONE, entry(ID_ONE, 10))
    requests = []
    for _ in range(2):
        requests.append(sent(session.request()))
        [*session.answered(answer(0))]

    assert [(0, 0, [(ID_ONE, 0, 10)], [])] * 2 == requests


@given(st.lists(st.tuples(st.sampled_from("pdra"), st.integers(0, 4), st.integers(1, 3), st.integers(0, 2))))
def test_the_broker_fetches_what_is_wanted(steps: list[tuple[str, int, int, int]]) -> None:
    """After some order of changes and errors a partition would be silent for ever."""
    session = FetchSession(wait=100)
    wanted: dict[Partition, Entry] = {}
    broker: dict[tuple[UUID, int], int] = {}
    epoch = 0
    for step, number, topic, offset in [*steps, ("a", 0, 1, 0)]:
        partition = Partition("t", number)
        if step == "p":
            wanted[partition] = entry(UUID(int=topic), offset)
            session.put(partition, wanted[partition])
        elif step == "d":
            wanted.pop(partition, None)
            session.drop(partition)
        else:
            session_id, epoch, fetched, forgotten = sent(session.request())
            broker = {} if epoch == 0 else broker
            for id_, numbers in forgotten:
                for one in numbers:
                    del broker[id_, one]
            broker |= {(id_, one): at for id_, one, at in fetched}
            if step == "r":
                session.reset()
            else:
                assert [] == [*session.answered(answer(session_id or 9))]

    assert {(one.topic, partition.number): one.offset for partition, one in wanted.items()} == broker


def batch(offset: int, *values: bytes, codec: int = 0) -> bytes:
    builder = MemoryRecordsBuilder(2, codec, 1 << 20, offset=offset)
    for value in values:
        builder.append(timestamp=None, key=None, value=value)
    builder.close()
    return bytes(builder.buffer())


def test_a_page_has_the_records_from_its_offset_on() -> None:
    """A reader would be given what it has, or not what is behind a batch that was cut."""
    data = batch(7, b"a", b"b", b"c") + batch(12, b"d") + batch(13, b"cut")[:-1]
    page = page_of(data, 8)

    assert [(8, b"b"), (9, b"c"), (12, b"d")] == page.records
    assert (8, 13) == (page.first, page.next)


def test_compressed_records_are_read() -> None:
    """A topic whose administrator has chosen compression would stop its clients."""
    assert [(0, b"a"), (1, b"b")] == page_of(batch(0, b"a", b"b", codec=1), 0).records  # gzip


def test_a_compression_that_cannot_be_read_is_an_error() -> None:
    """Records that are whole would be skipped as damaged ones."""
    unreadable = with_codec(batch(1, b"b"), UNKNOWN_CODEC)

    assert [(0, b"a")] == page_of(batch(0, b"a") + unreadable, 0).records  # it is an error with the next page
    with pytest.raises(UnsupportedCodecError):
        page_of(unreadable, 1)


@given(st.data())
def test_a_batch_that_is_damaged_is_a_record(data: st.DataObject) -> None:
    """One damaged sector would stop all clients of a carrier, or hide what is behind it."""
    whole = bytearray(batch(1, b"b"))
    whole[data.draw(st.integers(CRC_AT, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    page = page_of(batch(0, b"a") + whole + batch(2, b"c"), 0)

    assert [(0, b"a"), (1, whole), (2, b"c")] == page.records
    assert 3 == page.next


@given(st.binary(max_size=100), st.integers(0, 9))
def test_bytes_that_are_no_batch_end_nothing(data: bytes, offset: int) -> None:
    """A broker that answers nonsense would end the thread that reads."""
    try:
        page = page_of(data, offset)
    except (ValueError, UnsupportedCodecError):
        return
    assert page.next >= offset


def with_codec(data: bytes, codec: int) -> bytes:
    changed = bytearray(data)
    pack_into(">h", changed, ATTRIBUTES_AT, codec)
    pack_into(">I", changed, CRC_AT, calc_crc32c(memoryview(changed)[ATTRIBUTES_AT:]))
    return bytes(changed)
