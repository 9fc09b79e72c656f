import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.control.link_frames import LARGEST, FrameError, FrameReader, frame, unpack

FACTS = st.dictionaries(
    st.text(max_size=8).filter(lambda key: key != "kind"),
    st.none() | st.booleans() | st.integers(0, (1 << 64) - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    max_size=5,
)


@given(st.lists(FACTS, max_size=5), st.lists(st.integers(1, 40)))
def test_frames_arrive_however_the_stream_is_cut(sent: list[dict[str, object]], cuts: list[int]) -> None:
    """A supervisor and a worker would misunderstand each other when a socket is full."""
    data = b"".join(frame("told", facts) for facts in sent)
    reader, found = FrameReader(), []
    for cut in [*cuts, len(data)]:
        found += reader.feed(data[:cut])
        data = data[cut:]

    assert [{"kind": "told", **facts} for facts in sent] == found


@given(st.binary(max_size=60))
def test_what_is_no_frame_is_refused_by_name(body: bytes) -> None:
    """A mistake at one end would be a crash at the other, or pass for an order."""
    try:
        found = unpack(body)
    except FrameError as error:
        assert "a frame" in str(error)
    else:
        assert isinstance(found["kind"], str)


def test_a_length_that_no_frame_has_is_refused_at_once() -> None:
    """Four wrong bytes would have the reader wait for gigabytes."""
    reader = FrameReader()

    with pytest.raises(FrameError, match=str(LARGEST + 1)):
        reader.feed((LARGEST + 1).to_bytes(4, "big"))
    with pytest.raises(FrameError, match="answer"):
        frame("answer", {"result": bytes(LARGEST)})
