# The bodies below are spelt out: name, level, flags, keep alive, (properties,) client id, ...
import pytest

from broker.mqtt.connect import peek_version
from broker.mqtt.fields import encode_length
from broker.mqtt.packets import V5, V31, V311, Connect, Will
from broker.mqtt.properties import RECEIVE_MAXIMUM, WILL_DELAY_INTERVAL
from broker.reasons import CloseReason
from tests.mqtt.reading import only, refusal

MALFORMED = CloseReason.MALFORMED_PACKET

NAME_31 = "0006 4d5149736470 03"
NAME_311 = "0004 4d515454 04"
NAME_5 = "0004 4d515454 05"


def connect(body: str) -> str:
    """The CONNECT with this body, both hexadecimal."""
    data = bytes.fromhex(body)
    return (b"\x10" + encode_length(len(data)) + data).hex()


def test_a_connect_of_each_version() -> None:
    """A field of CONNECT is read from the wrong place [MQTT-3.1.3-1], [MQTT-3.1.3-3]."""
    will = "0001 77 0002 6869"
    credentials = "0001 75 0002 00ff"
    will_read = Will(b"w", b"hi", 1, True)

    assert Connect(V31, "c", True, 60, "u", b"\0\xff", will_read) == only(
        connect(f"{NAME_31} ee 003c 000163 {will} {credentials}"), 0
    )
    assert Connect(V311, "c", False, 60, "u", b"\0\xff", will_read) == only(
        connect(f"{NAME_311} ec 003c 000163 {will} {credentials}"), 0
    )
    will_read.properties[WILL_DELAY_INTERVAL] = 9
    assert Connect(V5, "c", False, 60, "u", b"\0\xff", will_read, {RECEIVE_MAXIMUM: 7}) == only(
        connect(f"{NAME_5} ec 003c 03 210007 000163 05 1800000009 {will} {credentials}"), 0
    )


@pytest.mark.parametrize(
    "name",
    [
        "0004 4d515454 03",  # "MQTT" with the level of 3.1
        "0006 4d5149736470 04",
        "0004 4d515454 06",
        "0004 4d515454 84",  # the bit that marks a bridge
        "0004 6d717474 05",  # "mqtt"
        "0000 05",
    ],
)
def test_an_unknown_name_or_level_is_an_unsupported_version(name: str) -> None:
    """A client of another version is served as one of ours [MQTT-3.1.2-1], [MQTT-3.1.2-2]."""
    assert CloseReason.UNSUPPORTED_VERSION is refusal(connect(f"{name} 02 003c 000163"), 0)


@pytest.mark.parametrize("body", ["", "00", "0004 4d51", "0004 4d515454", "ffff 4d515454", "0002 fffe 04"])
def test_a_body_without_a_protocol_name_is_malformed(body: str) -> None:
    """What is no CONNECT at all is answered as an unknown version."""
    assert MALFORMED is refusal(connect(body), 0)


@pytest.mark.parametrize("name", [NAME_311, NAME_5 + "@"])
def test_a_connect_cut_anywhere_is_malformed(name: str) -> None:
    """A field that its flag announces is missing, and CONNECT is accepted.

    [MQTT-3.1.2-9], [MQTT-3.1.2-17], [MQTT-3.1.2-19], [MQTT-3.1.3-3]
    """
    properties = "00" if name.endswith("@") else ""
    body = f"{name.strip('@')} c6 003c {properties} 000163 {properties} 000177 00026869 000175 000170".replace(" ", "")
    assert refusal(connect(body), 0) is None

    for cut in range(0, len(body), 2):
        assert MALFORMED is refusal(connect(body[:cut]), 0)
    assert MALFORMED is refusal(connect(body + "00"), 0)


@pytest.mark.parametrize(
    ("flags", "rest"),
    [
        ("42", "000163 000170 000175"),  # a user name behind the password, or before it [MQTT-3.1.2-16]
        ("02", "000163 000175"),
        ("c2", "000163 000175 000170 000177 0000"),  # a will without its flag, 3.1.1 [MQTT-3.1.2-11]
        ("82", "000163 000175 000170"),  # a password without its flag [MQTT-3.1.2-18]
    ],
)
def test_a_field_without_its_flag_is_malformed(flags: str, rest: str) -> None:
    """One field is taken for another, or what follows the last one for nothing."""
    assert MALFORMED is refusal(connect(f"{NAME_311} {flags} 003c {rest}"), 0)
    assert MALFORMED is refusal(connect(f"{NAME_5} {flags} 003c 00 {rest}"), 0)


@pytest.mark.parametrize(
    ("flags", "rest"),
    [
        ("82", "000163"),  # no user name [MQTT-3.1.2-17]
        ("c2", "000163 000175"),  # no password [MQTT-3.1.2-19]
        ("06", "000163 @ 000177"),  # no will message [MQTT-3.1.2-9]
        ("06", "000163 @"),
    ],
)
def test_a_flag_without_its_field_is_malformed(flags: str, rest: str) -> None:
    """A client is let in as somebody without a name, or without the will that it counts on."""
    assert MALFORMED is refusal(connect(f"{NAME_311} {flags} 003c " + rest.replace("@", "")), 0)
    assert MALFORMED is refusal(connect(f"{NAME_5} {flags} 003c 00 " + rest.replace("@", "00")), 0)


@pytest.mark.parametrize(
    ("flags", "rest"),
    [
        ("03", "000163"),  # reserved flag [MQTT-3.1.2-3]
        ("0a", "000163"),  # will QoS without a will [MQTT-3.1.2-11]
        ("22", "000163"),  # will retain without a will [MQTT-3.1.2-13]
        ("1e", "000163 @ 000177 0000"),  # will QoS 3 [MQTT-3.1.2-12]
    ],
)
def test_connect_flags_that_contradict_themselves_are_malformed(flags: str, rest: str) -> None:
    """A will is built from flags that cannot be."""
    assert MALFORMED is refusal(connect(f"{NAME_311} {flags} 003c " + rest.replace("@", "")), 0)
    assert MALFORMED is refusal(connect(f"{NAME_5} {flags} 003c 00 " + rest.replace("@", "00")), 0)


def test_3_1_does_not_use_some_flags() -> None:
    """A 3.1 client is refused for bits that its specification calls "not used"; will QoS 3 stays wrong."""
    assert only(connect(f"{NAME_31} 3b 003c 000163"), 0) == Connect(V31, "c", True, 60)
    assert MALFORMED is refusal(connect(f"{NAME_31} 1e 003c 000163 000177 0000"), 0)


@pytest.mark.parametrize("flags", range(1, 16))
def test_only_3_1_leaves_the_flags_of_the_fixed_header_unused(flags: int) -> None:
    """A client of 3.1 that sets DUP in a CONNECT that it sends again is refused, or one of 3.1.1 is not [MQTT-2.1.3-1].

    3.1 (3.1): "The DUP, QoS, and RETAIN flags are not used in the CONNECT message."
    """
    first = f"{0x10 | flags:02x}"

    assert Connect(V31, "c", True, 60) == only(first + connect(f"{NAME_31} 02 003c 000163")[2:], 0)
    assert MALFORMED is refusal(first + connect(f"{NAME_311} 02 003c 000163")[2:], 0)
    assert MALFORMED is refusal(first + connect(f"{NAME_5} 02 003c 00 000163")[2:], 0)


def test_a_password_needs_a_user_name_before_version_5() -> None:
    """3.x accepts a password alone (3.1.1 [MQTT-3.1.2-22]), or 5.0 refuses one (3.1.2.9)."""
    assert MALFORMED is refusal(connect(f"{NAME_31} 42 003c 000163 000170"), 0)
    assert MALFORMED is refusal(connect(f"{NAME_311} 42 003c 000163 000170"), 0)
    assert Connect(V5, "c", True, 60, None, b"p") == only(connect(f"{NAME_5} 42 003c 00 000163 000170"), 0)


def test_3_1_may_leave_out_what_its_flags_announce() -> None:
    """A 3.1 client whose packet ends early is refused, though its length takes precedence over the flags (3.1)."""
    assert Connect(V31, "c", True, 60) == only(connect(f"{NAME_31} c2 003c 000163"), 0)
    assert Connect(V31, "c", True, 60, "u") == only(connect(f"{NAME_31} c2 003c 000163 000175"), 0)


def test_who_may_leave_the_client_id_empty() -> None:
    """A session that nobody can come back to is kept, 3.1.1 [MQTT-3.1.3-7], or 5.0 must name itself [MQTT-3.1.3-6]."""
    assert CloseReason.CLIENT_ID_INVALID is refusal(connect(f"{NAME_31} 02 003c 0000"), 0)
    assert CloseReason.CLIENT_ID_INVALID is refusal(connect(f"{NAME_311} 00 003c 0000"), 0)
    assert Connect(V311, "", True, 60) == only(connect(f"{NAME_311} 02 003c 0000"), 0)
    assert Connect(V5, "", False, 60) == only(connect(f"{NAME_5} 00 003c 00 0000"), 0)


def test_a_3_1_client_id_may_be_longer_than_23() -> None:
    """Real 3.1 clients with long ids are shut out."""
    decoded = only(connect(f"{NAME_31} 02 003c 0018" + "63" * 24), 0)

    assert Connect(V31, "c" * 24, True, 60) == decoded


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("0000", CloseReason.TOPIC_NAME_INVALID),
        ("0001 23", CloseReason.TOPIC_NAME_INVALID),
        ("0001 ff", MALFORMED),  # [MQTT-3.1.3-11]
    ],
)
def test_a_will_goes_to_a_topic(topic: str, expected: CloseReason) -> None:
    """A will for a topic that nobody may publish to is kept until it fires."""
    assert expected is refusal(connect(f"{NAME_311} 06 003c 000163 {topic} 0000"), 0)


def test_client_id_and_user_name_are_text() -> None:
    """Bytes that are no text get into logs and comparisons [MQTT-3.1.3-4], [MQTT-3.1.3-12]."""
    assert MALFORMED is refusal(connect(f"{NAME_311} 02 003c 0001ff"), 0)
    assert MALFORMED is refusal(connect(f"{NAME_311} 82 003c 000163 0001ff"), 0)


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (f"{NAME_5} ff", V5),
        (f"{NAME_311} ff", V311),
        (f"{NAME_31} ff", V311),
        ("0004 4d515454 06", V5),
        ("0000 04", V311),
        ("0004 4d515454", 0),
        ("ffff 4d515454 05", 0),
        ("00", 0),
        ("", 0),
    ],
)
def test_a_refusal_is_written_in_a_version_that_its_reader_may_know(body: str, version: int) -> None:
    """A client that is refused cannot read why, or bytes that are no CONNECT are answered [MQTT-3.1.2-2]."""
    data = b"\xff" + bytes.fromhex(body)

    assert version == peek_version(data + b"\5" * 9, 1, len(data))


@pytest.mark.parametrize("body", [b"", b"\0", b"\0\4", b"\0\4MQTT"])
def test_a_version_is_not_looked_for_beyond_the_end(body: bytes) -> None:
    """A CONNECT that ends early would end the worker instead of its connection."""
    data = b"\x10\x0c" + body

    assert 0 == peek_version(data, 2, len(data))


def test_a_long_protocol_name_is_skipped_whole() -> None:
    """A client with a name of its own would be answered in a version that it may not understand."""
    data = (260).to_bytes(2, "big") + b"\3" * 260 + b"\5" + b"\3" * 600

    assert V5 == peek_version(data, 0, len(data))
