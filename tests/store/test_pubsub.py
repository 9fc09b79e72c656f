# Pub/sub of a real Redis, and what happens to it when the server goes away.
from collections.abc import Callable

import pytest

from broker.reasons import StoreFailure
from broker.store.address import RedisAddress
from broker.store.line import AWAY, READY
from broker.store.pubsub import Subscriptions
from supervisor.redis_server import RedisServer
from tests.redis_servers import RunningRedis, free_port
from tests.store.loop import Loop

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]


class Ears:
    def __init__(self) -> None:
        self.messages: list[tuple[bytes, bytes]] = []
        self.resumptions = 0

    def heard(self, channel: bytes, payload: bytes, now: float) -> None:
        self.messages.append((channel, payload))

    def resumed(self, now: float) -> None:
        self.resumptions += 1


def subscribe(loop: Loop, address: RedisAddress, *channels: bytes) -> tuple[Subscriptions, Ears]:
    ears = Ears()
    subscriptions = Subscriptions(loop.wire(), address, "test", loop.log, ears)
    loop.ticking.append(subscriptions)
    subscriptions.subscribe(list(channels), loop.now())
    subscriptions.start(loop.now())
    return subscriptions, ears


def test_what_is_published_is_heard_in_order(start_redis: StartRedis, every_server: RedisServer, loop: Loop) -> None:
    """The workers of other nodes would not hear of levels, or of old ones last."""
    server = start_redis(every_server)
    subscriptions, ears = subscribe(loop, server.address, b"a", b"b")
    loop.until(lambda: ears.resumptions == 1)
    with server.client() as publisher:
        for number in range(300):
            publisher.publish("a" if number % 2 else "b", str(number))
        publisher.publish("c", "nobody's")
    loop.until(lambda: len(ears.messages) >= 300)

    assert [(b"a" if number % 2 else b"b", str(number).encode()) for number in range(300)] == ears.messages
    assert 300 == subscriptions.messages


def test_more_channels_may_come_later(start_redis: StartRedis, loop: Loop) -> None:
    """All channels would have to be known before the first connection."""
    server = start_redis()
    subscriptions, ears = subscribe(loop, server.address)
    loop.ready(subscriptions)
    subscriptions.subscribe([b"late"], loop.now())
    loop.until(lambda: ears.resumptions == 1)
    with server.client() as publisher:
        publisher.publish("late", "x")
    loop.until(lambda: bool(ears.messages))

    assert [(b"late", b"x")] == ears.messages


def test_a_restart_resumes_and_says_so(start_redis: StartRedis, loop: Loop) -> None:
    """Nobody would ask for what was missed while Redis was away, or nothing would be heard ever after."""
    server = start_redis()
    _, ears = subscribe(loop, server.address, b"a")
    loop.until(lambda: ears.resumptions == 1)
    server.kill()
    server.start()
    loop.until(lambda: ears.resumptions == 2)
    with server.client() as publisher:
        publisher.publish("a", "after")
    loop.until(lambda: bool(ears.messages))

    assert [(b"a", b"after")] == ears.messages


def test_a_silent_server_is_left(start_redis: StartRedis, loop: Loop) -> None:
    """A dead connection looks like silence: nothing would be heard, and nobody would know."""
    server = start_redis(port=free_port())
    subscriptions, ears = subscribe(loop, server.address, b"a")
    loop.until(lambda: ears.resumptions == 1)
    server.pause()
    loop.until(lambda: subscriptions.state == AWAY)

    assert [StoreFailure.LATE.label] == [facts["reason"] for facts in loop.log.named("redis_away")]
    server.go_on()
    loop.until(lambda: ears.resumptions == 2)


def test_an_idle_line_that_is_answered_stays(start_redis: StartRedis, loop: Loop) -> None:
    """Each quiet moment would end in a reconnection, and each of those in a full state of everything."""
    subscriptions, ears = subscribe(loop, start_redis().address)
    loop.ready(subscriptions)
    loop.for_seconds(1.3)  # a ping with nothing subscribed to,
    subscriptions.subscribe([b"a"], loop.now())
    loop.for_seconds(1.3)  # and one with

    assert (READY, 1, 1) == (subscriptions.state, subscriptions.connected, ears.resumptions)
    assert not subscriptions._owed()
