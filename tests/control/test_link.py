# The worker's end of the link, in a broker whose clock is set by the test.
import os
import socket
from collections.abc import Callable, Iterator
from threading import Thread

import pytest

from broker.control.frame_codec import FrameReader, encode
from broker.control.frames import (
    SUPERVISOR_FRAMES,
    WORKER_FRAMES,
    Answer,
    Drain,
    Ended,
    FromSupervisor,
    FromWorker,
    NewPeer,
    OtherWorkers,
    Request,
    StatisticsReport,
)
from broker.control.link import Link
from broker.worker_id import WorkerId
from tests.inprocess import Broker

Brokers = Callable[..., Broker]


class Supervisor:
    """The other end."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.socket, self.theirs = socket.socketpair()
        self.socket.setblocking(False)
        self.theirs.setblocking(False)
        self.taken: list[FromSupervisor] = []  # by the worker
        self.ended: list[str] = []
        self.link = Link(broker.reactor, self.theirs, SUPERVISOR_FRAMES, self.taken.append, self.ended.append)
        self._reader: FrameReader[FromWorker] = FrameReader(WORKER_FRAMES)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)
        self.broker.settle()

    def receive(self) -> list[FromWorker]:
        self.broker.settle()
        found: list[FromWorker] = []
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


def test_frames_behind_a_descriptor_are_read_with_it(supervisor: Supervisor) -> None:
    """A recvmsg() ends behind a descriptor although more can be read, and the kernel does not report that again."""
    ours = supervisor.socket.fileno()
    socket.send_fds(supervisor.socket, [encode(NewPeer(WorkerId("n", 1, 10)))], [ours])
    socket.send_fds(supervisor.socket, [encode(NewPeer(WorkerId("n", 2, 20)))], [ours, ours])
    supervisor.send(encode(Drain(hand_over=False)))

    assert [NewPeer(WorkerId("n", 1, 10)), NewPeer(WorkerId("n", 2, 20)), Drain(hand_over=False)] == supervisor.taken
    descriptors = supervisor.link.take_descriptors(3)
    assert 3 == len({*descriptors})
    for descriptor in descriptors:
        os.close(descriptor)


def test_frames_go_both_ways_beside_clients(supervisor: Supervisor) -> None:
    """The supervisor could send a worker nothing, or receive nothing."""
    client = supervisor.broker.connect("somebody")
    request, answer = Request(1, "why", {"client": "c"}), Answer(1, [b"x", 1.5], "")

    supervisor.send(encode(request) + encode(Drain(hand_over=True)))
    supervisor.link.send(answer)

    assert [request, Drain(hand_over=True)] == supervisor.taken
    assert [answer] == supervisor.receive()
    assert not supervisor.link.owes()
    assert not client.closed


def test_a_frame_may_come_in_pieces_and_be_large(supervisor: Supervisor) -> None:
    """A frame that is larger than a socket's buffer would be cut, or end the worker."""
    report, answer = OtherWorkers({"c": "c" * 300_000}), Answer(1, "r" * 3_000_000, "")
    data = encode(report)
    for position in range(0, len(data), 50_000):
        supervisor.send(data[position : position + 50_000])
    supervisor.link.send(answer)

    assert [report] == supervisor.taken
    assert [answer] == supervisor.receive()


def test_the_last_frame_comes_behind_what_was_not_sent_yet(supervisor: Supervisor) -> None:
    """A report of the same moment would keep from the supervisor why a carrier cannot start, or what a worker lost."""
    report = StatisticsReport({"c": 1})
    supervisor.link.send(report)

    supervisor.link.send_last(Ended(3), timeout=1.0)

    assert [report, Ended(3)] == FrameReader(WORKER_FRAMES).feed(supervisor.socket.recv(1 << 20))


def test_the_last_frame_comes_behind_the_rest_of_one_that_was_begun(supervisor: Supervisor) -> None:
    """The supervisor would take the last frame for a part of the one before it."""
    answer = Answer(1, "r" * 3_000_000, "")
    supervisor.link.send(answer)
    supervisor.broker.settle()
    reader: FrameReader[FromWorker] = FrameReader(WORKER_FRAMES)
    found: list[FromWorker] = []

    def read() -> None:
        while data := supervisor.socket.recv(1 << 20):
            found.extend(reader.feed(data))

    supervisor.socket.setblocking(True)
    reading = Thread(target=read)
    reading.start()
    supervisor.link.send_last(Ended(3), timeout=10.0)
    supervisor.theirs.close()
    reading.join()

    assert [answer, Ended(3)] == found


def test_a_supervisor_that_does_not_read_holds_up_no_end(supervisor: Supervisor) -> None:
    """A worker would end when its supervisor goes on, or be killed."""
    supervisor.link.send(Answer(1, "r" * 3_000_000, ""))

    supervisor.link.send_last(Ended(3), timeout=0.01)

    assert supervisor.socket.recv(1 << 20)


def test_the_end_of_the_link_is_told(supervisor: Supervisor) -> None:
    """A worker would serve on without anybody who watches it."""
    supervisor.socket.close()
    supervisor.broker.settle()

    assert ["peer_closed"] == supervisor.ended


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\0\0\0\x08" + b"\xc1" * 8, encode(Answer(1, 2, ""))])
def test_a_wrong_frame_ends_the_link(supervisor: Supervisor, data: bytes) -> None:
    """A worker would obey random bytes, or wait for a frame that never ends."""
    supervisor.send(data)

    assert 1 == len(supervisor.ended)
    assert "a frame" in supervisor.ended[0]
    assert [] == supervisor.taken


def test_the_supervisor_is_no_client(supervisor: Supervisor) -> None:
    """A drain would send it a DISCONNECT, or wait for it to leave."""

    supervisor.broker.lifecycle.stop(supervisor.broker.clock.now)

    assert [] == supervisor.broker.streams()
    assert [] == supervisor.receive()
    assert [] == supervisor.ended
