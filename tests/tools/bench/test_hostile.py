# What the bench of hostile clients judges.
from typing import Any

import pytest

from tests.tools.bench import hostile
from tests.tools.bench.visits import Visits

WELL: dict[str, Any] = {
    "lost": 0,
    "died": 0,
    "p99_us": 29_000,
    "peak_kib": 1 << 20,
    "visits": Visits(1, "late", [0.1] * 99),
}


@pytest.mark.parametrize(
    ("missed", "words"),
    [
        ({"lost": 3}, "the pair lost 3"),
        ({"died": 1}, "1 workers died"),
        ({"p99_us": 31_000}, "p99 31 ms, at most 30"),
        ({"peak_kib": 1025 << 10}, "1025 MiB, at most 1024"),
        ({"visits": Visits(2, "late", [0.1] * 98)}, "2 of 100 visits failed: late"),
    ],
)
def test_each_bar_that_is_missed_is_named(missed: dict[str, Any], words: str) -> None:
    """The bench would end with 0 although an attack harmed the node."""
    assert [f"attack: {words}"] == hostile.failures({"attack": WELL | missed, "nobody": WELL})
