# Clients that come and go: each subscribes, sends itself a message, stays for a second, and leaves a session behind.
from collections.abc import Callable
from typing import Final

from broker.mqtt.packets import (
    PUBACK,
    V5,
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Publish,
    SubAck,
    Subscribe,
    Wanted,
)
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from tests.tools.fuzz.loop import Loop
from tests.tools.fuzz.pair import PATIENCE, Client, Fail
from tests.tools.fuzz.transports import Transport

EXPIRY: Final = 60  # seconds of the sessions that they leave
STAY: Final = 1.0  # seconds


class Visitor(Client):
    """Calls *served* when it has its own message and the acknowledgement."""

    def __init__(
        self, loop: Loop, transport: Transport, client_id: str, fail: Fail, served: Callable[[], None]
    ) -> None:
        super().__init__(loop, transport, client_id, V5, True, fail)
        self._topic = f"visitors/{client_id}".encode()
        self._served = served
        self._received = self._acknowledged = 0

    def hello(self) -> Connect:
        connect = super().hello()
        connect.properties = {SESSION_EXPIRY_INTERVAL: EXPIRY}
        return connect

    def arrived(self, answer: ConnAck) -> None:
        self.say(Subscribe(1, [Wanted(self._topic, 1)]))

    def take(self, packet: Packet) -> None:
        if isinstance(packet, SubAck):
            self.say(Publish(self._topic, b"hello", 1, packet_id=1))
            return
        if isinstance(packet, Publish):
            self._received += 1
            self.say(Ack(PUBACK, packet.packet_id))
        elif isinstance(packet, Ack) and packet.kind == PUBACK:
            self._acknowledged += 1
        if self._received + self._acknowledged == 2:
            self._served()

    def leave(self, politely: bool) -> None:
        if (self._received, self._acknowledged) != (1, 1):
            self.fail(f"{self.client_id} has {self._received} messages and {self._acknowledged} acknowledgements")
        if politely:
            self.say(Disconnect())
        self.drop(reset=False)


class Visitors:
    """*rate* new clients a second until `stop()`."""

    def __init__(self, loop: Loop, transport: Transport, rate: int, fail: Fail) -> None:
        self.served = 0
        self._came = 0
        self._here: set[Visitor] = set()
        self._loop = loop
        self._transport = transport
        self._rate = rate
        self._fail = fail
        self._began = loop.now
        self._stopped = False

    def start(self) -> None:
        self._began = self._loop.now
        self._come()

    def stop(self) -> None:
        self._stopped = True

    def gone(self) -> bool:
        return not self._here

    def _come(self) -> None:
        if self._stopped:
            return
        politely = self._came % 2 == 0

        def served() -> None:
            self._loop.later(STAY, leave)

        def leave() -> None:
            visitor.leave(politely)
            self._here.discard(visitor)
            self.served += 1

        def judge() -> None:
            if visitor in self._here:
                self._here.discard(visitor)
                visitor.drop(reset=True)
                self._fail(f"{visitor.client_id} was not served within {PATIENCE:.0f} s")

        visitor = Visitor(self._loop, self._transport, f"visitor-{self._came}", self._fail, served)
        visitor.connect()
        self._here.add(visitor)
        self._came += 1
        self._loop.later(PATIENCE, judge)
        self._loop.later(max(0.0, self._began + self._came / self._rate - self._loop.now), self._come)
