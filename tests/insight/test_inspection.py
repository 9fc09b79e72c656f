# What a worker answers about its clients.
from collections.abc import Callable
from typing import Any, cast

import pytest

from broker.insight.inspection import PAGE, Inspection, Unanswerable
from broker.mqtt.packets import V5, V311, Disconnect, Properties, Publish, Subscribe, Wanted, Will
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from tests.inprocess import Broker

Brokers = Callable[..., Broker]
LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 60}


def inspection_of(broker: Broker) -> Inspection:
    return Inspection(broker.store, broker.lifecycle, broker.reactor, broker.clock)


def clients(inspection: Inspection, position: int = 0, match: str = "") -> tuple[list[dict[str, Any]], int | None]:
    page = cast(dict[str, Any], inspection.answer("clients", {"position": position, "match": match}))
    return page["clients"], page["next"]


def test_clients_come_in_pages_until_all_were_told(brokers: Brokers) -> None:
    """A list of many would hold the loop, or lack some."""
    broker = brokers()
    for n in range(PAGE + 3):
        broker.connect(f"client-{n}", V5, properties=LASTING).drop()
    inspection = inspection_of(broker)

    first, following = clients(inspection)
    assert following is not None
    rest, end = clients(inspection, following)

    assert [f"client-{n}" for n in range(PAGE + 3)] == [one["client"] for one in first + rest]
    assert None is end
    assert (["client-501"], None) == ([one["client"] for one in clients(inspection, PAGE, "-501")[0]], end)


def test_a_client_is_told_with_what_it_holds(brokers: Brokers) -> None:
    """Nobody could see why a client gets nothing, or costs much."""
    broker = brokers()
    will = Will(b"last/words", b"")
    watched = broker.connect("watched", V5, will=will, properties=LASTING)
    watched.send(Subscribe(1, [Wanted(b"news/#", 1), Wanted(b"$share/all/jobs", 2)]))
    publisher = broker.connect("publisher", V311)
    publisher.send(Publish(b"news/1", b"x", 1, packet_id=1))
    broker.settle()
    inspection = inspection_of(broker)

    told = cast(dict[str, Any], inspection.answer("client", {"client": "watched"}))

    expected = {"connected": True, "version": V5, "subscriptions": 2, "inflight": 1, "will_topic": "last/words"}
    assert expected == {key: told[key] for key in expected}
    assert [{"filter": "news/#", "qos": 1}, {"filter": "$share/all/jobs", "qos": 2}] == told["filters"]
    watched.drop()
    publisher.send(Publish(b"news/2", b"x", 1, packet_id=2))
    broker.settle()
    away = cast(dict[str, Any], inspection.answer("client", {"client": "watched"}))
    assert (False, "", 1, None) == tuple(away[key] for key in ("connected", "address", "waiting", "will_topic"))


def test_a_kick_ends_the_connection_and_not_the_session(brokers: Brokers) -> None:
    """A client that misbehaves could not be parted from, or would lose what waits for it."""
    broker = brokers()
    client = broker.connect("noisy", V5, properties=LASTING)
    inspection = inspection_of(broker)

    assert True is inspection.answer("kick", {"client": "noisy"})
    assert [Disconnect(0x98)] == client.receive()
    assert client.closed
    assert 1 == broker.counters.closed_by_reason["kicked"]
    assert 1 == broker.session_count()
    assert False is inspection.answer("kick", {"client": "noisy"})
    assert False is inspection.answer("kick", {"client": "nobody"})


def test_a_signal_is_injected_for_some_time(brokers: Brokers) -> None:
    """A test could not say that something is overloaded which is not, or it would stay so for ever."""
    broker = brokers()
    inspection = inspection_of(broker)
    injected: list[tuple[str, float, float]] = []
    inspection.inject = lambda *what: injected.append(what)
    broker.advance(2.0)

    inspection.answer("inject", {"signal": "lag", "value": 3.5, "seconds": 10.0})

    assert [("lag", 3.5, broker.clock.now + 10.0)] == injected


def test_what_is_not_known_is_refused(brokers: Brokers) -> None:
    """A supervisor of another version would get an answer to another question."""
    inspection = inspection_of(brokers())

    assert None is inspection.answer("client", {"client": "nobody"})
    with pytest.raises(Unanswerable, match="'explode'"):
        inspection.answer("explode", {})
    with pytest.raises(Unanswerable, match="no signal 'explosions'"):
        inspection.answer("inject", {"signal": "explosions", "value": 1.0, "seconds": 1.0})
