# Costs of a process whose child has ended.
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.tools.bench import cost


@pytest.fixture
def ended() -> Iterator[int]:
    """A child of this process that has ended and is not waited for yet."""
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.DEVNULL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    yield child.pid
    child.wait()


def test_a_child_that_has_ended_counts_nothing(ended: int) -> None:
    assert ended in cost.family(os.getpid())
    assert cost.resident_kib(os.getpid()) > 0
    assert cost.peak_kib(os.getpid()) > 0
    cost.forget_peak(os.getpid())


def test_a_process_that_has_ended_has_no_memory_to_tell(ended: int) -> None:
    with pytest.raises(ProcessLookupError):
        cost.resident_kib_of(ended)
