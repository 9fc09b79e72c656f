# An MQTT client of a load without its socket: bytes and a time in, bytes out. publisher.py and subscriber.py are the
# two kinds that there are.
#
# What comes by the million (PUBLISH, and the packets that acknowledge one) is read in place and answered in one write
# for all that a recv brought; every other packet goes through the codec. A message carries its own measure in the
# first 16 bytes of its payload: whose run it belongs to, who published it, the how manieth of that publisher it is,
# and when it was meant to be sent. So whoever receives it, in whatever process of this machine, can tell its latency
# and whether one is missing or came twice.
from typing import Final

from broker.mqtt.decode import decode
from broker.mqtt.encode import encode
from broker.mqtt.fields import read_length
from broker.mqtt.packets import CONNACK, ConnAck, Connect, Disconnect, Packet
from broker.mqtt.properties import SERVER_KEEP_ALIVE
from broker.reasons import CloseReason, ProtocolError

NEW: Final = 0  # nothing was said yet
CONNECTING: Final = 1  # waits for CONNACK
SUBSCRIBING: Final = 2  # waits for SUBACK
UP: Final = 3

STAMP: Final = 16  # bytes: run, publisher, sequence, time in us modulo 2**32; four bytes each, most significant first
WRAP: Final = 0xFFFF_FFFF


class Refused(Exception):
    """The broker said no, or what is no MQTT. *kind* is the packet that said it, *code* its code."""

    def __init__(self, kind: str, code: int) -> None:
        super().__init__(f"{kind} 0x{code:02x}")
        self.kind = kind
        self.code = code


class Client:
    """One connection's worth of MQTT. What it wants to send collects in *out*."""

    def __init__(self, connect: Connect) -> None:
        self.version = connect.version
        self.connect = connect
        self.state = NEW
        self.out: list[bytes] = []
        self.publishes = False
        self.keep_alive = connect.keep_alive
        self._rest = bytearray()  # an unfinished packet
        self._needed = 0  # bytes of it without which there is nothing to read

    def open(self) -> None:
        """There is a connection, and nothing was said on it."""
        self.state = CONNECTING
        self._rest.clear()
        self._needed = 0
        self.out = [encode(self.connect, self.version)]

    def lost(self) -> None:
        """The connection is gone."""
        self.state = NEW
        self.out = []

    def take(self, data: bytes, now: int) -> None:
        """Take what arrived at *now* (us). Raises Refused, or ProtocolError for what is no MQTT."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
            self._rest.clear()
        position = 0
        end = len(data)
        while position < end:
            if self.state == UP:
                position = self.take_run(data, position, end, now)
                if position == end:
                    return
            if self.state == CONNECTING and data[position] != CONNACK << 4:
                # A length that is none would have us wait for what never comes.
                raise ProtocolError(CloseReason.NOT_MQTT, f"answers with 0x{data[position]:02x}")  # [MQTT-3.2.0-1]
            length, body = -1, position
            if position + 1 < end:
                length, body = read_length(data, position + 1, end, self.version)
            if length < 0 or body + length > end:
                self._needed = body + length - position if length >= 0 else end - position + 1
                self._rest += data[position:]
                return
            self._take_packet(decode(data[position], data, body, body + length, self.version), now)
            position = body + length

    def take_run(self, data: bytes, position: int, end: int, now: int) -> int:
        """Take the packets that come by the million; the position of the first that is another or not whole."""
        raise NotImplementedError

    def take_other(self, packet: Packet, now: int) -> None:
        """Take any other packet of a connection that is up."""
        raise NotImplementedError

    def established(self, answer: ConnAck) -> None:
        """CONNACK said yes."""
        raise NotImplementedError

    def ping(self) -> None:
        self.out.append(b"\xc0\0")

    def _take_packet(self, packet: Packet, now: int) -> None:
        if isinstance(packet, Disconnect):
            raise Refused("DISCONNECT", packet.code)
        if isinstance(packet, ConnAck):
            if packet.code:
                raise Refused("CONNACK", packet.code)
            keep_alive = packet.properties.get(SERVER_KEEP_ALIVE)  # [MQTT-3.1.2-21]
            if isinstance(keep_alive, int):
                self.keep_alive = keep_alive
            self.established(packet)
        elif self.state != CONNECTING:
            self.take_other(packet, now)
