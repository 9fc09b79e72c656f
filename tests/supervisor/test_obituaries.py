from pathlib import Path

import pytest

from supervisor.obituaries import MOST, MOST_DONE, Obituaries


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "incarnations"


def test_the_wills_of_a_dead_worker_are_somebodys(path: Path) -> None:
    """Nobody would publish them; or one worker would be told again and again."""
    obituaries = Obituaries(path)
    obituaries.born(1)
    obituaries.born(2)
    assert [] == list(obituaries.told(2))
    obituaries.died(1)

    assert [1] == list(obituaries.told(2))
    assert [] == list(obituaries.told(2))


def test_whom_a_dead_mourner_mourned_is_mourned_again(path: Path) -> None:
    """What it had not come to would never be published."""
    obituaries = Obituaries(path)
    obituaries.died(1)
    list(obituaries.told(2))
    obituaries.died(2)

    assert [1, 2] == list(obituaries.told(3))


def test_the_next_life_mourns_for_the_last(path: Path) -> None:
    """A node that was killed as a whole would leave its clients' wills unsaid."""
    first = Obituaries(path)
    first.born(0xFFFF_FFFF_FFFF_FFFF)
    first.born(7)

    assert [0xFFFF_FFFF_FFFF_FFFF, 7] == list(Obituaries(path).told(8))


def test_it_remembers_so_many(path: Path) -> None:
    """A worker that ends every few seconds would fill the folder and keep its mourner busy."""
    obituaries = Obituaries(path)
    for number in range(2 * MOST):
        obituaries.born(number)
        obituaries.died(number)

    assert list(range(MOST, 2 * MOST)) == list(obituaries.told(1 << 40))
    assert MOST == len(path.read_text().split())


def test_a_damaged_file_costs_its_damaged_lines(path: Path) -> None:
    """A node could not start for something that hardly matters."""
    path.write_bytes(b"0000000000000001\nwhat?\n00000000000000xy\n\xff\n0000000000000002\n00")

    assert [1, 2] == list(Obituaries(path).told(3))


def test_what_a_worker_has_done_itself_is_known_of_it_alone(path: Path) -> None:
    """A will would be heard twice; or that of another's client of the same name never."""
    obituaries = Obituaries(path)
    obituaries.born(1)
    obituaries.has_done(1, "a", 70)
    obituaries.has_done(1, "a", 80)
    obituaries.has_done(1, "b", 90)

    assert [("a", 80), ("b", 90)] == obituaries.done_by(1)
    assert [] == obituaries.done_by(2)


def test_what_workers_have_done_is_bounded(path: Path) -> None:
    """An hour without Redis would fill the supervisor with names."""
    obituaries = Obituaries(path)
    obituaries.born(1)
    for number in range(10):
        obituaries.has_done(1, f"{number}" * (MOST_DONE // 4), 1)
    assert 4 == len(obituaries.done_by(1))
    for number in range(2, 2 + MOST):
        obituaries.born(number)

    assert [] == obituaries.done_by(1)
