# The rules for strings, topic names and topic filters.
#
# They are applied to the received bytes: nothing is normalised, stripped or decoded first [MQTT-1.5.4-3],
# [MQTT-4.7.3-4]. Bytes that are not UTF-8 are a malformed packet; a name or a filter that breaks the rules of section
# 4.7 has reason codes of its own.
from typing import Final

from broker.reasons import CloseReason, ProtocolError

SHARE_PREFIX: Final = b"$share/"


def check_utf8(raw: bytes) -> None:
    """Raise MALFORMED_PACKET unless *raw* is a UTF-8 Encoded String (MQTT 5.0, 1.5.4)."""
    if b"\0" in raw:
        raise ProtocolError(CloseReason.MALFORMED_PACKET, "U+0000 in a string")  # [MQTT-1.5.4-2], [MQTT-4.7.3-2]
    if raw.isascii():
        return
    try:
        raw.decode()  # strict: surrogates and overlong forms are refused [MQTT-1.5.4-1]
    except UnicodeDecodeError:
        raise ProtocolError(CloseReason.MALFORMED_PACKET, "a string is not UTF-8") from None


def check_topic(topic: bytes) -> None:
    """Raise TOPIC_NAME_INVALID unless *topic* is a topic name; MALFORMED_PACKET if it is not UTF-8."""
    if not topic:
        raise ProtocolError(CloseReason.TOPIC_NAME_INVALID, "empty topic name")  # [MQTT-4.7.3-1]
    check_utf8(topic)
    if b"+" in topic or b"#" in topic:  # [MQTT-4.7.0-1]
        raise ProtocolError(CloseReason.TOPIC_NAME_INVALID, "wildcard in a topic name")  # [MQTT-3.3.2-2]


def check_filter(filter: bytes) -> None:
    """Raise TOPIC_FILTER_INVALID unless *filter* is a topic filter; MALFORMED_PACKET if it is not UTF-8.

    The rules for shared subscriptions hold in every version of the protocol.
    """
    if not filter:
        raise _invalid("empty topic filter")  # [MQTT-4.7.3-1]
    check_utf8(filter)
    share = split_share(filter)
    if share is not None:
        name, filter = share
        if not name or b"+" in name or b"#" in name:
            raise _invalid("bad share name")  # [MQTT-4.8.2-1], [MQTT-4.8.2-2]
        if not filter:
            raise _invalid("shared subscription without a topic filter")  # [MQTT-4.8.2-2]
    if b"+" in filter or b"#" in filter:
        _check_wildcards(filter)


def split_share(filter: bytes) -> tuple[bytes, bytes] | None:
    """(share name, topic filter) of a `$share/{name}/{filter}`, None for any other filter.

    A part that is missing is empty; check_filter() refuses such filters.
    """
    if not filter.startswith(SHARE_PREFIX):
        return None
    end = filter.find(b"/", len(SHARE_PREFIX))
    if end < 0:
        return filter[len(SHARE_PREFIX) :], b""
    return filter[len(SHARE_PREFIX) : end], filter[end + 1 :]


def _check_wildcards(filter: bytes) -> None:
    levels = filter.split(b"/")
    last = len(levels) - 1
    for depth, level in enumerate(levels):
        if b"#" in level and (depth != last or len(level) != 1):
            raise _invalid("# is not a whole last level")  # [MQTT-4.7.1-1]
        if b"+" in level and len(level) != 1:
            raise _invalid("+ is not a whole level")  # [MQTT-4.7.1-2]


def _invalid(detail: str) -> ProtocolError:
    return ProtocolError(CloseReason.TOPIC_FILTER_INVALID, detail)
