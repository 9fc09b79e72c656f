# Reading ahead: taking acknowledgements and PINGREQ out of the input of a connection whose next PUBLISH has to wait.
#
# A connection that is throttled is read up to the size of one read. An acknowledgement in there may free what the
# broker owes the client, and a client takes the broker for dead if its PINGREQ is not answered in time. Both are taken
# at once; every other packet keeps its place behind the PUBLISH. No byte is parsed twice.
from broker.mqtt.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, V31
from broker.mqtt.scanner import read_header
from broker.reasons import ProtocolError

EMPTY = 2  # bytes of a PINGREQ
PLAIN = 4  # bytes of an acknowledgement without code and properties
PING = 0xC0
RELEASE = PUBREL << 4 | 2
ACKNOWLEDGEMENTS = (PUBACK << 4, PUBREC << 4, RELEASE, PUBCOMP << 4)


class ReadAhead:
    """The packets that were found, and the input without them."""

    def __init__(self) -> None:
        self.acknowledgements: list[tuple[int, int]] = []  # (packet type, packet id), in the order of the input
        self.pings = 0
        self.left = b""  # the input without both; empty if neither was found
        self.unparsed = 0  # bytes at the end that are no complete packet, or a wrong one


def read_ahead(data: bytes, position: int, version: int, pings: bool = True) -> ReadAhead:
    """Find acknowledgements, and PINGREQ if *pings*, in *data*, from the packet at *position* on.

    The search ends at the first packet that is not complete or malformed. The mistake is reported when all packets in
    front of it have been taken.
    """
    found = ReadAhead()
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
        if version == V31:
            first = _without_unused_flags(first)
        plain = stop - position == PLAIN and first in ACKNOWLEDGEMENTS and data[body:stop] != b"\0\0"
        if plain or (pings and first == PING and stop - position == EMPTY):
            kept.append(data[start:position])
            start = stop
            if plain:
                found.acknowledgements.append((first >> 4, data[body] << 8 | data[body + 1]))
            else:
                found.pings += 1
        position = stop
    found.unparsed = end - position
    if found.acknowledgements or found.pings:
        kept.append(data[start:])
        found.left = b"".join(kept)
    return found


def _without_unused_flags(first: int) -> int:
    """The first byte *first* of a packet of 3.1 as later versions write it: 3.1 sends PUBREL again with DUP (3.6)."""
    if first >> 4 == PUBREL:
        return RELEASE if first & 6 == 2 else first
    return first & 0xF0
