# A client that stays connected: whenever its connection ends it connects again, until it is closed.
import errno
import select
import socket
from collections.abc import Callable
from typing import Final

from broker.mqtt.encode import encode
from broker.mqtt.packets import (
    PUBACK,
    V5,
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Properties,
    Publish,
    SubAck,
    Subscribe,
    Wanted,
    Will,
)
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from broker.mqtt.stream import PacketReader
from tests.system.processes import HOST
from tests.tools.fuzz.loop import Loop

AGAIN: Final = 0.03  # seconds until it connects again
PATIENCE: Final = 5.0  # seconds for a CONNACK
LIMIT: Final = 1 << 20  # bytes of a packet
READ: Final = 65536
REFUSED: Final = 0x80


class Client:
    """Subscribes to *filter*, if there is one, as soon as it is connected and has no session that is `certain`."""

    def __init__(
        self,
        loop: Loop,
        port: int,
        client_id: str,
        *,
        filter: str = "",
        qos: int = 1,
        expiry: int = 0,
        will: Will | None = None,
    ) -> None:
        self.client_id = client_id
        self.up = False  # it has its CONNACK, and its SUBACK if it wants one
        self.since = 0.0  # when that was
        self.worker = 0  # process id of the one that serves it; 0: not known (yet)
        self.address = ""
        self.present = False  # the session was
        self.certain = True  # a session that is present has the subscription
        self.left = False  # the connection that ends was ended by us
        self.on_greeted: Callable[[], None] = _nothing  # CONNACK: `present` is known
        self.on_up: Callable[[], None] = _nothing
        self.on_down: Callable[[bool], None] = _ignore  # whether it was up
        self.on_message: Callable[[Publish], None] = _ignore
        self.on_ack: Callable[[Ack], None] = _ignore
        self._loop = loop
        self._port = port
        self._filter = filter
        self._qos = qos
        self._expiry = expiry
        self._will = will
        self._sock: socket.socket | None = None
        self._reader = PacketReader(V5, LIMIT)
        self._out = bytearray()
        self._attempt = 0
        self._closed = False
        self._packet_id = 0
        self.connect()

    def connect(self) -> None:
        self._attempt += 1
        self._reader = PacketReader(V5, LIMIT)
        self._sock = socket.socket()
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found = self._sock.connect_ex((HOST, self._port))
        if found not in (0, errno.EINPROGRESS):
            self._sock.close()
            self._sock = None
            self._loop.later(AGAIN, self._again)
            return
        self._loop.watch(self._sock.fileno(), select.EPOLLIN | select.EPOLLOUT, self._ready)
        properties: Properties = {SESSION_EXPIRY_INTERVAL: self._expiry} if self._expiry else {}
        self.say(Connect(V5, self.client_id, not self._expiry, will=self._will, properties=properties))
        attempt = self._attempt
        self._loop.later(PATIENCE, lambda: self._impatient(attempt))

    def say(self, packet: Packet) -> None:
        self._out += encode(packet, V5)
        if self._sock is not None:
            self._loop.change(self._sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> int:
        """Its packet id."""
        self._packet_id = self._packet_id % 60000 + 1
        self.say(Publish(topic.encode(), payload, qos, retain, packet_id=self._packet_id if qos else 0))
        return self._packet_id

    def leave(self, politely: bool) -> None:
        """End the connection, to connect again; not *politely*: without a DISCONNECT."""
        if self._sock is None:
            return
        if politely and not self._out:
            self._sock.send(encode(Disconnect(0), V5))
        self.left = True
        self._lost()

    def close(self, politely: bool = True) -> None:
        self._closed = True
        self.leave(politely)

    def _impatient(self, attempt: int) -> None:
        if attempt == self._attempt and not self.up and not self._closed:
            self._lost()

    def _ready(self, mask: int) -> None:
        assert self._sock is not None
        try:
            if mask & select.EPOLLOUT:
                if self._out:
                    del self._out[: self._sock.send(self._out)]
                if not self._out:
                    self._loop.change(self._sock.fileno(), select.EPOLLIN)
            data = self._sock.recv(READ) if mask & ~select.EPOLLOUT else b"."
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
        elif mask & ~select.EPOLLOUT:
            self._take(data)

    def _take(self, data: bytes) -> None:
        for packet in self._reader.feed(data):
            if isinstance(packet, Publish):
                if packet.qos:
                    self.say(Ack(PUBACK, packet.packet_id))
                self.on_message(packet)
            elif isinstance(packet, Ack):
                self.on_ack(packet)
            elif isinstance(packet, ConnAck) and packet.code < REFUSED:
                self.present = packet.session_present
                self._greeted()
            elif isinstance(packet, SubAck):
                if not self.up:
                    self._settled()
            elif isinstance(packet, ConnAck | Disconnect):
                self._lost()
            if self._sock is None:
                return

    def _greeted(self) -> None:
        assert self._sock is not None
        address, number = self._sock.getsockname()
        self.address = f"{address}:{number}"
        self.on_greeted()
        if self._filter and not (self.present and self.certain):
            self.say(Subscribe(1, [Wanted(self._filter.encode(), self._qos)]))
        else:
            self._settled()

    def _settled(self) -> None:
        self.up = True
        self.since = self._loop.now
        self.on_up()

    def _lost(self) -> None:
        if self._sock is None:
            return
        self._loop.forget(self._sock.fileno())
        self._sock.close()
        self._sock = None
        self._out.clear()
        was_up, self.up = self.up, False
        self._attempt += 1
        self.on_down(was_up)
        self.worker = 0
        self.address = ""
        self.left = False
        if not self._closed:
            self._loop.later(AGAIN, self._again)

    def _again(self) -> None:
        if self._sock is None and not self._closed:
            self.connect()


def _nothing() -> None:
    pass


def _ignore(*arguments: object) -> None:
    pass
