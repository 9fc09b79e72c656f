# Quotas that all workers share, on real servers: what the script grants, and how a worker asks it.
import random
from collections.abc import Callable

import pytest

from broker.cluster.quota_lease_client import REMEMBERED, TIMEOUT, QuotaLeaseClient
from broker.config.rate import Window, parse
from broker.overload.quotas.lease import SLICE, Ask, Lease, Leases
from broker.reasons import StoreFailure
from broker.store.redis.pipeline import CommandPipeline
from broker.worker_id import WorkerId
from supervisor.redis_server import RedisServer
from tests.cluster.shard import KEYS
from tests.overload.workers import Redis
from tests.redis_servers import RunningRedis
from tests.store.loop import Loop

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]


@pytest.fixture
def start_redis(start_redis: StartRedis) -> StartRedis:
    """Servers that wait for no disk: a lease is patient for less than a busy one takes."""
    return lambda server=None: start_redis(server, "appendfsync no\n")


class Tenant:
    """A worker with one shared quota."""

    def __init__(self, loop: Loop, server: RunningRedis, number: int = 1, rate: str = "1000:10") -> None:
        self.loop = loop
        self.leases = Leases()
        self.lease = Lease(b"tenant:incoming_messages:acme", parse(rate), 0.0, 1.0, self.leases)
        self.commands = CommandPipeline(loop.wire(), server.address, f"worker{number}", loop.log)
        self.leasing = QuotaLeaseClient(self.commands, KEYS, self.leases, WorkerId("node", number, number))
        loop.ticking += [self.leasing, self.commands]
        self.commands.start(loop.now())

    def publish(self) -> bool:
        """Whether a message may pass."""
        now = self.loop.now()
        if self.lease.room(True, now) < 1.0:
            self.lease.may_have_more(True)
            return False
        self.lease.take(1.0, True, now)
        return True

    def until(self, count: int) -> None:
        """Until so many have passed."""
        passed = 0

        def enough() -> bool:
            nonlocal passed
            while passed < count and self.publish():
                passed += 1
            return passed == count

        self.loop.until(enough)

    def known(self, workers: int) -> None:
        """Until this one knows that there are so many."""
        self.loop.until(lambda: self.answered() and self.leases.redis.workers == workers)

    def answered(self) -> bool:
        """All that was asked."""
        return self.commands.times_ready > 0 and not self.commands.statistics.waiting and self.leases.redis.answering


def test_a_slice_is_granted_as_soon_as_it_is_used(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """A burst that is within the quota would be held back."""
    server = start_redis(every_server)
    tenant = Tenant(loop, server)
    loop.ready(tenant.commands)

    tenant.until(1000)

    assert tenant.leasing.statistics.asked >= 100  # a slice holds ten
    assert 0 == tenant.leasing.statistics.failed


def test_workers_have_one_quota_together(start_redis: StartRedis, every_server: RedisServer, loop: Loop) -> None:
    """Each worker would have all of it."""
    server = start_redis(every_server)
    one, two = Tenant(loop, server, 1), Tenant(loop, server, 2)
    loop.ready(one.commands, two.commands)
    one.known(2)
    begin = loop.now()
    one.until(600)
    two.until(390)

    passed = 990
    for _ in range(50):
        loop.turn()
        for tenant in (one, two):
            while tenant.publish():
                passed += 1
    assert passed <= 1000 + 2 * one.lease.capacity + 100 * (loop.now() - begin)


def test_the_script_does_what_the_properties_were_shown_for(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """What tests/overload shows of its copy of the script would not hold for the script."""
    server = start_redis(every_server)
    tenant = Tenant(loop, server)
    tenant.known(1)
    chance = random.Random(5)
    with server.client() as client:
        for number in range(50):
            rate = tuple(Window(chance.randint(1, 500), seconds) for seconds in (1, 10))
            lease = Lease(f"q{number}".encode(), rate, chance.choice([0.0, 0.5]), 1.0, Leases())
            copy = Redis(rate, 0.0)
            key = KEYS.quota(lease.name)
            client.hset(key, "at", 1e11)  # levels of a server whose clock was ahead: for this one no time passes
            for _ in range(6):
                tenant.leases.redis.workers = chance.randint(1, 4)
                firm, loose = (chance.choice([0, chance.randint(0, 200_000)]) for _ in range(2))
                ask = Ask(lease, 1, chance.choice([0, 0, 150_000]), chance.random() < 0.5, firm, loose)
                answer = client.execute_command(*words_of(tenant.leasing.packed(ask)))
                assert answer == pytest.approx(copy.lease(tenant.leases.redis.workers, ask, 0.0), abs=1)
                levels = client.hgetall(key)
                left = [float(levels[str(window.seconds).encode()]) for window in rate]
                assert left == pytest.approx(copy.levels, abs=0.002)
                copy.levels = left


def words_of(command: bytes) -> list[bytes]:
    """The words of a packed command."""
    words = []
    rest = command.split(b"\r\n", 1)[1]
    while rest:
        size, rest = rest.split(b"\r\n", 1)
        length = int(size[1:])
        words.append(rest[:length])
        rest = rest[length + 2 :]
    return words


def test_nothing_of_a_quota_stays(start_redis: StartRedis, loop: Loop) -> None:
    """Tenants that came once would fill Redis."""
    server = start_redis()
    tenant = Tenant(loop, server)
    loop.ready(tenant.commands)
    tenant.until(5)
    tenant.known(1)

    with server.client() as client:
        lives = {bytes(key): client.ttl(key) for key in client.scan_iter(match="weir:*quota*")}
    assert {KEYS.quota(tenant.lease.name), KEYS.quota_workers} == set(lives)
    assert 0 < lives[KEYS.quota_workers] <= REMEMBERED
    assert 0 < lives[KEYS.quota(tenant.lease.name)] <= 11


def test_a_worker_is_counted_while_it_asks(start_redis: StartRedis, loop: Loop) -> None:
    """The share of those that are gone would be lost, or nobody know that others are here."""
    server = start_redis()
    one = Tenant(loop, server, 1)
    one.known(1)
    two = Tenant(loop, server, 2)
    one.known(2)
    two.known(2)
    loop.ticking.remove(two.leasing)

    one.known(1)


def test_what_redis_forgets_it_is_told_again(start_redis: StartRedis, loop: Loop) -> None:
    """After a restart of Redis each ask would fail for want of its script."""
    server = start_redis()
    tenant = Tenant(loop, server)
    tenant.known(1)
    with server.client() as client:
        client.script_flush()
    tenant.lease.take(1.0, True, loop.now())
    loop.until(lambda: tenant.commands.statistics.failures.get(StoreFailure.SCRIPT_UNKNOWN, 0) > 0)
    assert not tenant.leases.redis.answering

    tenant.known(1)
    loop.until(lambda: not tenant.leases.redis.sharing)
    tenant.until(500)


def test_on_a_new_line_redis_is_told_at_once(start_redis: StartRedis, loop: Loop) -> None:
    """Who is back first would not know how many the others are, and a Redis that was started anew know no script."""
    server = start_redis()
    tenant = Tenant(loop, server)
    tenant.known(1)
    with server.client() as client:
        client.script_flush()
        client.flushall()
        loop.stop_clock()
        tenant.commands.move(server.address, loop.now())
        loop.until(lambda: client.zcard(KEYS.quota_workers) == 1)
    assert 0 == tenant.leasing.statistics.failed


def test_redis_that_stops_is_noticed_and_taken_back(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """Clients would wait for it, or quotas be off for ever after."""
    server = start_redis(every_server)
    tenant = Tenant(loop, server)
    tenant.known(1)
    server.pause()
    tenant.lease.take(9.5, True, loop.now())

    loop.until(lambda: tenant.leases.redis.sharing)
    assert 1 == tenant.leasing.statistics.outages
    assert not tenant.lease.may_have_more(True)
    server.go_on()
    loop.until(lambda: not tenant.leases.redis.sharing)
    tenant.until(100)
    assert 1 == tenant.leasing.statistics.outages


def test_a_late_grant_counts(start_redis: StartRedis, loop: Loop) -> None:
    """A slow Redis would have each of its answers thrown away, and the quota be lost."""
    server = start_redis()
    tenant = Tenant(loop, server)
    tenant.known(1)
    tenant.until(5)
    loop.until(lambda: tenant.lease.room(True, loop.now()) == tenant.lease.capacity)
    tenant.lease.take(tenant.lease.capacity, True, loop.now())
    server.pause()
    loop.until(lambda: tenant.leasing.statistics.failed > 0)
    server.go_on()

    loop.until(lambda: tenant.commands.statistics.waiting == 0)
    assert tenant.leases.redis.share == 0.0  # nothing of what is here is its share: it has not settled
    assert tenant.lease.room(True, loop.now()) == tenant.lease.capacity
    assert TIMEOUT > SLICE
