# Which reason codes MQTT 5.0 allows in which packet (table 2-6), and the return codes of 3.1 and 3.1.1.
from typing import Final

from broker.mqtt.packets import (
    AUTH,
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    V5,
)

_PUBLISH_ANSWERS: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASE_ANSWERS: Final = frozenset({0x00, 0x92})

REASON_CODES: Final[dict[int, frozenset[int]]] = {
    CONNACK: frozenset({0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F}),
    PUBACK: _PUBLISH_ANSWERS,  # [MQTT-3.4.2-1]
    PUBREC: _PUBLISH_ANSWERS,  # [MQTT-3.5.2-1]
    PUBREL: _RELEASE_ANSWERS,  # [MQTT-3.6.2-1]
    PUBCOMP: _RELEASE_ANSWERS,  # [MQTT-3.7.2-1]
    SUBACK: frozenset({0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}),
    UNSUBACK: frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
    # [MQTT-3.14.2-1]; 0x8C is in table 2-6, though not in 3.14: it is how a re-authentication fails [MQTT-4.12.1-2].
    DISCONNECT: frozenset(
        {0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, *range(0x8B, 0x91), *range(0x93, 0xA3)},
    ),
    AUTH: frozenset({0x00, 0x18, 0x19}),  # [MQTT-3.15.2-1]
}

# 0x80 came with 3.1.1; brokers answer 3.1 with it as well, because 3.1 has no other way to say no.
RETURN_CODES: Final[dict[int, frozenset[int]]] = {
    CONNACK: frozenset(range(6)),
    SUBACK: frozenset({0x00, 0x01, 0x02, 0x80}),
}


def allowed_codes(kind: int, version: int) -> frozenset[int]:
    """The codes that a packet of type *kind* may carry in *version*; KeyError where it carries none."""
    return REASON_CODES[kind] if version == V5 else RETURN_CODES[kind]
