# Runs: many packets in one piece.
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, V31, V311, Packet, Properties, Publish
from broker.mqtt.properties import SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS
from broker.reasons import DropReason
from broker.session.run import GROWTH, Run
from tests.mqtt.reading import read
from tests.session.receiver import NOW, Receiver, message

IDENTIFIERS = bytes((SUBSCRIPTION_IDENTIFIER, 5))
OTHERS = bytes((SUBSCRIPTION_IDENTIFIER, 6))
PAYLOADS = [b"", b"one", b"x" * 300]


def run(payloads: list[bytes], version: int) -> Run:
    packets = [encode(Publish(b"to/pic", payload), version) for payload in payloads]
    sizes = [len(packet) for packet in packets]
    return Run(b"".join(packets), version, len(packets), b"to/pic", len(b"".join(payloads)), max(sizes))


def published(payloads: list[bytes]) -> list[Packet]:
    return [Publish(b"to/pic", payload) for payload in payloads]


def identified(payloads: list[bytes], *identifiers: int) -> list[Packet]:
    properties: Properties = {SUBSCRIPTION_IDENTIFIER: list(identifiers)}
    return [Publish(b"to/pic", payload, properties=properties) for payload in payloads]


@pytest.mark.parametrize("came", [V31, V311, V5])
@pytest.mark.parametrize("goes", [V31, V311, V5])
@given(payloads=st.lists(st.binary(max_size=200), min_size=1, max_size=5))
def test_a_run_is_the_same_messages_in_every_version(came: int, goes: int, payloads: list[bytes]) -> None:
    """A receiver of another version than the publisher's would get nothing that it can read."""
    one = run(payloads, came)

    data = one.encoded(goes, b"")

    assert (published(payloads), None) == read([data], goes)
    assert data is one.encoded(goes, b"")
    assert payloads == one.payloads()
    assert one.payloads() is one.payloads()


def test_a_large_packet_in_a_run_keeps_its_length() -> None:
    """A length of several bytes would be misread, and all packets behind it with it."""
    payloads = [b"a" * 20_000, b"b" * 2_200_000, b"c"]

    assert (published(payloads), None) == read([run(payloads, V311).encoded(V5, b"")], V5)
    assert payloads == run(payloads, V5).payloads()


@pytest.mark.parametrize("came", [V311, V5])
def test_identifiers_are_on_each_packet_of_a_run(came: int) -> None:
    """A client would not learn by which subscription a message came, or be told another client's [MQTT-3.3.4-3]."""
    one = run(PAYLOADS, came)

    assert (identified(PAYLOADS, 5), None) == read([one.encoded(V5, IDENTIFIERS)], V5)
    assert one.encoded(V5, IDENTIFIERS) is one.encoded(V5, IDENTIFIERS)
    assert (identified(PAYLOADS, 6), None) == read([one.encoded(V5, OTHERS)], V5)
    assert (identified(PAYLOADS, 5), None) == read([one.encoded(V5, IDENTIFIERS)], V5)


@pytest.mark.parametrize("first", [V311, V5])
def test_identifiers_are_not_written_for_3x(first: int) -> None:
    """A session that subscribed with 5.0 and is back with 3.1.1 would break the stream, its own or that of others."""
    one = run(PAYLOADS, V5)
    for version in (first, V311, V5):
        expected = identified(PAYLOADS, 5) if version == V5 else published(PAYLOADS)
        assert (expected, None) == read([one.encoded(version, IDENTIFIERS)], version)


@pytest.mark.parametrize("version", [V311, V5])
def test_a_reader_gets_a_run_in_one_piece(version: int) -> None:
    """A burst would cost as much as its messages one by one, or not be counted."""
    receiver = Receiver().connect(version)
    receiver.session.offer_run(run(PAYLOADS, V311), b"", NOW)

    assert published(PAYLOADS) == receiver.take()
    counters = receiver.counters
    assert (3, 303) == (counters.publishes_sent, counters.publish_bytes_sent)


def test_a_run_is_dropped_message_by_message() -> None:
    """A burst that was lost would count as one message."""
    receiver = Receiver(expiry=60)
    receiver.session.offer_run(run(PAYLOADS, V311), b"", NOW)
    receiver.connect(high=10)
    receiver.session.offer_run(run(PAYLOADS, V311), b"", NOW)
    receiver.session.offer_run(run(PAYLOADS, V311), b"", NOW)

    assert (3, 3) == (receiver.dropped(DropReason.OFFLINE_QOS0), receiver.dropped(DropReason.NOT_WRITABLE))


def test_only_what_is_too_large_is_missing_from_a_run() -> None:
    """One large message would take a whole burst with it, or be sent to a client that does not take it."""
    size = len(encode(Publish(b"to/pic", b"one", properties={SUBSCRIPTION_IDENTIFIER: [5]}), V5))
    receiver = Receiver().connect(V5, maximum_packet=size)
    receiver.session.offer_run(run([b"one", b"four", b"two"], V311), IDENTIFIERS, NOW)

    assert identified([b"one", b"two"], 5) == receiver.take()
    assert 1 == receiver.dropped(DropReason.TOO_LARGE)


def test_identifiers_make_a_run_larger() -> None:
    """Packets that only fit without their identifiers would be sent to a client that does not take them."""
    one = run([b"one"], V311)
    receiver = Receiver().connect(V5, maximum_packet=one.longest + GROWTH)
    receiver.session.offer_run(one, IDENTIFIERS * 4, NOW)

    assert [] == receiver.take()
    assert 1 == receiver.dropped(DropReason.TOO_LARGE)


def test_a_run_whose_packets_fit_stays_in_one_piece() -> None:
    """A client that names any maximum packet size would cost as if it had no runs."""
    receiver = Receiver().connect(V5, maximum_packet=400)
    one = run(PAYLOADS, V311)
    receiver.session.offer_run(one, IDENTIFIERS, NOW)

    assert one.encoded(V5, IDENTIFIERS) is receiver.outbox.gather()


def test_a_run_needs_no_alias() -> None:
    """A client that allows aliases would cost as if it had no runs, or be sent an alias that it was not told."""
    receiver = Receiver().connect(V5, aliases=1)
    one = run([b"a", b"b"], V5)
    receiver.session.offer_run(one, b"", NOW)
    assert one.encoded(V5, b"") is receiver.outbox.gather()
    assert published([b"a", b"b"]) == receiver.take()

    receiver.offer(message(b"c", topic=b"to/pic"))

    assert [Publish(b"to/pic", b"c", properties={TOPIC_ALIAS: 1})] == receiver.take()


def test_each_packet_of_a_run_counts_as_a_message() -> None:
    """A strategy that flushes after a number of messages would take a run for one."""
    client = Receiver().connect(V311)
    before = client.outbox.messages()
    client.session.offer_run(run(PAYLOADS, V311), b"", NOW)

    assert len(PAYLOADS) == client.outbox.messages() - before
