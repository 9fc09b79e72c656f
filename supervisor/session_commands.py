# The requests about sessions of a running node. They are answered by the workers, page by page.
#
# Which worker has a session is not known here, so the workers are asked in turn. A session that moves between two of
# them meanwhile is with neither for some milliseconds: then it is not found, and the user tries again.
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from supervisor.node import Node
from supervisor.quarantine import find_quarantined
from supervisor.redis_address import explained, open_client
from supervisor.redis_server import RedisUnusable
from supervisor.request import NotFound, Refused
from supervisor.worker_process import WorkerProcess
from supervisor.workers import serving

Arguments = dict[str, Any]
Command = tuple[Callable[[Arguments], Awaitable[object]], dict[str, type]]  # and the types of its arguments
LONGEST_LIST: Final = 10_000  # sessions in one answer


class SessionCommands:
    def __init__(self, node: Node) -> None:
        self._node = node

    def commands(self) -> dict[str, Command]:
        return {
            "sessions": (self._list, {"limit": int, "match": str, "away": bool}),
            "session": (self._show, {"client": str}),
            "sessions_quarantined": (self._quarantined, {"limit": int}),
            "session_drop": (self._drop, {"client": str}),
        }

    async def _list(self, arguments: Arguments) -> object:
        """The sessions whose client id contains `match`, at most `limit`, and whether there are more.

        `missing`: workers that could not be asked.
        """
        limit = min(arguments["limit"], LONGEST_LIST)
        chosen = {"match": arguments["match"], "away": arguments["away"]}
        found: list[dict[str, Any]] = []
        for process in serving(self._node.shards):
            position: int | None = 0
            while position is not None and len(found) <= limit:
                page = await process.ask("sessions", {"position": position, **chosen})
                found += [{**session, "worker": process.shard} for session in page["sessions"]]
                position = page["next"]
        return {"sessions": found[:limit], "more": len(found) > limit, "missing": self.missing()}

    async def _quarantined(self, arguments: Arguments) -> object:
        """What is in Redis of sessions that could not be read, of at most `limit`, and whether there are more."""
        limit = min(arguments["limit"], LONGEST_LIST)
        try:
            found, more = await trio.to_thread.run_sync(self._find_quarantined, limit, abandon_on_cancel=True)
        except RedisUnusable as error:
            raise Refused(str(error)) from None
        return {"sessions": found, "more": more}

    def _find_quarantined(self, limit: int) -> tuple[list[dict[str, Any]], bool]:
        address = self._node.redis.address
        with explained(str(address)), open_client(address) as server:
            return find_quarantined(server, self._node.config.redis.prefix, limit)

    async def _show(self, arguments: Arguments) -> object:
        process, found = await self.first("session", arguments)
        return {**found, "worker": process.shard}

    async def _drop(self, arguments: Arguments) -> object:
        process, _ = await self.first("session_drop", arguments)
        return {"client": arguments["client"], "worker": process.shard}

    async def first(self, what: str, arguments: Arguments) -> tuple[WorkerProcess, Any]:
        """The first worker that has the session of `client`, and its answer to *what*. NotFound."""
        for process in serving(self._node.shards):
            found = await process.ask(what, arguments)
            if found is not None and found is not False:
                return process, found
        missing = self.missing()
        others = f"; {missing} of the workers cannot be asked now, so try again" if missing else ""
        raise NotFound(f"There is no session of a client {arguments['client']!r}{others}.")

    def missing(self) -> int:
        """Workers that cannot be asked now."""
        shards = self._node.shards
        return len(shards) - len(serving(shards))
