# Pause reasons: a stream is read again when no reason is left, whatever each reason does meanwhile.
import socket
from collections.abc import Callable

import pytest

from broker.mqtt.packets import PingReq, PingResp
from broker.net.pauses import LABELS, Pause, labels_of
from broker.net.stream import CLOSED
from tests.inprocess import Broker

Brokers = Callable[..., Broker]

REASONS = list(LABELS)


def every_reason() -> list[int]:
    return [value for name, value in vars(Pause).items() if name.isupper()]


def test_every_reason_is_one_bit_with_a_label() -> None:
    """Two reasons in one bit would lift each other's pause."""
    assert sorted(REASONS) == sorted(every_reason()) == [1 << n for n in range(len(REASONS))]
    assert len(REASONS) == len(set(LABELS.values()))


def test_a_set_of_reasons_has_their_labels() -> None:
    """Nobody could be told why a client is not read."""
    assert [] == labels_of(0)
    assert ["connect", "replies"] == labels_of(Pause.CONNECT | Pause.REPLIES)


@pytest.mark.parametrize("reason", REASONS, ids=labels_of(sum(REASONS)))
def test_each_reason_alone_keeps_a_connection_unread(brokers: Brokers, reason: int) -> None:
    """The connection would be served although one part of the broker is not ready for its next packet."""
    broker = brokers()
    client = broker.connect("client")
    reactor = broker.reactor
    (stream,) = reactor.streams()
    for each in REASONS:
        reactor.pause(stream, each)
    client.send(PingReq())

    for other in REASONS:
        if other != reason:
            reactor.resume(stream, other)
            assert [] == client.receive()
    assert reason == stream.paused
    assert stream.unread and stream.left == 0
    reactor.resume(stream, reason)
    assert [PingResp()] == client.receive()


@pytest.mark.parametrize("reason", REASONS, ids=labels_of(sum(REASONS)))
def test_lifting_a_reason_that_is_not_there_resumes_nothing(brokers: Brokers, reason: int) -> None:
    """A part of the broker that is done would resume what waits for another part."""
    broker = brokers()
    client = broker.connect("client")
    reactor = broker.reactor
    (stream,) = reactor.streams()
    reactor.pause(stream, reason)
    reactor.pause(stream, reason)
    client.send(PingReq())
    for other in REASONS:
        if other != reason:
            reactor.resume(stream, other)

    assert [] == client.receive()
    reactor.resume(stream, reason)
    assert [PingResp()] == client.receive()


def test_reading_ahead_waits_for_reasons_that_do_not_allow_it(brokers: Brokers) -> None:
    """Packets would be read ahead of a publish that is still being delivered."""
    broker = brokers()
    client = broker.connect("client")
    reactor = broker.reactor
    (stream,) = reactor.streams()
    reactor.pause_reading_ahead(stream, Pause.OVERLOAD)
    reactor.pause(stream, Pause.FANOUT)
    client.send(PingReq())
    broker.settle()
    assert stream.left == 0

    reactor.resume(stream, Pause.FANOUT)
    broker.settle()
    assert Pause.OVERLOAD == stream.paused
    assert not stream.unread  # what it had sent was read, and what must not wait was answered


def test_a_paused_unauthenticated_stream_is_dropped_when_its_peer_closes(brokers: Brokers) -> None:
    """Connections whose clients are gone would wait in line, and each take the turn of a client that is still there."""
    broker = brokers()
    client = broker.open()
    broker.settle()
    reactor = broker.reactor
    (stream,) = reactor.streams()
    reactor.pause_unauthenticated(stream, Pause.CONNECT)
    client.socket.shutdown(socket.SHUT_WR)
    broker.settle()

    assert CLOSED == stream.state


def test_closing_ends_all_pauses(brokers: Brokers) -> None:
    """A peer that only sends would never read why its connection was closed."""
    broker = brokers()
    client = broker.connect("client")
    reactor = broker.reactor
    (stream,) = reactor.streams()
    for reason in REASONS:
        reactor.pause(stream, reason)
    client.send(PingReq())
    reactor.close(stream, broker.clock.now)
    broker.settle()

    assert 0 == stream.paused
    assert not stream.unread
    assert client.closed
