# The log file of a detached node, in a process of its own: the file takes the place of stdout and stderr.
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

PROGRAM = """
import os, sys
from pathlib import Path
import trio
from supervisor import logfile

logfile.ROTATE_AT, logfile.CHECK = 100, 0.001
path = Path(sys.argv[1])
file = logfile.LogFile()
file.detach(path)

async def main():
    async with trio.open_nursery() as nursery:
        send, receive = trio.open_memory_channel(10)
        nursery.start_soon(file.rotate, lambda: send.send_nowait(None))
        for number in range(5):
            os.write(file.descriptor, f"worker {number} ".encode() + b"x" * 100)
            with trio.fail_after(10):
                await receive.receive()
        nursery.cancel_scope.cancel()
    print("stdout", flush=True)
    print("stderr", file=sys.stderr, flush=True)
    path.rename(path.with_suffix(".moved"))
    print("old", flush=True)
    file.reopen()
    print("new", flush=True)

trio.run(main)
"""


def test_a_large_file_is_renamed_and_a_few_are_kept(tmp_path: Path) -> None:
    """The log would fill the disk, or lines be lost that are written to a renamed file."""
    path = tmp_path / "weir.log"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], env=environment, capture_output=True, text=True)

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)
    assert ["worker 4", "worker 3", "worker 2"] == [
        path.with_name(f"weir.log.{number}").read_text()[:8] for number in (1, 2, 3)
    ]
    assert not path.with_name("weir.log.4").exists()
    assert "stdout\nstderr\nold\n" == path.with_suffix(".moved").read_text()
    assert "new\n" == path.read_text()
