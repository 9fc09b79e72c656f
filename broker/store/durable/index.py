# What the index of a worker says of each session: enough to know what an absent one waits for, without reading it.
#
# - b"": read the session. Its client is connected, or it has a will, a shared subscription, or more filters than are
#   worth it; or it is no session (group_queue.py, dropped_queues.py).
# - Otherwise its client is away: 4 bytes for the Unix time in seconds at which the session expires, rounded up (NEVER:
#   it does not), and for each filter of QoS 1 or 2 an entry of routing/interest.py. The time is earlier, if a message
#   that waits ends before: then the session is to be read, to free the memory of the message.
#
# It is written in the transaction that stores that the client has left, or is back. So b"" is never wrong, and another
# value always right, but for the time of messages: that is written with a message for a session that was unread, and
# otherwise some seconds later, when the session is to be unread (protocol/cold_sessions.py).
import math
from collections.abc import Iterable
from typing import Final

from broker.routing.interest import DEADLINE, interest_of

READ: Final = b""
NEVER: Final = 0xFFFFFFFF
SUBSCRIPTIONS: Final = 100  # of a session that need not be read: they are registered in one turn
# KEYS index; ARGV client id of a session that was in it, what it says from now on. It changes nothing if the session
# was taken from this worker, which may not know it: the worker that follows would adopt it a second time. The server
# needs 3.4 us for it, for HSET alone 0.7.
SET_INDEX: Final = (
    b"if redis.call('HEXISTS',KEYS[1],ARGV[1])==1 then redis.call('HSET',KEYS[1],ARGV[1],ARGV[2]) end return 0"
)
MOST_INTEREST: Final = 1024  # bytes: some hundred filters; a page of an index has 500 sessions


def index_value(expires: float, filters: Iterable[bytes]) -> bytes:
    """Of a session without a client, a will and shared subscriptions, with *filters* of QoS 1 and 2.

    *expires*: Unix time in seconds.
    """
    interest = interest_of(filters)
    if interest is None or len(interest) > MOST_INTEREST:
        return READ
    return _deadline(expires) + interest


def with_deadline(value: bytes, expires: float) -> bytes:
    """*value*, which is not READ, of a session that is to be read at *expires*: Unix time in seconds."""
    return _deadline(expires) + value[DEADLINE:]


def deadline_of(value: bytes) -> int:
    """When the session that an index has *value* of is to be read: Unix time, or NEVER."""
    return int.from_bytes(value[:DEADLINE], "big")


def _deadline(expires: float) -> bytes:
    return min(max(0, math.ceil(expires)), NEVER).to_bytes(DEADLINE, "big")
