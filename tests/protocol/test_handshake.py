import pytest

from broker.config.schema import Limits
from broker.mqtt.codes import allowed_codes
from broker.mqtt.packets import CONNACK, V5, V31, V311, ConnAck, Connect, Properties, Will
from broker.mqtt.properties import (
    ASSIGNED_CLIENT_IDENTIFIER,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    RECEIVE_MAXIMUM,
    REQUEST_PROBLEM_INFORMATION,
    RETAIN_AVAILABLE,
    SERVER_KEEP_ALIVE,
    SESSION_EXPIRY_INTERVAL,
    TOPIC_ALIAS_MAXIMUM,
)
from broker.protocol.handshake import Terms, accept, agree, examine, refuse
from broker.reasons import CloseReason

OPEN = Limits(
    receive_maximum=65535, topic_alias_maximum=0, packet_bytes=5000, session_expiry=3600.0, outbound_topic_aliases=10
)


def granted(packet: Connect, limits: Limits = OPEN, assigned: str = "") -> Properties:
    connack = accept(packet, agree(packet, limits), False, assigned, limits)
    assert 0 == connack.code
    return connack.properties


def five(properties: Properties | None = None, *, keep_alive: int = 0) -> Connect:
    return Connect(V5, "client", True, keep_alive, properties=properties or {})


def test_the_terms_are_what_the_client_asks_for() -> None:
    """A client would be sent more than it takes, or its session not be kept as long as it asked."""
    asked: Properties = {
        SESSION_EXPIRY_INTERVAL: 60,
        RECEIVE_MAXIMUM: 7,
        MAXIMUM_PACKET_SIZE: 1000,
        TOPIC_ALIAS_MAXIMUM: 5,
        REQUEST_PROBLEM_INFORMATION: 0,
    }

    assert Terms(60, 30, 7, 1000, 5, False) == agree(five(asked, keep_alive=30), OPEN)
    assert Terms(0, 0, 65535, 0, 0, True) == agree(five(), OPEN)


def test_we_bound_what_the_client_asks_for() -> None:
    """One client could have its session kept for ever, or a table of 65 535 topics made for it."""
    terms = agree(five({SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF, TOPIC_ALIAS_MAXIMUM: 65535}), OPEN)

    assert (3600, 10) == (terms.expiry, terms.alias_maximum)


@pytest.mark.parametrize("version", [V31, V311])
def test_a_3x_session_is_kept_as_long_as_we_keep_any(version: int) -> None:
    """A session that is not clean would end with its connection, or a clean one outlive it.

    3.1.1 [MQTT-3.1.2-4], 3.1.1 [MQTT-3.1.2-6]
    """
    assert 0 == agree(Connect(version, "client", True), OPEN).expiry
    assert 3600 == agree(Connect(version, "client", False), OPEN).expiry


def test_a_connack_names_each_limit_that_we_enforce() -> None:
    """A client would be closed for something that it was not told."""
    limits = Limits(receive_maximum=10, topic_alias_maximum=4, packet_bytes=5000, qos=1, retain=False, keep_alive=60)

    assert {
        RECEIVE_MAXIMUM: 10,
        TOPIC_ALIAS_MAXIMUM: 4,
        MAXIMUM_PACKET_SIZE: 5000,
        MAXIMUM_QOS: 1,
        RETAIN_AVAILABLE: 0,
        SERVER_KEEP_ALIVE: 60,
        ASSIGNED_CLIENT_IDENTIFIER: "assigned",
    } == granted(five(), limits, "assigned")


def test_a_connack_is_silent_about_what_is_the_default() -> None:
    """A CONNACK would hold values that MQTT does not allow there, as a maximum QoS of 2 [MQTT-3.2.2-9]."""
    assert {MAXIMUM_PACKET_SIZE: 5000} == granted(five())


def test_a_client_is_told_when_its_session_is_kept_shorter() -> None:
    """A client would come back too late for a session that it takes to be there (3.2.2.3.2)."""
    assert {MAXIMUM_PACKET_SIZE: 5000, SESSION_EXPIRY_INTERVAL: 3600} == granted(five({SESSION_EXPIRY_INTERVAL: 7200}))
    assert {MAXIMUM_PACKET_SIZE: 5000} == granted(five({SESSION_EXPIRY_INTERVAL: 60}))


@pytest.mark.parametrize(
    ("asked", "most", "told"), [(30, 60, None), (60, 60, None), (61, 60, 60), (0, 60, 60), (61, 0, None), (0, 0, None)]
)
def test_a_client_is_told_when_it_must_speak_more_often(asked: int, most: int, told: int | None) -> None:
    """A client would be closed for a silence that it asked for [MQTT-3.2.2-21], [MQTT-3.2.2-22]."""
    packet = five(keep_alive=asked)
    limits = Limits(keep_alive=most)

    assert told == granted(packet, limits).get(SERVER_KEEP_ALIVE)
    assert (asked if told is None else told) == agree(packet, limits).keep_alive


@pytest.mark.parametrize("version", [V31, V311])
def test_a_3x_client_is_granted_what_it_asks_for_without_a_word(version: int) -> None:
    """A client that cannot be told would be closed for its own keep alive, or sent what it cannot read."""
    packet = Connect(version, "client", False, 600)
    limits = Limits(keep_alive=60)

    assert 600 == agree(packet, limits).keep_alive
    assert ConnAck(True) == accept(packet, agree(packet, limits), True, "", limits)


def test_what_no_state_of_the_broker_would_allow_is_refused() -> None:
    """A client would be accepted and then fail, or not learn why it may not come."""
    limits = Limits(client_id_bytes=23, qos=1, retain=False)

    def verdict(client_id: str = "client", will: Will | None = None) -> CloseReason | None:
        return examine(Connect(V5, client_id, will=will), limits)

    assert verdict() is None
    assert verdict("é" * 11 + "x") is None
    assert CloseReason.CLIENT_ID_INVALID is verdict("é" * 12)
    assert verdict(will=Will(b"t", b"", 1)) is None
    assert CloseReason.QOS_NOT_SUPPORTED is verdict(will=Will(b"t", b"", 2))
    assert CloseReason.RETAIN_NOT_SUPPORTED is verdict(will=Will(b"t", b"", 0, True))
    assert examine(Connect(V5, "client", will=Will(b"t", b"", 2, True)), Limits()) is None


def test_a_will_that_could_not_be_published_is_refused() -> None:
    """A client would learn nothing of it, as it is gone when its will is due."""
    limits = Limits(topic_levels=3, topic_bytes=10)

    def verdict(topic: bytes) -> CloseReason | None:
        return examine(Connect(V5, "client", will=Will(topic, b"")), limits)

    assert (None, CloseReason.TOPIC_LEVELS) == (verdict(b"a/b/c"), verdict(b"a/b/c/d"))
    assert (None, CloseReason.TOPIC_BYTES) == (verdict(b"x" * 10), verdict(b"x" * 11))
    assert (None, CloseReason.NOT_AUTHORIZED) == (verdict(b"$SYSTEM/x"), verdict(b"$SYS/x"))


def test_enhanced_authentication_is_refused() -> None:
    """A client would wait for an AUTH that never comes [MQTT-4.12.0-1]."""
    asked = five({AUTHENTICATION_METHOD: "SCRAM-SHA-1"})

    assert CloseReason.BAD_AUTHENTICATION_METHOD is examine(asked, OPEN)


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize("reason", list(CloseReason))
def test_every_refusal_is_one_that_its_version_has(version: int, reason: CloseReason) -> None:
    """A client would be sent a code that its version does not know [MQTT-3.2.2-8], or be told that it is welcome."""
    connack = refuse(version, reason)

    if connack is not None:
        assert connack.code in allowed_codes(CONNACK, version) - {0}
        assert not connack.session_present  # [MQTT-3.2.2-6]


@pytest.mark.parametrize(
    ("reason", "three", "five"),
    [
        (CloseReason.UNSUPPORTED_VERSION, 1, 0x84),
        (CloseReason.CLIENT_ID_INVALID, 2, 0x85),
        (CloseReason.SERVER_UNAVAILABLE, 3, 0x88),
        (CloseReason.LOG_UNAVAILABLE, 3, 0x88),
        (CloseReason.APPLICATION_LIMIT, 3, 0x97),
        (CloseReason.SERVER_BUSY, 3, 0x89),
        (CloseReason.CONNECTION_LIMIT, 3, 0x97),
        (CloseReason.CONNECTIONS_PER_ADDRESS, 3, 0x97),
        (CloseReason.CONNECT_RATE, 3, 0x9F),
        (CloseReason.SHUTTING_DOWN, 3, 0x88),
        (CloseReason.BAD_CREDENTIALS, 4, 0x86),
        (CloseReason.NOT_AUTHORIZED, 5, 0x87),
        (CloseReason.MALFORMED_PACKET, None, 0x81),
        (CloseReason.CONNECT_TIMEOUT, None, None),
        (CloseReason.NOT_MQTT, None, None),
    ],
)
def test_a_refusal_says_why_as_well_as_its_version_can(
    reason: CloseReason, three: int | None, five: int | None
) -> None:
    """A client would be told another reason, and try again where it must not or not where it should."""
    assert (None if three is None else ConnAck(False, three)) == refuse(V311, reason)
    assert (None if five is None else ConnAck(False, five)) == refuse(V5, reason)
