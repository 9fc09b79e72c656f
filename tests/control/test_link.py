# The worker's end of the link, in a broker whose time stands still.
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.control.link import Frame, Link
from broker.control.link_frames import FrameReader, frame
from tests.inprocess import Broker

Brokers = Callable[..., Broker]


class Supervisor:
    """The other end."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        theirs.setblocking(False)
        self.taken: list[Frame] = []  # by the worker
        self.ended: list[str] = []
        self.link = Link(broker.reactor, theirs, self.taken.append, self.ended.append)
        self._reader = FrameReader()

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)
        self.broker.settle()

    def hear(self) -> list[dict[str, Any]]:
        self.broker.settle()
        found: list[dict[str, Any]] = []
        while True:
            try:
                found += self._reader.feed(self.socket.recv(1 << 20))
                self.broker.settle()
            except BlockingIOError:
                return found


@pytest.fixture
def supervisor(brokers: Brokers) -> Iterator[Supervisor]:
    one = Supervisor(brokers())
    yield one
    one.socket.close()


def test_what_comes_behind_a_descriptor_is_read_with_it(supervisor: Supervisor) -> None:
    """A recv() ends behind a descriptor, with more to read, of which the kernel does not tell again."""
    ours = supervisor.socket.fileno()
    socket.send_fds(supervisor.socket, [frame("peer", {"id": 1})], [ours])
    socket.send_fds(supervisor.socket, [frame("peer", {"id": 2})], [ours, ours])
    supervisor.say(frame("drain", {}))

    assert [{"kind": "peer", "id": 1}, {"kind": "peer", "id": 2}, {"kind": "drain"}] == supervisor.taken
    descriptors = supervisor.link.take_descriptors(3)
    assert 3 == len({*descriptors})
    for descriptor in descriptors:
        os.close(descriptor)


def test_frames_go_both_ways_beside_clients(supervisor: Supervisor) -> None:
    """A worker could be told nothing, or tell nothing."""
    client = supervisor.broker.connect("somebody")

    supervisor.say(frame("request", {"id": 1}) + frame("drain", {}))
    supervisor.link.send("answer", {"id": 1, "result": [b"x", 1.5]})

    assert [{"kind": "request", "id": 1}, {"kind": "drain"}] == supervisor.taken
    assert [{"kind": "answer", "id": 1, "result": [b"x", 1.5]}] == supervisor.hear()
    assert not supervisor.link.owes()
    assert not client.closed


def test_a_frame_may_come_in_pieces_and_be_large(supervisor: Supervisor) -> None:
    """What is larger than a socket's buffer would be cut, or end the worker."""
    data = frame("assignment", {"config": "c" * 300_000})
    for position in range(0, len(data), 50_000):
        supervisor.say(data[position : position + 50_000])
    supervisor.link.send("answer", {"result": "r" * 3_000_000})

    assert [300_000] == [len(found["config"]) for found in supervisor.taken]
    assert [3_000_000] == [len(found["result"]) for found in supervisor.hear()]


def test_the_end_of_the_link_is_told(supervisor: Supervisor) -> None:
    """A worker would serve on without anybody who watches it."""
    supervisor.socket.close()
    supervisor.broker.settle()

    assert ["peer_closed"] == supervisor.ended


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", frame("x", {})[:4] + b"\xc1" * 8])
def test_what_is_no_frame_ends_it(supervisor: Supervisor, data: bytes) -> None:
    """A worker would take noise for an order, or wait for its end."""
    supervisor.say(data)

    assert 1 == len(supervisor.ended)
    assert "a frame" in supervisor.ended[0]
    assert [] == supervisor.taken


def test_the_supervisor_is_no_client(supervisor: Supervisor) -> None:
    """A drain would send it a DISCONNECT, or wait for it to leave."""

    supervisor.broker.lifecycle.stop(supervisor.broker.clock.now)

    assert [] == supervisor.broker.streams()
    assert [] == supervisor.hear()
    assert [] == supervisor.ended
