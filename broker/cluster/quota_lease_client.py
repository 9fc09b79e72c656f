# Quotas that workers share: the calls of quota_lease.lua.
#
# Each second a worker sends Redis a beat, and Redis answers how many workers there are: while Redis is away each worker
# goes on with its part of every rate. A beat or a lease that fails means that Redis is away, the next answer that it is
# back. overload/quotas/lease.py decides what to ask for, and what follows from an answer.
from importlib.resources import files
from typing import Final

from broker.overload.quotas.lease import Ask, Leases
from broker.reasons import StoreFailure
from broker.store.redis.keys import Keys
from broker.store.redis.pipeline import Command, CommandPipeline
from broker.store.redis.script import Script
from broker.worker_id import WorkerId

TIMEOUT: Final = 0.3  # seconds; an answer takes well below a millisecond, and clients wait for it
BEAT: Final = 1.0  # seconds
REMEMBERED: Final = 3  # seconds for which Redis counts a worker after its last beat: one beat may be late or lost


class QuotaLeaseStatistics:
    def __init__(self) -> None:
        self.asked = 0
        self.short = 0  # answers that granted less than was asked for
        self.failed = 0  # leases and beats
        self.outages = 0


class QuotaLeaseClient:
    def __init__(self, commands: CommandPipeline, keys: Keys, leases: Leases, worker: WorkerId) -> None:
        self.statistics = QuotaLeaseStatistics()
        self.script = Script(commands, files("broker.cluster").joinpath("quota_lease.lua").read_bytes())
        self._commands = commands
        self._keys = keys
        self._leases = leases
        self._incarnation = worker.incarnation_text
        self._beat = 0.0
        self._script_sent = -1  # `times_ready` when the script was sent last

    def tick(self, now: float) -> float:
        """Do what is due; return the time of the next thing that will be."""
        leases = self._leases
        leases.redis.tick(now)
        if (
            self._script_sent != self._commands.times_ready
        ):  # at once: the others go on with their shares until all are back
            self._script_sent = self._commands.times_ready
            self.script.load(now)
            self._beat = now
        if now >= self._beat:
            self._beat = now + BEAT
            command = self.script.call([self._keys.quota_workers], ["beat", self._incarnation, REMEMBERED])
            self._commands.submit(_Beat(self, command), now)
        for ask in leases.due(now):
            self.statistics.asked += 1
            self._commands.submit(_Lease(self, self.packed(ask), ask), now)
        return min(self._beat, leases.next_due(now))

    def packed(self, ask: Ask) -> bytes:
        """The command for *ask*."""
        lease = ask.lease
        workers = self._leases.redis.workers
        words: list[str | bytes | int] = ["lease", workers, ask.owed, int(ask.settles), ask.firm, ask.loose]
        for window, kept in zip(lease.rate, lease.kept, strict=True):
            words += [window.most, window.seconds, f"{kept:.17g}"]
        return self.script.call([self._keys.quota(lease.name)], words)

    def beaten(self, workers: object, now: float) -> None:
        """Redis has answered a beat with the number of workers."""
        assert isinstance(workers, int)
        self._leases.redis.heard(workers, now)

    def granted(self, ask: Ask, reply: object, now: float) -> None:
        firm, loose = _amounts(reply)
        if firm + loose < ask.firm + ask.loose:
            self.statistics.short += 1
        ask.lease.answered(ask, firm, loose, now)

    def granted_late(self, ask: Ask, reply: object) -> None:
        firm, loose = _amounts(reply)
        ask.lease.came_late(ask, firm + loose)

    def failed(self, failure: StoreFailure, now: float) -> None:
        self.statistics.failed += 1
        self.script.failed(failure, now)
        if not self._leases.redis.sharing:
            self.statistics.outages += 1
        self._leases.redis.lost(now)


def _amounts(reply: object) -> tuple[int, int]:
    assert isinstance(reply, list)
    return int(reply[0]), int(reply[1])


class _Beat(Command):
    def __init__(self, leasing: QuotaLeaseClient, command: bytes) -> None:
        super().__init__(command, TIMEOUT)
        self._leasing = leasing

    def replied(self, reply: object, now: float) -> None:
        self._leasing.beaten(reply, now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._leasing.failed(failure, now)


class _Lease(Command):
    def __init__(self, leasing: QuotaLeaseClient, command: bytes, ask: Ask) -> None:
        super().__init__(command, TIMEOUT)
        self._leasing = leasing
        self._ask = ask

    def replied(self, reply: object, now: float) -> None:
        self._leasing.granted(self._ask, reply, now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._ask.lease.failed(self._ask, now)
        self._leasing.failed(failure, now)

    def replied_late(self, reply: object, now: float) -> None:
        self._leasing.granted_late(self._ask, reply)
