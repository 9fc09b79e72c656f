# A set of packet ids that costs little memory, whether it has a few ids or all of them.
#
# A client of 3.x has no receive maximum: it may leave 65 535 QoS 2 messages unreleased, and as a set of ints they
# would cost 4 MB for as long as its session lasts. Clients take ids one after the other, so those of a window are close
# together: they are kept as spans of SPAN ids, with one bit for each. Ids that are all over the place need more than
# MOST_SPANS of them; then there is one bit for each possible id.
from typing import Final

SPAN_SHIFT: Final = 5
SPAN: Final = 1 << SPAN_SHIFT  # ids: compiled code works with an int of so many bits without making an object
MOST_SPANS: Final = 64  # about 6 KiB with their objects
BITS_BYTES: Final = 8192  # a bit for each of 0..65535


class PacketIds:
    def __init__(self) -> None:
        self.count = 0
        self._spans: dict[int, int] = {}  # by the first id without its last SPAN_SHIFT bits; all, unless there are bits
        self._bits: bytearray | None = None

    def holds(self, packet_id: int) -> bool:
        bits = self._bits
        if bits is None:
            return self._spans.get(packet_id >> SPAN_SHIFT, 0) & 1 << (packet_id & SPAN - 1) != 0
        return bits[packet_id >> 3] & 1 << (packet_id & 7) != 0

    def add(self, packet_id: int) -> bool:
        """Add an id; false if it is in the set already."""
        bits = self._bits
        if bits is None:
            spans, at, bit = self._spans, packet_id >> SPAN_SHIFT, 1 << (packet_id & SPAN - 1)
            span = spans.get(at, 0)
            if span & bit:
                return False
            if span or len(spans) < MOST_SPANS:
                spans[at] = span | bit
                self.count += 1
                return True
            bits = self._spread()
        at, bit = packet_id >> 3, 1 << (packet_id & 7)
        if bits[at] & bit:
            return False
        bits[at] |= bit
        self.count += 1
        return True

    def discard(self, packet_id: int) -> bool:
        """Remove an id; false if it is not in the set."""
        bits = self._bits
        if bits is None:
            spans, at, bit = self._spans, packet_id >> SPAN_SHIFT, 1 << (packet_id & SPAN - 1)
            span = spans.get(at, 0)
            if not span & bit:
                return False
            if span == bit:
                del spans[at]
            else:
                spans[at] = span - bit
            self.count -= 1
            return True
        at, bit = packet_id >> 3, 1 << (packet_id & 7)
        if not bits[at] & bit:
            return False
        bits[at] -= bit
        self.count -= 1
        if not self.count:  # not at MOST_SPANS, or a client that has about so many would cause a conversion always
            self._bits = None
        return True

    def copy(self) -> "PacketIds":
        twin = PacketIds()
        twin.count = self.count
        twin._spans = dict(self._spans)
        twin._bits = None if self._bits is None else bytearray(self._bits)
        return twin

    def pack(self) -> bytes:
        """The ids in the form of `unpack()`: two bytes for each, or one bit for each possible id."""
        bits = self._bits
        if bits is not None:
            return bytes(bits)
        return b"".join([packet_id.to_bytes(2, "big") for packet_id in self._of_spans()])

    def _of_spans(self) -> list[int]:
        """All ids, in order, unless there are bits."""
        return [
            at << SPAN_SHIFT | number
            for at in sorted(self._spans)
            for number in range(SPAN)
            if self._spans[at] >> number & 1
        ]

    def _spread(self) -> bytearray:
        """Keep the ids as bits from now on."""
        bits = self._bits = bytearray(BITS_BYTES)
        for packet_id in self._of_spans():
            bits[packet_id >> 3] |= 1 << (packet_id & 7)
        self._spans = {}
        return bits


def unpack(packed: bytes) -> PacketIds:
    """The ids that `PacketIds.pack()` has packed."""
    ids = PacketIds()
    if len(packed) == BITS_BYTES:  # ids of MOST_SPANS are shorter
        ids.count = int.from_bytes(packed, "big").bit_count()
        ids._bits = bytearray(packed)
    else:
        for at in range(0, len(packed), 2):
            ids.add(packed[at] << 8 | packed[at + 1])
    return ids
