# An MQTT client of the load generator without its socket: bytes and a time in, bytes out. publisher.py and
# subscriber.py are the two kinds of clients.
#
# Frequent packets (PUBLISH and its acknowledgements) are parsed in place, and all replies to one recv are sent in one
# write; all other packets go through the codec. The first 16 bytes of a payload are a stamp: the run, the publisher,
# the sequence number and the intended send time. So a subscriber in any process of this machine can determine the
# latency of the message, and whether messages are missing or duplicates.
from typing import Final

from broker.mqtt.decode import decode
from broker.mqtt.encode import encode
from broker.mqtt.fields import read_length
from broker.mqtt.packets import CONNACK, ConnAck, Connect, Disconnect, Packet
from broker.mqtt.properties import SERVER_KEEP_ALIVE
from broker.reasons import CloseReason, ProtocolError

NEW: Final = 0  # nothing sent yet
CONNECTING: Final = 1  # waits for CONNACK
SUBSCRIBING: Final = 2  # waits for SUBACK
UP: Final = 3

STAMP: Final = 16  # bytes: run, publisher, sequence, time in us modulo 2**32; four bytes each, most significant first
WRAP: Final = 0xFFFF_FFFF


class Refused(Exception):
    """The broker refused: *kind* is the name of its packet, *code* the reason code."""

    def __init__(self, kind: str, code: int) -> None:
        super().__init__(f"{kind} 0x{code:02x}")
        self.kind = kind
        self.code = code


class Client:
    """The MQTT state of one connection. Bytes to send are collected in *out*."""

    def __init__(self, connect: Connect) -> None:
        self.version = connect.version
        self.connect = connect
        self.state = NEW
        self.out: list[bytes] = []
        self.publishes = False
        self.keep_alive = connect.keep_alive
        self._rest = bytearray()  # an incomplete packet
        self._needed = 0  # bytes that it needs at least

    def open(self) -> None:
        """Start on a new connection: send CONNECT."""
        self.state = CONNECTING
        self._rest.clear()
        self._needed = 0
        self.out = [encode(self.connect, self.version)]

    def lost(self) -> None:
        """Reset after the connection was lost."""
        self.state = NEW
        self.out = []

    def take(self, data: bytes, now: int) -> None:
        """Process bytes that arrived at *now* (us). Raises Refused, or ProtocolError for invalid MQTT."""
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
                # Bytes that are not MQTT may have an invalid length, for which the client would wait forever.
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
        """Process frequent packets; return the position of the first other or incomplete packet."""
        raise NotImplementedError

    def take_other(self, packet: Packet, now: int) -> None:
        """Process any other packet of an established connection."""
        raise NotImplementedError

    def established(self, answer: ConnAck) -> None:
        """The broker has accepted the CONNECT."""
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
