# A channel of a real Redis, and what becomes of who listens when the server goes away.
from collections.abc import Callable

import pytest

from broker.reasons import StoreFailure
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import DISCONNECTED, FIRST_PAUSE, READY
from broker.store.redis.pubsub import PING_AFTER, ChannelSubscription
from supervisor.redis_server import RedisServer
from tests.redis_servers import RunningRedis, free_port
from tests.store.loop import Loop

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]


class Ears:
    def __init__(self, loop: Loop, address: RedisAddress) -> None:
        self.messages: list[bytes] = []
        self.line = ChannelSubscription(loop.wire(), address, "test", loop.log, b"news", self._heard)
        loop.ticking.append(self.line)
        self.line.start(loop.now())

    def _heard(self, payload: bytes, now: float) -> None:
        self.messages.append(payload)


def publish(server: RunningRedis, *payloads: str, channel: str = "news") -> None:
    with server.client() as client:
        for payload in payloads:
            client.publish(channel, payload)


@pytest.mark.parametrize("reached_by", ["unix", "tcp"])
def test_what_is_published_is_heard_in_order(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop, reached_by: str
) -> None:
    """The workers of other nodes would not hear of levels, or of old ones last, or what is not theirs."""
    server = start_redis(every_server, port=free_port() if reached_by == "tcp" else 0)
    ears = Ears(loop, server.address)
    loop.ready(ears.line)
    numbers = [str(number) for number in range(300)]

    publish(server, "nobody's", channel="other news")
    publish(server, *numbers)
    loop.until(lambda: len(ears.messages) >= 300)

    assert [number.encode() for number in numbers] == ears.messages


def test_a_message_may_be_empty_large_and_anything(start_redis: StartRedis, loop: Loop) -> None:
    """Somebody's bytes would be taken for an answer of the server, or end the line."""
    server = start_redis()
    ears = Ears(loop, server.address)
    loop.ready(ears.line)

    publish(server, "", "x" * 1_000_000, "\r\n-ERR no\r\n")
    loop.until(lambda: len(ears.messages) == 3)

    assert [0, 1_000_000, 11] == [len(message) for message in ears.messages]
    assert (READY, 1) == (ears.line.state, ears.line.times_ready)


def test_a_restart_resumes(start_redis: StartRedis, loop: Loop) -> None:
    """Nothing would be heard ever after Redis was away for a moment."""
    server = start_redis()
    ears = Ears(loop, server.address)
    loop.ready(ears.line)
    server.kill()
    loop.until(lambda: ears.line.state == DISCONNECTED)
    server.start()
    loop.ready(ears.line)

    publish(server, "after")
    loop.until(lambda: bool(ears.messages))

    assert [b"after"] == ears.messages


def test_a_silent_server_is_left(start_redis: StartRedis, loop: Loop) -> None:
    """A dead connection looks like silence: nothing would be heard, and nobody would know."""
    server = start_redis(port=free_port())
    ears = Ears(loop, server.address)
    loop.ready(ears.line)
    server.pause()
    loop.until(lambda: ears.line.state == DISCONNECTED)

    assert [StoreFailure.TIMEOUT.label] == [facts["reason"] for facts in loop.log.named("redis_unavailable")]
    server.go_on()
    loop.ready(ears.line)


def test_an_idle_line_that_is_answered_stays(start_redis: StartRedis, loop: Loop) -> None:
    """Each quiet moment would end in a reconnection, and what is said meanwhile be missed."""
    ears = Ears(loop, start_redis().address)
    loop.ready(ears.line)
    for _ in range(2):
        loop.for_seconds(PING_AFTER + 0.1)
        loop.until(lambda: not ears.line._expects_reply())

    assert (READY, 1) == (ears.line.state, ears.line.times_ready)


def test_who_may_not_listen_asks_ever_more_seldom_and_says_so_once(start_redis: StartRedis, loop: Loop) -> None:
    """A user without the right would be let in and thrown out twenty times a second, and each time logged."""
    server = start_redis(more="user weir on >word ~* resetchannels +@all\n")
    address = RedisAddress(path=server.address.path, user="weir", password="word")
    ears = Ears(loop, address)
    loop.until(lambda: ears.line._pause >= 8 * FIRST_PAUSE)

    assert [StoreFailure.FORBIDDEN.label] == [facts["reason"] for facts in loop.log.named("redis_unavailable")]
    assert 0 == ears.line.times_ready
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "weir", "allchannels")
    loop.ready(ears.line)
