# A subscription to one channel of Redis, on a connection of its own: one that subscribes can do little else.
#
# Pub/sub promises nothing: what is published while the connection is down never arrives. SUBSCRIBE belongs to the
# handshake, so a connection that is READY receives, and a server whose access rules forbid it is tried again as seldom
# as one that refuses the password. An idle connection is pinged, or a dead one would look like silence.
from collections.abc import Callable
from typing import Final

from hiredis import ReplyError

from broker.log import Log
from broker.reasons import StoreFailure
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import READY, REPLY, REQUIRED, ByteStream, RedisConnection, failure_of, packed

PING_AFTER: Final = 1.0  # seconds of silence
PING: Final = packed("PING")


class ChannelSubscription(RedisConnection):
    def __init__(
        self,
        wire: ByteStream,
        address: RedisAddress,
        name: str,
        log: Log,
        channel: bytes,
        listener: Callable[[bytes, float], None],
    ) -> None:
        """*listener* is called with each message on *channel*, this worker's own included, and the time (s)."""
        super().__init__(wire, address, name, log)
        self._subscribe = packed("SUBSCRIBE", channel)
        self._listener = listener
        self._pinged = False

    def tick(self, now: float) -> float:
        due = super().tick(now)
        if self.state != READY or self._pinged:
            return due
        due = self._last_reply + PING_AFTER
        if now < due:  # the same value is compared and returned, or rounding could make a tick due that does nothing
            return due
        self._pinged = True
        self._last_reply = now
        self._wire.write(PING)
        return super().tick(now)

    def _handshake(self) -> list[tuple[int, bytes]]:
        return [*super()._handshake(), (REQUIRED, self._subscribe)]

    def _replied(self, reply: object, now: float) -> int:
        if isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message":
            self._listener(reply[2], now)
        elif isinstance(reply, list) and len(reply) == 2 and reply[0] == b"pong":
            self._pinged = False
        elif isinstance(reply, ReplyError):
            self._disconnect(failure_of(reply), str(reply), now)
        else:
            self._disconnect(StoreFailure.MALFORMED_REPLY, "not a reply of pub/sub", now)
        return REPLY

    def _ready(self, now: float) -> None:
        self._pinged = False

    def _disconnected(self, failure: StoreFailure, now: float) -> None:
        pass  # there are no commands

    def _expects_reply(self) -> bool:
        return self._pinged
