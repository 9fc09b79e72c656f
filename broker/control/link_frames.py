# Frames: how a supervisor and its workers talk. Four bytes of length (big-endian), then one msgpack map with "kind".
#
# Both ends are ours and of one version, so a frame that is not right is a mistake and not a thing to put up with: who
# reads one gives the other up.
from typing import Any, Final

import msgpack

LENGTH: Final = 4  # bytes
LARGEST: Final = 16 * 1024 * 1024  # bytes; far more than the longest list of clients in one answer


class FrameError(Exception):
    """What came is no frame. Its text says why."""


def frame(kind: str, facts: dict[str, Any]) -> bytes:
    """A frame of *kind* with *facts*. FrameError: it is too large."""
    body: bytes = msgpack.packb({"kind": kind, **facts})
    if len(body) > LARGEST:
        raise FrameError(f"a frame {kind} of {len(body)} bytes")
    return len(body).to_bytes(LENGTH, "big") + body


def body_length(header: bytes) -> int:
    """How many bytes follow *header*, which is LENGTH bytes. FrameError."""
    length = int.from_bytes(header, "big")
    if length > LARGEST:
        raise FrameError(f"a frame of {length} bytes")
    return length


def unpack(body: bytes) -> dict[str, Any]:
    """What the frame with *body* says. FrameError."""
    try:
        found = msgpack.unpackb(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame that is not msgpack: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        raise FrameError("a frame without a kind")
    return found


class FrameReader:
    """Frames out of a stream of bytes, however it is cut."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The frames that *data* completes. FrameError."""
        held = self._held
        held += data
        found = []
        position = 0
        while position + LENGTH <= len(held):
            end = position + LENGTH + body_length(bytes(held[position : position + LENGTH]))
            if end > len(held):
                break
            found.append(unpack(bytes(held[position + LENGTH : end])))
            position = end
        del held[:position]
        return found
