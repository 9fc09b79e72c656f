# What the driver does with a batch: its seconds are folded into a state, and rows come out.
#
# State is plain JSON. It is bounded, whatever is folded into it; it survives json.dumps and json.loads unchanged, so
# that the job can save it by batch, and a batch that is folded again into the state before it gives the same rows.
# Nothing here reads a clock, a file or a network.
from dataclasses import dataclass
from typing import Any

from analytics.rows import Episode, Findings, Window
from analytics.second import Second

State = dict[str, Any]


@dataclass(frozen=True)
class Folded:
    """The state after a batch, and what became another than it was before it."""

    state: State
    windows: list[Window]
    episodes: list[Episode]  # with state "merged": there is no such episode any more
    findings: Findings


def begin() -> State:
    """The state before the first batch."""
    return {}


def fold(state: State, seconds: list[Second], now: float) -> Folded:
    """*seconds* of workers, in any order, at *now*. Pure: the same gives the same, and its arguments stay as they are."""
    raise NotImplementedError
