# The requests about the queue of one session of a running node: what waits, a copy of it, and to remove messages.
#
# A queue may have gigabytes. A worker answers for one page at a time (broker/insight/queue_requests.py), and what is
# kept here is bounded, too: to show a queue, at most EXAMINED messages or EXAMINED_BYTES are read, and topics are
# counted as heavy hitters are. An export is a request for each PAGE bytes; the command that asks keeps the cursor.
import base64
from typing import Any, Final

from broker.metrics.heavy_hitters import HeavyHitters
from supervisor.node import Node
from supervisor.request import Refused
from supervisor.session_commands import Arguments, Command, SessionCommands
from supervisor.worker_process import NoAnswer, WorkerProcess

EXAMINED: Final = 10_000  # messages: the default length of a queue; half a second of the store in the worst case
EXAMINED_BYTES: Final = 16 * 1024 * 1024
TOPICS: Final = 20  # that are shown
FIRST: Final = 100  # messages that are shown at most
PAGE: Final = 256 * 1024  # bytes of payloads in one answer, about
NOWHERE: Final = -1  # no worker


class QueueCommands:
    def __init__(self, node: Node, sessions: SessionCommands) -> None:
        self._node = node
        self._sessions = sessions

    def commands(self) -> dict[str, Command]:
        return {
            "queue": (self._show, {"client": str, "first": int}),
            "queue_page": (self._page, {"client": str, "after": int, "last": int, "worker": int}),
            "queue_purge": (self._purge, {"client": str, "filter": str}),
        }

    async def _show(self, arguments: Arguments) -> object:
        """How much waits for `client`, on which topics, and the `first` messages.

        `examined`: messages that were read. `inaccuracy`: by how many messages the count of a topic may be too high.
        """
        client, most = arguments["client"], min(arguments["first"], FIRST)
        process, session = await self._sessions.first("session", {"client": client})
        topics = HeavyHitters()
        first: list[dict[str, Any]] = []
        examined = size = after = last = 0
        while True:
            page = await _page_of(process, client, after, last, payloads=False)
            for message in page["messages"]:
                topics.add(message["topic"], message["size"], 1, message["size"])
                size += message["size"]
            examined += len(page["messages"])
            first += page["messages"][: most - len(first)]
            after, last = page["next"], page["last"]
            if not after or examined >= EXAMINED or size >= EXAMINED_BYTES:
                break
        found = [{"topic": one.key, "messages": one.messages, "bytes": one.bytes} for one in topics.top(TOPICS)]
        known = ("client", "durable", "waiting", "waiting_bytes", "inflight", "connected")
        return {
            **{key: session[key] for key in known},
            "worker": process.shard,
            "examined": examined,
            "complete": not after,
            "oldest": first[0]["age"] if first else None,
            "topics": found[:TOPICS],
            "inaccuracy": topics.error().messages,
            "messages": first,
        }

    async def _page(self, arguments: Arguments) -> object:
        """The messages behind `after`, up to `last`: 0 both for the first page. `worker`: of the page before, or -1.

        `next`: `after` of the next page, 0 if there is none. Payloads and properties are in base64.
        """
        client, after, last = arguments["client"], arguments["after"], arguments["last"]
        if after < 0 or last < 0:
            raise Refused("The arguments after and last of queue_page are positions, which are not below 0.")
        process, session = await self._sessions.first("session", {"client": client})
        if arguments["worker"] not in (NOWHERE, process.shard) and not session["durable"]:
            raise Refused(f"The session of client {client!r} has moved to another worker; export it again.")
        found: list[dict[str, Any]] = []
        size = 0
        while size < PAGE:
            page = await _page_of(process, client, after, last, payloads=True)
            found += [_printable(message) for message in page["messages"]]
            size += sum(message["size"] for message in page["messages"])
            after, last = page["next"], page["last"]
            if not after:
                break
        return {"messages": found, "next": after, "last": last, "worker": process.shard}

    async def _purge(self, arguments: Arguments) -> object:
        """Remove the messages that wait now and whose topics match `filter` ("": all)."""
        removed = size = after = last = 0
        process: WorkerProcess | None = None
        try:
            while True:
                asked = {**arguments, "after": after, "last": last}
                if process is None:
                    process, page = await self._sessions.first("queue_purge", asked)
                else:
                    page = await process.ask("queue_purge", asked)
                if page is None:
                    raise NoAnswer(_moved(arguments["client"]))
                removed += page["messages"]
                size += page["bytes"]
                after, last = page["next"], page["last"]
                if not after:
                    return {"client": arguments["client"], "messages": removed, "bytes": size}
        except NoAnswer as error:
            before = f" Messages that were removed before: {removed}." if removed else ""
            raise Refused(f"{error}{before}") from None

    async def oldest(self, process: WorkerProcess, client: str) -> float | None:
        """Seconds since the oldest message was stored that waits at *process* for *client*; None: it is not known."""
        page = await _page_of(process, client, 0, 0, payloads=False)
        age: float | None = page["messages"][0]["age"] if page["messages"] else None
        return age

    async def purge(self, process: WorkerProcess, client: str, last: int) -> int:
        """Remove what waits at *process* for *client*, up to the position *last*; how many messages. NoAnswer."""
        removed = after = 0
        while last:
            page = await process.ask("queue_purge", {"client": client, "filter": "", "after": after, "last": last})
            if page is None:
                raise NoAnswer(_moved(client))
            removed += page["messages"]
            after = page["next"]
            if not after:
                break
        return removed


async def _page_of(process: WorkerProcess, client: str, after: int, last: int, *, payloads: bool) -> Any:
    asked = {"client": client, "after": after, "last": last, "payloads": payloads}
    page = await process.ask("queue_page", asked)
    if page is None:
        raise Refused(_moved(client))
    return page


def _moved(client: str) -> str:
    return f"The session of client {client!r} has ended or moved to another worker meanwhile."


def _printable(message: dict[str, Any]) -> dict[str, Any]:
    payload = message["payload"]
    return {
        **message,
        "payload": None if payload is None else base64.b64encode(payload).decode(),
        "properties": base64.b64encode(message["properties"]).decode(),
    }
