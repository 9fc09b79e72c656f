# A trace played: what happened, decided again to the last bit, and beside it what another policy would have made of it.
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgpack

from analytics.backtest.outcome import Outcome, Tally
from analytics.backtest.policy import Policy
from analytics.backtest.world import World
from broker.config.sources import restored
from broker.overload.admit import ACCEPT, NOT_WAITING, PAUSE, Verdict
from broker.overload.trace.player import Player, Replayed
from broker.overload.trace.records import (
    ACCOUNT,
    BEGIN,
    DONE,
    GATE,
    LARGEST,
    MEASURED,
    PROCESSED,
    PUBLISH,
    READABLE,
    RELEASED,
    RESET,
    RUN,
    SLICE,
    TAKE,
)

PART: Final = 1 << 20  # bytes that are read at once
MISTAKES: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, msgpack.UnpackException)


class BadTrace(Exception):
    """A file that cannot be played. Its text is one sentence for the user."""


@dataclass(frozen=True)
class About:
    """Who recorded a trace, and when."""

    node: str
    worker: int
    began: float  # by the clock of who recorded it
    wall: float  # the same moment as Unix time
    settings: dict[str, Any]


@dataclass
class Played:
    """One trace under one policy."""

    about: About
    decisions: int  # that were made again by the settings in force
    different: int  # of them, that came out otherwise than it is recorded: another build of the broker decided
    recorded: Outcome
    estimate: Outcome | None  # None: the policy is the one that was in force, and what is recorded is what it makes
    same: bool


def records(file: Path) -> Iterator[list[Any]]:
    """All of a trace, without what was cut off at its end. BadTrace."""
    unpacker = msgpack.Unpacker(max_buffer_size=LARGEST)
    try:
        with file.open("rb") as data:
            while part := data.read(PART):
                unpacker.feed(part)
                yield from unpacker
    except OSError as error:
        raise BadTrace(f"Cannot read the trace {file}: {error.strerror}.") from None
    except (ValueError, msgpack.UnpackException):
        raise BadTrace(f"{file} is no trace, or is damaged: `weir overload` says where a worker records one.") from None


def about(file: Path) -> About:
    """Who recorded the trace *file*. BadTrace."""
    first = next(records(file), None)
    if not isinstance(first, list) or len(first) < 2 or first[0] != BEGIN:
        raise BadTrace(f"{file} is no trace: `weir overload` says where a worker records one.")
    if first[1] not in READABLE:
        raise BadTrace(
            f"{file} is a trace of version {first[1]}, and this Weir plays versions {READABLE[0]} to {READABLE[-1]}: "
            "record it again with the version that plays it."
        )
    try:
        told = first[3]
        return About(told["node"], told["worker"], told["began"], told["wall"], told["settings"])
    except MISTAKES:
        raise BadTrace(f"{file} does not say who recorded it: no worker of a node did.") from None


def play(file: Path, policy: Policy | None, since: float = 0.0, check: bool = False) -> Played:
    """The trace *file* under *policy*, as far as it is after the Unix time *since*; BadTrace, ConfigError.

    *policy* None: as it was. *check*: estimate it all the same, if it is the policy that was in force.
    """
    who = about(file)
    in_force = restored(who.settings).overload
    wanted = in_force if policy is None else policy.over(who.settings)
    player = Player(in_force)
    after = who.began + (since - who.wall)
    world = World(wanted, in_force, player, Tally(after)) if wanted != in_force or check else None
    table = _Table(player, Tally(after), world)
    position = 0
    try:
        for position, fields in enumerate(records(file)):  # noqa: B007
            table.play(fields)
    except MISTAKES as error:
        raise BadTrace(f"{file} is damaged at its record {position}: {error!r}.") from None
    return table.end(who, wanted == in_force)


class _Table:
    """What was, and what would have been, side by side."""

    def __init__(self, player: Player, tally: Tally, world: World | None) -> None:
        self.player = player
        self.tally = tally
        self.world = world
        self.decisions = 0
        self.different = 0
        self._arrived: dict[int, float] = {}  # accounts whose publish is held, since it arrived

    def play(self, fields: list[Any]) -> None:
        player, world = self.player, self.world
        kind = fields[0]
        count = player.gates[fields[1]].count if kind in (DONE, PROCESSED) else 0
        if kind == SLICE and world is not None:
            world.pass_time(fields[1])
        found = player.play(fields)
        if kind == SLICE:
            self.tally.pass_time(player.now)
        elif kind in (PUBLISH, RUN):
            assert found is not None
            self._judged(found)
        elif kind == RELEASED:
            self._released(fields[1], fields[2])
        elif kind == MEASURED:
            self._measured(fields[1])
        if world is not None:
            self._elsewhere(world, kind, fields, count)

    def _elsewhere(self, world: World, kind: int, fields: list[Any], count: int) -> None:
        if kind == BEGIN:
            world.begin()
        elif kind == ACCOUNT:
            world.meet(fields[2])
        elif kind == GATE:
            world.add_gate()
        elif kind == TAKE:
            world.took(fields[1], fields[2], fields[3])
        elif kind in (DONE, PROCESSED):
            world.completed(fields[1], count - self.player.gates[fields[1]].count)
        elif kind == RESET:
            world.reset(fields[1])

    def _judged(self, found: Replayed) -> None:
        self.decisions += 1
        verdict = found.verdict
        if _plain(verdict) != _plain(found.recorded) or (verdict.kind == ACCEPT and found.passed < found.count):
            self.different += 1
        again = found.number in self._arrived and found.publish.since != NOT_WAITING
        if not again and self._arrived.pop(found.number, None) is not None:  # its connection ended before it was read
            self.tally.lost(1)
        if not again:
            self.tally.arrived(found.count)
        if verdict.kind == PAUSE:
            self._arrived.setdefault(found.number, found.at)
            assert verdict.reason is not None
            self.tally.held(found.number, found.client, verdict.reason.label)
        else:
            since = self._arrived.pop(found.number, found.at)
            if verdict.kind == ACCEPT:
                self.tally.taken(found.passed, found.at - since)
            else:
                self.tally.turned_away(verdict)
        if self.world is not None:
            self.world.arrive(found, again)

    def _released(self, number: int, gone: bool) -> None:
        held = self.tally.holds(number)
        self.tally.free(number)
        if gone:
            lost = self._arrived.pop(number, None)
            if lost is not None:
                self.tally.lost(1)
            if held and self.world is not None:
                self.world.gone(number)

    def _measured(self, values: list[float]) -> None:
        player = self.player
        for name, value in zip(player.resources, values, strict=True):
            if name not in ("outbound", "memory", "connect"):
                self.tally.delay(name, value)
        self.tally.level(max(player.level.value, player.others))
        if self.world is not None:
            self.world.step(values)

    def end(self, who: About, same: bool) -> Played:
        recorded = self.tally.close(len(self._arrived))
        estimate = None if self.world is None else self.world.tally.close(self.world.waiting())
        return Played(who, self.decisions, self.different, recorded, estimate, same)


def _plain(verdict: Verdict) -> tuple[int, object, float]:
    return verdict.kind, verdict.reason, verdict.until
