# Every key that Weir has in Redis is named here, with what lies under it and how long.
#
#   PREFIX:{R}:owner:CLIENT     string  "EPOCH INCARNATION SHARD NODE": whose session that client id is
#   PREFIX:{R}:wills:INCARNATION  hash  client id -> "EPOCH DELAY RECORD": the wills of a worker's clients
#   PREFIX:{R}:dead:INCARNATION string  it has been mourned, and claims nothing any more; for FENCED_FOR
#   PREFIX:metrics              stream  the log `weir.metrics`: in each entry `record`, one of metrics/record.py
#   PREFIX:{R}:quota:NAME       hash  what is left of a quota that all workers share, by windows: quota_lease.lua
#   PREFIX:quota:workers        sorted set  the incarnations of the workers that share quotas, by when they last asked
#   PREFIX:generation           string  a random id, made by whoever finds none: another one means that Redis has
#                                       forgotten everything
#   PREFIX:overload:DB          channel how overloaded each worker is
#
# {R} is one of SLICES hash tags, chosen by the client id or the quota: in a Redis Cluster all keys that one script
# touches are so on one node, and a mourner has SLICES hashes to read for a worker and not one for each client.
#
# Nothing stays for ever: owners and wills live for LEASE and are written again when a third of it has passed, while
# their worker lives; `release` takes them away at once. The generation is kept by being asked for. A quota goes when it
# would be full again, as one that is not there is, and its workers when none of them has asked for some seconds. Of the
# log Redis keeps the newest `metrics.length` records, and some more: it cuts whole blocks off the other end.
# The epochs of a client id rise even when its key was gone: they are never below Redis' own clock in microseconds.
import zlib
from typing import Final

SLICES: Final = 16
FENCED_FOR: Final = 3600  # seconds; whoever is dead has sent nothing later than that
LEASE: Final = 86_400  # seconds; a worker that was cut off from Redis for longer claims its sessions again anyway


class Keys:
    def __init__(self, prefix: str) -> None:
        """*prefix* keeps several clusters apart that share one Redis."""
        self._prefix = prefix
        self._owners = [f"{prefix}:{{{number}}}:owner:".encode() for number in range(SLICES)]
        self._wills = [f"{prefix}:{{{number}}}:wills:".encode() for number in range(SLICES)]
        self._dead = [f"{prefix}:{{{number}}}:dead:".encode() for number in range(SLICES)]
        self._quotas = [f"{prefix}:{{{number}}}:quota:".encode() for number in range(SLICES)]
        self.quota_workers = f"{prefix}:quota:workers".encode()
        self.generation = f"{prefix}:generation".encode()
        self.metrics = f"{prefix}:metrics".encode()

    def overload(self, db: int) -> bytes:
        """The channel of reports. One is heard in all databases, so those who share a server by *db* need two."""
        return f"{self._prefix}:overload:{db}".encode()

    def slice_of(self, client_id: bytes) -> int:
        """Which slice *client_id* belongs to: the same for every worker and version."""
        return zlib.crc32(client_id) % SLICES

    def owner(self, client_id: bytes) -> bytes:
        return self._owners[zlib.crc32(client_id) % SLICES] + client_id

    def quota(self, name: bytes) -> bytes:
        return self._quotas[zlib.crc32(name) % SLICES] + name

    def dead(self, number: int, incarnation: bytes) -> bytes:
        """The mark of a worker that has been mourned, as far as client ids in slice *number* go."""
        return self._dead[number] + incarnation

    def wills(self, number: int, incarnation: bytes) -> bytes:
        """The wills of a worker's clients whose ids are in slice *number*."""
        return self._wills[number] + incarnation
