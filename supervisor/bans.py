# The bans of the node (broker/auth/bans.py), which administrators make and remove while it runs.
#
# As with overrides of limits (limits.py): the supervisor holds the only table, a worker gets all of it with its
# assignment and then each change, and a file of the node's folder has one line of JSON per ban. A ban is on the disk
# before it takes effect, and the log is the audit: who made or removed which ban, why, and when it expired.
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import trio

from broker.auth.bans import Ban, BanError, Bans, ban_from
from broker.control.frames import ChangeBans
from broker.log import Log

Facts = dict[str, Any]
TYPES: Final[dict[str, type]] = {
    "kind": str,
    "value": str,
    "seconds": float,
    "by": str,
    "reason": str,
    "made": float,
}


class BanRefused(Exception):
    """A ban cannot be made or removed; nothing was changed. The text is one sentence."""


class NodeBans:
    def __init__(
        self,
        path: Path,
        log: Log,
        send: Callable[[ChangeBans], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """*send* passes a change to the workers. *clock*: that of the workers. *wall*: Unix time.

        OSError: *path* cannot be read.
        """
        self._send = send
        self._path = path
        self._log = log
        self._clock = clock
        self._wall = wall
        self._table = Bans()
        self._changed = trio.Event()  # a new event after each change
        self._read()

    def add(self, kind: str, value: str, seconds: float, by: str, reason: str) -> str:
        """Ban *value* for *seconds*, in place of a former ban of it; *value* as it is compared. BanRefused."""
        self.expire_due()
        now = self._clock()
        try:
            ban = Ban(kind, value, now + seconds, seconds=seconds, by=by, reason=reason, made=self._wall())
            self._table.check(ban, now)
        except BanError as error:
            raise BanRefused(str(error)) from None
        former = self._table.get(kind, ban.value, now)
        self._write([*(one for one in self._table.bans(now) if one is not former), ban])
        self._table.set(ban)
        self._log.info("ban_added", **_facts(ban), seconds=seconds, by=by, replaces=former is not None)
        self._tell([ban], [])
        return ban.value

    def remove(self, kind: str, value: str, by: str) -> bool:
        """Remove the ban of *value*; whether there was one. *by*: the user. BanRefused."""
        self.expire_due()
        now = self._clock()
        try:
            written = Ban(kind, value, now, seconds=0.0, by="", reason="", made=0.0).value
        except BanError as error:
            raise BanRefused(str(error)) from None
        ban = self._table.get(kind, written, now)
        if ban is None:
            return False
        self._write([one for one in self._table.bans(now) if one is not ban])
        self._table.drop(kind, written)
        self._log.info("ban_removed", **_facts(ban), by=by, set_by=ban.by)
        self._tell([], [ban])
        return True

    def listed(self) -> list[Facts]:
        """All bans, with the seconds that are `left`; the next to expire first."""
        now = self._clock()
        return [{**one.described(), "left": round(one.until - now, 3)} for one in self._table.bans(now)]

    def holding(self) -> list[Facts]:
        """All bans, as a worker takes them."""
        return [{**one.described(), "until": one.until} for one in self._table.bans(self._clock())]

    async def watch(self) -> None:
        """Log each ban when it expires. Workers notice by themselves that it has expired."""
        while True:
            self.expire_due()
            following = self._table.bans(self._clock())
            with trio.move_on_after(following[0].until - self._clock() if following else float("inf")):
                await self._changed.wait()

    def expire_due(self) -> None:
        """Log and remove the bans that have expired."""
        expired = self._table.forget_ended(self._clock())
        for ban in expired:
            self._log_expiry(ban)
        if expired:
            self._rewrite()
            self._tell([], expired)

    def _log_expiry(self, ban: Ban) -> None:
        self._log.info("ban_expired", **_facts(ban), set_by=ban.by)

    def _tell(self, bans: list[Ban], ended: list[Ban]) -> None:
        holding = [{**one.described(), "until": one.until} for one in bans]
        self._send(ChangeBans(holding, [[one.kind, one.value] for one in ended]))
        self._changed.set()
        self._changed = trio.Event()

    # The file.

    def _write(self, bans: list[Ban]) -> None:
        new = self._path.with_suffix(".new")
        try:
            with new.open("w") as file:
                file.writelines(json.dumps(ban.described()) + "\n" for ban in bans)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            raise BanRefused(f"Nothing was changed, as {self._path} cannot be written: {error.strerror}.") from None

    def _rewrite(self) -> None:
        """Remove expired bans from the file, as the next start of the node would log them again."""
        try:
            self._write(self._table.bans(self._clock()))
        except BanRefused as error:
            self._log.error("bans_write_failed", why=str(error))

    def _read(self) -> None:
        """Read the bans of the node's former run. An invalid line is logged and skipped."""
        try:
            lines = self._path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return
        now, wall = self._clock(), self._wall()
        for number, line in enumerate(lines, 1):
            try:
                ban = _ban_of(line, now, wall)
                if ban.until > now:
                    self._table.check(ban, now)
                    self._table.set(ban)
                else:
                    self._log_expiry(ban)
            except (ValueError, BanError) as error:
                self._log.error("bans_line_invalid", path=str(self._path), line=number, why=str(error))
        if len(self._table.bans(now)) < len(lines):
            self._rewrite()


def _ban_of(line: str, now: float, wall: float) -> Ban:
    """ValueError, BanError: *line* is no ban."""
    facts = json.loads(line)
    if not isinstance(facts, dict) or {name: type(value) for name, value in facts.items()} != TYPES:
        raise ValueError(f"the fields are not {', '.join(TYPES)}")
    json.dumps(facts, ensure_ascii=False).encode()  # UnicodeEncodeError, a ValueError: no frame could carry it
    seconds: float = facts["seconds"]
    left = min(seconds, facts["made"] + seconds - wall)  # a clock that was set back must not prolong it
    return ban_from(facts, now + left)


def _facts(ban: Ban) -> Facts:
    return {"kind": ban.kind, "value": ban.value, "why": ban.reason}
