# What a broker's code means, for people: sections 2.4 of MQTT 5.0 and 3.2.2.3 of MQTT 3.1.1.
from typing import Final

RETURN_CODES: Final = {
    1: "this version of MQTT is not spoken there: try --version 5 or 3.1.1.",
    2: "the client id is not accepted: choose another with --id.",
    3: "the server is unavailable.",
    4: "bad user name or password: give them with --user and --password.",
    5: "not authorized: this needs a user (--user, --password), or one that may do more.",
}
REASON_CODES: Final = {
    0x80: "unspecified error.",
    0x81: "malformed packet.",
    0x82: "protocol error.",
    0x83: "implementation specific error.",
    0x84: "this version of MQTT is not spoken there: try --version 3.1.1.",
    0x85: "the client id is not valid: choose another with --id.",
    0x86: "bad user name or password: give them with --user and --password.",
    0x87: "not authorized: this needs a user (--user, --password), or one that may do more.",
    0x88: "the server is unavailable.",
    0x89: "the server is busy: try again later, or connect more slowly.",
    0x8A: "banned.",
    0x8B: "the server is shutting down.",
    0x8C: "bad authentication method.",
    0x8D: "keep alive timeout.",
    0x8E: "the session was taken over: somebody else uses the same client id.",
    0x8F: "topic filter invalid.",
    0x90: "topic name invalid.",
    0x93: "receive maximum exceeded.",
    0x94: "topic alias invalid.",
    0x95: "packet too large: try a smaller payload.",
    0x96: "message rate too high.",
    0x97: "quota exceeded.",
    0x98: "administrative action.",
    0x99: "payload format invalid.",
    0x9A: "retain is not supported there: leave --retain out.",
    0x9B: "this QoS is not supported there: try a lower --qos.",
    0x9C: "use another server.",
    0x9D: "the server moved.",
    0x9E: "shared subscriptions are not supported there.",
    0x9F: "connection rate exceeded: connect more slowly (--connect-rate).",
    0xA0: "maximum connect time.",
    0xA1: "subscription identifiers are not supported there.",
    0xA2: "wildcard subscriptions are not supported there.",
}


def in_words(kind: str, code: int) -> str:
    """The code and what it means, a whole sentence's end; *kind* is the packet that had it."""
    if kind == "CONNACK" and code in RETURN_CODES:
        return f"{code}, {RETURN_CODES[code]}"
    if kind == "SUBACK" and code == 0x80:
        return "0x80, this filter may not be subscribed to."
    return f"0x{code:02x}, {REASON_CODES.get(code, 'a code that MQTT does not know.')}"
