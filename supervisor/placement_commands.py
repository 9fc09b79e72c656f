# The commands about where clients are: drain a node, have it take clients again, and spread the clients of a cluster.
#
# A node elsewhere is asked through Redis by the node that the command came to.
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio
from redis import RedisError

from supervisor.node import Node
from supervisor.node_drain import clients_at, progress
from supervisor.node_lease import NodeLease, SharingNode
from supervisor.node_requests import DRAIN, EVERYBODY, REBALANCE, UNDRAIN, NodeRequest
from supervisor.request import NotFound, Refused
from supervisor.workers import serving

Arguments = dict[str, Any]
ANSWER: Final = 5.0  # seconds that a node elsewhere has to show that it did what it was asked
LOOK: Final = 0.1  # seconds between two looks at it


class PlacementCommands:
    def __init__(self, node: Node) -> None:
        self._node = node

    def commands(self) -> Mapping[str, tuple[Callable[[Arguments], Awaitable[object]], dict[str, type]]]:
        return {
            "drain": (self._drain, {"node": str, "force": bool}),
            "undrain": (self._undrain, {"node": str}),
            "drain_progress": (self._progress, {"node": str}),
            "rebalance": (self._rebalance, {}),
        }

    async def _drain(self, arguments: Arguments) -> object:
        """Begin; `began` is false if the node is drained already."""
        name, force, node = arguments["node"], arguments["force"], self._node
        if name != node.config.node.name:
            found = await self._find(name)
            began = not found.draining()
            self._check_others(name, force)
            await self._ask(found, DRAIN, force, lambda one: bool(one.draining()))
            return {"node": name, "began": began}
        if node.stopping():
            raise Refused("The node is stopping.")
        self._check_others(name, force)
        return {"node": name, "began": node.drain.begin(force, node.workers.connected(), arguments["by"])}

    async def _undrain(self, arguments: Arguments) -> object:
        """End it; `ended` is false if the node was not drained."""
        name, node = arguments["node"], self._node
        if name != node.config.node.name:
            found = await self._find(name)
            ended = bool(found.draining())
            await self._ask(found, UNDRAIN, False, lambda one: not one.draining())
            return {"node": name, "ended": ended}
        return {"node": name, "ended": node.drain.end(arguments["by"])}

    async def _progress(self, arguments: Arguments) -> object:
        """The state of a node, and how many clients it has left; None: that is not known."""
        name, node = arguments["node"], self._node
        if name != node.config.node.name:
            state = (await self._find(name)).draining()
            return {"node": name, "state": state, "clients": await clients_at(name, serving(node.shards))}
        state, told = node.drain.state, await progress(serving(node.shards))
        return {"node": name, "state": state, "clients": node.workers.connected(), **(told or {})}

    async def _rebalance(self, arguments: Arguments) -> object:
        """Have each node that has clearly more clients than others send the surplus away; those of this node."""
        membership = self._node.membership
        if membership is None or not membership.taking_clients():
            raise Refused("No other node takes clients, so there is nothing to spread: `weir nodes` lists the nodes.")
        mine = await self._node.rebalance()
        request = NodeRequest(REBALANCE, EVERYBODY, False, self._node.config.node.name)
        await self._publish(membership.lease, request)
        return {"node": self._node.config.node.name, "clients": mine, "asked": membership.taking_clients()}

    def _check_others(self, name: str, force: bool) -> None:
        """Refused: no node but *name* takes clients."""
        if not force and not self._others_of(name):
            raise Refused(
                f"No other node takes clients, so those of {name} would have nowhere to go: start another node, or "
                "use --force to disconnect them all the same."
            )

    def _others_of(self, name: str) -> list[str]:
        membership, here = self._node.membership, self._node.config.node.name
        others = [] if membership is None else membership.taking_clients()
        mine = [] if self._node.drain.state or self._node.stopping() else [here]
        return [one for one in [*others, *mine] if one != name]

    async def _find(self, name: str) -> SharingNode:
        """The node *name* elsewhere, which runs. NotFound."""
        membership = self._node.membership
        if membership is None:
            raise NotFound(
                f"There is no node {name!r} here: {self._node.config.node.name} shares its Redis with no other node."
            )
        found = await self._nodes(membership.lease)
        node = found.get(name)
        if node is None or node.runs_for() <= 0:
            running = sorted(one.name for one in found.values() if one.runs_for() > 0)
            raise NotFound(f"No node {name!r} runs. Nodes of this cluster: {', '.join(running)}.")
        return node

    async def _nodes(self, lease: NodeLease) -> dict[str, SharingNode]:
        try:
            found = await trio.to_thread.run_sync(lease.nodes, abandon_on_cancel=True)
        except RedisError as error:
            raise Refused(f"{lease.shown} cannot tell which nodes there are: {error}") from None
        return {one.name: one for one in found}

    async def _ask(self, node: SharingNode, what: str, force: bool, done: Callable[[SharingNode], bool]) -> None:
        """Ask *node* elsewhere for *what*, and wait until it is *done*."""
        membership = self._node.membership
        assert membership is not None
        request = NodeRequest(what, node.incarnation, force, self._node.config.node.name)
        await self._publish(membership.lease, request)
        with trio.move_on_after(ANSWER):
            while True:
                now = (await self._nodes(membership.lease)).get(node.name)
                if now is not None and done(now):
                    return
                await trio.sleep(LOOK)
        raise Refused(f"The node {node.name} on {node.host()} did not react within {ANSWER:g} s: look at its log.")

    async def _publish(self, lease: NodeLease, request: NodeRequest) -> None:
        assert self._node.requests is not None
        content = self._node.requests.encode(request, time.time())

        def publish() -> None:
            with lease.server() as server:
                server.publish(lease.channel, content)

        try:
            await trio.to_thread.run_sync(publish, abandon_on_cancel=True)
        except RedisError as error:
            raise Refused(f"{lease.shown} does not pass on what other nodes are asked: {error}") from None
