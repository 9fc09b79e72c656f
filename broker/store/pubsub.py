# Subscriptions to Redis' pub/sub: a line of its own, as a connection that subscribes can do little else.
#
# Pub/sub promises nothing: what is published while the line is away never comes. So `Listener.resumed()` is called
# each time that all channels are subscribed to (again), and whoever needs to have heard everything asks for a full
# state then. An idle line is pinged, or a dead connection would look like silence.
from typing import Final, Protocol

from hiredis import ReplyError

from broker.reasons import StoreFailure
from broker.store.address import RedisAddress
from broker.store.line import READY, Line, Log, Wire, failure_of, packed

PING_AFTER: Final = 1.0  # seconds of silence
PING: Final = packed("PING")


class Listener(Protocol):
    """Who hears what is published."""

    def heard(self, channel: bytes, payload: bytes, now: float) -> None: ...

    def resumed(self, now: float) -> None:
        """Everything is subscribed to; what was published before may have been missed."""
        ...


class Subscriptions(Line):
    def __init__(self, wire: Wire, address: RedisAddress, name: str, log: Log, listener: Listener) -> None:
        super().__init__(wire, address, name, log)
        self.messages = 0  # heard
        self._listener = listener
        self._channels: dict[bytes, bool] = {}  # true: the server has confirmed it
        self._unconfirmed = 0
        self._pinged = False

    def subscribe(self, channels: list[bytes], now: float) -> None:
        """Hear *channels* as well, now and after each reconnection."""
        new = [channel for channel in channels if channel not in self._channels]
        for channel in new:
            self._channels[channel] = False
        if new and self.state == READY:
            self._ask_for(new, now)

    def tick(self, now: float) -> float:
        due = super().tick(now)
        if self.state == READY and not self._owed():
            if now - self._heard >= PING_AFTER:
                self._pinged = True
                self._heard = now
                self._wire.write(PING)
                return super().tick(now)
            due = min(due, self._heard + PING_AFTER)
        return due

    def _ask_for(self, channels: list[bytes], now: float) -> None:
        if not self._owed():
            self._heard = now
        self._unconfirmed += len(channels)
        self._wire.write(packed("SUBSCRIBE", *channels))

    def _replied(self, reply: object, now: float) -> None:
        if isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message":
            self.messages += 1
            self._listener.heard(reply[1], reply[2], now)
        elif isinstance(reply, list) and len(reply) == 3 and reply[0] == b"subscribe":
            self._channels[reply[1]] = True
            self._unconfirmed -= 1
            if self._unconfirmed == 0:
                self._listener.resumed(now)
        elif isinstance(reply, list) and len(reply) == 2 and reply[0] == b"pong":
            self._pinged = False
        elif isinstance(reply, ReplyError):
            self._break(failure_of(reply), str(reply), now)
        elif reply == b"PONG":  # as it is said to who has not subscribed to anything yet
            self._pinged = False
        else:
            self._break(StoreFailure.GARBLED, "an answer that pub/sub does not have", now)

    def _ready(self, now: float) -> None:
        self._heard = now
        self._pinged = False
        self._unconfirmed = 0
        if self._channels:
            self._ask_for(list(self._channels), now)

    def _broken(self, failure: StoreFailure, now: float) -> None:
        for channel in self._channels:
            self._channels[channel] = False

    def _owed(self) -> bool:
        return self._pinged or self._unconfirmed > 0
