# A blocking MQTT client for `weir pub` and `weir sub`, on the broker's own codec.
#
# Acknowledgements and pings are sent inside `receive()`, so a caller that waits for messages keeps the connection
# alive.
import os
import select
import socket
import time
from collections import deque
from typing import Final

from broker.mqtt.encode import encode
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    Publish,
    SubAck,
    Subscribe,
    Wanted,
)
from broker.mqtt.properties import SERVER_KEEP_ALIVE
from broker.mqtt.stream import PacketReader
from broker.reasons import ProtocolError
from cli.endpoint import PATIENCE, Endpoint
from cli.load.channel import Channel, Hangup
from cli.load.client import Refused

KEEP_ALIVE: Final = 60  # seconds
LARGEST: Final = 1 << 28  # bytes of a packet: the maximum of MQTT
READ: Final = 64 * 1024
PACKET_IDS: Final = 65535

# The exceptions that can end a conversation; Endpoint.explain() has a sentence for each.
TROUBLE: Final = (OSError, Hangup, Refused, ProtocolError)


class Conversation:
    """An open MQTT connection to *endpoint*. Every method may raise one of TROUBLE."""

    def __init__(self, endpoint: Endpoint, connect: Connect) -> None:
        self.version = connect.version
        self._reader = PacketReader(connect.version, LARGEST)
        self._packets: deque[Packet] = deque()
        self._keep_alive = connect.keep_alive
        self._sent = time.monotonic()
        self._packet_id = 0
        self._unreleased: set[int] = set()  # packet ids of QoS 2 messages before their PUBREL
        self._channel = _connected(endpoint)
        try:
            self.send(connect)
            answer = self._expect()
            if not isinstance(answer, ConnAck):
                raise Hangup
            if answer.code:
                raise Refused("CONNACK", answer.code)
        except BaseException:
            self._channel.sock.close()
            raise
        keep_alive = answer.properties.get(SERVER_KEEP_ALIVE)  # [MQTT-3.1.2-21]
        if isinstance(keep_alive, int):
            self._keep_alive = keep_alive

    def send(self, packet: Packet) -> None:
        data = encode(packet, self.version)
        channel = self._channel
        while data or channel.unsent:
            try:
                data = data[channel.send(data) :] if data else data
                channel.flush()
            except BlockingIOError:
                pass
            if data or channel.unsent:
                _await(channel, time.monotonic() + PATIENCE, sending=True)
        self._sent = time.monotonic()

    def receive(self, other: int = -1) -> Publish | None:
        """Wait for a message. None as soon as the descriptor *other* is readable."""
        while True:
            while self._packets:
                packet = self._packets.popleft()
                if isinstance(packet, Publish) and self._is_new(packet):
                    return packet
                self._answer(packet)
            if not self._fill(other):
                return None

    def publish(self, message: Publish) -> None:
        """Publish *message* and wait for its acknowledgement. Refused if the broker refuses it."""
        if message.qos:
            message.packet_id = self._next_id()
        self.send(message)
        if message.qos == 1:
            self._expect_ack(PUBACK, message.packet_id)
        elif message.qos == 2:
            self._expect_ack(PUBREC, message.packet_id)
            self.send(Ack(PUBREL, message.packet_id))
            self._expect_ack(PUBCOMP, message.packet_id)

    def subscribe(self, filters: list[bytes], qos: int) -> list[int]:
        """Subscribe; one reason code per filter. Messages that arrive before SUBACK are kept for `receive()`."""
        packet_id = self._next_id()
        self.send(Subscribe(packet_id, [Wanted(filter, qos) for filter in filters]))
        early: list[Packet] = []
        while not isinstance(packet := self._expect(), SubAck):
            early.append(packet)
        self._packets.extendleft(reversed(early))
        return packet.codes

    def acknowledge(self, message: Publish) -> None:
        """Acknowledge *message*."""
        if message.qos == 1:
            self.send(Ack(PUBACK, message.packet_id))
        elif message.qos == 2:
            self._unreleased.add(message.packet_id)
            self.send(Ack(PUBREC, message.packet_id))

    def close(self) -> None:
        """Send DISCONNECT and close the connection."""
        try:
            self.send(Disconnect())
        except OSError:
            pass  # the broker has closed the connection already
        self._channel.sock.close()

    def _is_new(self, message: Publish) -> bool:
        return message.qos < 2 or message.packet_id not in self._unreleased  # [MQTT-4.3.3-10]

    def _answer(self, packet: Packet) -> None:
        if isinstance(packet, Disconnect):
            raise Refused("DISCONNECT", packet.code)
        if isinstance(packet, Publish):
            self.send(Ack(PUBREC, packet.packet_id))  # again
        elif isinstance(packet, Ack) and packet.kind == PUBREL:
            self._unreleased.discard(packet.packet_id)
            self.send(Ack(PUBCOMP, packet.packet_id))

    def _expect_ack(self, kind: int, packet_id: int) -> None:
        while True:
            packet = self._expect()
            if isinstance(packet, Ack) and packet.packet_id == packet_id and packet.kind in (kind, PUBREC):
                if packet.code >= 0x80:
                    raise Refused("PUBREC" if packet.kind == PUBREC else "PUBACK", packet.code)
                if packet.kind == kind:
                    return

    def _expect(self) -> Packet:
        """The next packet. TimeoutError after PATIENCE seconds."""
        deadline = time.monotonic() + PATIENCE
        while not self._packets:
            if time.monotonic() > deadline:
                raise TimeoutError
            self._fill(-1)
        packet = self._packets.popleft()
        if isinstance(packet, Disconnect):
            raise Refused("DISCONNECT", packet.code)
        return packet

    def _fill(self, other: int) -> bool:
        """Wait up to a second for packets. False if *other* is readable and no packet has arrived."""
        ours = self._channel.sock.fileno()
        readable = select.select([ours, other] if other >= 0 else [ours], [], [], 1.0)[0]
        if ours in readable:
            self._take()
        elif other in readable:
            return False
        if self._keep_alive and time.monotonic() - self._sent > self._keep_alive / 2:
            self.send(PingReq())
        return True

    def _take(self) -> None:
        """Read and decode what has arrived."""
        try:
            data = self._channel.receive(READ)
        except BlockingIOError:
            return
        if not data:
            raise Hangup
        self._packets.extend(self._reader.feed(data))

    def _next_id(self) -> int:
        self._packet_id = self._packet_id % PACKET_IDS + 1
        return self._packet_id


def _connected(endpoint: Endpoint) -> Channel:
    """A transport connection that is ready for MQTT."""
    deadline = time.monotonic() + PATIENCE
    channel = endpoint.dial()
    try:
        _await(channel, deadline, sending=True)
        failure = channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            raise OSError(failure, os.strerror(failure))
        while not channel.handshake():
            _await(channel, deadline, sending=channel.unsent)
        return channel
    except BaseException:
        channel.sock.close()
        raise


def _await(channel: Channel, deadline: float, *, sending: bool) -> None:
    """Wait until the socket is readable or, if *sending*, writable. TimeoutError at *deadline*."""
    left = max(0.0, deadline - time.monotonic())
    ours = [channel.sock.fileno()]
    if not any(select.select([] if sending else ours, ours if sending else [], [], left)):
        raise TimeoutError
