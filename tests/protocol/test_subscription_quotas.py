# Quotas of how many filters are subscribed to in a time: 5.0 is told which are over it, 3.x waits.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Quotas, QuotaScope
from broker.mqtt.packets import (
    PUBACK,
    V5,
    V31,
    V311,
    Ack,
    Packet,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    Wanted,
)
from broker.mqtt.properties import MAXIMUM_PACKET_SIZE, REASON_STRING, REQUEST_PROBLEM_INFORMATION, USER_PROPERTY
from broker.overload.admit import FILTER
from broker.reasons import FilterRefusal, PauseReason
from tests.inprocess import Broker, Client
from tests.protocol.talk import payloads, subscribe

Brokers = Callable[..., Broker]

THREE = Config(quotas=Quotas(session=QuotaScope(subscriptions="3:3")))  # at once, and then one a second


def wanted(packet_id: int, *filters: str) -> Subscribe:
    return Subscribe(packet_id, [Wanted(filter.encode()) for filter in filters])


def codes(packets: list[Packet]) -> list[tuple[int, list[int]]]:
    """(packet id, codes) of the SUBACKs."""
    return [(packet.packet_id, packet.codes) for packet in packets if isinstance(packet, SubAck)]


def refused(broker: Broker) -> dict[str, int]:
    return {label: count for label, count in broker.counters.refused_by_reason.items() if count}


def test_5_is_told_which_filters_are_over_the_quota(brokers: Brokers) -> None:
    """A client would not know what it is subscribed to, or have to wait who can be told."""
    broker = brokers(THREE)
    client, writer = broker.connect("client", V5), broker.connect("writer")
    client.send(wanted(1, "a", "b"), wanted(2, "c", "d", "e"))
    assert [(1, [0, 0]), (2, [0, 0x97, 0x97])] == codes(client.receive())
    assert {FilterRefusal.QUOTA_SESSION_SUBSCRIPTIONS.label: 2} == refused(broker)

    writer.send(Publish(b"c", b"c"), Publish(b"d", b"d"))
    assert [b"c"] == payloads(client.receive())
    broker.advance(1.1)
    client.send(wanted(3, "d"))
    assert [(3, [0])] == codes(client.receive())


def test_5_is_told_why_and_when_to_come_again(brokers: Brokers) -> None:
    """A client would try again and again."""
    broker = brokers(THREE)
    client = broker.connect("client", V5)
    subscribe(client, "a", "b", "c")
    client.send(wanted(2, "d"))
    (answer,) = client.receive()

    assert isinstance(answer, SubAck)
    assert "the client subscribed as often as its quota allows (3:3)" == answer.properties[REASON_STRING]
    assert [("retry-after-ms", "1001")] == answer.properties[USER_PROPERTY]
    session = broker.session("client")
    assert session is not None and session.decisions is not None
    assert [(FILTER, "quota_session_subscriptions")] == [(one.kind, one.reason) for one in session.decisions.latest]


@pytest.mark.parametrize("properties", [{REQUEST_PROBLEM_INFORMATION: 0}, {MAXIMUM_PACKET_SIZE: 30}])
def test_who_does_not_want_the_words_or_has_no_room_for_them_gets_the_code(
    brokers: Brokers, properties: dict[int, int]
) -> None:
    """[MQTT-3.1.2-29], [MQTT-3.9.2-1]."""
    broker = brokers(THREE)
    client = broker.connect("client", V5, properties=dict(properties))
    client.send(wanted(1, "a", "b", "c"), wanted(2, "d"))

    assert [SubAck(1, [0, 0, 0]), SubAck(2, [0x97])] == client.receive()


@pytest.mark.parametrize("version", [V31, V311])
def test_3_waits_with_all_that_lies_behind(brokers: Brokers, version: int) -> None:
    """A client of 3.x would be told that it failed, which it takes for good; or what it said be done out of order."""
    broker = brokers(THREE)
    client = broker.connect("client", version)
    client.send(wanted(1, "a", "b"), wanted(2, "c", "d"), Publish(b"d", b"1", 1, packet_id=7), PingReq())
    assert [SubAck(1, [0, 0]), PingResp()] == client.receive()
    reason = PauseReason.QUOTA_SESSION_SUBSCRIPTIONS.label
    assert 1 == broker.counters.pauses_by_reason[reason]

    broker.advance(1.1)
    received = client.receive()
    assert [(2, [0, 0])] == codes(received)
    assert Ack(PUBACK, 7) in received and [b"1"] == payloads(received)
    assert {} == refused(broker)
    assert 0 == broker.overload_monitor.figures(broker.clock.now).throttled


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_more_filters_than_the_quota_ever_has_pass_when_it_is_full(brokers: Brokers, version: int) -> None:
    """A client would never come to what it subscribes to in one packet."""
    broker = brokers(THREE)
    client = broker.connect("client", version)
    client.send(wanted(1, "a", "b", "c", "d", "e"), wanted(2, "f"))
    first = codes(client.receive())
    assert (1, [0] * 5) == first[0]

    assert ([(2, [0x97])] if version == V5 else []) == first[1:]
    broker.advance(2.9)  # two are owed
    assert [] == codes(client.receive())
    broker.advance(0.2)
    if version == V5:
        client.send(wanted(2, "f"))
    assert [(2, [0])] == codes(client.receive())
    assert 0 == broker.overload_monitor.figures(broker.clock.now).throttled


@pytest.mark.parametrize("version", [V311, V5])
def test_what_is_refused_for_another_reason_costs_nothing(brokers: Brokers, version: int) -> None:
    """A mistake would be paid for twice."""
    broker = brokers(THREE)
    client = broker.connect("client", version)
    client.send(wanted(1, "a/#/b", "a", "b"), wanted(2, "c"))

    invalid = 0x8F if version == V5 else 0x80
    assert [(1, [invalid, 0, 0]), (2, [0])] == codes(client.receive())


def test_who_waits_to_subscribe_and_goes_is_forgotten(brokers: Brokers) -> None:
    """A connection that is gone would be served when its time has come."""
    broker = brokers(THREE)
    client: Client = broker.connect("client")
    client.send(wanted(1, "a", "b", "c"), wanted(2, "d"))
    client.receive()
    client.drop()
    broker.advance(2.0)

    assert 0 == broker.counters.internal_errors
    assert 0 == broker.routes.statistics()[1]
    assert 0 == broker.overload_monitor.figures(broker.clock.now).throttled
