# The collector's policy: nothing is looked at while clients wait, unless it is little.
import gc
from collections.abc import Iterator

import pytest

from broker.net.collector import FULL_EVERY, YOUNG, Collector


@pytest.fixture(autouse=True)
def ours() -> Iterator[None]:
    """Give Python's collector back as it was."""
    yield
    gc.unfreeze()
    gc.enable()


class Ring:
    """Garbage that only the collector finds."""

    gone = 0

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        Ring.gone += 1


def test_after_the_start_python_collects_nothing_by_itself() -> None:
    """A full pass would hold the loop for tens of milliseconds at a moment of Python's choice."""
    Collector().start(0.0)

    assert not gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_young_objects_are_looked_at_when_there_are_some_thousands() -> None:
    """Garbage would pile up for as long as clients keep us busy."""
    collector = Collector()
    collector.start(0.0)
    before = Ring.gone
    Ring()
    collector.look(idle=False, now=1.0)
    assert (0, before) == (collector.collections, Ring.gone)
    keep = [[] for _ in range(2 * YOUNG)]  # type: ignore[var-annotated]
    collector.look(idle=False, now=1.0)

    assert (1, before + 1) == (collector.collections, Ring.gone)
    assert 2 * YOUNG == len(keep)
    assert gc.get_count()[0] < YOUNG
    assert collector.longest > 0.0


def test_all_objects_are_looked_at_only_when_nothing_goes_on() -> None:
    """Garbage among old objects would stay for ever, or clients wait for its collection."""
    collector = Collector()
    collector.start(0.0)
    before = Ring.gone
    Ring()
    gc.freeze()  # it is old now
    collector.look(idle=False, now=FULL_EVERY + 1)
    collector.look(idle=True, now=FULL_EVERY - 1)
    assert before == Ring.gone
    collector._per_object = 0.0  # whatever this process holds
    collector.look(idle=True, now=FULL_EVERY + 1)
    assert before + 1 == Ring.gone
    Ring()
    gc.freeze()
    collector.look(idle=True, now=FULL_EVERY + 2)  # not again so soon

    assert before + 1 == Ring.gone


def test_a_pass_that_would_take_too_long_is_left_out() -> None:
    """A broker with a million objects would stand still once a minute."""
    collector = Collector()
    collector.start(0.0)
    collector._per_object = 1.0  # seconds: so was the last pass
    collector.look(idle=True, now=FULL_EVERY + 1)

    assert 0 == collector.collections
    assert gc.get_freeze_count() > 0
