# Waits for the replicas of a Redis, as a node with `store.durability = "replicated"` does before it acknowledges
# anything (store/durable/replication.py has the theory).
import time
from contextlib import suppress
from typing import Final

import redis

from broker.store.redis.keys import LEASE

WAIT_MS: Final = 500  # of one WAIT: below the time after which the client takes a server for dead


def replicas_with_all(server: "redis.Redis", mark: bytes, needed: int, patience: float) -> int:
    """How many replicas have all that *server* has, written to the key *mark* last: at least *needed*, if within
    *patience* seconds so many do. Fewer may be known than there are if the server does not answer any more.
    """
    have = 0
    deadline = time.monotonic() + patience
    with suppress(redis.RedisError):
        while have < needed and time.monotonic() < deadline:
            with server.pipeline(transaction=False) as together:  # WAIT counts the writes of its own connection
                together.set(mark, b"", ex=LEASE)
                together.wait(needed, WAIT_MS)
                have = together.execute()[1]
    return have
