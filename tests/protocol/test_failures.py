# Mistakes of our own: they cost the connection that met them, and are told with their traceback.
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from broker.mqtt.packets import V5, PingReq, PingResp, Publish
from broker.protocol.timers import WILL
from broker.reasons import CloseReason
from tests.inprocess import Broker
from tests.protocol.talk import closed, goodbye, payloads, subscribe

Brokers = Callable[..., Broker]
Log = list[MutableMapping[str, Any]]


def internal_errors(log: Log) -> list[type]:
    return [type(line["exc_info"]) for line in log if line["event"] == "internal_error"]


def test_a_failure_while_serving_ends_that_connection_alone(brokers: Brokers, log: Log) -> None:
    """One packet that meets a mistake of ours would take everybody's broker down, 3.1.1 [MQTT-4.8.0-2]."""
    broker = brokers()
    victim = broker.connect("victim", V5)
    other = broker.connect("other")
    subscribe(other, "t")
    broker.routes._epochs.clear()  # what no packet can do: the next topic is an IndexError

    victim.send(Publish(b"t", b"x", 1, packet_id=1))

    assert CloseReason.INTERNAL_ERROR.code == goodbye(victim)
    other.send(PingReq())
    assert [PingResp()] == other.receive()
    assert {CloseReason.INTERNAL_ERROR: 1} == closed(broker)
    assert [IndexError] == internal_errors(log)
    assert 1 == broker.counters.internal_errors


def test_a_failure_of_a_timer_is_told_and_others_fire(brokers: Brokers, log: Log) -> None:
    """A timer that fails would take the worker down, or those that were due with it."""
    broker = brokers()
    client = broker.connect("client", V5, keep_alive=1)
    broker.lifecycle._timers.set(broker.clock.now + 1.5, WILL, "no session")

    broker.advance(2.0)

    assert CloseReason.KEEP_ALIVE_TIMEOUT.code == goodbye(client)
    assert 1 == broker.counters.internal_errors
    assert 1 == len(internal_errors(log))


@pytest.mark.slow
def test_a_failure_in_a_large_fan_out_ends_its_publisher_alone(brokers: Brokers, log: Log) -> None:
    """A fan-out that fails would be tried again for ever, or hold its publisher for ever."""
    broker = brokers()
    publisher = broker.connect("publisher", V5)
    readers = [broker.connect(f"reader-{i}") for i in range(600)]
    for reader in readers:
        subscribe(reader, "t")
    publisher.send(Publish(b"t", b"1"))
    assert [b"1"] == payloads(readers[0].receive())
    route = broker.routes.find(b"t")
    route.groups[0].sessions[5] = "no session"  # type: ignore[call-overload]

    publisher.send(Publish(b"t", b"2"))

    assert CloseReason.INTERNAL_ERROR.code == goodbye(publisher)
    assert 1 == broker.counters.internal_errors
    readers[1].send(PingReq())
    assert PingResp() in readers[1].receive()
