# Quotas that all workers of the cluster share: each worker holds a slice, and asks Redis for more as it uses its slice.
#
# The bucket is in Redis (cluster/quota_lease.lua). A worker holds at most one slice: what the rate gives in 100 ms, but
# at least the largest message. The worker takes from its slice without waiting, and asks for as much as it has taken.
# So whatever is asked, answered, lost or late, in t seconds all workers together let pass at most the bucket's count, t
# times its rate, and one slice for each worker.
#
# A worker keeps an unused slice. Giving it back after 100 ms would bound nothing that is not bounded already, and the
# first publish after each quiet moment would have to wait for Redis.
#
# "The slice is empty" and "over the quota" are two things. Until Redis has answered with less than what was asked for
# there may be more, so a message that finds too little waits for the answer, whatever its QoS: nothing is refused on a
# guess.
#
# Without Redis each worker goes on with its share: the rate divided by the number of workers. A worker that started
# less than SETTLING ago has no share, as the other workers may not know of it. What is taken from a share is owed, and
# told to Redis when it is back. Shares go on for RETURN after that, until all workers have told what they owe, so that
# nothing is granted that others have used up. What was taken while Redis was away is at most what its bucket has gained
# meanwhile, so telling it empties the bucket at most; what is taken from shares beside a Redis that answers is owed in
# full.
#
# Three things can exceed the bound for a moment: what was taken from shares within RETURN and not told yet, one slice
# in all; what a worker leases that starts in the very seconds when Redis is back, before others have told what they
# owe; and the share of a worker that alone is cut off, beside what the others lease.
from collections import deque
from math import ceil
from typing import Final

from broker.config.rate import TICK, Meter, Rate, burst, kept_of, slowest

SLICE: Final = (
    0.1  # seconds of the rate that a worker holds at most; also the time between two asks that are not urgent
)
ANSWER: Final = 0.005  # seconds after which Redis should have answered
SETTLING: Final = 3.0  # seconds within which all workers learn of a new one, even if they have to reconnect
RETURN: Final = 3.0  # seconds within which every connection to Redis is up again (it is tried each second), and known
GRAIN: Final = 1000  # Redis counts in thousandths, as a script can answer with whole numbers only

# States of a lease.
IDLE: Final = 0
LATER: Final = 1  # Redis is asked when it is due
PRESSING: Final = 2  # Redis is asked in this turn
ASKED: Final = 3  # Redis has not answered yet


class RedisAvailability:
    """Whether Redis answers, and the share of each rate that this worker takes otherwise."""

    def __init__(self) -> None:
        self.sharing = False  # shares are in use: Redis does not answer, or has not answered until RETURN ago
        self.answering = True  # the last ask was answered
        self.share = 0.0  # of each rate, while `sharing`
        self.since = 0.0  # when `sharing` became true
        self.workers = 1
        self.outages = 0
        self._told = 1  # the number of workers in the last answer of Redis
        self._heard = 0.0  # when that answer came
        self._settled = float("inf")
        self._end = float("inf")

    def heard(self, workers: int, now: float) -> None:
        """Redis has answered that there are *workers* workers, this one included."""
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
        """Redis did not answer, or answered with an error."""
        if self.answering:
            self.outages += 1
        self.answering = False
        self._end = float("inf")
        self.workers = max(self.workers, self._told)  # Redis does not know the workers that are not back yet
        settled = self.share > 0.0 if self.sharing else self._heard >= self._settled
        self.share = 1.0 / self.workers if settled else 0.0
        if not self.sharing:
            self.sharing = True
            self.since = now

    def tick(self, now: float) -> None:
        """End the use of shares if it is time to."""
        if self.sharing and now >= self._end:
            self.sharing = False
            self.workers = self._told


class Lease(Meter):
    """The slice of one shared quota that this worker holds."""

    def __init__(self, name: bytes, rate: Rate, reserve: float, unit: float, leases: "Leases") -> None:
        """*unit*: the largest amount that one message takes. All workers must describe the bucket *name* alike."""
        super().__init__(min(float(burst(rate)), max(slowest(rate) * SLICE, unit)))
        self.name = name
        self.rate = rate
        self.kept = [kept_of(window.most, reserve, unit) for window in rate]  # for QoS 1 and 2, of each window in Redis
        self.state = IDLE
        self.due = 0.0  # in the state LATER: when to ask
        self._leases = leases
        self._redis = leases.redis
        self._speed = slowest(rate)
        self._kept = kept_of(self.capacity, reserve, unit)  # for QoS 1 and 2, of the slice
        self._left = 0.0
        self._firm = 0.0  # taken for QoS 1 and 2 since the last ask
        self._firm_waits = False  # a message of QoS 1 or 2 found too little since
        self._short_firm = False  # the last answer granted less than was asked for QoS 1 and 2
        self._short_loose = False  # the last answer granted less than was asked for QoS 0
        self._owed = 0.0  # taken from shares, and not told to Redis yet
        self._settled = 0  # the latest outage of which Redis was told
        self._shared = 0.0  # until when the share was added to `_left`

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
        """What to ask Redis for this lease; None: nothing now."""
        redis = self._redis
        owed = self._owed
        want = 0.0 if redis.sharing else self.capacity - self._left
        if owed <= 0.0 and want <= 0.0:
            self._short_firm = self._short_loose = False
            self.state = IDLE
            if redis.sharing:  # ask again later: after the outage, for what was taken of the slice
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
        """Redis has granted thousandths: *firm* for QoS 1 and 2, *loose* for any QoS."""
        self._grant(firm + loose)
        self._settled = ask.outage
        self._short_firm = firm < ask.firm
        self._short_loose = loose < ask.loose
        self.state = IDLE
        self._ask_in_time(now)

    def failed(self, ask: "Ask", now: float) -> None:
        """Redis has not answered. What is owed will be told again, although Redis may have counted it already."""
        self._owed += ask.owed / GRAIN
        self._firm_waits = ask.firm > 0
        self._short_firm = self._short_loose = False
        self.state = IDLE
        self._leases.ask_later(self, now)

    def came_late(self, ask: "Ask", granted: int) -> None:
        """After `failed()`, the answer has arrived: Redis had granted *granted* thousandths."""
        self._owed = max(0.0, self._owed - ask.owed / GRAIN)
        self._grant(granted)

    def _grant(self, thousandths: int) -> None:
        self._left = min(self.capacity, self._left + thousandths / GRAIN)

    def _ask_in_time(self, now: float) -> None:
        """Ask for what was taken in 100 ms, or at once if half of the slice is gone and Redis had enough."""
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
    """One request to Redis for one lease; amounts in thousandths."""

    def __init__(self, lease: Lease, outage: int, owed: int, settles: bool, firm: int, loose: int) -> None:
        self.lease = lease
        self.outage = outage  # the number of outages so far
        self.owed = owed  # taken from shares
        self.settles = settles  # Redis is told of this outage for the first time
        self.firm = firm  # wanted for QoS 1 and 2
        self.loose = loose  # wanted for any QoS


class Leases:
    """The leases of a worker for which Redis is to be asked."""

    def __init__(self) -> None:
        self.redis = RedisAvailability()
        self._pressing: list[Lease] = []
        self._later: deque[tuple[float, Lease]] = deque()  # (due, lease), in the order of `due`

    def press(self, lease: Lease) -> None:
        """Ask for *lease* in this turn."""
        lease.state = PRESSING
        self._pressing.append(lease)

    def ask_later(self, lease: Lease, now: float) -> None:
        """Ask for *lease* in SLICE seconds, together with what is taken until then."""
        lease.state = LATER
        lease.due = now + SLICE
        self._later.append((lease.due, lease))

    def due(self, now: float) -> list[Ask]:
        """What to ask now. For each ask, `answered()` or `failed()` of its lease has to be called."""
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
