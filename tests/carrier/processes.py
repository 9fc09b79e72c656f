# A carrier and workers as real processes, for which a test is what the supervisor is: it joins, stops and kills them.
import mmap
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar

from broker.config.applications import Application, ApplicationRule
from broker.config.schema import Config, Kafka
from broker.config.sources import described
from broker.control import heartbeat
from broker.control.carrier_frames import (
    FROM_CARRIER,
    CarrierAssignment,
    CarrierReady,
    FromCarrier,
    NewWorker,
    ToCarrier,
)
from broker.control.frame_codec import Frame, FrameDecoder, FrameReader, encode
from broker.control.frames import CannotStart, StatisticsReport
from broker.store.redis.address import RedisAddress
from broker.worker_id import WorkerId
from supervisor.lanes import lane_pairs
from supervisor.process import interpreter_flags
from tests.carrier.log_worker import (
    FROM_WORKER,
    Begin,
    Connect,
    Count,
    Counted,
    Create,
    FromWorker,
    Got,
    Made,
    Read,
    Refused,
    Stored,
    ToWorker,
    Trouble,
    Write,
    Written,
)

PATIENCE: Final = 60.0  # seconds for what takes milliseconds, or some seconds after a fault
To = TypeVar("To", bound=Frame)
From = TypeVar("From", bound=Frame)


class Running(Generic[To, From]):
    """A process at the other end of a socket."""

    def __init__(
        self, module: str, decoder: FrameDecoder[From], arguments: Iterable[str], inherits: Iterable[int]
    ) -> None:
        self.socket, theirs = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        command = [sys.executable, *interpreter_flags(), "-m", module, str(theirs.fileno()), *arguments]
        inherited = (theirs.fileno(), *inherits)
        self.process = subprocess.Popen(command, stderr=self._output, pass_fds=inherited)
        theirs.close()
        self.socket.setblocking(False)
        self.ended = False
        self._reader: FrameReader[From] = FrameReader(decoder)

    def send(self, frame: To, *sockets: socket.socket) -> None:
        self.socket.setblocking(True)
        data = encode(frame)
        try:
            sent = socket.send_fds(self.socket, [data], [one.fileno() for one in sockets]) if sockets else 0
            self.socket.sendall(data[sent:])
        except OSError:  # it has ended
            pass
        self.socket.setblocking(False)
        for one in sockets:
            one.close()

    def receive(self) -> list[From]:
        """What has come."""
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.ended = not data
        return self._reader.feed(data)

    def output(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self.socket.close()
        self._output.close()


class RunningCarrier(Running[ToCarrier, FromCarrier]):
    def __init__(self, redis: RedisAddress, kafka: Kafka | None = None, required: bool = True) -> None:
        self.ready = False
        self.sentence = ""
        self.report: dict[str, Any] = {}
        memory = os.memfd_create("heartbeat")
        os.ftruncate(memory, heartbeat.SLOT)
        self.page = mmap.mmap(memory, 0)
        self.lines = tempfile.TemporaryFile()  # noqa: SIM115
        inherits = (memory, self.lines.fileno())
        super().__init__("broker.carrier", FROM_CARRIER, [str(os.getpid())], inherits)
        config = Config(application=Application(clients=(ApplicationRule(client="app-*"),)), kafka=kafka or Kafka())
        assignment = CarrierAssignment(
            node="test",
            incarnation=secrets.randbits(63),
            config=described(config),
            heartbeat=memory,
            log=self.lines.fileno(),
            log_path="",
            redis=redis,
            required=required,
        )
        self.send(assignment)
        os.close(memory)

    def take(self) -> None:
        for frame in self.receive():
            match frame:
                case CarrierReady():
                    self.ready = True
                case CannotStart():
                    self.sentence = frame.sentence
                case StatisticsReport():
                    self.report = frame.report

    def log(self) -> str:
        self.lines.seek(0)
        return self.lines.read().decode()

    def close(self) -> None:
        super().close()
        self.page.close()
        self.lines.close()


class RunningWorker(Running[ToWorker, FromWorker]):
    """A worker (log_worker.py), and what it has told."""

    def __init__(self) -> None:
        self.incarnation = secrets.randbits(63)
        super().__init__("tests.carrier.log_worker", FROM_WORKER, [], [])
        self.send(Begin(self.incarnation))
        self.made: dict[str, str] = {}
        self.stored: list[int] = []
        self.refused: list[tuple[int, str]] = []
        self.written: list[list[int]] = []
        self.got: dict[int, list[str]] = {}  # by partition
        self.positions: dict[int, str] = {}
        self.troubles: list[str] = []
        self.counted: list[Counted] = []

    def write(
        self, topic: str, count: int, partitions: int = 1, first: int = 0, window: int = 50, size: int = 0, **more: Any
    ) -> None:
        options = {"rate": 0, "quiet": False, **more}
        self.send(Write(topic, partitions, first, count, window, size, **options))

    def read(self, topic: str, partition: int = 0, position: str = "", quiet: bool = False) -> None:
        self.send(Read(topic, partition, position, quiet))

    def take(self) -> None:
        for frame in self.receive():
            match frame:
                case Made():
                    self.made[frame.topic] = frame.error
                case Stored():
                    self.stored.append(frame.number)
                case Refused():
                    self.refused.append((frame.number, frame.why))
                case Written():
                    self.written.append(frame.delays)
                case Got():
                    self.got.setdefault(frame.partition, []).extend(frame.bodies)
                    self.positions[frame.partition] = frame.position
                case Trouble():
                    self.troubles.append(frame.what)
                case Counted():
                    self.counted.append(frame)


class Stage:
    """A carrier, and workers that are joined to it."""

    def __init__(self, redis: RedisAddress, kafka: Kafka | None = None) -> None:
        self.workers: list[RunningWorker] = []
        self._redis = redis
        self._kafka = kafka
        self._all: list[RunningCarrier | RunningWorker] = []
        self.carrier = self.start_carrier()

    def start_carrier(self) -> RunningCarrier:
        """Another carrier, in place of the former one, which has ended."""
        self.carrier = RunningCarrier(self._redis, self._kafka)
        self._all.append(self.carrier)
        for worker in self.workers:
            self._join(worker)
        return self.carrier

    def start_worker(self) -> RunningWorker:
        worker = RunningWorker()
        self._all.append(worker)
        self.workers.append(worker)
        self._join(worker)
        return worker

    def _join(self, worker: RunningWorker) -> None:
        data, control = lane_pairs()
        self.carrier.send(NewWorker(WorkerId("test", 0, worker.incarnation)), data[0], control[0])
        worker.send(Connect(), data[1], control[1])

    def until(self, done: Callable[[], object], what: str = "it") -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, f"{what} does not come:\n{self.output()}"
            open_ones = [one for one in self._all if not one.ended]
            readable, _, _ = select.select([one.socket for one in open_ones], [], [], 0.1)
            for one in open_ones:
                if one.socket in readable:
                    one.take()

    def create(self, worker: RunningWorker, topic: str, partitions: int = 1) -> None:
        worker.send(Create(topic, partitions))
        self.until(lambda: topic in worker.made, f"topic {topic}")
        assert "" == worker.made[topic]

    def count(self, worker: RunningWorker) -> Counted:
        before = len(worker.counted)
        worker.send(Count())
        self.until(lambda: len(worker.counted) > before)
        return worker.counted[-1]

    def output(self) -> str:
        told = [one.output() for one in self._all]
        return "\n".join([*told, *(one.log() for one in self._all if isinstance(one, RunningCarrier))])

    def close(self) -> None:
        for one in self._all:
            one.go_on()
            one.close()


def numbers(bodies: list[str]) -> dict[str, list[int]]:
    """The numbers in *bodies*, by their writer, in order."""
    found: dict[str, list[int]] = {}
    for body in bodies:
        name, number, _ = body.split(" ", 2)
        found.setdefault(name, []).append(int(number))
    return found


def named(worker: RunningWorker) -> str:
    return f"{worker.incarnation:016x}"
