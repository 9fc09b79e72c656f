# Which records of each life of a worker were seen, and which are missing.
#
# The state: boot -> runs, each [first, last, second of the first, second of the last, told]: sequences without a gap.
# One run is the rule; it grows, and costs nothing more. A hole between two runs is records that never came, or come
# yet. They were of the seconds after the run before, one each: nearer one cannot know.
from itertools import pairwise
from typing import Final

Runs = list[list[int]]
Sequences = dict[str, Runs]

REMEMBERED: Final = 300  # seconds that a worker may be silent; what it does not tell of after that is not known as lost
RUNS: Final = 64  # of one boot; more are within the time in which records may be late only if something is very wrong

FIRST, LAST, SECOND_OF_FIRST, SECOND_OF_LAST, TOLD = range(5)


class Hole:
    """Records that are missing: of the seconds from *start* to *end*, which is the first that is not."""

    def __init__(self, start: int, end: int, new: bool) -> None:
        """*new*: it was not there at the fold before."""
        self.start = start
        self.end = end
        self.new = new

    def within(self, start: float, end: float) -> int:
        """Seconds of it from *start* to before *end*."""
        return max(0, int(min(end, self.end) - max(start, self.start)))


def mark(sequences: Sequences, boot: str, sequence: int, second: int) -> bool:
    """Remember a record; whether it is new. *sequences* is changed, the runs in it are not."""
    runs = sequences.get(boot)
    if runs is None:
        sequences[boot] = [[sequence, sequence, second, second, 1]]
        return True
    last = runs[-1]
    if sequence == last[LAST] + 1:
        sequences[boot] = [*runs[:-1], [last[FIRST], sequence, last[SECOND_OF_FIRST], second, last[TOLD]]]
        return True
    if any(run[FIRST] <= sequence <= run[LAST] for run in runs):
        return False
    # Where there was a hole before, it was told of, if it was: it is smaller now, and no news.
    after = next((run for run in runs if run[FIRST] > sequence), None)
    told = after[TOLD] if after else 0
    sequences[boot] = _joined(sorted([*runs, [sequence, sequence, second, second, told]]))[-RUNS:]
    return True


def holes(sequences: Sequences) -> list[Hole]:
    """All that are known; afterwards none is new. *sequences* is changed, the runs in it are not."""
    found = []
    for boot, runs in sequences.items():
        if len(runs) > 1:
            for before, after in pairwise(runs):
                start = before[SECOND_OF_LAST] + 1
                end = min(start + after[FIRST] - before[LAST] - 1, max(start, after[SECOND_OF_FIRST]))
                found.append(Hole(start, end, not after[TOLD]))
            sequences[boot] = [[*run[:TOLD], 1] for run in runs]
    return found


def forget(sequences: Sequences, rolled_to: int) -> None:
    """Nothing of *rolled_to* or before will come after this."""
    for boot, runs in list(sequences.items()):
        if runs[-1][SECOND_OF_LAST] < rolled_to - REMEMBERED:
            del sequences[boot]
        elif len(runs) > 1:
            # A hole may still be filled while the record after it is of a second that is not done with.
            done = sum(run[SECOND_OF_FIRST] <= rolled_to for run in runs[1:])
            sequences[boot] = runs[done:]


def _joined(runs: Runs) -> Runs:
    """*runs*, sorted, without those that touch the one before."""
    joined = [runs[0]]
    for run in runs[1:]:
        before = joined[-1]
        if run[FIRST] == before[LAST] + 1:
            joined[-1] = [before[FIRST], run[LAST], before[SECOND_OF_FIRST], run[SECOND_OF_LAST], before[TOLD]]
        else:
            joined.append(run)
    return joined
