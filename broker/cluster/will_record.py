# A will as it is kept in Redis: what another worker needs to publish it when this one is dead.
#
# "DELAY RECORD": the seconds to wait as text, a space, then the length of the user's name (0xffff: none), the name, and
# the will as a PUBLISH of MQTT 5 that the wire's own code reads and checks again. Its QoS is in that packet's first
# byte, and its packet id means nothing.
from typing import Final

from broker.mqtt.encode import encode as encode_packet
from broker.mqtt.packets import V5, Publish, Will
from broker.mqtt.properties import WILL_DELAY_INTERVAL
from broker.mqtt.stream import PacketReader

NO_USER: Final = 0xFFFF
LARGEST: Final = 1 << 28


def encode(will: Will, delay: int, user: str | None) -> bytes:
    """*delay*: seconds, the lesser of the will's own and the session's expiry; *user*: whom its client is."""
    properties = {key: value for key, value in will.properties.items() if key != WILL_DELAY_INTERVAL}
    packet_id = 1 if will.qos else 0
    publish = Publish(will.topic, will.payload, will.qos, will.retain, packet_id=packet_id, properties=properties)
    name = b"" if user is None else user.encode()
    length = NO_USER if user is None else len(name)
    return b"%d %b%b%b" % (delay, length.to_bytes(2, "big"), name, encode_packet(publish, V5))


def decode(record: bytes) -> tuple[Will, str | None]:
    """The will and its user from what follows "DELAY ". ValueError, ProtocolError: it is damaged."""
    length = int.from_bytes(record[:2], "big")
    user: str | None = None
    start = 2
    if length != NO_USER:
        start += length
        user = record[2:start].decode()
    publish = next(PacketReader(V5, LARGEST).feed(record[start:]), None)
    if not isinstance(publish, Publish):
        raise ValueError("no will")
    return Will(publish.topic, publish.payload, publish.qos, publish.retain, publish.properties), user
