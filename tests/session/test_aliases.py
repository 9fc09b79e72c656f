# The topic aliases that we set.
import pytest

from broker.mqtt.packets import V5, Publish
from broker.mqtt.properties import TOPIC_ALIAS
from broker.reasons import DropReason
from broker.session.message import Message
from tests.session.receiver import NOW, Receiver, message

LONG = b"a/long/topic/name"


def topics(receiver: Receiver) -> list[tuple[bytes, object]]:
    """Topic and alias of what was published."""
    return [(p.topic, p.properties.get(TOPIC_ALIAS)) for p in receiver.take() if isinstance(p, Publish)]


def on(topic: bytes, qos: int) -> Message:
    return message(b"payload", qos, topic=topic)


@pytest.mark.parametrize("qos", [0, 1])
def test_an_alias_is_set_with_the_topic_and_used_without(qos: int) -> None:
    """A client would not know what an alias stands for, or aliases would save nothing [MQTT-3.3.2-8]."""
    receiver = Receiver().connect(V5, aliases=2).offer(on(b"aaaa", qos), on(b"bbbb", qos), on(b"aaaa", qos))

    assert [(b"aaaa", 1), (b"bbbb", 2), (b"", 1)] == topics(receiver)


@pytest.mark.parametrize("qos", [0, 2])
def test_no_more_aliases_than_the_client_allows(qos: int) -> None:
    """A client would get an alias above its maximum, and close [MQTT-3.1.2-26], [MQTT-3.3.2-11]."""
    receiver = Receiver().connect(V5, aliases=1).offer(on(b"aaaa", qos), on(b"bbbb", qos), on(b"bbbb", qos))

    assert [(b"aaaa", 1), (b"bbbb", None), (b"bbbb", None)] == topics(receiver)


def test_aliases_end_with_their_connection() -> None:
    """A new connection would be sent aliases that it was never told [MQTT-3.3.2-7]."""
    receiver = Receiver(expiry=60).connect(V5, aliases=1).offer(on(b"aaaa", 1))

    receiver.connect(V5, aliases=1)

    assert [(b"aaaa", None)] == topics(receiver)  # sent again
    assert [(b"aaaa", 1)] == topics(receiver.offer(on(b"aaaa", 1)))


@pytest.mark.parametrize("qos", [0, 1])
def test_no_alias_where_only_the_plain_packet_fits(qos: int) -> None:
    """A message that the client takes would not be sent, or one that it does not take would."""
    plain = on(LONG, qos)
    receiver = Receiver().connect(V5, aliases=1, maximum_packet=plain.length(V5, NOW))
    receiver.offer(plain, on(LONG, qos))

    assert [(LONG, None), (LONG, None)] == topics(receiver)


@pytest.mark.parametrize("qos", [0, 1])
def test_an_alias_that_just_fits_is_set(qos: int) -> None:
    """A client with a small maximum packet size would be sent whole topics for ever."""
    first = on(LONG, qos)
    receiver = Receiver().connect(V5, aliases=1, maximum_packet=len(first.aliased(LONG, 1, 1, NOW)))
    receiver.offer(first, on(LONG, qos))

    assert [(LONG, 1), (b"", 1)] == topics(receiver)


@pytest.mark.parametrize("qos", [0, 1])
def test_no_alias_for_a_topic_that_is_shorter_than_it(qos: int) -> None:
    """A packet that fits would be made larger than the client takes [MQTT-3.1.2-24]."""
    small, large = message(b"", qos, topic=b"t"), message(b"12345", qos, topic=b"t")
    receiver = Receiver().connect(V5, aliases=1, maximum_packet=large.length(V5, NOW))
    receiver.offer(small, large, small)

    assert [(b"t", 1), (b"t", None), (b"", 1)] == topics(receiver)
    assert 0 == receiver.dropped(DropReason.TOO_LARGE)


def test_a_message_that_is_not_written_sets_no_alias() -> None:
    """A client would be sent an alias whose topic was in a packet that it never got."""
    receiver = Receiver().connect(V5, aliases=2, high=10).offer(on(b"aaaa", 0), on(b"bbbb", 0))
    assert [(b"aaaa", 1)] == topics(receiver)
    assert 1 == receiver.dropped(DropReason.NOT_WRITABLE)
    assert [(b"bbbb", 2)] == topics(receiver.offer(on(b"bbbb", 0)))

    receiver.session.detach()
    receiver.offer(on(b"aaaa", 0))

    assert 1 == receiver.dropped(DropReason.OFFLINE_QOS0)
