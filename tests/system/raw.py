# A blocking MQTT client that does only what it is told: no automatic acknowledgement, no ping, no reconnect.
#
# What the libraries would not send, or would hide, is tested with this one. It speaks with the broker's own codec,
# which has tests of its own; whatever both ends would get wrong alike shows with the other clients.
import socket
import time
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from broker.mqtt import packets
from broker.mqtt.encode import encode
from broker.mqtt.packets import (
    V5,
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Wanted,
    Will,
)
from broker.mqtt.stream import PacketReader
from tests.system.processes import HOST, PATIENCE

LIMIT: Final = 16 * 1024 * 1024  # of a packet that we take
PACKET_IDS: Final = 65_535

P = TypeVar("P")


class Connection(Protocol):
    """Bytes in order: a socket, or a WebSocket."""

    def sendall(self, data: bytes, /) -> None: ...

    def recv(self, size: int, /) -> bytes: ...

    def settimeout(self, seconds: float | None, /) -> None: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


class RawClient:
    """One connection, to *port* if none is given. Every wait fails with an AssertionError after PATIENCE seconds."""

    def __init__(self, port: int, version: int = V5, connection: Connection | None = None) -> None:
        self.version = version
        self.socket: Connection
        if connection is None:
            self.socket = socket.create_connection((HOST, port), timeout=PATIENCE)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            self.socket = connection
        self._reader = PacketReader(version, LIMIT)
        self._waiting: list[Packet] = []
        self._packet_id = 0

    def close(self) -> None:
        """End without a DISCONNECT."""
        self.socket.close()

    # --- one packet

    def send(self, packet: Packet) -> None:
        self.socket.sendall(encode(packet, self.version))

    def receive(self) -> Packet:
        while not self._waiting:
            data = self._recv()
            assert data, "the broker closed the connection"
            self._waiting += self._reader.feed(data)
        return self._waiting.pop(0)

    def has_more(self) -> bool:
        """Whether something has been read already that `receive()` gives."""
        return len(self._waiting) > 0

    def put_back(self, packets: Sequence[Packet]) -> None:
        """Have `receive()` give *packets* before all others."""
        self._waiting[0:0] = packets

    def expect(self, kind: type[P]) -> P:
        """The next packet, which must be of this type."""
        packet = self.receive()
        assert isinstance(packet, kind), f"expected {kind.__name__}, got {packet}"
        return packet

    def expect_end(self) -> list[Packet]:
        """Wait until the broker closes; returns what it still said."""
        said, self._waiting = self._waiting, []
        while data := self._recv():
            said += self._reader.feed(data)
        return said

    def seconds_until_end(self) -> float:
        """How long the broker holds this silent connection."""
        begin = time.monotonic()
        self.expect_end()
        return time.monotonic() - begin

    def _recv(self) -> bytes:
        try:
            return self.socket.recv(65536)
        except TimeoutError:
            raise AssertionError(f"the broker said nothing for {PATIENCE} s") from None
        except ConnectionResetError:
            return b""

    # --- one exchange

    def connect(
        self,
        client_id: str,
        *,
        clean_start: bool = True,
        keep_alive: int = 0,
        will: Will | None = None,
        properties: Properties | None = None,
    ) -> ConnAck:
        """CONNECT; the answer must be a success."""
        connect = Connect(self.version, client_id, clean_start, keep_alive, will=will, properties=properties or {})
        self.send(connect)
        answer = self.expect(ConnAck)
        assert 0 == answer.code, answer
        return answer

    def subscribe(self, *filters: str | Wanted, qos: int = 0, properties: Properties | None = None) -> list[Publish]:
        """SUBSCRIBE; every filter must be granted. Returns what the broker sent ahead of the SUBACK."""
        wanted = [f if isinstance(f, Wanted) else Wanted(f.encode(), qos) for f in filters]
        self.send(Subscribe(self.next_packet_id(), wanted, properties or {}))
        ahead: list[Publish] = []
        while not isinstance(packet := self.receive(), SubAck):
            assert isinstance(packet, Publish), packet
            ahead.append(packet)
        assert [w.qos for w in wanted] == packet.codes
        return ahead

    def unsubscribe(self, *filters: str) -> UnsubAck:
        self.send(Unsubscribe(self.next_packet_id(), [f.encode() for f in filters]))
        return self.expect(UnsubAck)

    def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        *,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """PUBLISH and wait until it is acknowledged."""
        packet_id = self.next_packet_id() if qos else 0
        self.send(Publish(topic.encode(), payload, qos, retain, packet_id=packet_id, properties=properties or {}))
        if qos == 1:
            self.expect_ack(packets.PUBACK, packet_id)
        elif qos == 2:
            self.expect_ack(packets.PUBREC, packet_id)
            self.send(Ack(packets.PUBREL, packet_id))
            self.expect_ack(packets.PUBCOMP, packet_id)

    def take(self) -> Publish:
        """The next message, acknowledged in full."""
        message = self.expect(Publish)
        self.acknowledge(message)
        return message

    def acknowledge(self, message: Publish) -> None:
        if message.qos == 1:
            self.send(Ack(packets.PUBACK, message.packet_id))
        elif message.qos == 2:
            self.send(Ack(packets.PUBREC, message.packet_id))
            self.expect_ack(packets.PUBREL, message.packet_id)
            self.send(Ack(packets.PUBCOMP, message.packet_id))

    def take_until(self, payload: bytes) -> list[Publish]:
        """The messages before the one with this payload, all acknowledged: what must not come is not among them."""
        messages: list[Publish] = []
        while (message := self.take()).payload != payload:
            messages.append(message)
        return messages

    def expect_ack(self, kind: int, packet_id: int) -> Ack:
        """The next packet that is no message must be this; messages before it stay for take()."""
        messages: list[Packet] = []
        while isinstance(packet := self.receive(), Publish):
            messages.append(packet)
        self.put_back(messages)
        assert isinstance(packet, Ack) and (kind, packet_id) == (packet.kind, packet.packet_id), packet
        return packet

    def ping(self) -> None:
        """What we sent before has been taken when this returns."""
        self.send(PingReq())
        self.expect(PingResp)

    def disconnect(self, code: int = 0, properties: Properties | None = None) -> None:
        """DISCONNECT, and wait until the broker has closed its end."""
        self.send(Disconnect(code, properties or {}))
        assert [] == self.expect_end()
        self.close()

    def next_packet_id(self) -> int:
        self._packet_id = self._packet_id % PACKET_IDS + 1
        return self._packet_id


def payloads(messages: Sequence[Publish]) -> list[bytes]:
    return [message.payload for message in messages]
