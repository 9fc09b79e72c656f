# A will as it is stored in Redis, for another worker to publish when this one is dead.
#
# "DELAY RECORD": the seconds to wait as text, a space, the seal if the cluster has a key (seal.py), then the length of
# the user name in two bytes (0xffff: there is none), the name, and the will as an MQTT 5 PUBLISH packet,
# which the usual decoder reads and checks. The packet id has no meaning.
from typing import Final

from broker.cluster.seal import WILL, Seal
from broker.mqtt.encode import encode as encode_packet
from broker.mqtt.packets import V5, Publish, Will
from broker.mqtt.properties import WILL_DELAY_INTERVAL
from broker.mqtt.stream import PacketReader

NO_USER: Final = 0xFFFF
LARGEST: Final = 1 << 28


def sealed(seal: Seal, client_id: str, record: bytes) -> bytes:
    """*record*, which `encode()` made, with the seal for *client_id*."""
    delay, _, rest = record.partition(b" ")
    return b"%b %b" % (delay, seal.seal(WILL, client_id.encode(), rest))


def encode(will: Will, delay: int, user: str | None) -> bytes:
    """*delay*: in seconds, the smaller of the will delay and the session expiry; *user*: the verified user name."""
    properties = {key: value for key, value in will.properties.items() if key != WILL_DELAY_INTERVAL}
    packet_id = 1 if will.qos else 0
    publish = Publish(will.topic, will.payload, will.qos, will.retain, packet_id=packet_id, properties=properties)
    name = b"" if user is None else user.encode()
    length = NO_USER if user is None else len(name)
    return b"%d %b%b%b" % (delay, length.to_bytes(2, "big"), name, encode_packet(publish, V5))


def decode(record: bytes) -> tuple[Will, str | None]:
    """The will and the user name from what follows "DELAY ". ValueError, ProtocolError: the record is damaged."""
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
