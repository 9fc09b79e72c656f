# Parses and builds WebSocket frames (RFC 6455, 5 and 7): bytes in, bytes out, and nothing waits.
#
# The boundaries of WebSocket messages mean nothing to MQTT [MQTT-6.0.0-2], so payload is passed on as it comes and no
# message is ever put together: a header that announces a large message costs nothing. At most FRAMES_AT_ONCE frames are
# parsed in one call, as empty frames are work without bytes. Control frames are answered here as well: a ping with a
# pong, a close frame with a close frame. Everything behind a close frame or an invalid frame is ignored.
# Why not wsproto, against which the tests check this module? It takes 9 us for a small frame, and this one 0.6.
from typing import Final

from broker.reasons import CloseReason

FRAMES_AT_ONCE: Final = 128  # if all are pings, which cost most, they take some 0.1 ms

FINAL: Final = 0x80
RESERVED: Final = 0x70  # for extensions, and none is supported
OPCODE: Final = 0x0F
MASKED: Final = 0x80  # in the second byte
SIZE: Final = 0x7F
TWO_BYTES: Final = 126  # in place of a size: the size follows in two bytes
EIGHT_BYTES: Final = 127  # in place of a size: the size follows in eight bytes
MASK: Final = 4  # bytes

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CONTROL: Final = 0x8  # the bit that all control frames have
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA

# Small payloads are unmasked as one number, larger ones through a table for each byte of the mask: each method takes
# half of the time of the other where it is used.
LARGE: Final = 256
REPEATED: Final = [
    (1 << 32 * words) // 0xFFFFFFFF for words in range(LARGE // MASK + 1)
]  # times a mask: the mask repeated
EXCLUSIVE_OR: Final = [bytes(one ^ other for other in range(256)) for one in range(256)]

NORMAL: Final = 1000  # close codes (RFC 6455, 7.4.1)
PROTOCOL_ERROR: Final = 1002
NOT_BINARY: Final = 1003
NOT_UTF_8: Final = 1007
TOO_LARGE: Final = 1009


Failure = tuple[CloseReason, str]  # with the detail; not an exception, which would refer to its frames and make a cycle


class Frames:
    """Parses the frames of one client, in messages of at most *message_bytes*; *received*: the first bytes."""

    def __init__(self, message_bytes: int, received: bytes) -> None:
        self.more = len(received) > 0  # feed(b"") would return payload
        self.count = 0  # frames that the last feed() parsed
        self.answers = b""  # frames to send in reply to those of the last feed()
        self.close_reply = b""  # the close frame to answer the client's with
        self.failure: Failure | None = None  # what the client violated
        self.code = NORMAL  # to close with
        self._message_bytes = message_bytes
        self._rest = received  # bytes not parsed, or the beginning of a header or of a control frame
        self._left = 0  # of the payload of the current frame
        self._key = b""  # its mask, rotated to where the payload continues
        self._open = False  # the last frame was not the final one of its message
        self._size = 0  # of the message so far, with what its headers announce

    @property
    def over(self) -> bool:
        """A close frame or an invalid frame came: everything behind it is ignored."""
        return self.close_reply != b"" or self.failure is not None

    @property
    def waiting(self) -> int:
        """Bytes that were fed and not returned as payload."""
        return len(self._rest)

    def feed(self, received: bytes) -> bytes:
        """Return the payload in *received*. If `more` is set afterwards, a part of *received* is not parsed yet."""
        data = self._rest + received if self._rest else received
        size = len(data)
        at = 0
        count = 0
        parts: list[bytes] = []
        self.more = False
        self.answers = b""
        while at < size:
            if self._left > 0:
                end = min(size, at + self._left)
                parts.append(self._unmask(data[at:end]))
                self._left -= end - at
                at = end
                continue
            if count == FRAMES_AT_ONCE:
                self.more = True
                break
            begin = self._header(data, at, size)
            if begin == at:
                break  # the frame is incomplete
            count += 1
            at = begin
        self._rest = data[at:]
        self.count = count
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _header(self, data: bytes, at: int, size: int) -> int:
        """Parse the header at *at*, or a whole control frame; return where it ends. *at*: it is incomplete."""
        if size - at < 2:
            return at
        first = data[at]
        opcode = first & OPCODE
        if first & RESERVED:
            return self._refuse(size, "a reserved bit")
        if not data[at + 1] & MASKED:  # RFC 6455, 5.1
            return self._refuse(size, "a frame without a mask")
        if opcode & CONTROL:
            return self._control(data, at, size)
        if opcode != (CONTINUATION if self._open else BINARY):
            if opcode == TEXT and not self._open:  # [MQTT-6.0.0-1]
                return self._refuse(size, "a text frame", NOT_BINARY, CloseReason.WEBSOCKET_TEXT)
            return self._refuse(size, f"opcode {opcode} {'within' if self._open else 'without'} a message")
        length = data[at + 1] & SIZE
        begin = at + 2
        if length >= TWO_BYTES:
            least = TWO_BYTES if length == TWO_BYTES else 1 << 16
            begin += 2 if length == TWO_BYTES else 8
            if begin > size:
                return at
            length = int.from_bytes(data[at + 2 : begin], "big")
            if length < least or length >> 63:  # RFC 6455, 5.2
                return self._refuse(size, "a length in too many bytes")
        self._size += length
        if self._size > self._message_bytes:
            return self._refuse(size, f"a message of {self._size} bytes or more", TOO_LARGE)
        end = begin + MASK
        if end > size:
            self._size -= length  # it is counted when the header is complete
            return at
        self._key = data[begin:end]
        self._left = length
        self._open = not first & FINAL
        if not self._open:
            self._size = 0
        return end

    def _control(self, data: bytes, at: int, size: int) -> int:
        """Answer the control frame at *at* (RFC 6455, 5.5); return where it ends. *at*: it is incomplete."""
        opcode = data[at] & OPCODE
        length = data[at + 1] & SIZE
        if opcode > PONG or length >= TWO_BYTES or not data[at] & FINAL:
            return self._refuse(size, f"a control frame of opcode {opcode} that may not be")
        begin = at + 2 + MASK
        end = begin + length
        if end > size:
            return at
        if opcode == PONG:  # the broker sends no pings
            return end
        self._key = data[at + 2 : begin]
        payload = self._unmask(data[begin:end])
        if opcode == PING:
            self.answers += frame(PONG, payload)
            return end
        return self._closed(payload, size)

    def _closed(self, payload: bytes, size: int) -> int:
        """The client sent a close frame with *payload* (RFC 6455, 5.5.1): a code and a reason, or nothing."""
        if payload and not _valid_close_code(payload):
            return self._refuse(size, "a close code that may not be")
        try:
            payload[2:].decode()
        except UnicodeDecodeError:
            return self._refuse(size, "a close frame that is no text", NOT_UTF_8)
        self.close_reply = frame(CLOSE, payload)
        return size

    def _refuse(
        self, size: int, why: str, code: int = PROTOCOL_ERROR, reason: CloseReason = CloseReason.WEBSOCKET_ERROR
    ) -> int:
        self.failure = reason, why
        self.code = code
        return size

    def _unmask(self, data: bytes) -> bytes:
        """Unmask *data*, the next bytes of the payload (RFC 6455, 5.3)."""
        size = len(data)
        key = self._key
        turned = size & 3
        if turned:
            self._key = key[turned:] + key[:turned]
        if size < LARGE:
            words = (size + 3) >> 2
            mask = int.from_bytes(key, "little") * REPEATED[words]
            return (int.from_bytes(data, "little") ^ mask).to_bytes(words << 2, "little")[:size]
        plain = bytearray(data)
        for at in range(MASK):
            plain[at::MASK] = plain[at::MASK].translate(EXCLUSIVE_OR[key[at]])
        return bytes(plain)


def frame(opcode: int, payload: bytes) -> bytes:
    """A frame of a server: a whole message, not masked."""
    size = len(payload)
    if size < TWO_BYTES:
        return bytes((FINAL | opcode, size)) + payload
    if size < 1 << 16:
        return bytes((FINAL | opcode, TWO_BYTES)) + size.to_bytes(2, "big") + payload
    return bytes((FINAL | opcode, EIGHT_BYTES)) + size.to_bytes(8, "big") + payload


def close_frame(code: int) -> bytes:
    """The close frame with *code*, one of the close codes above."""
    return frame(CLOSE, code.to_bytes(2, "big"))


def _valid_close_code(payload: bytes) -> bool:
    """Whether the code of a close frame may be sent (RFC 6455, 7.4.2), or was registered since."""
    code = int.from_bytes(payload[:2], "big")
    return len(payload) > 1 and (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999)
