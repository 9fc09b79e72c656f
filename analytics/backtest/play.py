# Plays a trace: repeats the recorded decisions exactly, and estimates the outcome of another policy beside them.
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

PART: Final = 1 << 20  # bytes per read
MISTAKES: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, msgpack.UnpackException)


class BadTrace(Exception):
    """The file cannot be played. The text is one sentence for the user."""


@dataclass(frozen=True)
class About:
    """The origin of a trace."""

    node: str
    worker: int
    began: float  # start, by the monotonic clock of the worker
    wall: float  # start, in Unix time
    settings: dict[str, Any]


@dataclass
class Played:
    """One trace under one policy."""

    about: About
    decisions: int  # that were repeated with the recorded settings
    different: int  # decisions that differ from the recorded ones: another version of the broker recorded the trace
    recorded: Outcome
    estimate: Outcome | None  # None: the policy is the recorded one, and so is its outcome
    same: bool


def records(file: Path) -> Iterator[list[Any]]:
    """Yield the records of a trace, except an incomplete one at its end. Raises BadTrace."""
    unpacker = msgpack.Unpacker(max_buffer_size=LARGEST)
    try:
        with file.open("rb") as data:
            while part := data.read(PART):
                unpacker.feed(part)
                yield from unpacker
    except OSError as error:
        raise BadTrace(f"Cannot read the trace {file}: {error.strerror}.") from None
    except (ValueError, msgpack.UnpackException):
        raise BadTrace(
            f"{file} is not a trace, or is damaged: `weir overload` shows the trace files of the workers."
        ) from None


def about(file: Path) -> About:
    """Return the origin of the trace *file*. Raises BadTrace."""
    first = next(records(file), None)
    if not isinstance(first, list) or len(first) < 2 or first[0] != BEGIN:
        raise BadTrace(f"{file} is not a trace: `weir overload` shows the trace files of the workers.")
    if first[1] not in READABLE:
        raise BadTrace(
            f"{file} has trace version {first[1]}, but this Weir plays versions {READABLE[0]} to {READABLE[-1]}: "
            "record and play a trace with the same version."
        )
    try:
        origin = first[3]
        return About(origin["node"], origin["worker"], origin["began"], origin["wall"], origin["settings"])
    except MISTAKES:
        raise BadTrace(f"{file} does not name the worker that recorded it.") from None


def play(file: Path, policy: Policy | None, since: float = 0.0, check: bool = False) -> Played:
    """Play the part of the trace *file* after the Unix time *since* under *policy*. Raises BadTrace, ConfigError.

    *policy* None stands for the recorded policy. *check*: estimate the outcome even for the recorded policy.
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
    """Plays the recorded decisions and the estimate side by side."""

    def __init__(self, player: Player, tally: Tally, world: World | None) -> None:
        self.player = player
        self.tally = tally
        self.world = world
        self.decisions = 0
        self.different = 0
        self._arrived: dict[int, float] = {}  # account -> arrival of its waiting publish

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
            self._decided(found)
        elif kind == RELEASED:
            self._released(fields[1], fields[2])
        elif kind == MEASURED:
            self._measured(fields[1])
        if world is not None:
            self._simulate(world, kind, fields, count)

    def _simulate(self, world: World, kind: int, fields: list[Any], count: int) -> None:
        if kind == BEGIN:
            world.begin()
        elif kind == ACCOUNT:
            world.add_account(fields[2])
        elif kind == GATE:
            world.add_gate()
        elif kind == TAKE:
            world.passed(fields[1], fields[2], fields[3])
        elif kind in (DONE, PROCESSED):
            world.completed(fields[1], count - self.player.gates[fields[1]].count)
        elif kind == RESET:
            world.reset(fields[1])

    def _decided(self, found: Replayed) -> None:
        self.decisions += 1
        verdict = found.verdict
        if _plain(verdict) != _plain(found.recorded) or (verdict.kind == ACCEPT and found.passed < found.count):
            self.different += 1
        again = found.number in self._arrived and found.publish.since != NOT_WAITING
        if (
            not again and self._arrived.pop(found.number, None) is not None
        ):  # the connection ended before the publish was read
            self.tally.lost(1)
        if not again:
            self.tally.arrived(found.count)
        if verdict.kind == PAUSE:
            self._arrived.setdefault(found.number, found.at)
            assert verdict.reason is not None
            self.tally.throttled(found.number, found.client, verdict.reason.label)
        else:
            since = self._arrived.pop(found.number, found.at)
            if verdict.kind == ACCEPT:
                self.tally.accepted(found.passed, found.at - since)
            else:
                self.tally.refused_or_dropped(verdict)
        if self.world is not None:
            self.world.arrive(found, again)

    def _released(self, number: int, disconnected: bool) -> None:
        throttled = self.tally.is_throttled(number)
        self.tally.resume(number)
        if disconnected:
            lost = self._arrived.pop(number, None)
            if lost is not None:
                self.tally.lost(1)
            if throttled and self.world is not None:
                self.world.disconnected(number)

    def _measured(self, values: list[float]) -> None:
        player = self.player
        for name, value in zip(player.resources, values, strict=True):
            if name not in ("outbound", "memory", "redis", "connect", "topology"):
                self.tally.delay(name, value)
        self.tally.level(max(player.level.value, player.others), player.level.cause)
        if self.world is not None:
            self.world.step(values)

    def end(self, who: About, same: bool) -> Played:
        recorded = self.tally.close(len(self._arrived))
        estimate = None if self.world is None else self.world.tally.close(self.world.waiting())
        return Played(who, self.decisions, self.different, recorded, estimate, same)


def _plain(verdict: Verdict) -> tuple[int, object, float]:
    return verdict.kind, verdict.reason, verdict.until
