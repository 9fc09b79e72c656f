# A stream puts packets together that arrive in pieces.
import socket
import tracemalloc
from collections.abc import Iterator

import pytest

from broker.delivery.outbox import OutboundBudget, Outbox
from broker.delivery.ring import Ring
from broker.net.stream import TINY_READ, Stream
from broker.reasons import CloseReason


class Pair:
    """A stream, and the socket of its peer."""

    def __init__(self) -> None:
        ours, self.peer = socket.socketpair()
        ours.setblocking(False)
        self.sock = ours
        self.stream = Stream(ours, "test:0", Outbox(ours.fileno(), 100, 50, OutboundBudget(1000), Ring()))

    def arrive(self, data: bytes, size: int = 65536) -> int:
        self.peer.send(data)
        return self.stream.receive(size)


class Worker:
    """Another one, at the other end."""

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        return 0

    def drained(self, stream: Stream, now: float) -> None:
        return None

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        return None


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.peer.close()
    pair.sock.close()


def test_received_bytes_are_in_the_input(pair: Pair) -> None:
    """A whole packet would wait for nothing, or be copied."""
    assert 5 == pair.arrive(b"whole")
    assert (b"whole", 0, 5) == (pair.stream.input, pair.stream.position, pair.stream.left)


def test_a_few_bytes_cost_a_few_bytes(pair: Pair) -> None:
    """64 KiB would be taken from the heap for each receive, and a few minutes of clients leave it full of holes."""
    pair.arrive(b"a lot" * TINY_READ)
    pair.stream.forget_input()
    tracemalloc.start()
    try:
        pair.arrive(b"few")  # read as what may be a lot
        pair.stream.forget_input()
        pair.arrive(b"few")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 4096


def test_reads_are_large_while_a_client_sends_much(pair: Pair) -> None:
    """Each 448 bytes of a client would cost a recv, or each ten a copy."""
    much = bytes(5 * TINY_READ)

    read = [pair.arrive(much), pair.stream.receive(65536), pair.arrive(b"few"), pair.arrive(much, 100)]
    pair.stream.forget_input()

    assert [TINY_READ, 4 * TINY_READ, 3, 100] == read
    assert 5 * TINY_READ - 100 == pair.stream.receive(65536) + pair.stream.receive(65536)


def test_reads_of_attached_streams_are_always_large(pair: Pair) -> None:
    """A worker would confirm a part of what it processed, and the rest ten milliseconds later."""
    pair.stream.handler = Worker()

    assert [3, 5 * TINY_READ] == [pair.arrive(b"few"), pair.arrive(bytes(5 * TINY_READ))]


def test_nothing_and_the_end_are_not_the_same(pair: Pair) -> None:
    """A stream that is merely silent would be taken for one that ended."""
    assert 0 == pair.stream.receive(10)
    assert not pair.stream.finished
    pair.peer.shutdown(socket.SHUT_WR)
    assert 0 == pair.stream.receive(10)
    assert pair.stream.finished


def test_a_reset_is_an_error(pair: Pair) -> None:
    """A reset would look like a polite end."""
    pair.stream.sock.send(b"unread by the peer")
    pair.peer.close()
    with pytest.raises(OSError, match="reset"):
        pair.stream.receive(10)


def test_a_packet_is_joined_once_it_is_complete(pair: Pair) -> None:
    """Each piece of a large packet would have all before it copied."""
    stream = pair.stream
    pair.arrive(b"taken123")
    stream.position = 5
    stream.left = 3
    stream.needs = 9
    pair.arrive(b"456")
    assert b"" == stream.input  # the pieces are kept apart
    assert 6 == stream.left
    pair.arrive(b"789next")

    assert b"123456789next" == stream.input[stream.position :]
    assert 13 == stream.left


def test_a_packet_that_comes_byte_by_byte_costs_about_its_bytes(pair: Pair) -> None:
    """A client that sends single bytes would cost fifty times as many bytes of memory."""
    pair.stream.needs = 10**6
    pair.arrive(b"x")
    pair.stream.left = 1
    tracemalloc.start()
    try:
        for _ in range(5000):
            pair.arrive(b"x")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert 5001 == pair.stream.left
    assert held < 4 * 5000


def test_forgotten_input_is_gone(pair: Pair) -> None:
    """A connection that is closing would keep input that is never served."""
    pair.stream.needs = 100
    pair.arrive(b"half")
    pair.arrive(b"more")
    pair.stream.forget_input()
    assert (b"", 0, 0) == (pair.stream.input, pair.stream.position, pair.stream.left)
    pair.stream.needs = 6
    pair.arrive(b"nex")
    pair.arrive(b"t12")

    assert b"next12" == pair.stream.input


def test_a_full_send_buffer_takes_no_bytes(pair: Pair) -> None:
    """A slow peer would be an error instead of a wait."""
    while pair.stream.transmit(bytes(65536)):
        pass
    pair.peer.recv(65536)

    assert pair.stream.transmit(b"x") == 1
