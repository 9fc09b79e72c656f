# Reads the durable state in a Redis into a backup, while nodes may run.
#
# - What belongs to one session is read in one call, so it fits together: a record, the marks and the queue are of one
#   moment. Two sessions are of two moments, and a change that is made meanwhile is in the backup or not.
# - Sessions move between workers, and their keys with them. All indexes of a slice are read in one call, so each
#   session is found that is there then; it is read wherever it is. One that is at no worker any more has ended.
# - Bodies that many queues share are read after the queues that refer to them, and are in the backup in each of these
#   (whole_packs.py). A queue that waits to be taken apart, as its session has ended, has no record: it is none of them.
# - What waits for a shared subscription is stored as a session is (store/durable/shared_lists.py), and read before all
#   sessions, and what returns to one (store/durable/returned.py) before that: a message that moves on meanwhile may be
#   in the backup twice, and is not missing. What a session that ends meanwhile returns may be missing.
# - How far groups of APPLICATION clients have read the logs that they share is read before all of that (groups.py), and
#   logs behind it (logs.py).
# - It takes the memory of one slice's client ids and of one call's sessions here, and of the latter in the server: CALL
#   bytes, or one whole queue (limits.queue_bytes).
#
# The server may have the sessions of several nodes under one prefix: all of them are read.
#
# SCAN for the keys of sessions was rejected: a key that is renamed while they are scanned may not be found under either
# name.
from collections.abc import Iterable
from typing import Any, Final

import redis
from redis.exceptions import ResponseError

from broker.store.durable.group_queue import is_group, is_pending_will, is_returned, is_session
from broker.store.durable.stored_session import LOG
from broker.store.durable.tokens import believed_fields
from broker.store.redis.keys import SLICES, Keys
from supervisor.backup.backup_file import BackupWriter
from supervisor.backup.groups import export_groups
from supervisor.backup.logs import LogExport
from supervisor.backup.whole_packs import whole_packs

CALL: Final = 2 << 20  # bytes of sessions in one call, about: the server is busy for some milliseconds
SESSIONS: Final = 100  # in one call
PAGE: Final = 50  # retained messages in one call: a page of the largest ones has some megabytes
# ARGV: bytes after which no further session is read, how many workers, for each of them the keys of records, queues and
# marks, client ids. -> for each client id, as far as the bytes go, {record, packs, marks}; false: it is at no worker;
# an error: a key is of another type.
SCRIPT: Final = """
local limit, workers, size, found = tonumber(ARGV[1]), tonumber(ARGV[2]), 0, {}
local function read(client)
  for at = 3, workers * 3, 3 do
    local record = ARGV[at] .. client
    if redis.call('EXISTS', record) == 1 then
      local parts = {
        redis.pcall('HGETALL', record),
        redis.pcall('LRANGE', ARGV[at + 1] .. client, 0, -1),
        redis.pcall('SMEMBERS', ARGV[at + 2] .. client),
      }
      for _, part in ipairs(parts) do
        if part.err then
          return part
        end
        for _, value in ipairs(part) do
          size = size + #value
        end
      end
      return parts
    end
  end
  return false
end
for at = 3 + workers * 3, #ARGV do
  if size >= limit then
    break
  end
  found[#found + 1] = read(ARGV[at])
end
return found
"""
# KEYS: indexes -> the client ids in each. That of a worker that ended before DURABLE_FORMAT 3 is a set.
CLIENTS: Final = """
local found = {}
for i, index in ipairs(KEYS) do
  found[i] = redis.call(redis.call('TYPE', index).ok == 'set' and 'SMEMBERS' or 'HKEYS', index)
end
return found
"""


class Export:
    def __init__(
        self, server: "redis.Redis", keys: Keys, backup: BackupWriter, era: bytes = b"", logs: LogExport | None = None
    ) -> None:
        """*era*: of the data in *server*, see `StoredTokens.era`. *logs*: of APPLICATION clients."""
        self.services = 0  # sessions with logs
        self.unreadable: list[bytes] = []  # client ids of sessions, and keys, that are damaged: the backup lacks them
        self._server = server
        self._keys = keys
        self._backup = backup
        self._era = era
        self._logs = logs
        self._workers: list[bytes] = []  # incarnations of those that have, or had, durable sessions

    def run(self) -> None:
        """redis.RedisError, BackupUnusable."""
        self.unreadable += export_groups(self._server, self._keys, self._backup)
        for of_kind in (is_returned, is_group, is_session, is_pending_will):
            for number in range(SLICES):
                self._workers = self._find_workers()
                self._read(number, [name for name in self._clients(number) if of_kind(name)])
        for number in range(SLICES):
            self._read_retained(self._keys.retained(number))
        if self._logs is not None:
            self._logs.run()
            self.unreadable += self._logs.unreadable

    def _find_workers(self) -> list[bytes]:
        found: set[bytes] = set()
        for owners in self._server.scan_iter(match=self._keys.all_durable_owners(), count=1000):
            workers: Any = self._server.hkeys(owners)
            found.update(workers)
        return sorted(found)

    def _clients(self, number: int) -> list[bytes]:
        """The client ids of all sessions in the slice *number* at one moment."""
        indexes = [self._keys.sessions(number, worker).index for worker in self._workers]
        found: Any = self._server.eval(CLIENTS, len(indexes), *indexes)
        return sorted(set[bytes]().union(*found))

    def _read(self, number: int, clients: list[bytes]) -> None:
        missing: list[bytes] = []
        while clients:
            asked = clients[:SESSIONS]
            found = self._ask(number, asked)
            for client, parts in zip(asked, found, strict=False):
                if parts is None:
                    missing.append(client)
                else:
                    self._take(number, client, parts)
            clients = clients[len(found) :]
        if missing:
            known, self._workers = self._workers, self._find_workers()
            if not set(self._workers) <= set(known):  # a worker has been started, which may have taken them
                self._read(number, missing)

    def _ask(self, number: int, clients: Iterable[bytes]) -> list[Any]:
        keys: list[bytes] = []
        for worker in self._workers:
            of_worker = self._keys.sessions(number, worker)
            keys += (of_worker.records, of_worker.queues, of_worker.released)
        found: Any = self._server.eval(SCRIPT, 0, CALL, len(self._workers), *keys, *clients)
        return list(found)

    def _take(self, number: int, client: bytes, parts: Any) -> None:
        if isinstance(parts, ResponseError):
            self.unreadable.append(client)
            return
        fields, packs, marks = parts
        if not all(position.isdigit() for position in marks):
            self.unreadable.append(client)
            return
        whole, lacking = whole_packs(self._server, self._keys, packs)
        if lacking and self._has(number, client, lacking):
            self.unreadable.append(client)
            return
        self.services += LOG in fields[::2]
        self._backup.session(client, believed_fields(fields, self._era), sorted(map(int, marks)), whole)

    def _has(self, number: int, client: bytes, packs: list[bytes]) -> bool:
        """Whether some of *packs*, which were those of *client*, are so still."""
        (parts,) = self._ask(number, [client])
        return isinstance(parts, list) and not set(packs).isdisjoint(parts[1])

    def _read_retained(self, key: bytes) -> None:
        cursor = 0
        try:
            while True:
                answer: Any = self._server.hscan(key, cursor, count=PAGE)
                cursor, page = answer
                self._backup.retained([part for item in page.items() for part in item])
                if cursor == 0:
                    return
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            self.unreadable.append(key)
