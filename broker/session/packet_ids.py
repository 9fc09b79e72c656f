# A set of packet ids that costs little memory, whether it has a few ids or all of them.
#
# A client of 3.x has no receive maximum: it may leave 65 535 QoS 2 messages unreleased, and as a set of ints they
# would cost 4 MB for as long as its session lasts. So there is one bit for each id. Clients take ids one after the
# other, so those of a window are close together: there are bits for the spans of ids that are in use, 14 KB for all.
#
# Keys, indexes and values are ints below 256, which Python keeps: greater ones would be made anew for each look, and
# cost as much as all else here.
from typing import Final

SPAN_SHIFT: Final = 10
SPAN: Final = 1 << SPAN_SHIFT  # ids
SPAN_BYTES: Final = SPAN // 8
SPANS: Final = 65536 // SPAN
NO_IDS: Final = bytes(SPAN_BYTES)  # of a span
FEW: Final = 1024  # ids that are packed one by one: they are shorter than the bits of all


class PacketIds:
    def __init__(self) -> None:
        self.count = 0
        self._spans: dict[int, bytearray] = {}  # by the first id without its last SPAN_SHIFT bits

    def holds(self, packet_id: int) -> bool:
        span = self._spans.get(packet_id >> SPAN_SHIFT)
        return span is not None and span[packet_id >> 3 & SPAN_BYTES - 1] & 1 << (packet_id & 7) != 0

    def add(self, packet_id: int) -> bool:
        """Add an id; false if it is in the set already."""
        span = self._spans.get(packet_id >> SPAN_SHIFT)
        if span is None:
            span = self._new_span(packet_id >> SPAN_SHIFT)
        at, bit = packet_id >> 3 & SPAN_BYTES - 1, 1 << (packet_id & 7)
        bits = span[at]
        if bits & bit:
            return False
        span[at] = bits | bit
        self.count += 1
        return True

    def discard(self, packet_id: int) -> bool:
        """Remove an id; false if it is not in the set."""
        span = self._spans.get(packet_id >> SPAN_SHIFT)
        if span is None:
            return False
        at, bit = packet_id >> 3 & SPAN_BYTES - 1, 1 << (packet_id & 7)
        bits = span[at]
        if not bits & bit:
            return False
        span[at] = bits - bit
        self.count -= 1
        if not self.count and len(self._spans) > 1:
            self._spans = {}
        return True

    def _new_span(self, at: int) -> bytearray:
        """The span *at*, in place of those that have no ids any more: a window moves on."""
        spans = self._spans = {each: span for each, span in self._spans.items() if span != NO_IDS}
        span = spans[at] = bytearray(SPAN_BYTES)
        return span

    def copy(self) -> "PacketIds":
        twin = PacketIds()
        twin.count = self.count
        twin._spans = {at: bytearray(span) for at, span in self._spans.items()}
        return twin

    def pack(self) -> bytes:
        """The ids in the form of `unpack()`: two bytes for each, or one bit for each possible id."""
        spans = self._spans
        if self.count > FEW:
            return b"".join([spans.get(at, NO_IDS) for at in range(SPANS)])
        ids = [
            at << SPAN_SHIFT | number
            for at in sorted(spans)
            for number in range(SPAN)
            if spans[at][number >> 3] >> (number & 7) & 1
        ]
        return b"".join([packet_id.to_bytes(2, "big") for packet_id in ids])


def unpack(packed: bytes) -> PacketIds:
    """The ids that `PacketIds.pack()` has packed."""
    ids = PacketIds()
    if len(packed) == SPANS * SPAN_BYTES:  # longer than FEW ids
        ids.count = int.from_bytes(packed, "big").bit_count()
        for at in range(SPANS):
            span = bytearray(packed[at * SPAN_BYTES : (at + 1) * SPAN_BYTES])
            if span != NO_IDS:
                ids._spans[at] = span
    else:
        for at in range(0, len(packed), 2):
            ids.add(packed[at] << 8 | packed[at + 1])
    return ids
