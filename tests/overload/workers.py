# Workers that share a quota, and their Redis: as broker/cluster/leasing.py and quota_lease.lua do it, without either.
from collections import deque
from typing import Final

from broker.config.rate import Rate
from broker.overload.quotas.lease import SLICE, Ask, Lease, Leases

PATIENCE: Final = 0.3  # seconds, as in broker/cluster/leasing.py
BEAT: Final = 1.0
REMEMBERED: Final = 3.0
RECONNECT: Final = 1.0  # seconds at most, after which a line is up again (broker/store/redis/line.py)


class Redis:
    """What quota_lease.lua keeps."""

    def __init__(self, lease_rate: Rate, now: float) -> None:
        self.up = True
        self._rate = lease_rate
        self.levels = [float(window.most) for window in lease_rate]
        self._at = now
        self._workers: dict[int, float] = {}

    def beat(self, worker: int, now: float) -> int:
        self._workers = {one: at for one, at in self._workers.items() if at > now - REMEMBERED}
        self._workers[worker] = now
        return len(self._workers)

    def lease(self, workers: int, ask: Ask, now: float) -> tuple[int, int]:
        for_firm = for_loose = float("inf")
        used = ask.owed / 1000
        for number, window in enumerate(self._rate):
            speed = window.most / window.seconds
            level = min(float(window.most), self.levels[number] + (now - self._at) * speed)
            level = max(min(0.0, level), level - used) if ask.settles else level - used
            self.levels[number] = level
            part = speed * SLICE / workers
            mine = min(level, max(part, level - part * (workers - 1)))
            for_firm = min(for_firm, mine)
            for_loose = min(for_loose, mine, level - ask.lease.kept[number])
        self._at = now
        firm = int(max(0, min(ask.firm, for_firm * 1000)))
        loose = int(max(0, min(ask.loose, for_firm * 1000 - firm, for_loose * 1000 - firm)))
        self.levels = [level - (firm + loose) / 1000 for level in self.levels]
        return firm, loose


class Sent:
    """Something that was asked, with its reply once Redis has done it."""

    def __init__(self, ask: Ask | None, at: float) -> None:
        self.ask = ask  # None: a beat
        self.at = at
        self.failed = False
        self.reply: tuple[int, int] | None = None


class Worker:
    def __init__(self, number: int, redis: Redis, rate: Rate, reserve: float, unit: float) -> None:
        self.number = number
        self.redis = redis
        self.leases = Leases()
        self.lease = Lease(b"quota", rate, reserve, unit, self.leases)
        self.connected = True
        self.back_at = 0.0  # when its line is up again
        self.passed: list[tuple[float, float]] = []
        self._sent: deque[Sent] = deque()
        self._beat = 0.0

    def publish(self, amount: float, firm: bool, now: float) -> bool:
        """Take *amount* if there is room."""
        if self.lease.room(firm, now) < amount:
            self.lease.may_have_more(firm)
            return False
        self.lease.take(amount, firm, now)
        self.passed.append((now, amount))
        return True

    def turn(self, now: float) -> None:
        """Ask for what is due, and give up what is late."""
        self.leases.redis.tick(now)
        if not self.connected and self.redis.up and now >= self.back_at:
            self.connected = True
            self._beat = now
        if now >= self._beat:
            self._beat = now + BEAT
            self._send(None, now)
        for ask in self.leases.due(now):
            self._send(ask, now)
        for sent in self._sent:
            if not sent.failed and now >= sent.at + PATIENCE:
                self._fail(sent, now)

    def done(self, now: float) -> None:
        """Redis does what it was asked; its replies are under way."""
        if not (self.redis.up and self.connected):
            return
        for sent in self._sent:
            if sent.reply is None:
                if sent.ask is None:
                    sent.reply = (self.redis.beat(self.number, now), 0)
                else:
                    sent.reply = self.redis.lease(self.leases.redis.workers, sent.ask, now)

    def hear(self, now: float) -> None:
        """The replies that are under way arrive."""
        while self._sent and self._sent[0].reply is not None:
            sent = self._sent.popleft()
            assert sent.reply is not None
            if sent.ask is None:
                if not sent.failed:
                    self.leases.redis.heard(sent.reply[0], now)
            elif sent.failed:
                sent.ask.lease.came_late(sent.ask, sum(sent.reply))
            else:
                sent.ask.lease.answered(sent.ask, *sent.reply, now)

    def cut(self, now: float, back_at: float) -> None:
        """Its line ends; what is under way on it is lost."""
        self.connected = False
        self.back_at = back_at
        sent, self._sent = self._sent, deque()
        for one in sent:
            if not one.failed:
                self._fail(one, now)

    def _send(self, ask: Ask | None, now: float) -> None:
        self._sent.append(Sent(ask, now))

    def _fail(self, sent: Sent, now: float) -> None:
        sent.failed = True
        if sent.ask is not None:
            sent.ask.lease.failed(sent.ask, now)
        self.leases.redis.lost(now)


def most_passed(workers: list[Worker], rate: Rate) -> float:
    """By how much the workers together exceeded count + time x rate, at most, in any stretch and window."""
    passed = sorted(one for worker in workers for one in worker.passed)
    worst = float("-inf")
    for window in rate:
        speed = window.most / window.seconds
        excess = 0.0  # as of a bucket that is never empty: how far it is below full
        before = passed[0][0] if passed else 0.0
        for now, amount in passed:
            excess = max(0.0, excess - (now - before) * speed) + amount
            before = now
            worst = max(worst, excess - window.most)
    return worst
