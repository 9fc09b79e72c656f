# What lies between MQTT and the socket: nothing, TLS, WebSocket, or WebSocket over TLS.
#
# A channel turns bytes that one side says into bytes for the wire, and the wire's back into what the other side
# said. It owns no socket, so it can be asked to misbehave in any way: see mischief.py.
import base64
import ssl
from typing import Final

PATH: Final = "/mqtt"
SUBPROTOCOL: Final = "mqtt"
MASK: Final = b"\x37\xfa\x21\x3d"  # any will do: only proxies gain from one that nobody can predict
CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA


class ChannelEnded(Exception):
    """The other side ended the channel, refused it, or broke its rules; nothing more will come through."""


class Channel:
    """No layer at all: what is said is what is on the wire."""

    def __init__(self) -> None:
        self._to_send = bytearray()

    def say(self, data: bytes) -> None:
        """*data* is for the other side. Call outgoing() afterwards. Raises ChannelEnded."""
        self._to_send += data

    def heard(self, wire: bytes) -> bytes:
        """*wire* arrived: what the other side says by it. Call outgoing() afterwards. Raises ChannelEnded."""
        return wire

    def waits(self) -> bool:
        """Whether something that was said has to wait for the other side: a handshake is under way."""
        return False

    def outgoing(self) -> bytes:
        """What is to be sent now."""
        data = bytes(self._to_send)
        self._to_send.clear()
        return data


class Tls(Channel):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._established = False
        self._shake_hands()

    def say(self, data: bytes) -> None:
        if not self._established:
            self._to_send += data
            return
        try:
            self._ssl.write(data)
        except ssl.SSLError as error:
            raise ChannelEnded(str(error)) from None

    def heard(self, wire: bytes) -> bytes:
        self._incoming.write(wire)
        if not self._established:
            self._shake_hands()
        said = bytearray()
        try:
            while self._established and (data := self._ssl.read(65536)):
                said += data
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            if not said:
                raise ChannelEnded(str(error)) from None
        return bytes(said)

    def waits(self) -> bool:
        return len(self._to_send) > 0

    def outgoing(self) -> bytes:
        return self._outgoing.read()

    def _shake_hands(self) -> None:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise ChannelEnded(str(error)) from None
        self._established = True
        if self._to_send:
            self._ssl.write(self._to_send)
            self._to_send.clear()


def frame(opcode: int, payload: bytes, *, final: bool = True, masked: bool = True, reserved: int = 0) -> bytes:
    """One WebSocket frame (RFC 6455, 5.2); *reserved*: its three reserved bits, as 0x10 to 0x70."""
    first = opcode | reserved | (0x80 if final else 0)
    size = len(payload)
    bit = 0x80 if masked else 0
    if size < 126:
        head = bytes((first, bit | size))
    elif size < 1 << 16:
        head = bytes((first, bit | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, bit | 127)) + size.to_bytes(8, "big")
    return head + MASK + mask(payload) if masked else head + payload


def mask(payload: bytes) -> bytes:
    size = len(payload)
    key = (MASK * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")


def request(
    *, method: str = "GET", path: str = PATH, protocol: str = SUBPROTOCOL, version: int = 13, http: str = "1.1"
) -> bytes:
    """The opening handshake of a client (RFC 6455, 4.1); *protocol* "": asks for none."""
    lines = [
        f"{method} {path} HTTP/{http}",
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: " + base64.b64encode(bytes(range(16))).decode(),
        f"Sec-WebSocket-Version: {version}",
    ]
    if protocol:
        lines.append(f"Sec-WebSocket-Protocol: {protocol}")
    return "\r\n".join([*lines, "", ""]).encode()


class WebSocket(Channel):
    """A client that keeps the rules; each say() is one binary frame."""

    def __init__(self, inner: Channel, opening: bytes | None = None) -> None:
        super().__init__()
        self._inner = inner
        self._upgraded = False
        self._wire = bytearray()
        inner.say(request() if opening is None else opening)

    def say(self, data: bytes) -> None:
        if self._upgraded:
            self._inner.say(self.framed(data))
        else:
            self._to_send += data

    def framed(self, data: bytes) -> bytes:
        """How *data* goes over the wire."""
        return frame(BINARY, data)

    def heard(self, wire: bytes) -> bytes:
        self._wire += self._inner.heard(wire)
        if not self._upgraded and not self._upgrade():
            return b""
        said = bytearray()
        while (found := self._next_frame()) is not None:
            opcode, payload = found
            if opcode == PING:
                self._inner.say(frame(PONG, payload))
            elif opcode == CLOSE:
                if not said:
                    raise ChannelEnded(f"WebSocket closed: {payload!r}")
                break
            elif opcode != PONG:
                said += payload
        return bytes(said)

    def waits(self) -> bool:
        return len(self._to_send) > 0 or self._inner.waits()

    def outgoing(self) -> bytes:
        return self._inner.outgoing()

    def _upgrade(self) -> bool:
        """Whether the server has agreed; what was to be said waited for that."""
        end = self._wire.find(b"\r\n\r\n")
        if end < 0:
            return False
        answer = bytes(self._wire[:end])
        if not answer.startswith(b"HTTP/1.1 101"):
            raise ChannelEnded(answer.partition(b"\r\n")[0].decode("latin-1"))
        del self._wire[: end + 4]
        self._upgraded = True
        if self._to_send:
            self._inner.say(self.framed(bytes(self._to_send)))
            self._to_send.clear()
        return True

    def _next_frame(self) -> tuple[int, bytes] | None:
        wire = self._wire
        if len(wire) < 2:
            return None
        size, start = wire[1] & 0x7F, 2
        if size >= 126:
            start += 2 if size == 126 else 8
            if len(wire) < start:
                return None
            size = int.from_bytes(wire[2:start], "big")
        if len(wire) < start + size:
            return None
        opcode, payload = wire[0] & 0x0F, bytes(wire[start : start + size])
        del wire[: start + size]
        return opcode, payload
