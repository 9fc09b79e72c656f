# Overrides of the configuration, for clients and sessions that are here and for those that come.
from collections.abc import Callable
from typing import Any

from broker.config.schema import Config, Limits, Quotas, QuotaScope
from broker.mqtt.packets import V5, Properties, Publish
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from broker.reasons import DropReason
from tests.inprocess import Broker
from tests.protocol.talk import payloads, subscribe
from tests.protocol.test_client_overrides import limit, publish

Brokers = Callable[..., Broker]
THREE = Quotas(reserve=0.0, session=QuotaScope(incoming_messages="3:3"))


def configure(broker: Broker, *tables: dict[str, Any]) -> None:
    """What the supervisor tells at the start and at each reload."""
    broker.worker.protocol.overrides.change(list(tables))
    broker.settle()


def test_a_quota_applies_to_clients_that_are_here_and_to_those_that_come(brokers: Brokers) -> None:
    """A reload would concern nobody until the client connects again, or until the worker is replaced."""
    broker = brokers(Config(quotas=THREE))
    here = broker.connect("here")
    assert 3 == publish(here, 5)
    configure(broker, {"pattern": "*e*", "incoming_messages": ""})

    assert 2 == len(here.receive())  # those that waited
    assert 50 == publish(here, 50)
    assert 50 == publish(broker.connect("later"), 50)
    assert 3 == publish(broker.connect("who"), 5)
    configure(broker)
    assert 0 == publish(here, 5, first=100)  # the override was no way to have more of the general quota
    broker.advance(3.1)
    assert 3 == len(here.receive())
    assert 0 == broker.counters.internal_errors


def test_an_outgoing_quota_applies_to_a_client_that_is_here(brokers: Brokers) -> None:
    """A reload would change what a client may publish, and what it is sent only when it comes back."""
    broker = brokers(Config(quotas=Quotas(reserve=0.0)))
    reader, publisher = broker.connect("reader"), broker.connect("publisher")
    subscribe(reader, "a")
    configure(broker, {"client": "reader", "outgoing_messages": "1:1000"})
    publisher.send(Publish(b"a", b"1"))
    assert [b"1"] == payloads(reader.receive())
    publisher.send(Publish(b"a", b"2"))
    assert [] == payloads(reader.receive())
    configure(broker)
    publisher.send(Publish(b"a", b"3"))

    assert [b"3"] == payloads(reader.receive())


def test_a_session_has_the_queue_of_its_override(brokers: Brokers) -> None:
    """The queue of a gateway that is away would lose what the configuration promises to keep; or keep too much."""
    broker = brokers(Config(limits=Limits(queue=2)))
    configure(broker, {"client": "large", "queue": 4}, {"client": "small", "queue": 1})
    away: Properties = {SESSION_EXPIRY_INTERVAL: 60}
    for name in ("large", "small", "usual"):
        client = broker.connect(name, V5, properties=away)
        subscribe(client, "a", qos=1)
        client.drop()
    publisher = broker.connect("publisher")
    publish(publisher, 6)

    waiting = {name: session.waiting() for name in ("large", "small", "usual") if (session := broker.session(name))}
    assert {"large": 4, "small": 1, "usual": 2} == waiting
    configure(broker, {"client": "large", "queue": 3})
    publish(publisher, 1, first=10)
    sessions = [broker.session(name) for name in ("large", "small", "usual")]
    assert [3, 2, 2] == [session.waiting() for session in sessions if session is not None]
    assert 2 + 5 + 4 + 2 + 0 + 1 == broker.counters.dropped_by_reason[DropReason.QUEUE_FULL.label]


def test_sessions_without_an_override_share_their_limits(brokers: Brokers) -> None:
    """An override would cost memory for each session of the fleet."""
    broker = brokers(Config())
    configure(broker, {"pattern": "a*", "queue": 4}, {"user": "u", "queue": 4}, {"pattern": "c*", "exempt": True})
    limits = [broker.session_lifecycle.limits_of(*one) for one in (("a1", None), ("b", "u"), ("c", None), ("d", "v"))]

    assert limits[0] is limits[1]
    assert limits[2] is limits[3] is broker.session_lifecycle.limits


def test_credits_do_not_throttle_a_client_that_is_exempt(brokers: Brokers) -> None:
    """The one client that must never wait would need a new `weir limit` each month."""
    broker = brokers(Config(quotas=THREE))
    configure(broker, {"client": "dear", "exempt": True})
    for name in ("dear", "other"):
        broker.connect(name)
    found = [broker.worker.protocol.protection.find(name) for name in ("dear", "other")]

    assert [True, False] == [broker.clock.now < client.exempt_until for client in found if client is not None]


def test_a_limit_with_an_end_applies_on_top(brokers: Brokers) -> None:
    """`weir limit` would do nothing for a client of the configuration, or remove its override."""
    broker = brokers(Config(quotas=Quotas(reserve=0.0)))
    configure(broker, {"client": "client", "incoming_messages": "5:1"})
    client = broker.connect("client")
    limit(broker, "client", 10, rate="2:1000")
    assert 2 == publish(client, 2)
    assert 0 == publish(client, 1, first=10)
    broker.advance(10.3)
    assert 1 == len(client.receive())
    broker.advance(1.1)

    assert 5 == publish(client, 9, first=20)
