import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.config.rate import Rate, Window, parse
from broker.overload.quotas.lease import ANSWER, RETURN, SETTLING, SLICE, Lease
from tests.overload.workers import PATIENCE, RECONNECT, Redis, Worker, most_passed

NOW = 1000.0
STEP = 0.02

RATES = st.sampled_from([parse(text) for text in ("100:1", "1:1", "7:1", "1000:1,5000:20", "300:10", "50/s,90:3")])


class Cluster:
    """Workers that share one quota, and how time passes for them."""

    def __init__(self, count: int, rate: Rate, reserve: float = 0.0) -> None:
        self.now = NOW
        self.rate = rate
        self.redis = Redis(rate, NOW)
        self._reserve = reserve
        self.workers: list[Worker] = []
        for _ in range(count):
            self.join()

    def join(self) -> Worker:
        self.workers.append(Worker(len(self.workers), self.redis, self.rate, self._reserve, 1.0))
        return self.workers[-1]

    def step(self, seconds: float = STEP, hears: bool = True) -> None:
        self.now += seconds
        for worker in self.workers:
            worker.turn(self.now)
            worker.done(self.now)
            if hears:
                worker.hear(self.now)

    def settle(self) -> None:
        """Until everybody has been told of everybody, and has a slice."""
        self.flood(SETTLING + 1.5, [])
        for worker in self.workers:
            worker.publish(self.rate[0].most + 1.0, True, self.now)  # finds too little, and asks
        self.flood(max(window.seconds for window in self.rate), [])

    def flood(self, seconds: float, workers: list[Worker], firm: bool = True) -> float:
        """*workers* publish as much as they may; how many passed."""
        end = self.now + seconds
        passed = 0.0
        while self.now < end:
            self.step()
            for worker in workers:
                while worker.publish(1.0, firm, self.now):
                    passed += 1.0
        return passed

    def stop_redis(self) -> None:
        self.redis.up = False
        for worker in self.workers:
            worker.cut(self.now, self.now)

    def start_redis(self, chance: random.Random) -> None:
        self.redis.up = True
        for worker in self.workers:
            worker.back_at = self.now + chance.random() * RECONNECT

    def slices(self) -> float:
        return sum(worker.lease.capacity for worker in self.workers)


def speed(rate: Rate) -> float:
    return max(window.most / window.seconds for window in rate)


@settings(max_examples=40, deadline=None)
@given(RATES, st.integers(1, 4), st.floats(0, 0.9), st.integers(0, 1 << 30), st.floats(0.0, 1.0), st.booleans())
def test_workers_never_pass_more_than_the_bucket_and_a_slice_each(
    rate: Rate, count: int, reserve: float, seed: int, eagerness: float, outages: bool
) -> None:
    """The quota would be no bound: for slow answers, Redis stopping and coming back, and newcomers."""
    chance = random.Random(seed)
    cluster = Cluster(count, rate, reserve)
    heard = dict.fromkeys(range(10), NOW)
    changes = NOW + 4.0
    for _ in range(1500):
        cluster.step(STEP, hears=False)
        for worker in cluster.workers:
            if chance.random() < 0.3 or cluster.now - heard[worker.number] > PATIENCE / 2:
                worker.hear(cluster.now)
                heard[worker.number] = cluster.now
            for _ in range(chance.randrange(12)):
                if chance.random() < eagerness:
                    worker.publish(1.0, chance.random() < 0.5, cluster.now)
        if outages and cluster.now > changes:
            changes = cluster.now + chance.uniform(0.1, 10.0)
            if cluster.redis.up:
                cluster.stop_redis()
            else:
                cluster.start_redis(chance)
        sharing = any(worker.leases.redis.sharing for worker in cluster.workers)
        if cluster.redis.up and not sharing and len(cluster.workers) < 6 and chance.random() < 0.002:
            cluster.join()

    untold = speed(rate) * (SLICE + PATIENCE) if outages else 0.0
    assert most_passed(cluster.workers, rate) <= cluster.slices() + untold + 1e-6


@settings(max_examples=30, deadline=None)
@given(RATES, st.integers(2, 4), st.integers(0, 1 << 30))
def test_workers_that_are_cut_off_alone_have_their_shares_besides(rate: Rate, count: int, seed: int) -> None:
    """For lines that break at any time, each for itself, with what is under way on them, the bound would not hold."""
    chance = random.Random(seed)
    cluster = Cluster(count, rate)
    beside = 0.0  # what shares came to while Redis was there for others
    for _ in range(1500):
        cluster.step(STEP, hears=chance.random() < 0.5)
        for worker in cluster.workers:
            redis = worker.leases.redis
            if redis.sharing:
                beside += redis.share * speed(rate) * STEP
            for _ in range(chance.randrange(8)):
                worker.publish(1.0, chance.random() < 0.5, cluster.now)
            if chance.random() < 0.002:
                worker.cut(cluster.now, cluster.now + chance.uniform(0.0, 5.0))

    assert most_passed(cluster.workers, rate) <= cluster.slices() + beside + 1e-6


@pytest.mark.parametrize("text", ["100:1", "1000:1,5000:20", "1:1", "20:10"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_together_they_get_the_whole_rate(text: str, count: int) -> None:
    """A quota would let less pass than it says."""
    rate = parse(text)
    cluster = Cluster(count, rate)
    cluster.settle()
    seconds = 100

    passed = cluster.flood(seconds, cluster.workers)

    least = min(window.most + seconds * window.most / window.seconds for window in rate)
    assert 0.95 * least - 1 <= passed


@pytest.mark.parametrize("firm", [True, False])
def test_one_worker_alone_may_use_it_all(firm: bool) -> None:
    """Clients that happen to be at one worker would have less than others; or what is kept for QoS 1 be wasted."""
    cluster = Cluster(3, parse("100:1"), reserve=0.5)
    cluster.settle()

    assert 0.97 * 3000 <= cluster.flood(30, cluster.workers[1:2], firm)


def test_workers_that_ask_one_after_the_other_get_the_same() -> None:
    """Whoever asks just before the other would have what came in all the time since."""
    cluster = Cluster(2, parse("100:1"))
    cluster.settle()
    first, second = cluster.workers
    cluster.flood(SLICE - STEP, [first])  # out of step from now on
    cluster.flood(5, [first, second])
    before = len(first.passed), len(second.passed)

    cluster.flood(20, [first, second])

    shares = [len(first.passed) - before[0], len(second.passed) - before[1]]
    assert min(shares) >= 0.7 * max(shares)


def test_what_is_kept_for_qos_1_and_2_is_kept_in_the_whole_cluster() -> None:
    """QoS 0 at one worker would use up what QoS 1 was promised at another."""
    cluster = Cluster(2, parse("100:1"), reserve=0.5)
    cluster.settle()
    careless, careful = cluster.workers
    cluster.flood(10, [careless], firm=False)

    passed = 0
    for _ in range(20):
        cluster.step()
        for worker, firm in ((careless, False), (careful, True)):
            while worker.publish(1.0, firm, cluster.now):
                passed += firm

    assert passed >= 50


def test_who_finds_too_little_waits_until_redis_has_said_so() -> None:
    """A publish would be refused while most of the quota is unused."""
    cluster = Cluster(1, parse("100:1"))
    cluster.settle()
    (worker,) = cluster.workers
    assert 10 == sum(worker.publish(1.0, True, cluster.now) for _ in range(20))

    assert worker.lease.may_have_more(True)
    assert cluster.now + ANSWER == worker.lease.when(1.0, True, cluster.now)
    cluster.step(0.001)
    assert 10 == sum(worker.publish(1.0, True, cluster.now) for _ in range(20))
    cluster.flood(5, [worker])
    assert not worker.lease.may_have_more(True)
    assert SLICE >= worker.lease.when(1.0, True, cluster.now) - cluster.now > ANSWER


def test_what_nobody_uses_is_not_asked_for() -> None:
    """Each quota of each tenant would cost Redis ten commands a second for each worker."""
    cluster = Cluster(1, parse("100:1"))
    (worker,) = cluster.workers
    assert [] == worker.leases.due(NOW)
    cluster.settle()

    assert float("inf") == worker.leases.next_due(cluster.now)
    assert [] == worker.leases.due(cluster.now + 100)


def test_what_is_used_slowly_is_asked_for_together() -> None:
    """Each publish would cost a command."""
    cluster = Cluster(1, parse("1000:1"))
    cluster.settle()
    (worker,) = cluster.workers
    worker.publish(1.0, True, cluster.now)
    assert [] == worker.leases.due(cluster.now)
    worker.publish(1.0, True, cluster.now)

    (ask,) = worker.leases.due(cluster.now + SLICE)
    assert (0, 2000, 0) == (ask.owed, ask.firm, ask.loose)


def test_without_redis_each_worker_has_its_share() -> None:
    """All would stop, or each have the whole rate."""
    cluster = Cluster(4, parse("100:1"))
    cluster.settle()
    cluster.flood(3, cluster.workers)
    cluster.stop_redis()
    cluster.flood(2, cluster.workers)  # until all know

    assert 0.95 * 1000 <= cluster.flood(10, cluster.workers) <= 1004
    assert 0.95 * 250 <= cluster.flood(10, cluster.workers[:1]) <= 260
    assert not cluster.workers[0].lease.may_have_more(True)
    wait = cluster.workers[0].lease.when(1.0, True, cluster.now) - cluster.now
    assert 0 < wait <= 1 / 25 + 1e-3


def test_who_came_without_redis_has_nothing() -> None:
    """Each worker that is started anew would have a share, of which the others know nothing."""
    cluster = Cluster(2, parse("100:1"))
    cluster.settle()
    cluster.stop_redis()
    newcomer = cluster.join()
    newcomer.cut(cluster.now, cluster.now)

    assert 0 == cluster.flood(10, [newcomer])
    assert not newcomer.lease.may_have_more(True)
    assert SLICE == pytest.approx(newcomer.lease.when(1.0, True, cluster.now) - cluster.now)


def test_after_an_outage_all_goes_on_at_once() -> None:
    """What was used without Redis would be owed for as long as the outage was."""
    cluster = Cluster(2, parse("100:1"))
    cluster.settle()
    cluster.stop_redis()
    cluster.flood(30, cluster.workers)
    cluster.start_redis(random.Random(0))

    for _ in range(10):
        assert 0.85 * 100 <= cluster.flood(1, cluster.workers)
    assert not cluster.workers[0].leases.redis.sharing


def test_shares_go_on_until_all_have_told_what_they_used() -> None:
    """Who is back first would be given what the others have used meanwhile."""
    cluster = Cluster(2, parse("100:1"))
    cluster.settle()
    cluster.stop_redis()
    cluster.flood(5, cluster.workers)
    first, second = cluster.workers
    cluster.redis.up = True
    second.back_at = cluster.now + RECONNECT

    cluster.flood(RECONNECT + 3 * STEP, cluster.workers)
    assert first.leases.redis.sharing and second.leases.redis.sharing
    cluster.flood(RETURN, cluster.workers)
    assert not (first.leases.redis.sharing or second.leases.redis.sharing)


def test_an_answer_that_was_lost_costs_the_quota_and_nobody_else() -> None:
    """What Redis has granted and nobody heard of would be granted again."""
    cluster = Cluster(1, parse("100:1"))
    cluster.settle()
    (worker,) = cluster.workers
    for _ in range(8):
        worker.publish(1.0, True, cluster.now)
    worker.turn(cluster.now)
    worker.done(cluster.now)
    worker.cut(cluster.now, cluster.now)

    assert 2 == sum(worker.publish(1.0, True, cluster.now) for _ in range(20))


def test_a_late_answer_is_no_more_than_a_slice() -> None:
    """A slow Redis would give a worker two slices."""
    cluster = Cluster(1, parse("100:1"))
    cluster.settle()
    (worker,) = cluster.workers
    for _ in range(8):
        worker.publish(1.0, True, cluster.now)
    cluster.step(0.001, hears=False)
    cluster.step(PATIENCE, hears=False)
    cluster.now += 1.0
    assert 10 == worker.lease.room(True, cluster.now)  # by its share
    worker.hear(cluster.now)

    assert 10 == sum(worker.publish(1.0, True, cluster.now) for _ in range(30))


def test_a_slice_holds_the_largest_message_and_no_more_than_the_quota() -> None:
    """A large message could never pass; or one worker hold more than there is."""
    leases = Cluster(1, parse("1:1")).workers[0].leases
    for most, unit, slice in ((1000, 1.0, 100.0), (1, 1.0, 1.0), (5000, 2000.0, 2000.0), (5, 10.0, 5.0)):
        assert slice == Lease(b"x", (Window(most, 1),), 0.5, unit, leases).capacity


@example(text="1:1")
@given(st.sampled_from(["1:1", "2:1", "100:1", "3:10"]))
def test_qos_0_gets_on_whatever_is_kept(text: str) -> None:
    """With a small quota nothing would be left beside what is kept for QoS 1 and 2."""
    cluster = Cluster(2, parse(text), reserve=0.9)
    cluster.settle()

    assert cluster.flood(20, cluster.workers, firm=False) >= 5
