# The topic on which a client gets notices of its gaps, and the filters that match it.
#
# A notice is sent to its session and to nobody else: it does not pass the routes, which would give it to all that have
# subscribed. So a filter of another client's topic, or a wildcard, yields a client's own notices, or none.
from typing import Final

ROOT: Final = b"$SYS/broker/clients/"
# What a topic level must not have, and the sign that stands before the two digits of such a byte.
ENCODED: Final = ((b"%", b"%25"), (b"/", b"%2F"), (b"+", b"%2B"), (b"#", b"%23"))


def gap_topic(client_id: str) -> bytes:
    """`$SYS/broker/clients/ID/gap`, where % / + and # of *client_id* are %25 %2F %2B and %23."""
    level = client_id.encode(errors="replace")
    for byte, encoded in ENCODED:
        level = level.replace(byte, encoded)
    return b"%b%b/gap" % (ROOT, level)


def filters_of(topic: bytes) -> list[bytes]:
    """All filters that match *topic*, a topic that `gap_topic()` returned: 47."""
    levels = topic.split(b"/")
    begun = [levels[0]]  # no wildcard matches $SYS [MQTT-4.7.2-1]
    found = [begun[0] + b"/#"]
    for level in levels[1:]:
        begun = [b"%b/%b" % (before, each) for before in begun for each in (level, b"+")]
        found += [each + b"/#" for each in begun]
    return found + begun
