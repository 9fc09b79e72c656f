# Shared bodies: the body of a message that many queues of a worker get is stored once, and their packs refer to it.
#
# A publish to 1 000 absent sessions of 300 bytes was 1 000 times 300 bytes for the worker to send and for the server to
# parse, to log and to keep. Now each queue gets a reference of some 4 bytes within a pack, or a pack of 30 bytes.
#
# Bodies are stored in groups: those of one transaction with the same topic and QoS, as they have the same receivers. A
# group is a hash with a field for each body, and one that counts the packs that refer to it.
# - It is written in the transaction that writes these packs, and no other one adds to it: a publish whose receivers are
#   served in several transactions is in a group of each of them. So a reference never is without its body, and a count
#   only falls.
# - It is reduced in the transaction that removes the packs, once for all packs of a transaction, and the group is
#   deleted with the last one: so whatever ends in between, the count is that of the packs in lists.
# - Where that would need packs that are not read (a session ends), the list gets another name first, and is taken apart
#   page by page (dropped_queues.py).
# - A reference is good for whoever has the queue: a group is never renamed, and every worker reduces its count.
#
# The packs of a transaction whose messages are the same differ in their heads alone. What is behind the head is encoded
# once for all of them (`WidePack`), whether bodies are shared or not. Interpreted, a publish of 36 bytes to 1 000
# absent sessions takes a fifth less CPU with that.
#
# A worker from which sessions were taken, or whose sessions were adopted, may reduce counts for packs that it does not
# own any more. They would fall twice, and others would miss a body. So the script that reduces them does nothing if the
# fence of the worker has grown. What is not reduced for that, or as a queue was damaged, stays until its group expires,
# which it does after all messages in it have ended.
#
# A list that waits for a shared subscription (shared_lists.py) refers to bodies as the queues of sessions do. A message
# that goes from there to a member is written anew, and so is what returns to a group: one member alone has it.
#
# What it costs, in us of the server for each pack: to write it with one message of 300 bytes 1.0 to 1.2 in place of 1.9
# to 2.1; to remove it, if no other pack of the group is removed with it, 0.9 to 1.6 more. Bodies that save too little
# memory for that stay in the packs: those of few queues, and small ones, the fewer the queues the larger. So a message
# of any size that 1 000 queues get takes 40 bytes of each at most.
#
# Rejected:
# - Groups that only expire, without counts. They would stay for the week that messages may wait, if nobody waits.
# - A count for each body: as much for each message that a client takes, where packs have 10 to 100 messages.
# - A string for each body with its count in the first bytes (BITFIELD): 1.6 to 2.5 us to reduce one.
# - Counts in the memory of the worker: they were lost with it, and each queue had to be read to have them again.
# - One script that appends to all queues: 1.1 to 1.7 us for each in place of 1.0 to 1.3 for RPUSH, although it has one
#   reply only (Redis 6.2, 7.0 and Valkey 9.1).
from collections.abc import Callable, Iterable
from typing import Final, cast

from broker.reasons import StoreFailure
from broker.session.message import GroupMessage, Message
from broker.store.durable.pack import (
    PACK,
    PACK_BYTES,
    DamagedPack,
    Groups,
    Pack,
    Reference,
    StoredMessage,
    add_body,
    encode_body,
    encode_messages,
    groups_of,
)
from broker.store.redis.connection import packed
from broker.store.redis.keys import Keys
from broker.store.redis.pipeline import Command

RECEIVERS: Final = 16  # that a publish waits for, nearly all of them queues: the 300 bytes of a group are 20 for each
REFERENCE: Final = 12  # bytes that a reference takes in a pack of its own, in place of a message; 4 beside others
SAVED: Final = 640  # bytes at least: three times those of a group with a small body, for what it costs
BODIES: Final = 128  # of a group, as many as a pack has messages
GROUP_BYTES: Final = 64 * 1024
MARGIN: Final = 86_400  # seconds that a group outlives its messages: clocks differ, and packs may wait to be stored
REDUCED: Final = 256  # bytes of a transaction that reducing a count takes as long as
BODY_UNITS: Final = 20  # of the reactor's quantum: to make a message of a body that was read, and to send it
COUNT: Final = b""  # the field of a group with the number of packs; those of bodies are the index of each, from 1 on
# KEYS fence of the worker that calls it, groups; ARGV the length of the fence that it knows, for each group how many
# packs are no more, below 0. What is missing had expired.
REDUCE: Final = b"""
if redis.call('LLEN', KEYS[1]) == tonumber(ARGV[1]) then
  for i = 2, #KEYS do
    if redis.call('HINCRBY', KEYS[i], '', ARGV[i]) <= 0 then
      redis.call('UNLINK', KEYS[i])
    end
  end
end
"""
# KEYS groups; ARGV for each how many bodies of it, and which -> for each its bodies. No transaction: a server that is
# full refuses any.
READ: Final = b"""
local answers, at = {}, 1
for i, key in ipairs(KEYS) do
  local last = at + tonumber(ARGV[at])
  answers[i] = redis.pcall('HMGET', key, unpack(ARGV, at + 1, last))
  at = last + 1
end
return answers
"""


class _Group:
    def __init__(self, writer: bytes, number: int) -> None:
        self.number = number
        self.alone = Groups(writer, [number])  # of a pack that refers to no other group
        self.packs = 0  # that refer to it
        self.bodies: list[bytes] = []
        self.size = 0


class WidePack:
    """What the packs of many queues have in common that get the same messages, and nothing else, in a transaction.

    *messages*: as in `encode_messages()`; *size*: their bytes. They end from *earliest* to *latest*. *groups*: of the
    bodies that they refer to, each of which is one of *counted*; None: they refer to none.
    """

    def __init__(
        self, messages: bytes, size: int, earliest: float, latest: float, groups: Groups | None, counted: list[_Group]
    ) -> None:
        self.messages = messages
        self.size = size
        self.earliest = earliest
        self.latest = latest
        self.groups = groups
        self.writer = b"" if groups is None else groups.writer
        self._counted = counted

    def count(self) -> None:
        """One more queue has such a pack."""
        for group in self._counted:
            group.packs += 1


class SharedBodies:
    """The shared bodies of the next transaction of a worker."""

    def __init__(self, keys: Keys, incarnation: bytes, ttl: float) -> None:
        """*incarnation* of the worker, as keys have it. *ttl*: seconds that a message may wait."""
        self.writer: Final = bytes.fromhex(incarnation.decode())  # as packs have it
        self.size = 0  # bytes of a transaction that `collect()` takes, about
        self._keys = keys
        self._prefix = keys.bodies(incarnation)
        self._lasting = int(ttl) + MARGIN
        self._last = 0  # number of the last group
        self._groups: dict[int, _Group] = {}
        self._open: dict[tuple[bytes, int], _Group] = {}  # by topic and QoS
        self._references: dict[Message, Reference] = {}
        self._wide: dict[tuple[Message, ...], WidePack] = {}
        self._reduced: dict[bytes, int] = {}  # packs, by the key of their group

    def refer(self, message: Message) -> Reference | None:
        """Where the body of *message* will be, if it is shared; `refers()` follows, for the pack that has it."""
        completion = message.as_published().completion
        receivers = 0 if completion is None else completion.pending
        if receivers < RECEIVERS or isinstance(message, GroupMessage) or not saves_memory(receivers, message.size):
            return None  # one member of a group has such a message
        reference = self._references.get(message)
        return self._add(message) if reference is None else reference

    def wide(self, messages: tuple[Message, ...], now: float, wall: float) -> WidePack | None:
        """The pack of *messages*, which many queues get with the next transaction; None: they are too many for one.

        All of them have a time at which they end.
        """
        found = self._wide.get(messages)
        if found is None:
            size = sum([message.size for message in messages])
            if len(messages) > PACK or size - messages[-1].size >= PACK_BYTES:
                return None
            found = self._wide[messages] = self._make_wide(messages, size, now, wall)
        return found

    def _make_wide(self, messages: tuple[Message, ...], size: int, now: float, wall: float) -> WidePack:
        stored = [StoredMessage(at, message, self.refer(message)) for at, message in enumerate(messages, 1)]
        groups = groups_of(self.writer, stored)
        counted = [] if groups is None else [self._groups[number] for number in groups.numbers]
        ends = [message.ends for message in messages]
        return WidePack(encode_messages(stored, now, wall), size, min(ends), max(ends), groups, counted)

    def refers(self, messages: list[StoredMessage]) -> Groups | None:
        """The next transaction writes a pack of *messages*, some of which are references: count it."""
        first = messages[0].body
        if first is not None and len(messages) == 1:
            group = self._groups[first.group]
            group.packs += 1
            return group.alone  # one for all packs of a wide fan-out
        groups = groups_of(self.writer, messages)
        if groups is not None:
            for number in groups.numbers:
                self._groups[number].packs += 1
        return groups

    def reduce(self, removed: list[Groups]) -> None:
        """Packs are removed with the next transaction, or lose messages, that referred to the groups *removed*."""
        for groups in removed:
            for number in groups.numbers:
                key = self._key(groups.writer, number)
                if key not in self._reduced:
                    self.size += REDUCED
                self._reduced[key] = self._reduced.get(key, 0) + 1

    def removes(self) -> list[bytes | int]:
        """The groups to be reduced, then by how much each; nothing else is asked for them again."""
        if not self._reduced:
            return []
        words: list[bytes | int] = [*self._reduced, *[-packs for packs in self._reduced.values()]]
        self.size -= REDUCED * len(self._reduced)
        self._reduced = {}
        return words

    def collect(self) -> list[bytes]:
        """The commands of the transaction that store bodies."""
        writes: list[bytes] = []
        for number, group in self._groups.items():
            key = self._key(self.writer, number)
            fields: list[bytes | int] = [COUNT, group.packs]
            for index, body in enumerate(group.bodies, 1):
                fields += [index, body]
            writes.append(packed("HSET", key, *fields))
            writes.append(packed("EXPIRE", key, self._lasting))
        if self._groups:
            self._groups, self._open, self._references = {}, {}, {}
        if self._wide:
            self._wide = {}
        self.size = 0
        return writes

    def read(self, packs: list[Pack]) -> dict[bytes, dict[int, list[StoredMessage]]]:
        """See `bodies_of()`."""
        return bodies_of(self._keys, packs)

    def _add(self, message: Message) -> Reference:
        name = message.topic, message.qos
        group = self._open.get(name)
        if group is None or len(group.bodies) == BODIES or group.size >= GROUP_BYTES:
            self._last += 1
            group = self._open[name] = self._groups[self._last] = _Group(self.writer, self._last)
        body = encode_body(message)
        group.bodies.append(body)
        group.size += len(body)
        self.size += len(body)
        reference = self._references[message] = Reference(group.number, len(group.bodies))
        return reference

    def _key(self, writer: bytes, number: int) -> bytes:
        prefix = self._prefix if writer == self.writer else self._keys.bodies(writer.hex().encode())
        return b"%b%d" % (prefix, number)


def saves_memory(receivers: int, size: int) -> bool:
    """Whether the body of a message of *size* bytes is shared by *receivers*, which are RECEIVERS at least."""
    return receivers * (size - REFERENCE) >= SAVED


def bodies_of(keys: Keys, packs: Iterable[Pack]) -> dict[bytes, dict[int, list[StoredMessage]]]:
    """The messages of *packs* whose bodies are elsewhere, by the key of the group and the index in it."""
    wanted: dict[bytes, dict[int, list[StoredMessage]]] = {}
    for pack in packs:
        prefix = keys.bodies(pack.writer.hex().encode()) if pack.writer else b""
        for stored in pack.messages:
            body = stored.body
            if body is not None and not stored.has_body():
                group = wanted.setdefault(b"%b%d" % (prefix, body.group), {})
                group.setdefault(body.index, []).append(stored)
    return wanted


ThenRead = Callable[[int, str, StoreFailure | None], None]  # how many are missing, why one is damaged, or why none came


class ReadBodies(Command):
    """Reads the bodies that *packs* refer to, of which there is one at least, and adds them to the messages."""

    def __init__(self, bodies: SharedBodies, packs: list[Pack], patience: float, then: ThenRead) -> None:
        self._wanted = bodies.read(packs)
        words: list[bytes | int] = []
        for group in self._wanted.values():
            words += [len(group), *group]
        super().__init__(packed("EVAL", READ, len(self._wanted), *self._wanted, *words), patience)
        self.units += BODY_UNITS * sum([len(group) for group in self._wanted.values()])
        self._then = then

    def replied(self, reply: object, now: float) -> None:
        missing, why = 0, ""
        for group, found in zip(self._wanted.values(), cast(list[object], reply), strict=True):
            if not isinstance(found, list):  # a key of another type
                why = str(found)
                continue
            for messages, data in zip(group.values(), found, strict=True):
                try:
                    missing += add_bodies(messages, data, now)
                except DamagedPack as error:
                    why = str(error)
        self._then(missing, why, None)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._then(0, "", failure)


def add_bodies(messages: list[StoredMessage], data: bytes | None, now: float) -> int:
    """Give each of *messages* the body *data*; returns how many miss one. DamagedPack: it is none of theirs."""
    missing = 0
    for stored in messages:
        if data is not None:
            add_body(stored, data)
        elif stored.message.expired(now):
            stored.message.ends = -1.0  # and is never sent, whatever becomes of the clock
        else:
            missing += 1
    return missing
