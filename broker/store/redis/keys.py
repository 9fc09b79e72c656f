# Every key that Weir has in Redis, with its content and its lifetime.
#
#   PREFIX:{R}:owner:CLIENT     string  "EPOCH INCARNATION SHARD NODE USER": the owner of the session of that client
#                                       id, and the tag of its user (session/principal.py)
#   PREFIX:{R}:wills:INCARNATION  hash  client id -> "EPOCH DELAY RECORD": the wills of a worker's clients
#   PREFIX:{R}:dead:INCARNATION string  a dead worker is fenced: its claims are refused; for FENCED_FOR
#   PREFIX:{R}:sessions:INCARNATION        hash  client id -> what is known of it unread (store/durable/index.py): the
#                                       durable sessions that a worker owns
#   PREFIX:{R}:session:INCARNATION:CLIENT  hash  such a session (store/durable/record.py)
#   PREFIX:{R}:queue:INCARNATION:CLIENT    list  its messages (store/durable/pack.py)
#   PREFIX:{R}:released:INCARNATION:CLIENT set   positions of its messages of QoS 2 with PUBREC
#   PREFIX:{R}:bodies:INCARNATION:NUMBER   hash  bodies of messages that packs refer to, stored by that worker; until
#                                       no pack does, and at most as long as messages wait, and a day
#                                       (store/durable/shared_bodies.py)
#   PREFIX:{R}:group:DIGEST     hash  who reads which partition of the log that a group of APPLICATION clients shares,
#                                       and PREFIX:{R}:members:DIGEST, a set, who they are: lease_scripts.py
#   PREFIX:{R}:filter:DIGEST    hash  which of these groups share the log of a filter; a day, while there is none
#   PREFIX:{R}:damaged:...      what was such a session and cannot be read
#   PREFIX:{R}:retained         hash  topic -> retained message, or its deletion (store/durable/retained_value.py)
#   PREFIX:{R}:restoring        hash  what becomes that of the former key when a backup is restored; and
#                                       PREFIX:{R}:restoring:..., what becomes a group, or a log of the carrier
#   PREFIX:{R}:unreadable       hash  topic -> what was such a value and cannot be read
#   PREFIX:fence:INCARNATION    list  client ids of sessions that were taken from a worker that did not answer, and ""
#                                       when its sessions were adopted
#   PREFIX:forced:INCARNATION   sorted set  from which workers a worker has taken such sessions, by Unix time; for
#                                       a minute (store/durable/forced_owners.py)
#   PREFIX:commit:INCARNATION   string  the number of the last transaction of a worker (store/durable/group_commit.py);
#                                       both as long as it is among the owners below, and FENCED_FOR after that, which
#                                       begins for the number when the adoption of its sessions does
#   PREFIX:mark:INCARNATION     string  written behind a transaction that replicas have to have; for LEASE
#                                       (store/durable/replication.py)
#   PREFIX:owners:NODE          hash  incarnation -> shard of the workers of a node that own, or owned, durable sessions
#   PREFIX:nodes                hash  name of a node that shares the server -> which process has it, until when, and
#                                       what it says of itself (supervisor/node_lease.py)
#   PREFIX:renewals             string  "SINCE LAST", milliseconds of Unix time: since when nodes have renewed their
#                                       leases without a gap, and the last time
#   PREFIX:format               string  the version of the format of what is durable: DURABLE_FORMAT of the newest build
#   PREFIX:backbone:TOPIC:NODE  hash  who dispatches the partitions of the inbound backbone, and how far the node is
#                                       (store/inbound/positions.lua)
#   PREFIX:metrics              stream  the log `weir.metrics`: each entry has the field `record` (metrics/record.py)
#   PREFIX:{R}:quota:NAME       hash  what is left of a quota that workers share, by window: quota_lease.lua
#   PREFIX:quota:workers        sorted set  the incarnations of workers that share quotas, by their last request
#   PREFIX:generation           string  a random id, made by the first worker that finds none: another id means
#                                       that Redis has lost everything
#   PREFIX:overload:DB          channel how overloaded each worker is
#   PREFIX:nodes:DB             channel that the list of nodes has changed, and the incarnation of the node that did it
#   PREFIX:lane:DB:INCARNATION  channel what workers of other nodes send to a worker (cluster/lane_message.py)
#   PREFIX:leases:DB            channel what members of such groups release, and ask others to (lease_scripts.py)
#
# {R} is one of SLICES hash tags, chosen by the client id, the quota or the topic: in a Redis Cluster all keys that one
# script touches are on one node, and the wills of a dead worker are in SLICES hashes and not in one for each client.
#
# The keys of a durable session have the incarnation of the worker that owns it. Who takes the session renames them, so
# what its former owner still writes lands where nobody reads. Three kinds of lists have names in place of CLIENT, which
# begin with a NUL and a letter, as no client id does [MQTT-1.5.4-2]: "g", what waits for a shared subscription with
# durable members (store/durable/shared_lists.py), and "r", what returns to such a subscription
# (store/durable/returned.py), are stored as sessions are; "d", queues of sessions that have ended, with references to
# bodies, which have no records (store/durable/dropped_queues.py).
#
# But for durable sessions, which end with their expiry, for retained messages and for the inbound backbone nothing is
# kept for ever. Owners and wills live for LEASE, and their worker writes them again when a third of it has passed;
# `release` deletes them at once. A quota expires when it would be full again (a missing quota is full), and its workers
# when none of them has sent a request for some seconds.
# The fence and the number of a worker go when another one has adopted its sessions.
# Of the log Redis keeps the newest `metrics.length` records and a few more, as it deletes whole blocks.
# The epochs of a client id rise even if its key was lost: they are never below the clock of Redis in microseconds.
import re
import zlib
from typing import Final

SLICES: Final = 16
# Of durable sessions; a change that former builds cannot read raises it: 2, names with a NUL; 3, indexes are hashes;
# 4, packs have shorter heads; 5, a field for the log of an APPLICATION session; 6, fields for leases of partitions;
# 7, fields for what queues have taken through groups, and marks of that in logs.
DURABLE_FORMAT: Final = 7
LEASE: Final = 86_400  # seconds; a worker that was cut off from Redis for longer claims its sessions again anyway
FENCED_FOR: Final = LEASE  # seconds; as long as sessions of a dead worker have an owner


class Keys:
    def __init__(self, prefix: str) -> None:
        """*prefix* differs between clusters that share one Redis."""
        self._prefix = prefix
        self._owners = [f"{prefix}:{{{number}}}:owner:".encode() for number in range(SLICES)]
        self._wills = [f"{prefix}:{{{number}}}:wills:".encode() for number in range(SLICES)]
        self._dead = [f"{prefix}:{{{number}}}:dead:".encode() for number in range(SLICES)]
        self._quotas = [f"{prefix}:{{{number}}}:quota:".encode() for number in range(SLICES)]
        self.quota_workers = f"{prefix}:quota:workers".encode()
        self.generation = f"{prefix}:generation".encode()
        self.format = f"{prefix}:format".encode()
        self.nodes = f"{prefix}:nodes".encode()
        self.renewals = f"{prefix}:renewals".encode()
        self.metrics = f"{prefix}:metrics".encode()

        self._fences = f"{prefix}:fence:".encode()
        self._forced = f"{prefix}:forced:".encode()
        self._commits = f"{prefix}:commit:".encode()
        self._marks = f"{prefix}:mark:".encode()
        self._durable_owners = f"{prefix}:owners:".encode()

    def overload(self, db: int) -> bytes:
        """The channel of reports. Channels span all databases of a server, so each *db* has its own."""
        return f"{self._prefix}:overload:{db}".encode()

    def node_notices(self, db: int) -> bytes:
        """The channel of notices that the list of nodes has changed."""
        return f"{self._prefix}:nodes:{db}".encode()

    def leases(self, db: int) -> bytes:
        """The channel of notices about leases."""
        return f"{self._prefix}:leases:{db}".encode()

    def lane(self, db: int, incarnation: str) -> bytes:
        """The channel of messages from workers of other nodes to the worker with *incarnation*."""
        return f"{self._prefix}:lane:{db}:{incarnation}".encode()

    def slice_of(self, client_id: bytes) -> int:
        """The slice of *client_id*, which is the same for every worker and version."""
        return zlib.crc32(client_id) % SLICES

    def backbone(self, topic: str, node: str) -> bytes:
        return f"{self._prefix}:backbone:{topic}:{node}".encode()

    def durable_owners(self, node: str) -> bytes:
        return self._durable_owners + node.encode()

    def durable_owners_of_nodes(self) -> bytes:
        """How the keys of `durable_owners()` begin, before the name of the node."""
        return self._durable_owners

    def all_durable_owners(self) -> bytes:
        """The pattern of the owners of all nodes."""
        return _literally(self._durable_owners) + b"*"

    def all_slices(self) -> bytes:
        """The pattern of all keys that have a slice."""
        return _literally(f"{self._prefix}:{{".encode()) + b"*}:*"

    def quarantined(self) -> bytes:
        """The pattern of what is left of sessions that cannot be read."""
        return _literally(f"{self._prefix}:{{".encode()) + b"*}:damaged:*"

    def fence(self, incarnation: bytes) -> bytes:
        return self._fences + incarnation

    def forced(self, incarnation: bytes) -> bytes:
        return self._forced + incarnation

    def commit_number(self, incarnation: bytes) -> bytes:
        return self._commits + incarnation

    def records(self, number: int) -> bytes:
        """How the keys of durable sessions in slice *number* begin, before the incarnation of their owner."""
        return f"{self._prefix}:{{{number}}}:session:".encode()

    def indexes(self, number: int) -> bytes:
        """How the keys of the indexes of durable sessions in slice *number* begin, before the incarnation."""
        return f"{self._prefix}:{{{number}}}:sessions:".encode()

    def mark(self, incarnation: bytes) -> bytes:
        return self._marks + incarnation

    def sessions(self, number: int, incarnation: bytes) -> "SessionKeys":
        """The keys of the durable sessions of a worker in slice *number*."""
        return SessionKeys(f"{self._prefix}:{{{number}}}:".encode(), incarnation)

    def bodies(self, incarnation: bytes) -> bytes:
        """The groups of bodies that a worker has stored: keys that end in the number of the group."""
        return f"{self._prefix}:{{{zlib.crc32(incarnation) % SLICES}}}:bodies:".encode() + incarnation + b":"

    def retained(self, number: int) -> bytes:
        """The retained messages of the topics in slice *number*."""
        return f"{self._prefix}:{{{number}}}:retained".encode()

    def restoring(self, number: int) -> bytes:
        """What becomes `retained()` when a backup is restored."""
        return f"{self._prefix}:{{{number}}}:restoring".encode()

    def restoring_group(self, digest: bytes) -> bytes:
        """What becomes `group_state()` then."""
        return self._restoring(zlib.crc32(digest) % SLICES, f"group:{digest.hex()}")

    def restoring_members(self, digest: bytes) -> bytes:
        """What becomes `group_members()` then."""
        return self._restoring(zlib.crc32(digest) % SLICES, f"members:{digest.hex()}")

    def restoring_log(self, name: str) -> bytes:
        """What becomes a key of a log in Redis then (carrier/redis_keys.py)."""
        return self._restoring(0, f"log:{name}")

    def _restoring(self, number: int, name: str) -> bytes:
        return f"{self._prefix}:{{{number}}}:restoring:{name}".encode()

    def unreadable(self, number: int) -> bytes:
        """What cannot be read of `retained()`."""
        return f"{self._prefix}:{{{number}}}:unreadable".encode()

    def owner(self, client_id: bytes) -> bytes:
        return self._owners[zlib.crc32(client_id) % SLICES] + client_id

    def quota(self, name: bytes) -> bytes:
        return self._quotas[zlib.crc32(name) % SLICES] + name

    def group_state(self, digest: bytes) -> bytes:
        """Who reads which partition for the group of APPLICATION clients with *digest*."""
        return f"{self._prefix}:{{{zlib.crc32(digest) % SLICES}}}:group:{digest.hex()}".encode()

    def group_members(self, digest: bytes) -> bytes:
        """The members of such a group."""
        return f"{self._prefix}:{{{zlib.crc32(digest) % SLICES}}}:members:{digest.hex()}".encode()

    def group_filter(self, digest: bytes) -> bytes:
        """The groups that share the log of the filter with *digest*."""
        return f"{self._prefix}:{{{zlib.crc32(digest) % SLICES}}}:filter:{digest.hex()}".encode()

    def dead(self, number: int, incarnation: bytes) -> bytes:
        """The fence of a dead worker, for client ids in slice *number*."""
        return self._dead[number] + incarnation

    def wills(self, number: int, incarnation: bytes) -> bytes:
        """The wills of a worker's clients, for client ids in slice *number*."""
        return self._wills[number] + incarnation


def _literally(text: bytes) -> bytes:
    """The pattern that *text* alone matches."""
    return re.sub(rb"([\\*?\[\]^-])", rb"\\\1", text)


class SessionKeys:
    """The keys of the durable sessions of one worker in one slice, which end in the client id."""

    def __init__(self, slice: bytes, incarnation: bytes) -> None:
        self._slice = slice
        self.index = b"%bsessions:%b" % (slice, incarnation)
        self.records = b"%bsession:%b:" % (slice, incarnation)
        self.queues = b"%bqueue:%b:" % (slice, incarnation)
        self.released = b"%breleased:%b:" % (slice, incarnation)
        self.damaged = b"%bdamaged:" % slice

    def of(self, incarnation: bytes) -> "SessionKeys":
        """The keys of another worker in the same slice."""
        return SessionKeys(self._slice, incarnation)
