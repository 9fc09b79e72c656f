# Behind a publish that waits: what a client's input holds that must not wait with it.
#
# Of a client that is held back as much is read as one read may bring, for there may be acknowledgements in it, which
# free what we owe it, and pings, which it counts on: it takes us for dead if they are not answered in time. Those are
# taken at once; all else keeps its place and its order behind the publish. What was looked at is not looked at again.
from broker.mqtt.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from broker.mqtt.scanner import read_header
from broker.reasons import ProtocolError

PINGREQ = b"\xc0\x00"
PLAIN = 4  # bytes of an acknowledgement without code and properties
ACKNOWLEDGEMENTS = (PUBACK << 4, PUBREC << 4, PUBREL << 4 | 2, PUBCOMP << 4)


class Found:
    """What lies behind, and what is left without it; nothing is said of what is left if nothing was found."""

    def __init__(self) -> None:
        self.acknowledgements: list[tuple[int, int]] = []  # (packet type, packet id), in their order
        self.pings = 0
        self.left = b""
        self.unseen = 0  # bytes at the end that were not understood, or not yet


def look_behind(data: bytes, position: int, version: int) -> Found:
    """What is to be taken of *data* from the packet at *position* on.

    It ends at the first packet that is not whole, or not what it should be: that is told when its turn comes.
    """
    found = Found()
    kept: list[bytes] = []
    start = position
    end = len(data)
    while position < end:
        first = data[position]
        try:
            body, stop = read_header(data, position, end, version)
        except ProtocolError:
            break
        if stop > end:
            break
        plain = stop - position == PLAIN and first in ACKNOWLEDGEMENTS and data[body:stop] != b"\0\0"
        if plain or data[position:stop] == PINGREQ:
            kept.append(data[start:position])
            start = stop
            if plain:
                found.acknowledgements.append((first >> 4, data[body] << 8 | data[body + 1]))
            else:
                found.pings += 1
        position = stop
    found.unseen = end - position
    if found.acknowledgements or found.pings:
        kept.append(data[start:])
        found.left = b"".join(kept)
    return found
