# What one address may have of the broker, and what it hears when that is too much.
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from broker.config.schema import Config, Limits
from broker.mqtt.packets import V5, V31, V311, ConnAck, PingReq, PingResp
from broker.protocol.lifecycle import REFUSABLE
from broker.reasons import CloseReason
from tests.inprocess import Broker, Client
from tests.protocol.talk import closed, goodbye, greeting

Brokers = Callable[..., Broker]
Log = list[MutableMapping[str, Any]]


def a_connect(broker: Broker, address: str, client_id: str, version: int = V311) -> int:
    """Connect from *address*; the code of the CONNACK."""
    return answered(broker.open(version, address=address), client_id)


def answered(client: Client, client_id: str) -> int:
    client.send(greeting(client_id, client.version))
    (connack,) = client.receive()
    assert isinstance(connack, ConnAck)
    assert client.closed == (connack.code != 0)
    return connack.code


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_an_address_has_so_many_connections_and_no_more(brokers: Brokers, version: int) -> None:
    """One host could take all connections; or others would be refused for it."""
    broker = brokers(Config(limits=Limits(connections_per_address=2)))
    first = broker.open(version, address="a:1")
    assert [0, 0] == [answered(first, "1"), a_connect(broker, "a:2", "2", version)]

    assert (0x97 if version == V5 else 3) == a_connect(broker, "a:3", "3", version)
    assert {CloseReason.CONNECTIONS_PER_ADDRESS: 1} == closed(broker)
    assert 0 == a_connect(broker, "b:1", "3", version)
    first.drop()
    assert 0 == a_connect(broker, "a:4", "4", version)


def test_who_came_first_is_not_refused_for_who_came_too_much(brokers: Brokers) -> None:
    """A neighbour that opens silent connections would have those refused that were within the limit."""
    broker = brokers(Config(limits=Limits(connections_per_address=1)))
    first = broker.open(V5, address="a:1")
    second = broker.open(V5, address="a:2")
    broker.settle()

    assert [0, 0x97] == [answered(first, "1"), answered(second, "2")]


def test_one_too_many_may_stay_if_there_is_room_when_it_connects(brokers: Brokers) -> None:
    """A client that reconnects at once would be refused because the kernel told us of the new connection first."""
    broker = brokers(Config(limits=Limits(connections_per_address=1)))
    first = broker.open(V5, address="a:1")
    assert 0 == answered(first, "1")
    second = broker.open(V5, address="a:2")
    first.drop()

    assert 0 == answered(second, "2")
    assert 0x97 == a_connect(broker, "a:3", "3", V5)


@pytest.mark.parametrize("version", [V311, V5])
def test_a_client_gets_its_own_session_back_from_a_full_address(brokers: Brokers, version: int) -> None:
    """A client whose connection died unnoticed would be refused until its keep alive has passed."""
    broker = brokers(Config(limits=Limits(connections_per_address=1)))
    before, elsewhere = broker.open(version, address="a:1"), broker.open(version, address="b:1")
    assert [0, 0] == [answered(before, "me"), answered(elsewhere, "other")]

    assert 0 == a_connect(broker, "a:2", "me", version)
    assert before.closed
    assert (0x97 if version == V5 else 3) == a_connect(broker, "a:3", "other", version)  # it would be one more here
    assert not elsewhere.closed


def test_only_a_few_too_many_are_told_so(brokers: Brokers, log: Log) -> None:
    """An address could hold any number of connections that are over its limit, as long as they say nothing."""
    broker = brokers(Config(limits=Limits(connections_per_address=1, connect_timeout=1.0)))
    silent = [broker.open(V5, address="a:1") for _ in range(1 + REFUSABLE)]
    broker.settle()
    one_more = broker.open(V5, address="a:1")
    broker.settle()

    assert one_more.closed
    assert not any(client.closed for client in silent)
    assert {CloseReason.CONNECTIONS_PER_ADDRESS: 1} == closed(broker)
    assert [("connection_refused", "connections_per_address")] == [(line["event"], line["reason"]) for line in log]
    assert 0 == a_connect(broker, "b:1", "other", V5)
    broker.advance(3.0)
    assert all(client.closed for client in silent)
    assert [0, 0x97] == [a_connect(broker, "a:1", name, V5) for name in ("1", "2")]


def test_those_who_were_told_count_until_they_are_gone(brokers: Brokers) -> None:
    """Connections that do not leave when they are refused would use up our descriptors."""
    broker = brokers(Config(limits=Limits(connections_per_address=1)))
    broker.open(V5, address="a:1")
    refused = [broker.open(V5, address="a:1") for _ in range(REFUSABLE)]
    for client in refused:
        client.send(greeting("me", V5))
    broker.settle()
    assert {CloseReason.CONNECTIONS_PER_ADDRESS: REFUSABLE} == closed(broker)
    one_more = broker.open(V5, address="a:1")
    broker.settle()

    assert one_more.closed and not one_more.inbox
    broker.advance(1.5)
    assert 0x97 == a_connect(broker, "a:1", "me", V5)


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_an_address_that_connects_too_often_is_refused_for_a_while(brokers: Brokers, version: int) -> None:
    """A client that reconnects in a loop would cost its neighbours the time for CONNECTs."""
    broker = brokers(Config(limits=Limits(connects_per_second=1, connect_burst=2)))
    codes = [a_connect(broker, f"a:{n}", str(n), version) for n in range(4)]

    assert [0, 0] + [0x9F if version == V5 else 3] * 2 == codes
    assert {CloseReason.CONNECT_RATE: 2} == closed(broker)
    assert 0 == a_connect(broker, "b:1", "other", version)
    broker.advance(1.0)
    assert 0 == a_connect(broker, "a:5", "5", version)


def test_connections_beyond_the_number_count_against_the_rate(brokers: Brokers) -> None:
    """An address that has all of its connections could make and lose others as fast as it can."""
    limits = Limits(connections_per_address=1, connects_per_second=1, connect_burst=2)
    broker = brokers(Config(limits=limits))
    here = broker.open(V5, address="a:1")

    assert [0, 0x97, 0x9F] == [answered(here, "1"), *(a_connect(broker, f"a:{n}", str(n), V5) for n in (2, 3))]
    assert {CloseReason.CONNECTIONS_PER_ADDRESS: 1, CloseReason.CONNECT_RATE: 1} == closed(broker)


def test_a_takeover_is_no_way_around_the_rate(brokers: Brokers) -> None:
    """Two clients with one client id that take it from each other would do so as fast as they can."""
    broker = brokers(Config(limits=Limits(connects_per_second=1, connect_burst=1)))
    here = broker.open(V5, address="a:1")
    assert [0, 0x9F] == [answered(here, "me"), a_connect(broker, "a:2", "me", V5)]
    here.send(PingReq())

    assert [PingResp()] == here.receive()


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_a_client_gets_its_session_back_from_a_full_broker(brokers: Brokers, version: int) -> None:
    """Clients whose connections died unnoticed would find the broker full of themselves."""
    broker = brokers(connections=2)
    before, other = broker.connect("me", version), broker.connect("other", version)
    back = broker.open(version)
    assert 0 == answered(back, "me")

    assert (0x8E if version == V5 else None) == goodbye(before)
    assert not other.closed
    assert (0x97 if version == V5 else 3) == a_connect(broker, "a:1", "third", version)
    assert 2 == broker.connected
    assert {CloseReason.SESSION_TAKEN_OVER: 1, CloseReason.CONNECTION_LIMIT: 1} == closed(broker)
