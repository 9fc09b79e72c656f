# The lanes of one worker, at the carrier.
#
# What the carrier holds for a worker is bounded. Packs that wait for the log count in the limit of the log
# (appends.py): beyond it the data lane of the worker is read no further until half of that is stored, and the rest
# stays with the worker. Workers go on in the order in which they had to wait, and no other worker appends meanwhile: a
# large pack would never find enough room beside many small ones. The control lane is always read, so what ends a wait
# never waits itself.
#
# Records that a worker has, and that its readers have not taken, are bounded for each reading and for all of a worker.
# A reading that has reached its share is paused, until its reader has taken half of that. The share is at most WINDOW,
# and a quarter of what is free of the sum: readers that take nothing leave the others room. (As between queues that
# share memory: Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998.) A
# reading of which the worker has nothing gets what comes next in any case.
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Final

from broker.carrier.appends import MOST_BYTES
from broker.carrier.log import GroupOffsets, Groups, Log, LogStatistics, Member, Reading, RecordTopic
from broker.config.budget import HELD_BYTES
from broker.log import Log as Lines
from broker.reasons import LogFailure
from broker.store.logs import frames
from broker.store.logs.frames import LARGEST, VERSION, Body, LaneError
from broker.store.logs.lane import Lane
from broker.store.logs.records import OVERHEAD, Pack, Position, Record
from broker.store.logs.topics import LogError, Partition, TopicDescription

WINDOW: Final = 1024 * 1024  # bytes of one reading: 50 ms of 150 000 messages a second
MOST: Final = HELD_BYTES  # of all readings of a worker, beside one reply of the log for each
SHARE: Final = 2  # of what is free, a reading may have this power of a half
RESUMED: Final = 100  # paused readings that are looked at in a turn, once others have left them more
ENOUGH: Final = MOST_BYTES // 2  # bytes that wait for the log, from which on data lanes are read again
TOO_LARGE: Final = "larger than a worker takes"


class RemoteReader:
    """A `Reader` whose records go to a worker."""

    def __init__(self, number: int, held: int, lanes: "WorkerLanes") -> None:
        self.number: Final = number
        self.held = held  # bytes that the worker has
        self.reading: Reading | None = None
        self._lanes: Final = lanes

    def received(self, records: Sequence[Record]) -> None:
        for record in records:
            size = frames.size_of(record)
            if size > LARGEST // 2 and len(record.packs) > 1:  # not from Weir, whose large packs are alone
                self.damaged(record.offset, b"", TOO_LARGE)
            else:
                self._lanes.send(self, frames.record(self.number, record), size)

    def jumped(self, expected: int, offset: int) -> None:
        self._lanes.send(self, frames.jumped(self.number, expected, offset), 0)

    def damaged(self, offset: int, record: bytes, why: str) -> None:
        frame = frames.damaged(self.number, offset, why, record)
        self._lanes.send(self, frame, len(frame) - frames.HEAD)

    def failed(self, error: LogError | None) -> None:
        self._lanes.send(self, frames.failed(self.number, error), 0)


class FullLog:
    """The workers whose next pack the log had no room for, in order."""

    def __init__(self) -> None:
        self._waiting: deque[WorkerLanes] = deque()

    def someone_waits(self) -> bool:
        return len(self._waiting) > 0

    def wait(self, worker: "WorkerLanes") -> None:
        self._waiting.append(worker)

    def go_on(self, statistics: LogStatistics) -> None:
        """Have those go on for whose next packs there is room by now."""
        waiting = self._waiting
        while waiting and (waiting[0].closed or waiting[0].fits(statistics)):
            waiting.popleft().go_on()


class WorkerLanes:
    """A `LaneUser`."""

    def __init__(
        self,
        worker: str,
        log: Log,
        full: FullLog,
        lines: Lines,
        window: int = WINDOW,
        most: int = MOST,
        metrics: RecordTopic | None = None,
        offsets: GroupOffsets | None = None,
        groups: Groups | None = None,
    ) -> None:
        """*worker*: its name. *full*: of all workers. *window*, *most*: bytes, see above.

        *metrics*: where its metrics records are published; None: it sends none.
        *offsets*: who keeps how far groups have read; None: nobody does, and it does not say so.
        *groups*: of which its clients may be members; None: of none.
        """
        self.worker: Final = worker
        self.closed = False
        self.held = 0  # bytes of records that the worker has
        self._log: Final = log
        self._full: Final = full
        self._lines: Final = lines
        self._window = window
        self._most = most
        self._metrics = metrics
        self._offsets = offsets
        self._groups = groups
        self._members: dict[int, Member] = {}  # by the numbers that the worker has given them
        self._data: Lane | None = None
        self._control: Lane | None = None
        self._source = 0  # of the packs of the worker
        self._needs = 0  # bytes of the pack for which the data lane is paused
        self._stored: list[tuple[int, int]] = []  # sequences and offsets that the worker is not told yet
        self._readers: dict[int, RemoteReader] = {}
        self._paused: dict[RemoteReader, None] = {}
        self._freed = False  # the worker has taken something since paused readings were last looked at

    def connect(self, data: Lane, control: Lane) -> None:
        """To be called once."""
        self._data, self._control = data, control

    def lost(self, lane: Lane, why: str, now: float) -> None:
        self.close()

    def close(self) -> None:
        """End the lanes; the log still gets what the worker has appended."""
        self.closed = True
        for reader in self._readers.values():
            if reader.reading is not None:
                reader.reading.stop()
        self._readers.clear()
        for member in self._members.values():
            member.leave()
        self._members.clear()
        self._paused.clear()
        for lane in (self._data, self._control):
            if lane is not None:
                lane.close()
        self._data = self._control = None

    def readings(self) -> int:
        return len(self._readers)

    def flush(self) -> None:
        """Tell the worker what was stored since the last call, and have readings go on that others have left room."""
        if self._stored:
            self._tell(frames.stored(self._stored))
            self._stored = []
        if self._freed:
            self._freed = False
            for reader in [*islice(self._paused, RESUMED)]:
                del self._paused[reader]
                self._paused[reader] = None  # the last one that is looked at again
                self._look(reader)

    def fits(self, statistics: LogStatistics) -> bool:
        """Whether the log has room for the pack that it had none for."""
        waiting = statistics.waiting_bytes
        return statistics.waiting == 0 or (waiting <= ENOUGH and waiting + self._needs <= MOST_BYTES)

    def go_on(self) -> None:
        """Take packs again."""
        if self._data is not None:
            self._data.resume()

    def tell_status(self, frame: bytes) -> None:
        self._tell(frame)

    # For readers.

    def send(self, reader: RemoteReader, frame: bytes, size: int) -> None:
        """Send *frame*, whose content the worker has until it has taken *size* bytes."""
        if self._data is not None:
            self._data.write(frame)
            reader.held += size
            self.held += size
            self._look(reader)

    def _look(self, reader: RemoteReader) -> None:
        """Pause the reading of *reader* if it has more than its share, or resume it."""
        reading = reader.reading
        if reading is None or reading.stopped:
            return
        share = min(self._window, max(0, self._most - self.held) >> SHARE)
        if reading.paused:
            if reader.held <= share >> 1:
                self._paused.pop(reader, None)
                reading.resume()
        elif reader.held > share:
            self._paused[reader] = None
            reading.pause()

    # What the worker sends.

    def take(self, lane: Lane, kind: int, data: bytes, start: int, stop: int, now: float) -> bool:
        if kind == frames.APPEND and lane is self._data:
            return self._append(lane, Body(data, start, stop))
        body = Body(data, start, stop)
        if kind == frames.HELLO:
            self._greet(lane, body)
        elif lane is not self._control:
            raise LaneError(f"a frame of kind {kind} on the data lane of worker {self.worker}")
        elif kind == frames.READ:
            self._read(body)
        elif kind == frames.TAKEN:
            self._taken(body.number(), body.number())
        elif kind == frames.STOP:
            self._stop(body.number())
        elif kind == frames.CREATE:
            request, topic, properties = body.number(), body.text(), body.properties()
            self._log.create(topic, properties, partial(self._answer, request))
        elif kind == frames.DELETE:
            request, topic, which = body.number(), body.text(), body.log()
            self._log.delete(topic, which, partial(self._answer, request))
        elif kind == frames.DESCRIBE:
            request, topic = body.number(), body.text()
            self._log.describe(topic, partial(self._described, request))
        elif kind == frames.METRICS and self._metrics is not None:
            self._metrics.append(self.worker, body.rest(), self._recorded)
        elif kind == frames.DONE and self._offsets is not None:
            number, offset, topic, group = body.number(), body.number(), body.text(), body.text()
            self._offsets.done(group, Partition(topic, number), offset)
        elif kind == frames.JOIN and self._groups is not None:
            number, partitions, topic, group = body.number(), body.number(), body.text(), body.text()
            self._members[number] = self._groups.join(group, topic, partitions, partial(self._assigned, number))
        elif kind == frames.LEAVE and self._groups is not None:
            self._leave(body.number())
        else:
            raise LaneError(f"a frame of kind {kind} on the control lane of worker {self.worker}")
        return True

    def _greet(self, lane: Lane, body: Body) -> None:
        version, source = body.number(), body.number()
        if version != VERSION:  # Weir was updated while the node ran
            why = f"its lanes have version {version}, and not {VERSION}: start the node again"
            self._lines.error("carrier_refused_worker", worker=self.worker, why=why)
            self.close()
        elif lane is self._data:
            self._source = source

    def _append(self, lane: Lane, body: Body) -> bool:
        if not self._source:
            raise LaneError(f"an APPEND before HELLO, of worker {self.worker}")
        sequence, number, topic = body.number(), body.number(), body.text()
        pack = Pack(self._source, sequence, body.rest())
        if not self._full.someone_waits():
            if self._log.append(Partition(topic, number), pack, partial(self._done, sequence)):
                return True
        self._needs = OVERHEAD + len(pack.body)
        self._full.wait(self)
        lane.pause()
        return False

    def _done(self, sequence: int, offset: int, error: LogError | None) -> None:
        if error is None:
            self._stored.append((sequence, offset))
        else:
            self._tell(frames.refused(sequence, error))

    def _read(self, body: Body) -> None:
        number, partition, held, topic = body.number(), body.number(), body.number(), body.text()
        try:
            position = Position.decode(body.rest())
        except ValueError as error:
            raise LaneError(f"{error}, of worker {self.worker}") from None
        reader = self._readers[number] = RemoteReader(number, held, self)
        self.held += held
        reader.reading = self._log.read(Partition(topic, partition), position, reader)
        self._look(reader)

    def _taken(self, number: int, size: int) -> None:
        self.held -= size
        self._freed = True
        reader = self._readers.get(number)
        if reader is not None:  # otherwise it was stopped while records were on their way
            reader.held -= size
            self._look(reader)

    def _stop(self, number: int) -> None:
        reader = self._readers.pop(number, None)
        if reader is None or reader.reading is None:
            raise LaneError(f"a STOP of no reading, of worker {self.worker}")
        self._paused.pop(reader, None)
        reader.reading.stop()

    def _leave(self, number: int) -> None:
        member = self._members.pop(number, None)
        if member is None:
            raise LaneError(f"a LEAVE of no member, of worker {self.worker}")
        member.leave()

    def _assigned(self, number: int, partitions: list[int], why: str) -> None:
        self._tell(frames.assigned(number, partitions, why))

    def _answer(self, request: int, error: LogError | None) -> None:
        self._tell(frames.answer(request, error, None))

    def _described(self, request: int, description: TopicDescription | None, error: LogError | None) -> None:
        self._tell(frames.answer(request, error, description))

    def _recorded(self, failure: LogFailure | None) -> None:
        self._tell(frames.recorded(failure))

    def _tell(self, frame: bytes) -> None:
        if self._control is not None:
            self._control.write(frame)
