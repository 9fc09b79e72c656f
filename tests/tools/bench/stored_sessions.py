# Durable sessions as a worker that has ended would have left them: written into Redis by the parts that a worker
# writes them with, at some 10 000 a second, without clients.
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import redis

from broker.session.message import NEVER, Message
from broker.session.queue import UNLIMITED, MessageBudget
from broker.session.session import Session
from broker.session.transfer.entries import subscription_of
from broker.store.durable.index import index_value
from broker.store.durable.record import SessionRecord
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import packed
from broker.store.redis.pipeline import CallbackCommand, CommandPipeline
from tests.cluster.shard import KEYS, Shard
from tests.session.receiver import Receiver
from tests.store.durable.durable_worker import WALL, incarnation, store_of
from tests.store.loop import Loop

FORMER: Final = 1  # incarnation of the worker that has ended: no worker that was started has such a small one
EXPIRY: Final = 7 * 86_400  # seconds
AWAY: Final = 86_400.0  # seconds over which the clients have left, one after the other
PAGE: Final = 1000  # sessions that are written between two looks at whether they are committed
TIMEOUT: Final = 30.0
FILTERS: Final = (b"devices/%s/command", b"devices/%s/config/+")
PAYLOAD: Final = b"x" * 64
TOPIC: Final = b"devices/command"


def filters_of(client_id: str) -> list[bytes]:
    return [filter % client_id.encode() for filter in FILTERS]


def redis_bytes(client: "redis.Redis", pattern: str) -> int:
    """What the server says that its keys take that match *pattern*, without their places in its tables of keys.

    Its `used_memory` changes while a table grows, and for reasons of its own.
    """
    found = client.pipeline(transaction=False)
    for key in client.scan_iter(pattern, count=1000):
        found.memory_usage(key, samples=0)
    return sum(found.execute())


class StoredSessions:
    """The sessions of the worker FORMER of *node*, at the Redis of *address*."""

    def __init__(self, address: RedisAddress, node: str, wall: float) -> None:
        """*wall*: Unix time at which the last client leaves."""
        self._loop = loop = Loop()
        self._wall = wall
        self._left = wall
        self._commands = CommandPipeline(loop.wire(), address, "former", loop.log)
        self._store = store_of(self._commands, FORMER, MessageBudget(UNLIMITED), lambda: self._left - WALL)
        self._session: Session = Receiver().session
        self._owners = Shard(loop, address, node=node)
        self._node = node
        loop.ticking += [self._store]
        self._commands.start(loop.now())
        loop.ready(self._commands, self._owners.commands)

    def close(self) -> None:
        self._loop.close()

    def write(self, prefix: str, count: int, messages: int = 0) -> None:
        """Store *count* sessions with two filters each, and *messages* in the queue of each, that came one by one."""
        records: list[SessionRecord] = []
        for number in range(count):
            self._left = self._wall - AWAY * (count - number) / count
            client_id = f"{prefix}-{number:08}"
            record = self._store.begin(client_id.encode())
            record.store_head(EXPIRY, None, False)
            filters = filters_of(client_id)
            for filter in filters:
                record.subscribed(subscription_of(self._session, filter, 1, b""))
            record.store_index(index_value(self._left + EXPIRY, filters))
            records.append(record)
            if len(records) == PAGE or number == count - 1:
                self._store_all()
                for _ in range(messages):
                    self._fill(records)
                records = []

    def spread(self, prefix: str, count: int, publishes: int) -> None:
        """Store *count* sessions, and then *publishes* messages, one after the other, in the queues of all of them."""
        records = [self._store.begin(f"{prefix}-{number:08}".encode()) for number in range(count)]
        for record in records:
            record.store_head(EXPIRY, None, False)
        self._store_all()
        for _ in range(publishes):
            message = Message(TOPIC, PAYLOAD, 1, False, b"", NEVER)
            for record in records:
                record.queue().append(message, UNLIMITED, self._loop.now())
            self._store_all()

    def own(self, prefix: str, count: int) -> None:
        """Register an owner of each session, as the CONNECT of its client has."""
        for number in range(count):
            self._owners.hold_locally(f"{prefix}-{number:08}")
        self._loop.until(self._owners.settled)

    def leave(self) -> None:
        """The worker has ended: the next one adopts its sessions."""
        done: list[object] = []
        command = packed("HSET", KEYS.durable_owners(self._node), incarnation(FORMER), 0)
        self._commands.submit(CallbackCommand(command, TIMEOUT, lambda reply, _: done.append(reply)), self._loop.now())
        self._loop.until(lambda: len(done) > 0)

    def _fill(self, records: list[SessionRecord]) -> None:
        for record in records:
            record.queue().append(Message(TOPIC, PAYLOAD, 1, False, b"", NEVER), UNLIMITED, self._loop.now())
        self._store_all()

    def _store_all(self) -> None:
        self._loop.until(self._store.commit.idle)


@contextmanager
def stored_sessions(address: RedisAddress, node: str, wall: float) -> Iterator[StoredSessions]:
    sessions = StoredSessions(address, node, wall)
    try:
        yield sessions
    finally:
        sessions.close()
