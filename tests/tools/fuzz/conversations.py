# Conversations as real clients have them: the stuff that is mutated.
#
# Few names and topics, so that clients meet: they take over each other's sessions, share subscriptions, find each
# other's retained messages and wills. But the topics of a conversation lie in one of many rooms, or each publish
# would go to everybody who is there, and a run would measure fan-out.
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from broker.mqtt.encode import encode
from broker.mqtt.packets import (
    CONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    V5,
    V31,
    V311,
    Ack,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Wanted,
    Will,
)
from broker.mqtt.properties import (
    AUTHENTICATION_METHOD,
    CONTENT_TYPE,
    CORRELATION_DATA,
    MAXIMUM_PACKET_SIZE,
    MESSAGE_EXPIRY_INTERVAL,
    PAYLOAD_FORMAT_INDICATOR,
    RECEIVE_MAXIMUM,
    REQUEST_PROBLEM_INFORMATION,
    RESPONSE_TOPIC,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
    USER_PROPERTY,
    WILL_DELAY_INTERVAL,
)

VERSIONS: Final = [V31, V311, V311, V5, V5, V5]
NAMES: Final = 2000
ROOMS: Final = 80
TOPICS: Final = [b"a", b"a/b", b"a/c", b"b", b"a/b/c/d", b"a//b"]
FILTERS: Final = [*TOPICS, b"+", b"#", b"a/+", b"+/b", b"a/#", b"+/+/#"]
EVERYTHING: Final = [b"#", b"+/#", b"$SYS/#", b"$share/g/#"]  # of all rooms, and of the pair beside us
LARGE: Final = 20_000  # bytes of a payload, now and then
DEEP_LEVELS: Final = 5  # below a room: the levels of a topic that the broker of a run allows
DEEP_FILTERS: Final = [1, 4, 16, 32]  # of all that match such a topic, in one SUBSCRIBE
MAY_BE_AGAIN: Final = (CONNECT, PUBREL, SUBSCRIBE, UNSUBSCRIBE)  # packets that only 3.1 marks with DUP
AGAIN: Final = 0.3  # of these packets of 3.1
DUP: Final = 0x08
LENGTHS: Final = [0, 1, 2, 3, 3, 4, 4, 5, 6, 8, 12]  # packets after the CONNECT


@dataclass(frozen=True)
class Conversation:
    """What one client says, packet by packet; the first is its CONNECT."""

    version: int
    packets: list[bytes]


def conversation(random: Random) -> Conversation:
    version = random.choice(VERSIONS)
    room = b"room/%d/" % random.randrange(ROOMS)
    packets: list[Packet] = [connect(random, version, f"client-{random.randrange(NAMES)}", room)]
    for _ in range(random.choice(LENGTHS)):
        said = random.choices(SAYINGS, WEIGHTS)[0]
        packets += said(random, version, room)
    if random.random() < 0.4:
        packets.append(_goodbye(random, version))
    encoded = [encode(packet, version) for packet in packets]
    return Conversation(version, [_perhaps_again(random, packet) for packet in encoded] if version == V31 else encoded)


def _perhaps_again(random: Random, packet: bytes) -> bytes:
    """*packet*, of 3.1, marked as sent again if it may be."""
    if packet[0] >> 4 in MAY_BE_AGAIN and random.random() < AGAIN:
        return bytes((packet[0] | DUP,)) + packet[1:]
    return packet


def connect(random: Random, version: int, client_id: str, room: bytes) -> Connect:
    asked: Properties = {}
    if version == V5:
        choices: Properties = {
            SESSION_EXPIRY_INTERVAL: random.choice([0, 1, 5, 0xFFFFFFFF]),
            RECEIVE_MAXIMUM: random.choice([1, 2, 10]),
            MAXIMUM_PACKET_SIZE: random.choice([20, 200, 100_000]),
            TOPIC_ALIAS_MAXIMUM: random.choice([1, 10]),
            REQUEST_PROBLEM_INFORMATION: 0,
            USER_PROPERTY: [("k", "v")],
        }
        asked = {key: value for key, value in choices.items() if random.random() < 0.35}
    user = "somebody" if random.random() < 0.1 else None
    return Connect(
        version,
        client_id,
        random.random() < 0.5,
        random.choice([0, 0, 1, 60, 65535]),
        user,
        b"secret" if user else None,
        _will(random, version, room) if random.random() < 0.3 else None,
        asked,
    )


def _will(random: Random, version: int, room: bytes) -> Will:
    properties: Properties = {}
    if version == V5:
        properties = {WILL_DELAY_INTERVAL: random.choice([0, 0, 1, 5]), MESSAGE_EXPIRY_INTERVAL: random.choice([1, 60])}
    return Will(room + random.choice(TOPICS), b"last words", random.randrange(3), random.random() < 0.3, properties)


def _subscribe(random: Random, version: int, room: bytes) -> list[Packet]:
    wanted = []
    for _ in range(random.choice([1, 1, 2, 3])):
        filter = _filter(random, room)
        one = Wanted(filter, random.randrange(3))
        if version == V5:
            one.no_local = random.random() < 0.2 and not filter.startswith(b"$share/")
            one.retain_as_published = random.random() < 0.5
            one.retain_handling = random.randrange(3)
        wanted.append(one)
    identified = version == V5 and random.random() < 0.3
    properties: Properties = {SUBSCRIPTION_IDENTIFIER: [random.choice([1, 200])]} if identified else {}
    return [Subscribe(_id(random), wanted, properties)]


def _filter(random: Random, room: bytes) -> bytes:
    chance = random.random()
    if chance < 0.01:
        return random.choice(EVERYTHING)
    filter = room + random.choice(FILTERS)
    return b"$share/g%d/%b" % (random.randrange(2), filter) if chance < 0.2 else filter


def _unsubscribe(random: Random, version: int, room: bytes) -> list[Packet]:
    return [Unsubscribe(_id(random), [_filter(random, room) for _ in range(random.choice([1, 2]))])]


def _publish(random: Random, version: int, room: bytes) -> list[Packet]:
    """One message, at QoS 2 mostly with its release."""
    qos = random.randrange(3)
    payload = random.randbytes(LARGE if random.random() < 0.004 else random.choice([0, 1, 10, 10, 200]))
    packet = Publish(room + random.choice(TOPICS), payload, qos, random.random() < 0.25)
    if qos:
        packet.packet_id = _id(random)
        packet.dup = random.random() < 0.1
    if version == V5 and random.random() < 0.5:
        packet.properties = _publish_properties(random, room)
        if TOPIC_ALIAS in packet.properties and random.random() < 0.3:
            packet.topic = b""
    packets: list[Packet] = [packet]
    if qos == 2 and random.random() < 0.8:
        packets.append(Ack(PUBREL, packet.packet_id))
    return packets


def _publish_properties(random: Random, room: bytes) -> Properties:
    choices: Properties = {
        TOPIC_ALIAS: random.choice([1, 1, 2, 32, 33]),
        MESSAGE_EXPIRY_INTERVAL: random.choice([0, 1, 5, 0xFFFFFFFF]),
        USER_PROPERTY: [("k", "1"), ("k", "2")],
        RESPONSE_TOPIC: (room + random.choice(TOPICS)).decode(),
        CORRELATION_DATA: b"\0\1",
        CONTENT_TYPE: "text",
        PAYLOAD_FORMAT_INDICATOR: random.randrange(2),
    }
    return {key: value for key, value in choices.items() if random.random() < 0.35}


def _stream(random: Random, version: int, room: bytes) -> list[Packet]:
    """QoS 0 to one topic in a row, which the broker takes in one piece."""
    return [Publish(room + random.choice(TOPICS), b"x" * random.choice([1, 30]))] * random.choice([2, 5, 20])


def _acknowledge(random: Random, version: int, room: bytes) -> list[Packet]:
    """What we may have been sent is acknowledged: the broker's packet ids begin at 1."""
    kinds = random.choice([[PUBACK], [PUBREC, PUBCOMP], [PUBREC], [PUBACK, PUBREC, PUBCOMP], [PUBREL]])
    code = 0x80 if version == V5 and random.random() < 0.1 else 0
    return [
        Ack(kind, packet_id, code if kind in (PUBACK, PUBREC) else 0)
        for packet_id in range(1, random.choice([2, 3, 8]))
        for kind in kinds
    ]


def _acknowledge_wrongly(random: Random, version: int, room: bytes) -> list[Packet]:
    """A message to the client itself, which is probably the first one that it is sent, and the wrong answer to it."""
    qos = random.choice([1, 2])
    topic = room + b"own/%d" % random.randrange(1000)
    wrong = random.choice([PUBREC, PUBCOMP] if qos == 1 else [PUBACK, PUBCOMP])
    code = 0x80 if version == V5 and wrong != PUBCOMP and random.random() < 0.3 else 0
    message = Publish(topic, b"own", qos, packet_id=_id(random))
    return [Subscribe(1, [Wanted(topic, qos)]), message, Ack(wrong, random.choice([1, 1, 1, 2]), code), PingReq()]


def _deep_tree(random: Random, version: int, room: bytes) -> list[Packet]:
    """Filters of which each level is a name or a wildcard, and topics that visit all nodes of their tree."""
    filters = {
        room + b"/".join(random.choice([b"a", b"+"]) for _ in range(DEEP_LEVELS))
        for _ in range(random.choice(DEEP_FILTERS))
    }
    wanted = [Wanted(filter, random.randrange(3)) for filter in sorted(filters)]
    names = [b"a"] * (DEEP_LEVELS - 1)
    topics = [room + b"/".join([*names, b"%d" % random.randrange(1 << 20)]) for _ in range(random.choice([1, 5, 20]))]
    return [Subscribe(1, wanted), *[Publish(topic, b"deep") for topic in topics]]


def _ping(random: Random, version: int, room: bytes) -> list[Packet]:
    return [PingReq()]


def _authenticate(random: Random, version: int, room: bytes) -> list[Packet]:
    return [Auth(0x19, {AUTHENTICATION_METHOD: "SCRAM-SHA-256"})] if version == V5 else []


def _say_what_servers_say(random: Random, version: int, room: bytes) -> list[Packet]:
    said: list[Packet] = [ConnAck(False), SubAck(1, [0]), UnsubAck(1, [0] if version == V5 else []), PingResp()]
    return [random.choice(said)]


def _connect_again(random: Random, version: int, room: bytes) -> list[Packet]:
    return [connect(random, version, f"client-{random.randrange(NAMES)}", room)]


def _goodbye(random: Random, version: int) -> Disconnect:
    if version != V5:
        return Disconnect()
    properties: Properties = {SESSION_EXPIRY_INTERVAL: random.choice([0, 1, 60])} if random.random() < 0.3 else {}
    return Disconnect(random.choice([0, 0, 4]), properties)


def _id(random: Random) -> int:
    return random.choice([1, 2, 3, 4, 5, 65535])


Saying = Callable[[Random, int, bytes], list[Packet]]
SAYINGS: Final[list[Saying]] = [
    _subscribe,
    _publish,
    _acknowledge,
    _ping,
    _unsubscribe,
    _stream,
    _authenticate,
    _say_what_servers_say,
    _connect_again,
    _acknowledge_wrongly,
    _deep_tree,
]
WEIGHTS: Final = [30, 45, 12, 4, 5, 3, 1, 1, 1, 2, 2]
