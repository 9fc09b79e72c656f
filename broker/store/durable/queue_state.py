# What the worker that takes over a durable session from a living one cannot read in Redis: how far its client is.
#
# The worker that has the session stores all of its queue, and then writes nothing any more. The next one keeps what is
# delivered meanwhile apart: its place is behind what is stored. After a crash nobody knows how far the client is. Then
# all that is stored counts as sent, and comes again.
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

    def encode(self) -> bytes:
        fields = self.sent_to, self.count, self.waiting_bytes, self.exact, self.done, self.completed
        packed = msgpack.packb(fields)
        assert isinstance(packed, bytes)
        return packed


def decode_state(data: bytes) -> QueueState:
    """The state in *data*, from another worker of the node."""
    sent_to, count, waiting_bytes, exact, done, completed = msgpack.unpackb(data)
    return QueueState(sent_to, count, waiting_bytes, exact, done, completed)
