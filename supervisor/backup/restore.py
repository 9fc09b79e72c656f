# Writes a backup into the Redis of a node that is stopped.
#
# - The file is read twice: nothing is written before all of it was found undamaged, and the node without data.
# - Nothing that is written can be seen before the last transaction: sessions are those of workers that are not among
#   the owners of the node, and retained messages, groups and logs are under other keys. So a restore that fails,
#   or is killed, leaves what no worker reads; it removes that, or the next restore does.
# - The workers that start next adopt the sessions, as those of workers that have died (store/durable/adoption.py).
#   SHARES such workers share them, so that however many start, each gets its part. None of them ever ran: no fence and
#   no commit number has its name, and no process that still runs writes its keys.
# - Such a worker is also the owner of the session (cluster/claim.lua). Whoever claims it next asks the workers of the
#   node where it is, and other nodes know to which user it belongs. The owner is kept as long as the session.
#
# QoS 2: a publish that is sent again is stored once, by tokens (store/durable/tokens.py), if publishers and receivers
# are of one moment: those of a node that was stopped. In a backup of a node that ran, a queue may be later than its
# publisher. Then a publish that was not stored would get the number of one that was, and be lost. So the sessions of
# such a backup count from the beginning, under a new origin: a publish that was under way may be stored twice, and none
# is lost.
#
# The node has to be stopped, as its workers know the sessions and the retained messages that were there when they
# started. To restore into a node that serves would need all that a start does, while clients come with other sessions.
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import msgpack
import redis
from redis.exceptions import ResponseError

from broker.session.principal import owner_tag
from broker.store.durable.group_queue import is_session
from broker.store.durable.index import READ
from broker.store.durable.stored_session import HEAD, DamagedRecord, read_record
from broker.store.durable.tokens import COUNTED, INCOMING, TOKEN
from broker.store.redis.keys import DURABLE_FORMAT, LEASE, SLICES, Keys
from supervisor.backup.backup_file import GROUP, LOG, PACKS, RECORDS, SESSION, BackupReader, Counts
from supervisor.backup.groups import RestoredGroups
from supervisor.backup.logs import RestoredLogs

SHARES: Final = 60  # one to six workers, and ten, get equally many sessions
SHARE: Final = b"ffffffffffffff"  # so the incarnation of each begins, and that of no worker, which has 63 bits
EPOCH: Final = 1  # before that of any claim
BATCH_BYTES: Final = 1 << 20
BATCH: Final = 1000  # commands
SCANNED: Final = 1000  # keys
KINDS: Final = (b"session", b"sessions", b"queue", b"released", b"retained")  # what a node would serve
RESTORING: Final = b"restoring"
NOT_EMPTY: Final = (
    "The Redis of the node has sessions or retained messages: a backup is restored to a node without any, to a new one "
    "or with another redis.prefix."
)
REFUSED: Final = "Nothing was restored, as the Redis of the node (see redis.memory) answered with an error"
CAUSED: Final = "caused error: "  # in an error of redis-py, behind the command


class RestoreRefused(Exception):
    """Nothing was changed. The text is one sentence for the user."""


class Restore:
    def __init__(self, server: "redis.Redis", prefix: str, node: str, backup: BackupReader) -> None:
        """*prefix*: of the keys. *node*: whose sessions they become."""
        self._server = server
        self._keys = Keys(prefix)
        self._node = node
        self._backup = backup
        self._used: set[int] = set()  # shares with sessions
        self._slices: set[int] = set()  # with retained messages
        self._queue = b""  # the key of that of the last session
        self._groups = RestoredGroups(self._keys)
        self._logs = RestoredLogs(prefix)

    def run(self) -> Counts:
        """Restore everything; what that was. RestoreRefused, BackupUnusable, redis.RedisError: nothing is restored."""
        data_format = self._backup.head.data_format
        if data_format > DURABLE_FORMAT:
            raise RestoreRefused(
                f"The data of the backup has format {data_format}, and this version of Weir knows format "
                f"{DURABLE_FORMAT}: use the version of Weir that wrote it ({self._backup.head.weir})."
            )
        counts = self._backup.check()
        if self._look():
            self._remove_rest()
        try:
            self._write()
            self._make_visible()
        except BaseException as error:
            with suppress(redis.RedisError):  # else the next restore does it
                self._remove_rest()
            if isinstance(error, ResponseError):
                raise RestoreRefused(f"{REFUSED}: {str(error).rpartition(CAUSED)[2].rstrip('.')}.") from None
            raise
        return counts

    def _look(self) -> bool:
        """Whether a restore that did not end has left something. RestoreRefused: there is data."""
        left = False
        for key in self._scan():
            if not _is_left(key):
                if key.partition(b":")[0] in KINDS:
                    raise RestoreRefused(NOT_EMPTY)
            elif not left:
                left = True
                if any(owner.startswith(SHARE) for owner in self._owners()):  # that restore has ended
                    raise RestoreRefused(NOT_EMPTY)
        return left

    def _owners(self) -> Iterator[bytes]:
        for owners in self._server.scan_iter(match=self._keys.all_durable_owners(), count=SCANNED):
            found: Any = self._server.hkeys(owners)
            yield from found

    def _scan(self) -> Iterator[bytes]:
        """What follows the hash tag in each key that has one."""
        for key in self._server.scan_iter(match=self._keys.all_slices(), count=SCANNED):
            yield key.partition(b"}:")[2]

    def _remove_rest(self) -> None:
        """Remove what a restore has written, and nobody sees. redis.RedisError."""
        rest: list[bytes] = []
        for key in self._server.scan_iter(match=self._keys.all_slices(), count=SCANNED):
            kind, _, name = key.partition(b"}:")[2].partition(b":")
            if _is_left(kind + b":" + name):
                rest.append(key)
                if kind == b"session":
                    rest += self._left_owner(name.partition(b":")[2])
            if len(rest) >= BATCH:
                self._server.unlink(*rest)
                rest = []
        if rest:
            self._server.unlink(*rest)

    def _left_owner(self, client: bytes) -> list[bytes]:
        """The key of the owner of *client*, if a restore has written it."""
        key = self._keys.owner(client)
        owner: Any = self._server.get(key)
        return [key] if owner is not None and b" " + SHARE in owner else []

    def _write(self) -> None:
        with self._server.pipeline(transaction=False) as batch:
            size = 0
            for kind, content in self._backup.frames():
                if kind == SESSION:
                    size += self._write_session(batch, *content)
                elif kind == PACKS:
                    batch.rpush(self._queue, *content)
                    size += sum(map(len, content))
                elif kind == GROUP:
                    size += self._groups.add(batch, *content)
                elif kind == LOG:
                    size += self._logs.add(batch, *content)
                elif kind == RECORDS:
                    size += self._logs.add_records(batch, *content)
                else:
                    size += self._write_retained(batch, content)
                if size >= BATCH_BYTES or len(batch) >= BATCH:
                    batch.execute()
                    size = 0
            batch.execute()

    def _write_session(self, batch: Any, client: bytes, fields: list[bytes], marks: list[int]) -> int:
        """Add the commands of a session to *batch*; bytes."""
        number = zlib.crc32(client)
        share = number // SLICES % SHARES
        self._used.add(share)
        keys = self._keys.sessions(number % SLICES, share_name(share))
        self._queue = keys.queues + client
        batch.hset(keys.records + client, items=self._kept(fields))
        batch.hset(keys.index, client, _index_value(client, fields))
        if is_session(client):
            self._write_owner(batch, client, fields, share)
            self._groups.add_session(batch, client, fields)
        if marks:
            batch.sadd(keys.released + client, *marks)
        return sum(map(len, fields))

    def _write_owner(self, batch: Any, client: bytes, fields: list[bytes], share: int) -> None:
        try:
            _, expiry, user = msgpack.unpackb(dict(zip(fields[::2], fields[1::2], strict=True))[HEAD])
            owner = f"{EPOCH} {share_name(share).decode()} {share} {self._node} {owner_tag(user)}"
            batch.set(self._keys.owner(client), owner, ex=expiry + LEASE)
        except Exception:  # the record is damaged: the worker that adopts it puts it aside
            pass

    def _kept(self, fields: list[bytes]) -> list[bytes]:
        """The fields and values of a record that are restored.

        Tokens of a node that was stopped are its last ones, so they are believed in the era of another store, too.
        """
        kept: list[bytes] = []
        for name, value in zip(fields[::2], fields[1::2], strict=True):
            if name[: len(INCOMING)] not in (INCOMING, COUNTED):
                kept += (name, value)
            elif not self._backup.head.running:
                kept += (name, value[:TOKEN])
        return kept

    def _write_retained(self, batch: Any, values: list[bytes]) -> int:
        by_slice: dict[int, list[bytes]] = {}
        for at in range(0, len(values), 2):
            by_slice.setdefault(self._keys.slice_of(values[at]), []).extend(values[at : at + 2])
        for number, items in by_slice.items():
            self._slices.add(number)
            batch.hset(self._keys.restoring(number), items=items)
        return sum(map(len, values))

    def _make_visible(self) -> None:
        """Have workers find everything that was written, in one transaction."""
        shares = [part for share in sorted(self._used) for part in (share_name(share), share)]
        with self._server.pipeline(transaction=True) as last:
            for number in sorted(self._slices):
                last.rename(self._keys.restoring(number), self._keys.retained(number))
            self._groups.make_visible(last)
            self._logs.make_visible(last)
            if shares:
                last.hset(self._keys.durable_owners(self._node), items=shares)
            last.execute()


def _is_left(key: bytes) -> bool:
    """Whether *key*, behind its hash tag, is one that a restore writes, and no worker."""
    kind, _, name = key.partition(b":")
    return kind == RESTORING or (kind in KINDS and name.startswith(SHARE))


def _index_value(client: bytes, fields: list[bytes]) -> bytes:
    """What the index says of the session of *client*, whose record has *fields*."""
    if not is_session(client):
        return READ
    try:
        return read_record(fields).index_value()
    except DamagedRecord:  # or its client was connected
        return READ


def share_name(share: int) -> bytes:
    """In place of the incarnation of a worker."""
    return SHARE + b"%02x" % share
