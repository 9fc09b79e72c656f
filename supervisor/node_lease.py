# The name of a node among those that share its Redis: a lease, which its supervisor renews.
#
# What nodes have in Redis is told apart by their names (broker/store/redis/keys.py): a node that starts adopts the
# sessions under its own name. Two nodes of one name would take them from each other. So a node that finds another one
# under its name does not start, and one that loses its name ends. A name is free when its node has ended as it should,
# or has not renewed its lease for LEASE; and at once for who has the folder of that node, and so knows that it has
# ended.
#
# Nodes that share a Redis also have to agree on some settings. Each node says its own beside its name, and none starts
# that differs from one that runs.
#
# Time is that of Redis, as the clocks of nodes may differ. Everything is in one hash, as nodes are few, and one script
# then sees all of them. In it, a name has "INCARNATION UNTIL DESCRIPTION": milliseconds of Unix time, and JSON.
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import redis
import trio

from broker.log import Log

LEASE: Final = 10.0  # seconds
RENEW: Final = 3.0  # seconds between two renewals
WAIT: Final = LEASE + 2.0  # seconds for the lease of a node that was killed elsewhere to run out
RETRY: Final = 0.5
FORGOTTEN: Final = 86_400.0  # seconds until a node that has not ended as it should is not listed any more
CLOCK: Final = 5.0  # seconds that clocks may differ: expiry and retained messages go by them
FILE: Final = "incarnation"  # the last one that had the name, in the folder of the node

# Returns {whether the name is ours, time, names and values...}. ARGV: name, incarnation, description, milliseconds of
# the lease and until nodes are forgotten, and a former incarnation that has ended.
TAKE: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local name, me, description, lease, forgotten, former = unpack(ARGV)
local held = redis.call('HGET', KEYS[1], name)
local holder, till
if held then
  holder, till = string.match(held, '^(%S+) (%d+) ')
end
local mine = 0
if not holder or holder == me or holder == former or tonumber(till) <= now then
  mine = 1
  redis.call('HSET', KEYS[1], name, me .. ' ' .. string.format('%d', now + lease) .. ' ' .. description)
end
local found = redis.call('HGETALL', KEYS[1])
for at = 1, #found, 2 do
  local _, until_ = string.match(found[at + 1], '^(%S+) (%d+) ')
  if not until_ or tonumber(until_) + tonumber(forgotten) < now then
    redis.call('HDEL', KEYS[1], found[at])
  end
end
return { mine, tostring(now), unpack(found) }
"""

# Makes the name free if it is ours. ARGV: name, incarnation.
RELEASE: Final = """
local held = redis.call('HGET', KEYS[1], ARGV[1])
if held and string.match(held, '^(%S+) ') == ARGV[2] then
  redis.call('HDEL', KEYS[1], ARGV[1])
end
"""

Server = Callable[[], "redis.Redis"]


class NodeRefused(Exception):
    """The node may not be one of those that share its Redis. The text is one sentence for the user."""


@dataclass(frozen=True, kw_only=True)
class SharingNode:
    """A node that shares a Redis."""

    name: str
    incarnation: str
    left: float  # seconds of its lease; 0.0 or less: it has run out
    about: Mapping[str, Any]  # what it says of itself

    def host(self) -> str:
        return str(self.about.get("host", "?"))


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a node says of itself."""

    name: str
    host: str
    version: str
    folder: str
    workers: int
    agreed: Mapping[str, str]  # settings that have to be those of all nodes; secrets as digests

    def text(self, began: float) -> str:
        known = {"host": self.host, "version": self.version, "folder": self.folder, "workers": self.workers}
        return json.dumps({**known, "began": began, "agreed": dict(self.agreed)}, separators=(",", ":"), sort_keys=True)


class NodeLease:
    def __init__(self, server: Server, key: bytes, shown: str, identity: Identity, folder: Path, log: Log) -> None:
        """*server* opens a client of Redis. *key*: the hash. *shown*: the server, for people."""
        self.incarnation: Final = secrets.token_hex(8)
        self._server = server
        self._key = key
        self.shown: Final = shown
        self._identity = identity
        self._text = identity.text(round(time.time(), 3))
        self._file = folder / FILE
        self._log = log
        self._clock_told = False

    def take(self, pause: Callable[[float], None]) -> None:
        """Become the node of this name, or wait for the lease of a former one to run out: WAIT at most.

        *pause* waits some seconds. NodeRefused: another node has the name, or the settings of others differ. OSError:
        the folder cannot be written to. redis.RedisError.
        """
        former = self._former()
        deadline = time.monotonic() + WAIT
        told = False
        while True:
            mine, nodes = self._ask(former)
            holder = nodes[self._identity.name]
            if not mine and time.monotonic() >= deadline:
                raise NodeRefused(self._name_in_use(holder))
            if mine:
                break
            if not told:
                told = True
                self._log.warning("node_name_waits", host=holder.host(), seconds=round(holder.left, 1))
            pause(RETRY)
        try:
            self._agree(list(nodes.values()))
            self._file.write_text(f"{self.incarnation}\n")
        except BaseException:
            self.release()
            raise

    def renew(self) -> bool:
        """Renew the lease, or take it again if it has run out; false: another node has the name. redis.RedisError."""
        return self._ask("")[0]

    async def keep(self, lost: Callable[[str], None]) -> None:
        """Renew the lease for ever. If another node has the name, *lost* is called with a sentence."""
        while True:
            await trio.sleep(RENEW)
            try:
                mine = await trio.to_thread.run_sync(self.renew, abandon_on_cancel=True)
            except redis.RedisError:  # the workers log that Redis cannot be used
                continue
            if not mine:
                self._log.error("node_name_lost", server=self.shown)
                lost(
                    f"Another node of the name {self._identity.name} has started with {self.shown}, as this one had "
                    f"not renewed its lease for {LEASE:g} s, or as its folder was copied: give each node its own name."
                )
                return

    def release(self) -> None:
        """Make the name free for a node elsewhere. redis.RedisError."""
        with self._server() as server:
            server.eval(RELEASE, 1, self._key, self._identity.name, self.incarnation)

    def nodes(self) -> list[SharingNode]:
        """The nodes that share the server, by name, with those whose leases have run out. redis.RedisError."""
        return sorted(self._ask("")[1].values(), key=lambda node: node.name)

    def _ask(self, former: str) -> tuple[bool, dict[str, SharingNode]]:
        """Take or renew the lease; whether it is ours now, and all nodes by name."""
        before = time.time()
        with self._server() as server:
            arguments = [self._identity.name, self.incarnation, self._text, int(1000 * LEASE), int(1000 * FORGOTTEN)]
            answer = cast("list[Any]", server.eval(TAKE, 1, self._key, *arguments, former))
        after = time.time()
        now = int(answer[1]) / 1000
        self._compare_clocks(now, before, after)
        found: dict[str, SharingNode] = {}
        for name, value in zip(answer[2::2], answer[3::2], strict=True):
            node = _read(name.decode(errors="replace"), value, now)
            if node is not None:
                found[node.name] = node
        return bool(answer[0]), found

    def _former(self) -> str:
        """The incarnation that had the name last in this folder, whose lock this process has."""
        try:
            return self._file.read_text(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def _agree(self, nodes: list[SharingNode]) -> None:
        """NodeRefused: one of *nodes* that runs has other settings where all have to have the same."""
        for node in nodes:
            theirs = node.about.get("agreed")
            if node.name == self._identity.name or node.left <= 0 or not isinstance(theirs, dict):
                continue
            for setting, mine in self._identity.agreed.items():
                other = theirs.get(setting, mine)  # a version of Weir that has no such setting
                if other != mine:
                    raise NodeRefused(_differs(setting, mine, str(other), node, self.shown))

    def _compare_clocks(self, now: float, before: float, after: float) -> None:
        """Warn once if the clock of Redis, which was *now* between *before* and *after* of ours, is another one."""
        off = max(before - now, now - after)
        if off > CLOCK and not self._clock_told:
            self._log.warning("clock_differs", seconds=round(off, 1), server=self.shown)
        self._clock_told = off > CLOCK

    def _name_in_use(self, holder: SharingNode) -> str:
        return (
            f"A node of the name {self._identity.name} runs on {holder.host()} and uses {self.shown}, too: "
            "give this one another name with --name, or another redis.prefix if it is none of that cluster."
        )


def _differs(setting: str, mine: str, other: str, node: SharingNode, shown: str) -> str:
    where = f"the node {node.name} on {node.host()}, which uses {shown}, too"
    if setting == "redis.key_file":
        return f"redis.key_file has another key than that of {where}: give all nodes of a cluster the same file."
    return (
        f'{setting} is "{mine}" here, and "{other}" at {where}: it has to be the same on all nodes of a cluster. If '
        "these are two clusters, give this one its own redis.prefix."
    )


def _read(name: str, value: bytes, now: float) -> SharingNode | None:
    """None: it is no node."""
    parts = value.split(b" ", 2)
    try:
        about = json.loads(parts[2])
        left = int(parts[1]) / 1000 - now
        incarnation = parts[0].decode()
    except (IndexError, ValueError):
        return None
    if not isinstance(about, dict):
        return None
    return SharingNode(name=name, incarnation=incarnation, left=left, about=about)
