# The sessions in Redis that could not be read: what is left of each is kept under a key that no worker reads.
#
# A worker that finds such a session puts it aside and goes on (store/durable/adoption.py); it logs `session_damaged`
# with the reason, and counts it. Here operators see which ones there are. The keys are found with SCAN, as nothing else
# knows them: a million sessions take seconds of this thread, and the server some milliseconds at a time.
from typing import Any, Final

import redis

from broker.store.redis.keys import Keys

QUEUE: Final = b":queue"  # at the end of the key of a list of packs
SCANNED: Final = 1000  # keys


def find_quarantined(server: "redis.Redis", prefix: str, most: int) -> tuple[list[dict[str, Any]], bool]:
    """At most *most* sessions by client id, and whether there are more. redis.RedisError.

    `fields`: of the record, `packs`: of the queue; None if there is none, or if it is of another type. `bytes`: that
    both take in the server.
    """
    found: dict[bytes, dict[str, Any]] = {}
    for key in server.scan_iter(match=Keys(prefix).quarantined(), count=SCANNED):
        client, kind = key.partition(b"}:damaged:")[2], server.type(key)
        is_queue = client.endswith(QUEUE) and kind != b"hash"
        if is_queue:
            client = client[: -len(QUEUE)]
        if client not in found and len(found) == most:
            return _listed(found), True
        facts = found.setdefault(client, {"fields": None, "packs": None, "bytes": 0})
        facts["bytes"] += server.memory_usage(key) or 0
        if is_queue and kind == b"list":
            facts["packs"] = server.llen(key)
        elif kind == b"hash":
            facts["fields"] = server.hlen(key)
    return _listed(found), False


def _listed(found: dict[bytes, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"client": client.decode(errors="backslashreplace"), **found[client]} for client in sorted(found)]
