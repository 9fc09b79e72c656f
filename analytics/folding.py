# The work of the driver: it folds the seconds of a batch into the state, and returns the rows that changed.
#
# The state is plain JSON of bounded size. json.dumps and json.loads preserve it, so the job can save it after each
# batch. A batch that is folded again into the same state gives the same rows. Nothing here reads a clock, a file or a
# network.
#
# Seconds arrive in any order, late, twice, and with times of clocks that differ. A record counts once, by its boot and
# sequence. A second that is more than HORIZON older than the newest second of earlier batches is late, and is ignored.
# The clock of a node that is ahead must not make all other nodes late: a second more than AHEAD after *now* is taken as
# *now* plus AHEAD. The age of a record by the clock of the job means nothing: a job that catches up is hours behind.
from dataclasses import dataclass
from typing import Any, Final

from analytics import episodes, findings, incidents, sequences, windows
from analytics.episodes import GAP, HORIZON
from analytics.rows import VERSION, Episode, Findings, Incident, Window
from analytics.second import Second

AHEAD: Final = 10  # seconds
WORKERS: Final = 10_000  # boots that are tracked; records of further ones are ignored until others are forgotten

State = dict[str, Any]


@dataclass(frozen=True)
class Folded:
    """The state after a batch, and the rows that changed."""

    state: State
    windows: list[Window]
    episodes: list[Episode]  # an episode with state "merged" is to be deleted
    incidents: list[Incident]  # likewise
    findings: Findings
    late: int  # seconds that were ignored: late, or of more than WORKERS workers


def begin() -> State:
    """Return the state before the first batch."""
    return {
        "version": VERSION,
        "newest": 0,
        "rolled_to": 0,
        "sequences": {},
        "windows": windows.begin(),
        "episodes": episodes.begin(),
        "incidents": incidents.begin(),
        "findings": findings.begin(),
    }


def fold(state: State, seconds: list[Second], now: float) -> Folded:
    """Fold *seconds* (in any order) into *state* at the time *now*. A pure function: the arguments are not changed."""
    known = dict(state["sequences"])
    fresh, late = _fresh(known, seconds, state["rolled_to"], int(now) + AHEAD)
    newest = max([state["newest"], *(second["second"] for second in fresh)])
    rolled_to = max(0, newest - HORIZON)
    holes = sequences.holes(known)
    sequences.forget(known, rolled_to - GAP - 1)  # a hole may lie in a gap that a later second bridges
    window_state, changed_windows = windows.fold(state["windows"], fresh, rolled_to)
    # Without seconds there is no time of the nodes, and *now* decides which episodes have ended.
    current = newest if seconds else max(newest, int(now) - HORIZON)
    episode_state, changed_episodes, settled = episodes.fold(state["episodes"], fresh, holes, current, rolled_to)
    live = [*episode_state["told"].values()]
    incident_state, changed_incidents = incidents.fold(state["incidents"], live, settled)
    finding_state, found = findings.fold(state["findings"], fresh, episode_state["moments"], newest)
    return Folded(
        state={
            "version": VERSION,
            "newest": newest,
            "rolled_to": rolled_to,
            "sequences": known,
            "windows": window_state,
            "episodes": episode_state,
            "incidents": incident_state,
            "findings": finding_state,
        },
        windows=changed_windows,
        episodes=changed_episodes,
        incidents=changed_incidents,
        findings=found,
        late=late,
    )


def _fresh(known: sequences.Sequences, seconds: list[Second], rolled_to: int, latest: int) -> tuple[list[Second], int]:
    """Return the *seconds* that are new, in the order of time, and the number of those that are ignored."""
    fresh: list[Second] = []
    late = 0
    for second in sorted(seconds, key=_order):
        at = min(second["second"], latest)
        run = sequences.run_of(second["node"], second["boot"])
        if at <= rolled_to or (run not in known and len(known) >= WORKERS):
            late += 1
        elif sequences.mark(known, run, second["sequence"], at):
            fresh.append(second if at == second["second"] else Second(**{**second, "second": at}))
    return fresh, late


def _order(second: Second) -> tuple[int, str, int]:
    return second["second"], second["boot"], second["sequence"]
