# What can be asked of a node that runs: each command with its arguments and what it answers.
#
# An argument that is missing, of another type or not known is refused before anything is done.
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from broker.version import VERSION, form
from supervisor.node import Node, Shard
from supervisor.workers import NoAnswer, WorkerProcess

Arguments = dict[str, Any]
LONGEST_LIST: Final = 10_000  # clients in one answer


class Refused(Exception):
    """The request cannot be done, and nothing was changed. Its text is one sentence."""


class Commands:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._restarting = False
        # name: (what it does, its arguments with their types)
        self._known: dict[str, tuple[Callable[[Arguments], Awaitable[object]], dict[str, type]]] = {
            "status": (self._status, {}),
            "stop": (self._stop, {}),
            "restart": (self._restart, {}),
            "reload": (self._reload, {}),
            "clients": (self._clients, {"limit": int, "match": str}),
            "client": (self._client, {"client": str}),
            "kick": (self._kick, {"client": str}),
        }

    async def do(self, command: str, arguments: Arguments) -> object:
        """The answer to *command*. Refused."""
        if command not in self._known:
            raise Refused(f"There is no command {command!r}: this node knows {', '.join(self._known)}.")
        what, types = self._known[command]
        for name, value in arguments.items():
            if name not in types:
                raise Refused(f"The command {command} has no argument {name!r}.")
            if type(value) is not types[name]:
                raise Refused(f"The argument {name} = {value!r} of {command} is no {types[name].__name__}.")
        for name in types:
            if name not in arguments:
                raise Refused(f"The command {command} lacks its argument {name}.")
        try:
            return await what(arguments)
        except NoAnswer as error:
            raise Refused(str(error)) from None

    async def _status(self, arguments: Arguments) -> object:
        node = self._node
        settings = node.config
        return {
            "node": settings.node.name,
            "folder": str(node.folder.path),
            "pid": os.getpid(),
            "version": VERSION,
            "form": form(),
            "state": node.state(),
            "began": node.began,
            "listeners": node.addresses,
            "workers": [_worker(shard) for shard in node.shards],
            "totals": node.statistics(),
        }

    async def _stop(self, arguments: Arguments) -> object:
        self._node.stop("weir stop")
        return {"pid": os.getpid(), "drain": self._node.config.drain.timeout}

    async def _restart(self, arguments: Arguments) -> object:
        """One worker after another, so that the others go on serving."""
        node = self._node
        if node.stopping():
            raise Refused("The node is stopping.")
        if self._restarting:
            raise Refused("A restart is under way already.")
        self._restarting = True
        replaced = []
        try:
            for shard in node.shards:
                began = time.monotonic()
                former = shard.process
                process = await node.replace(shard)
                if process is None:
                    raise Refused(f"Worker {shard.number} did not get ready: the node's log says why.")
                lost = former.sessions_lost if former is not None else 0
                replaced.append(
                    {
                        "worker": shard.number,
                        "pid": process.pid,
                        "seconds": round(time.monotonic() - began, 3),
                        "sessions_lost": lost,
                    }
                )
        finally:
            self._restarting = False
        return {"workers": replaced}

    async def _reload(self, arguments: Arguments) -> object:
        wrong = await self._node.read_again()
        if wrong:
            raise Refused(" ".join(wrong))
        return {}

    async def _clients(self, arguments: Arguments) -> object:
        """Clients whose id contains *match*, at most *limit*; whether there are more."""
        limit = min(arguments["limit"], LONGEST_LIST)
        match = arguments["match"]
        found: list[dict[str, Any]] = []
        for process in self._serving():
            position: int | None = 0
            while position is not None and len(found) <= limit:
                page = await process.ask("clients", {"position": position, "match": match})
                found += [{**client, "worker": process.shard} for client in page["clients"]]
                position = page["next"]
        return {"clients": found[:limit], "more": len(found) > limit}

    async def _client(self, arguments: Arguments) -> object:
        for process in self._serving():
            found = await process.ask("client", arguments)
            if found is not None:
                return {**found, "worker": process.shard}
        raise Refused(f"There is no client {arguments['client']!r}.")

    async def _kick(self, arguments: Arguments) -> object:
        for process in self._serving():
            if await process.ask("kick", arguments):
                return {"worker": process.shard}
        raise Refused(f"No client {arguments['client']!r} is connected.")

    def _serving(self) -> list[WorkerProcess]:
        found = [shard.process for shard in self._node.shards if shard.process is not None]
        return [process for process in found if process.state == "serving"]


def _worker(shard: Shard) -> dict[str, Any]:
    process = shard.process
    if process is None:
        return {"worker": shard.number, "state": "dead", "pid": 0, "deaths": shard.deaths}
    return {
        "worker": shard.number,
        "state": process.state,
        "pid": process.pid,
        "deaths": shard.deaths,
        "uptime": 0.0 if process.ready_at is None else time.monotonic() - process.ready_at,
        "cpu_seconds": _cpu_seconds(process.pid),
        "statistics": process.statistics,
    }


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
