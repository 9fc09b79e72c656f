# A set of packet ids that costs little memory, whether it has a few ids or all of them.
#
# A client of 3.x has no receive maximum: it may leave 65 535 QoS 2 messages unreleased, and as a set of ints they
# would cost 4 MB for as long as its session lasts. Nearly always there are a few ids, for which a set is the smallest
# and the fastest. With more than FEW ids, there is one bit for each possible id.
from typing import Final

FEW: Final = 64  # ids; a set of so many is about 4 KiB with its objects, half of what the bits cost
BITS_BYTES: Final = 8192  # a bit for each of 0..65535


class PacketIds:
    def __init__(self) -> None:
        self.count = 0
        self._few: set[int] = set()  # all ids, unless there are bits
        self._bits: bytearray | None = None

    def holds(self, packet_id: int) -> bool:
        bits = self._bits
        if bits is None:
            return packet_id in self._few
        return bits[packet_id >> 3] & 1 << (packet_id & 7) != 0

    def add(self, packet_id: int) -> bool:
        """Add an id; false if it is in the set already."""
        bits = self._bits
        if bits is None:
            few = self._few
            if packet_id in few:
                return False
            if self.count < FEW:
                few.add(packet_id)
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
            few = self._few
            if packet_id not in few:
                return False
            few.remove(packet_id)
            self.count -= 1
            return True
        at, bit = packet_id >> 3, 1 << (packet_id & 7)
        if not bits[at] & bit:
            return False
        bits[at] -= bit
        self.count -= 1
        if not self.count:  # not at FEW, or a client whose window is about that large would cause a conversion always
            self._bits = None
        return True

    def copy(self) -> "PacketIds":
        twin = PacketIds()
        twin.count = self.count
        twin._few = set(self._few)
        twin._bits = None if self._bits is None else bytearray(self._bits)
        return twin

    def pack(self) -> bytes:
        """The ids in the form of `unpack()`: two bytes for each, or one bit for each possible id."""
        bits = self._bits
        if bits is not None:
            return bytes(bits)
        return b"".join([packet_id.to_bytes(2, "big") for packet_id in sorted(self._few)])

    def _spread(self) -> bytearray:
        """Keep the ids as bits from now on."""
        bits = self._bits = bytearray(BITS_BYTES)
        for packet_id in self._few:
            bits[packet_id >> 3] |= 1 << (packet_id & 7)
        self._few = set()
        return bits


def unpack(packed: bytes) -> PacketIds:
    """The ids that `PacketIds.pack()` has packed."""
    ids = PacketIds()
    if len(packed) == BITS_BYTES:
        ids.count = int.from_bytes(packed, "big").bit_count()
        ids._bits = bytearray(packed)
    else:
        for at in range(0, len(packed), 2):
            ids.add(packed[at] << 8 | packed[at + 1])
    return ids
