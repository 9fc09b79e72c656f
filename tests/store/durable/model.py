# A Redis that is a model: it executes commands when the test says so, and answers when the test says so.
#
# It knows the commands that durable sessions use. The test may cut the connection between any two of its steps, so that
# commands or replies are lost, and may have it refuse writes, as a server does whose memory is full.
from collections import deque

from hiredis import Reader

from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import RedisConnection

Reply = bytes | int | None | list["Reply"]
WRITES = (b"RPUSH", b"LPOP", b"SADD", b"SREM", b"SET", b"DEL")


class ModelRedis:
    """A `ByteStream` with the server behind it."""

    def __init__(self) -> None:
        self.lists: dict[bytes, list[bytes]] = {}
        self.sets: dict[bytes, set[bytes]] = {}
        self.strings: dict[bytes, bytes] = {}
        self.full = False  # writes are refused
        self.connection: RedisConnection | None = None
        self._received: deque[list[bytes]] = deque()  # commands that are not executed
        self._answers: deque[bytes] = deque()  # that the worker has not received
        self._reader = Reader()
        self._queued: list[list[bytes]] | None = None  # between MULTI and EXEC
        self._aborted = False

    # The worker's end.

    def open(self, address: RedisAddress, connection: RedisConnection) -> str:
        self.connection = connection
        self._reader = Reader()
        return ""

    def write(self, data: bytes) -> None:
        self._reader.feed(data)
        while (command := self._reader.gets()) is not False:
            self._received.append(command)

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

    def answer(self, now: float, most: int = 1 << 30) -> None:
        """Have the worker receive up to *most* answers."""
        while self._answers and most and self.connection is not None:
            most -= 1
            self.connection.receive(self._answers.popleft(), 1 << 30, now)

    def cut(self, now: float) -> None:
        """End the connection: what was not executed never will be, and answers are lost."""
        if self.connection is not None:
            self.connection.lost("cut", now)

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
        if self.full and name in WRITES:
            self._aborted = True
            return b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
        if self._queued is not None:
            self._queued.append(words)
            return b"+QUEUED\r\n"
        return self._run(words)

    def _run(self, words: list[bytes]) -> bytes:
        name, key = words[0].upper(), words[1] if len(words) > 1 else b""
        if name == b"PING":
            return b"+PONG\r\n"
        if name == b"CLIENT":
            return b"+OK\r\n"
        if name == b"SET":
            self.strings[key] = words[2]
            return b"+OK\r\n"
        if name == b"GET":
            return packed_reply(self.strings.get(key))
        found = self.lists.get(key, [])
        if name == b"RPUSH":
            self.lists[key] = [*found, *words[2:]]
            return b":%d\r\n" % len(self.lists[key])
        if name == b"LPOP":
            count = int(words[2])
            assert count <= len(found), "more is removed than there is"
            self.lists[key] = found[count:]
            if not self.lists[key]:
                del self.lists[key]
            return packed_reply(list(found[:count]))
        if name == b"LRANGE":
            first, last = int(words[2]), int(words[3])
            return packed_reply(list(found[first:] if last == -1 else found[first : last + 1]))
        if name == b"LINDEX":
            return packed_reply(found[int(words[2])] if found else None)
        if name == b"LLEN":
            return packed_reply(len(found))
        if name == b"SADD":
            self.sets.setdefault(key, set()).update(words[2:])
            return b":%d\r\n" % len(words[2:])
        if name == b"SREM":
            members = self.sets.get(key, set())
            assert members >= set(words[2:]), "what is not in the set is removed"
            members.difference_update(words[2:])
            if not members:
                del self.sets[key]
            return b":%d\r\n" % len(words[2:])
        if name == b"SMEMBERS":
            return packed_reply(list(self.sets.get(key, set())))
        assert name == b"DEL", name
        for each in words[1:]:
            self.lists.pop(each, None)
            self.sets.pop(each, None)
        return b":1\r\n"


def packed_reply(reply: Reply) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    return b"*%d\r\n%b" % (len(reply), b"".join([packed_reply(each) for each in reply]))
