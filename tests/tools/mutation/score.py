# How many mutants of a package are killed, and how sure that is when only some were tried.
import math
import random
from pathlib import Path
from typing import Final

from tests.tools.mutation.mutants import Mutant, mutants_of

CONFIDENCE: Final = 1.96  # standard deviations around 95 %


class Score:
    """Of one package."""

    def __init__(self, package: str, mutants: list[Mutant]) -> None:
        self.package = package
        self.mutants = mutants
        self.total = len(mutants)
        self.tried = 0
        self.killed = 0

    def sample(self, share: float, chance: random.Random) -> None:
        self.mutants = chance.sample(self.mutants, min(self.total, math.ceil(self.total * share)))
        self.mutants.sort(key=lambda mutant: (mutant.path, mutant.lines.start))

    def __str__(self) -> str:
        share = self.killed / max(self.tried, 1)
        text = f"{self.package}: {self.killed} of {self.tried} killed, {100 * share:.1f} %"
        if self.tried == self.total:
            return text
        low, high = interval(self.killed, self.tried)
        return f"{text} (a sample of {self.total}: {100 * low:.1f} to {100 * high:.1f} % with 95 % confidence)"


def interval(hits: int, tries: int) -> tuple[float, float]:
    """Wilson's interval for a share."""
    if not tries:
        return 0.0, 1.0
    share, z = hits / tries, CONFIDENCE
    middle = share + z * z / (2 * tries)
    width = z * math.sqrt(share * (1 - share) / tries + z * z / (4 * tries * tries))
    scale = 1 + z * z / tries
    return (middle - width) / scale, (middle + width) / scale


def score_of(root: Path, package: str) -> Score:
    name, _, line = package.partition(":")
    path = root / name
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    mutants = [mutant for file in files for mutant in mutants_of(root, file.relative_to(root))]
    return Score(package, [mutant for mutant in mutants if not line or int(line) in mutant.lines])
