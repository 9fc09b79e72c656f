# Packs as a backup has them: with all of their messages, and no references to bodies elsewhere.
#
# In Redis the body of a message that many queues have is stored once (store/durable/shared_bodies.py), in another slice
# than most of these queues. A backup has it in each pack, so a session of a backup is whole, whatever becomes of the
# others, and a restore has nothing to count.
#
# Bodies are read after the packs. A group of bodies is deleted when the last pack that refers to it is removed from its
# list. So a body is missing if its message was delivered meanwhile, or has ended. Else it is damaged: then the list has
# the pack still.
#
# Rejected: to have bodies in the file once, and references to them. The file would be smaller, but of a format that
# other builds do not read, and a restore had to count references before it writes the first one.
import time
from collections.abc import Iterator
from typing import Any

import redis

from broker.store.durable.pack import DamagedPack, Pack, StoredMessage, decode_pack, encode_pack
from broker.store.durable.shared_bodies import add_bodies, bodies_of
from broker.store.redis.keys import Keys


def whole_packs(server: "redis.Redis", keys: Keys, packs: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """The *packs* of a list with all bodies, and those of *packs* of which some were missing or could not be read.

    The former have what was there, but for messages that have ended with their bodies. A pack that cannot be decoded
    stays as it is: a node that reads it puts its session aside. redis.RedisError.
    """
    read = [_decoded(data) for data in packs] if packs and _may_refer(packs[-1]) else []
    if not any(pack is not None and pack.may_refer() for pack in read):
        return packs, []
    _add_bodies(server, keys, [pack for pack in read if pack is not None])
    whole: list[bytes] = []
    lacking: list[bytes] = []
    for data, pack in zip(packs, read, strict=True):
        if pack is None:
            whole.append(data)
            continue
        messages = list(_kept(pack))
        if any(not stored.has_body() and stored.message.ends >= 0 for stored in pack.messages):
            lacking.append(data)
        if messages:
            rest = Pack(pack.bytes_before, pack.stored_at, pack.end, pack.due, messages)
            whole.append(encode_pack(rest, 0.0, 0.0))
    return whole, lacking


def _may_refer(data: bytes) -> bool:
    """Whether there may be references in a list that ends with the pack *data*."""
    pack = _decoded(data)
    return pack is None or pack.may_refer()


def _decoded(data: bytes) -> Pack | None:
    """A pack whose times are Unix times; None: it is damaged."""
    try:
        return decode_pack(data, 0.0, 0.0)
    except DamagedPack:
        return None


def _kept(pack: Pack) -> Iterator[StoredMessage]:
    for stored in pack.messages:
        if stored.has_body():
            yield StoredMessage(stored.position, stored.message)


def _add_bodies(server: "redis.Redis", keys: Keys, packs: list[Pack]) -> None:
    """Give the messages of *packs* their bodies, as far as these are there; what has ended since ends below 0."""
    wanted = bodies_of(keys, packs)
    with server.pipeline(transaction=False) as asked:
        for key, group in wanted.items():
            asked.hmget(key, [str(index) for index in group])
        replies: list[Any] = asked.execute(raise_on_error=False)
    now = time.time()
    for group, found in zip(wanted.values(), replies, strict=True):
        if isinstance(found, redis.exceptions.ResponseError):  # a key of another type
            continue
        if isinstance(found, Exception):
            raise found
        for messages, data in zip(group.values(), found, strict=True):
            try:
                add_bodies(messages, data, now)
            except DamagedPack:
                continue
