# Prints the end of a file and follows it, also across rotation (the file is renamed and a new one begins).
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

LOOK_AGAIN: Final = 0.2  # seconds between two looks at the file


class NoFile(Exception):
    """The file does not exist."""


def tail(path: Path, lines: int, follow: bool) -> Iterator[str]:
    """The last *lines* lines of the file *path*, then with *follow* each line that is appended.

    NoFile, PermissionError.
    """
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        raise NoFile from None
    with file:
        yield from deque(file, maxlen=lines)
        while follow:
            yield from _whole_lines(file)
            if _rotated(file.fileno(), path):
                yield from tail(path, 1 << 30, True)
                return
            time.sleep(LOOK_AGAIN)


def _whole_lines(text: TextIO) -> Iterator[str]:
    while True:
        position = text.tell()
        line = text.readline()
        if not line.endswith("\n"):
            text.seek(position)  # an incomplete line: its rest is still to be written
            return
        yield line


def _rotated(descriptor: int, path: Path) -> bool:
    """Whether *path* now names another file than the open one."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    return not os.path.samestat(now, os.fstat(descriptor))
