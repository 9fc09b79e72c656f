# What is published on a channel of Redis, heard on a line of its own: a connection that subscribes can do little else.
#
# Pub/sub promises nothing: what is published while the line is away never comes. To ask for the channel belongs to the
# greeting, so a line that is READY hears, and a server whose access rules forbid it is asked again as seldom as one
# that does not let us in. An idle line is pinged, or a dead connection would look like silence.
from collections.abc import Callable
from typing import Final

from hiredis import ReplyError

from broker.log import Log
from broker.reasons import StoreFailure
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import READY, REPLY, ByteStream, RedisConnection, failure_of, packed

PING_AFTER: Final = 1.0  # seconds of silence
PING: Final = packed("PING")


class Subscription(RedisConnection):
    def __init__(
        self,
        wire: ByteStream,
        address: RedisAddress,
        name: str,
        log: Log,
        channel: bytes,
        listener: Callable[[bytes, float], None],
    ) -> None:
        """*listener* is called with what is published on *channel*, whoever published it, and the time (s)."""
        super().__init__(wire, address, name, log)
        self._subscribe = packed("SUBSCRIBE", channel)
        self._listener = listener
        self._pinged = False

    def tick(self, now: float) -> float:
        due = super().tick(now)
        if self.state != READY or self._pinged:
            return due
        due = self._heard + PING_AFTER
        if now < due:  # compared as it is returned: rounded otherwise, it could be due and not yet time
            return due
        self._pinged = True
        self._heard = now
        self._wire.write(PING)
        return super().tick(now)

    def _greeting(self) -> list[bytes]:
        return [*super()._greeting(), self._subscribe]

    def _replied(self, reply: object, now: float) -> int:
        if isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message":
            self._listener(reply[2], now)
        elif isinstance(reply, list) and len(reply) == 2 and reply[0] == b"pong":
            self._pinged = False
        elif isinstance(reply, ReplyError):
            self._break(failure_of(reply), str(reply), now)
        else:
            self._break(StoreFailure.MALFORMED_REPLY, "an answer that pub/sub does not have", now)
        return REPLY

    def _ready(self, now: float) -> None:
        self._pinged = False

    def _broken(self, failure: StoreFailure, now: float) -> None:
        pass  # nothing was asked for but to be heard

    def _owed(self) -> bool:
        return self._pinged
