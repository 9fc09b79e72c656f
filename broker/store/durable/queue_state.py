# What the worker that takes over a durable session from a living one cannot read in Redis: how far its client is. And
# what it would read there, as the reply that has given the session away had it: one look at Redis less, of four.
#
# The worker that has the session stores all of its queue, and then writes nothing any more. The next one keeps what is
# delivered meanwhile apart: its place is behind what is stored. After a crash nobody knows how far the client is. Then
# all that is stored counts as sent, and comes again. So it does if Redis is full, as what is not stored does not move.
from typing import Any

import msgpack


class QueueState:
    """*sent_to*: the position of the last message that was sent; *count* and *waiting_bytes*: messages that wait, or
    more if they are not *exact*.

    *done*: positions of messages in the list that are done; *completed*: those of QoS 2 with PUBCOMP, of which there is
    a mark still. Both in order.
    """

    def __init__(
        self, sent_to: int, count: int, waiting_bytes: int, exact: bool, done: list[int], completed: list[int]
    ) -> None:
        self.sent_to = sent_to
        self.count = count
        self.waiting_bytes = waiting_bytes
        self.exact = exact
        self.done = done
        self.completed = completed


def encode_state(state: QueueState | None, again: list[bytes], read: list[object] | None = None) -> bytes:
    """What goes to another worker of the node. None: not everything is stored, and the client gets all again.

    *again*: tokens of publishes that come again (tokens.py), as they are not stored. *read*: what is stored of the
    session, as sessions.lua reads it; None: the other worker has to read it.
    """
    fields = None
    if state is not None:
        fields = state.sent_to, state.count, state.waiting_bytes, state.exact, state.done, state.completed
    packed = msgpack.packb((fields, again, read))
    assert isinstance(packed, bytes)
    return packed


def decode_state(data: bytes) -> tuple[QueueState | None, list[bytes], list[Any] | None]:
    """What `encode_state()` was given. b"": nobody has told anything."""
    if not data:
        return None, [], None
    fields, again, read = msgpack.unpackb(data)
    return None if fields is None else QueueState(*fields), again, read
