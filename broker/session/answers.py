# The packets that answer acknowledgements: PUBREL and PUBCOMP, encoded.
#
# They have no properties, so that they fit any maximum packet size: [MQTT-3.6.2-2] to [MQTT-3.6.2-3], [MQTT-3.7.2-2] to
# [MQTT-3.7.2-3].
from typing import Final

from broker.mqtt.packets import PUBREL, V5

PUBREL_3: Final = b"\x62\x02"  # before the packet id
PUBCOMP_3: Final = b"\x70\x02"
PACKET_ID_NOT_FOUND: Final = b"\x92"


def unknown_id(version: int, kind: int, packet_id: int) -> bytes:
    """The answer to an acknowledgement with an unknown packet id, so that both sides can forget the id."""
    first = kind << 4 | (2 if kind == PUBREL else 0)
    if version == V5:
        return bytes((first, 3)) + packet_id.to_bytes(2, "big") + PACKET_ID_NOT_FOUND
    return bytes((first, 2)) + packet_id.to_bytes(2, "big")
