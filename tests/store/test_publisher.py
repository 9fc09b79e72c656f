# PUBLISH on a connection of its own, at a real Redis.
from collections.abc import Callable

import pytest

from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import DISCONNECTED, READY
from broker.store.redis.publisher import FAILED, PublishConnection, publish_head
from broker.store.redis.pubsub import ChannelSubscription
from tests.redis_servers import RunningRedis, free_port
from tests.store.loop import Loop

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]
NEWS = publish_head(b"news")


class Replies:
    def __init__(self) -> None:
        self.receivers: list[int] = []

    def published(self, receivers: int, now: float) -> None:
        self.receivers.append(receivers)


class Publishing:
    def __init__(self, loop: Loop, address: RedisAddress) -> None:
        self.lost = 0
        self.line = PublishConnection(loop.wire(), address, "test", loop.log, self._lost)
        loop.ticking.append(self.line)
        self.line.start(loop.now())
        loop.ready(self.line)

    def _lost(self) -> None:
        self.lost += 1


def test_each_publisher_is_told_who_received_its_messages(start_redis: StartRedis, loop: Loop) -> None:
    """A lane would believe that a worker has left which receives everything."""
    server = start_redis()
    heard: list[bytes] = []
    subscription = ChannelSubscription(
        loop.wire(), server.address, "in", loop.log, b"news", lambda payload, now: heard.append(payload)
    )
    loop.ticking.append(subscription)
    subscription.start(loop.now())
    publishing = Publishing(loop, server.address)
    loop.ready(subscription)
    one, two = Replies(), Replies()
    messages = [b"", b"\r\n+OK\r\n", b"x" * 500_000]
    for message in messages:
        publishing.line.publish(one, NEWS, message, loop.now())
        publishing.line.publish(two, publish_head(b"other"), message, loop.now())
    loop.until(lambda: len(two.receivers) == 3 and len(heard) == 3)

    assert ([1, 1, 1], [0, 0, 0], messages) == (one.receivers, two.receivers, heard)


def test_what_has_no_reply_is_forgotten_with_the_connection(start_redis: StartRedis, loop: Loop) -> None:
    """Replies would be given to publishers of messages that the former connection had."""
    server = start_redis()
    publishing, replies = Publishing(loop, server.address), Replies()
    server.pause()
    publishing.line.publish(replies, NEWS, b"lost", loop.now())
    loop.turn()
    server.kill()
    loop.until(lambda: publishing.line.state == DISCONNECTED)
    server.start()
    loop.ready(publishing.line)
    assert ([], 1) == (replies.receivers, publishing.lost)

    publishing.line.publish(replies, NEWS, b"", loop.now())
    loop.until(lambda: bool(replies.receivers))
    assert [0] == replies.receivers


def test_a_silent_server_is_left(start_redis: StartRedis, loop: Loop) -> None:
    """Lanes would wait for a dead connection for ever."""
    server = start_redis(port=free_port())
    publishing = Publishing(loop, server.address)
    server.pause()
    publishing.line.publish(Replies(), NEWS, b"", loop.now())
    loop.until(lambda: publishing.line.state == DISCONNECTED)
    server.go_on()
    loop.ready(publishing.line)


def test_a_refused_publish_is_told(start_redis: StartRedis, loop: Loop) -> None:
    """A user without the right would send the same as fast as the server refuses it."""
    server = start_redis(more="user weir on >word ~* resetchannels +@all\n")
    address = RedisAddress(path=server.address.path, user="weir", password="word")
    publishing, replies = Publishing(loop, address), Replies()
    publishing.line.publish(replies, NEWS, b"", loop.now())
    loop.until(lambda: bool(replies.receivers))

    assert ([FAILED], READY) == (replies.receivers, publishing.line.state)
