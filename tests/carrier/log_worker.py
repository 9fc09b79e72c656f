# A worker as a process whose link to the carrier a test uses: `python -m tests.carrier.log_worker DESCRIPTOR`.
#
# It is a whole worker without clients. In the place of sessions it has writers, which keep a number of packs under way,
# and readers. DESCRIPTOR is a socket to the test, over which frames come and go.
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, get_args

from broker.config.applications import Application, ApplicationRule
from broker.config.schema import Config
from broker.control.frame_codec import Frame, FrameDecoder
from broker.control.link import Link
from broker.control.supervised import first_frame
from broker.store.logs.link import CarrierLink, LogReading
from broker.store.logs.records import Position, Record
from broker.store.logs.topics import LogError, TopicProperties
from broker.worker import Worker
from broker.worker_id import WorkerId

FILLING: Final = b"."


# From the test.


@dataclass(frozen=True)
class Begin(Frame):
    incarnation: int


@dataclass(frozen=True)
class Connect(Frame):
    """The descriptors of the data lane and of the control lane to a carrier come with this frame."""


@dataclass(frozen=True)
class Create(Frame):
    topic: str
    partitions: int


@dataclass(frozen=True)
class Write(Frame):
    """Append the numbers from *first* on, *count* of them, to the partitions in turn, with *window* under way.

    Each is a pack of *size* bytes at least. *rate*: packs a second; 0: as many as it goes.
    """

    topic: str
    partitions: int
    first: int
    count: int
    window: int
    size: int
    rate: int
    quiet: bool  # tell only the end


@dataclass(frozen=True)
class Read(Frame):
    topic: str
    partition: int
    position: str  # hexadecimal; "": the beginning
    quiet: bool  # tell only how many have come, when `Count` asks


@dataclass(frozen=True)
class Count(Frame):
    """Ask for `Counted`."""


# To the test.


@dataclass(frozen=True)
class Made(Frame):
    topic: str
    error: str


@dataclass(frozen=True)
class Stored(Frame):
    number: int


@dataclass(frozen=True)
class Refused(Frame):
    number: int
    why: str


@dataclass(frozen=True)
class Written(Frame):
    """All numbers of a Write are stored."""

    delays: list[int]  # microseconds from each append to its confirmation, sorted


@dataclass(frozen=True)
class Got(Frame):
    """A record, and where reading goes on behind it."""

    partition: int
    bodies: list[str]
    position: str


@dataclass(frozen=True)
class Trouble(Frame):
    what: str


@dataclass(frozen=True)
class Counted(Frame):
    packs: int  # that readers have got
    delays: list[int]  # microseconds from append to reading, of those that this process wrote
    carriers: int  # that have been connected
    unstored: int  # bytes
    held: int  # bytes


ToWorker = Begin | Connect | Create | Write | Read | Count
FromWorker = Made | Stored | Refused | Written | Got | Trouble | Counted
TO_WORKER: Final[FrameDecoder[ToWorker]] = FrameDecoder(get_args(ToWorker))
FROM_WORKER: Final[FrameDecoder[FromWorker]] = FrameDecoder(get_args(FromWorker))


class Appended:
    """An `Appender`."""

    def __init__(self, writer: "Writer", number: int) -> None:
        self._writer = writer
        self._number = number
        self._at = time.monotonic()

    def stored(self, offset: int, now: float) -> None:
        self._writer.stored(self._number, time.monotonic() - self._at)

    def refused(self, error: LogError, now: float) -> None:
        self._writer.tell(Refused(self._number, str(error)))

    def late(self, now: float) -> None:
        pass


class Writer:
    def __init__(self, link: CarrierLink, incarnation: int, task: Write, tell: Callable[[Frame], None]) -> None:
        self.tell = tell
        self._link = link
        self._task = task
        self._begin = time.monotonic()
        self._name = b"%016x" % incarnation
        self._next = 0
        self._stored = 0
        self._delays: list[int] = []

    def write(self, now: float) -> float:
        """Append what may be; return when there is more."""
        task = self._task
        while self._next < task.count and self._next - self._stored < task.window:
            if task.rate and self._begin + self._next / task.rate > time.monotonic():
                return self._begin + self._next / task.rate
            number = task.first + self._next
            self._next += 1
            at = time.monotonic_ns() // 1000
            body = (b"%b %d %d " % (self._name, number, at)).ljust(task.size, FILLING)
            self._link.append(task.topic, number % task.partitions, body, Appended(self, number), now)
        return float("inf")

    def stored(self, number: int, delay: float) -> None:
        self._stored += 1
        self._delays.append(int(1e6 * delay))
        if not self._task.quiet:
            self.tell(Stored(number))
        if self._stored == self._task.count:
            self.tell(Written(sorted(self._delays)))


class Reader:
    """A `LogReader`, which takes each record at once."""

    def __init__(self, task: Read, name: bytes, tell: Callable[[Frame], None]) -> None:
        self.reading: LogReading | None = None
        self.packs = 0
        self.delays: list[int] = []
        self._task = task
        self._name = name
        self._tell = tell

    def received(self, record: Record, now: float) -> None:
        reading = self.reading
        assert reading is not None
        self.packs += len(record.packs)
        if self._task.quiet:
            at = time.monotonic_ns() // 1000
            for pack in record.packs:
                name, _, appended, _ = pack.body.split(b" ", 3)
                if name == self._name:
                    self.delays.append(at - int(appended))
        else:
            bodies = [pack.body.decode() for pack in record.packs]
            self._tell(Got(self._task.partition, bodies, reading.position.encode().hex()))
        reading.taken(record)

    def jumped(self, expected: int, offset: int, now: float) -> None:
        self._tell(Trouble(f"jumped from {expected} to {offset}"))

    def damaged(self, offset: int, record: bytes, why: str, now: float) -> None:
        self._tell(Trouble(f"{offset} is damaged: {why}"))

    def failed(self, error: LogError | None, now: float) -> None:
        if error is not None:
            self._tell(Trouble(str(error)))


class LogWorker:
    def __init__(self, sock: socket.socket, begin: Begin) -> None:
        identity = WorkerId("test", 0, begin.incarnation)
        self.worker = Worker(
            Config(application=Application(clients=(ApplicationRule(client="app-*"),))), 10, identity=identity
        )
        link = self.worker.links.carrier
        assert link is not None
        self._carrier = link
        self._incarnation = begin.incarnation
        self._writers: list[Writer] = []
        self._readers: list[Reader] = []
        sock.setblocking(False)
        self._link: Link[ToWorker] = Link(self.worker.reactor, sock, TO_WORKER, self._take, self._ended)

    def serve(self) -> None:
        loop = self.worker.loop
        poll = select.poll()
        poll.register(loop.fileno(), select.POLLIN)
        while True:
            wait = loop.turn()
            now = time.monotonic()
            due = now + wait
            for writer in self._writers:
                due = min(due, writer.write(now))
            if self._writers and loop.turn() == 0.0:
                continue
            poll.poll(1000 * max(0.0, due - time.monotonic()))

    def _take(self, frame: ToWorker) -> None:
        match frame:
            case Connect():
                data, control = (socket.socket(fileno=one) for one in self._link.take_descriptors(2))
                for lane in (data, control):
                    lane.setblocking(False)
                self.worker.links.connect_carrier(data, control)
            case Create():
                properties = TopicProperties(partitions=frame.partitions)
                self._carrier.create(frame.topic, properties, partial(self._made, frame.topic))
            case Write():
                self._writers.append(Writer(self._carrier, self._incarnation, frame, self._link.send))
            case Read():
                position = Position.decode(bytes.fromhex(frame.position)) if frame.position else Position()
                reader = Reader(frame, b"%016x" % self._incarnation, self._link.send)
                reader.reading = self._carrier.read(frame.topic, frame.partition, position, reader)
                self._readers.append(reader)
            case Count():
                statistics = self._carrier.statistics()
                delays = sorted(delay for reader in self._readers for delay in reader.delays)
                packs = sum(reader.packs for reader in self._readers)
                held, unstored = statistics.held_bytes, statistics.unstored_bytes
                self._link.send(Counted(packs, delays, self._carrier.carriers, unstored, held))
            case Begin():
                self._ended("a second Begin")

    def _made(self, topic: str, error: LogError | None) -> None:
        self._link.send(Made(topic, "" if error is None else str(error)))

    def _ended(self, why: str) -> None:
        os._exit(0)


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    begin = first_frame(sock, TO_WORKER)
    assert isinstance(begin, Begin)
    LogWorker(sock, begin).serve()


if __name__ == "__main__":
    main()
