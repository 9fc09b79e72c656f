# The sequence numbers of the records of each boot of a worker: which were received and which are missing.
#
# The state: "NODE/BOOT" -> runs of consecutive numbers, each [first, last, second of the first, second of the last,
# reported].
# Most boots have one run, which grows. A hole between two runs stands for records that were lost or are still to
# arrive. The missing records are assumed to be of the seconds after the previous run, one each.
from itertools import pairwise
from typing import Final

Runs = list[list[int]]
Sequences = dict[str, Runs]

REMEMBERED: Final = 300  # seconds that a worker may be silent: gaps after a longer silence are not noticed
RUNS: Final = 64  # of one boot; no more occur in normal operation

FIRST, LAST, SECOND_OF_FIRST, SECOND_OF_LAST, REPORTED = range(5)


class Hole:
    """Missing records of a worker of *node*, of the seconds from *start* to before *end*."""

    def __init__(self, node: str, start: int, end: int, new: bool) -> None:
        """*new*: the hole was not reported by an earlier fold."""
        self.node = node
        self.start = start
        self.end = end
        self.new = new

    def within(self, start: float, end: float) -> int:
        """Return how many seconds of the hole lie between *start* and *end* (exclusive)."""
        return max(0, int(min(end, self.end) - max(start, self.start)))


def run_of(node: str, boot: str) -> str:
    """Return the name of a run of a worker of *node*."""
    return f"{node}/{boot}"


def mark(sequences: Sequences, boot: str, sequence: int, second: int) -> bool:
    """Add a record of *boot* (see `run_of`) and return whether it is new.

    *sequences* is changed, its runs are replaced.
    """
    runs = sequences.get(boot)
    if runs is None:
        sequences[boot] = [[sequence, sequence, second, second, 1]]
        return True
    last = runs[-1]
    if sequence == last[LAST] + 1:
        sequences[boot] = [*runs[:-1], [last[FIRST], sequence, last[SECOND_OF_FIRST], second, last[REPORTED]]]
        return True
    if any(run[FIRST] <= sequence <= run[LAST] for run in runs):
        return False
    # A record within a known hole makes the hole smaller; the hole stays reported if it was.
    after = next((run for run in runs if run[FIRST] > sequence), None)
    reported = after[REPORTED] if after else 0
    sequences[boot] = _joined(sorted([*runs, [sequence, sequence, second, second, reported]]))[-RUNS:]
    return True


def holes(sequences: Sequences) -> list[Hole]:
    """Return all holes and mark them as reported. *sequences* is changed, its runs are replaced."""
    found = []
    for boot, runs in sequences.items():
        if len(runs) > 1:
            for before, after in pairwise(runs):
                start = before[SECOND_OF_LAST] + 1
                end = min(start + after[FIRST] - before[LAST] - 1, max(start, after[SECOND_OF_FIRST]))
                found.append(Hole(boot.rpartition("/")[0], start, end, not after[REPORTED]))
            sequences[boot] = [[*run[:REPORTED], 1] for run in runs]
    return found


def forget(sequences: Sequences, rolled_to: int) -> None:
    """Drop what is not needed any more: no later record is of the second *rolled_to* or before."""
    for boot, runs in list(sequences.items()):
        if runs[-1][SECOND_OF_LAST] < rolled_to - REMEMBERED:
            del sequences[boot]
        elif len(runs) > 1:
            # A hole may still be filled while the record after it is of a second after *rolled_to*.
            done = sum(run[SECOND_OF_FIRST] <= rolled_to for run in runs[1:])
            sequences[boot] = runs[done:]


def _joined(runs: Runs) -> Runs:
    """Merge adjacent runs of *runs*, which are sorted."""
    joined = [runs[0]]
    for run in runs[1:]:
        before = joined[-1]
        if run[FIRST] == before[LAST] + 1:
            joined[-1] = [before[FIRST], run[LAST], before[SECOND_OF_FIRST], run[SECOND_OF_LAST], before[REPORTED]]
        else:
            joined.append(run)
    return joined
