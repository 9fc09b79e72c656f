# Acknowledgements in both directions, also those that fit nothing.
import pytest

from broker.mqtt.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, V5, V31, V311, Ack
from broker.reasons import CloseReason, ProtocolError
from broker.session.session import Session
from tests.session.receiver import NOW, Receiver, message

VERSIONS = pytest.mark.parametrize("version", [V31, V311, V5])
PACKET_ID_NOT_FOUND = 0x92


@VERSIONS
def test_a_puback_for_an_unknown_id_is_ignored(version: int) -> None:
    """A late PUBACK would end another exchange, or the connection."""
    receiver = Receiver().connect(version)
    assert not receiver.session.puback(1, NOW)

    receiver.offer(message(b"", 1))
    receiver.take()

    assert not receiver.session.puback(2, NOW)
    assert [] == receiver.take()
    assert 1 == receiver.session.inflight()


@VERSIONS
@pytest.mark.parametrize(
    ("qos", "acknowledged", "wrong"),
    [
        (1, [], PUBREC),
        (1, [], PUBCOMP),
        (2, [], PUBACK),
        (2, [], PUBCOMP),
        (2, [PUBREC], PUBACK),
    ],
)
def test_an_acknowledgement_of_the_wrong_kind_is_a_protocol_error(
    version: int, qos: int, acknowledged: list[int], wrong: int
) -> None:
    """The client has confused two exchanges: the broker would go on with one whose outcome nobody knows.

    4.3.2, 4.3.3: a PUBACK ends an exchange of QoS 1, PUBREC and then PUBCOMP one of QoS 2. The exchange is unchanged.
    """
    receiver = Receiver().connect(version).offer(message(b"", qos))
    for kind in acknowledged:
        acknowledge(receiver.session, kind)
    receiver.take()

    with pytest.raises(ProtocolError) as error:
        acknowledge(receiver.session, wrong)

    assert CloseReason.PROTOCOL_ERROR is error.value.reason
    assert ([], 1) == (receiver.take(), receiver.session.inflight())


def test_a_refusal_of_a_qos_1_message_by_a_pubrec_is_a_protocol_error() -> None:
    """A message that its receiver may hold already would be given up as refused."""
    receiver = Receiver().connect(V5).offer(message(b"", 1))

    with pytest.raises(ProtocolError):
        receiver.session.pubrec(1, 0x80, NOW)


def acknowledge(session: Session, kind: int) -> bool:
    """Acknowledge the message with the packet id 1."""
    if kind == PUBACK:
        return session.puback(1, NOW)
    return session.pubrec(1, 0, NOW) if kind == PUBREC else session.pubcomp(1, NOW)


@VERSIONS
def test_a_pubrec_for_an_unknown_id_is_released(version: int) -> None:
    """A client that remembers more than we do would repeat itself at every reconnect."""
    receiver = Receiver().connect(version)

    assert not receiver.session.pubrec(9, 0, NOW)

    assert [Ack(PUBREL, 9, PACKET_ID_NOT_FOUND if version == V5 else 0)] == receiver.take()
    assert 1 == receiver.counters.answers_sent


def test_a_refusal_of_an_unknown_id_is_not_answered() -> None:
    """We would release a message that the client refused [MQTT-4.3.3-4]."""
    receiver = Receiver().connect(V5)

    assert not receiver.session.pubrec(9, 0x80, NOW)
    assert [] == receiver.take()


def test_a_qos_2_message_is_released_and_completed() -> None:
    """The exchange would not end [MQTT-4.3.3-4], and its place in the window not become free [MQTT-4.3.3-5]."""
    receiver = Receiver().connect(V5, window=1).offer(message(b"a", 2), message(b"b", 2))
    receiver.take()

    assert receiver.session.pubrec(1, 0, NOW)
    assert [Ack(PUBREL, 1)] == receiver.take()
    assert receiver.session.pubrec(1, 0, NOW)  # the client did not get our PUBREL
    assert [Ack(PUBREL, 1)] == receiver.take()
    assert receiver.session.pubcomp(1, NOW)

    assert [b"b"] == receiver.payloads()


def test_a_refused_qos_2_message_frees_its_place() -> None:
    """A client that refuses messages would get no more of them [MQTT-4.4.0-2]."""
    receiver = Receiver().connect(V5, window=1).offer(message(b"a", 2), message(b"b", 2))
    receiver.take()

    assert receiver.session.pubrec(1, 0x97, NOW)

    assert [b"b"] == receiver.payloads()
    assert receiver.session.pubrec(2, 0x97, NOW)
    assert 0 == receiver.session.inflight()


@VERSIONS
def test_a_pubcomp_for_an_unknown_id_is_ignored(version: int) -> None:
    """A late PUBCOMP would end another exchange, or the connection."""
    receiver = Receiver().connect(version)
    assert not receiver.session.pubcomp(1, NOW)

    receiver.offer(message(b"", 2))
    receiver.take()

    assert not receiver.session.pubcomp(2, NOW)
    assert [] == receiver.take()
    assert 1 == receiver.session.inflight()


def test_nothing_waits_after_the_last_acknowledgement() -> None:
    """The last exchange would not end when no other message waits behind it."""
    receiver = Receiver().connect().offer(message(b"", 1), message(b"", 2))
    receiver.session.pubrec(2, 0, NOW)

    assert receiver.session.pubcomp(2, NOW)
    assert receiver.session.puback(1, NOW)
    assert 0 == receiver.session.inflight()


@VERSIONS
def test_a_qos_2_publish_is_taken_once(version: int) -> None:
    """A publish that is repeated would be delivered twice [MQTT-4.3.3-10], or a new one under a freed id not at all.

    [MQTT-4.3.3-11], [MQTT-4.3.3-12]
    """
    receiver = Receiver().connect(version)
    session = receiver.session

    assert not session.holds(1)
    assert [True, False, True] == [session.receive(1), session.receive(1), session.receive(2)]
    assert session.holds(1)
    assert 2 == session.unreleased()

    assert session.pubrel(1)
    assert [Ack(PUBCOMP, 1)] == receiver.take()
    assert not session.holds(1)
    assert session.receive(1)


@VERSIONS
def test_a_pubrel_for_an_unknown_id_is_completed(version: int) -> None:
    """A client whose PUBREL we had already seen would wait for its PUBCOMP for ever [MQTT-4.3.3-11]."""
    receiver = Receiver().connect(version)
    code = PACKET_ID_NOT_FOUND if version == V5 else 0

    assert not receiver.session.pubrel(9)
    receiver.session.receive(1)
    assert not receiver.session.pubrel(9)

    assert [Ack(PUBCOMP, 9, code), Ack(PUBCOMP, 9, code)] == receiver.take()
    assert 1 == receiver.session.unreleased()
    assert 2 == receiver.counters.answers_sent


def test_what_was_received_is_known_on_the_next_connection() -> None:
    """A QoS 2 publish whose PUBREC got lost would be delivered twice [MQTT-4.3.3-10]."""
    receiver = Receiver(expiry=60).connect()
    receiver.session.receive(1)

    receiver.connect()

    assert not receiver.session.receive(1)


def test_an_acknowledgement_after_the_connection_is_gone_is_not_answered() -> None:
    """Answers would be written for a client that is not there."""
    receiver = Receiver(expiry=60).connect().offer(message(b"", 2))
    receiver.session.receive(5)
    receiver.session.detach()

    assert not receiver.session.pubrec(1, 0, NOW)
    assert receiver.session.pubrel(5)
    assert 1 == receiver.session.inflight()
