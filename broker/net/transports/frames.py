# WebSocket's frames (RFC 6455, 5 and 7), taken apart and put together: bytes in, bytes out, nothing that waits.
#
# The borders of messages mean nothing to MQTT [MQTT-6.0.0-2], so payload is handed on as it comes and no message is
# ever put together: what a head announces costs nothing. Of one piece of input at most FRAMES_AT_ONCE are looked at,
# as empty frames are work without bytes. Control frames are done here as well: a ping becomes a pong to be sent, a
# close the goodbye to be answered with. From that on, or from the first frame on that may not be there, nothing counts.
# Why not wsproto, by which the tests judge this? It takes 9 us for a small frame, and this one 0.6.
from typing import Final

from broker.reasons import CloseReason

FRAMES_AT_ONCE: Final = 128  # pings, the dearest of them, take some 0.1 ms

FINAL: Final = 0x80
RESERVED: Final = 0x70  # for extensions, of which we have none
OPCODE: Final = 0x0F
MASKED: Final = 0x80  # in the second byte
SIZE: Final = 0x7F
TWO_BYTES: Final = 126  # in place of a size: it follows, in so many bytes
EIGHT_BYTES: Final = 127
MASK: Final = 4

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CONTROL: Final = 0x8  # this bit
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA

# Small payloads are unmasked as one number, larger ones byte by byte through a table for each byte of the mask: each
# way takes half of the other's time where it is used.
LARGE: Final = 256
REPEATED: Final = [(1 << 32 * words) // 0xFFFFFFFF for words in range(LARGE // MASK + 1)]  # times a mask: it, in a row
EXCLUSIVE_OR: Final = [bytes(one ^ other for other in range(256)) for one in range(256)]

NORMAL: Final = 1000  # close codes (RFC 6455, 7.4.1)
PROTOCOL_ERROR: Final = 1002
NOT_BINARY: Final = 1003
NOT_UTF_8: Final = 1007
TOO_LARGE: Final = 1009


Failure = tuple[CloseReason, str]  # and why; an exception that is kept and raised keeps who keeps it


class Frames:
    """What one client says, in messages of at most *message_bytes*; *received* came already."""

    def __init__(self, message_bytes: int, received: bytes) -> None:
        self.more = len(received) > 0  # feed(b"") would bring something
        self.count = 0  # frames that the last feed() looked at
        self.answers = b""  # frames that the last feed() wants sent
        self.goodbye = b""  # the answer to their close frame
        self.failure: Failure | None = None  # what they broke
        self.code = NORMAL  # to close with
        self._message_bytes = message_bytes
        self._rest = received  # not looked at, or the beginning of a head or of a control frame
        self._left = 0  # of the payload of the current frame
        self._key = b""  # its mask, turned to where the payload goes on
        self._open = False  # the last frame was not its message's final one
        self._size = 0  # of the message so far, with all that is announced

    @property
    def over(self) -> bool:
        """Nothing counts any more."""
        return self.goodbye != b"" or self.failure is not None

    @property
    def waiting(self) -> int:
        """Bytes that were fed and not handed on."""
        return len(self._rest)

    def feed(self, received: bytes) -> bytes:
        """The payload in *received*, or in a part of it; then there is `more`."""
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
            begin = self._head(data, at, size)
            if begin == at:
                break  # it is not all there
            count += 1
            at = begin
        self._rest = data[at:]
        self.count = count
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _head(self, data: bytes, at: int, size: int) -> int:
        """Read the head at *at*, with a control frame all of it; where what follows begins. *at*: it is cut off."""
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
            self._size -= length  # it will be counted when it is all there
            return at
        self._key = data[begin:end]
        self._left = length
        self._open = not first & FINAL
        if not self._open:
            self._size = 0
        return end

    def _control(self, data: bytes, at: int, size: int) -> int:
        """Do what the control frame at *at* wants (RFC 6455, 5.5)."""
        opcode = data[at] & OPCODE
        length = data[at + 1] & SIZE
        if opcode > PONG or length >= TWO_BYTES or not data[at] & FINAL:
            return self._refuse(size, f"a control frame of opcode {opcode} that may not be")
        begin = at + 2 + MASK
        end = begin + length
        if end > size:
            return at
        if opcode == PONG:  # we never ask
            return end
        self._key = data[at + 2 : begin]
        payload = self._unmask(data[begin:end])
        if opcode == PING:
            self.answers += frame(PONG, payload)
            return end
        return self._goodbye(payload, size)

    def _goodbye(self, payload: bytes, size: int) -> int:
        """They close, with *payload* (RFC 6455, 5.5.1): a code and words, or nothing."""
        if payload and not _may_be_sent(payload):
            return self._refuse(size, "a close code that may not be")
        try:
            payload[2:].decode()
        except UnicodeDecodeError:
            return self._refuse(size, "a close frame that is no text", NOT_UTF_8)
        self.goodbye = frame(CLOSE, payload)
        return size

    def _refuse(
        self, size: int, why: str, code: int = PROTOCOL_ERROR, reason: CloseReason = CloseReason.WEBSOCKET_ERROR
    ) -> int:
        self.failure = reason, why
        self.code = code
        return size

    def _unmask(self, data: bytes) -> bytes:
        """*data*, the next of the payload, as it was before it was masked (RFC 6455, 5.3)."""
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
    """A server's frame: whole and not masked."""
    size = len(payload)
    if size < TWO_BYTES:
        return bytes((FINAL | opcode, size)) + payload
    if size < 1 << 16:
        return bytes((FINAL | opcode, TWO_BYTES)) + size.to_bytes(2, "big") + payload
    return bytes((FINAL | opcode, EIGHT_BYTES)) + size.to_bytes(8, "big") + payload


def farewell(code: int) -> bytes:
    """The close frame with *code*."""
    return frame(CLOSE, code.to_bytes(2, "big"))


def _may_be_sent(payload: bytes) -> bool:
    """Whether a close frame's code is one for the wire (RFC 6455, 7.4.2), or registered since."""
    code = int.from_bytes(payload[:2], "big")
    return len(payload) > 1 and (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999)
