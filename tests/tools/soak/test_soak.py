# The soak itself: one that finds nothing has to be one that could.
import pytest

from tests.tools.soak.__main__ import main
from tests.tools.soak.processes import LONG, PART, Process

FLAT = [20_000] * 10


@pytest.mark.parametrize(
    ("memory", "descriptors", "words"),
    [
        ([*FLAT, 20_900, 20_900], (9, 9), []),
        ([10_000, 15_000, *FLAT], (9, 8), []),
        ([*FLAT, 20_000, 21_100], (9, 9), ["worker: memory grew from 20000 to 21100 KiB"]),
        ([20_000] * PART, (9, 10), ["worker: 10 descriptors are open, 9 were before"]),
    ],
)
def test_growth_and_open_descriptors_are_found(
    memory: list[int], descriptors: tuple[int, int], words: list[str]
) -> None:
    """A leak would pass an hour of soak."""
    process = Process("worker", 1, memory, descriptors)

    assert words == process.failures(LONG)


@pytest.mark.system
def test_a_short_soak_loses_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m tests.tools.soak` would end with an error, or the node lose what it was given."""
    monkeypatch.setattr("sys.argv", ["soak", "--minutes", "0.05", "--rate", "500", "--clients", "20", "--inputs", "60"])

    assert 0 == main(), capsys.readouterr().out
    assert "1500 messages of the load" in capsys.readouterr().out
