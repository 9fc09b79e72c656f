# The monitor of overload: each 100 ms it measures the worker's signals and moves the worker's level.
#
# The worker reports its level to the other workers. In force is the highest level that any worker reports.
import math
from collections.abc import Callable
from typing import Final

from broker.config.schema import Overload
from broker.log import Log
from broker.metrics.overload_figures import OverloadFigures
from broker.overload.connects import Connects
from broker.overload.level import STEP, Level, WorkerLevel
from broker.overload.protection import Protection

PROTECTION_OFF: Final = "credits throttle no client; gates, which bound memory, and quotas still do"
LOGGED_CHANGE: Final = 1  # levels: a smaller change is not logged, unless the level returns to 0


class Injected:
    """The value of a signal that a test has set."""

    def __init__(self, value: float, until: float) -> None:
        self.value = value
        self.until = until


class OverloadMonitor:
    def __init__(
        self,
        settings: Overload,
        protection: Protection,
        connects: Connects,
        log: Log,
        *,
        lag: Callable[[], float],
        outbound: Callable[[], float],
        memory: Callable[[], float],
        redis: Callable[[], float],
        tell: Callable[[bytes, float], None],
        now: float,
    ) -> None:
        """*lag*: seconds that a ready client has waited at most since the last call. *outbound* and *memory*: the used
        share of the outbound budget and of the memory limit. *redis*: that of the memory of Redis, 0.0 if it is not
        known or of no interest. *tell*: sends a report to all workers.
        """
        self.level = WorkerLevel(settings, protection.signals)
        self._local = Level(settings)  # by the signals of this worker alone, which are all that a CONNECT needs
        self._settings = settings
        self._protection = protection
        self._connects = connects
        self._log = log
        self._lag = lag
        self._outbound = outbound
        self._memory = memory
        self._redis = redis
        self._tell = tell
        self._injected: dict[str, Injected] = {}
        self._step = now
        self._logged = 0  # the level that was logged last
        if not settings.enabled:
            log.warning("overload_protection_off", means=PROTECTION_OFF)

    def tick(self, now: float) -> float:
        """Measure if a step is due; return the time of the next step."""
        if now >= self._step:
            self._step = max(self._step + STEP, now + STEP / 2)
            self._measure(now)
        return self._step

    def _measure(self, now: float) -> None:
        protection = self._protection
        signals, recorder, reports = protection.signals, protection.recorder, protection.reports
        signals.lag.measure(self._lag(), now)
        signals.outbound.measure(self._outbound(), now)
        signals.memory.measure(self._memory(), now)
        signals.redis.measure(self._redis(), now)
        signals.connect.measure(self._connects.oldest(now), now)
        signals.topology.measure(protection.topology.recent(now), now)
        protection.throttle.measure_gates(now)
        self._inject(now)
        signals.look(now)
        self.level.step()
        if recorder is not None:
            recorder.measured(signals, protection.resources, now)
        self._local.step(signals.worst_here)
        if self._settings.enabled:
            if reports.due(self.level, signals, now):
                self._tell(reports.own(self.level, signals, now).encode(), now)
            reports.refresh(self.level, signals, now)
            if reports.level != protection.ledger.level:
                if recorder is not None:
                    recorder.level(reports.level, now)
                protection.ledger.change(reports.level, now)
            self._connects.allow(self._local.value, now)
            self._log_level()
        protection.judge_if_needed()

    def _log_level(self) -> None:
        reports = self._protection.reports
        shown = math.ceil(reports.level)
        if abs(shown - self._logged) > LOGGED_CHANGE or (shown == 0 and self._logged > 0):
            # `reached`, not `level`: log lines have a level of their own. `cause_worker`: not the worker that logs.
            self._log.info(
                "overload_level_changed",
                reached=shown,
                before=self._logged,
                cause=reports.cause,
                cause_node=reports.cause_worker.node,
                cause_worker=reports.cause_worker.shard,
                value=round(reports.value, 2),
            )
            self._logged = shown

    # For tests.

    def inject(self, name: str, value: float, until: float) -> None:
        """Have the signal *name* measure *value*, in its unit, until the time *until*. ValueError."""
        signals = self._protection.signals.values()
        if name not in signals:
            raise ValueError(f"There is no signal {name!r}: there are {', '.join(signals)}.")
        self._injected[name] = Injected(value, until)

    def _inject(self, now: float) -> None:
        signals = self._protection.signals
        for name, injected in list(self._injected.items()):
            if now >= injected.until:
                del self._injected[name]
            elif name in signals.values():
                signals.named(name).measure(injected.value, now)

    def injected(self, now: float) -> dict[str, float]:
        """The signals that a test has set, each with the seconds that are left of it."""
        return {name: one.until - now for name, one in self._injected.items() if now < one.until}

    # For people.

    def figures(self, now: float) -> OverloadFigures:
        """One reading, for the metrics record, Prometheus and $SYS."""
        protection = self._protection
        _, using, average, _ = protection.accounts.statistics(now)
        return OverloadFigures(
            level=self.level.shown,
            cluster_level=math.ceil(protection.reports.level),
            credits_per_tick=int(protection.ledger.refill),
            using_credits=using,
            average_credits=average,
            throttled=protection.throttle.waiting(),
            cause=self.level.cause,
            signals=protection.signals.telling(),
        )
