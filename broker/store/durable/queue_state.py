# What the worker that takes over a durable session from a living one cannot read in Redis: how far its client is.
#
# The worker that has the session stores all of its queue, and then writes nothing any more. The next one keeps what is
# delivered meanwhile apart: its place is behind what is stored. After a crash nobody knows how far the client is. Then
# all that is stored counts as sent, and comes again.
import msgpack


class QueueState:
    """*sent_to*: the position of the last message that was sent; *count* and *waiting_bytes*: messages that wait.

    *done*: positions of messages in the list that are done; *completed*: those of QoS 2 with PUBCOMP, of which there is
    a mark still. Both in order.
    """

    def __init__(self, sent_to: int, count: int, waiting_bytes: int, done: list[int], completed: list[int]) -> None:
        self.sent_to = sent_to
        self.count = count
        self.waiting_bytes = waiting_bytes
        self.done = done
        self.completed = completed

    def encode(self) -> bytes:
        packed = msgpack.packb((self.sent_to, self.count, self.waiting_bytes, self.done, self.completed))
        assert isinstance(packed, bytes)
        return packed


def decode_state(data: bytes) -> QueueState:
    """The state in *data*, from another worker of the node."""
    sent_to, count, waiting_bytes, done, completed = msgpack.unpackb(data)
    return QueueState(sent_to, count, waiting_bytes, done, completed)
