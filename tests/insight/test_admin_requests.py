# What a worker answers about its clients.
from collections.abc import Callable
from typing import Any, cast

import pytest

from broker.insight.admin_requests import PAGE, AdminRequests
from broker.insight.pending_answers import PendingAnswers, RequestRefused
from broker.insight.warm_first import WarmFirst
from broker.mqtt.packets import V5, V311, Disconnect, Properties, Publish, Subscribe, Wanted, Will
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from tests.inprocess import Broker

Brokers = Callable[..., Broker]
WALL = 1_700_000_000.0
LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 60}


def requests_of(broker: Broker) -> AdminRequests:
    return AdminRequests(
        broker.store,
        broker.lifecycle,
        broker.reactor,
        broker.diagnostics,
        broker.overload_snapshot,
        broker.interval_metrics,
        broker.overload_monitor.inject,
        broker.clock,
        {},
        WarmFirst(broker.worker.protocol.cold, broker.worker.protocol.store, PendingAnswers(broker.clock)),
    )


def clients(requests: AdminRequests, position: int = 0, match: str = "") -> tuple[list[dict[str, Any]], int | None]:
    page = cast(dict[str, Any], requests.answer("clients", {"position": position, "match": match}))
    return page["clients"], page["next"]


def test_clients_come_in_pages_until_all_were_told(brokers: Brokers) -> None:
    """A long list would block the loop, or lack clients."""
    broker = brokers()
    for n in range(PAGE + 3):
        broker.connect(f"client-{n}", V5, properties=LASTING).drop()
    requests = requests_of(broker)

    first, following = clients(requests)
    assert following is not None
    rest, end = clients(requests, following)

    assert [f"client-{n}" for n in range(PAGE + 3)] == [one["client"] for one in first + rest]
    assert None is end
    assert (["client-501"], None) == ([one["client"] for one in clients(requests, PAGE, "-501")[0]], end)


def test_a_client_is_told_with_what_it_holds(brokers: Brokers) -> None:
    """Nobody could see why a client gets nothing, or costs much."""
    broker = brokers()
    will = Will(b"last/words", b"")
    watched = broker.connect("watched", V5, will=will, properties=LASTING)
    watched.send(Subscribe(1, [Wanted(b"news/#", 1), Wanted(b"$share/all/jobs", 2)]))
    publisher = broker.connect("publisher", V311)
    publisher.send(Publish(b"news/1", b"x", 1, packet_id=1))
    broker.settle()
    requests = requests_of(broker)

    told = cast(dict[str, Any], requests.answer("client", {"client": "watched"}))

    expected = {"connected": True, "version": V5, "subscriptions": 2, "inflight": 1, "will_topic": "last/words"}
    assert expected == {key: told[key] for key in expected}
    assert [{"filter": "news/#", "qos": 1}, {"filter": "$share/all/jobs", "qos": 2}] == told["filters"]
    assert None is told["configured"]
    watched.drop()
    publisher.send(Publish(b"news/2", b"x", 1, packet_id=2))
    broker.settle()
    away = cast(dict[str, Any], requests.answer("client", {"client": "watched"}))
    assert (False, "", 1, None) == tuple(away[key] for key in ("connected", "address", "waiting", "will_topic"))


def test_a_kick_ends_the_connection_and_not_the_session(brokers: Brokers) -> None:
    """`weir clients kick` would not close the connection, or would end the session."""
    broker = brokers()
    client = broker.connect("noisy", V5, properties=LASTING)
    requests = requests_of(broker)

    assert True is requests.answer("kick", {"client": "noisy"})
    assert [Disconnect(0x98)] == client.receive()
    assert client.closed
    assert 1 == broker.counters.closed_by_reason["kicked"]
    assert 1 == broker.session_count()
    assert False is requests.answer("kick", {"client": "noisy"})
    assert False is requests.answer("kick", {"client": "nobody"})


def test_a_signal_is_injected_for_some_time(brokers: Brokers) -> None:
    """An injected signal would not count, or would never end."""
    broker = brokers()
    requests = requests_of(broker)
    broker.advance(2.0)

    requests.answer("inject", {"signal": "lag", "value": 3.5, "seconds": 10.0})

    assert {"lag": 10.0} == broker.overload_monitor.injected(broker.clock.now)


def test_what_is_not_known_is_refused(brokers: Brokers) -> None:
    """A supervisor of another version would get a wrong answer instead of an error."""
    requests = requests_of(brokers())

    assert None is requests.answer("client", {"client": "nobody"})
    with pytest.raises(RequestRefused, match="'explode'"):
        requests.answer("explode", {})
    with pytest.raises(RequestRefused, match="'explosions'"):
        requests.answer("inject", {"signal": "explosions", "value": 1.0, "seconds": 1.0})


def test_the_last_record_is_there_to_be_read(brokers: Brokers) -> None:
    """`weir top` would have nothing to show, or make a record of its own that is missing in the log."""
    broker = brokers()
    requests = requests_of(broker)
    assert None is requests.answer("record", {})
    broker.record(WALL)
    told = cast(dict[str, Any], requests.answer("record", {}))

    assert (WALL, 0) == (told["ts"], told["sequence"])
