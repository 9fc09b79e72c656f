# A WebSocket client that does only what it is told: no pong, no answer to a close, and frames of any kind (RFC 6455).
#
# Over MQTT it is used as a socket is: what sendall() gets goes out as one binary frame, recv() brings what the next
# binary frame holds.
import base64
import hashlib
import os
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from tests.system.addresses import PATH, Address
from tests.system.processes import HOST

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA

NORMAL: Final = 1000  # close codes (RFC 6455, 7.4.1)
PROTOCOL_ERROR: Final = 1002
NOT_BINARY: Final = 1003
NOT_UTF_8: Final = 1007
TOO_LARGE: Final = 1009

KEY: Final = base64.b64encode(b"sixteen of them.").decode()
ACCEPT: Final = base64.b64encode(hashlib.sha1(f"{KEY}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()).decode()


class Frame(NamedTuple):
    opcode: int
    payload: bytes

    @property
    def close_code(self) -> int:
        assert self.opcode == CLOSE, self
        return int(struct.unpack("!H", self.payload[:2])[0])


def request(path: str = PATH, subprotocols: Sequence[str] = ("mqtt",)) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: {HOST}", "Upgrade: websocket", "Connection: Upgrade"]
    lines += [f"Sec-WebSocket-Key: {KEY}", "Sec-WebSocket-Version: 13"]
    if subprotocols:
        lines.append(f"Sec-WebSocket-Protocol: {', '.join(subprotocols)}")
    return "\r\n".join([*lines, "", ""]).encode()


def frame(opcode: int, payload: bytes, *, last: bool = True, masked: bool = True) -> bytes:
    head = bytes([last << 7 | opcode])
    mask = masked << 7
    if len(payload) < 126:
        head += bytes([mask | len(payload)])
    elif len(payload) < 65536:
        head += struct.pack("!BH", mask | 126, len(payload))
    else:
        head += struct.pack("!BQ", mask | 127, len(payload))
    if not masked:
        return head + payload
    key = os.urandom(4)
    stream = (key * (len(payload) // 4 + 1))[: len(payload)]
    mask_of_all = int.from_bytes(stream)  # as one number: byte by byte, a megabyte took most of a second
    return head + key + (int.from_bytes(payload) ^ mask_of_all).to_bytes(len(payload))


class WebSocket:
    """One connection; the request is sent, and its answer read. status 101: it is open."""

    def __init__(self, address: Address, path: str = PATH, subprotocols: Sequence[str] = ("mqtt",)) -> None:
        self.raw = address.open()
        self.port = self.raw.getsockname()[1]  # ours, which the broker's log shows
        self._stream = self.raw.makefile("rb")
        self.raw.sendall(request(path, subprotocols))
        self.status = int(self._stream.readline().split()[1])
        self.headers: dict[str, str] = {}
        while line := self._stream.readline().rstrip(b"\r\n"):
            name, _, value = line.decode().partition(":")
            self.headers[name.lower()] = value.strip()

    def send_frame(self, opcode: int, payload: bytes, *, last: bool = True, masked: bool = True) -> None:
        self.raw.sendall(frame(opcode, payload, last=last, masked=masked))

    def next_frame(self) -> Frame | None:
        """None: the broker has closed. A server's frames are not masked, and ours does not fragment them."""
        head = self._stream.read(2)
        if not head:
            return None
        assert head[0] & 0x80 and not head[1] & 0x80, head
        length = head[1]
        if length == 126:
            (length,) = struct.unpack("!H", self._stream.read(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self._stream.read(8))
        return Frame(head[0] & 0x0F, self._stream.read(length))

    def answer_close(self) -> int:
        """Read on to the broker's close frame, and send it back; its code."""
        while (found := self.next_frame()) is not None:
            if found.opcode == CLOSE:
                self.send_frame(CLOSE, found.payload)
                return found.close_code
        raise AssertionError("the broker closed without a close frame")

    # As a socket.

    def sendall(self, data: bytes, /) -> None:
        self.send_frame(BINARY, data)

    def recv(self, size: int, /) -> bytes:
        """What the next frame holds. b"": a close frame, or the end."""
        found = self.next_frame()
        if found is None or found.opcode == CLOSE:
            return b""
        assert found.opcode == BINARY, found
        return found.payload

    def settimeout(self, seconds: float | None, /) -> None:
        self.raw.settimeout(seconds)

    def shutdown(self, how: int, /) -> None:
        self.raw.shutdown(how)

    def close(self) -> None:
        self._stream.close()
        self.raw.close()


def opened(address: Address) -> WebSocket:
    """A WebSocket that was accepted."""
    websocket = WebSocket(address)
    assert 101 == websocket.status, websocket.headers
    return websocket
