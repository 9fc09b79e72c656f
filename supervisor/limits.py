# The overrides of single clients that administrators set while the node runs (broker/overload/quotas/overrides.py).
#
# The supervisor holds the only table of the node. A worker gets the whole table with its assignment and then each
# change, so an override holds at every worker, and after the restart of a worker.
#
# The table is stored in a file of the node's folder, one line of JSON per override, and not in Redis: overrides are
# needed most when Redis is slow or away. The supervisor is the only writer, and an override concerns one node only, so
# no agreement with other nodes is needed. An override is on the disk before it takes effect.
#
# The overrides of the configuration (broker/config/overrides.py) are kept here as well, as they hold for the same
# clients and are replaced by a reload.
#
# The log is the audit: who set or removed which override, why, and when it expired.
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from broker.config.overrides import ClientOverride
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
    """An override cannot be set or removed; nothing was changed. The text is one sentence."""


class ClientLimits:
    def __init__(
        self,
        path: Path,
        log: Log,
        send: Callable[[ChangeLimits], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        configured: Sequence[ClientOverride] = (),
    ) -> None:
        """*send* passes a change to the workers. *clock*: that of the workers. *wall*: Unix time.

        *configured*: the overrides of the configuration, which hold without an end.

        OSError: *path* cannot be read.
        """
        self._configured = tuple(configured)
        self._send = send
        self._path = path
        self._log = log
        self._clock = clock
        self._wall = wall
        self._table = Overrides()
        self._changed = trio.Event()  # a new event after each change
        self._read()

    def configure(self, configured: Sequence[ClientOverride]) -> None:
        """Use the overrides *configured* from the next reload of the workers on."""
        if tuple(configured) != self._configured:
            self._log.info("overrides_changed", before=len(self._configured), now=len(configured))
        self._configured = tuple(configured)

    def configured(self) -> list[Facts]:
        """The overrides of the configuration, as a worker takes them."""
        return [one.described() for one in self._configured]

    def listed_configured(self) -> list[Facts]:
        """The overrides of the configuration, for people."""
        return [{"by": one.by, "name": one.name, "settings": one.words()} for one in self._configured]

    def set(self, client: str, rate: str, exempt: bool, seconds: float, by: str, reason: str) -> None:
        """Override the publish rate of *client* (*rate*; "": keep it), or exempt the client from overload protection.

        The override holds for *seconds* and replaces a former one of the client. LimitRefused.
        """
        self.expire_due()
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
        """Remove the override of *client*; whether there was one. *by*: the user. LimitRefused."""
        self.expire_due()
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
        """All overrides, with the seconds that are `left`; the next to expire first."""
        now = self._clock()
        return [{**one.described(), "left": round(one.until - now, 3)} for one in self._table.limits(now)]

    def holding(self) -> list[Facts]:
        """All overrides, as a worker takes them."""
        return [{**one.described(), "until": one.until} for one in self._table.limits(self._clock())]

    async def watch(self) -> None:
        """Log each override when it expires. Workers notice by themselves that it has expired."""
        while True:
            self.expire_due()
            following = self._table.limits(self._clock())
            with trio.move_on_after(following[0].until - self._clock() if following else float("inf")):
                await self._changed.wait()

    def expire_due(self) -> None:
        """Log and remove the overrides that have expired."""
        expired = self._table.forget_ended(self._clock())
        for limit in expired:
            self._log_expiry(limit)
        if expired:
            self._rewrite()
            self._tell([], [limit.client_id for limit in expired])

    def _log_expiry(self, limit: Limit) -> None:
        self._log.info("limit_expired", **_facts(limit), set_by=limit.by)

    def _tell(self, limits: list[Limit], ended: list[str]) -> None:
        self._send(ChangeLimits([{**one.described(), "until": one.until} for one in limits], ended))
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
        """Remove expired overrides from the file, as the next start of the node would log them again."""
        try:
            self._write(self._table.limits(self._clock()))
        except LimitRefused as error:
            self._log.error("limits_write_failed", why=str(error))

    def _read(self) -> None:
        """Read the overrides of the node's former run. An invalid line is logged and skipped."""
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
                    self._log_expiry(limit)
            except (ValueError, OverrideError) as error:
                self._log.error("limits_line_invalid", path=str(self._path), line=number, why=str(error))
        if len(self._table.limits(now)) < len(lines):
            self._rewrite()


def _limit_of(line: str, now: float, wall: float) -> Limit:
    """ValueError: *line* is no override."""
    facts = json.loads(line)
    if not isinstance(facts, dict) or {name: type(value) for name, value in facts.items()} != TYPES:
        raise ValueError(f"the fields are not {', '.join(TYPES)}")
    json.dumps(facts, ensure_ascii=False).encode()  # UnicodeEncodeError, a ValueError: no frame could carry it
    seconds: float = facts["seconds"]
    left = min(seconds, facts["made"] + seconds - wall)  # a clock that was set back must not prolong it
    return limit_from(facts, now + left)


def _facts(limit: Limit) -> Facts:
    return {
        "client": limit.client_id,
        "rate": limit.rate,
        "protection": not limit.exempt,
        "why": limit.reason,
    }
