# Inheritance: what a worker of a dead node has stored goes to a worker of a node that lives, which adopts it then.
#
# One call of a script makes the dead worker a former owner of the heir's shard, as if it had been a worker of the
# heir's node. So of two heirs one has it; the dead node, when it comes back, finds it no more, or has it still and
# nobody else; and if the heir dies, too, whoever follows or settles that worker goes on, as with its other former
# owners. Nothing else of adoption differs.
#
# The node may be alive: stopped, or cut off. Its worker is fenced in the same call: its fence says so, and it can
# be given no session any more. With its next transaction it learns that, and counts nothing of it as committed
# (group_commit.py). One that the server had read before was answered, or is repeated to nobody: its sessions are read
# behind it.
# A node that has its lease again, by the clock of Redis, is left alone: it adopts what is still its own.
from collections.abc import Callable
from typing import Final

from broker.reasons import StoreFailure
from broker.store.redis.connection import packed
from broker.store.redis.keys import FENCED_FOR, Keys
from broker.store.redis.pipeline import CallbackCommand, Command
from broker.worker_id import WorkerId

PATIENCE: Final = 60.0  # seconds, as for adoption

# KEYS nodes, owners of the dead node, owners of the heir's, fence and commit number of the dead worker; ARGV the dead
# node, the dead worker, shard of the heir, seconds that the fence stays. 1: the heir has it, and 2: by a call before.
# HDEL is first for a server that is full: see full.lua.
INHERIT: Final = b"""
local lease = redis.call('HGET', KEYS[1], ARGV[1])
local till = lease and string.match(lease, '^%S+ (%d+) ')
local time = redis.call('TIME')
if till and tonumber(till) > time[1] * 1000 + math.floor(time[2] / 1000) then
  return 0
end
if redis.call('HDEL', KEYS[2], ARGV[2]) == 0 then
  return redis.call('HGET', KEYS[3], ARGV[2]) == ARGV[3] and 2 or 0
end
redis.call('HSET', KEYS[3], ARGV[2], ARGV[3])
redis.call('RPUSH', KEYS[4], '')
redis.call('EXPIRE', KEYS[4], ARGV[4])
redis.call('EXPIRE', KEYS[5], ARGV[4])
return 1
"""


def owners_of(keys: Keys, node: str, then: Callable[[list[WorkerId] | None], None]) -> Command:
    """The command that asks for the workers of *node* whose durable sessions nobody has adopted. None: no answer."""

    def answered(reply: object, failure: StoreFailure | None) -> None:
        then(_workers(node, reply) if failure is None else None)

    return CallbackCommand(packed("HGETALL", keys.durable_owners(node)), PATIENCE, answered)


def _workers(node: str, reply: object) -> list[WorkerId]:
    assert isinstance(reply, list)
    found: list[WorkerId] = []
    for incarnation, shard in zip(reply[::2], reply[1::2], strict=True):
        try:
            found.append(WorkerId(node, int(shard) if shard.isdigit() else 0, int(incarnation, 16)))
        except ValueError:  # no worker has written it
            continue
    return found


def inherit(keys: Keys, dead: WorkerId, heir: WorkerId, then: Callable[[bool | None], None]) -> Command:
    """The command that makes *dead* a former owner of the shard of *heir*; *then* gets whether it is one of *heir*.

    None: there was no answer; a second call does no harm.
    """
    former = dead.incarnation_text.encode()
    names = [keys.nodes, keys.durable_owners(dead.node), keys.durable_owners(heir.node)]
    names += [keys.fence(former), keys.commit_number(former)]
    words = packed("EVAL", INHERIT, len(names), *names, dead.node, former, heir.shard, FENCED_FOR)

    def answered(reply: object, failure: StoreFailure | None) -> None:
        then(None if failure is not None else reply != 0)

    return CallbackCommand(words, PATIENCE, answered)
