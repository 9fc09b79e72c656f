# Chance: the choices of one step of a history, all from one number.
#
# A step keeps its number when others are left out of its history, so what it chooses does not depend on them: that lets
# a history be shortened (shrinking.py). A `Random` for each step would cost more than the step.
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

BITS: Final = 128  # of a number: forty choices of one in ten


class Chance:
    def __init__(self, number: int) -> None:
        self._number = number

    def below(self, limit: int) -> int:
        """A number from 0 to *limit* - 1. When the number is used up it is always 0."""
        self._number, found = divmod(self._number, limit)
        return found

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def often(self, percent: int) -> bool:
        return self.below(100) < percent
