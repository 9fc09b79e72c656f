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
#
# The workers of a node join those of all others (membership.py). So a node also says the incarnations of its workers,
# and what changes the list is told on a channel by the script that changes it.
#
# While Redis is away nobody renews, and every lease runs out. So nobody is taken for dead by that alone: the script
# keeps since when leases have been renewed without a gap, and a node that has not renewed since then is *spared* for
# LEASE from then on. A node that has ended leaves its name at once; if it has left durable sessions, it stays in the
# hash with a lease that is over, so that other nodes know where to look for them.
import json
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import redis

from broker.cluster.lane_format import understood
from broker.config.drain import LONGEST_REFERENCE
from broker.log import Log
from broker.store.redis.keys import Keys
from broker.worker_id import WorkerId

LEASE: Final = 10.0  # seconds
RENEW: Final = 3.0  # seconds between two renewals
WAIT: Final = LEASE + 2.0  # seconds for the lease of a node that was killed elsewhere to run out
GAP: Final = 2 * RENEW  # seconds without a renewal by any node, after which Redis is taken to have been away
RETRY: Final = 0.5
FORGOTTEN: Final = 86_400.0  # seconds until a node that has not ended as it should is not listed any more
CLOCK_STEP: Final = 0.05  # seconds by which a clock is set before anybody is told; less is how exactly clocks are read
CLOCK: Final = 5.0  # seconds that clocks may differ: expiry and retained messages go by them
MOST_WORKERS: Final = 256  # of a node (node.workers)
INCARNATION: Final = re.compile("[0-7][0-9a-f]{15}")  # of a worker: 63 bits
DRAINING: Final = "draining"
DRAINED: Final = "drained"
FILE: Final = "incarnation"  # the last one that had the name, in the folder of the node

# Returns {how the name is ours, time, since when leases are renewed without a gap}, and for each node its name, its
# value and, if its lease has run out, how many of its workers own durable sessions. How: 0, not at all; 1, as it was;
# 2, there was no such name. KEYS: the hash, and the times of renewals. ARGV: name, incarnation, description,
# milliseconds of the lease, until nodes are forgotten, and of a gap; a former incarnation that has ended; the channel;
# how the keys of owners begin.
TAKE: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local name, me, description, lease, forgotten, gap, former, channel, owners = unpack(ARGV)
local since, last = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (%d+)$')
if not since or now - tonumber(last) > tonumber(gap) or tonumber(last) > now then
  since = string.format('%d', now)
end
redis.call('SET', KEYS[2], since .. ' ' .. string.format('%d', now))
local held = redis.call('HGET', KEYS[1], name)
local holder, till, said
if held then
  holder, till, said = string.match(held, '^(%S+) (%d+) (.*)$')
end
local mine = 0
if not holder or holder == me or holder == former or tonumber(till) <= now then
  mine = held and 1 or 2
  redis.call('HSET', KEYS[1], name, me .. ' ' .. string.format('%d', now + lease) .. ' ' .. description)
  if holder ~= me or said ~= description or tonumber(till) <= now then
    redis.call('PUBLISH', channel, me)
  end
end
local found = redis.call('HGETALL', KEYS[1])
local answer = { mine, string.format('%d', now), since }
for at = 1, #found, 2 do
  local _, until_ = string.match(found[at + 1], '^(%S+) (%d+) ')
  local owning = 0
  if not until_ then
    redis.call('HDEL', KEYS[1], found[at])
  elseif tonumber(until_) <= now then
    owning = redis.call('HLEN', owners .. found[at])
    if owning == 0 and tonumber(until_) + tonumber(forgotten) < now then
      redis.call('HDEL', KEYS[1], found[at])
    end
  end
  answer[#answer + 1] = found[at]
  answer[#answer + 1] = found[at + 1]
  answer[#answer + 1] = owning
end
return answer
"""

# Makes the name free if it is ours. ARGV: name, incarnation, description, the channel, how the keys of owners begin.
RELEASE: Final = """
local name, me, description, channel, owners = unpack(ARGV)
local held = redis.call('HGET', KEYS[1], name)
if held and string.match(held, '^(%S+) ') == me then
  if redis.call('HLEN', owners .. name) > 0 then
    local clock = redis.call('TIME')
    local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
    redis.call('HSET', KEYS[1], name, me .. ' ' .. string.format('%d', now) .. ' ' .. description)
  else
    redis.call('HDEL', KEYS[1], name)
  end
  redis.call('PUBLISH', channel, me)
end
"""

Server = Callable[[], "redis.Redis"]


def clock_zero() -> float:
    """Unix time (s) at which the monotonic clock of this machine was 0, by what both clocks say now.

    The largest of three: whoever is interrupted between the two clocks reads the second one too late.
    """
    return max([time.time() - time.monotonic() for _ in range(3)])


class NodeRefused(Exception):
    """The node may not be one of those that share its Redis. The text is one sentence for the user."""


@dataclass(frozen=True, kw_only=True)
class SharingNode:
    """A node that shares a Redis."""

    name: str
    incarnation: str
    left: float  # seconds of its lease; 0.0 or less: it has run out
    spared: float  # seconds that it has to renew its lease nevertheless, as Redis may have been away
    owners: int  # if its lease has run out: how many of its workers own durable sessions
    about: Mapping[str, Any]  # what it says of itself
    listed: "Sequence[WorkerId | None] | None" = field(default=None, compare=False, repr=False)  # read from it before

    def host(self) -> str:
        return str(self.about.get("host", "?"))

    def ended(self) -> bool:
        """Whether it has ended, and left durable sessions."""
        return self.about.get("ended") is True

    def runs_for(self) -> float:
        """Seconds for which the node counts as one that runs, if it does not renew its lease; 0.0: it is dead."""
        return 0.0 if self.ended() else max(0.0, self.left, self.spared)

    def draining(self) -> str:
        """DRAINING: it takes no clients, and has some, or sessions that would end with it; DRAINED: it has none.

        "": it takes clients.
        """
        said = self.about.get("drain")
        return said if said in (DRAINING, DRAINED) else ""

    def reference(self) -> str:
        """How clients reach it; "": it does not say."""
        said = self.about.get("reference")
        fits = isinstance(said, str) and said.isprintable() and len(said) <= LONGEST_REFERENCE
        return said if fits and isinstance(said, str) and len(said.encode()) <= LONGEST_REFERENCE else ""

    def clock_zero(self) -> float | None:
        """Unix time (s) at which its monotonic clock was 0; None: it does not say."""
        said = self.about.get("clock_zero")
        return said if isinstance(said, float) and math.isfinite(said) else None

    def workers(self) -> list[WorkerId | None]:
        """Its workers by shard; None: a shard has none now. []: it says nothing of them, as older versions of Weir."""
        return _workers(self.name, self.about) if self.listed is None else list(self.listed)


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a node has said of itself, as it was read: of hundreds of nodes few say something new between two looks."""

    text: bytes
    about: Mapping[str, Any]
    workers: Sequence[WorkerId | None]


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a node says of itself."""

    name: str
    host: str
    version: str
    folder: str
    workers: int
    agreed: Mapping[str, str]  # settings that have to be those of all nodes; secrets as digests
    compared: Mapping[str, str]  # settings that should be
    lanes: int  # the version of its lanes to workers of other nodes (broker/cluster/lane_format.py); 0: it opens none
    reference: str = ""  # how clients reach it

    def text(
        self,
        began: float,
        incarnations: Sequence[str | None],
        ended: bool = False,
        drain: str = "",
        clock_zero: float | None = None,
    ) -> str:
        """*incarnations*: of its workers, by shard, in hexadecimal. *drain*, *clock_zero*: see `SharingNode`."""
        known = {"host": self.host, "version": self.version, "folder": self.folder, "workers": self.workers}
        settings = {"agreed": dict(self.agreed), "compared": dict(self.compared)}
        now = {"lanes": self.lanes, "incarnations": incarnations, **({"ended": True} if ended else {})}
        now |= {key: value for key, value in (("reference", self.reference), ("drain", drain)) if value}
        now |= {} if clock_zero is None else {"clock_zero": clock_zero}
        return json.dumps({**known, "began": began, **settings, **now}, separators=(",", ":"), sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class NodeList:
    """The nodes that share a Redis, at one moment."""

    mine: bool  # the name of this node is its own
    nodes: Mapping[str, SharingNode]  # by name; this one, too


class NodeLease:
    def __init__(
        self, server: Server, keys: Keys, channel: bytes, shown: str, identity: Identity, folder: Path, log: Log
    ) -> None:
        """*server* opens a client of Redis. *channel*: of notices to other nodes. *shown*: the server, for people."""
        self.incarnation: Final = secrets.token_hex(8)
        self.server: Final = server
        self.channel: Final = channel
        self._keys = keys
        self.shown: Final = shown
        self.identity: Final = identity
        self._turn = threading.Lock()  # of calls, which come from several threads
        self._released = False
        self._began = round(time.time(), 3)
        self._incarnations: list[str | None] = [None] * identity.workers
        self._drain = ""
        self._file = folder / FILE
        self._log = log
        self._clock_told = False
        self.clock_zero = clock_zero()  # of this node, see `SharingNode`
        self._said: dict[str, Said] = {}  # by the names of nodes, at the last look
        self.lost_at = -math.inf  # monotonic seconds, when the name was found to be missing: Redis had lost its data

    def say(self, incarnations: Sequence[str | None]) -> None:
        """From the next renewal on say that the workers have these *incarnations*, by shard."""
        self._incarnations = list(incarnations)

    def say_draining(self, drain: str) -> None:
        """From the next renewal on say that *drain*: see `SharingNode.draining()`."""
        self._drain = drain

    def take(self, pause: Callable[[float], None]) -> NodeList:
        """Become the node of this name, or wait for the lease of a former one to run out: WAIT at most.

        *pause* waits some seconds. NodeRefused: another node has the name, or others have other settings or a version
        that does not work with this one. OSError: the folder cannot be written to. redis.RedisError.
        """
        former = self._former()
        deadline = time.monotonic() + WAIT
        told = False
        while True:
            found = self._ask(former)
            holder = found.nodes[self.identity.name]
            if not found.mine and time.monotonic() >= deadline:
                raise NodeRefused(self._name_in_use(holder))
            if found.mine:
                break
            if not told:
                told = True
                self._log.warning("node_name_waits", host=holder.host(), seconds=round(holder.left, 1))
            pause(RETRY)
        try:
            running = [one for one in found.nodes.values() if one.name != self.identity.name and one.left > 0]
            self._agree(running)
            self._file.write_text(f"{self.incarnation}\n")
        except BaseException:
            self.release()
            raise
        self._compare(running)
        self.lost_at = -math.inf
        return found

    def renew(self) -> NodeList:
        """Renew the lease, or take it again if it has run out, unless another node has the name. redis.RedisError."""
        return self._ask("")

    def release(self) -> None:
        """Make the name free for a node elsewhere, and tell the other nodes. redis.RedisError.

        A renewal in a thread that nobody waits for any more does not take it again.
        """
        text = self.identity.text(self._began, self._incarnations, ended=True)
        owners = self._keys.durable_owners_of_nodes()
        with self._turn, self.server() as server:
            self._released = True
            server.eval(RELEASE, 1, self._keys.nodes, self.identity.name, self.incarnation, text, self.channel, owners)

    def nodes(self) -> list[SharingNode]:
        """The nodes that share the server, by name, with those whose leases have run out. redis.RedisError."""
        return sorted(self._ask("").nodes.values(), key=lambda node: node.name)

    def _ask(self, former: str) -> NodeList:
        """Take or renew the lease, and read the list. redis.RedisError: also once it is released."""
        with self._turn:
            if self._released:
                raise redis.RedisError("the name of this node is released")
            return self._call(former)

    def _call(self, former: str) -> NodeList:
        zero = clock_zero()
        if abs(zero - self.clock_zero) >= CLOCK_STEP:
            self.clock_zero = zero
        text = self.identity.text(self._began, self._incarnations, drain=self._drain, clock_zero=self.clock_zero)
        times = [int(1000 * seconds) for seconds in (LEASE, FORGOTTEN, GAP)]
        more = [former, self.channel, self._keys.durable_owners_of_nodes()]
        arguments = [self.identity.name, self.incarnation, text, *times, *more]
        before = time.time()
        with self.server() as server:
            answer = cast("list[Any]", server.eval(TAKE, 2, self._keys.nodes, self._keys.renewals, *arguments))
        after = time.time()
        now, since = int(answer[1]) / 1000, int(answer[2]) / 1000
        self._compare_clocks(now, before, after)
        found: dict[str, SharingNode] = {}
        earlier, self._said = self._said, {}
        for named, value, owners in zip(answer[3::3], answer[4::3], answer[5::3], strict=True):
            name = named.decode(errors="replace")
            read = _read(name, value, now, since, int(owners), earlier.get(name))
            if read is not None:
                found[name], self._said[name] = read
        if answer[0] == 2:
            self.lost_at = time.monotonic()
        return NodeList(mine=bool(answer[0]), nodes=found)

    def _former(self) -> str:
        """The incarnation that had the name last in this folder, whose lock this process has."""
        try:
            return self._file.read_text(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def _agree(self, running: Sequence[SharingNode]) -> None:
        """NodeRefused: one of the nodes *running* has other settings where all have to have the same, or other lanes.

        What a node does not say is no difference: its version of Weir has no such setting, or no lanes.
        """
        for node in running:
            for setting, mine, other in _differences(self.identity.agreed, node.about.get("agreed")):
                raise NodeRefused(_differs(setting, mine, other, node, self.shown))
            lanes = node.about.get("lanes")
            ours = self.identity.lanes
            if ours and type(lanes) is int and lanes > 0 and not understood(lanes, ours):
                raise NodeRefused(
                    f"Weir {self.identity.version} has version {ours} of the lanes between nodes, and "
                    f"the node {node.name} on {node.host()}, which uses {self.shown}, too, has version {lanes} (Weir "
                    f"{node.about.get('version', '?')}): only neighbouring versions work together, so upgrade the "
                    "nodes through the versions between."
                )

    def _compare(self, running: Sequence[SharingNode]) -> None:
        """Log which limits differ: those of the node where a client is at the time are in force for it."""
        for node in running:
            for setting, mine, other in _differences(self.identity.compared, node.about.get("compared")):
                facts = {"setting": setting, "here": mine, "there": other, "other_node": node.name}
                self._log.warning("node_settings_differ", **facts)

    def _compare_clocks(self, now: float, before: float, after: float) -> None:
        """Warn once if the clock of Redis, which was *now* between *before* and *after* of ours, is another one."""
        off = max(before - now, now - after)
        if off > CLOCK and not self._clock_told:
            self._log.warning("clock_differs", seconds=round(off, 1), server=self.shown)
        self._clock_told = off > CLOCK

    def _name_in_use(self, holder: SharingNode) -> str:
        return (
            f"A node of the name {self.identity.name} runs on {holder.host()} and uses {self.shown}, too: "
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


def _differences(ours: Mapping[str, str], theirs: object) -> Iterator[tuple[str, str, str]]:
    """The settings that differ, with both values."""
    if isinstance(theirs, dict):
        for setting, mine in ours.items():
            other = str(theirs.get(setting, mine))
            if other != mine:
                yield setting, mine, other


def _read(
    name: str, value: bytes, now: float, since: float, owners: int, said: Said | None
) -> tuple[SharingNode, Said] | None:
    """None: it is no node. *since*: see `TAKE`. *said*: what the node has said before."""
    parts = value.split(b" ", 2)
    try:
        if said is None or said.text != parts[2]:
            about = json.loads(parts[2])
            said = Said(text=parts[2], about=about, workers=_workers(name, about))
        left = int(parts[1]) / 1000 - now
        incarnation = parts[0].decode()
    except (AttributeError, IndexError, ValueError):  # AttributeError: *about* is no object of JSON
        return None
    node = SharingNode(
        name=name,
        incarnation=incarnation,
        left=left,
        spared=since + LEASE - now,
        owners=owners,
        about=said.about,
        listed=said.workers,
    )
    return node, said


def _workers(name: str, about: Mapping[str, Any]) -> list[WorkerId | None]:
    """See `SharingNode.workers()`."""
    said = about.get("incarnations")
    if not isinstance(said, list):
        return []
    return [_worker(name, shard, one) for shard, one in enumerate(said[:MOST_WORKERS])]


def _worker(node: str, shard: int, incarnation: object) -> WorkerId | None:
    """None: *incarnation* is none of a worker."""
    if not isinstance(incarnation, str) or not INCARNATION.fullmatch(incarnation):
        return None
    return WorkerId(node, shard, int(incarnation, 16))
