# The connections that carry the inputs, many at once.
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from broker.mqtt.encode import encode
from broker.mqtt.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, Ack, Disconnect, Packet, Publish
from broker.mqtt.stream import PacketReader
from broker.reasons import ProtocolError
from tests.tools.fuzz.connection import Connection
from tests.tools.fuzz.inputs import Input, Inputs, Parting
from tests.tools.fuzz.loop import Loop
from tests.tools.fuzz.transports import Transport

AT_ONCE: Final = 30  # inputs begun in one turn
PATIENCE: Final = 2.0  # seconds, for a handshake, and for a broker that does not read
LOOK_AGAIN: Final = 0.02  # seconds
LAST_WAIT: Final = 1.0  # seconds for the broker to close, after our half
ABANDONED: Final = 4.0  # seconds; longer than the broker waits for a CONNECT
LIMIT: Final = 1024 * 1024  # bytes of a packet
REMEMBERED: Final = 20_000  # addresses of former connections: the log may speak of them later
ANSWERS: Final = {PUBREC: PUBREL, PUBREL: PUBCOMP}
INTERNAL_ERROR: Final = 0x83

Fail = Callable[[int, str], None]


class Line:
    """One input on its way."""

    def __init__(self, loop: Loop, transport: Transport, script: Input, swarm: "Swarm") -> None:
        self.number = script.number
        self._loop = loop
        self._swarm = swarm
        self._script = script
        self._pieces = deque(script.pieces)
        self._patient_until = loop.now + PATIENCE
        self._reader = PacketReader(script.answers, LIMIT) if script.answers else None
        channel = transport.misbehaving(script.mischief) if script.mischief else transport.channel()
        self._connection = Connection(
            loop, transport.port, channel, self, deaf=script.deaf, cut=script.cut, flip=script.flip
        )
        self.address = self._connection.address
        self._go_on()

    @property
    def open(self) -> bool:
        return self._connection.open

    def _go_on(self) -> None:
        if not self._connection.open:
            return
        if self._pieces:
            self._connection.say(self._pieces.popleft())
            self._loop.later(self._script.pause, self._go_on)
        elif self._connection.waits() and self._loop.now < self._patient_until:
            self._loop.later(LOOK_AGAIN, self._go_on)
        else:
            self._loop.later(self._script.stay, self._part)

    def _part(self) -> None:
        if not self._connection.open:
            return
        parting = self._script.parting
        if parting is Parting.HALF_CLOSE:
            self._connection.shut()
            self._loop.later(LAST_WAIT, self._close)
        elif parting is Parting.ABANDON:
            self._loop.later(ABANDONED, self._close)
        elif parting is Parting.RESET:
            self._connection.reset()
            self.ended("reset")
        else:
            self._close()

    def _close(self) -> None:
        if self._connection.open:
            self._connection.close()
            self.ended("done")

    def heard(self, data: bytes) -> None:
        if self._reader is None:
            return
        try:
            for packet in self._reader.feed(data):
                self._answer(packet)
        except ProtocolError as error:
            self._reader = None
            self._swarm.fail(self.number, f"the broker said what is no MQTT: {error}")

    def ended(self, why: str) -> None:
        self._swarm.left(self)

    def _answer(self, packet: Packet) -> None:
        """What a client would say to it."""
        if isinstance(packet, Disconnect) and packet.code == INTERNAL_ERROR:
            self._swarm.fail(self.number, "the broker ran into a mistake of its own")
        kind = 0
        if isinstance(packet, Publish):
            kind = (0, PUBACK, PUBREC)[packet.qos]
        elif isinstance(packet, Ack):
            kind = ANSWERS.get(packet.kind, 0)
        if kind and isinstance(packet, Publish | Ack):
            self._connection.say(encode(Ack(kind, packet.packet_id), self._script.answers))


class Swarm:
    """Sends *numbers* of *inputs*, at most *most* of them at once."""

    def __init__(
        self, loop: Loop, transport: Transport, inputs: Inputs, numbers: Iterator[int], most: int, fail: Fail
    ) -> None:
        self.fail = fail
        self.sent = 0
        self.refused = 0  # connections that the kernel did not make
        self._loop = loop
        self._transport = transport
        self._inputs = inputs
        self._numbers = numbers
        self._most = most
        self._lines: set[Line] = set()
        self._addresses: dict[str, int] = {}
        self._more = True

    def fill(self) -> None:
        """Begin as many inputs as there is room for; few at a time, as the pair has its turn only in between."""
        for _ in range(min(AT_ONCE, self._most - len(self._lines))):
            number = next(self._numbers, None)
            if number is None:
                self._more = False
                return
            self._begin(number)

    def finished(self) -> bool:
        return not self._more and not self._lines

    def running(self) -> list[int]:
        """The numbers of the inputs on their way, in order."""
        return sorted(line.number for line in self._lines)

    def number_at(self, address: str) -> int | None:
        """Which input came, or comes, from *address*."""
        return self._addresses.get(address)

    def left(self, line: Line) -> None:
        self._lines.discard(line)

    def _begin(self, number: int) -> None:
        try:
            line = Line(self._loop, self._transport, self._inputs[number], self)
        except OSError:
            self.refused += 1
            return
        self.sent += 1
        if line.open:
            self._lines.add(line)
        self._addresses.pop(line.address, None)
        self._addresses[line.address] = number
        if len(self._addresses) > REMEMBERED:
            del self._addresses[next(iter(self._addresses))]
