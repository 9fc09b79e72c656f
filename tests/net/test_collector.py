# The collector's policy: nothing is looked at while clients wait, unless it is little.
import gc
import sys
from collections.abc import Iterator

import pytest

from broker.net.collector import FULL_EVERY, LONGEST, LONGEST_EVER, SURVIVORS_EVERY, YOUNG, Collector


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
    """Python would stop the loop for tens of milliseconds with a full pass at any moment."""
    Collector().start(0.0)

    assert not gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_young_objects_are_collected_when_there_are_some_thousands() -> None:
    """Garbage would pile up for as long as clients keep us busy."""
    collector = Collector()
    collector.start(0.0)
    before = Ring.gone
    Ring()
    collector.collect_if_due(idle=False, now=1.0)
    assert (0, before) == (collector.collections, Ring.gone)
    keep = [[] for _ in range(2 * YOUNG)]  # type: ignore[var-annotated]
    collector.collect_if_due(idle=False, now=1.0)

    assert (1, before + 1) == (collector.collections, Ring.gone)
    assert 2 * YOUNG == len(keep)
    assert gc.get_count()[0] < YOUNG
    assert collector.longest > 0.0


def grow() -> list[object]:
    """So many young objects that they are collected."""
    return [[] for _ in range(2 * YOUNG)]


def test_survivors_of_one_collection_are_collected_again() -> None:
    """Garbage of a moment after a collection would stay for as long as the worker is busy."""
    collector = Collector()
    collector.start(0.0)
    before = Ring.gone
    ring = Ring()
    kept = grow()
    collector.collect_if_due(idle=False, now=1.0)
    del ring
    assert before == Ring.gone
    for _ in range(SURVIVORS_EVERY):
        kept += grow()
        collector.collect_if_due(idle=False, now=1.0)

    assert before + 1 == Ring.gone
    assert 2 * YOUNG * (SURVIVORS_EVERY + 1) == len(kept)


def grow_old() -> None:
    """A ring of garbage that is too old for a look at the young."""
    ring = Ring()
    gc.collect(1)
    del ring


def test_a_full_pass_runs_only_while_nothing_happens() -> None:
    """Garbage among old objects would stay for ever, or clients wait for its collection."""
    collector = Collector()
    collector.start(0.0)
    collector._per_block = 0.0  # whatever this process holds
    before = Ring.gone
    grow_old()
    collector.collect_if_due(idle=False, now=FULL_EVERY + 1)
    collector.collect_if_due(idle=True, now=FULL_EVERY - 1)
    assert before == Ring.gone
    collector.collect_if_due(idle=True, now=FULL_EVERY + 1)
    assert before + 1 == Ring.gone
    grow_old()
    collector._per_block = 0.0
    collector.collect_if_due(idle=True, now=FULL_EVERY + 2)  # not again so soon

    assert before + 1 == Ring.gone


def test_a_long_pass_comes_rarely_and_a_very_long_one_never() -> None:
    """A broker with a million objects would stand still once a minute, or one with 30 000 keep its garbage."""
    collector = Collector()
    collector.start(0.0)
    kept = [[n] for n in range(YOUNG // 2)]
    collector._per_block = 1.0  # seconds: so was the last pass
    collector.collect_if_due(idle=True, now=FULL_EVERY)
    assert 0 == collector.collections
    blocks = sys.getallocatedblocks() - collector._blocks_at_start
    collector._per_block = LONGEST * 2.4 / blocks
    for late, passes in ((2, 0), (3, 1)):
        collector.collect_if_due(idle=True, now=late * FULL_EVERY)
        assert passes == collector.collections

    assert LONGEST * 2.4 < LONGEST_EVER
    assert YOUNG // 2 == len(kept)


def test_objects_from_before_the_start_are_never_examined() -> None:
    """The code alone would take longer than a pass may, and there would never be one."""
    collector = Collector()
    collector.start(0.0)
    frozen = gc.get_freeze_count()
    kept = [[n] for n in range(YOUNG // 2)]
    collector._per_block = 0.0
    collector.collect_if_due(idle=True, now=FULL_EVERY + 1)

    assert 1 == collector.collections
    assert frozen == gc.get_freeze_count()
    assert YOUNG // 2 == len(kept)
