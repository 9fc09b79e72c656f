# Groups of APPLICATION clients that share a log, in a backup: how far they have read it, and who their members are.
#
# While a partition is leased, how far it was read is in the record of the session that has leased it. Groups are read
# before sessions. So if the record of a session has a lease that its group knows, both are there as they were when the
# session was read. A lease that was given since is unknown to the group, and one that has ended is in no record: then
# the group begins where the lease of that time had begun. Of a node that ran, the partition may so be read from an
# earlier place, and messages come once more; of a stopped node all leases are known.
#
# A member whose session is not in the backup is none: it has ended meanwhile, and nobody would remove it.
from typing import Any, Final

import redis
from redis.exceptions import ResponseError

from broker.store.durable.lease_scripts import LEASE, digest_of, read_field
from broker.store.durable.leases import EPOCH, HELD, MEMBER
from broker.store.redis.keys import Keys
from supervisor.backup.backup_file import BackupWriter

SCANNED: Final = 1000  # keys
FREE: Final = b"F"
SAVED: Final = 1 + EPOCH + MEMBER  # where what is saved of a partition begins, while it is leased


def export_groups(server: "redis.Redis", keys: Keys, backup: BackupWriter) -> list[bytes]:
    """Add all groups to *backup*; the keys that cannot be read. redis.RedisError, BackupUnusable."""
    unreadable: list[bytes] = []
    for key in server.scan_iter(match=keys.all_slices(), count=SCANNED):
        kind, _, name = key.partition(b"}:")[2].partition(b":")
        if kind != b"group":
            continue
        try:
            digest = bytes.fromhex(name.decode())
            with server.pipeline(transaction=True) as together:
                together.hgetall(key)
                together.smembers(keys.group_members(digest))
                state, members = together.execute()
        except (ResponseError, ValueError):
            unreadable.append(key)
            continue
        if state and members:
            backup.group(digest, [part for item in state.items() for part in item], sorted(members))
    return unreadable


class RestoredGroups:
    """Groups of a backup, whose sessions come behind them. Nobody sees them before `make_visible()`."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._held: dict[tuple[bytes, int], bytes] = {}  # group and partition -> what the group knows of the lease
        self._groups_of: dict[bytes, list[bytes]] = {}  # by member
        self._all: dict[bytes, bool] = {}  # whether a member is in the backup

    def add(self, batch: Any, digest: bytes, fields: list[bytes], members: list[bytes]) -> int:
        """Add the commands of a group to *batch*; bytes."""
        kept: list[bytes] = []
        for name, value in zip(fields[::2], fields[1::2], strict=True):
            if name[:1] == b"p" and name[1:].isdigit() and value[:1] == HELD:
                self._held[digest, int(name[1:])] = value
                kept += (name, FREE + value[SAVED:])
            elif name[:1] != b"r":  # no member is connected
                kept += (name, value)
        if not kept:
            return 0
        batch.hset(self._keys.restoring_group(digest), items=kept)
        self._all[digest] = False
        for member in members:
            self._groups_of.setdefault(member, []).append(digest)
        return sum(map(len, kept))

    def add_session(self, batch: Any, client: bytes, fields: list[bytes]) -> None:
        """*client* has a session in the backup, with the record *fields*."""
        if not self._all:
            return
        member = digest_of(client)
        for digest in self._groups_of.get(member, ()):
            self._all[digest] = True
            batch.sadd(self._keys.restoring_members(digest), member)
        for name, lease in zip(fields[::2], fields[1::2], strict=True):
            if name.startswith(LEASE):
                self._add_lease(batch, name, lease)

    def _add_lease(self, batch: Any, name: bytes, lease: bytes) -> None:
        try:
            digest, partition = read_field(name)
        except ValueError:  # the worker that adopts the session puts it aside
            return
        held = self._held.get((digest, partition))
        if held is not None and held[1 : 1 + EPOCH] == lease[:EPOCH]:
            batch.hset(self._keys.restoring_group(digest), b"p%d" % partition, held)

    def make_visible(self, last: Any) -> None:
        for digest, has_members in self._all.items():
            key = self._keys.restoring_group(digest)
            if has_members:
                last.rename(key, self._keys.group_state(digest))
                last.rename(self._keys.restoring_members(digest), self._keys.group_members(digest))
            else:
                last.unlink(key)
