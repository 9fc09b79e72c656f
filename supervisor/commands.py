# The requests to a running node: each command with its arguments and its answer.
#
# A request with a missing or unknown argument, or one of another type, is refused before anything is done.
import math
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from redis import RedisError

from broker.config.schema import MEMORY
from broker.insight.facts import Facts, together
from broker.version import VERSION, form
from supervisor.application_commands import ApplicationCommands
from supervisor.audit import DONE, Audit
from supervisor.bans import BanRefused
from supervisor.limits import LimitRefused
from supervisor.node import Node
from supervisor.node_drain import progress
from supervisor.node_lease import SharingNode
from supervisor.placement_commands import PlacementCommands
from supervisor.process import process_times
from supervisor.queue_commands import QueueCommands
from supervisor.request import Refused
from supervisor.retained_commands import RetainedCommands
from supervisor.session_commands import SessionCommands
from supervisor.shared_log_commands import SharedLogCommands
from supervisor.worker_process import NoAnswer, WorkerProcess
from supervisor.workers import Shard, serving

Arguments = dict[str, Any]
LONGEST_LIST: Final = 10_000  # clients in one answer
LONGEST_INJECTION: Final = 3600.0  # seconds; a forgotten injection ends
NAMED: Final = (
    "limit_set",
    "limit_drop",
    "ban_add",
    "ban_remove",
    "drain",
    "undrain",
)  # commands whose log lines name the user
# Commands that change nothing; all others are audited, so that a new one is not forgotten.
READS: Final = frozenset(
    {"status", "nodes", "clients", "client", "why", "overload", "top", "limit_list", "ban_list"}
    | {"sessions", "session", "sessions_quarantined", "queue", "queue_page", "retained", "retained_show"}
    | {"applications", "application", "shared_logs", "drain_progress"}
)
TESTED: Final = "WEIR_TEST"  # environment variable; 1: tests may inject signals of overload


class Commands:
    def __init__(self, node: Node, audit: Audit, tested: bool = False) -> None:
        """*tested*: the command `inject` is allowed."""
        self._node = node
        self._audit = audit
        self._tested = tested
        self._restarting = False
        sessions = SessionCommands(node)
        queues = QueueCommands(node, sessions)
        shared = SharedLogCommands(node, sessions)
        # name: (method, types of the arguments)
        self._known: dict[str, tuple[Callable[[Arguments], Awaitable[object]], dict[str, type]]] = {
            "status": (self._status, {}),
            "nodes": (self._nodes, {}),
            "stop": (self._stop, {}),
            "restart": (self._restart, {}),
            "reload": (self._reload, {}),
            "backup": (self._backup, {}),
            "analysis": (self._analysis, {}),
            "clients": (self._clients, {"limit": int, "match": str}),
            "client": (self._client, {"client": str}),
            "why": (self._why, {"client": str}),
            "kick": (self._kick, {"client": str}),
            "overload": (self._overload, {}),
            "top": (self._top, {}),
            "inject": (self._inject, {"worker": int, "signal": str, "value": float, "seconds": float}),
            "limit_set": (
                self._limit_set,
                {"client": str, "rate": str, "exempt": bool, "seconds": float, "reason": str},
            ),
            "limit_drop": (self._limit_drop, {"client": str}),
            "limit_list": (self._limit_list, {}),
            "ban_add": (self._ban_add, {"kind": str, "value": str, "seconds": float, "reason": str}),
            "ban_remove": (self._ban_remove, {"kind": str, "value": str}),
            "ban_list": (self._ban_list, {}),
            **sessions.commands(),
            **queues.commands(),
            **ApplicationCommands(node, sessions, queues, shared).commands(),
            **shared.commands(),
            **RetainedCommands(node).commands(),
            **PlacementCommands(node).commands(),
        }

    async def do(self, command: str, arguments: Arguments, by: str = "") -> object:
        """Carry out *command* and return the answer. *by*: the user. Refused."""
        if command in READS or command not in self._known:
            return await self._do(command, arguments, by)
        try:
            done = await self._do(command, arguments, by)
        except BaseException as error:
            self._audit.note(by, command, arguments, str(error) if isinstance(error, Refused) else "failed")
            raise
        self._audit.note(by, command, arguments, DONE)
        return done

    async def _do(self, command: str, arguments: Arguments, by: str) -> object:
        if command not in self._known:
            raise Refused(f"The command {command!r} does not exist: this node has {', '.join(self._known)}.")
        what, types = self._known[command]
        for name, value in arguments.items():
            if name not in types:
                raise Refused(f"The command {command} has no argument {name!r}.")
            if type(value) is not types[name]:
                raise Refused(
                    f"The argument {name} = {value!r} of {command} is not of the type {types[name].__name__}."
                )
        for name in types:
            if name not in arguments:
                raise Refused(f"The command {command} lacks its argument {name}.")
        if command in NAMED:
            arguments = {**arguments, "by": by}
        try:
            return await what(arguments)
        except (NoAnswer, LimitRefused, BanRefused) as error:
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
            "began": node.started_at,
            "listeners": node.addresses,
            "workers": [_worker(shard) for shard in node.shards],
            "carrier": None if node.carrier is None else node.carrier.describe(),
            "drain": await progress(serving(node.shards)) if node.drain.state else None,
            "cluster": None if node.membership is None else node.membership.describe(),
            "totals": node.statistics(),
        }

    async def _nodes(self, arguments: Arguments) -> object:
        """The nodes that share the Redis of this one; None: nobody can. *left*: seconds of a lease; 0: it is over."""
        membership = self._node.membership
        if membership is None:
            return {"redis": None, "nodes": []}
        lease = membership.lease
        try:
            found = await trio.to_thread.run_sync(lease.nodes, abandon_on_cancel=True)
        except RedisError as error:
            raise Refused(f"{lease.shown} cannot tell which nodes there are: {error}") from None
        return {"redis": lease.shown, "nodes": [_sharing(node, membership.why_apart(node)) for node in found]}

    async def _stop(self, arguments: Arguments) -> object:
        self._node.stop("weir stop")
        return {"pid": os.getpid(), "drain": self._node.config.drain.timeout}

    async def _restart(self, arguments: Arguments) -> object:
        """Replace one worker after another, while the other ones serve."""
        node = self._node
        if node.stopping():
            raise Refused("The node is stopping.")
        if self._restarting:
            raise Refused("Another restart is running.")
        self._restarting = True
        replaced = []
        try:
            for shard in node.shards:
                began = time.monotonic()
                former = shard.process
                pid = await node.replace(shard)
                if pid is None:
                    raise Refused(f"Worker {shard.number} did not become ready: the node's log says why.")
                lost = former.sessions_lost if former is not None else 0
                replaced.append(
                    {
                        "worker": shard.number,
                        "pid": pid,
                        "seconds": round(time.monotonic() - began, 3),
                        "sessions_lost": lost,
                    }
                )
        finally:
            self._restarting = False
        return {"workers": replaced}

    async def _reload(self, arguments: Arguments) -> object:
        wrong = await self._node.reload()
        if wrong:
            raise Refused(" ".join(wrong))
        return {}

    async def _backup(self, arguments: Arguments) -> object:
        """Where the durable state of the node is, for `weir backup`, which reads it there. It is in the audit log."""
        config = self._node.config
        if config.store.durability == MEMORY:
            raise Refused('The node stores no sessions, as store.durability is "memory": there is nothing to back up.')
        redis = {"address": self._node.redis.address.parts(), "prefix": config.redis.prefix}
        return {"node": config.node.name, "redis": redis}

    async def _analysis(self, arguments: Arguments) -> object:
        """Where the metrics records are, for `weir analytics run`, which reads them there. It is in the audit log."""
        redis, kafka, metrics = self._node.config.redis, self._node.config.kafka, self._node.config.metrics
        return {
            "redis": {
                "url": redis.url,
                "ca": redis.ca,
                "password_file": redis.password_file,
                "sentinel_password_file": redis.sentinel_password_file,
                "prefix": redis.prefix,
            },
            "kafka": {
                "hosts": [*kafka.hosts] if metrics.enabled else [],
                "options": dict(kafka.options),
                "password_file": kafka.password_file,
            },
        }

    async def _clients(self, arguments: Arguments) -> object:
        """The clients whose id contains `match`, at most `limit`, and whether there are more."""
        limit = min(arguments["limit"], LONGEST_LIST)
        match = arguments["match"]
        found: list[dict[str, Any]] = []
        for process in serving(self._node.shards):
            position: int | None = 0
            while position is not None and len(found) <= limit:
                page = await process.ask("clients", {"position": position, "match": match})
                found += [{**client, "worker": process.shard} for client in page["clients"]]
                position = page["next"]
        return {"clients": found[:limit], "more": len(found) > limit}

    async def _client(self, arguments: Arguments) -> object:
        for process in serving(self._node.shards):
            found = await process.ask("client", arguments)
            if found is not None:
                return {**found, "worker": process.shard}
        raise Refused(f"There is no client {arguments['client']!r}.")

    async def _why(self, arguments: Arguments) -> object:
        """What the workers know about a client, which may have been connected to several of them."""
        found: list[Facts] = []
        unanswered: list[int] = []

        async def ask(process: WorkerProcess) -> None:
            try:
                found.append(await process.ask("why", arguments))
            except NoAnswer:
                unanswered.append(process.shard)

        async with trio.open_nursery() as nursery:
            for process in serving(self._node.shards):
                nursery.start_soon(ask, process)
        known = together(found, sorted(unanswered))
        if known is None:
            raise Refused(_nothing_known(arguments["client"], unanswered))
        return known

    async def _kick(self, arguments: Arguments) -> object:
        for process in serving(self._node.shards):
            if await process.ask("kick", arguments):
                return {"worker": process.shard}
        raise Refused(f"No client {arguments['client']!r} is connected.")

    async def _overload(self, arguments: Arguments) -> object:
        """The overload of each worker and its cause (broker/insight/overload_snapshot.py)."""
        return {"node": self._node.config.node.name, "workers": await self._ask_each("overload")}

    async def _top(self, arguments: Arguments) -> object:
        """The last metrics record of each worker (broker/metrics/record.py)."""
        return {"node": self._node.config.node.name, "workers": await self._ask_each("record")}

    async def _ask_each(self, what: str) -> list[dict[str, Any]]:
        """The answer of each worker under the name *what*, or under "error" why there is none."""
        told = [
            {"worker": shard.number, "state": "dead" if shard.process is None else shard.process.state}
            for shard in self._node.shards
        ]
        async with trio.open_nursery() as asking:  # at the same time, as workers that hang take the whole timeout
            for shard, answer in zip(self._node.shards, told, strict=True):
                if shard.process is not None:
                    asking.start_soon(_ask_into, answer, shard.process, what)
        return told

    async def _inject(self, arguments: Arguments) -> object:
        """Set a signal of overload of one worker to a value, in its unit (seconds or a share), for some seconds."""
        if not self._tested:
            raise Refused(f"Signals are injected only into a node that was started with {TESTED}=1 in its environment.")
        number, value, seconds = arguments["worker"], arguments["value"], arguments["seconds"]
        shards = self._node.shards
        if not 0 <= number < len(shards):
            raise Refused(f"Worker {number} does not exist: this node has {len(shards)}, counted from 0.")
        if not math.isfinite(value):
            raise Refused(f"The argument value = {value} of inject is not a finite number.")
        if not 0 < seconds <= LONGEST_INJECTION:
            raise Refused(
                f"The argument seconds = {seconds} of inject must be above 0 and at most {LONGEST_INJECTION:g}."
            )
        process = shards[number].process
        if process is None:
            raise Refused(f"Worker {number} is dead and cannot be asked now.")
        return await process.ask("inject", {"signal": arguments["signal"], "value": value, "seconds": seconds})

    async def _limit_set(self, arguments: Arguments) -> object:
        """Set an override; the workers where the client is connected have applied it when this returns."""
        self._node.limits.set(**arguments)
        return {"client": arguments["client"], "workers": await self._applied(arguments["client"])}

    async def _limit_drop(self, arguments: Arguments) -> object:
        if not self._node.limits.drop(**arguments):
            raise Refused(f"The client {arguments['client']!r} has no override.")
        return {"client": arguments["client"], "workers": await self._applied(arguments["client"])}

    async def _limit_list(self, arguments: Arguments) -> object:
        self._node.limits.expire_due()
        return {"limits": self._node.limits.listed(), "configured": self._node.limits.listed_configured()}

    async def _ban_add(self, arguments: Arguments) -> object:
        return {"kind": arguments["kind"], "value": self._node.bans.add(**arguments)}

    async def _ban_remove(self, arguments: Arguments) -> object:
        kind, value = arguments["kind"], arguments["value"]
        if not self._node.bans.remove(**arguments):
            raise Refused(f"The {kind} {value!r} is not banned.")
        return {"kind": kind, "value": value}

    async def _ban_list(self, arguments: Arguments) -> object:
        self._node.bans.expire_due()
        return {"bans": self._node.bans.listed()}

    async def _applied(self, client: str) -> list[int]:
        """The workers where *client* is connected, after all of them have handled the frames sent before.

        A worker that does not answer handles them later, and its successor gets them with its assignment.
        """
        found = []
        for process in serving(self._node.shards):
            try:
                told = await process.ask("client", {"client": client})
            except NoAnswer:
                continue
            if told is not None and told["connected"]:
                found.append(process.shard)
        return found


def _nothing_known(client: str, unanswered: list[int]) -> str:
    told = (
        f"This node has no session of a client {client!r}, and none of the last disconnects and refusals it remembers "
        "was of that client; check the client id and the node, for example with `weir clients list`."
    )
    if unanswered:
        told = f"{told[:-1]}, and try again, as {len(unanswered)} of the workers did not answer."
    return told


async def _ask_into(answer: dict[str, Any], process: WorkerProcess, what: str) -> None:
    try:
        answer[what] = await process.ask(what, {})
    except NoAnswer as error:
        answer["error"] = str(error)


def _sharing(node: SharingNode, why_apart: str) -> dict[str, Any]:
    """*why_apart*: of `Membership.why_apart()`."""
    said = {key: node.about.get(key) for key in ("host", "version", "folder", "workers", "began", "lanes")}
    dead = "it has ended" if node.ended() else "its lease has run out"
    apart = why_apart if node.runs_for() > 0 else dead
    return {
        "node": node.name,
        "incarnation": node.incarnation,
        "left": round(max(0.0, node.left), 1),
        **said,
        "running_workers": [worker.shard for worker in node.workers() if worker is not None],
        "joined": not apart,
        "why_apart": apart,
        "stored_at_workers": node.owners,
        "drain": node.draining(),
    }


def _worker(shard: Shard) -> dict[str, Any]:
    process = shard.process
    if process is None:
        return {"worker": shard.number, "state": "dead", "pid": 0, "deaths": shard.deaths}
    return {
        "worker": shard.number,
        "state": process.state,
        "pid": process.pid,
        "deaths": shard.deaths,
        "uptime": process.served() or 0.0,
        "cpu_seconds": process_times(process.pid),
        "statistics": process.statistics,
    }
