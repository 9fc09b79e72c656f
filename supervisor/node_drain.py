# Whether this node is drained: its clients are sent to other nodes, and it takes no new ones.
#
# The state belongs to the supervisor, so that a worker that is replaced meanwhile goes on with it; a node that is
# started again takes clients. Other nodes read it with the lease, and send no client here. The workers decide when
# which client leaves (broker/cluster/client_moves.py).
import time
from collections.abc import Callable
from typing import Any, Final

import trio

from broker.control.frames import DrainNode
from broker.log import Log
from supervisor.membership import Membership
from supervisor.node_lease import DRAINED, DRAINING
from supervisor.worker_process import NoAnswer, WorkerProcess

LOOK: Final = 0.5  # seconds between two looks at how many clients are left


class NodeDrain:
    def __init__(self, membership: Membership | None, send: Callable[[DrainNode], None], log: Log) -> None:
        """*send* sends a frame to all workers. *membership*: None, no other node can share the Redis of this one."""
        self.state = ""  # as `SharingNode.draining()`
        self._forced = False
        self._began = 0.0
        self._membership = membership
        self._send = send
        self._log = log
        self._change = trio.Event()

    def frame(self) -> DrainNode:
        """What the workers have to know."""
        return DrainNode(bool(self.state), self._forced)

    def begin(self, forced: bool, clients: int, by: str) -> bool:
        """Drain the node, which has so many *clients*; false: it is drained already. *forced*: see `DrainNode`."""
        if self.state and (not forced or self._forced):
            return False
        began = not self.state
        self._forced = forced
        if began:
            self._began = time.monotonic()
            self._log.info("node_draining", clients=clients, forced=forced, by=by)
            self._set(DRAINING)
        self._send(self.frame())
        return began

    def end(self, by: str) -> bool:
        """Take clients again; false: the node does so already."""
        if not self.state:
            return False
        self._forced = False
        self._log.info("node_undrained", by=by)
        self._set("")
        self._send(self.frame())
        return True

    def _set(self, state: str) -> None:
        self.state = state
        if self._membership is not None:
            self._membership.say_draining(state)
        self._change.set()
        self._change = trio.Event()

    async def watch(self, processes: Callable[[], list[WorkerProcess]]) -> None:
        """For ever: say when the last client has left, and the last session that would end with the node.

        *processes*: the workers that serve.
        """
        while True:
            if self.state != DRAINING:
                await self._change.wait()
                continue
            left = await progress(processes())
            if self.state == DRAINING and left is not None and not left["clients"] + left["sessions_in_memory"]:
                seconds = round(time.monotonic() - self._began, 1)
                self._log.info("node_drained", seconds=seconds, clients=left["moved"])
                self._set(DRAINED)
            await trio.sleep(LOOK)


async def progress(processes: list[WorkerProcess]) -> dict[str, Any] | None:
    """How far the *processes* are with sending their clients away; None: one of them does not answer.

    `level`: the highest level of other nodes that a worker goes by; None: no client leaves, as no other node takes any.
    """
    told: list[dict[str, Any]] = []
    try:
        for process in processes:
            told.append(await process.ask("moves", {}))
    except NoAnswer:
        return None
    levels = [one["level"] for one in told if one["level"] is not None]
    summed = {
        key: sum(one[key] for one in told)
        for key in (
            "clients",
            "sessions",
            "sessions_in_memory",
            "surplus",
            "moved",
            "offered",
            "clients_per_second",
        )
    }
    return {**summed, "level": max(levels) if levels else None}


async def clients_at(name: str, processes: list[WorkerProcess]) -> int | None:
    """How many clients the node *name* elsewhere has, by its latest overload reports; None: *processes* do not know."""
    for process in processes:
        try:
            told = await process.ask("clients_at", {"node": name})
        except NoAnswer:
            continue
        if isinstance(told, int):
            return told
    return None
