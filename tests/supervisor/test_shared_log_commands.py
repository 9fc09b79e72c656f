# What several workers say of a group that shares a log, put together.
from typing import Any

from supervisor.shared_log_commands import together


def part(**facts: object) -> dict[str, Any]:
    known = {"name": "g", "filter": "t/#", "topic": "topic", "members": 1, "connected": 1, "reads": [], "positions": []}
    return {**known, "saved": [], "ends": [10, 20, 30], "trouble": "", **facts}


def test_the_worker_that_reads_a_partition_knows_best_how_far_it_is() -> None:
    """The lag would be that at the time when the partition was leased."""
    saved = [[0, 10], [1, 5], [2, 5]]
    one = part(reads=[1], positions=[[1, 18]], saved=saved)
    other = part(reads=[2], positions=[[2, 30]], saved=saved, connected=0, members=2)

    told, behind = together([one, other])

    assert (3, 3, 1, [1, 2]) == (told["partitions"], told["members"], told["connected"], told["reads"])
    assert 2 == told["lag"]
    assert [[1, 18]] == behind


def test_a_lag_that_is_not_known_is_not_0() -> None:
    """A log that cannot be reached would look as if all were read."""
    away = part(ends=None, saved=[[0, 3]], trouble="Kafka is away")
    empty = part(saved=[])

    for one in (away, empty):
        told, behind = together([one])
        assert (None, []) == (told["lag"], behind)
    assert "Kafka is away" == together([part(), away])[0]["trouble"]
