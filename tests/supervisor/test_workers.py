# What a supervisor sees of a process from outside.
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from supervisor.workers import process_stat, stopped


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as made:
        yield made
        made.kill()


def test_who_was_stopped_is_told_from_who_waits(process: "subprocess.Popen[bytes]") -> None:
    """Who was just continued would be killed in its first turn, or who was stopped be given time that it cannot use."""
    assert not stopped(process.pid)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert stopped(process.pid)

    process.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, process.pid, os.WCONTINUED)
    assert not stopped(process.pid)


def test_of_nobody_nothing_is_known(process: "subprocess.Popen[bytes]") -> None:
    """A look at a worker that is gone would end its supervisor."""
    process.kill()
    process.wait()

    assert ([], False) == (process_stat(process.pid), stopped(process.pid))
