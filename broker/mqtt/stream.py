# Packets out of a byte stream that arrives in pieces of any size.
#
# The result does not depend on the pieces: a packet is returned as soon as its last byte has arrived, a bad first
# byte or a packet over the limit is refused at the byte that shows it, and packets in front of an error are returned
# before it. An incomplete packet waits in a bytearray that grows with what arrives. So a peer that sends byte by byte
# causes at most two copies, and a peer that announces a large packet and sends little costs what it sent.
from collections.abc import Iterator

from broker.mqtt.decode import check_first_byte, decode
from broker.mqtt.fields import read_length
from broker.mqtt.packets import Connect, Packet
from broker.mqtt.scanner import read_header
from broker.reasons import CloseReason, ProtocolError


class PacketReader:
    """The packets of one direction of one connection.

    *version* is that of the connection; 0 for a server, where the CONNECT contains it. *limit* is the size of the
    largest packet in bytes, with its fixed header. After a ProtocolError, each further call raises the error again.
    """

    def __init__(self, version: int, limit: int) -> None:
        self.version = version
        self.limit = limit
        self._data = b""  # read from _position on
        self._position = 0
        self._rest = bytearray()  # received after _data
        self._needed = 1  # bytes of _rest without which no packet can be complete

    def feed(self, data: bytes) -> Iterator[Packet]:
        """Add received bytes; the iterator, or next_packet(), gives the complete packets."""
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
        """The next complete packet; None until more bytes are fed. Raises ProtocolError."""
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
        """The number of bytes that were fed and not read."""
        return len(self._data) - self._position + len(self._rest)

    def _read(self) -> Packet | None:
        """A packet from _data; or None, after _data was moved to the front of _rest."""
        data = self._data
        start = self._position
        end = len(data)
        if start == end:
            self._data = b""  # an idle connection does not keep the bytes it read last
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
            read_length(data, start + 1, end, packet.version)  # only now it is known whether padding is allowed
            self.version = packet.version
        self._position = stop
        return packet

    def _keep(self, needed: int) -> None:
        """Wait for *needed* bytes from the start of this packet on, and drop the bytes in front of it."""
        self._rest[0:0] = self._data[self._position :]
        self._data = b""
        self._position = 0
        self._needed = needed
