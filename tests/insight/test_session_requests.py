# What operators see of the sessions of a worker, and how they end one.
from collections.abc import Callable
from typing import Any

import pytest

from broker.config.schema import Config, Limits
from broker.insight.pending_answers import MOST, PATIENCE, PendingAnswers, RequestRefused
from broker.insight.session_requests import PAGE
from broker.mqtt.packets import (
    PUBREC,
    PUBREL,
    V5,
    Ack,
    Disconnect,
    Properties,
    Publish,
    Subscribe,
    Wanted,
    Will,
)
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL, SUBSCRIPTION_IDENTIFIER, WILL_DELAY_INTERVAL
from tests.inprocess import Broker, Clock
from tests.insight.operators import Operator

Brokers = Callable[..., Broker]
LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 60}


def listed(operator: Operator, match: str = "", away: bool = False) -> list[dict[str, Any]]:
    page = operator.ask("sessions", {"position": 0, "match": match, "away": away})
    assert page["next"] is None
    found: list[dict[str, Any]] = page["sessions"]
    return found


def test_sessions_are_listed_with_what_waits(brokers: Brokers) -> None:
    """Nobody could see which absent client fills the memory, since when it is away, and until when that lasts."""
    broker = brokers()
    reader = broker.connect("reader", V5, properties=LASTING)
    reader.send(Subscribe(1, [Wanted(b"news/#", 1)]))
    publisher = broker.connect("publisher", V5)
    reader.drop()
    publisher.send(Publish(b"news/1", b"12345", 1, packet_id=1), Publish(b"news/2", b"12345", 1, packet_id=2))
    broker.advance(10.0)

    here, away = {one["client"]: one for one in listed(Operator(broker))}, listed(Operator(broker), "read", True)

    assert [here["reader"]] == away
    assert (False, 2, 22, 1, False) == tuple(
        here["reader"][key] for key in ("connected", "waiting", "waiting_bytes", "subscriptions", "durable")
    )
    assert [50.0, 10.0] == pytest.approx([here["reader"]["expires_in"], here["reader"]["seconds"]], abs=0.3)
    assert (True, None, 0) == tuple(here["publisher"][key] for key in ("connected", "expires_in", "expiry"))
    assert [] == listed(Operator(broker), "publisher", True)


def test_a_long_list_comes_in_pages(brokers: Brokers) -> None:
    """A list would block the loop, or lack sessions."""
    broker = brokers()
    for number in range(PAGE + 2):
        broker.connect(f"client-{number}", V5, properties=LASTING).drop()
    operator = Operator(broker)

    first = operator.ask("sessions", {"position": 0, "match": "", "away": True})
    rest = operator.ask("sessions", {"position": first["next"], "match": "", "away": True})

    assert (PAGE, 2, None) == (len(first["sessions"]), len(rest["sessions"]), rest["next"])


def test_a_session_is_shown_with_its_filters_and_exchanges(brokers: Brokers) -> None:
    """Nobody could see why a client gets messages twice, or which QoS 2 exchange hangs."""
    broker = brokers()
    will = Will(b"last/words", b"", properties={WILL_DELAY_INTERVAL: 5})
    client = broker.connect("phone", V5, will=will, properties=LASTING)
    client.send(Subscribe(1, [Wanted(b"a", 2, no_local=True)], {SUBSCRIPTION_IDENTIFIER: [300]}))
    client.send(Subscribe(2, [Wanted(b"$share/g/b", 1)]))
    publisher = broker.connect("publisher", V5)
    publisher.send(Publish(b"a", b"1", 2, packet_id=1), Publish(b"a", b"2", 2, packet_id=2))
    client.receive()
    client.send(Ack(PUBREC, 1), Publish(b"x", b"", 2, packet_id=9))
    assert [PUBREL, PUBREC] == [each.kind for each in client.receive() if isinstance(each, Ack)]

    told = Operator(broker).ask("session", {"client": "phone"})

    assert (1, 1, 1, "last/words", 5) == tuple(
        told[key] for key in ("qos2_unreceived", "qos2_uncompleted", "qos2_unreleased", "will_topic", "will_delay")
    )
    options = {"filter": "a", "qos": 2, "no_local": True, "retain_as_published": False, "identifier": 300}
    shared = {"filter": "$share/g/b", "qos": 1, "no_local": False, "retain_as_published": False, "identifier": None}
    assert [options, shared] == told["filters"]
    assert None is Operator(broker).ask("session", {"client": "nobody"})


def test_losses_that_a_client_does_not_know_are_shown(brokers: Brokers) -> None:
    """Nobody could see whether a client knows of what it lost; or clients would seem to wait that never asked."""
    broker = brokers(Config(limits=Limits(queue=1)))
    for name, filters in (("asks", ["a", "$SYS/broker/clients/+/gap"]), ("does not", ["a"])):
        client = broker.connect(name, V5, properties=LASTING)
        client.send(Subscribe(1, [Wanted(filter.encode(), 1) for filter in filters]))
        client.receive()
        client.drop()
    publisher = broker.connect("publisher", V5)
    publisher.send(*[Publish(b"a", b"", 1, packet_id=number) for number in (1, 2, 3)])
    broker.settle()
    broker.look_at_gaps()
    operator = Operator(broker)

    shown = [operator.ask("session", {"client": name}) for name in ("asks", "does not")]
    assert [(2, {"queue_full": 2}), (0, {"queue_full": 2})] == [(each["untold"], each["drops"]) for each in shown]
    broker.connect("asks", V5, clean_start=False, properties=LASTING)
    assert 0 == operator.ask("session", {"client": "asks"})["untold"]


def test_a_dropped_session_is_gone_with_its_connection(brokers: Brokers) -> None:
    """The client would keep its connection, get its former messages once more, or nobody learn that it is gone."""
    broker = brokers()
    client = broker.connect("phone", V5, will=Will(b"gone", b"phone"), properties=LASTING)
    heir = broker.connect("heir", V5)
    heir.send(Subscribe(1, [Wanted(b"gone", 0)]))
    heir.receive()

    assert True is Operator(broker).ask("session_drop", {"client": "phone"})

    assert [Disconnect(0x98)] == client.receive()
    assert client.closed
    assert [b"phone"] == [each.payload for each in heir.receive() if isinstance(each, Publish)]
    assert 1 == broker.session_count()
    assert not broker.connect("phone", V5, clean_start=False).connack.session_present
    assert False is Operator(broker).ask("session_drop", {"client": "nobody"})


def test_an_absent_session_is_dropped_with_its_delayed_will(brokers: Brokers) -> None:
    """The will of a session that is dropped would be lost, or wait for a session that does not exist."""
    broker = brokers()
    will = Will(b"gone", b"phone", properties={WILL_DELAY_INTERVAL: 50})
    broker.connect("phone", V5, will=will, properties=LASTING).drop()
    heir = broker.connect("heir", V5)
    heir.send(Subscribe(1, [Wanted(b"gone", 0)]))
    heir.receive()

    assert True is Operator(broker).ask("session_drop", {"client": "phone"})
    assert [b"phone"] == [each.payload for each in heir.receive() if isinstance(each, Publish)]
    broker.advance(60.0)
    assert [] == heir.receive()


def test_an_answer_that_does_not_come_is_refused_in_time() -> None:
    """Whoever asks while Redis hangs would hear that the worker hangs, and the worker keep ever more questions."""
    clock = Clock()
    pending = PendingAnswers(clock)
    said: list[tuple[object, str]] = []
    late = pending.begin("It is late.")
    late.deliver_to(lambda result, error: said.append((result, error)))
    for _ in range(MOST - 1):
        pending.begin("")
    with pytest.raises(RequestRefused, match="64 other requests"):
        pending.begin("")
    clock.now += PATIENCE

    pending.expire()
    late.reply("too late")

    assert [(None, "It is late.")] == said
    pending.begin("")
