# What operators see of a queue in the memory of a worker, and what they remove from it.
from collections.abc import Callable
from typing import Any

import pytest

from broker.config.schema import Config, Limits
from broker.insight.pending_answers import RequestRefused
from broker.insight.queue_requests import LARGEST
from broker.mqtt.packets import PUBACK, V5, Ack, Properties, Publish, Subscribe, Wanted
from broker.mqtt.properties import CONTENT_TYPE, MESSAGE_EXPIRY_INTERVAL, SESSION_EXPIRY_INTERVAL
from broker.session.queue_pages import BYTES, MESSAGES
from tests.inprocess import Broker, Client
from tests.insight.operators import Operator

Brokers = Callable[..., Broker]
LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 60}


def reader_of(broker: Broker, away: bool = True) -> Client:
    """A client with a filter for all topics, which has left."""
    reader = broker.connect("reader", V5, properties=LASTING)
    reader.send(Subscribe(1, [Wanted(b"#", 1)]))
    reader.receive()
    if away:
        reader.drop()
    return reader


def publish(broker: Broker, *messages: tuple[bytes, bytes], properties: Properties | None = None) -> None:
    """Publish *messages*: topics and payloads."""
    publisher = broker.connect("publisher", V5)
    for topic, payload in messages:
        publisher.send(Publish(topic, payload, 1, packet_id=1, properties=properties or {}))
        assert [PUBACK] == [each.kind for each in publisher.receive() if isinstance(each, Ack)]


def exported(operator: Operator) -> list[dict[str, Any]]:
    """All messages that wait, page by page."""
    found: list[dict[str, Any]] = []
    after = last = 0
    while True:
        page = operator.ask("queue_page", {"client": "reader", "after": after, "last": last, "payloads": True})
        found += page["messages"]
        if not page["next"]:
            return found
        assert page["next"] > after
        after, last = page["next"], page["last"]


def purge(operator: Operator, filter: str = "") -> int:
    """Remove what waits and matches; how many."""
    removed: int = 0
    after = last = 0
    while True:
        asked = {"client": "reader", "filter": filter, "after": after, "last": last}
        page = operator.ask("queue_purge", asked)
        removed += page["messages"]
        if not page["next"]:
            return removed
        assert page["next"] > after
        after, last = page["next"], page["last"]


def payloads(client: Client) -> list[bytes]:
    return [each.payload for each in client.receive() if isinstance(each, Publish)]


def test_a_message_is_exported_whole_and_stays(brokers: Brokers) -> None:
    """A copy would lack what a message says about itself, or the look at a queue would empty it."""
    broker = brokers()
    reader_of(broker)
    properties: Properties = {MESSAGE_EXPIRY_INTERVAL: 30, CONTENT_TYPE: "text"}
    publish(broker, (b"news/1", b"one"), properties=properties)
    broker.advance(10.0)

    (one,) = exported(Operator(broker))

    assert ("news/1", b"one", 1, False, 20.0, None, False) == tuple(
        one[key] for key in ("topic", "payload", "qos", "retain", "expires_in", "age", "sent")
    )
    assert b"\x03\x00\x04text" == one["properties"]
    back = broker.connect("reader", V5, clean_start=False, properties=LASTING)
    assert [b"one"] == payloads(back)


def test_a_long_queue_comes_in_pages(brokers: Brokers) -> None:
    """One answer would hold the loop, or the copy lack messages or have them twice."""
    broker = brokers()
    reader_of(broker)
    publish(broker, *[(b"t", b"%d" % number) for number in range(MESSAGES + 5)], (b"t", bytes(BYTES)), (b"t", b"last"))

    page = Operator(broker).ask("queue_page", {"client": "reader", "after": 0, "last": 0, "payloads": False})
    found = exported(Operator(broker))

    assert MESSAGES == len(page["messages"])
    assert "payload" not in page["messages"][0]
    assert [b"%d" % number for number in range(MESSAGES + 5)] == [each["payload"] for each in found[:-2]]
    assert [bytes(BYTES), b"last"] == [each["payload"] for each in found[-2:]]


def test_what_is_delivered_between_two_pages_moves_nothing_out_of_view(brokers: Brokers) -> None:
    """A copy of the queue of a client that is connected would lack messages that still wait."""
    broker = brokers(Config(limits=Limits(inflight=10)))
    reader = reader_of(broker, away=False)
    publish(broker, *[(b"t", b"%d" % number) for number in range(MESSAGES + 30)])
    assert [b"%d" % number for number in range(10)] == payloads(reader)
    operator = Operator(broker)
    first = operator.ask("queue_page", {"client": "reader", "after": 0, "last": 0, "payloads": True})

    for packet_id in range(1, 11):
        reader.send(Ack(PUBACK, packet_id))
    reader.receive()
    publish(broker, (b"t", b"new"))
    asked = {"client": "reader", "after": first["next"], "last": first["last"], "payloads": True}
    second = operator.ask("queue_page", asked)

    assert [b"%d" % number for number in range(10, MESSAGES + 10)] == [each["payload"] for each in first["messages"]]
    assert [b"%d" % number for number in range(MESSAGES + 10, MESSAGES + 30)] == (
        [each["payload"] for each in second["messages"]]
    )
    assert 0 == second["next"]


def test_messages_are_purged_by_topic_and_counted(brokers: Brokers) -> None:
    """The wrong messages would go, or nobody see that they were removed and why."""
    broker = brokers()
    reader_of(broker)
    wanted = [(b"good/%d" % number, b"%d" % number) for number in range(MESSAGES)]
    publish(broker, *[one for each in wanted for one in (each, (b"bad/x", b"x"))])

    assert MESSAGES == purge(Operator(broker), "bad/+")

    session = broker.session("reader")
    assert session is not None
    assert {"purged": MESSAGES} == session.drops
    assert MESSAGES == broker.counters.dropped_by_reason["purged"]
    assert MESSAGES == session.waiting() == broker.queue_budget.messages
    assert sum(len(topic) + len(payload) for topic, payload in wanted) == session.held_bytes()
    back = broker.connect("reader", V5, clean_start=False, properties=LASTING)
    assert [payload for _, payload in wanted] == payloads(back)


def test_what_is_in_flight_is_not_purged(brokers: Brokers) -> None:
    """A client would hold a message that the broker does not know any more."""
    broker = brokers(Config(limits=Limits(inflight=2)))
    reader = reader_of(broker, away=False)
    publish(broker, *[(b"t", b"%d" % number) for number in range(5)])
    assert [b"0", b"1"] == payloads(reader)

    assert 3 == purge(Operator(broker))

    session = broker.session("reader")
    assert session is not None
    assert (2, 0, 0) == (session.inflight(), session.waiting(), broker.queue_budget.messages)
    publish(broker, (b"t", b"next"))
    reader.send(Ack(PUBACK, 1))
    assert [b"next"] == payloads(reader)


def test_a_payload_that_no_frame_could_carry_is_left_out(brokers: Brokers) -> None:
    """The worker would end its link to the supervisor, and with it all of its connections."""
    broker = brokers(Config(limits=Limits(packet_bytes=LARGEST + 1000)))
    reader_of(broker)
    publish(broker, (b"t", bytes(LARGEST + 1)), (b"t", b"small"))

    assert [None, b"small"] == [each["payload"] for each in exported(Operator(broker))]


def test_a_queue_that_is_not_there_is_empty_or_unknown(brokers: Brokers) -> None:
    """A slip could not be told from an empty queue; a wrong filter would remove nothing, or everything."""
    broker = brokers()
    reader_of(broker)
    operator = Operator(broker)

    assert [] == exported(operator)
    assert 0 == purge(operator)
    nobody = {"client": "nobody", "after": 0, "last": 0}
    assert None is operator.ask("queue_page", {**nobody, "payloads": True})
    assert None is operator.ask("queue_purge", {**nobody, "filter": "a"})
    with pytest.raises(RequestRefused, match="'a/#/b' is not a topic filter"):
        purge(operator, "a/#/b")
