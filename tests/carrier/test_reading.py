# One reader of a partition: what it is given of the records that a log finds.
from collections.abc import Sequence

from broker.carrier.log import LogStatistics, Reading
from broker.store.logs.records import Pack, Position, Record, encode
from broker.store.logs.topics import Partition
from tests.carrier.logs import Pages

FORMER, NEW = bytes(range(16)), bytes(range(1, 17))  # identities of topics


def records(first: int, count: int) -> list[tuple[int, bytes]]:
    return [(offset, encode([Pack(1, offset + 1, b"")])) for offset in range(first, first + count)]


def reading(pages: Pages, offset: int = 0) -> Reading:
    pages.reading = Reading(Partition("t"), Position(offset), pages, LogStatistics(), lambda reading: None)
    return pages.reading


def offsets(pages: Pages) -> list[int]:
    return [record.offset for record in pages.records]


class Pausing(Pages):
    """Pauses at each thing that it is told."""

    def received(self, records: Sequence[Record]) -> None:
        super().received(records)
        self.reading.pause()

    def jumped(self, expected: int, offset: int) -> None:
        super().jumped(expected, offset)
        self.reading.pause()

    def damaged(self, offset: int, record: bytes, why: str) -> None:
        super().damaged(offset, record, why)
        self.reading.pause()


def test_what_comes_while_it_is_paused_is_dropped_and_read_again() -> None:
    """A thousand slow clients would hold a page each, or what was on its way be lost, or be given all the same."""
    pages = Pages()
    one = reading(pages)
    one.pause()
    one.take(records(0, 2))
    paused = offsets(pages), one.position.offset
    one.resume()
    one.take(records(one.position.offset, 3))

    assert ([], 0) == paused
    assert [0, 1, 2] == offsets(pages)
    assert [] == pages.jumps


def test_a_reader_that_pauses_in_the_middle_is_given_the_rest_later() -> None:
    """A client with one free place would be given a page behind a gap or a damaged record."""
    pages = Pausing()
    one = reading(pages)
    told = []
    found = [*records(0, 1), (1, b"damaged"), *records(5, 2)]  # 2 to 4 are deleted
    for _ in range(4):
        one.take(found)
        told.append((offsets(pages), len(pages.broken), pages.jumps[:]))
        one.resume()

    assert [
        ([0], 0, []),
        ([0], 1, []),
        ([0], 1, [(2, 5)]),
        ([0, 5, 6], 1, [(2, 5)]),
    ] == told


def test_what_was_read_is_left_out() -> None:
    """A log that was asked again after an error would give a client everything twice."""
    pages = Pages()
    one = reading(pages, offset=1)
    one.take(records(0, 3))
    one.take(records(1, 3))

    assert [1, 2, 3] == offsets(pages)
    assert [] == pages.jumps


def test_a_reading_that_was_stopped_is_given_nothing() -> None:
    """What comes for a client that has left would be given to the one that follows."""
    pages = Pages()
    one = reading(pages)
    one.stop()
    one.take(records(1, 1))
    one.resume()
    one.take(records(1, 1))

    assert [] == offsets(pages)


def test_a_topic_that_was_made_anew_is_read_from_its_beginning() -> None:
    """A client would miss what was appended to the new one before it came back, and nobody would know."""
    pages = Pages()
    one = reading(pages)
    one.identify(FORMER)
    one.take(records(0, 3))
    saved = Position.decode(one.position.encode())
    again = Reading(Partition("t"), saved, pages, LogStatistics(), lambda reading: None)
    again.identify(FORMER)
    same = pages.jumps[:]
    again.identify(NEW)
    again.take([(0, encode([Pack(1, 3, b"")])), (1, encode([Pack(1, 4, b"new")]))])  # one was appended again

    assert [] == same
    assert [(3, 0)] == pages.jumps
    assert [1, 2, 3, 4] == [pack.sequence for pack in pages.packs]
    assert (2, NEW) == (again.position.offset, again.position.log)


def test_a_commit_knows_the_topic_that_was_read() -> None:
    """What is saved would be taken for a position in any topic of that name."""
    pages = Pages()
    one = reading(pages)
    one.identify(FORMER)
    one.take(records(0, 1))
    committed = Position()
    committed.advance(pages.records[0])

    assert FORMER == Position.decode(committed.encode()).log
