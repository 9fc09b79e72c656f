# Limits of single clients that are set while they are there, or before they come.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Quotas, QuotaScope
from broker.mqtt.packets import V5, Ack, Publish
from broker.mqtt.properties import USER_PROPERTY
from broker.overload.quotas.overrides import Limit
from broker.protocol.connection import Connection
from broker.reasons import PauseReason
from tests.inprocess import Broker, Client
from tests.protocol.talk import messages, subscribe
from tests.protocol.test_protection import answers, held, overload

Brokers = Callable[..., Broker]


def limit(broker: Broker, client_id: str, seconds: float, rate: str = "", exempt: bool = False) -> None:
    """What the supervisor tells when one is set."""
    until = broker.clock.now + seconds
    one = Limit(client_id, rate, exempt, until, seconds=seconds, by="jo", reason="test", made=0.0)
    broker.client_overrides.change([{**one.described(), "until": until}], [])


def publish(client: Client, count: int, first: int = 1) -> int:
    """How many of *count* publishes are acknowledged."""
    client.send(*[Publish(b"a", b"", 1, packet_id=first + n) for n in range(count)])
    return len(answers(client))


def test_a_client_that_is_there_is_slowed_down_at_once(brokers: Brokers) -> None:
    """Whoever is to be slowed down would have to be thrown out first."""
    broker = brokers(Config(quotas=Quotas(reserve=0.0)))
    client, other = broker.connect("client"), broker.connect("other")
    assert 5 == publish(client, 5)
    limit(broker, "client", 60, rate="3:30")

    assert 3 == publish(client, 5)
    assert held(broker, "client")
    assert 1 == broker.counters.pauses_by_reason[PauseReason.QUOTA_SESSION_MESSAGES.label]
    assert 50 == publish(other, 50)


def test_a_limit_ends_by_itself_at_its_time(brokers: Brokers) -> None:
    """A client would wait for what a limit grants that is over, here for hours; or somebody would have to end it."""
    broker = brokers(Config(quotas=Quotas(reserve=0.0)))
    client = broker.connect("client")
    limit(broker, "client", 5, rate="1:86400")
    assert 1 == publish(client, 5)
    broker.advance(4.9)
    assert 0 == len(answers(client))
    broker.advance(0.2)

    assert 4 == len(answers(client))
    assert 500 == publish(client, 500)


def test_what_it_is_told_to_wait_is_no_longer_than_the_limit(brokers: Brokers) -> None:
    """A client of 5.0 would stay away for a day because of a limit of five seconds."""
    broker = brokers(Config(quotas=Quotas(reserve=0.0)))
    client = broker.connect("client", V5)
    limit(broker, "client", 5, rate="1:86400")
    client.send(*[Publish(b"a", b"", 1, packet_id=1 + n) for n in range(2)])
    refused = [packet for packet in client.receive() if isinstance(packet, Ack)][-1]

    assert [("retry-after-ms", "5000")] == refused.properties[USER_PROPERTY]


def test_after_its_limit_a_client_has_the_usual_quota(brokers: Brokers) -> None:
    """A limit that loosens would loosen for ever, or one that tightens be a way to have more."""
    broker = brokers(Config(quotas=Quotas(reserve=0.0, session=QuotaScope(incoming_messages="2:2"))))
    client = broker.connect("client")
    limit(broker, "client", 10, rate="100:1")
    assert 2 == publish(client, 2)
    broker.advance(5.0)
    assert 100 == publish(client, 100, first=10)
    broker.advance(5.1)

    assert 2 == publish(client, 10, first=200)


def test_whoever_comes_later_has_its_limit(brokers: Brokers) -> None:
    """To connect anew would be a way out; and a limit could not be set before its client comes."""
    broker = brokers(Config(quotas=Quotas(reserve=0.0)))
    limit(broker, "client", 60, rate="3:60")
    assert 3 == publish(broker.connect("client"), 5)
    assert 0 == publish(broker.connect("client"), 5)
    broker.advance(60.1)

    assert 50 == publish(broker.connect("client"), 50)


def test_a_limit_that_is_dropped_or_changed_holds_nobody(brokers: Brokers) -> None:
    """A mistake could not be put right: its client would wait for its turn of the former rate."""
    broker = brokers(Config(quotas=Quotas(reserve=0.0)))
    client = broker.connect("client")
    limit(broker, "client", 3600, rate="1:3600")
    assert 1 == publish(client, 20)
    limit(broker, "client", 3600, rate="10:1")
    assert 0 == len(answers(client))  # it does not begin with a burst of its new rate
    broker.advance(1.1)
    assert 10 == len(answers(client))
    broker.client_overrides.change([], ["client"])

    assert 9 == len(answers(client))
    assert 500 == publish(client, 500)
    assert 0 == broker.counters.internal_errors


def busy(broker: Broker, client_id: str) -> Client:
    client = broker.connect(client_id)
    client.post(*[Publish(b"a", b"", 1, packet_id=n + 1) for n in range(60_000)])
    return client


@pytest.mark.slow
def test_overload_protection_leaves_alone_whom_it_is_told_to(brokers: Brokers) -> None:
    """A client that must never wait would wait; or nobody would."""
    broker = brokers()
    limit(broker, "dear", 60, exempt=True)
    limit(broker, "limited", 60, rate="1000000:1")
    overload(broker)
    dear, other, limited = (busy(broker, name) for name in ("dear", "other", "limited"))
    broker.settle()

    assert (False, 60_000) == (held(broker, "dear"), len(answers(dear)))
    assert [True, True] == [held(broker, name) for name in ("other", "limited")]
    assert max(len(answers(other)), len(answers(limited))) < 60_000


def test_an_exemption_ends_at_its_time(brokers: Brokers) -> None:
    """Overload protection would be off for a client for longer than somebody has said, until it comes anew."""
    broker = brokers()
    dear = broker.connect("dear")
    limit(broker, "dear", 1.9, exempt=True)
    overload(broker, 4.0)
    dear.post(*[Publish(b"a", b"", 1, packet_id=n + 1) for n in range(60_000)])
    broker.settle()

    assert held(broker, "dear")


def test_a_run_that_comes_after_an_exemption_is_as_long_as_anybodys(brokers: Brokers) -> None:
    """QoS 0 messages that go together would go free, as many as were read at once."""
    broker = brokers()
    reader, dear, other = (broker.connect(name) for name in ("reader", "dear", "other"))
    subscribe(reader, "#")
    limit(broker, "dear", 1.9, exempt=True)
    overload(broker, 4.0)
    for client, topic in ((dear, b"dear"), (other, b"other")):
        client.post(*[Publish(topic, b"")] * 10_000)
    broker.settle()
    topics = [message.topic for message in messages(reader.receive())]

    assert 0 < topics.count(b"dear") == topics.count(b"other") < 10_000


def test_who_waits_for_credits_and_is_exempted_goes_on(brokers: Brokers) -> None:
    """Who is to be helped would be helped only when it had been held back for as long as without help."""
    broker = brokers()
    overload(broker)
    client = busy(broker, "client")
    broker.settle()
    assert held(broker, "client")
    before = len(answers(client))
    limit(broker, "client", 60, exempt=True)

    assert 60_000 == before + len(answers(client))
    assert 0 == broker.overload_monitor.figures(broker.clock.now).throttled


def test_a_limit_of_nobody_here_does_nothing(brokers: Brokers) -> None:
    """All workers are told of each limit, and a client is at one of them, or away with a session that stays."""
    broker = brokers()
    away = broker.connect("away", clean_start=False)
    away.drop()
    for name in ("away", "nobody"):
        limit(broker, name, 60, rate="1:60", exempt=True)
        broker.client_overrides.change([], [name, name])

    assert 0 == broker.counters.internal_errors
    assert 5 == publish(broker.connect("away"), 5)


@pytest.mark.parametrize("rate", ["", "100:1"])
def test_a_limit_costs_nothing_when_it_is_over(brokers: Brokers, rate: str) -> None:
    """Each publish of a client that once had a limit would be judged, for as long as it stays."""
    broker = brokers()
    broker.connect("client")
    session = broker.session("client")
    limit(broker, "client", 5, rate=rate, exempt=True)
    broker.advance(5.1)
    broker.client_overrides.change([], ["client"])

    assert session is not None and session.outbox is not None
    connection = broker.stream_of(session.outbox)
    assert isinstance(connection, Connection) and connection.client is not None
    assert None is connection.client.quota
    assert {} == broker.protection.limits
