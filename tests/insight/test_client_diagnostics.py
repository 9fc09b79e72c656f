# What a worker knows of one client: that it is so.
import socket
from collections.abc import Callable

from broker.config.applications import Application, ApplicationRule
from broker.config.schema import Config, Delivery, Limits, Quotas, QuotaScope
from broker.insight.facts import Facts
from broker.mqtt.packets import V5, Publish
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from broker.overload.quotas.overrides import Limit
from broker.reasons import DropReason, LogFailure
from broker.store.logs.frames import hello as hello_of
from tests.cluster.talk import subscribed
from tests.innode import Node
from tests.inprocess import Broker
from tests.protocol.reasons.stage import overload
from tests.protocol.talk import narrow, subscribe

Brokers = Callable[..., Broker]
Nodes = Callable[..., Node]


def facts(broker: Broker, client_id: str = "phone") -> Facts:
    return broker.diagnostics.facts(client_id)


def flood(broker: Broker, size: int = 300) -> None:
    """The client phone publishes more than its credits last for."""
    client = broker.connect("phone")
    client.post(*[Publish(b"a", bytes(size), 2, True, packet_id=number + 1) for number in range(5000)])
    broker.settle()


def test_who_sends_more_than_is_served_in_a_turn_is_behind_until_all_is_served(brokers: Brokers) -> None:
    """What it sends waits for seconds while each turn comes in time: no other fact would say so."""
    broker = brokers()
    greedy, modest = broker.connect("greedy"), broker.connect("modest")
    stream = broker.stream_of(broker.store.find("greedy").outbox)  # type: ignore[union-attr,arg-type]
    assert stream is not None
    greedy.post(*[Publish(b"a", b"1")] * 50_000)
    modest.post(Publish(b"a", b"1"))
    broker.clock.step = 0.001  # a slice ends after one stream
    for _ in range(4):
        broker.turn()
        broker.clock.now += 0.2
    told = facts(broker, "greedy")["turns"]

    assert told is not None and (0.6 <= told["behind"] <= 0.9, told["ready"]) == (True, 1)
    assert facts(broker, "modest")["turns"] is None
    broker.clock.step = 0.0
    broker.settle()
    broker.clock.now += 1.0
    assert facts(broker, "greedy")["turns"] is None and stream.behind_since == 0.0


def test_what_a_publish_costs_is_told_in_its_parts(brokers: Brokers) -> None:
    """The parts of the cost would not add up to the credits that are charged."""
    broker = brokers()
    for number in range(7):
        subscribe(broker.connect(f"reader-{number}"), "a")
    overload(broker)
    flood(broker)

    publish = facts(broker)["publish"]
    assert publish is not None and publish["waits"]
    parts = ("base", "for_bytes", "for_deliveries", "for_storing", "for_retaining", "for_qos")
    assert [10, 2, 7, 0, 10, 10] == [publish[part] for part in parts]  # type: ignore[literal-required]
    assert 39 == publish["cost"]
    assert (7, ["weir/0", "weir/0 memory", "weir/0 outbound"]) == (publish["receivers"], publish["needs"])


def test_who_is_held_for_credits_is_told_when_it_has_them(brokers: Brokers) -> None:
    """The time would be too early: the client would be throttled again."""
    broker = brokers()
    overload(broker)
    broker.advance(3.0)  # level 10, at which two publishes take 0.8 s
    flood(broker)
    told = facts(broker)
    held, credits, publish = told["held"], told["credits"], told["publish"]

    assert held is not None and credits is not None and publish is not None
    assert ("credits", True, None, 30.0) == (held["reason"], held["honoured"], held["gate"], held["patience"])
    assert held["due"] is not None and held["due"] > 0.1
    least = (publish["cost"] - credits["balance"] - 1) * 0.2 / credits["refill"]
    assert least <= held["due"] <= least + 0.2 / credits["refill"] + 0.002
    assert 0 < held["unread"]


def test_a_contended_resource_is_told_by_the_worker_that_says_so(nodes: Nodes) -> None:
    """The report would name the client's own worker, which is not overloaded."""
    one, two = nodes(2)
    subscribed(two.connect("subscriber", V5), "a")
    overload(two)
    flood(one)
    one.advance(0.2)
    told = facts(one)

    (lag,) = [found for found in told["contended"] if found["signal"] == "lag"]
    assert ("weir/1", "weir", 1) == (lag["resource"], lag["node"], lag["worker"])
    assert (20.0, 0.05) == (lag["value"], lag["target"])
    level = told["level"]
    assert ("lag", 1) == (level["cause"], level["cause_worker"])
    assert level["worker_level"] < level["level"] == level["node_level"]


def test_a_reader_that_takes_nothing_is_told_since_when(brokers: Brokers) -> None:
    """A slow reader could not be told from one that has stopped."""
    broker = brokers(Config(delivery=Delivery(high_watermark=16 * 1024, low_watermark=8 * 1024)))
    reader = broker.connect("phone", V5)
    subscribe(reader, "t")
    narrow(broker)
    reader.reading = False
    publisher = broker.connect("publisher")
    for _ in range(60):
        publisher.send(Publish(b"t", bytes(1000)))
        publisher.receive()
    broker.advance(3.0)

    told = facts(broker)["reader"]
    assert told is not None and told["stalled"] is not None
    assert (False, 60.0) == (told["writable"], told["patience"])
    assert 2.0 < told["stalled"] < 3.1
    assert told["unsent"] > told["high"] == 16 * 1024
    reader.reading = True
    reader.receive()
    told = facts(broker)["reader"]
    assert told is not None and told["stalled"] is None and told["writable"]


def test_the_room_of_a_quota_is_told(brokers: Brokers) -> None:
    """An MQTT 5.0 client over its quota is not throttled: the facts would not show that the quota is used up."""
    broker = brokers(Config(quotas=Quotas(reserve=0.0, session=QuotaScope(incoming_messages="3:30"))))
    client = broker.connect("phone", V5)
    rooms = []
    for number in range(4):
        rooms.append([(limit["rate"], limit["room"]) for limit in facts(broker)["limits"]])
        client.send(Publish(b"a", b"", 1, packet_id=number + 1))
        client.receive()
    decisions = facts(broker)["decisions"]

    assert [[("3:30", 3.0)], [("3:30", 2.0)], [("3:30", 1.0)], [("3:30", 0.0)]] == rooms
    assert [("quota_session_messages", 1)] == [(one["reason"], one["times"]) for one in decisions]


def test_the_override_of_the_configuration_is_told(brokers: Brokers) -> None:
    """A client with limits of its own would look like all others, and `weir why` would name the wrong queue limit."""
    broker = brokers()
    broker.worker.protocol.overrides.change([{"pattern": "ph*", "pending": 7, "exempt": True}])
    broker.connect("phone")
    told = facts(broker)

    expected = {"by": "pattern", "name": "ph*", "settings": "exempt = true, pending = 7", "exempt": True}
    assert expected == told["configured"]
    assert told["reader"] is not None
    assert 7 == told["reader"]["may_wait"]
    broker.connect("other")
    assert None is facts(broker, "other")["configured"]


def test_an_administrators_decision_is_told_while_it_holds(brokers: Brokers) -> None:
    """A limit that has expired would be shown as in force."""
    broker = brokers()
    until = broker.clock.now + 60.0
    limit = Limit("phone", "5/s", True, until, seconds=60.0, by="root", reason="a demo", made=0.0)
    broker.protection.limits["phone"] = limit
    broker.connect("phone")

    expected = {"rate": "5/s", "exempt": True, "left": 60.0, "by": "root", "reason": "a demo"}
    assert expected == facts(broker)["override"]
    assert None is facts(broker, "other")["override"]
    broker.advance(60.1)
    assert None is facts(broker)["override"]


def test_what_a_client_lost_is_told_with_the_first_and_the_last_time(brokers: Brokers) -> None:
    """Nobody could tell a loss of yesterday from one that goes on, also where the client asks for no notices."""
    broker = brokers(Config(limits=Limits(queue=3)))
    wall = 1_800_000_000.0
    broker.worker.protocol.gaps._wall = broker.diagnostics._wall = lambda: wall + broker.clock.now
    client = broker.connect("phone", V5, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 10_000})
    subscribe(client, "a", qos=1)
    client.drop()
    publisher = broker.connect("publisher")
    for now, count in ((2000.0, 5), (2060.0, 1), (2100.0, 1)):
        broker.clock.now = now
        broker.look_at_gaps()
        publisher.post(*[Publish(b"a", b"x", 1, packet_id=number + 1) for number in range(count)])
        broker.settle()
    broker.clock.now = 2130.0
    broker.look_at_gaps()
    session = broker.session("phone")
    assert session is not None
    session.missed(DropReason.EXPIRED, 2)
    told = facts(broker)

    lost = {"reason": "queue_full", "count": 4, "first": 130.0, "last": 30.0}
    assert [lost, {"reason": "expired", "count": 2, "first": 0.0, "last": 0.0}] == told["losses"]
    assert 0 == told["untold"]


def test_the_gate_of_the_log_says_what_is_wrong_with_it(brokers: Brokers) -> None:
    """`weir why` would not tell a carrier that is away from a slow Kafka."""
    broker = brokers(Config(application=Application(clients=(ApplicationRule(client="app-*"),))))
    link = broker.worker.links.carrier
    assert link is not None
    (gate,) = [gate for gate in broker.worker.protection.throttle._queues if gate.resource == "weir/0 log"]
    told = broker.diagnostics._gate(gate, broker.clock.now)
    assert (LogFailure.CARRIER_AWAY.words, True) == (told["trouble"], told["refuses"])
    ends = [socket.socketpair() for _ in range(2)]
    for ours, _ in ends:
        ours.setblocking(False)
    broker.worker.links.connect_carrier(ends[0][0], ends[1][0])
    broker.settle()
    told = broker.diagnostics._gate(gate, broker.clock.now)
    assert ("", False) == (told["trouble"], told["refuses"])
    hello = hello_of(broker.worker.base.worker.incarnation)
    for _, theirs in ends:
        assert hello == theirs.recv(100)
        theirs.close()
    broker.settle()

    assert LogFailure.CARRIER_AWAY.words == broker.diagnostics._gate(gate, broker.clock.now)["trouble"]
