import pytest
from hypothesis import given

from broker.mqtt.topics import check_filter, check_topic, check_utf8, split_share
from broker.reasons import CloseReason, ProtocolError
from tests.mqtt.strategies import filters, topics


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff",
        b"\xc0\xaf",  # overlong "/"
        b"\xed\xa0\x80",  # U+D800
        b"\xed\xbf\xbf",  # U+DFFF
        b"\xf4\x90\x80\x80",  # beyond U+10FFFF
        b"\xe2\x82",  # cut short
        b"a\0b",
    ],
)
def test_text_that_is_not_utf8_is_malformed(raw: bytes) -> None:
    """Ill-formed text, or a NUL in it, reaches the broker [MQTT-1.5.4-1], [MQTT-1.5.4-2], [MQTT-4.7.3-2]."""
    for check in (check_utf8, check_topic, check_filter):
        with pytest.raises(ProtocolError) as refused:
            check(raw)
        assert refused.value.reason is CloseReason.MALFORMED_PACKET


@pytest.mark.parametrize("raw", [b"", b"plain", "\ufeffgrün\U0010ffff".encode(), b"\x01\x7f"])
def test_text_is_accepted_as_it_is(raw: bytes) -> None:
    """A byte order mark, control characters or the last code point are refused [MQTT-1.5.4-3]."""
    check_utf8(raw)


@pytest.mark.parametrize("topic", [b"", b"a/+", b"#", b"a+b", b"a/b#"])
def test_a_topic_name_has_no_wildcards_and_is_not_empty(topic: bytes) -> None:
    """Somebody publishes to a wildcard [MQTT-3.3.2-2], [MQTT-4.7.0-1] or to nothing [MQTT-4.7.3-1]."""
    with pytest.raises(ProtocolError) as refused:
        check_topic(topic)
    assert refused.value.reason is CloseReason.TOPIC_NAME_INVALID


@pytest.mark.parametrize(
    "filter",
    [
        b"",  # [MQTT-4.7.3-1]
        b"a#",  # [MQTT-4.7.1-1]
        b"a/#/b",
        b"#/",
        b"##",
        b"a+",  # [MQTT-4.7.1-2]
        b"+a/b",
        b"a/++/b",
        b"+#",
        b"$share/",  # [MQTT-4.8.2-1]
        b"$share//a",
        b"$share/name",  # [MQTT-4.8.2-2]
        b"$share/name/",
        b"$share/na+me/a",
        b"$share/#/a",
        b"$share/name/a/#/b",
    ],
)
def test_bad_filters_are_refused(filter: bytes) -> None:
    """A misplaced wildcard or a shared subscription without its parts becomes a subscription."""
    with pytest.raises(ProtocolError) as refused:
        check_filter(filter)
    assert refused.value.reason is CloseReason.TOPIC_FILTER_INVALID


@pytest.mark.parametrize(
    "filter", [b"#", b"+", b"/", b"+/+/#", b"a//b", b"$SYS/#", b"$share", b"$share/g/#", b"$shared/+"]
)
def test_good_filters_are_accepted(filter: bytes) -> None:
    """A filter that section 4.7 gives as an example is refused."""
    check_filter(filter)


@given(topics, filters())
def test_what_the_strategies_call_valid_is_valid(topic: bytes, filter: bytes) -> None:
    """A rule is stricter than the specification."""
    check_topic(topic)
    check_filter(topic if not topic.startswith(b"$share/") else b"a")
    check_filter(filter)


@pytest.mark.parametrize(
    ("filter", "parts"),
    [
        (b"$share/group/a/+", (b"group", b"a/+")),
        (b"$share/group//a", (b"group", b"/a")),
        (b"$share/group", (b"group", b"")),
        (b"$share", None),
        (b"a/$share/b", None),
    ],
)
def test_a_shared_subscription_is_split_at_its_name(filter: bytes, parts: tuple[bytes, bytes] | None) -> None:
    """Members of one group end up in different ones, or subscribe to another filter."""
    assert parts == split_share(filter)
