# The end of the append-only file, if a loss of power has cut it off.
#
# Servers may be told to load such a file all the same (`aof-load-truncated yes`). Redis, and Valkey before 9.1, cut it
# off behind the last whole command then, even within a transaction. What they write afterwards is read as a part of
# that transaction by the next start, which drops all of it: a loss of power would cost what was acknowledged hours
# later. So the embedded server may not load such a file: it ends, the file is cut off where the transaction began, and
# the server is started again.
#
# Where that is, the server's own checking tool says, which is the same binary by another name.
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from supervisor.redis_server import RedisServer

TORN: Final = re.compile(r"Unexpected end of file reading the append only file(?: ([^\s/]+\.aof)\b)?")
WHOLE: Final = re.compile(r"size=(\d+), ok_up_to=(\d+),")
NESTED: Final = "Unexpected MULTI"  # a server was told to load a torn file before: nobody knows what belongs together


def torn_file(output: Sequence[str], folder: Path) -> Path | None:
    """The file that was cut off, if the server in *folder* died of that; None: it did not. *output*: its last lines."""
    found = TORN.search("\n".join(output))
    if found is None:
        return None
    return folder / "appendonlydir" / found[1] if found[1] else folder / "appendonly.aof"


def cut_torn(file: Path, server: RedisServer) -> int:
    """Cut *file* off behind the last whole command or transaction; the bytes that this costs. Blocks.

    0: the file is damaged otherwise, and stays as it is. OSError.
    """
    command = [f"{server.name.lower()}-check-aof", str(file)]
    told = subprocess.run(command, executable=server.path, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    found = WHOLE.search(told.stdout)
    if found is None or NESTED in told.stdout + told.stderr:
        return 0
    size, whole = int(found[1]), int(found[2])
    with file.open("rb+") as torn:
        torn.truncate(whole)
        os.fsync(torn.fileno())
    return size - whole
