# A lane between a worker and the carrier, on the reactors of two brokers in the test process.
import socket
from collections.abc import Callable, Iterator

import pytest

from broker.net.log_lane import StreamLane
from broker.store.logs import frames
from broker.store.logs.frames import HEAD, LaneError
from broker.store.logs.lane import Lane
from tests.inprocess import Broker

Brokers = Callable[..., Broker]


class User:
    """A `LaneUser` that keeps what comes: the kinds and bodies of frames."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self.ended: list[str] = []
        self.room = 1_000_000  # frames, before the lane is paused
        self.closes = False

    def take(self, lane: Lane, kind: int, data: bytes, start: int, stop: int, now: float) -> bool:
        if not self.room:
            lane.pause()
            return False
        self.room -= 1
        self.frames.append((kind, data[start:stop]))
        if self.closes:
            lane.close()
        return True

    def lost(self, lane: Lane, why: str, now: float) -> None:
        self.ended.append(why)


class Ends:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.user = User()
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        theirs.setblocking(False)
        self.lane = StreamLane(broker.reactor, theirs, "test", self.user)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)
        self.broker.settle()


@pytest.fixture
def ends(brokers: Brokers) -> Iterator[Ends]:
    one = Ends(brokers())
    yield one
    one.socket.close()


def test_frames_come_however_they_are_cut(ends: Ends) -> None:
    """A frame would be lost, or two be taken for one, wherever the kernel cuts the stream."""
    sent = [frames.frame(kind, bytes([kind]) * size) for kind, size in ((1, 0), (2, 3), (3, 300), (4, 1))]
    data = b"".join(sent)
    for at in range(len(data)):
        ends.send(data[:at])
        ends.send(data[at:])

    assert [(frame[HEAD - 1], frame[HEAD:]) for frame in sent] * len(data) == ends.user.frames


def test_a_frame_may_be_larger_than_a_socket(ends: Ends) -> None:
    """A pack with a large message would never come."""
    body = bytes(range(256)) * 20_000
    frame = frames.frame(7, body)
    for at in range(0, len(frame), 60_000):
        ends.send(frame[at : at + 60_000])
    ends.lane.write(frame)
    received = b""
    while len(received) < len(frame):
        ends.broker.settle()
        received += ends.socket.recv(1 << 20)

    assert [(7, body)] == ends.user.frames
    assert (frame, 0) == (received, ends.lane.unsent())


def test_a_frame_that_was_not_taken_comes_again(ends: Ends) -> None:
    """A pack would be lost that the log had no room for, or the rest come before it."""
    ends.user.room = 1
    ends.send(frames.frame(1, b"a") + frames.frame(2, b"b") + frames.frame(3, b"c"))
    ends.send(frames.frame(4, b"d"))
    assert [(1, b"a")] == ends.user.frames
    ends.user.room = 100
    ends.lane.resume()
    ends.broker.settle()

    assert [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")] == ends.user.frames


def test_the_end_is_told_behind_what_came_before_it(ends: Ends) -> None:
    """What a process sent before its end would be lost, or its end not be seen."""
    ends.socket.sendall(frames.frame(1, b"a"))
    ends.socket.close()
    ends.broker.settle()

    assert ([(1, b"a")], ["peer_closed"]) == (ends.user.frames, ends.user.ended)
    ends.lane.write(b"to nobody")
    ends.broker.settle()


def test_a_lane_that_is_closed_takes_nothing_more(ends: Ends) -> None:
    """Frames would be handled that are for a state which has ended."""
    ends.user.closes = True
    ends.send(frames.frame(1, b"a") + frames.frame(2, b"b"))

    assert ([(1, b"a")], []) == (ends.user.frames, ends.user.ended)


@pytest.mark.parametrize("data", [b"\0\0\0\0\1", b"\xff\xff\xff\xff\1"])
def test_what_is_no_frame_ends_the_process(ends: Ends, data: bytes) -> None:
    """A process would wait for a frame that never ends."""
    ends.socket.sendall(data)
    with pytest.raises(LaneError):
        ends.broker.settle()
