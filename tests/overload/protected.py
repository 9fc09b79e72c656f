# Overload protection without a broker: its parts as composition joins them, and connections that no socket serves.
import socket
from collections.abc import MutableMapping
from functools import cache
from typing import Any

from broker.config.schema import Overload, Quotas
from broker.delivery.outbox import OutboundBudget, Outbox
from broker.delivery.ring import Ring
from broker.metrics.counters import Counters
from broker.metrics.heavy_hitters import HeavyHitters
from broker.metrics.pause_statistics import PauseStatistics
from broker.net.reactor import Reactor
from broker.overload.admit import Publish, Verdict
from broker.overload.client import ProtectedClient
from broker.overload.connects import Connects
from broker.overload.gate import Gate
from broker.overload.monitor import OverloadMonitor
from broker.overload.protection import Protection
from broker.overload.quotas.quotas import Quotas as AllQuotas
from broker.overload.trace.recorder import TraceRecorder
from broker.protocol.connection import Connection
from broker.protocol.connection_protection import ProtectedConnection
from broker.session.limits import SessionLimits
from broker.session.queue import MessageBudget
from broker.session.session import Session
from broker.worker_id import WorkerId

HERE = WorkerId("weir", 0, 1)
LIMITS = SessionLimits(inflight=10, pending=10, queue=10, queue_bytes=1000, budget=MessageBudget(1000))


class Lines:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[MutableMapping[str, Any]] = []

    def info(self, event: str, **facts: object) -> None:
        self.lines.append({"event": event, **facts})

    warning = error = info

    def events(self) -> list[Any]:
        return [line["event"] for line in self.lines]


@cache
def reactor() -> Reactor:
    """One for all tests, as no socket is served: only connections are paused and resumed."""
    return Reactor(lambda: 0.0, input_budget=1 << 20)


class Protected:
    """The overload protection of one worker, whose time passes when a test says so."""

    def __init__(
        self,
        settings: Overload | None = None,
        quotas: Quotas | None = None,
        recorder: TraceRecorder | None = None,
    ) -> None:
        settings = settings or Overload()
        self.now = 100.0
        self.lag = 0.0
        self.told: list[bytes] = []
        self.looks: list[float] = []  # times for which a look was asked
        self.connections: dict[ProtectedClient, Connection] = {}
        self.log, self.client_log = Lines(), Lines()
        self.pauses = PauseStatistics(Counters(), HeavyHitters())
        self.protection = Protection(
            settings,
            AllQuotas(quotas or Quotas(), 1 << 20, None, self.now),
            self.pauses,
            self.client_log,
            recorder,
            self.looks.append,
            worker=HERE,
            now=self.now,
        )
        self.throttle = self.protection.throttle
        self.monitor = OverloadMonitor(
            settings,
            self.protection,
            Connects(0.0, 1.0, 10),
            self.log,
            lag=self._take_lag,
            outbound=lambda: 0.0,
            redis=lambda: 0.0,
            memory=lambda: 0.0,
            tell=lambda report, now: self.told.append(report),
            now=self.now,
        )

    def _take_lag(self) -> float:
        return self.lag

    def client(self, name: str, version: int = 4) -> ProtectedConnection:
        sock = socket.socket()
        sock.close()
        connection = Connection(sock, "test:0", Outbox(0, 1000, 500, OutboundBudget(1 << 20), Ring()), self.now)
        connection.version = version
        session = Session(name, LIMITS, Counters())
        account = self.protection.accounts.arrive(name, self.now)
        client = ProtectedConnection(connection, session, account, reactor(), self.protection.honour)
        self.connections[client] = connection
        self.protection.arrive(client, self.now)
        return client

    def reading(self, client: ProtectedClient) -> bool:
        return not self.connections[client].paused

    def outbox(self, client: ProtectedClient) -> Outbox:
        return self.connections[client].outbox

    def gate(self, resource: str = "store") -> Gate:
        return self.throttle.add_gate(resource, self.now)

    def publish(self, client: ProtectedClient, *gates: Gate, qos: int = 1, size: int = 100, cost: int = 10) -> Verdict:
        publish = Publish(client.version, qos, size, cost, 0)
        return self.protection.judge(client, list(gates), publish, None, self.now)

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass, 10 ms at a time."""
        for _ in range(round(seconds * 100)):
            self.now += 0.01
            self.monitor.tick(self.now)
            self.throttle.tick(self.now)
