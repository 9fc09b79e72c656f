# The requests about the retained messages of a running node. Every worker has all of them: the first one is asked.
import base64
from typing import Any, Final

from supervisor.node import Node
from supervisor.request import NotFound, Refused
from supervisor.session_commands import Arguments, Command
from supervisor.worker_process import NoAnswer, WorkerProcess
from supervisor.workers import serving

LONGEST_LIST: Final = 10_000  # messages in one answer


class RetainedCommands:
    def __init__(self, node: Node) -> None:
        self._node = node

    def commands(self) -> dict[str, Command]:
        return {
            "retained": (self._list, {"filter": str, "limit": int}),
            "retained_show": (self._show, {"topic": str}),
            "retained_clear": (self._clear, {"filter": str}),
        }

    async def _list(self, arguments: Arguments) -> object:
        """The messages whose topics match `filter`, at most `limit`, and whether there are more."""
        limit, worker = min(arguments["limit"], LONGEST_LIST), self._worker()
        found: list[dict[str, Any]] = []
        scan = 0
        while len(found) <= limit:
            page = await worker.ask("retained_page", {"filter": arguments["filter"], "scan": scan})
            found += page["messages"]
            scan = page["scan"]
            if not scan:
                break
        return {"messages": found[:limit], "more": len(found) > limit}

    async def _show(self, arguments: Arguments) -> object:
        """The message of `topic`; its payload and properties are in base64."""
        found = await self._worker().ask("retained_show", arguments)
        if found is None:
            raise NotFound(f"No message is retained for the topic {arguments['topic']!r}.")
        return {**found, **{key: base64.b64encode(found[key]).decode() for key in ("payload", "properties")}}

    async def _clear(self, arguments: Arguments) -> object:
        """Clear the messages whose topics match `filter`, at all workers; how many."""
        worker = self._worker()
        cleared = scan = 0
        try:
            while True:
                page = await worker.ask("retained_clear", {"filter": arguments["filter"], "scan": scan})
                cleared += page["messages"]
                scan = page["scan"]
                if not scan:
                    return {"messages": cleared}
        except NoAnswer as error:
            before = f" Messages that were cleared before: {cleared}." if cleared else ""
            raise Refused(f"{error}{before}") from None

    def _worker(self) -> WorkerProcess:
        found = serving(self._node.shards)
        if not found:
            raise Refused("No worker of this node can be asked now; try again.")
        return found[0]
