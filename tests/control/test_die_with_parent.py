# Processes that end with their parent: of Weir, and other programs.
import os
import select
import signal
import subprocess
import sys

import pytest

from broker.control import die_with_parent
from tests.conftest import ROOT

PATIENCE = 10_000  # milliseconds for what should take a few
OWN = (
    "import sys, time; from broker.control.die_with_parent import die_with_parent; "
    "die_with_parent(int(sys.argv[1])); print('ready', flush=True); time.sleep(60)"
)
FOREIGN = "echo ready; exec sleep 60"
COMMANDS = {
    "own": [sys.executable, "-c", OWN, "{parent}"],
    "foreign": [sys.executable, "-I", "-S", die_with_parent.__file__, "{parent}", "/bin/sh", "-c", FOREIGN],
}
PARENT = """
import os, subprocess, sys
command = [part.format(parent=os.getpid()) for part in sys.argv[1:]]
child = subprocess.Popen(command, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
input()
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_process_ends_with_its_parent(kind: str) -> None:
    """After kill -9 of the supervisor its children would keep the ports and the data folder."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, *COMMANDS[kind]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    ) as parent:
        assert parent.stdout is not None
        pidfd = os.pidfd_open(int(parent.stdout.readline()))
        watch = select.poll()
        watch.register(pidfd, select.POLLIN)
        assert [] == watch.poll(0)
        parent.kill()

        assert watch.poll(PATIENCE), "the child still runs"
    os.close(pidfd)


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_process_whose_parent_has_ended_already_exits(kind: str) -> None:
    """A parent that ends before the kernel was asked would leave the process behind."""
    command = [part.format(parent=1) for part in COMMANDS[kind]]  # this test is the parent
    done = subprocess.run(command, capture_output=True, env=environment(), timeout=PATIENCE / 1000)

    assert (1, b"") == (done.returncode, done.stdout)


def test_the_command_receives_signals() -> None:
    """The supervisor blocks signals while it starts: a server that inherits the mask would ignore SIGTERM."""
    command = [part.format(parent=os.getpid()) for part in COMMANDS["foreign"]]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        child.terminate()
        try:
            assert -signal.SIGTERM == child.wait(PATIENCE / 1000)
        finally:
            child.kill()
