# What operators see of retained messages, and how they clear them.
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from broker.config.schema import Config, Limits
from broker.insight.pending_answers import RequestRefused
from broker.insight.queue_requests import LARGEST
from broker.insight.retained_requests import CLEARED, LISTED, SCANS
from broker.mqtt.packets import V5, Publish, Subscribe, Wanted
from broker.mqtt.properties import CONTENT_TYPE, MESSAGE_EXPIRY_INTERVAL
from tests.innode import Node
from tests.inprocess import Broker, Clock
from tests.insight.operators import Operator

Brokers = Callable[..., Broker]


def retain(broker: Broker, *topics: bytes, payload: bytes = b"x") -> None:
    publisher = broker.connect("publisher", V5)
    for topic in topics:
        publisher.send(Publish(topic, payload, 0, True))
    publisher.receive()


def listed(operator: Operator, filter: str = "#") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    scan = 0
    while True:
        page = operator.ask("retained_page", {"filter": filter, "scan": scan})
        assert len(page["messages"]) <= LISTED
        found += page["messages"]
        scan = page["scan"]
        if not scan:
            return found


def cleared(operator: Operator, filter: str) -> int:
    count: int = 0
    scan = 0
    while True:
        page = operator.ask("retained_clear", {"filter": filter, "scan": scan})
        assert page["messages"] <= CLEARED
        count += page["messages"]
        scan = page["scan"]
        if not scan:
            return count


def test_retained_messages_are_listed_by_filter_and_in_pages(brokers: Brokers) -> None:
    """A list would hold the loop, lack messages, or have those of other topics."""
    broker = brokers()
    topics = [b"a/%d" % number for number in range(LISTED + 5)]
    retain(broker, *topics, b"b/1")

    found = listed(Operator(broker))

    assert sorted([*topics, b"b/1"]) == sorted(one["topic"].encode() for one in found)
    assert ["b/1"] == [one["topic"] for one in listed(Operator(broker), "b/+")]
    assert ["a/7"] == [one["topic"] for one in listed(Operator(broker), "a/7")]
    assert [] == listed(Operator(broker), "c/#")


def test_a_retained_message_is_shown_whole() -> None:
    """Nobody could see what new subscribers get, who set it, and until when."""
    clock, config = Clock(), Config(limits=Limits(retained_per_client=10))
    with closing(Broker(config, clock=clock, wall=lambda: 1_800_000_000.0 + clock.now)) as broker:
        publisher = broker.connect("sensor", V5)
        publisher.send(Publish(b"t", b"\0value", 1, True, packet_id=1, properties={MESSAGE_EXPIRY_INTERVAL: 60}))
        publisher.send(Publish(b"u", b"text", 0, True, properties={CONTENT_TYPE: "text"}))
        publisher.receive()
        broker.advance(10.0)
        operator = Operator(broker)

        told = operator.ask("retained_show", {"topic": "t"})

        expected = {"topic": "t", "qos": 1, "size": 6, "client": "sensor", "expires_in": 50.0, "payload": b"\0value"}
        assert expected == {key: told[key] for key in expected}
        assert 10.0 == pytest.approx(told["age"], abs=0.2)
        assert b"\x03\x00\x04text" == operator.ask("retained_show", {"topic": "u"})["properties"]
        assert None is operator.ask("retained_show", {"topic": "none"})
        clock.now += 60.0
        assert None is operator.ask("retained_show", {"topic": "t"})


def test_a_cleared_message_is_cleared_as_by_a_client(brokers: Brokers) -> None:
    """Subscribers would keep a value that does not hold any more, or other topics be cleared."""
    broker = brokers()
    retain(broker, *[b"a/%d" % number for number in range(CLEARED + 3)], b"b/1")
    subscriber = broker.connect("subscriber", V5)
    subscriber.send(Subscribe(1, [Wanted(b"a/1", 1, retain_handling=2)]))
    subscriber.receive()

    assert CLEARED + 3 == cleared(Operator(broker), "a/#")

    assert [(b"a/1", b"", False)] == (
        [(each.topic, each.payload, each.retain) for each in subscriber.receive() if isinstance(each, Publish)]
    )
    assert ["b/1"] == [one["topic"] for one in listed(Operator(broker))]
    assert CLEARED + 3 == broker.counters.retained_deleted
    assert 0 == cleared(Operator(broker), "a/#")


def test_what_is_cleared_is_cleared_at_all_workers(nodes: Callable[..., Node]) -> None:
    """A subscriber would get the message from another worker, which would tell it to the next one that starts."""
    node = nodes(2)
    retain(node[1], b"a", b"b")
    node.settle()

    assert 1 == cleared(Operator(node[0]), "a")
    node.settle()

    assert ["b"] == [one["topic"] for one in listed(Operator(node[1]))]


def test_what_cannot_be_cleared_or_shown_is_refused(brokers: Brokers) -> None:
    """A slip would clear everything, a clearing be undone at once, or a frame be too large for the link."""
    broker = brokers(Config(limits=Limits(packet_bytes=LARGEST + 1000)))
    retain(broker, b"large", payload=bytes(LARGEST + 1))
    operator = Operator(broker)

    for filter, why in (("a#", "not a topic filter"), ("", "not a topic filter"), ("$share/g/a", "is not shared")):
        with pytest.raises(RequestRefused, match=why):
            operator.ask("retained_clear", {"filter": filter, "scan": 0})
    with pytest.raises(RequestRefused, match="below \\$SYS"):
        operator.ask("retained_clear", {"filter": "$SYS/#", "scan": 0})
    with pytest.raises(RequestRefused, match="more than 8388608"):
        operator.ask("retained_show", {"topic": "large"})
    assert ["large"] == [one["topic"] for one in listed(operator)]


def test_lists_that_are_left_behind_are_forgotten(brokers: Brokers) -> None:
    """Each list that nobody reads to its end would stay in the memory of the worker."""
    broker = brokers()
    retain(broker, *[b"a/%d" % number for number in range(LISTED + 5)])
    operator = Operator(broker)
    scans = [operator.ask("retained_page", {"filter": "#", "scan": 0})["scan"] for _ in range(SCANS)]
    operator.ask("retained_page", {"filter": "#", "scan": 0})

    with pytest.raises(RequestRefused, match="try again later"):
        operator.ask("retained_page", {"filter": "#", "scan": scans[0]})
    assert 5 == len(operator.ask("retained_page", {"filter": "#", "scan": scans[1]})["messages"])
