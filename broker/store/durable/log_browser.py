# Looks into the logs of APPLICATION sessions for an operator: how far one goes, how long its oldest message waits that
# was not passed on, and at which record a time begins.
#
# Each look is a reading of its own, which takes one record and ends: that of the session is not touched, and its client
# waits for nothing. A record says when its packs were offered (log_pack.py). These times rise, but for what the clocks
# of workers differ, so the first record of a time on is found by halves: twenty looks for a million records.
from collections.abc import Callable
from typing import Final

from broker.store.durable.log_pack import offered_at
from broker.store.durable.pack import DamagedPack
from broker.store.logs.port import LogLink, LogReader, LogReading
from broker.store.logs.records import Position, Record
from broker.store.logs.topics import LogError

UNDATED: Final = 0  # the time of a record that says none

Found = Callable[[int, int], None]  # the offset of a record, and when it was offered (Unix time in seconds), or UNDATED


class LogLook(LogReader):
    """Tells *found* of the first record of a partition from *offset* on; it waits for one, and may be ended before."""

    def __init__(self, link: LogLink, topic: str, offset: int, found: Found, partition: int = 0) -> None:
        self._found = found
        self._reading: LogReading | None = link.read(topic, partition, Position(offset), self)

    def end(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.stop()

    def received(self, record: Record, now: float) -> None:
        time = UNDATED
        if record.packs:
            try:
                time = offered_at(record.packs[0].body)
            except DamagedPack:
                pass
        self._end_with(record.offset, time)

    def jumped(self, expected: int, offset: int, now: float) -> None:
        pass  # the record at *offset* follows

    def damaged(self, offset: int, record: bytes, why: str, now: float) -> None:
        self._end_with(offset, UNDATED)

    def failed(self, error: LogError | None, now: float) -> None:
        pass  # it is tried again, until whoever asked waits no longer

    def _end_with(self, offset: int, time: int) -> None:
        if self._reading is not None:
            self.end()
            self._found(offset, time)


class LogSearch:
    """Finds the first record of a partition from *first* on, before *following*, that was offered at *time* or later.

    *then* is called with its offset; with *following*, if there is none.
    """

    def __init__(
        self,
        link: LogLink,
        topic: str,
        first: int,
        following: int,
        time: float,
        then: Callable[[int], None],
        partition: int = 0,
    ) -> None:
        self._link = link
        self._topic = topic
        self._from = first
        self._to = following  # the record there, or what is behind the last one, is late enough
        self._time = time
        self._then = then
        self._partition = partition
        self._look: LogLook | None = None

    def go_on(self) -> None:
        """Look at the next record, or tell what was found."""
        if self._from >= self._to:
            self._look = None
            self._then(self._to)
        else:
            middle = (self._from + self._to) // 2
            self._look = LogLook(self._link, self._topic, middle, self._looked, self._partition)

    def end(self) -> None:
        if self._look is not None:
            self._look.end()

    def _looked(self, offset: int, time: int) -> None:
        if time >= self._time:
            self._to = (self._from + self._to) // 2
        else:
            self._from = offset + 1
        self.go_on()
