# The frames of WebSocket, with wsproto as the judge of what they mean.
from typing import Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.frame_protocol import FrameProtocol, Opcode, ParseFailed

from broker.net.transports.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    FRAMES_AT_ONCE,
    LARGE,
    NORMAL,
    NOT_BINARY,
    NOT_UTF_8,
    PING,
    PONG,
    PROTOCOL_ERROR,
    TEXT,
    TOO_LARGE,
    Frames,
    close_frame,
    frame,
)
from broker.reasons import CloseReason

KEY: Final = b"\x12\x34\x56\x78"
UNLIMITED: Final = 1 << 60
REGISTERED_SINCE: Final = 1014  # a close code that wsproto does not know


def said(
    opcode: int, payload: bytes = b"", *, last: bool = True, reserved: int = 0, masked: bool = True, width: int = 0
) -> bytes:
    """A client's frame; *width*: the least bytes for its length, where 2 or 8 are more than it needs."""
    size = len(payload)
    width = max(width, 0 if size < 126 else 2 if size < 1 << 16 else 8)
    short = {0: size, 2: 126, 8: 127}[width]
    head = bytes((last << 7 | reserved | opcode, masked << 7 | short)) + (size.to_bytes(width, "big") if width else b"")
    if not masked:
        return head + payload
    return head + KEY + bytes(byte ^ KEY[at & 3] for at, byte in enumerate(payload))


class Heard(NamedTuple):
    payload: bytes
    answers: bytes
    goodbye: bytes
    code: int


def hear(frames: Frames, *pieces: bytes) -> Heard:
    """The joined results of feeding *pieces* to *frames*."""
    payload = answers = b""
    for piece in pieces:
        payload += frames.feed(piece)
        answers += frames.answers
        while frames.more and not frames.over:
            payload += frames.feed(b"")
            answers += frames.answers
        if frames.over:
            break
    return Heard(payload, answers, frames.close_reply, frames.code)


def judged(data: bytes) -> Heard:
    """The result by wsproto, except that MQTT refuses text [MQTT-6.0.0-1]."""
    judge = FrameProtocol(client=False, extensions=[])
    judge.receive_bytes(data)
    payload = answers = goodbye = b""
    code = NORMAL
    try:
        for found in judge.received_frames():
            if found.opcode is Opcode.TEXT:
                code = NOT_BINARY
                break
            if found.opcode is Opcode.CLOSE:
                assert isinstance(found.payload, tuple)
                goodbye = bytes(FrameProtocol(client=False, extensions=[]).close(*found.payload))
                break
            assert isinstance(found.payload, bytes)
            if found.opcode is Opcode.BINARY:
                payload += found.payload
            elif found.opcode is Opcode.PING:
                answers += bytes(judge.pong(found.payload))
    except ParseFailed as failure:
        code = int(failure.code)
    return Heard(payload, answers, goodbye, code)


sizes = st.sampled_from([0, 1, 3, 4, 5, 30, 125, 126, LARGE - 1, LARGE, LARGE + 1, 1000, 65535, 65536])
payloads = sizes.flatmap(lambda size: st.just(bytes(n * 7 & 0xFF for n in range(size))))
close_codes = st.integers(0, 65535).filter(lambda code: code != REGISTERED_SINCE) | st.integers(999, 1013)
farewells = st.builds(lambda code, words: code.to_bytes(2, "big") + words, close_codes, st.binary(max_size=5))
fragments = [
    st.builds(said, st.just(opcode), payloads, last=st.just(last))
    for opcode, last in ((BINARY, False), (CONTINUATION, True))
]
pings = st.builds(said, st.sampled_from([PING, PONG]), st.binary(max_size=125))
good = st.one_of(
    st.builds(said, st.just(BINARY), payloads), pings, st.tuples(fragments[0], pings, fragments[1]).map(b"".join)
)
doubtful = st.one_of(
    st.builds(said, st.sampled_from([CONTINUATION, BINARY]), payloads, last=st.booleans()),
    st.builds(said, st.just(BINARY), payloads, width=st.sampled_from([2, 8])),
    st.builds(said, st.just(TEXT), st.just(b"text"), last=st.booleans()),
    st.builds(said, st.just(CLOSE), farewells | st.binary(max_size=125)),
    st.builds(
        said,
        st.integers(2, 15),
        st.binary(max_size=200),
        last=st.booleans(),
        reserved=st.sampled_from([0, 0, 0x10, 0x20, 0x40]),
        masked=st.booleans(),
    ).filter(lambda data: data[0] != 0x80 | TEXT),
)
conversations = st.lists(good | doubtful, max_size=8).map(b"".join)


@given(conversations, st.lists(st.integers(1, 300), max_size=60))
def test_frames_mean_what_wsproto_says(data: bytes, cuts: list[int]) -> None:
    """A client would be misread, or thrown out for what another server takes (RFC 6455, 5)."""
    pieces = []
    at = 0
    for cut in cuts:
        pieces.append(data[at : at + cut])
        at += cut

    assert judged(data) == hear(Frames(UNLIMITED, b""), *pieces, data[at:])


@given(conversations)
def test_bytes_that_came_with_the_request_are_parsed(data: bytes) -> None:
    """A client that does not wait for the answer to its request would lose its first packets."""
    frames = Frames(UNLIMITED, data)

    assert (len(data) > 0) == frames.more
    assert judged(data) == hear(frames, b"")


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 100_000])
def test_a_client_can_parse_the_frames(size: int) -> None:
    """No client could read what the broker sends."""
    client = FrameProtocol(client=True, extensions=[])
    client.receive_bytes(frame(BINARY, bytes(size)) + close_frame(NORMAL))
    message, goodbye = client.received_frames()

    assert (Opcode.BINARY, bytes(size), True) == (message.opcode, message.payload, message.message_finished)
    assert (Opcode.CLOSE, (NORMAL, "")) == (goodbye.opcode, goodbye.payload)


@pytest.mark.parametrize(
    "broken, code",
    [
        (said(BINARY, b"x", masked=False), PROTOCOL_ERROR),
        (said(BINARY, b"x", reserved=0x10), PROTOCOL_ERROR),
        (said(BINARY, b"x", reserved=0x40), PROTOCOL_ERROR),
        (said(3, b"x"), PROTOCOL_ERROR),
        (said(11, b"x"), PROTOCOL_ERROR),
        (said(CONTINUATION, b"x"), PROTOCOL_ERROR),
        (said(BINARY, b"", last=False) + said(BINARY, b"x"), PROTOCOL_ERROR),
        (said(BINARY, b"", last=False) + said(TEXT, b"x"), PROTOCOL_ERROR),
        (said(BINARY, b"x", width=2), PROTOCOL_ERROR),
        (said(BINARY, b"x" * 126, width=8), PROTOCOL_ERROR),
        (bytes((0x82, 0xFF, 0x80)) + bytes(7) + KEY, PROTOCOL_ERROR),
        (said(PING, last=False), PROTOCOL_ERROR),
        (said(PING, bytes(126)), PROTOCOL_ERROR),
        (said(CLOSE, b"\x03"), PROTOCOL_ERROR),
        (said(CLOSE, (999).to_bytes(2, "big")), PROTOCOL_ERROR),
        (said(CLOSE, (1005).to_bytes(2, "big")), PROTOCOL_ERROR),
        (said(CLOSE, (1015).to_bytes(2, "big")), PROTOCOL_ERROR),
        (said(CLOSE, (5000).to_bytes(2, "big")), PROTOCOL_ERROR),
        (said(CLOSE, (1000).to_bytes(2, "big") + b"\xff"), NOT_UTF_8),
    ],
)
def test_an_invalid_frame_is_refused_and_what_follows_is_ignored(broken: bytes, code: int) -> None:
    """A client whose frames are out of step would be read as if they were not (RFC 6455, 7.1.7)."""
    frames = Frames(UNLIMITED, b"")
    heard = hear(frames, said(BINARY, b"before") + broken + said(BINARY, b"behind") + said(PING))

    assert Heard(b"before", b"", b"", code) == heard
    assert frames.failure is not None and CloseReason.WEBSOCKET_ERROR == frames.failure[0]


def test_text_is_refused_at_its_header() -> None:
    """Bytes that a proxy or a browser may change on the way would be taken for MQTT [MQTT-6.0.0-1]."""
    frames = Frames(UNLIMITED, b"")

    assert NOT_BINARY == hear(frames, said(TEXT, b"\xff" * 100)[:2]).code
    assert frames.failure is not None and CloseReason.WEBSOCKET_TEXT == frames.failure[0]


@pytest.mark.parametrize("payload", [b"", (1000).to_bytes(2, "big"), (REGISTERED_SINCE).to_bytes(2, "big") + b"words"])
def test_a_close_frame_is_answered_with_its_own(payload: bytes) -> None:
    """The client would wait for its answer, or think that something went wrong (RFC 6455, 5.5.1)."""
    heard = hear(Frames(UNLIMITED, b""), said(BINARY, b"before") + said(CLOSE, payload) + said(BINARY, b"behind"))

    assert Heard(b"before", b"", frame(CLOSE, payload), NORMAL) == heard


def test_an_announced_size_costs_nothing() -> None:
    """Fourteen bytes of one client could take all memory."""
    frames = Frames(UNLIMITED, b"")

    assert b"x" * 1000 == frames.feed(b"\x82\xff" + (1 << 40).to_bytes(8, "big") + bytes(4) + b"x" * 1000)
    assert 0 == frames.waiting


def test_messages_up_to_the_limit_pass() -> None:
    """The limit would be another than the one that is configured, or count the messages before."""
    frames = Frames(100, b"")
    halves = said(BINARY, bytes(50), last=False) + said(CONTINUATION, bytes(50))
    data = said(BINARY, bytes(100)) + halves + said(BINARY, bytes(100))

    assert Heard(bytes(300), b"", b"", NORMAL) == hear(frames, *(bytes((byte,)) for byte in data))


@pytest.mark.parametrize(
    "message, passed",
    [
        (said(BINARY, bytes(101)), 0),
        (said(BINARY, bytes(60), last=False) + said(CONTINUATION, bytes(41)), 60),
        (said(BINARY, bytes(60), last=False) + said(PING) + said(CONTINUATION, bytes(41), last=False), 60),
    ],
)
def test_a_message_beyond_the_limit_is_refused_at_its_header(message: bytes, passed: int) -> None:
    """A message without an end would be served for ever."""
    heard = hear(Frames(100, b""), message[:-41])

    assert (bytes(passed), TOO_LARGE) == (heard.payload, heard.code)


@pytest.mark.parametrize("kind", [BINARY, PING, PONG])
def test_one_call_parses_a_limited_number_of_frames(kind: int) -> None:
    """Frames without a byte in them would hold the loop: thousands fit into one read."""
    frames = Frames(UNLIMITED, b"")
    assert b"" == frames.feed(said(kind) * 1000 + said(BINARY, b"at last"))
    looks = 1
    assert FRAMES_AT_ONCE == frames.count and frames.more and 0 < frames.waiting

    while not (payload := frames.feed(b"")):
        assert FRAMES_AT_ONCE == frames.count
        looks += 1

    assert (b"at last", 1000 // FRAMES_AT_ONCE, False, 0) == (payload, looks, frames.more, frames.waiting)


@pytest.mark.parametrize("size", [1, LARGE - 1, LARGE, 5000])
@pytest.mark.parametrize("cut", [1, 2, 3, 4, 255, 256, 257])
def test_a_mask_continues_where_the_last_piece_ended(size: int, cut: int) -> None:
    """Payload that comes in more than one read would be garbled."""
    payload = bytes(n & 0xFF for n in range(size))
    data = said(BINARY, payload)

    assert payload == hear(Frames(UNLIMITED, b""), *(data[at : at + cut] for at in range(0, len(data), cut))).payload
