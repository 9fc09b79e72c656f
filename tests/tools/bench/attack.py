# What all attacks have in common: connections that say something, and are opened again when the broker ends them.
from collections.abc import Callable, Iterator
from typing import Final

from broker.mqtt.encode import encode
from broker.mqtt.packets import V311, Connect, Packet
from tests.tools.fuzz.channels import Channel
from tests.tools.fuzz.connection import Connection
from tests.tools.fuzz.loop import Loop
from tests.tools.fuzz.transports import Transport

OPENING_AT_ONCE: Final = 200  # connections that are not answered yet, while a crowd gathers
AGAIN: Final = 0.01  # seconds until a connection that was ended is opened again
FULL_SPEED: Final = 0.0005  # seconds between two looks whether a flood can go on

Speak = Callable[["Hostile"], None]


class Hostile:
    """One connection of an attack: says *first*, then what *speak* has it say; opened again when it is ended."""

    def __init__(
        self, attack: "Attack", number: int, first: bytes, speak: Speak | None = None, deaf: bool = False
    ) -> None:
        self.attack = attack
        self.number = number
        self.first = first
        self.speak = speak
        self.deaf = deaf
        self.heard_bytes = 0
        self.connection = self._open()

    def say(self, data: bytes) -> None:
        self.attack.said += len(data)
        self.connection.say(data)

    def heard(self, data: bytes) -> None:
        if not self.heard_bytes:
            self.attack.answered()
        self.heard_bytes += len(data)
        self.attack.heard(self, data)

    def ended(self, why: str) -> None:
        self.attack.ended += 1
        if not self.heard_bytes:
            self.attack.answered()
        self.attack.loop.later(AGAIN, self.again)

    def again(self) -> None:
        self.heard_bytes = 0
        self.connection = self._open()
        self._begin()

    def begin(self) -> None:
        self._begin()

    def _open(self) -> Connection:
        attack = self.attack
        attack.opened += 1
        where = attack.loop, attack.transport.port, attack.channel()
        return Connection(*where, self, deaf=self.deaf, source=attack.source)

    def _begin(self) -> None:
        if self.first:
            self.say(self.first)
        if self.speak is not None:
            self.speak(self)


class Attack:
    """What all have in common: how many connections, and when all are there."""

    over = ""  # the listener that is attacked; "": that of the pair
    beside = ""  # what an honest client does meanwhile, see visits.py
    source = ""  # the only address that the connections come from; "": many

    def __init__(self, loop: Loop, transport: Transport) -> None:
        self.loop = loop
        self.transport = transport
        self.opened = 0
        self.ended = 0  # by the broker
        self.said = 0  # bytes
        self.ready = False
        self._coming: Iterator[tuple[int, Callable[[int], Hostile]]] = iter(())
        self._waiting = 0
        self.members: list[Hostile] = []

    def start(self) -> None:
        raise NotImplementedError

    def channel(self) -> Channel:
        return self.transport.channel()

    def heard(self, who: Hostile, data: bytes) -> None:
        """Most do not care."""

    def gather(self, most: int, make: Callable[[int], Hostile], patient: bool = True) -> None:
        """Open *most* connections; if *patient*, only so many at once as are soon answered."""
        self._coming = ((number, make) for number in range(most))
        self._come(OPENING_AT_ONCE if patient else most)

    def answered(self) -> None:
        self._waiting -= 1
        self._come(OPENING_AT_ONCE - self._waiting)

    def _come(self, room: int) -> None:
        for _ in range(room):
            following = next(self._coming, None)
            if following is None:
                self.ready = True
                return
            self._waiting += 1
            number, make = following
            one = make(number)
            self.members.append(one)
            one.begin()


def packets(*said: Packet) -> bytes:
    return b"".join([encode(packet, V311) for packet in said])


def hello(number: int, *then: Packet) -> bytes:
    return packets(Connect(V311, f"hostile-{number}", True, 600), *then)


class Flood:
    """Has *who* say one block after the other, whenever the former is with the kernel."""

    def __init__(self, who: Hostile, block: Callable[[], bytes]) -> None:
        self._who = who
        self._block = block

    def go_on(self) -> None:
        if not self._who.connection.waits():
            self._who.say(self._block())
        self._who.attack.loop.later(FULL_SPEED, self.go_on)
