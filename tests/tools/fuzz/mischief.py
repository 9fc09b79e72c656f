# WebSocket clients that do not keep the rules: broken requests, and frames as RFC 6455 forbids or merely allows them.
from collections.abc import Callable
from random import Random
from typing import Final

from tests.tools.fuzz.channels import (
    BINARY,
    CLOSE,
    CONTINUATION,
    MASK,
    PING,
    PONG,
    TEXT,
    Channel,
    WebSocket,
    frame,
    mask,
    request,
)

HUGE: Final = 1 << 62  # bytes that a frame announces
LONG_HEADER: Final = 100_000  # bytes

Framing = Callable[[Random, bytes], bytes]


def _whole(random: Random, data: bytes) -> bytes:
    return frame(BINARY, data)


def _text(random: Random, data: bytes) -> bytes:
    return frame(TEXT, data)


def _unmasked(random: Random, data: bytes) -> bytes:
    return frame(BINARY, data, masked=False)


def _reserved_bits(random: Random, data: bytes) -> bytes:
    return frame(BINARY, data, reserved=random.choice([0x10, 0x20, 0x40, 0x70]))


def _unknown_opcode(random: Random, data: bytes) -> bytes:
    return frame(random.choice([3, 7, 0xB, 0xF]), data)


def _byte_by_byte(random: Random, data: bytes) -> bytes:
    return b"".join([frame(BINARY, data[at : at + 1]) for at in range(len(data))])


def _fragments(random: Random, data: bytes) -> bytes:
    """Lawful, with lawful pings in between."""
    cut = random.randrange(len(data) + 1)
    first, rest = frame(BINARY, data[:cut], final=False), frame(CONTINUATION, data[cut:])
    return first + frame(PING, b"in between") + rest


def _never_final(random: Random, data: bytes) -> bytes:
    return frame(BINARY, data, final=False) + frame(CONTINUATION, b"", final=False) * 20


def _lonely_continuation(random: Random, data: bytes) -> bytes:
    return frame(CONTINUATION, data)


def _two_beginnings(random: Random, data: bytes) -> bytes:
    return frame(BINARY, data, final=False) + frame(BINARY, data)


def _announces_much(random: Random, data: bytes) -> bytes:
    return bytes((0x80 | BINARY, 0xFF)) + HUGE.to_bytes(8, "big") + MASK + data


def _long_length(random: Random, data: bytes) -> bytes:
    """More bytes for the length than it needs (5.2: "the minimal number of bytes MUST be used")."""
    return bytes((0x80 | BINARY, 0xFF)) + len(data).to_bytes(8, "big") + MASK + mask(data)


def _empty_frames(random: Random, data: bytes) -> bytes:
    return frame(BINARY, b"") * 50 + frame(BINARY, data)


def _pings(random: Random, data: bytes) -> bytes:
    return frame(PING, b"x" * 125) * 20 + frame(PONG, b"nobody asked") + frame(BINARY, data)


def _large_ping(random: Random, data: bytes) -> bytes:
    return frame(PING, bytes(126)) + frame(BINARY, data)


def _fragmented_ping(random: Random, data: bytes) -> bytes:
    return frame(PING, b"half", final=False) + frame(BINARY, data)


def _bad_close(random: Random, data: bytes) -> bytes:
    code = random.choice([0, 999, 1004, 1005, 1006, 1015, 2999, 65535])
    return frame(BINARY, data) + frame(CLOSE, code.to_bytes(2, "big") + b"\xff\xfe")


def _short_close(random: Random, data: bytes) -> bytes:
    return frame(CLOSE, b"\x03") + frame(BINARY, data)


def _speaks_on(random: Random, data: bytes) -> bytes:
    return frame(CLOSE, (1000).to_bytes(2, "big")) + frame(BINARY, data)


def _no_frame(random: Random, data: bytes) -> bytes:
    return data


FRAMINGS: Final[list[Framing]] = [
    _whole,
    _text,
    _unmasked,
    _reserved_bits,
    _unknown_opcode,
    _byte_by_byte,
    _fragments,
    _never_final,
    _lonely_continuation,
    _two_beginnings,
    _announces_much,
    _long_length,
    _empty_frames,
    _pings,
    _large_ping,
    _fragmented_ping,
    _bad_close,
    _short_close,
    _speaks_on,
    _no_frame,
]

OPENINGS: Final = [
    request(path="/"),
    request(path="/mqtt?token=1"),
    request(path="/" + "x" * LONG_HEADER),
    request(protocol="chat"),
    request(protocol=""),
    request(protocol="mqttv3.1"),
    request(protocol="chat, mqtt"),
    request(method="POST"),
    request(version=12),
    request(http="1.0"),
    request()[:-2],  # never ends
    request()[:40],
    request().replace(b"\r\n", b"\n"),
    request().replace(b"Upgrade: websocket\r\n", b""),
    request().replace(b"Sec-WebSocket-Key", b"Sec-WebSocket-Kex"),
    request().replace(b"Host: localhost", b"Host: " + b"y" * LONG_HEADER),
    request().replace(b"Host", b"H\xffst\0"),
    request() * 2,
    b"GET /mqtt HTTP/1.1\r\n\r\n",
    b"\r\n" * 100,
    bytes(range(256)),
    b"",
]


class Mischief(WebSocket):
    """Breaks the rules of the request, or of the frames; and does not always wait for the answer."""

    def __init__(self, inner: Channel, random: Random) -> None:
        super().__init__(inner, random.choice(OPENINGS) if random.random() < 0.4 else request())
        self._random = random
        self._framing = random.choice(FRAMINGS)
        self._waits = random.random() < 0.5

    def say(self, data: bytes) -> None:
        if self._waits:
            super().say(data)
        else:
            self._inner.say(self.framed(data))

    def framed(self, data: bytes) -> bytes:
        framing = self._framing if self._random.random() < 0.7 else _whole
        return framing(self._random, data)
