# The end of a file that grows, and is now and then renamed so that a new one begins in its place.
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

LOOK_AGAIN: Final = 0.2  # seconds; a file tells nobody when it has grown


class NoFile(Exception):
    """There is no such file."""


def tail(path: Path, lines: int, follow: bool) -> Iterator[str]:
    """The last *lines* of the file at *path*, and with *follow* all that come. NoFile, PermissionError."""
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        raise NoFile from None
    with file:
        yield from deque(file, maxlen=lines)
        while follow:
            yield from _whole_lines(file)
            if _another(file.fileno(), path):
                yield from tail(path, 1 << 30, True)
                return
            time.sleep(LOOK_AGAIN)


def _whole_lines(text: TextIO) -> Iterator[str]:
    while True:
        position = text.tell()
        line = text.readline()
        if not line.endswith("\n"):
            text.seek(position)  # its rest is still to be written
            return
        yield line


def _another(descriptor: int, path: Path) -> bool:
    """Whether there is a file at *path* that is not the one that is open."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    return not os.path.samestat(now, os.fstat(descriptor))
