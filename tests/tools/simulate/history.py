# A history: its steps follow from one seed, and it is shortened by leaving out steps that do not matter.
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.tools.faults.durable.checker import Violation
from tests.tools.simulate.chance import BITS
from tests.tools.simulate.world import Step, World

WEIGHTS: Final = {
    "publish": 16,
    "read": 18,
    "turn": 14,
    "redis": 16,
    "log": 8,
    "end carrier": 1,
    "wait": 8,
    "rest": 4,
    "come": 6,
    "go": 3,
    "cut": 2,
    "end redis": 1,
    "fill": 1,
    "kill": 2,
    "stop": 2,
    "wake": 3,
    "cool": 4,
    "lose power": 1,
}
FEWEST: Final = 10  # steps
MOST: Final = 60
BUG: Final = "exception"


@dataclass
class History:
    """*world*: the number that its kind of world follows from."""

    seed: int
    world: int
    steps: list[Step]


def history_of(seed: int) -> History:
    random = Random(seed)
    names = random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=random.randint(FEWEST, MOST))
    return History(seed, random.getrandbits(BITS), [(name, random.getrandbits(BITS)) for name in names])


def run(history: History, tell: Callable[[str], None] | None = None) -> list[Violation]:
    """What was wrong. *tell*: is told each step, and what clients see."""
    try:
        world = World(history.world, tell)
        for name, number in history.steps:
            world.step(name, number)
        return world.finish()
    except Exception as error:
        return [Violation(BUG, 0.0, "", f"{type(error).__name__}: {error}")]


def shortened(history: History) -> History:
    """*history* without the steps that its violation does not need."""
    kind = run(history)[0].kind
    steps = history.steps
    size = len(steps) // 2
    while size:
        at = 0
        while at < len(steps):
            shorter = steps[:at] + steps[at + size :]
            found = run(History(history.seed, history.world, shorter))
            if found and found[0].kind == kind:
                steps = shorter
            else:
                at += size
        size //= 2
    return History(history.seed, history.world, steps)
