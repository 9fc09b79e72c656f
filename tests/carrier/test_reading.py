# One reader of a partition: what it is given of the records that a log finds.
from collections.abc import Sequence

from broker.carrier.log import LogStatistics, Partition, Reading
from broker.carrier.records import Pack, Position, Record, encode
from tests.carrier.logs import Pages


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


def test_what_comes_while_it_is_paused_is_given_at_resume() -> None:
    """What was on its way when a client became slow would be lost, or be given to it all the same."""
    pages = Pages()
    one = reading(pages)
    one.pause()
    one.take(records(0, 2))
    one.take(records(2, 2))
    held, wanted = offsets(pages), one.wanted
    one.resume()

    assert ([], 4) == (held, wanted)
    assert [0, 1, 2, 3] == offsets(pages)


def test_a_reader_that_pauses_in_the_middle_is_given_the_rest_later() -> None:
    """A client with one free place would be given a page behind a gap or a damaged record."""
    pages = Pausing()
    one = reading(pages)
    told = []
    found = [*records(0, 1), (1, b"damaged"), *records(5, 2)]  # 2 to 4 are deleted
    one.take(found)
    for _ in range(4):
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


def test_a_reading_that_was_stopped_holds_nothing() -> None:
    """Pages of clients that have left would stay in memory."""
    pages = Pages()
    one = reading(pages)
    one.pause()
    one.take(records(0, 1))
    one.stop()
    one.take(records(1, 1))
    one.resume()

    assert ([], []) == (offsets(pages), one._held)
