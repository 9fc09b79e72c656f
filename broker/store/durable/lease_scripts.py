# Leases of the partitions of shared logs, in Redis: which member of a group reads a partition, and from where.
#
# For each group of APPLICATION clients, whose digest is that of its share name and filter:
#
#   state      hash  "p" PARTITION -> FREE and what is saved of it; or HELD, epoch (16 hexadecimal digits), member
#                    (16 bytes), and what was saved when it was leased
#                    "r" MEMBER -> "1": a member that can be sent messages. "e": the last epoch
#   members    set   digests of the client ids of all members, connected or not. A group without members has ended
#   filter     hash  of the log that it shares with groups of other share names: their digests -> "". RETIRED -> the
#                    identity of the topic that was deleted as there was none, or is being (unused_topics.py)
#   record     hash  of the session of a member (record.py): LEASE, digest, PARTITION -> epoch and what is saved
#
# What is saved (leases.py) is how far the group has read a partition. While the partition is leased it is a field of
# the record of the session, which is written in the transaction that stores the messages that were passed on. So both
# are there or none is, and what holds for the record holds for the lease: whoever takes the session from a worker that
# does not answer, or has died, renames it, and what the former owner still writes lands where nobody reads. The road
# not taken, positions of a group in one hash with a check of the epoch at each write, would have a transaction write
# the messages and not the position, or the position and not the messages, if the session had another owner by then.
#
# A lease is given by `take` in leases.lua and ends by RELEASE, which moves what is saved from the record into the
# state. The epoch tells a lease from a later one of the same partition. Both are told on a channel: FREED, a group has
# partitions, or places, to give; ASKED, a member is to release some, as another one has too few.
#
# A member joins once its subscription is stored, and is removed with that (record.py); a session that cannot be read
# leaves its groups and leases as it is put aside (adoption.py).
import hashlib
from importlib.resources import files
from typing import Final

from broker.store.durable.removals import RELEASE, Words
from broker.store.redis.keys import Keys

SCRIPT: Final = files("broker.store.durable").joinpath("leases.lua").read_bytes()
LEASE: Final = b"\0lease"  # how the fields of leases begin in a record; no filter has a NUL
DIGEST: Final = 16  # bytes
FREED: Final = b"F"  # then the digest of the group
ASKED: Final = b"A"  # then the digest of the group, that of a member, and partitions
PREFIX: Final = len(LEASE) + DIGEST


def digest_of(text: bytes) -> bytes:
    """What stands for a client id, or for the key of a shared subscription, in what is stored of leases."""
    return hashlib.sha256(text).digest()[:DIGEST]


def lease_field(group: bytes, partition: int) -> bytes:
    return b"%b%b%d" % (LEASE, group, partition)


def read_field(field: bytes) -> tuple[bytes, int]:
    """(digest of the group, partition). ValueError: it is no field of a lease."""
    return field[len(LEASE) : PREFIX], int(field[PREFIX:])


def read_notice(notice: bytes) -> tuple[bytes, bytes, bytes, list[int]] | None:
    """(kind, digest of the group, digest of the member, partitions); None: it is none."""
    kind, group, rest = notice[:1], notice[1 : 1 + DIGEST], notice[1 + DIGEST :]
    if len(group) != DIGEST:
        return None
    if kind == FREED and not rest:
        return kind, group, b"", []
    words = rest[DIGEST:].split(b" ")
    if kind != ASKED or len(rest) <= DIGEST or not all(word.isdigit() and len(word) < 9 for word in words):
        return None
    return kind, group, rest[:DIGEST], [int(word) for word in words]


class LeaseKeys:
    """The keys and the channel of all groups."""

    def __init__(self, keys: Keys, channel: bytes) -> None:
        self._keys = keys
        self.channel: Final = channel

    def of(self, group: bytes, record: bytes, filter: bytes) -> list[bytes]:
        """The keys that leases.lua is called with. *filter*: of the group."""
        return [self.state(group), self.members(group), record, self.of_filter(filter)]

    def of_filter(self, filter: bytes) -> bytes:
        return self._keys.group_filter(digest_of(filter))

    def state(self, group: bytes) -> bytes:
        return self._keys.group_state(group)

    def members(self, group: bytes) -> bytes:
        return self._keys.group_members(group)

    def release(self, record: bytes, client: bytes, group: bytes, partition: int) -> Words:
        """The removal that releases a lease of the session of *client*, which has *record*."""
        state = self._keys.group_state(group)
        fields = (lease_field(group, partition), b"p%d" % partition)
        return (RELEASE, record, state, client, *fields, self.channel, FREED + group)
