# The packets of MQTT 3.1, 3.1.1 and 5.0 as values.
#
# Topics and filters are bytes, checked to be UTF-8: the broker compares them and splits them at "/", and never needs
# their characters. Text that people read (client id, user name, reason string) is str. Properties are a dict by
# identifier; only the two that may occur more than once have a list as value: USER_PROPERTY a list of (name, value),
# SUBSCRIPTION_IDENTIFIER a list of int.
from dataclasses import dataclass, field
from typing import Final

V31: Final = 3
V311: Final = 4
V5: Final = 5

CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15

PropertyValue = int | str | bytes | list[int] | list[tuple[str, str]]
Properties = dict[int, PropertyValue]


@dataclass
class Will:
    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=dict)


@dataclass
class Connect:
    version: int
    client_id: str
    clean_start: bool = True  # 3.x: clean session
    keep_alive: int = 0  # seconds; 0 = off
    user_name: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = field(default_factory=dict)


@dataclass
class ConnAck:
    session_present: bool
    code: int = 0  # 3.x: the return code 0..5; 5.0: the reason code
    properties: Properties = field(default_factory=dict)


@dataclass
class Publish:
    topic: bytes  # empty only with a topic alias
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0  # 0 with QoS 0
    properties: Properties = field(default_factory=dict)


@dataclass
class Ack:
    """PUBACK, PUBREC, PUBREL or PUBCOMP: *kind* is the packet type."""

    kind: int
    packet_id: int
    code: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass
class Wanted:
    """One filter of a SUBSCRIBE with its options (3.x: only the QoS)."""

    filter: bytes
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass
class Subscribe:
    packet_id: int
    filters: list[Wanted]
    properties: Properties = field(default_factory=dict)


@dataclass
class SubAck:
    packet_id: int
    codes: list[int]
    properties: Properties = field(default_factory=dict)


@dataclass
class Unsubscribe:
    packet_id: int
    filters: list[bytes]
    properties: Properties = field(default_factory=dict)


@dataclass
class UnsubAck:
    packet_id: int
    codes: list[int]  # 5.0 only; 3.x has none on the wire
    properties: Properties = field(default_factory=dict)


@dataclass
class PingReq:
    pass


@dataclass
class PingResp:
    pass


@dataclass
class Disconnect:
    code: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass
class Auth:
    code: int = 0
    properties: Properties = field(default_factory=dict)


Packet = (
    Connect
    | ConnAck
    | Publish
    | Ack
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | Auth
)
