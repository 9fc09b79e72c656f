# What is stored for APPLICATION clients: the records of their logs, and in Redis how far the logs were passed on.
#
# A message that a publisher was told to be stored has to be in one of three places until the client has acknowledged
# it: in the log at the saved position or behind it, in the queue in Redis, or with the client. So a `Snapshot` of what
# Redis has of a session, at any moment, and the whole log at the end of a run show whether a position has passed a
# message that is not stored elsewhere, even if a live worker delivers it from its memory in the end.
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

import redis

from broker.carrier.redis_keys import LogKeys
from broker.store.durable.application_queue import SAVED
from broker.store.durable.log_feed import LogFeed
from broker.store.durable.log_pack import START
from broker.store.durable.log_topics import topic_of
from broker.store.durable.pack import DamagedPack, decode_pack
from broker.store.durable.stored_session import LOG
from broker.store.logs.records import Position, decode
from broker.store.logs.topics import Partition
from broker.store.redis.keys import Keys
from tests.tools.faults.durable.history import Message

PREFIX: Final = "weir"
PATIENCE: Final = 0.5  # seconds for a snapshot: the whole run waits for it
KAFKA_PATIENCE: Final = 30.0  # seconds for a log at the end
PAYLOAD: Final = re.compile(rb"(\S+) (\d+)")
# KEYS none; ARGV how the key of the record begins and ends, the field of the log -> field, packs of the queue
SNAPSHOT: Final = """
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. 'session:*:' .. ARGV[2])) do
  local queue = ARGV[1] .. 'queue:' .. string.sub(key, #ARGV[1] + #'session:' + 1)
  found[#found + 1] = {redis.call('HGET', key, ARGV[3]) or '', redis.call('LRANGE', queue, 0, -1)}
end
return found
"""

Records = list[tuple[int, bytes]]  # offset and content, of one topic


@dataclass(frozen=True)
class Snapshot:
    """What Redis had of the session of *client*, and which messages must be stored for it then."""

    at: float
    client: str
    unfinished: frozenset[Message]
    log: bytes  # the field of the record
    queue: tuple[bytes, ...]  # packs


def take_snapshot(server: "redis.Redis", at: float, client: str, unfinished: Iterable[Message]) -> Snapshot | None:
    """None: it is not known, as Redis does not answer, or the session has not begun its log."""
    keys, name = Keys(PREFIX), client.encode()
    start = keys.records(keys.slice_of(name)).removesuffix(b"session:")
    try:
        found = cast("list[tuple[bytes, list[bytes]]]", server.eval(SNAPSHOT, 0, start, name, LOG))
    except redis.RedisError:
        return None
    if len(found) != 1 or len(found[0][0]) <= SAVED.size:
        return None
    log, queue = found[0]
    return Snapshot(at, client, frozenset(unfinished), log, tuple(queue))


def missing(snapshot: Snapshot, records: Records) -> set[Message]:
    """The messages of *snapshot* that are nowhere; *records*: all of the log. DamagedPack, ValueError.

    The log of a session that has ended is deleted, and nothing can be said of it.
    """
    _, passed, era = SAVED.unpack_from(snapshot.log)
    if era not in eras_of(records):
        return set()
    stored = {
        message_of(each.message.payload) for pack in snapshot.queue for each in decode_pack(pack, 0.0, 0.0).messages
    }
    stored |= messages_of(records, era, Position.decode(snapshot.log[SAVED.size :]), passed)
    return set(snapshot.unfinished) - stored


def messages_of(records: Records, era: bytes, position: Position, passed: int = 0) -> set[Message]:
    """The messages that are read from *position* on."""
    feed = LogFeed(era, Position.decode(position.encode()), passed, lambda now: None)
    reading = Position.decode(position.encode())
    found = set()
    for offset, content in records:
        if offset >= reading.offset:
            feed.received(reading.take(offset, decode(content)), 0.0)
            while feed.has_more():
                if (each := feed.step(0.0, 0.0)) is not None:
                    found.add(message_of(each.message.payload))
    if feed.damages:
        raise DamagedPack(f"packs that are damaged: {feed.damages}")
    return found


def eras_of(records: Records) -> set[bytes]:
    """The sessions that have appended to a log."""
    return {START.unpack_from(pack.body)[2] for _, content in records for pack in decode(content)}


def all_messages(records: Records) -> set[Message]:
    found: set[Message] = set()
    for era in eras_of(records):
        found |= messages_of(records, era, Position(0))
    return found


def message_of(payload: bytes) -> Message:
    words = PAYLOAD.fullmatch(payload)
    assert words is not None, payload
    return words[1].decode(), int(words[2])


# Whole logs.


def redis_records(server: "redis.Redis", client: str) -> Records:
    entries = cast("list[Any]", server.xrange(LogKeys(PREFIX).records(Partition(topic_of(client.encode())))))
    return [(int(key.partition(b"-")[0]) - 1, fields[b"record"]) for key, fields in entries]


def kafka_records(address: str, clients: Iterable[str], wait: Callable[[], object]) -> dict[str, Records]:
    """The logs of *clients*; *wait* is called between two requests."""
    from kafka import KafkaConsumer, TopicPartition

    found: dict[str, Records] = {client: [] for client in clients}
    consumer = KafkaConsumer(bootstrap_servers=address, enable_auto_commit=False, auto_offset_reset="earliest")
    try:
        partitions = {TopicPartition(topic_of(client.encode()), 0): client for client in found}
        ends = consumer.end_offsets(list(partitions))
        consumer.assign(list(partitions))
        consumer.seek_to_beginning()
        while any(consumer.position(each) < ends[each] for each in partitions):
            for partition, records in consumer.poll(timeout_ms=20).items():
                found[partitions[partition]] += [(each.offset, each.value) for each in records]
            wait()
    finally:
        consumer.close()
    return found
