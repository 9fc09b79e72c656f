# The loop: the length of a slice, calls from threads, and being woken.
import time
from collections.abc import Callable
from functools import partial

import pytest

from broker.delivery.flushing import PAUSE
from broker.mqtt.packets import PingReq, PingResp, Publish, Subscribe, Wanted
from broker.net.loop import SLICE
from broker.net.pauses import Pause
from broker.net.reactor import CALLS_AT_ONCE
from tests.inprocess import Broker, Client
from tests.protocol.talk import narrow

Brokers = Callable[..., Broker]

STEP = SLICE / 4  # so that a slice has room for a few looks at the clock


def turn(broker: Broker, *clients: Client) -> float:
    """One slice, after which *clients* read."""
    wait = broker.loop.turn()
    for client in clients:
        client.pull()
    return wait


def test_a_few_calls_of_threads_run_in_one_slice(brokers: Brokers) -> None:
    """The results of a thousand handshake steps would make one long slice."""
    broker = brokers()
    broker.settle()
    done: list[int] = []
    for number in range(3 * CALLS_AT_ONCE):
        broker.reactor.call(partial(done.append, number))
    broker.clock.step = SLICE  # one look for events a slice
    turn(broker)

    assert list(range(CALLS_AT_ONCE)) == done
    broker.clock.step = 0.0
    broker.settle()
    assert list(range(3 * CALLS_AT_ONCE)) == done


def test_a_slice_ends_though_there_is_more_to_do(brokers: Brokers) -> None:
    """A busy worker would never give way to its other tasks: signals, $SYS, the drain."""
    broker = brokers()
    clients = [broker.connect(f"client{n}") for n in range(40)]
    broker.settle()
    for client in clients:
        client.send(PingReq())
    broker.clock.step = STEP
    began = broker.clock.now
    wait = turn(broker, *clients)
    answered = sum(len(client.inbox) for client in clients)

    assert 0.0 == wait
    assert broker.clock.now - began < 2 * SLICE
    assert answered < len(clients)
    broker.clock.step = 0.0
    broker.settle()
    assert all([PingResp()] == client.inbox for client in clients)
    assert SLICE / 2 < broker.loop.statistics.longest_slice < 2 * SLICE


def test_wake_ends_the_wait_for_events(brokers: Brokers) -> None:
    """What other tasks write, $SYS or DISCONNECT after a signal, would wait for the next event of a client."""
    broker = brokers()
    client = broker.connect("me")
    narrow(broker)
    broker.settle()
    assert turn(broker) > 0.05
    (stream,) = broker.streams()
    stream.outbox.write(b"\xd0\0")
    broker.reactor.wake()
    turn(broker, client)

    assert [PingResp()] == client.inbox


def test_a_stream_reported_as_drained_is_told_to_the_service(brokers: Brokers) -> None:
    """A client whose quota has room again would wait for its outbox to drain, which is empty."""
    broker = brokers()
    client = broker.connect("me")
    (stream,) = broker.streams()
    broker.reactor.pause(stream, Pause.REPLIES)
    client.send(PingReq())
    assert [] == client.receive()
    broker.reactor.report_drained(stream)
    broker.loop.turn()
    assert not stream.paused

    assert [PingResp()] == client.receive()


def test_while_messages_are_held_one_poll_brings_several_events(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop would run once for each message of many quiet publishers, though their reader gets them together."""
    broker = brokers()
    reader = broker.connect("reader")
    reader.send(Subscribe(1, [Wanted(b"t", 0)]))
    publishers = [broker.connect(f"p{n}") for n in range(20)]
    clock = broker.clock
    taken = broker.counters
    sent = 0
    slept = []

    def publish() -> None:
        nonlocal sent
        clock.now += 0.0002
        publishers[sent % len(publishers)].send(Publish(b"t", b"%d" % sent, 0))
        sent += 1

    def sleep(seconds: float) -> None:
        assert sent == taken.publishes_received  # else there would be something to do
        slept.append(seconds)
        for _ in range(5):
            publish()

    monkeypatch.setattr(time, "sleep", sleep)
    clock.step = 0.00002  # which makes it a fifth of the time or so that it is busy
    for _ in range(500):
        publish()
        broker.loop.turn()
    clock.step = 0.0
    broker.advance(0.1)

    assert len(slept) > 100
    assert max(slept) <= PAUSE
    assert [b"%d" % n for n in range(sent)] == [
        packet.payload for packet in reader.inbox if isinstance(packet, Publish)
    ]
