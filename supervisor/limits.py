# The limits of single clients that people set while the node runs (broker/overload/quotas/overrides.py).
#
# The supervisor has the one table of the node. A worker gets all of it with its assignment, and each change as it
# comes, so it does not matter which worker a client is at, or comes to, or that a worker was replaced.
#
# The table is in a file of the node's folder, a line of JSON for each limit, and not in Redis: a limit is needed most
# when the store is slow or away, and then it can be set as on any day. There is one writer, who holds the lock of the
# folder, and nothing to agree on, as a limit is this node's. It is on the disk before it holds.
#
# The audit is the log: who set, dropped or outlived what, and why.
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import trio

from broker.config.rate import RateError
from broker.control.frames import ChangeLimits
from broker.log import Log
from broker.overload.quotas.overrides import Limit, OverrideError, Overrides, limit_from

Facts = dict[str, Any]
TYPES: Final[dict[str, type]] = {
    "client": str,
    "rate": str,
    "exempt": bool,
    "seconds": float,
    "by": str,
    "reason": str,
    "made": float,
}


class LimitRefused(Exception):
    """A limit cannot be set or dropped, and nothing was changed. Its text is one sentence."""


class ClientLimits:
    def __init__(
        self,
        path: Path,
        log: Log,
        send: Callable[[ChangeLimits], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """*clock*: that of the workers; *wall*: Unix time. OSError: *path* cannot be read."""
        self._send = send
        self._path = path
        self._log = log
        self._clock = clock
        self._wall = wall
        self._table = Overrides()
        self._changed = trio.Event()  # a new one after each change
        self._read()

    def set(self, client: str, rate: str, exempt: bool, seconds: float, by: str, reason: str) -> None:
        """*client* may publish at *rate* ("": that stays as it is), or is *exempt* from overload protection.

        For so many *seconds*, in place of a former limit. LimitRefused.
        """
        self.end_due()
        now = self._clock()
        try:
            limit = Limit(client, rate, exempt, now + seconds, seconds=seconds, by=by, reason=reason, made=self._wall())
            self._table.check(limit, now)
        except RateError as error:
            raise LimitRefused(f'rate = "{rate}" is not valid: it must be {error.right}.') from None
        except OverrideError as error:
            raise LimitRefused(str(error)) from None
        former = self._table.get(client, now)
        self._write([*(one for one in self._table.limits(now) if one is not former), limit])
        self._table.set(limit, now)
        self._log.info("limit_set", **_facts(limit), seconds=seconds, by=by, replaces=former is not None)
        self._tell([limit], [])

    def drop(self, client: str, by: str) -> bool:
        """*by* ends the limit of *client*; whether it had one. LimitRefused."""
        self.end_due()
        now = self._clock()
        limit = self._table.get(client, now)
        if limit is None:
            return False
        self._write([one for one in self._table.limits(now) if one is not limit])
        self._table.drop(client, now)
        self._log.info("limit_removed", **_facts(limit), by=by, set_by=limit.by)
        self._tell([], [client])
        return True

    def listed(self) -> list[Facts]:
        """Those that hold, each with the seconds that are `left`; the next to end first."""
        now = self._clock()
        return [{**one.described(), "left": round(one.until - now, 3)} for one in self._table.limits(now)]

    def holding(self) -> list[Facts]:
        """The same for a worker."""
        return [{**one.described(), "until": one.until} for one in self._table.limits(self._clock())]

    async def watch(self) -> None:
        """Say so when one ends: that it holds no longer, the workers know by themselves."""
        while True:
            self.end_due()
            following = self._table.limits(self._clock())
            with trio.move_on_after(following[0].until - self._clock() if following else float("inf")):
                await self._changed.wait()

    def end_due(self) -> None:
        """Log and forget those whose time is over."""
        ended = self._table.forget_ended(self._clock())
        for limit in ended:
            self._log_end(limit)
        if ended:
            self._rewrite()
            self._tell([], [limit.client_id for limit in ended])

    def _log_end(self, limit: Limit) -> None:
        self._log.info("limit_expired", **_facts(limit), set_by=limit.by)

    def _tell(self, limits: list[Limit], over: list[str]) -> None:
        self._send(ChangeLimits([{**one.described(), "until": one.until} for one in limits], over))
        self._changed.set()
        self._changed = trio.Event()

    # The file.

    def _write(self, limits: list[Limit]) -> None:
        new = self._path.with_suffix(".new")
        try:
            with new.open("w") as file:
                file.writelines(json.dumps(limit.described()) + "\n" for limit in limits)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            raise LimitRefused(f"Nothing was changed, as {self._path} cannot be written: {error.strerror}.") from None

    def _rewrite(self) -> None:
        """Without those that have ended, or the node's next life would say so again."""
        try:
            self._write(self._table.limits(self._clock()))
        except LimitRefused as error:
            self._log.error("limits_write_failed", why=str(error))

    def _read(self) -> None:
        """Take up the limits of the node's former life; what cannot be read costs its line."""
        try:
            lines = self._path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return
        now, wall = self._clock(), self._wall()
        for number, line in enumerate(lines, 1):
            try:
                limit = _limit_of(line, now, wall)
                if limit.until > now:
                    self._table.set(limit, now)
                else:
                    self._log_end(limit)
            except (ValueError, OverrideError) as error:
                self._log.error("limits_line_invalid", path=str(self._path), line=number, why=str(error))
        if len(self._table.limits(now)) < len(lines):
            self._rewrite()


def _limit_of(line: str, now: float, wall: float) -> Limit:
    """ValueError: it is none."""
    facts = json.loads(line)
    if not isinstance(facts, dict) or {name: type(value) for name, value in facts.items()} != TYPES:
        raise ValueError(f"it does not have {', '.join(TYPES)}")
    json.dumps(facts, ensure_ascii=False).encode()  # or no frame to a worker could carry it
    seconds: float = facts["seconds"]
    left = min(seconds, facts["made"] + seconds - wall)  # a wall clock that was set back lets nothing hold for longer
    return limit_from(facts, now + left)


def _facts(limit: Limit) -> Facts:
    return {
        "client": limit.client_id,
        "rate": limit.rate,
        "protection": not limit.exempt,
        "why": limit.reason,
    }
