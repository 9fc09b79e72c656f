# Quotas that all workers of the cluster share: each holds a slice of them, and asks Redis for more as it is used.
#
# The bucket is in Redis (cluster/quota_lease.lua). A worker holds at most a slice of it: what the rate gives in 100 ms,
# but at least the largest message. It takes from its slice, waiting for nobody, and asks for as much as it has taken.
# So whatever is asked, answered, lost or late, in t seconds all workers let pass at most the bucket's count, t times
# its rate, and one slice each.
# What a worker holds it may hold: to give a slice back that was not used within its 100 ms would bound nothing that is
# not bounded already, and make the first publish after each quiet moment wait for Redis.
#
# "Nothing left here" and "over the quota" are two things. Until Redis has answered with less than what was asked for
# there may be more, and who finds too little waits for the answer, whatever its QoS: nobody is refused on a guess.
#
# Without Redis each worker goes on with its share: the rate, divided by the workers there were. Who came less than
# SETTLING ago has none, as not everybody has been told of it. What is taken that way is owed, and told to Redis when
# it is back. Shares go on for RETURN after that, until all have told it: nobody is given what others have used up.
# What was taken while Redis was away can only have been what its bucket had gained meanwhile, so telling it empties the
# bucket at most; what is taken by shares beside a Redis that answers is owed in full.
# Three things come on top of the bound, each for a moment: what shares have taken within RETURN and not told yet, one
# slice in all; what a worker leases that is started in the very seconds when Redis is back, before others have told it;
# and the share of a worker that alone is cut off, beside what the others lease.
from collections import deque
from math import ceil
from typing import Final

from broker.config.rate import TICK, Meter, Rate, burst, kept_of, slowest

SLICE: Final = 0.1  # seconds of the rate that a worker holds at most, and between two asks that nothing presses
ANSWER: Final = 0.005  # seconds until it is worth looking whether Redis has answered
SETTLING: Final = 3.0  # seconds: within them all who lease have been told of a newcomer, also if they had to come back
RETURN: Final = 3.0  # seconds: within them every line to Redis is up again (store/line.py tries each second), and known
GRAIN: Final = 1000  # Redis counts in thousandths: a script answers with whole numbers

# What is under way for a lease.
IDLE: Final = 0
LATER: Final = 1  # it will be asked for when it is due
PRESSING: Final = 2  # in this turn
ASKED: Final = 3


class RedisAvailability:
    """Where this worker stands with Redis, for all its leases."""

    def __init__(self) -> None:
        self.sharing = False  # Redis is away, or was until just now
        self.answering = True  # as far as we know
        self.share = 0.0  # of each rate, while `sharing`
        self.since = 0.0  # when that began
        self.workers = 1
        self.outages = 0
        self._told = 1  # how many workers there are, as Redis said last
        self._heard = 0.0  # when
        self._settled = float("inf")
        self._end = float("inf")

    def heard(self, workers: int, now: float) -> None:
        """Redis has said how many *workers* there are, this one among them."""
        if self._settled == float("inf"):
            self._settled = now + SETTLING
        self._heard = now
        self._told = max(1, workers)
        if not self.sharing:
            self.workers = self._told
        elif not self.answering:
            self._end = now + RETURN
        self.answering = True

    def lost(self, now: float) -> None:
        """Redis did not answer, or could not do what it was asked."""
        if self.answering:
            self.outages += 1
        self.answering = False
        self._end = float("inf")
        self.workers = max(self.workers, self._told)  # of those who are not back yet Redis knows nothing
        settled = self.share > 0.0 if self.sharing else self._heard >= self._settled
        self.share = 1.0 / self.workers if settled else 0.0
        if not self.sharing:
            self.sharing = True
            self.since = now

    def tick(self, now: float) -> None:
        """Lease again, if it is time to."""
        if self.sharing and now >= self._end:
            self.sharing = False
            self.workers = self._told


class Lease(Meter):
    """One shared quota, as far as this worker holds it."""

    def __init__(self, name: bytes, rate: Rate, reserve: float, unit: float, leases: "Leases") -> None:
        """*unit*: the most that one message takes. All workers have to describe the bucket *name* alike."""
        super().__init__(min(float(burst(rate)), max(slowest(rate) * SLICE, unit)))
        self.name = name
        self.rate = rate
        self.kept = [kept_of(window.most, reserve, unit) for window in rate]  # of each window, in Redis
        self.state = IDLE
        self.due = 0.0  # LATER: when
        self._leases = leases
        self._redis = leases.redis
        self._speed = slowest(rate)
        self._kept = kept_of(self.capacity, reserve, unit)  # of what is here
        self._left = 0.0
        self._firm = 0.0  # taken by QoS 1 and 2 since the last ask
        self._firm_waits = False  # one of them found too little since
        self._short_firm = False  # the last answer had less than what was asked for QoS 1 and 2,
        self._short_loose = False  # or for QoS 0
        self._owed = 0.0  # taken without Redis, which has not been told
        self._settled = 0  # the outage of which it has been
        self._shared = 0.0  # until when its share is in what is left

    def room(self, firm: bool, now: float) -> float:
        if self._redis.sharing:
            self._take_share(now)
        return self._left if firm else self._left - self._kept

    def take(self, amount: float, firm: bool, now: float) -> None:
        self._left -= amount
        if firm:
            self._firm += amount
        if self.state <= LATER:
            self._ask_in_time(now)

    def when(self, amount: float, firm: bool, now: float) -> float:
        missing = amount - self.room(firm, now)
        if missing <= 0.0:
            return now
        redis = self._redis
        if redis.sharing:
            return now + (missing / (self._speed * redis.share) + TICK if redis.share > 0.0 else SLICE)
        if self._short_firm if firm else self._short_loose:
            return max(self.due + TICK, now + missing / self._speed)
        return now + ANSWER

    def may_have_more(self, firm: bool) -> bool:
        if self._redis.sharing:
            return False
        if firm:
            self._firm_waits = True
        short = self._short_firm if firm else self._short_loose
        if self.state <= LATER and not short:
            self._leases.press(self)
        return not short

    def ask(self, now: float) -> "Ask | None":
        """What Redis is to be asked for this one; None: nothing now."""
        redis = self._redis
        owed = self._owed
        want = 0.0 if redis.sharing else self.capacity - self._left
        if owed <= 0.0 and want <= 0.0:
            self._short_firm = self._short_loose = False
            self.state = IDLE
            if redis.sharing:  # until it is over: then what was taken of the slice is asked for
                self._leases.ask_later(self, now)
            return None
        firm = want if self._firm_waits else max(0.0, min(want, max(self._kept - self._left, self._firm)))
        self._owed = 0.0
        self._firm = 0.0
        self._firm_waits = False
        self.state = ASKED
        outage = redis.outages
        loose = want - firm
        settles = outage != self._settled
        return Ask(self, outage, ceil(owed * GRAIN), settles, ceil(firm * GRAIN), ceil(loose * GRAIN))

    def answered(self, ask: "Ask", firm: int, loose: int, now: float) -> None:
        """Redis grants that many thousandths of what was asked for QoS 1 and 2, and for anybody."""
        self._grant(firm + loose)
        self._settled = ask.outage
        self._short_firm = firm < ask.firm
        self._short_loose = loose < ask.loose
        self.state = IDLE
        self._ask_in_time(now)

    def failed(self, ask: "Ask", now: float) -> None:
        """Redis has not answered. What was owed is told again: if it was told already, the quota is the less for it."""
        self._owed += ask.owed / GRAIN
        self._firm_waits = ask.firm > 0
        self._short_firm = self._short_loose = False
        self.state = IDLE
        self._leases.ask_later(self, now)

    def came_late(self, ask: "Ask", granted: int) -> None:
        """Redis had granted that much, after `failed()`."""
        self._owed = max(0.0, self._owed - ask.owed / GRAIN)
        self._grant(granted)

    def _grant(self, thousandths: int) -> None:
        self._left = min(self.capacity, self._left + thousandths / GRAIN)

    def _ask_in_time(self, now: float) -> None:
        """What was taken is asked for in 100 ms, or at once when half is gone and Redis had enough."""
        if self._left < self.capacity / 2 and not (self._short_firm or self._short_loose or self._redis.sharing):
            self._leases.press(self)
        elif self.state == IDLE and self._left < self.capacity:
            self._leases.ask_later(self, now)

    def _take_share(self, now: float) -> None:
        redis = self._redis
        since = max(self._shared, redis.since)
        self._shared = now
        gained = min(self.capacity - self._left, (now - since) * self._speed * redis.share)
        if gained > 0.0:
            self._left += gained
            self._owed += gained
            if self.state == IDLE:
                self._leases.ask_later(self, now)


class Ask:
    """What Redis is asked for one lease, in thousandths."""

    def __init__(self, lease: Lease, outage: int, owed: int, settles: bool, firm: int, loose: int) -> None:
        self.lease = lease
        self.outage = outage  # the latest
        self.owed = owed  # was used up without it,
        self.settles = settles  # in that outage, of which it is told for the first time
        self.firm = firm  # wanted for QoS 1 and 2
        self.loose = loose  # wanted for anybody


class Leases:
    """Which leases of a worker Redis is to be asked for."""

    def __init__(self) -> None:
        self.redis = RedisAvailability()
        self._pressing: list[Lease] = []
        self._later: deque[tuple[float, Lease]] = deque()  # in the order in which they are due

    def press(self, lease: Lease) -> None:
        """Ask for *lease* in this turn."""
        lease.state = PRESSING
        self._pressing.append(lease)

    def ask_later(self, lease: Lease, now: float) -> None:
        """Ask for *lease* in a while, together with what is taken until then."""
        lease.state = LATER
        lease.due = now + SLICE
        self._later.append((lease.due, lease))

    def due(self, now: float) -> list[Ask]:
        """What is to be asked now; each is to be `answered()` or `failed()`."""
        if not self.redis.answering:
            return []
        wanted, self._pressing = self._pressing, []
        while self._later and self._later[0][0] <= now:
            due, lease = self._later.popleft()
            if lease.state == LATER and lease.due == due:
                wanted.append(lease)
        asks = [lease.ask(now) for lease in wanted]
        return [ask for ask in asks if ask is not None]

    def next_due(self, now: float) -> float:
        """When there may be something to ask."""
        if not self.redis.answering:
            return float("inf")
        if self._pressing:
            return now
        return self._later[0][0] if self._later else float("inf")
