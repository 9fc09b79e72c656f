# What a reader makes of a stream: the packets, and the error that ended it if one did.
from collections.abc import Iterable

from broker.mqtt.packets import Packet
from broker.mqtt.stream import PacketReader
from broker.reasons import CloseReason, ProtocolError

PLENTY = 1 << 28  # a limit that nothing here reaches


def read(chunks: Iterable[bytes], version: int, limit: int = PLENTY) -> tuple[list[Packet], CloseReason | None]:
    """All packets of the chunks, in order, and the reason why reading ended early."""
    reader = PacketReader(version, limit)
    packets: list[Packet] = []
    for chunk in chunks:
        try:
            for packet in reader.feed(chunk):
                packets.append(packet)
        except ProtocolError as error:
            return packets, error.reason
    return packets, None


def only(packet: str, version: int) -> Packet:
    """The one packet that these bytes (hexadecimal, spaces allowed) are."""
    data = bytes.fromhex(packet)
    reader = PacketReader(version, PLENTY)
    (decoded,) = reader.feed(data)
    assert 0 == reader.waiting()
    return decoded


def refusal(packet: str, version: int) -> CloseReason | None:
    """The reason why these bytes (hexadecimal, spaces allowed) are refused; None when they are not."""
    packets, reason = read([bytes.fromhex(packet)], version)
    assert packets == [] or reason is None
    return reason
