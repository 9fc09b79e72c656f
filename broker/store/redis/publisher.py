# A connection to Redis that does nothing but PUBLISH, for messages that are many and large.
#
# A `CommandPipeline` copies a command twice and makes an object for each; here the command is put together once, and
# what waits for the reply is the publisher itself. The reply is the number of clients that are subscribed to the
# channel at this server. Nothing times out or is sent again here: the caller knows what is not confirmed. It bounds
# what has no reply, too, and submits nothing while the connection is not READY.
#
# PUBLISH reaches the subscribers of all servers of a Redis Cluster, at the price of a copy for each server. SPUBLISH
# would not, but the two connections of a worker would have to follow the slot of each channel.
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from hiredis import ReplyError

from broker.log import Log
from broker.reasons import StoreFailure
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import RECONNECT_AFTER, REPLY, ByteStream, RedisConnection, failure_of

FAILED: Final = -1  # in place of the number of receivers


class Publisher(Protocol):
    def published(self, receivers: int, now: float) -> None:
        """The oldest message of this publisher without a reply went to so many *receivers*, or FAILED.

        If the connection ends, nothing is called for what has no reply.
        """
        ...


class PublishConnection(RedisConnection):
    def __init__(
        self,
        wire: ByteStream,
        address: RedisAddress,
        name: str,
        log: Log,
        disconnected: Callable[[], None],
    ) -> None:
        """*disconnected* is called when the connection has ended, and no reply will come for what was published."""
        super().__init__(wire, address, name, log)
        self._waiting: deque[Publisher] = deque()  # in the order of the replies
        self._on_disconnected = disconnected

    def publish(self, publisher: Publisher, head: bytes, message: bytes, now: float) -> None:
        """Publish *message*. *head*: `publish_head()` of the channel. Only while the connection is READY."""
        if not self._waiting:
            self._last_reply = now
        self._waiting.append(publisher)
        self._wire.write(b"%b%d\r\n%b\r\n" % (head, len(message), message))

    def _replied(self, reply: object, now: float) -> int:
        if not self._waiting:
            self._disconnect(StoreFailure.MALFORMED_REPLY, "a reply without a command", now)
            return REPLY
        publisher = self._waiting.popleft()
        if isinstance(reply, int):
            publisher.published(reply, now)
        elif isinstance(reply, ReplyError):
            publisher.published(FAILED, now)
            failure = failure_of(reply)
            if failure in RECONNECT_AFTER:
                self._disconnect(failure, str(reply), now)
        else:
            self._disconnect(StoreFailure.MALFORMED_REPLY, "not a reply to PUBLISH", now)
        return REPLY

    def _ready(self, now: float) -> None:
        pass  # `times_ready` says so

    def _disconnected(self, failure: StoreFailure, now: float) -> None:
        self._waiting.clear()
        self._on_disconnected()

    def _expects_reply(self) -> bool:
        return len(self._waiting) > 0


def publish_head(channel: bytes) -> bytes:
    """How PUBLISH to *channel* begins, up to the size of the message."""
    return b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n$" % (len(channel), channel)
