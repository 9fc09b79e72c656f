# The requests about the logs that APPLICATION clients of a running node share, and the groups that read them.
#
# Each worker tells of the groups with members there (broker/insight/shared_log_requests.py); what they say of one group
# is put together here. The log is asked how old what waits is, for OLDEST groups that have not read everything.
from typing import Any, Final

from supervisor.node import Node
from supervisor.request import NotFound, Refused
from supervisor.session_commands import Arguments, Command, SessionCommands
from supervisor.worker_process import NoAnswer, WorkerProcess
from supervisor.workers import serving

LONGEST_LIST: Final = 1000  # groups in one answer
OLDEST: Final = 20
NAMED: Final = ("earliest", "latest")

Part = tuple[WorkerProcess, dict[str, Any]]  # what a worker says of a group


class SharedLogCommands:
    def __init__(self, node: Node, sessions: SessionCommands) -> None:
        self._node = node
        self._sessions = sessions

    def commands(self) -> dict[str, Command]:
        return {
            "shared_logs": (self._list, {"limit": int, "match": str}),
            "shared_log_reset": (self._reset, {"name": str, "to": str, "time": float}),
        }

    async def _list(self, arguments: Arguments) -> object:
        """The groups with `match` in `$share/NAME/FILTER`, at most `limit`, and whether there are more.

        `reads`: partitions that members have leased. `lag`: records that were not passed on to a member; None: not
        known. `oldest`: seconds since the first of them was offered; None: there is none, or it is not known.
        `missing`: workers that could not be asked.
        """
        limit = min(arguments["limit"], LONGEST_LIST)
        found = await self.groups(arguments["match"], limit)
        return {"shared": found[:limit], "more": len(found) > limit, "missing": self._sessions.missing()}

    async def _reset(self, arguments: Arguments) -> object:
        """Have the group with the name `$share/NAME/FILTER`, whose members are away, go on in its log at `to`: NAMED.

        "": at `time` (Unix, seconds). `lag`: records that are to be read from there on.
        """
        name, to = arguments["name"], arguments["to"]
        if to and to not in NAMED:
            raise Refused(f"A place in a shared log is a time, earliest or latest, and not {to!r:.40}.")
        for process in serving(self._node.shards):
            try:
                found = await process.ask("shared_log_reset", arguments)
            except NoAnswer as error:
                raise Refused(str(error)) from None
            if found is not None:
                return {"name": name, **found}
        missing = self._sessions.missing()
        others = f"; {missing} of the workers cannot be asked now, so try again" if missing else ""
        raise NotFound(f"No session has the shared subscription {name!r} to a log{others}.")

    async def groups(self, match: str, limit: int, exact: bool = False) -> list[dict[str, Any]]:
        """As `_list()`; one more than *limit*, if there are more. *exact*: *match* is the whole name. NoAnswer."""
        groups: dict[tuple[str, str], list[Part]] = {}
        for process in serving(self._node.shards):
            position: int | None = 0
            while position is not None:
                page = await process.ask("shared_logs", {"position": position, "match": match, "exact": exact})
                for one in page["shared"]:
                    name = (one["name"], one["filter"])
                    if name in groups or len(groups) <= limit:
                        groups.setdefault(name, []).append((process, one))
                position = page["next"]
        found: list[dict[str, Any]] = []
        asks = OLDEST
        for parts in groups.values():
            told, behind = together([part for _, part in parts])
            if behind and asks:
                asks -= 1
                try:
                    told["oldest"] = await _oldest(parts[0][0], told["topic"], behind)
                except NoAnswer:
                    asks = 0  # nor would it be for others
            found.append(told)
        return found


async def _oldest(process: WorkerProcess, topic: str, behind: list[list[int]]) -> float | None:
    age: float | None = await process.ask("shared_log_oldest", {"topic": topic, "positions": behind})
    return age


def together(parts: list[dict[str, Any]]) -> tuple[dict[str, Any], list[list[int]]]:
    """What workers say of one group; and the partitions with records that were not passed on, with their offsets."""
    positions: dict[int, int] = {}
    for key in ("saved", "positions"):  # while a partition is leased, its worker knows better
        for part in parts:
            positions.update(part[key])
    ends: list[int] | None = next((part["ends"] for part in parts if part["ends"] is not None), None)
    lags = {number: max(0, ends[number] - at) for number, at in positions.items() if ends and number < len(ends)}
    first = parts[0]
    told = {
        "name": first["name"],
        "filter": first["filter"],
        "topic": first["topic"],
        "partitions": len(ends) if ends else len(positions),
        "members": sum(part["members"] for part in parts),
        "connected": sum(part["connected"] for part in parts),
        "reads": sorted({number for part in parts for number in part["reads"]}),
        "lag": sum(lags.values()) if lags else None,
        "oldest": None,
        "trouble": next((part["trouble"] for part in parts if part["trouble"]), ""),
    }
    return told, [[number, positions[number]] for number, lag in sorted(lags.items()) if lag]
