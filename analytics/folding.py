# What the driver does with a batch: its seconds are folded into a state, and rows come out.
#
# State is plain JSON. It is bounded, whatever is folded into it; it survives json.dumps and json.loads unchanged, so
# that the job can save it by batch, and a batch that is folded again into the state before it gives the same rows.
# Nothing here reads a clock, a file or a network.
#
# Seconds come in any order, late, twice, and by clocks that differ. A record is taken once, by its boot and sequence. A
# second that is more than HORIZON behind the newest of the batches before is too late: what it belongs to is done with.
# A node whose clock is more than AHEAD before ours must not make all others late: its seconds are taken as of then.
# While the job catches up it is behind by hours, so how old a record is by our clock says nothing.
from dataclasses import dataclass
from typing import Any, Final

from analytics import episodes, findings, sequences, windows
from analytics.episodes import GAP, HORIZON
from analytics.rows import VERSION, Episode, Findings, Window
from analytics.second import Second

AHEAD: Final = 10  # seconds
WORKERS: Final = 10_000  # boots that are known; the records of more are not taken until others are forgotten

State = dict[str, Any]


@dataclass(frozen=True)
class Folded:
    """The state after a batch, and what became another than it was before it."""

    state: State
    windows: list[Window]
    episodes: list[Episode]  # with state "merged": there is no such episode any more
    findings: Findings
    late: int  # seconds that were too late, or of too many workers


def begin() -> State:
    """The state before the first batch."""
    return {
        "version": VERSION,
        "newest": 0,
        "rolled_to": 0,
        "sequences": {},
        "windows": windows.begin(),
        "episodes": episodes.begin(),
        "findings": findings.begin(),
    }


def fold(state: State, seconds: list[Second], now: float) -> Folded:
    """*seconds* of workers, in any order, at *now*. Pure, and its arguments stay as they are."""
    known = dict(state["sequences"])
    fresh, late = _fresh(known, seconds, state["rolled_to"], int(now) + AHEAD)
    newest = max([state["newest"], *(second["second"] for second in fresh)])
    rolled_to = max(0, newest - HORIZON)
    holes = sequences.holes(known)
    sequences.forget(known, rolled_to - GAP - 1)  # a hole may lie in a gap that is not known to be bridged yet
    told, changed = windows.fold(state["windows"], fresh, rolled_to)
    # Nobody has told of anything: so it is not the clocks of nodes that say how late it is, but ours.
    passed = newest if seconds else max(newest, int(now) - HORIZON)
    overloads, overload = episodes.fold(state["episodes"], fresh, holes, passed, rolled_to)
    looked, found = findings.fold(state["findings"], fresh, overloads["moments"], newest)
    return Folded(
        state={
            "version": VERSION,
            "newest": newest,
            "rolled_to": rolled_to,
            "sequences": known,
            "windows": told,
            "episodes": overloads,
            "findings": looked,
        },
        windows=changed,
        episodes=overload,
        findings=found,
        late=late,
    )


def _fresh(known: sequences.Sequences, seconds: list[Second], rolled_to: int, latest: int) -> tuple[list[Second], int]:
    """Those of *seconds* that were not seen yet, in the order of what they are of, and how many cannot be taken."""
    fresh: list[Second] = []
    late = 0
    for second in sorted(seconds, key=_order):
        at = min(second["second"], latest)
        if at <= rolled_to or (second["boot"] not in known and len(known) >= WORKERS):
            late += 1
        elif sequences.mark(known, second["boot"], second["sequence"], at):
            fresh.append(second if at == second["second"] else Second(**{**second, "second": at}))
    return fresh, late


def _order(second: Second) -> tuple[int, str, int]:
    return second["second"], second["boot"], second["sequence"]
