# What the kernel says about a process.
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from supervisor.process import is_stopped, process_stat


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as made:
        yield made
        made.kill()


def test_a_stopped_process_differs_from_one_that_waits(process: "subprocess.Popen[bytes]") -> None:
    """A worker that was just continued would be killed, or a stopped one be waited for."""
    assert not is_stopped(process.pid)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert is_stopped(process.pid)

    process.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, process.pid, os.WCONTINUED)
    assert not is_stopped(process.pid)


def test_a_process_that_has_ended_has_no_state(process: "subprocess.Popen[bytes]") -> None:
    """A check of a worker that has just ended would end its supervisor."""
    process.kill()
    process.wait()

    assert ([], False) == (process_stat(process.pid), is_stopped(process.pid))
