# What a whole worker measures of itself: traffic that is known goes in, and the record says just that.
import json
from collections.abc import Callable, MutableMapping
from typing import Any

from broker.config.schema import Config, Delivery
from broker.metrics.record import misfit
from broker.metrics.recorder import encoded
from broker.mqtt.packets import PUBACK, V5, V311, Connect, Disconnect, Publish, Subscribe, Wanted
from broker.net.loop import SLICE
from broker.net.pauses import Pause
from broker.overload.quantum import PUBLISH_COST
from broker.reasons import PauseReason
from broker.routing.fanout import PAGE
from broker.session.message import NEVER, Message
from tests.inprocess import Broker, Client
from tests.protocol.talk import acks, narrow, payloads, subscribe

Brokers = Callable[..., Broker]
Lines = list[MutableMapping[str, Any]]

WALL = 1_700_000_000.0
HIGH = 16 * 1024
SMALL = Delivery(high_watermark=HIGH, low_watermark=HIGH // 2)


def record(broker: Broker, wall: float = WALL) -> dict[str, Any]:
    """The record of what was since the last one."""
    broker.record(wall)
    made = broker.interval_metrics.last
    assert made is not None
    found: dict[str, Any] = json.loads(encoded(made))
    assert "" == misfit(found)
    return found


def figures(rows: list[dict[str, Any]], what: str) -> dict[str, tuple[int, int]]:
    """(messages, bytes) by name."""
    return {row[what]: (row["messages"], row["bytes"]) for row in rows}


def test_known_traffic_is_what_the_record_says(brokers: Brokers) -> None:
    """The analysis would name a client or a topic that has nothing to do with it, or miss those that have."""
    broker = brokers()
    reader = broker.connect("reader", V5)
    subscribe(reader, "#", qos=1)
    run, single = broker.connect("run", V5), broker.connect("single", V5)
    record(broker)

    run.send(*[Publish(b"often", b"12345") for _ in range(20)], Publish(b"kept", b"123", retain=True))
    single.send(Publish(b"once", b"x" * 1280, 1, packet_id=1), Publish(b"unread", b"1", 2, packet_id=2))
    assert [1] == acks(single.receive(), PUBACK)
    assert 23 == len(payloads(reader.receive()))
    told = record(broker)

    assert {"messages": 23, "bytes": 20 * 5 + 3 + 1280 + 1} == told["in"] == told["out"]
    clients = told["top"]["clients"]["rows"]
    assert {"run": (21, 103), "single": (2, 1281)} == figures(clients, "client")
    topics = told["top"]["topics"]["rows"]
    assert {"often": (20, 100), "kept": (1, 3), "once": (1, 1280), "unread": (1, 1)} == figures(topics, "topic")
    costs = {row["topic"]: row["cost"] for row in topics}
    assert costs["often"] == 20 * (PUBLISH_COST + 1)
    assert costs["once"] == PUBLISH_COST + 1 + 1280 // 128
    assert 2 == told["latency"]["messages"]
    assert 3 == told["clients"]["connected"]
    assert told["flushes"]["tick"] > 0


def test_the_next_record_begins_with_nothing(brokers: Brokers) -> None:
    """Who was heavy would be heavy for ever."""
    broker = brokers()
    client = broker.connect("client")
    client.send(Publish(b"t", b"x", 1, packet_id=1))
    client.receive()
    record(broker)
    told = record(broker)

    assert {"messages": 0, "bytes": 0} == told["in"]
    assert ([], []) == (told["top"]["clients"]["rows"], told["top"]["topics"]["rows"])
    assert {"messages": 0, "p50_ms": 0.0, "p99_ms": 0.0} == told["latency"]


def slow_reader(broker: Broker) -> Client:
    """A client that does not read, and is over its high watermark."""
    slow = broker.connect("slow")
    subscribe(slow, "t")
    narrow(broker)
    slow.reading = False
    publisher = broker.connect("publisher")
    for _ in range(200):
        publisher.send(Publish(b"t", bytes(1000)))
        publisher.receive()
    return slow


def test_slow_readers_are_counted_while_they_are_slow(brokers: Brokers) -> None:
    """Nobody would see that readers do not keep up (TBMQ's nonWritableClients)."""
    broker = brokers(Config(delivery=SMALL))
    slow = slow_reader(broker)
    clients = record(broker)["clients"]
    assert (1, 1) == (clients["non_writable"], clients["became_non_writable"])

    slow.reading = True
    slow.receive()
    clients = record(broker)["clients"]
    assert (0, 0) == (clients["non_writable"], clients["became_non_writable"])


def test_a_slow_reader_that_leaves_is_none(brokers: Brokers) -> None:
    """The count would only ever rise, with every reader that is closed for being slow."""
    broker = brokers(Config(delivery=SMALL))
    slow = slow_reader(broker)
    slow.drop()

    assert 0 == record(broker)["clients"]["non_writable"]
    broker.connect("another").send(Disconnect())
    broker.settle()
    assert 0 == broker.outbound_budget.non_writable


def test_slow_readers_are_logged_once_a_second(brokers: Brokers, log: Lines) -> None:
    """Who reads logs only would not know of them; or the log would be full of it."""
    broker = brokers(Config(delivery=SMALL))
    slow = slow_reader(broker)
    for wall in (WALL, WALL + 0.5, WALL + 1.0):
        record(broker, wall)
    slow.drop()
    record(broker, WALL + 2.0)

    lines = [line for line in log if line["event"] == "clients_non_writable"]
    assert [(1, 1), (1, 0)] == [(line["clients"], line["became"]) for line in lines]
    assert all(line["unsent_bytes"] > HIGH for line in lines)


def test_latency_is_from_reading_to_acknowledging(brokers: Brokers) -> None:
    """A publish with thousands of receivers, or one that was held back, would look as if it had taken no time."""
    broker = brokers()
    for number in range(PAGE + 100):
        broker.open().send(Connect(V311, f"reader{number}"), Subscribe(1, [Wanted(b"t", 0)]))
    broker.settle()
    publisher = broker.connect("publisher")
    record(broker)
    publisher.send(Publish(b"t", b"x", 1, packet_id=1), Publish(b"none", b"y", 1, packet_id=2))
    began = broker.clock.now
    broker.clock.step = SLICE
    broker.turn()
    broker.clock.step = 0.0
    paused = [stream.paused for stream in broker.streams() if stream.paused]
    assert [Pause.FANOUT] == paused  # the first is not done
    broker.clock.now = began + 5.0
    assert [1, 2] == acks(publisher.receive(), PUBACK)

    latency = record(broker)["latency"]
    assert 2 == latency["messages"]
    assert 4900 < latency["p50_ms"] <= latency["p99_ms"] < 5100


def test_who_is_held_back_is_in_the_record(brokers: Brokers) -> None:
    """It could not be said for how long whom we kept waiting."""
    broker = brokers()
    pauses = broker.interval_metrics.pauses
    pauses.begin("a", PauseReason.GATE, broker.clock.now)
    broker.clock.now += 0.25
    pauses.begin("b", PauseReason.GATE, broker.clock.now)
    broker.clock.now += 0.5
    assert 2 == broker.gauges().paused
    told = record(broker)

    assert {"gate": {"clients": 2, "pauses": 2, "ms": 1250}} == told["paused"]
    assert {"a": 750, "b": 500} == {row["client"]: row["paused_ms"] for row in told["top"]["clients"]["rows"]}


def test_a_record_that_cannot_be_made_costs_nothing_else(brokers: Brokers) -> None:
    """A mistake in what only watches would end the worker, with all its clients."""
    broker = brokers()
    broker.connect("client")
    ledger = broker.protection.ledger
    refill, ledger.refill = ledger.refill, float("nan")
    broker.record(WALL)
    ledger.refill = refill

    assert 1 == broker.counters.internal_errors
    assert 0 == record(broker)["sequence"]


def test_retained_messages_are_counted_without_those_of_the_broker(brokers: Brokers) -> None:
    """A node whose clients have retained one message would show dozens, and their number change with the version."""
    broker = brokers()
    client = broker.connect("client")

    def counted(payload: bytes) -> tuple[int, int]:
        client.send(Publish(b"a", payload, 0, True))
        client.receive()
        broker.worker.metrics.publish_sys()
        gauges = broker.gauges()
        return gauges.retained, gauges.retained_bytes

    size = Message(b"a", b"1", 0, True, b"", NEVER).size
    assert [(1, size), (1, size + 2), (0, 0)] == [counted(payload) for payload in (b"1", b"123", b"")]
    assert broker.retained.statistics().count > 20
