# Overload protection without a broker: its parts as composition joins them, and clients that say what became of them.
from collections.abc import MutableMapping
from typing import Any

from broker.config.schema import Overload, Quotas
from broker.metrics.counters import Counters
from broker.metrics.heavy_hitters import HeavyHitters
from broker.metrics.pause_statistics import PauseStatistics
from broker.overload.admit import Publish, Verdict
from broker.overload.client import ProtectedClient
from broker.overload.connects import Connects
from broker.overload.gate import Gate
from broker.overload.monitor import OverloadMonitor
from broker.overload.protection import Protection
from broker.overload.quotas.quotas import Quotas as AllQuotas
from broker.overload.trace.recorder import TraceRecorder
from broker.worker_id import WorkerId

HERE = WorkerId("weir", 0, 1)


class Lines:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[MutableMapping[str, Any]] = []

    def info(self, event: str, **facts: object) -> None:
        self.lines.append({"event": event, **facts})

    warning = error = info

    def events(self) -> list[Any]:
        return [line["event"] for line in self.lines]


class Client(ProtectedClient):
    """A client that records whether it is read."""

    def __init__(self, protected: "Protected", name: str, version: int) -> None:
        super().__init__(name, None, version, protected.protection.accounts.arrive(name, protected.now))
        self.reading = True
        self.resumed = 0
        self.decisions: list[tuple[int, str]] = []

    def pause(self) -> None:
        self.reading = False

    def resume(self) -> None:
        self.reading = True
        self.resumed += 1

    def writable(self, now: float) -> None:
        raise NotImplementedError

    def note(self, kind: int, reason: str, now: float) -> bool:
        news = not self.decisions or self.decisions[-1] != (kind, reason)
        self.decisions.append((kind, reason))
        return news


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
            memory=lambda: 0.0,
            tell=lambda report, now: self.told.append(report),
            now=self.now,
        )

    def _take_lag(self) -> float:
        return self.lag

    def client(self, name: str, version: int = 4) -> Client:
        client = Client(self, name, version)
        self.protection.arrive(client, self.now)
        return client

    def gate(self, resource: str = "store") -> Gate:
        return self.throttle.add_gate(resource, self.now)

    def publish(self, client: Client, *gates: Gate, qos: int = 1, size: int = 100, cost: int = 10) -> Verdict:
        publish = Publish(client.version, qos, size, cost, 0)
        return self.protection.judge(client, list(gates), publish, None, self.now)

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass, 10 ms at a time."""
        for _ in range(round(seconds * 100)):
            self.now += 0.01
            self.monitor.tick(self.now)
            self.throttle.tick(self.now)
