# The carrier of a node, the process that works with logs (broker/carrier), as a child of the supervisor.
#
# Its first start is part of the start of the node: if the log cannot be used, the node ends with one sentence, unless
# `application.required` is false. Afterwards workers keep what is not stored, and publishers wait; so a carrier that
# dies or hangs is started again without limit, with growing pauses, as the embedded Redis is.
#
# A carrier and a worker get a pair of lanes as soon as the loops of both run, whichever of them is new.
import mmap
import os
import secrets
from collections.abc import Callable, Iterable
from typing import Any, Final

from broker.config.schema import Config
from broker.config.sources import described
from broker.control import heartbeat
from broker.control.carrier_frames import (
    FROM_CARRIER,
    CarrierAssignment,
    CarrierReady,
    FromCarrier,
    NewWorker,
    Stop,
    ToCarrier,
)
from broker.control.frames import CannotStart, LoopStarted, NewCarrier, RedisMoved, ReopenLog, StatisticsReport
from broker.log import Log
from supervisor.child import Child
from supervisor.folder import NodeFolder
from supervisor.lanes import lane_pairs
from supervisor.linked_process import LinkedProcess
from supervisor.logfile import LogFile
from supervisor.node_redis import NodeRedis
from supervisor.process import DEAD, process_times
from supervisor.restarts import RestartPolicy
from supervisor.worker_process import WorkerProcess

STOP_TIMEOUT: Final = 3.0  # seconds after which a carrier that was asked to stop is killed
KAFKA: Final = "kafka"
REDIS: Final = "redis"


class CarrierProcess(LinkedProcess[ToCarrier, FromCarrier]):
    def __init__(
        self,
        page: mmap.mmap,
        ready: Callable[[], None],
        loop_started: Callable[["CarrierProcess"], None],
        reported: Callable[["CarrierProcess"], None],
    ) -> None:
        """*page*: the shared memory of its heartbeat. *reported* is called after each report."""
        self.incarnation = secrets.randbits(63)
        super().__init__("carrier", "broker.carrier", FROM_CARRIER, page, 0, self.incarnation, ready, STOP_TIMEOUT)
        self.report: dict[str, Any] = {}
        self._loop_started = loop_started
        self._reported = reported

    def request_stop(self) -> None:
        self.send(Stop())

    def receive(self, frame: FromCarrier) -> None:
        match frame:
            case LoopStarted():
                self.loop_started = True
                self._loop_started(self)
            case CarrierReady():
                self.became_ready()
            case StatisticsReport():
                self.report = frame.report
                self._reported(self)
            case CannotStart():
                self.sentence = frame.sentence


class Carrier(Child[CarrierProcess]):
    def __init__(
        self,
        config: Config,
        folder: NodeFolder,
        log_file: LogFile,
        redis: NodeRedis,
        workers: Callable[[], Iterable[WorkerProcess]],
        log: Log,
    ) -> None:
        """*workers* returns those that run."""
        super().__init__(RestartPolicy())
        self._config = config
        self._folder = folder
        self._log_file = log_file
        self._redis = redis
        self._workers = workers
        self._log = log
        self._memory = os.memfd_create("weir-carrier-heartbeat", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, heartbeat.SLOT)
        self._page = mmap.mmap(self._memory, 0)

    def connect(self, worker: WorkerProcess) -> None:
        """Make the lanes between the carrier and *worker*, if the loops of both run."""
        process = self.process
        if process is None or process.state == DEAD or not process.loop_started or not worker.loop_started:
            return
        data, control = lane_pairs()
        process.send(NewWorker(worker.identity), [data[0], control[0]])
        worker.send(NewCarrier(), [data[1], control[1]])

    def send(self, frame: RedisMoved | ReopenLog) -> None:
        if self.process is not None and self.process.state != DEAD:
            self.process.send(frame)

    def describe(self) -> dict[str, Any]:
        """For `weir status`."""
        kafka, process = self._config.kafka, self.process
        told = {"log": KAFKA if kafka.hosts else REDIS, "hosts": [*kafka.hosts], "deaths": self.deaths}
        if process is None:
            return {**told, "state": DEAD, "pid": 0, "uptime": 0.0, "cpu_seconds": 0.0, "report": {}}
        return {
            **told,
            "state": process.state,
            "pid": process.pid,
            "uptime": process.served() or 0.0,
            "cpu_seconds": process_times(process.pid),
            "report": process.report,
        }

    # A Child.

    def make(self) -> CarrierProcess:
        return CarrierProcess(self._page, self._became_ready, self._connect_all, self._reported)

    def start(self, process: CarrierProcess) -> None:
        assert self._folder.alive is not None
        assignment = CarrierAssignment(
            node=self._config.node.name,
            incarnation=process.incarnation,
            config=described(self._config),
            heartbeat=self._memory,
            log=self._log_file.descriptor,
            log_path=self._log_file.path,
            redis=self._redis.address,
            required=self._config.application.required and self.is_first_start(),
        )
        process.start(assignment, [self._memory, self._log_file.descriptor, self._folder.alive])

    def died(self, process: CarrierProcess) -> None:
        if not self.is_first_start():  # otherwise the end of the node says so
            facts = {"pid": process.pid, "how": process.how()}
            if process.killed_because:
                facts["killed_because"] = process.killed_because
            if process.sentence or process.last_output:
                facts["last_output"] = process.sentence or process.last_output
            self._log.error("carrier_died", **facts)

    def stopped(self, process: CarrierProcess) -> None:
        self._log.info("carrier_stopped", pid=process.pid)

    def restarting(self, pause: float) -> None:
        self._log.info("carrier_restarting", pause_s=pause)

    def failure(self, process: CarrierProcess, why: str) -> str:
        last = process.killed_because or process.last_output.rpartition("\n")[2] or process.how()
        return process.sentence or f"The carrier cannot start: {last}."

    def _became_ready(self) -> None:
        assert self.process is not None
        self.ready.set()
        self._log.info("carrier_ready", pid=self.process.pid)

    def _connect_all(self, process: CarrierProcess) -> None:
        for worker in self._workers():
            self.connect(worker)

    def _reported(self, process: CarrierProcess) -> None:
        output = process.error_output()
        if output:
            self._log.warning("carrier_stderr", text=output)
