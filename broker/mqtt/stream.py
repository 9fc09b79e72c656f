# Packets out of a stream that is cut anywhere.
#
# What is read does not depend on the cuts: a packet comes out as soon as its last byte is in, a bad first byte
# or a packet over the limit is refused at the byte that shows it, and packets in front of a mistake come out
# before it. A packet that is not whole yet waits in a bytearray that grows with what arrives, so a peer that
# sends byte by byte makes nobody copy more than twice, and a peer that announces much and sends little costs
# what it sent.
from collections.abc import Iterator

from broker.mqtt.decode import check_first_byte, decode
from broker.mqtt.fields import read_length
from broker.mqtt.packets import Connect, Packet
from broker.mqtt.scanner import read_header
from broker.reasons import CloseReason, ProtocolError


class PacketReader:
    """The packets of one direction of one connection.

    *version* is that of the connection; 0 on the server's side, where the CONNECT names it. *limit* is the
    largest packet in bytes, fixed header included. After a ProtocolError the reader repeats it for ever.
    """

    def __init__(self, version: int, limit: int) -> None:
        self.version = version
        self.limit = limit
        self._data = b""  # being read, from _position on
        self._position = 0
        self._rest = bytearray()  # what came after _data
        self._needed = 1  # bytes of _rest without which there is nothing to read

    def feed(self, data: bytes) -> Iterator[Packet]:
        """Add what arrived; the packets to take are those of the iterator, or of next_packet()."""
        if self._rest or self._position < len(self._data):
            self._rest += data
        else:
            self._data = data
            self._position = 0
        return iter(self)

    def __iter__(self) -> Iterator[Packet]:
        return self

    def __next__(self) -> Packet:
        packet = self.next_packet()
        if packet is None:
            raise StopIteration
        return packet

    def next_packet(self) -> Packet | None:
        """The next whole packet, None until more is fed; raises ProtocolError."""
        while True:
            packet = self._read()
            if packet is not None:
                return packet
            if len(self._rest) < self._needed:
                return None
            self._data = bytes(self._rest)
            self._rest.clear()
            self._needed = 1

    def waiting(self) -> int:
        """Bytes that were fed and are not read yet."""
        return len(self._data) - self._position + len(self._rest)

    def _read(self) -> Packet | None:
        """A packet from _data, or None and _data moved to the front of _rest."""
        data = self._data
        start = self._position
        end = len(data)
        if start == end:
            self._data = b""  # an idle connection does not hold on to the last thing it read
            self._position = 0
            return None
        first = data[start]
        check_first_byte(first, self.version)
        body, stop = read_header(data, start, end, self.version)
        if stop - start > self.limit:
            raise ProtocolError(CloseReason.PACKET_TOO_LARGE, f"{stop - start} bytes, {self.limit} are allowed")
        if stop > end:
            self._keep(stop - start)
            return None
        packet = decode(first, data, body, stop, self.version)
        if self.version == 0 and isinstance(packet, Connect):
            read_length(data, start + 1, end, packet.version)  # only now known whether padding is allowed
            self.version = packet.version
        self._position = stop
        return packet

    def _keep(self, needed: int) -> None:
        """Wait for *needed* bytes from the start of this packet on, without holding on to what was in front of it."""
        self._rest[0:0] = self._data[self._position :]
        self._data = b""
        self._position = 0
        self._needed = needed
