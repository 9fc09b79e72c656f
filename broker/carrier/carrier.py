# The carrier: makes its parts and hands them to each other. The process around it is in __main__.py.
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.carrier.log import Log
from broker.carrier.redis_log import COMMAND_BYTES, RedisLog
from broker.carrier.turns import Turns
from broker.carrier.worker_lanes import WorkerLanes
from broker.config.applications import GROUPS
from broker.config.schema import Config, Kafka, Metrics
from broker.control.carrier_frames import CarrierAssignment
from broker.control.machine import resident_bytes
from broker.delivery.outbox import ANY, OutboundBudget
from broker.log import Log as Lines
from broker.net.collector import Collector
from broker.net.dialling import Dialler
from broker.net.log_lane import StreamLane
from broker.net.loop import Loop
from broker.net.reactor import Reactor
from broker.store.durable.application_logs import log_settings
from broker.store.durable.log_topics import topic_of
from broker.store.logs.topics import LogError, TopicProperties
from broker.store.redis.address import RedisAddress
from broker.store.redis.pipeline import CommandPipeline
from broker.worker_id import WorkerId

if TYPE_CHECKING:
    from broker.carrier.kafka_groups import KafkaGroups
    from broker.carrier.kafka_log import KafkaLog
    from broker.carrier.kafka_metrics import MetricsTopic
    from broker.carrier.kafka_mirror import KafkaMirror

NO_STALLS: Final = 3600.0  # seconds; there are no clients
TRIED: Final = topic_of(b"weir")  # as that of any client
NO_CLIENT: Final = "kafka.hosts is set, but the client of Kafka is not installed: pip install 'weirmq[kafka]'."


class CarrierUnusable(Exception):
    """The text is one sentence for the user."""


class Carrier:
    def __init__(
        self,
        config: Config,
        assignment: CarrierAssignment,
        lines: Lines,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """CarrierUnusable."""
        self.clock: Final = clock
        self.reactor = Reactor(clock, input_budget=ANY)
        self.kafka = config.kafka.hosts
        self._lines = lines
        name = f"weir-{assignment.node}-carrier"
        self._connections = [] if self.kafka else [self._connection(assignment.redis, name) for _ in range(2)]
        self.log: Log
        self._try_out: Callable[[Callable[[LogError | None], None]], None]
        self._metrics: MetricsTopic | None = None
        self._mirror: KafkaMirror | None = None
        self._groups: KafkaGroups | None = None
        if self.kafka:
            self.log = log = _kafka_log(config.kafka, name, clock, self.reactor.call)
            self._try_out = log.reach
            if config.metrics.enabled:
                self._metrics = log.metrics_topic(metrics_properties(config.metrics), lines)
            if config.application.clients:
                if config.application.shared == GROUPS:
                    self._groups = log.groups(lines)
                self._mirror = log.mirror(lines)
        else:
            commands, waits = self._connections
            self.log = RedisLog(commands, waits, config.redis.prefix, f"{assignment.incarnation:016x}", clock)
        if config.application.clients or not self.kafka:  # else it has metrics records only
            properties = log_settings(config.application).properties
            self._try_out = partial(self.log.try_out, TRIED, properties)
        self.turns = Turns(self.log, self._connections, lines, self.reactor.soon)
        self.collector = Collector()
        self.loop = Loop(self.reactor, self.turns, self.collector, OutboundBudget(ANY), stall_timeout=NO_STALLS)

    def start(self, tried: Callable[[str], None]) -> None:
        """Start; *tried* is told one sentence on why the log cannot be used, or "": it can."""
        self._try_log(tried)  # first: each attempt to connect to a Kafka that is away takes five seconds
        for connection in self._connections:
            connection.start(self.clock())
        self.log.start()
        if self._metrics is not None:
            self._metrics.start()

    def stop(self) -> None:
        self.log.stop()
        self.loop.shut_down()

    def _try_log(self, then: Callable[[str], None]) -> None:
        def tried(error: LogError | None) -> None:
            if error is None:
                then("")
            elif self.kafka:
                then(kafka_unusable(self.kafka, error))
            else:
                then(f"Redis cannot be used for logs: {error}.")

        self._try_out(tried)

    def join(self, worker: WorkerId, data: socket.socket, control: socket.socket) -> None:
        """*worker* is at the other ends of *data* and *control*, which do not block."""
        log, full = self.log, self.turns.full
        metrics, offsets, groups = self._metrics, self._mirror, self._groups
        lanes = WorkerLanes(str(worker), log, full, self._lines, metrics=metrics, offsets=offsets, groups=groups)
        name = f"worker {worker.shard}"
        data_lane, control_lane = (StreamLane(self.reactor, sock, name, lanes) for sock in (data, control))
        lanes.connect(data_lane, control_lane)
        self.turns.join(lanes)
        self.reactor.wake()

    def move_redis(self, address: RedisAddress) -> None:
        for connection in self._connections:
            connection.move(address, self.clock())

    def report(self) -> dict[str, Any]:
        """For `weir status` and /metrics."""
        statistics, workers = self.log.statistics(), self.turns.workers
        metrics, mirror = self._metrics, self._mirror
        trouble = None if metrics is None else metrics.trouble
        return {
            "workers": len(workers),
            "readings": sum(worker.readings() for worker in workers),
            "waiting_packs": statistics.waiting,
            "waiting_bytes": statistics.waiting_bytes,
            "stored_packs": statistics.stored,
            "stored_records": statistics.stored_records,
            "resent_records": statistics.resent,
            "read_records": statistics.read,
            "repeated_packs": statistics.repeated,
            "damaged_records": statistics.damaged,
            "failing_partitions": len(statistics.failing),
            "failing": self.turns.failing(),
            "unusable": statistics.unusable,
            "metrics_written": 0 if metrics is None else metrics.written,
            "metrics_dropped": 0 if metrics is None else metrics.dropped,
            "metrics_trouble": "" if trouble is None else str(trouble),
            "committed_offsets": 0 if mirror is None else mirror.committed,
            "failed_offsets": 0 if mirror is None else mirror.failed,
            "offsets_trouble": "" if mirror is None or mirror.trouble is None else str(mirror.trouble),
            "resident_bytes": resident_bytes(),
        }

    def _connection(self, redis: RedisAddress, name: str) -> CommandPipeline:
        dialler = Dialler(self.reactor, self._failed)
        return CommandPipeline(dialler, redis, name, self._lines, most_bytes=COMMAND_BYTES)

    def _failed(self, error: Exception) -> None:
        self._lines.warning("internal_error", exc_info=error)


def metrics_properties(metrics: Metrics) -> TopicProperties:
    return TopicProperties(retention=int(metrics.retention), retention_bytes=metrics.retention_bytes)


def _kafka_log(
    kafka: Kafka, name: str, clock: Callable[[], float], deliver: Callable[[Callable[[], None]], None]
) -> "KafkaLog":
    """CarrierUnusable."""
    options = kafka_options(kafka, name)
    from broker.carrier.kafka_log import KafkaLog

    return KafkaLog(options, clock, deliver)


def kafka_unusable(hosts: Sequence[str], error: LogError) -> str:
    return f"Kafka at {', '.join(hosts)} cannot be used: {error}."


def kafka_options(kafka: Kafka, name: str) -> dict[str, Any]:
    """Those of all clients of kafka-python, which is installed. CarrierUnusable."""
    if find_spec("kafka") is None:
        raise CarrierUnusable(NO_CLIENT)
    options: dict[str, Any] = {"bootstrap_servers": [*kafka.hosts], "client_id": name, **dict(kafka.options)}
    if kafka.password_file:
        try:
            options["sasl_plain_password"] = Path(kafka.password_file).read_text().strip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise CarrierUnusable(f"Cannot read kafka.password_file = {kafka.password_file}: {why}.") from None
    return options
