# Removals: the writes that Redis carries out also while its memory is full, so that it drains by itself.
#
# A server that has reached its maxmemory refuses a transaction with any command in it, as to queue commands takes
# memory. Then what clients acknowledge could not leave either, and nothing would change before an operator raises
# maxmemory. So each writer tells its removals from its other writes (writer.py). Both leave in one transaction. If the
# server has no memory for that, the removals are sent by themselves, as a call of full.lua, and the rest waits.
#
# What a removal may write is bounded by what it removes, or by what is there:
# - packs, marks, fields and keys that are removed; a pack that is replaced by what is left of it
# - a mark for a message of QoS 2 whose PUBREC has come (marks.py): 8 bytes, or some 70 in a set of more than 512; one
#   for each message that is stored, in its client's window, at most. Without it the message would stay.
# - a session that gets another owner: its keys change their names, which have one length. Its record gets LEFT, once.
# - what the index says of a session whose client is back: b"", in place of what it said of the absent one
# - a will that is published: it gets a record of its own, some 200 bytes more, and leaves that of its session
#   (protocol/pending_wills.py)
# - what is saved of a partition that a session has leased, which moves from its record to its group (lease_scripts.py)
# - the number of the call, in place of the last one
#
# Nothing else may be in it: messages, subscriptions, new wills and tokens are what clients could fill Redis with.
# A token that a queue has taken is stored with its message and in no other way (tokens.py), so removals forget none.
#
# The fence and the commit number are those of a transaction, and so is what follows from a lost answer.
#
# Rejected: a pipeline of single commands. If a part of it were carried out, a pack could stay whose mark is gone, and
# its message would be sent twice.
from collections.abc import Sequence
from importlib.resources import files
from typing import Final, cast

from broker.store.durable.index import SET_INDEX
from broker.store.durable.shared_bodies import REDUCE
from broker.store.redis.connection import packed, packed_numbers

Words = tuple[bytes | str | int, ...]  # a command: its name, and what follows

MARK: Final = "SADD"
UNMARK: Final = "SREM"  # of marks, which are numbers, or of other members
GIVE: Final = "give"
INDEX: Final = "index"  # what the index says of a session that is in it: see SET_INDEX
REDUCED: Final = "reduce"
RELEASE: Final = "release"  # a lease of a partition, see RELEASE_LEASE
# KEYS fence of the worker, record of the session, state of the group; ARGV how many client ids of the fence it knows,
# the client id, the field of the lease in the record, that of the partition in the state, channel, notice. Nothing is
# done for a session that was taken from the worker. What is saved of the partition moves from record to state.
RELEASE_LEASE: Final = b"""
for _, taken in ipairs(redis.call('LRANGE', KEYS[1], ARGV[1], -1)) do
  if taken == ARGV[2] or taken == '' then
    return 0
  end
end
local lease = redis.pcall('HGET', KEYS[2], ARGV[3])
if type(lease) ~= 'string' then
  return 0
end
redis.call('HDEL', KEYS[2], ARGV[3])
local state = redis.pcall('HGET', KEYS[3], ARGV[4])
if type(state) ~= 'string' or string.sub(state, 1, 17) ~= 'L' .. string.sub(lease, 1, 16) then
  return 0
end
redis.call('HSET', KEYS[3], ARGV[4], 'F' .. string.sub(lease, 17))
redis.call('PUBLISH', ARGV[5], ARGV[6])
return 1
"""
SHORT: Final = 100  # entries of a session that is passed on with the answer, which is little work for three workers


def _text(name: str) -> bytes:
    """The script in the file *name*, without the lines that are comments: some are sent with each call."""
    lines = files("broker.store.durable").joinpath(name).read_bytes().splitlines()
    return b"\n".join([line for line in lines if not line.startswith(b"--")])


GIVING: Final = _text("giving.lua")
# A worker gives one session away. KEYS both indexes, commit number of the new owner; ARGV the op, client id, keys of
# the former owner, keys of the new one, Unix time in seconds. The answer is what `read` of sessions.lua answers for
# the session, if that is SHORT; 1: it is not short; 0: there is no such session, or it was taken before: this may
# arrive long after the death of the worker, behind writes to keys that nobody reads any more. It is an error if the
# new owner has ended.
#
# It is sent with each session that moves, and the server takes the digest of its text each time: as a part of
# sessions.lua it cost 110 us.
GIVE_SESSION: Final = (
    GIVING
    + b"""
local words = { KEYS[1], KEYS[2], KEYS[3], unpack(ARGV) }
local answer = give(words)
if answer ~= 1 then
  return answer
end
local client = words[5]
local record, queue, released = words[9] .. client, words[10] .. client, words[11] .. client
local fields, ids = redis.pcall('HLEN', record), redis.pcall('SCARD', released)
if type(fields) ~= 'number' or fields > %d or type(ids) ~= 'number' or ids > %d then
  return 1
end
return session(record, queue, released)
"""
    % (SHORT, SHORT)
)
SESSIONS: Final = GIVING + b"\n" + _text("sessions.lua")
FULL: Final = GIVING + b"\n" + _text("full.lua")


def size_of(words: Words) -> int:
    """Bytes of a command, about."""
    return sum([len(word) if isinstance(word, (bytes, str)) else 8 for word in words])


def in_transaction(words: Words, fence: bytes = b"", known: int = 0) -> bytes:
    """The removal *words* as a command of a transaction. *fence*: its key, of which the worker knows *known* ids."""
    if words[0] == GIVE:
        return packed("EVAL", GIVE_SESSION, 3, *words[1:])
    if words[0] == INDEX:
        return packed("EVAL", SET_INDEX, 1, *words[1:])
    if words[0] == REDUCED:
        groups = (len(words) - 1) // 2
        return packed("EVAL", REDUCE, 1 + groups, fence, *words[1 : 1 + groups], known, *words[1 + groups :])
    if words[0] == RELEASE:
        return packed("EVAL", RELEASE_LEASE, 3, fence, *words[1:3], known, *words[3:])
    if words[0] in (MARK, UNMARK) and isinstance(words[2], int):
        return packed_numbers(words[0], cast(bytes, words[1]), cast("tuple[int, ...]", words[2:]))
    return packed(*words)


def call_of(removals: Sequence[Words], fence: bytes, known: int, number_key: bytes, number: int) -> bytes:
    """The call of full.lua that carries *removals* out, as the transaction *number*."""
    arguments: list[bytes | str | int] = [known, number]
    for words in removals:
        arguments.append(len(words))
        arguments += words
    return packed("EVAL", FULL, 2, fence, number_key, *arguments)
