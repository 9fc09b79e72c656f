# The requests about APPLICATION clients of a running node: their lags, the log of one, and to go on elsewhere in it.
from typing import Any, Final

from supervisor.node import Node
from supervisor.queue_commands import QueueCommands
from supervisor.request import Refused
from supervisor.session_commands import LONGEST_LIST, Arguments, Command, SessionCommands
from supervisor.shared_log_commands import SharedLogCommands
from supervisor.worker_process import NoAnswer
from supervisor.workers import serving

NAMED: Final = ("earliest", "latest")
GROUPS: Final = 10  # that are asked for with a client


class ApplicationCommands:
    def __init__(self, node: Node, sessions: SessionCommands, queues: QueueCommands, shared: SharedLogCommands) -> None:
        self._node = node
        self._sessions = sessions
        self._queues = queues
        self._shared = shared

    def commands(self) -> dict[str, Command]:
        return {
            "applications": (self._list, {"limit": int, "match": str}),
            "application": (self._show, {"client": str}),
            "application_reset": (self._reset, {"client": str, "to": str, "time": float}),
        }

    async def _list(self, arguments: Arguments) -> object:
        """The APPLICATION clients whose id contains `match`, at most `limit`, and whether there are more.

        `lag`: records of the log that were not passed on; None: not known. `missing`: workers that could not be asked.
        """
        limit, match = min(arguments["limit"], LONGEST_LIST), arguments["match"]
        found: list[dict[str, Any]] = []
        for process in serving(self._node.shards):
            position: int | None = 0
            while position is not None and len(found) <= limit:
                page = await process.ask("applications", {"position": position, "match": match})
                found += [{**one, "worker": process.shard} for one in page["applications"]]
                position = page["next"]
        return {"applications": found[:limit], "more": len(found) > limit, "missing": self._sessions.missing()}

    async def _show(self, arguments: Arguments) -> object:
        """Everything about the log of `client`. `oldest`: seconds since the oldest message that waits has come.

        The first of `shared`, the logs that it shares, have their `group`, as in the list of groups; None: not known.
        """
        process, found = await self._sessions.first("application", arguments)
        if found["waiting"]:  # they come before those in the log
            found["oldest"] = await self._queues.oldest(process, arguments["client"])
        for one in found.get("shared", [])[:GROUPS]:
            one["group"] = await self._group(one["name"], one["filter"])
        return {**found, "worker": process.shard}

    async def _group(self, name: str, filter: str) -> dict[str, Any] | None:
        try:
            groups = await self._shared.groups(f"$share/{name}/{filter}", 1, exact=True)
        except NoAnswer:
            return None
        return groups[0] if groups else None

    async def _reset(self, arguments: Arguments) -> object:
        """Have `client`, who is away, go on in its log at `to`: an offset, or NAMED; "": at `time` (Unix, seconds).

        What waits for it in Redis is removed, but for what is in flight.
        """
        to = arguments["to"]
        if to and to not in NAMED and not (to.isascii() and to.isdigit() and len(to) <= 18):
            raise Refused(f"A place in a log is an offset, earliest or latest, and not {to!r:.40}.")
        process, reset = await self._sessions.first("application_reset", arguments)
        try:
            removed = await self._queues.purge(process, arguments["client"], reset.pop("passed_to"))
        except NoAnswer as error:
            raise Refused(
                f"The log is read from offset {reset['to']} on, and messages before that may come: {error}"
            ) from None
        return {"client": arguments["client"], **reset, "removed": removed, "worker": process.shard}
