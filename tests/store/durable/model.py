# A Redis that is a model: it executes commands when the test says so, and answers when the test says so.
#
# It knows the commands that durable sessions use. The test may cut the connection between any two of its steps, so that
# commands or replies are lost, and may have it refuse writes, as a server does whose memory is full.
#
# What was executed is lost with the process until it is written to the append-only file, and what was written is lost
# with the power until it is synced. Redis writes before it answers, and with `appendfsync always` it syncs then, too
# (https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/): so an answer moves these marks.
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from hiredis import Reader, ReplyError

from broker.store.durable.adoption import JOIN
from broker.store.durable.dropped_queues import is_dropped
from broker.store.durable.group_commit import LOOK
from broker.store.durable.index import SET_INDEX
from broker.store.durable.removals import FULL, GIVE_SESSION, INDEX, RELEASE, RELEASE_LEASE
from broker.store.durable.replication import MARK
from broker.store.durable.shared_bodies import COUNT, READ, REDUCE
from broker.store.durable.stored_session import LEFT
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import RedisConnection

Reply = bytes | int | None | Exception | list["Reply"]
Kind = TypeVar("Kind", list[bytes], set[bytes], dict[bytes, bytes])
# What a server refuses whose memory is full: the commands with the flag `denyoom`, and what is to be queued for a
# transaction. A script is refused at the first of these, unless it has written something before, as all scripts do.
DENIED_WHEN_FULL = frozenset((b"RPUSH", b"LSET", b"SADD", b"SET", b"HSET"))
# What full.lua runs: nothing else may be in it.
SHORT = 3  # entries: so that a session is given with what is to be read of it, and without that
REMOVALS = frozenset((b"LTRIM", b"LSET", b"LREM", b"SREM", b"SADD", b"HSET", b"HDEL", b"DEL", b"RENAME", b"EXISTS"))
READS = frozenset((b"LRANGE", b"LINDEX", b"LLEN", b"GET", b"HGETALL", b"HMGET", b"HSCAN", b"SMEMBERS", b"EXISTS"))


class ModelServer:
    """What all connections to one Redis have in common. No value is ever changed: it is replaced."""

    def __init__(self, always: bool = False, strict: bool = True) -> None:
        """*always*: what is written is synced (`appendfsync always`).

        *strict*: it is a mistake to remove or replace what is not there, as no worker does whose session was not taken.
        """
        self.strict = strict
        self.values: dict[bytes, Any] = {}  # lists, sets, bytes, dicts: what was executed
        self.ends: dict[bytes, int] = {}  # seconds that a key lasts, if it was told how long
        self.full = False  # writes are refused
        self.down = False  # nobody can connect
        self.knows_script = False
        self.changed = False  # since the last `write()`
        self.former: dict[int, ModelRedis] = {}  # connections that workers have left, and the server has not, by id
        self.last_id = 0  # that a connection got
        self._always = always
        self._written: dict[bytes, Any] = {}
        self._synced: dict[bytes, Any] = {}

    def write(self) -> None:
        """Write what was executed to the append-only file."""
        if self.changed:
            self.changed = False
            self._written = dict(self.values)
            if self._always:
                self._synced = self._written

    def keep(self, key: bytes, value: bytes) -> None:
        """Have *value* under *key*, as if it had been synced long ago."""
        for values in (self.values, self._written, self._synced):
            values[key] = value

    def sync(self) -> None:
        """Sync what was written, as the server does once a second."""
        self._synced = self._written

    def end(self, power: bool) -> None:
        """The process ends, or loses its *power*; it is there again with what was written, or synced.

        The connections are to be ended before: `ModelRedis.cut()`.
        """
        if power:
            self._written = self._synced
        self.values.clear()
        self.values.update(self._written)
        self.changed = self.knows_script = False
        self.former.clear()


class ModelReplica:
    """A replica of the server. It gets what it lacks when WAIT is executed, and not before."""

    def __init__(self) -> None:
        self.values: dict[bytes, Any] = {}
        self.away = False  # it gets and confirms nothing


class ModelRedis:
    """A `ByteStream` with the server behind it."""

    def __init__(self, server: ModelServer | None = None, replica: ModelReplica | None = None) -> None:
        """*server*: that of another connection. *replica*: of the server."""
        self.server = server or ModelServer()
        self.values = self.server.values
        self.ends = self.server.ends
        self.replica = replica
        self._wrote = False  # over this connection
        self.connection: RedisConnection | None = None
        self.address: RedisAddress | None = None  # that was connected to last
        self._received: deque[list[bytes]] = deque()  # commands that are not executed
        self._answers: deque[bytes] = deque()  # that the worker has not received
        self._reader = Reader()
        self._queued: list[list[bytes]] | None = None  # between MULTI and EXEC
        self._aborted = False
        self._held_back: deque[list[bytes]] = deque()
        self._id = 0
        self._name = b""
        self.left_by: ModelRedis | None = None  # whose former connection it is
        self.cut_after = 0  # executed commands; 0: the connection stays

    # The worker's end.

    def open(self, address: RedisAddress, connection: RedisConnection) -> str:
        if self.server.down:
            return "nobody listens"
        self.connection = connection
        self.address = address
        self._reader = Reader()
        self._wrote = False
        self.server.last_id += 1
        self._id = self.server.last_id
        return ""

    def write(self, data: bytes) -> None:
        self._reader.feed(data)
        while (command := self._reader.gets()) is not False:
            self._received.append(command)

    def unread(self) -> bool:
        return False

    def close(self) -> None:
        self.connection = None
        self._received.clear()
        self._answers.clear()
        self._queued = None

    # The test's end.

    def busy(self) -> bool:
        return bool(self._received or self._answers)

    def execute(self, most: int = 1 << 30) -> None:
        """Execute up to *most* commands that have arrived."""
        while self._received and most:
            most -= 1
            self._answers.append(self._executed(self._received.popleft()))
            if self.cut_after:
                self.cut_after -= 1
                if not self.cut_after:
                    self.cut(now=0.0)

    def answer(self, now: float, most: int = 1 << 30) -> None:
        """Have the worker receive up to *most* answers. What was executed is written before."""
        self.server.write()
        if self.connection is not None and len(self._answers) <= most:
            answers = b"".join(self._answers)
            self._answers.clear()
            if answers:
                self.connection.receive(answers, 1 << 30, now)
            return
        while self._answers and most and self.connection is not None:
            most -= 1
            self.connection.receive(self._answers.popleft(), 1 << 30, now)

    def cut(self, now: float) -> None:
        """End the connection: what was not executed never will be, and answers are lost."""
        if self.connection is not None:
            self.connection.lost("cut", now)

    def leave(self, now: float) -> None:
        """As `cut()`, but the server has not noticed: it executes later what has arrived."""
        if self.connection is not None and self._received:
            left = self.server.former[self._id] = ModelRedis(self.server)
            left._received, self._received = self._received, deque()
            left._queued, left._aborted, left._name = self._queued, self._aborted, self._name
            left.left_by = self
        self.cut(now)

    def hold_back(self) -> None:
        """What has arrived is executed with `let_through()`, although the connection has ended."""
        self._held_back, self._received = self._received, deque()

    def let_through(self) -> None:
        for command in self._held_back:
            self._executed(command)

    def _executed(self, words: list[bytes]) -> bytes:
        name = words[0].upper()
        if name == b"MULTI":
            self._queued, self._aborted = [], False
            return b"+OK\r\n"
        if name == b"EXEC":
            queued, self._queued = self._queued or [], None
            if self._aborted:
                return b"-EXECABORT Transaction discarded because of previous errors.\r\n"
            return b"*%d\r\n%b" % (len(queued), b"".join([self._run(each) for each in queued]))
        if self.server.full and (name in DENIED_WHEN_FULL or self._queued is not None):
            self._aborted = True
            return b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
        if self._queued is not None:
            self._queued.append(words)
            return b"+QUEUED\r\n"
        return self._run(words)

    def _run(self, words: list[bytes]) -> bytes:
        try:
            return packed_reply(self._reply(words[0].upper(), words[1] if len(words) > 1 else b"", words[2:]))
        except WrongType:
            return b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
        except KeyError:
            return b"-ERR no such key\r\n"

    def _reply(self, name: bytes, key: bytes, words: list[bytes]) -> Reply:
        if name == b"CLIENT":
            return self._client(key, words)
        if name in (b"SCRIPT", b"PING"):
            self.server.knows_script |= name == b"SCRIPT"
            return b"OK"
        if name == b"WAIT":
            return self._wait()
        if name not in READS:
            self.server.changed = self._wrote = True
        if name in (b"EVALSHA", b"EVAL"):
            count = int(words[0])
            keys, words = words[1 : 1 + count], words[1 + count :]
            if key == REDUCE:
                self._reduce(keys, words)
                return None
            if key in OTHERS:
                return OTHERS[key](self, keys, words)
            self.server.knows_script |= name == b"EVAL"
            if not self.server.knows_script:
                return ReplyError("NOSCRIPT No matching script. Please use EVAL.")
            return self._script(keys, words)
        if name == b"EXISTS":
            return int(key in self.values)
        if name == b"SET":
            if b"NX" in words and key in self.values:
                return None
            self.values[key] = words[0]
            if b"KEEPTTL" not in words:
                self.ends.pop(key, None)
            return b"OK"
        if name == b"EXPIRE":
            if key in self.values:
                self.ends[key] = int(words[0])
            return int(key in self.values)
        if name == b"GET":
            return self.values.get(key)
        if name == b"DEL":
            return len([self.values.pop(each, None) for each in (key, *words)])
        if name == b"RENAME":
            self.values[words[0]] = self.values.pop(key)
            return b"OK"
        if name in (b"RPUSH", b"LTRIM", b"LSET", b"LREM", b"LRANGE", b"LINDEX", b"LLEN"):
            return self._of_list(name, key, words)
        if name in (b"HSET", b"HDEL", b"HGETALL", b"HMGET", b"HSCAN"):
            return self._of_hash(name, key, words)
        return self._of_set(name, key, words)

    def _client(self, command: bytes, words: list[bytes]) -> Reply:
        former = self.server.former
        if command == b"ID":
            return self._id
        if command == b"LIST":
            found = former.get(int(words[1]))
            return b"" if found is None else b"id=%b name=%b age=1\n" % (words[1], found._name)
        if command == b"KILL":
            return int(former.pop(int(words[1]), None) is not None)
        assert command == b"SETNAME"
        self._name = words[0]
        return b"OK"

    def _wait(self) -> int:
        """How many replicas have what was written over this connection; others may lack all."""
        if self.replica is None or self.replica.away or not self._wrote:
            return 0
        self.replica.values = dict(self.values)  # no value is changed in place
        return 1

    def _value(self, key: bytes, kind: type[Kind]) -> Kind:
        value = self.values.get(key, kind())
        if not isinstance(value, kind):
            raise WrongType
        return value

    def _keep(self, key: bytes, value: "list[bytes] | set[bytes] | dict[bytes, bytes]") -> int:
        """Store *value*; a key without elements is none."""
        if value:
            self.values[key] = value
        else:
            self.values.pop(key, None)
        return len(value)

    def _of_list(self, name: bytes, key: bytes, words: list[bytes]) -> Reply:
        found: list[bytes] = self._value(key, list)
        if name == b"RPUSH":
            return self._keep(key, found + words)
        if name == b"LTRIM":
            count, last = int(words[0]), int(words[1])
            assert last == -1
            if found:  # else a worker does not know yet that its session was taken
                assert count <= len(found) or not self.server.strict, "more is removed than there is"
                self._keep(key, found[count:])
            return b"OK"
        if name == b"LSET":
            index = int(words[0])
            assert 0 <= index < len(found) or not self.server.strict, "what is not in the list is replaced"
            if index >= len(found):
                raise KeyError
            self.values[key] = [*found[:index], words[1], *found[index + 1 :]]
            return b"OK"
        if name == b"LREM":
            as_many = found.count(words[1]) == int(words[0])
            assert as_many or not self.server.strict, "more or less is removed than there is"
            self._keep(key, [each for each in found if each != words[1]])
            return int(words[0])
        if name == b"LRANGE":
            first, last = int(words[0]), int(words[1])
            return [*(found[first:] if last == -1 else found[first : last + 1])]
        if name == b"LINDEX":
            return found[int(words[0])] if found else None
        assert name == b"LLEN"
        return len(found)

    def _of_hash(self, name: bytes, key: bytes, words: list[bytes]) -> Reply:
        found: dict[bytes, bytes] = self._value(key, dict)
        if name == b"HSET":
            return self._keep(key, found | dict(zip(words[::2], words[1::2], strict=True)))
        if name == b"HSETNX":
            return self._keep(key, {words[0]: words[1]} | found)
        if name == b"HDEL":
            return self._keep(key, {field: value for field, value in found.items() if field not in words})
        if name == b"HMGET":
            return [found.get(field) for field in words]
        if name == b"HSCAN":
            entries = sorted(found.items())  # in any order, but the same one in each run
            first, most = int(words[0]), int(words[2])
            following = first + most if first + most < len(entries) else 0
            return [b"%d" % following, [part for entry in entries[first : first + most] for part in entry]]
        return [part for field in found.items() for part in field]

    def _of_set(self, name: bytes, key: bytes, words: list[bytes]) -> Reply:
        found: set[bytes] = self._value(key, set)
        if name == b"SADD":
            return self._keep(key, found | set(words)) - len(found)
        if name == b"SREM":
            known = found >= set(words) or b":released:" not in key or not self.server.strict
            assert known, "what is not in the set is removed"
            return self._keep(key, found - set(words))
        assert name == b"SMEMBERS", name
        return [*sorted(found)]

    def _reduce(self, keys: list[bytes], words: list[bytes]) -> None:
        """What the script of shared_bodies.py does."""
        if len(self._value(keys[0], list)) != int(words[0]):
            return
        for group, less in zip(keys[1:], words[1:], strict=True):
            count = int(self._value(group, dict)[COUNT]) + int(less)
            assert count >= 0, "a count was reduced twice"
            self.values[group] = self.values[group] | {COUNT: b"%d" % count}
            if not count:
                del self.values[group]

    def _full(self, keys: list[bytes], words: list[bytes]) -> Reply:
        """What full.lua does."""
        fence = self._look(keys, words[:1])[0]
        self._reply(b"SET", keys[1], [words[1], b"KEEPTTL"])
        answers: list[Reply] = []
        at = 2
        while at < len(words):
            end = at + 1 + int(words[at])
            name, *rest = words[at + 1 : end]
            at = end
            answer: Reply = 0
            try:
                if name == b"reduce":
                    self._reduce([keys[0], *rest[: len(rest) // 2]], [words[0], *rest[len(rest) // 2 :]])
                elif name == INDEX.encode():
                    self._set_index(rest[:1], rest[1:])
                elif name == b"give":
                    given = self._script(rest[:3], rest[3:])
                    answer = given if isinstance(given, ReplyError) else 0
                elif name == RELEASE.encode():
                    self._release([keys[0], *rest[:2]], [words[0], *rest[2:]])
                else:
                    assert name in REMOVALS, f"{name!r} is no removal"
                    self._reply(name, rest[0], rest[1:])
            except WrongType as error:
                answer = error
            except KeyError:
                answer = ReplyError("ERR no such key")
            answers.append(answer)
        return [fence, answers]

    def _set_index(self, keys: list[bytes], words: list[bytes]) -> Reply:
        if words[0] in self._value(keys[0], dict):
            self._of_hash(b"HSET", keys[0], words)
        return 0

    def _release(self, keys: list[bytes], words: list[bytes]) -> Reply:
        """What the script of removals.py does."""
        fence, record, state = keys
        known, client, lease_field, field, _, _ = words
        if {client, b""} & set(self._value(fence, list)[int(known) :]):
            return 0
        lease = self._value(record, dict).get(lease_field)
        if lease is None:
            return 0
        self._of_hash(b"HDEL", record, [lease_field])
        if self._value(state, dict).get(field, b"")[:17] == b"L" + lease[:16]:
            self._of_hash(b"HSET", state, [field, b"F" + lease[16:]])
        return 0

    def _look(self, keys: list[bytes], words: list[bytes]) -> "list[Reply]":
        return [self._of_list(b"LRANGE", keys[0], [words[0], b"-1"]), self.values.get(keys[1])]

    def _read_bodies(self, keys: list[bytes], words: list[bytes]) -> Reply:
        answers: list[Reply] = []
        for key in keys:
            count = int(words[0])
            try:
                answers.append(self._of_hash(b"HMGET", key, words[1 : 1 + count]))
            except WrongType as error:
                answers.append(error)
            words = words[1 + count :]
        return answers

    def _mark(self, keys: list[bytes], words: list[bytes]) -> Reply:
        self._reply(b"SET", keys[1], [b""])
        return self.values.get(keys[0])

    def _join(self, keys: list[bytes], words: list[bytes]) -> Reply:
        self._reply(b"SET", keys[1], [b"0", b"NX"])
        return self._of_hash(b"HSET", keys[0], words)

    def _script(self, keys: list[bytes], words: list[bytes]) -> Reply:
        """What sessions.lua and GIVE_SESSION do."""
        index = self._value(keys[0], dict) if keys else {}
        if words[0] == b"count":
            return len(index)
        if words[0] == b"adopt":
            answers: list[Reply] = []
            if self._value(keys[2], list)[-1:] != [b""]:
                self._of_list(b"RPUSH", keys[2], [b""])
            for client in words[10:]:
                value = index.get(client, b"")
                self._of_hash(b"HDEL", keys[0], [client])
                here = client in self._value(keys[1], dict)
                if is_dropped(client):
                    self._of_hash(b"HSET", keys[1], [client, value])
                    self._move(client, words[1:7])
                    answers.append(client)
                elif words[1] + client in self.values and not here:
                    self._of_hash(b"HSET", keys[1], [client, value])
                    alone = not {words[2] + client, words[3] + client} & self.values.keys()
                    self._move(client, words[1:7])
                    self._of_hash(b"HSETNX", words[4] + client, [LEFT, words[7]])
                    record = self._of_hash(b"HGETALL", words[4] + client, [])
                    answers.append([client, record] if alone and not len(answers) % 2 else client)  # it is bounded
                else:
                    self._reply(b"DEL", words[1] + client, [words[2] + client, words[3] + client])
            return answers
        if words[0] in (b"give", b"take"):
            client = words[1]
            value = index.get(client, b"")
            if words[0] == b"take" and client in self._value(keys[1], dict):
                self._reply(b"DEL", words[2] + client, [words[3] + client, words[4] + client])
                self._of_hash(b"HDEL", keys[0], [client])
            found = client in self._value(keys[0], dict) and words[2] + client in self.values
            if found and (keys[2] not in self.values or keys[2] in self.ends):
                return ReplyError("TAKERENDED the worker that is to own the session has ended")
            if found:
                self._of_hash(b"HDEL", keys[0], [client])
                self._of_hash(b"HSET", keys[1], [client, value])
                self._move(client, words[2:8])
                self._of_hash(b"HSETNX", words[5] + client, [LEFT, words[8]])
            if words[0] == b"give" and not (found and self._is_short(words[5] + client, words[7] + client)):
                return int(found)
            if words[0] == b"take" and found:
                self._of_list(b"RPUSH", keys[3], [client])
            return self._read(*[words[kind] + client for kind in (5, 6, 7)])
        assert b"read" == words[0]
        return [self._read(*[words[kind] + client for kind in (1, 2, 3)]) for client in words[4:]]

    def _move(self, client: bytes, words: list[bytes]) -> None:
        """*words*: the three kinds of keys of the former owner, and those of the new one."""
        for kind in range(3):
            if words[kind] + client in self.values:
                self._reply(b"RENAME", words[kind] + client, [words[kind + 3] + client])

    def _is_short(self, record: bytes, released: bytes) -> bool:
        fields, members = self.values.get(record), self.values.get(released, set())
        return isinstance(fields, dict) and len(fields) <= SHORT and isinstance(members, set) and len(members) <= SHORT

    def _read(self, record: bytes, queue: bytes, released: bytes) -> Reply:
        wanted = [(b"HGETALL", record, []), (b"LINDEX", queue, [b"0"]), (b"LINDEX", queue, [b"-1"])]
        wanted += [(b"LLEN", queue, []), (b"SMEMBERS", released, [])]
        answers: list[Reply] = []
        for name, key, words in wanted:
            try:
                answers.append(self._reply(name, key, words))
            except WrongType as error:
                answers.append(error)
        return answers


class WrongType(Exception):
    """A command for another kind of value."""


OTHERS: Final[dict[bytes, Callable[[ModelRedis, list[bytes], list[bytes]], Reply]]] = {
    FULL: ModelRedis._full,
    SET_INDEX: ModelRedis._set_index,
    LOOK.encode(): ModelRedis._look,
    READ: ModelRedis._read_bodies,
    MARK: ModelRedis._mark,
    JOIN: ModelRedis._join,
    RELEASE_LEASE: ModelRedis._release,
    GIVE_SESSION: lambda redis, keys, words: redis._script(keys, words),
}


def packed_reply(reply: Reply) -> bytes:
    if isinstance(reply, WrongType):
        return b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
    if isinstance(reply, Exception):
        return b"-%b\r\n" % str(reply).encode()
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    return b"*%d\r\n%b" % (len(reply), b"".join([packed_reply(each) for each in reply]))
