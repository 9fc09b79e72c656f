from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.control.frame_codec import LARGEST, LENGTH, Frame, FrameDecoder, FrameError, FrameReader, encode
from broker.control.frames import (
    SUPERVISOR_FRAMES,
    WORKER_FRAMES,
    Answer,
    Assignment,
    CannotStart,
    ChangeLimits,
    DeadNode,
    Drain,
    DrainNode,
    Ended,
    FromSupervisor,
    ListenerSocket,
    LoopStarted,
    NewPeer,
    NodeClock,
    NodePlace,
    OtherNodes,
    OtherWorkers,
    PeerSockets,
    PublishWills,
    Ready,
    RedisMoved,
    Reload,
    Reloaded,
    ReopenLog,
    Request,
    StatisticsReport,
    WillSettled,
)
from broker.store.redis.address import RedisAddress
from broker.worker_id import WorkerId

VALUES = st.none() | st.booleans() | st.integers(0, (1 << 64) - 1) | st.floats(allow_nan=False) | st.text()
REPORTS = st.dictionaries(st.text(max_size=8), VALUES, max_size=5)
FRAMES: st.SearchStrategy[FromSupervisor] = (
    st.builds(OtherWorkers, REPORTS)
    | st.builds(Drain, st.booleans())
    | st.builds(Request, st.just(1), st.text(), REPORTS)
)
PLACE = NodePlace("other", "other.example.com:1883", True)
ASSIGNMENT = Assignment(
    worker=WorkerId("node", 1, (1 << 63) - 1),
    memory=1 << 30,
    workers=2,
    folder="/folder",
    config={"log.level": "info", "overload.refill": [1, 2]},
    descriptor_limit=1000,
    heartbeat=3,
    log=4,
    log_path="",
    listeners=[ListenerSocket("tcp", 5), ListenerSocket("ws", 6)],
    peers=[PeerSockets(WorkerId("node", 0, 7), 8, 9)],
    redis=RedisAddress(path="/redis.sock", era="00ff00ff"),
    alone=True,
    cluster_key="00ff",
    overrides=[{"user": "u", "queue": 5}],
    limits=[{"client": "c", "until": 1.5}],
    bans=[{"kind": "client", "value": "c", "until": 1.5}],
    nodes=OtherNodes(
        [WorkerId("other", 0, 7)],
        ["other"],
        1,
        [DeadNode("dead", [WorkerId("dead", 0, 8)], 2)],
        [PLACE],
        [NodeClock("other", -250)],
    ),
    drain=DrainNode(True, False),
)


def body(frame: Frame) -> bytes:
    return encode(frame)[LENGTH:]


@given(st.lists(FRAMES, max_size=5), st.lists(st.integers(1, 40)))
def test_frames_arrive_in_pieces_of_any_size(sent: list[FromSupervisor], cuts: list[int]) -> None:
    """A supervisor and a worker would misunderstand each other when a socket buffer is full."""
    data = b"".join(map(encode, sent))
    reader: FrameReader[FromSupervisor] = FrameReader(SUPERVISOR_FRAMES)
    found: list[FromSupervisor] = []
    for cut in [*cuts, len(data)]:
        found += reader.feed(data[:cut])
        data = data[cut:]

    assert sent == found


@pytest.mark.parametrize(
    ("decoder", "frame"),
    [
        (SUPERVISOR_FRAMES, NewPeer(WorkerId("node", 1, (1 << 63) - 1))),
        (SUPERVISOR_FRAMES, Drain(hand_over=True)),
        (SUPERVISOR_FRAMES, ASSIGNMENT.nodes),
        (SUPERVISOR_FRAMES, Reload([{"client": "c", "queue": 5}])),
        (SUPERVISOR_FRAMES, ReopenLog()),
        (SUPERVISOR_FRAMES, OtherWorkers({"counters": {"a": 1}})),
        (SUPERVISOR_FRAMES, PublishWills(7, [("a", 1), ("b", 2)])),
        (SUPERVISOR_FRAMES, ChangeLimits([{"client": "c"}], ["d"])),
        (SUPERVISOR_FRAMES, Request(1, "clients", {"position": 0})),
        (WORKER_FRAMES, LoopStarted()),
        (WORKER_FRAMES, Ready(100)),
        (WORKER_FRAMES, StatisticsReport({"gauges": {"p99_ms": 1.5}})),
        (WORKER_FRAMES, Answer(1, None, "A sentence.")),
        (WORKER_FRAMES, Reloaded("")),
        (WORKER_FRAMES, WillSettled("c", 7)),
        (WORKER_FRAMES, Ended(3)),
        (WORKER_FRAMES, CannotStart("A sentence.")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_frame_arrives_as_it_was_sent(decoder: FrameDecoder[Any], frame: Frame) -> None:
    """A field would be lost, or have another type at the other end."""
    assert frame == decoder.decode(body(frame))


def test_an_assignment_arrives_as_it_was_sent() -> None:
    """A worker would listen on another socket, or connect to another Redis."""
    found = SUPERVISOR_FRAMES.decode(body(ASSIGNMENT))

    assert isinstance(found, Assignment)
    assert ASSIGNMENT.redis.parts() == found.redis.parts()
    assert ASSIGNMENT == replace(found, redis=ASSIGNMENT.redis)


def test_an_address_arrives_as_it_was_sent() -> None:
    """Workers would connect to another Redis than the supervisor has found."""
    address = RedisAddress(host="127.0.0.1", port=7, user="u", password="p", db=2)
    found = SUPERVISOR_FRAMES.decode(body(RedisMoved(address)))

    assert isinstance(found, RedisMoved)
    assert address.parts() == found.address.parts()


@pytest.mark.parametrize(
    "change",
    [
        {"workers": "1"},
        {"workers": True},
        {"workers": 1.0},
        {"worker": ["node", "1", 2]},
        {"worker": ["node", 1]},
        {"alone": 1},
        {"folder": b"/folder"},
        {"folder": None},
        {"config": {b"key": 2}},
        {"config": []},
        {"listeners": {}},
        {"listeners": [["tcp"]]},
        {"listeners": [["tcp", "5"]]},
        {"listeners": [["tcp", 5, 6]]},
        {"listeners": ["tcp"]},
        {"redis": ["udp", "a", 1]},
        {"limits": ["c"]},
    ],
)
def test_a_field_of_another_type_is_refused(change: dict[str, object]) -> None:
    """A bug at one end would be a crash later at the other, far from its cause."""
    values = msgpack.unpackb(body(ASSIGNMENT))

    with pytest.raises(FrameError, match="a frame Assignment with a field of the wrong type: "):
        SUPERVISOR_FRAMES.decode(msgpack.packb({**values, **change}))


@pytest.mark.parametrize(
    "change", [lambda values: values.pop("hand_over"), lambda values: values.update(when="now")], ids=["less", "more"]
)
def test_a_frame_has_exactly_its_fields(change: Callable[[dict[str, object]], object]) -> None:
    """A field that one end does not know would be ignored, or a missing one be a crash."""
    values = msgpack.unpackb(body(Drain(hand_over=True)))
    change(values)

    with pytest.raises(FrameError, match="a frame Drain whose fields are not hand_over"):
        SUPERVISOR_FRAMES.decode(msgpack.packb(values))


@given(st.binary(max_size=60))
def test_random_bytes_are_refused(data: bytes) -> None:
    """Random bytes would raise another exception than the one that the reader of a link expects."""
    with pytest.raises(FrameError, match="a frame"):
        WORKER_FRAMES.decode(data)


def test_a_frame_of_the_other_direction_is_refused() -> None:
    """A worker would obey itself."""
    with pytest.raises(FrameError, match="unknown kind 'Reload'"):
        WORKER_FRAMES.decode(body(Reload([{"client": "c", "queue": 5}])))


def test_a_length_above_the_limit_is_refused_at_once() -> None:
    """Four wrong bytes would make the reader wait for gigabytes."""
    reader: FrameReader[FromSupervisor] = FrameReader(SUPERVISOR_FRAMES)

    with pytest.raises(FrameError, match=str(LARGEST + 1)):
        reader.feed((LARGEST + 1).to_bytes(4, "big"))
    with pytest.raises(FrameError, match="a frame Answer of"):
        encode(Answer(1, bytes(LARGEST), ""))


def test_a_field_has_a_type_that_can_be_checked() -> None:
    """A declared type would be ignored, and anything accepted for it."""

    @dataclass(frozen=True)
    class Wrong(Frame):
        value: set[int]

    with pytest.raises(TypeError, match="a field of a frame cannot be of the type set"):
        FrameDecoder([Wrong])
