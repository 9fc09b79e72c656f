from pathlib import Path

import pytest

from supervisor.dead_workers import MOST, MOST_SETTLED, DeadWorkers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "incarnations"


def test_the_wills_of_an_ended_worker_get_one_publisher(path: Path) -> None:
    """No worker would publish them, or one worker would be told again and again."""
    dead = DeadWorkers(path)
    dead.started(1)
    dead.started(2)
    assert [] == list(dead.assign(2))
    dead.ended(1)

    assert [1] == list(dead.assign(2))
    assert [] == list(dead.assign(2))


def test_what_an_ended_publisher_was_to_publish_is_assigned_again(path: Path) -> None:
    """The wills that the publisher had not published yet would be lost."""
    dead = DeadWorkers(path)
    dead.ended(1)
    list(dead.assign(2))
    dead.ended(2)

    assert [1, 2] == list(dead.assign(3))


def test_the_next_start_of_the_node_publishes_the_wills_of_the_last(path: Path) -> None:
    """After a kill of the whole node, the wills of its clients would be lost."""
    first = DeadWorkers(path)
    first.started(0xFFFF_FFFF_FFFF_FFFF)
    first.started(7)

    assert [0xFFFF_FFFF_FFFF_FFFF, 7] == list(DeadWorkers(path).assign(8))


def test_the_number_of_incarnations_is_bounded(path: Path) -> None:
    """A worker that dies every few seconds would fill the file and keep its publisher busy."""
    dead = DeadWorkers(path)
    for number in range(2 * MOST):
        dead.started(number)
        dead.ended(number)

    assert list(range(MOST, 2 * MOST)) == list(dead.assign(1 << 40))
    assert MOST == len(path.read_text().split())


def test_a_damaged_file_costs_its_damaged_lines(path: Path) -> None:
    """A node could not start because of a file that hardly matters."""
    path.write_bytes(b"0000000000000001\nwhat?\n00000000000000xy\n\xff\n0000000000000002\n00")

    assert [1, 2] == list(DeadWorkers(path).assign(3))


def test_settled_wills_are_those_of_one_worker(path: Path) -> None:
    """A will would be published twice, or that of another worker's client with the same id never."""
    dead = DeadWorkers(path)
    dead.started(1)
    dead.will_settled(1, "a", 70)
    dead.will_settled(1, "a", 80)
    dead.will_settled(1, "b", 90)

    assert [("a", 80), ("b", 90)] == dead.settled_wills(1)
    assert [] == dead.settled_wills(2)


def test_the_number_of_settled_wills_is_bounded(path: Path) -> None:
    """An hour without Redis would fill the memory of the supervisor with client ids."""
    dead = DeadWorkers(path)
    dead.started(1)
    for number in range(10):
        dead.will_settled(1, f"{number}" * (MOST_SETTLED // 4), 1)
    assert 4 == len(dead.settled_wills(1))
    for number in range(2, 2 + MOST):
        dead.started(number)

    assert [] == dead.settled_wills(1)
