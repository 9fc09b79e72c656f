# The scanner: where packets begin and end in the bytes that were received.
#
# Every module that needs the bounds of a packet asks here: the hub, the publish path, reading ahead, the lane that
# carries messages between workers, PacketReader. There are two forms. `read_header()` finds the bounds of one packet.
# `RunScanner.scan()` walks over many PUBLISH packets in one call, because a call for each packet costs an interpreted
# broker 0.1 us, and a QoS 0 message in a run costs about 1 us in all.
from typing import Final

from broker.mqtt.fields import read_length
from broker.mqtt.packets import V5
from broker.reasons import ProtocolError

PLAIN_PUBLISH: Final = 0x30  # the first byte of a PUBLISH of QoS 0 without flags
INCOMPLETE: Final = -1  # where the body begins, of a packet whose fixed header is not complete


def read_header(data: bytes, position: int, end: int, version: int) -> tuple[int, int]:
    """The bounds of the packet at *position*: where its body begins, and where the packet ends.

    A packet that ends beyond *end* is not complete. If even its fixed header is not complete, the result is
    (INCOMPLETE, *end* + 1). In both cases the next step needs as many bytes as lie between *position* and the end that
    is returned. Raises MALFORMED_PACKET as `read_length()` does.
    """
    body = position + 2
    if body <= end:
        length = data[position + 1]
        if length < 0x80:
            return body, body + length
        length, body = read_length(data, position + 1, end, version)
        if length >= 0:
            return body, body + length
    return INCOMPLETE, end + 1


class RunScanner:
    """Finds the PUBLISH packets that continue a run: QoS 0, no flags, no properties, all to one topic.

    *packet_bytes* is the size of the largest packet that may be part of a run. A packet costs one unit for each
    2 ** *byte_shift* bytes.
    """

    def __init__(self, packet_bytes: int, byte_shift: int) -> None:
        self._packet_bytes = packet_bytes
        self._byte_shift = byte_shift

    def scan(
        self, data: bytes, position: int, named: bytes, version: int, most: int, price: int, room: int
    ) -> tuple[int, int, int, int, int]:
        """Walk over at most *most* complete packets from *position* on whose body begins with *named*.

        *named* is the topic with its length. Each packet costs *price* units and those for its bytes; the walk ends
        with the packet that uses up *room* units. Returns the position behind the last packet, the number of packets,
        their bytes of payload, the size of the largest packet, and the units. A packet with a mistake ends the walk:
        the mistake is reported when the packet is read by itself, after all packets in front of it.
        """
        end = len(data)
        five = version == V5
        named_bytes = len(named)
        skip = named_bytes + 1 if five else named_bytes  # in 5.0 a byte 0 follows: no properties
        packet_bytes = self._packet_bytes
        byte_shift = self._byte_shift
        count = payload_bytes = longest = units = 0
        while units < room and count < most and position + 2 < end and data[position] == PLAIN_PUBLISH:
            body = position + 2
            length = data[position + 1]
            if length < 0x80:
                stop = body + length
            else:
                try:
                    body, stop = read_header(data, position, end, version)
                except ProtocolError:
                    break
            size = stop - position
            payload = body + skip
            if stop > end or payload > stop or size > packet_bytes:
                break
            if data[body : body + named_bytes] != named or (five and data[payload - 1] != 0):
                break
            count += 1
            payload_bytes += stop - payload
            units += price + (size >> byte_shift)
            if size > longest:
                longest = size
            position = stop
        return position, count, payload_bytes, longest, units
