# How full Redis is, as each version tells it, and as it is when nobody tells it.
from collections.abc import Callable

import pytest

from broker.store.redis.address import RedisAddress
from broker.store.redis.memory import OLD, PERIOD, RedisMemory
from broker.store.redis.pipeline import CommandPipeline
from supervisor.redis_server import RedisServer
from tests.redis_servers import RunningRedis
from tests.store.loop import Loop

StartRedis = Callable[..., RunningRedis]
MANY = 32 << 20  # bytes


class Asking:
    """What asks, with a clock that the test sets."""

    def __init__(self, loop: Loop, redis: RunningRedis) -> None:
        self.commands = CommandPipeline(loop.wire(), redis.address, "asking", loop.log)
        self.memory = RedisMemory(self.commands)
        self._loop = loop
        loop.stop_clock()
        loop.ticking.append(self.commands)
        self.commands.start(loop.now())
        loop.ready(self.commands)

    def ask(self, later: float = PERIOD) -> RedisMemory:
        self._loop.stop_clock(later)
        assert self.memory.tick(self._loop.now()) == self._loop.now() + PERIOD
        self._loop.until(lambda: not self.commands.statistics.waiting)
        return self.memory


@pytest.mark.system
def test_the_fill_follows_the_data_and_the_limit(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """An operator would see a store that is nearly full as empty, or be warned of one that has no limit."""
    redis = start_redis(every_server)
    asking = Asking(loop, redis)
    with redis.client() as client:
        assert (0, 0.0) == (asking.ask().limit, asking.memory.fill())
        assert asking.memory.used > 0
        client.config_set("maxmemory", MANY)
        empty = asking.ask().fill()
        client.set("large", bytes(MANY // 4))
        filled = asking.ask().fill()

    assert 0.0 < empty < filled - 0.2 < 0.8


@pytest.mark.system
def test_what_a_server_does_not_tell_is_not_known(start_redis: StartRedis, loop: Loop) -> None:
    """A server that is away would count as full for ever; each worker would send it more and more questions."""
    redis = start_redis(more=f"maxmemory {MANY}\n")
    asking = Asking(loop, redis)
    assert asking.ask().fill() > 0.0
    sent = asking.commands.statistics.sent
    redis.pause()
    for _ in range(3):
        loop.stop_clock(PERIOD)
        asking.memory.tick(loop.now())
    assert asking.commands.statistics.sent == sent + 1
    assert asking.memory.fill() > 0.0
    asking.memory.tick(loop.now() + OLD)

    assert (0, 0.0) == (asking.memory.limit, asking.memory.fill())
    redis.go_on()


def test_a_reply_of_another_form_tells_nothing(loop: Loop) -> None:
    """A proxy that answers INFO with something else would bring the worker down."""
    memory = RedisMemory(CommandPipeline(loop.wire(), RedisAddress(path="/none"), "none", loop.log))
    for text in (b"", b"# Memory\r\nmaxmemory:x\r\nused_memory", b"used_memory:5\r\nmaxmemory:-1\r\n"):
        memory.told(text, 1.0)
        assert 0.0 == memory.fill()
    memory.told(b"used_memory:5\r\nmem_not_counted_for_evict:1\r\nmaxmemory:8\r\n", 1.0)
    assert 0.5 == memory.fill()
    memory.told(b"used_memory:5\r\nmem_not_counted_for_evict:9\r\nmaxmemory:8\r\n", 1.0)
    assert 0.0 == memory.fill()
