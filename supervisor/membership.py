# Which nodes share the Redis of this one, as its workers are told: they join the workers of all these nodes.
#
# What Redis said last is in force until it says something else: a node that cannot reach Redis keeps the list that it
# has, as it cannot know who is dead, and reads it anew when Redis is back. So nothing here goes by our own clock but
# when to look: at each notice (node_notices.py), with each renewal, and when the lease of another node runs out; and
# when to go on alone. A worker waits for peers of other nodes, who are reached through Redis, and with it everybody who
# publishes for their clients, and its own. After ALONE its peers are taken from it, and it serves its own clients.
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import redis
import trio

from broker.cluster.lane_format import understood
from broker.control.frames import DeadNode, NodeClock, NodePlace, OtherNodes
from broker.log import Log
from broker.worker_id import WorkerId
from supervisor.node_lease import CLOCK_STEP, LEASE, RENEW, RETRY, NodeLease, NodeList, SharingNode
from supervisor.node_notices import NodeNotices
from supervisor.node_requests import REQUEST

NOBODY: Final = OtherNodes([], [], 0, [])  # a node that is alone
ALONE: Final = (
    20.0  # seconds without Redis: two leases, and less than `overload.wait`, after which publishes are refused
)
LEAST: Final = 0.01  # seconds between two looks, so that notices that come together cost one
SHARE: Final = 0.1  # of the time that looks may take for long: whoever can publish in Redis can make us look
AT_ONCE: Final = 0.2  # seconds of looks before that: others have to see within 0.1 s that a node has ended
MOST: Final = 1.0  # seconds between two looks; one at a server that is slow must not delay the next one for long
BEHIND: Final = 0.005  # seconds after the end of a lease at which it is looked at


class Pace:
    """How soon the list may be looked at again."""

    def __init__(self) -> None:
        self._spent = 0.0  # seconds of looks beyond their share of the time
        self._at = 0.0

    def rest(self, took: float, now: float) -> float:
        """Seconds until the next look, after one that *took* so long and ended *now*."""
        self._spent = max(0.0, self._spent - SHARE * (now - self._at)) + took
        self._at = now
        return min(MOST, max(LEAST, (self._spent - AT_ONCE) / SHARE))


class Membership:
    def __init__(self, lease: NodeLease, found: NodeList, send: Callable[[OtherNodes], None], log: Log) -> None:
        """*found*: as the lease was taken. *send* is called with each change of the other nodes."""
        self.lease = lease
        self.looks = 0
        self.requested: Callable[[bytes], object] = _ignore  # called with requests of other nodes (node_requests.py)
        self._log = log
        self._send = send
        self._notices = NodeNotices(lease.server, lease.channel, lease.incarnation)
        self._incarnations: list[str | None] = [None] * lease.identity.workers
        self._wake = trio.Event()
        self._pace = Pace()
        self._answered_at = time.monotonic()  # when Redis did last
        self._nodes: Mapping[str, SharingNode] = {}
        self._joined: set[str] = set()
        self._apart: set[str] = set()  # nodes that run, and whose workers are not joined
        self._nodes = self._those_of_others(found)
        self.others = self._others()

    # What the node reports of itself.

    def started(self, worker: WorkerId) -> None:
        """Lanes to *worker* of this node can be opened."""
        self._tell(worker.shard, worker.incarnation_text)

    def ended(self, worker: WorkerId) -> None:
        if self._incarnations[worker.shard] == worker.incarnation_text:
            self._tell(worker.shard, None)

    def _tell(self, shard: int, incarnation: str | None) -> None:
        self._incarnations[shard] = incarnation
        self.lease.say(self._incarnations)
        self._wake.set()

    def say_draining(self, drain: str) -> None:
        """Tell the other nodes that *drain*: see `SharingNode.draining()`."""
        self.lease.say_draining(drain)
        self._wake.set()

    def moved(self) -> None:
        """Redis has another address."""
        self._notices.moved()
        self._wake.set()

    # The state, for people.

    def describe(self) -> dict[str, Any]:
        """What the workers of this node are told, as they were told last."""
        others = self.others
        apart = {name: self.why_apart(node) for name, node in self._nodes.items() if node.runs_for() > 0}
        return {
            "redis": self.lease.shown,
            "lanes": self.lease.identity.lanes,
            "nodes": sorted(name for name, why in apart.items() if not why),
            "apart": {name: why for name, why in sorted(apart.items()) if why},
            "workers": [str(worker) for worker in others.workers],
            "missing": others.missing,
            "dead": [{"node": dead.name, "stored_at_workers": dead.owners} for dead in others.dead],
        }

    def taking_clients(self) -> list[str]:
        """The names of other nodes to which clients of this one can go, as of the last look."""
        return sorted(name for name, node in self._nodes.items() if node.runs_for() > 0 and not node.draining())

    # The look at the others.

    async def keep(self, lost: Callable[[str], None]) -> None:
        """Renew the lease and follow the list for ever.

        If another node has the name, *lost* is called with a sentence.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._notices.listen, self._heard)
            pause = self._pause()
            while True:
                with trio.move_on_after(pause):
                    await self._wake.wait()
                self._wake = trio.Event()
                began = trio.current_time()
                try:
                    found = await trio.to_thread.run_sync(self.lease.renew, abandon_on_cancel=True)
                except redis.RedisError:  # the workers log that Redis cannot be used
                    pause = RETRY
                    self._note_silence()
                    continue
                self.looks += 1
                self._answered_at = time.monotonic()
                if not found.mine:
                    break
                self._take(found)
                ended = trio.current_time()
                await trio.sleep(self._pace.rest(ended - began, ended))
                pause = self._pause()
            nursery.cancel_scope.cancel()
        name = self.lease.identity.name
        self._log.error("node_name_lost", server=self.lease.shown)
        lost(
            f"Another node of the name {name} has started with {self.lease.shown}, as this one had not renewed its "
            f"lease for {LEASE:g} s, or as its folder was copied: give each node its own name."
        )

    def _heard(self, content: bytes) -> None:
        if content.startswith(REQUEST):
            self.requested(content)
        else:
            self._wake.set()

    def _note_silence(self) -> None:
        """Part the workers of this node from all others if Redis has not answered for ALONE."""
        if time.monotonic() - self._answered_at < ALONE or not self.others.workers:
            return
        self.others = replace(self.others, workers=[], former=[], missing=0, places=[])
        self._log.warning("node_cut_off", seconds=ALONE, other_nodes=sorted(self._joined))
        self._joined = set()
        self._send(self.others)

    def _pause(self) -> float:
        """Seconds until the next look: the renewal, or the end of another node's lease."""
        ends = [node.runs_for() for node in self._nodes.values() if node.runs_for() > 0]
        return min([RENEW, *(left + BEHIND for left in ends)])

    def why_apart(self, node: SharingNode) -> str:
        """Why the workers of *node*, which runs, are not joined with those of this node; "": they are."""
        if node.name == self.lease.identity.name:
            return ""
        ours = self.lease.identity.lanes
        if not ours:
            return "the inbound backbone is between the nodes"
        lanes = node.about.get("lanes")
        if not node.workers() or lanes is None:
            return "its version of Weir has no lanes between nodes"
        return "" if understood(lanes, ours) else f"its lanes have version {lanes}, and those of this node {ours}"

    def _those_of_others(self, found: NodeList) -> dict[str, SharingNode]:
        return {name: node for name, node in found.nodes.items() if name != self.lease.identity.name}

    def _take(self, found: NodeList) -> None:
        nodes = self._those_of_others(found)
        kept = self.lease.lost_at + LEASE - time.monotonic()
        if kept > 0:  # Redis had lost its data: nodes that are missing have yet to renew their leases
            for name, node in self._nodes.items():
                if name not in nodes and node.runs_for() > 0:
                    nodes[name] = replace(node, left=kept)
        self._nodes = nodes
        others = self._others()
        if others != self.others:
            self.others = others
            self._send(others)

    def _others(self) -> OtherNodes:
        """What the workers are told, of nodes in the order of their names, so that equal lists are equal."""
        workers: list[WorkerId] = []
        former: list[str] = []
        missing = 0
        dead: list[DeadNode] = []
        joined: set[str] = set()
        apart: dict[str, str] = {}
        places: list[NodePlace] = []
        clocks: list[NodeClock] = []
        for name, node in sorted(self._nodes.items()):
            known = [worker for worker in node.workers() if worker is not None]
            if node.runs_for() <= 0:
                dead.append(DeadNode(name, known, node.owners))
                continue
            reference, drained = node.reference(), bool(node.draining())
            if reference or drained or not self.lease.identity.lanes:
                places.append(NodePlace(name, reference, drained))
            if why := self.why_apart(node):
                apart[name] = why
            else:
                workers += known
                missing += len(node.workers()) - len(known)
                if known:
                    joined.add(name)
                    if node.about["lanes"] < self.lease.identity.lanes:
                        former.append(name)
                    zero = node.clock_zero()
                    if zero is not None and abs(zero - self.lease.clock_zero) >= CLOCK_STEP:
                        clocks.append(NodeClock(name, round(1000 * (zero - self.lease.clock_zero))))
        self._note(joined, apart)
        return OtherNodes(workers, former, missing, dead, places, clocks)

    def _note(self, joined: set[str], apart: Mapping[str, str]) -> None:
        """Log which nodes have come and gone."""
        for name in sorted(joined - self._joined):
            node = self._nodes[name]
            self._log.info("node_joined", other_node=name, host=node.host(), version=node.about.get("version"))
        for name in sorted(self._joined - joined):
            node_left = self._nodes.get(name)
            if node_left is None or node_left.ended():
                self._log.info("node_left", other_node=name)
            elif node_left.runs_for() <= 0:
                self._log.warning("node_lost", other_node=name, host=node_left.host())
            else:
                joined.add(name)  # all of its workers are being replaced
        if self.lease.identity.lanes:
            for name in sorted(apart.keys() - self._apart):
                self._log.warning("node_not_joined", other_node=name, why=apart[name])
        self._joined, self._apart = joined, set(apart)


def _ignore(content: bytes) -> None:
    pass
