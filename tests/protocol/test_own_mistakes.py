# Our own mistakes, where they could do most harm: in a burst, in the store, in a fan-out, and in a will.
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, cast

import pytest

from broker.mqtt.packets import (
    PUBACK,
    V5,
    V311,
    Ack,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    Wanted,
    Will,
)
from broker.reasons import CloseReason, DropReason
from broker.routing.fanout import PAGE
from broker.session.message import Message
from broker.session.session import Session
from broker.store.sessions import Claimant, MemorySessions
from tests.inprocess import Broker, Client
from tests.protocol.talk import closed, goodbye, greeting, payloads, subscribe

Brokers = Callable[..., Broker]
Log = list[MutableMapping[str, Any]]


class BrokenStore:
    """A store that cannot find the session of *unlucky*, and is a good one for all others."""

    def __init__(self, unlucky: str) -> None:
        self._unlucky = unlucky
        self._good = MemorySessions()

    def claim(self, claimant: Claimant) -> None:
        if claimant.client_id == self._unlucky:
            raise RuntimeError(f"cannot claim {claimant.client_id}")
        self._good.claim(claimant)

    def has_room(self, now: float) -> bool:
        return self._good.has_room(now)

    def find(self, client_id: str) -> Session | None:
        return self._good.find(client_id)

    def without_will(self, session: Session) -> None:
        self._good.without_will(session)

    def keep(self, session: Session) -> None:
        self._good.keep(session)

    def forget(self, session: Session) -> None:
        self._good.forget(session)

    def sessions(self) -> Iterable[Session]:
        return self._good.sessions()

    def count(self) -> int:
        return self._good.count()

    def count_in_memory(self) -> int:
        return self._good.count_in_memory()

    def count_applications(self) -> int:
        return self._good.count_applications()


def break_route(broker: Broker, topic: bytes) -> None:
    """Put something that is no session behind the receivers of *topic*."""
    broker.routes.find(topic).groups[0].sessions.append(cast(Session, object()))


def break_publishing(broker: Broker) -> None:
    """No will can be published."""
    broker.publish_wills_with(_cannot_publish)


def _cannot_publish(
    message: Message, client_id: str, user: str | None, publisher: Session | None, since: float, now: float
) -> DropReason | None:
    raise RuntimeError("cannot publish")


def failures(log: Log) -> list[str]:
    """What was logged of our mistakes: where each happened. It is counted, too."""
    errors = [line["exc_info"] for line in log if line["event"] == "internal_error"]
    assert all(isinstance(error, Exception) and error.__traceback__ is not None for error in errors)
    return [type(error).__name__ for error in errors]


def answers(client: Client) -> bool:
    client.send(PingReq())
    return [PingResp()] == client.receive()


def test_a_run_that_fails_costs_its_publisher(brokers: Brokers, log: Log) -> None:
    """QoS 0 goes another way, on which a mistake would take the worker down."""
    broker = brokers()
    reader = broker.connect("reader")
    subscribe(reader, "broken")
    break_route(broker, b"broken")
    publisher = broker.connect("publisher", V5)
    publisher.send(Publish(b"broken", b"1"), Publish(b"broken", b"2"))

    assert 0x83 == goodbye(publisher)
    assert 1 == len(failures(log)) == broker.counters.internal_errors
    assert [b"1", b"2"] == payloads(reader.receive())
    assert answers(reader)


@pytest.mark.parametrize("version", [V311, V5])
def test_a_store_that_fails_costs_the_connect(brokers: Brokers, log: Log, version: int) -> None:
    """One session that cannot be read would keep all clients out, or a DISCONNECT come first [MQTT-3.14.0-1]."""
    broker = brokers()
    broker.claim_from(BrokenStore("unlucky"))
    friend = broker.connect("friend")
    unlucky = broker.open(version)
    unlucky.send(greeting("unlucky", version), PingReq())

    assert [] == unlucky.receive()
    assert unlucky.closed
    assert {CloseReason.INTERNAL_ERROR: 1} == closed(broker)
    assert ["RuntimeError"] == failures(log)
    assert 1 == broker.connected
    assert answers(friend)
    assert answers(broker.connect("next", version))


def test_a_fan_out_that_fails_costs_its_publisher_and_the_next_one_goes_on(brokers: Brokers, log: Log) -> None:
    """A mistake in what is done in pages would end the worker, or be made again in every slice for ever."""
    broker = brokers()
    readers = [broker.open() for _ in range(PAGE + 1)]
    for n, reader in enumerate(readers):
        reader.send(Connect(V311, f"reader{n}"), Subscribe(1, [Wanted(b"broken"), Wanted(b"whole")]))
    broker.settle()
    break_route(broker, b"broken")
    unlucky, lucky = broker.connect("unlucky", V5), broker.connect("lucky", V5)
    unlucky.send(Publish(b"broken", b"x", 1, packet_id=1), PingReq())
    lucky.send(Publish(b"whole", b"y", 1, packet_id=1))

    assert 0x83 == goodbye(unlucky)
    assert [Ack(PUBACK, 1)] == lucky.receive()
    assert {CloseReason.INTERNAL_ERROR: 1} == closed(broker)
    assert 1 == len(failures(log)) == broker.counters.internal_errors
    assert all(b"y" in payloads(reader.inbox) for reader in readers)


def reset(client: Client) -> None:
    client.drop()


def leave_with_will(client: Client) -> None:
    client.send(Disconnect(4))
    client.receive()


def break_protocol(client: Client) -> None:
    client.send(SubAck(1, [0]))
    client.receive()


def fall_silent(client: Client) -> None:
    client.broker.advance(20)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (reset, CloseReason.PEER_CLOSED),
        (leave_with_will, CloseReason.CLIENT_DISCONNECTED),
        (break_protocol, CloseReason.PROTOCOL_ERROR),
        (fall_silent, CloseReason.KEEP_ALIVE_TIMEOUT),
    ],
)
def test_a_will_that_fails_is_all_that_fails(
    brokers: Brokers, log: Log, end: Callable[[Client], None], reason: CloseReason
) -> None:
    """A connection would end twice, half or not at all: its place would never be free again, or the worker end."""
    broker = brokers(connections=2)
    friend = broker.connect("friend", V5)
    mortal = broker.connect("mortal", V5, keep_alive=10, will=Will(b"wills", b"gone"))
    break_publishing(broker)
    end(mortal)

    assert ["RuntimeError"] == failures(log)
    assert {reason: 1} == closed(broker)
    assert 1 == broker.counters.internal_errors
    assert 1 == broker.connected == broker.session_count()
    assert answers(friend)
    assert answers(broker.connect("mortal", V5))
