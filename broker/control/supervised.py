# How a process begins that the supervisor has started: `python -m MODULE DESCRIPTOR PARENT`.
#
# DESCRIPTOR is its end of the link, PARENT the process id of the supervisor. The first frame on the link is its
# assignment: the configuration, and descriptors that it has inherited. So it opens nothing whose failure depends on
# other programs, and its command line holds nothing private.
#
# It does not outlive its supervisor: the kernel kills it (die_with_parent.py), and the end of the link ends it, too. It
# ignores the signals that a terminal or an init system sends to the whole process group: the supervisor handles them.
import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Final, Never, TextIO, TypeVar

from broker.control.die_with_parent import die_with_parent
from broker.control.frame_codec import LENGTH, Frame, FrameDecoder, body_length

SUPERVISOR_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
CANNOT_START: Final = 2  # exit code

F = TypeVar("F", bound=Frame)


def begin(arguments: Sequence[str]) -> socket.socket:
    """The link, which blocks."""
    faulthandler.enable()
    descriptor, parent = map(int, arguments)
    die_with_parent(parent)
    for number in SUPERVISOR_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SUPERVISOR_SIGNALS)  # those that arrived meanwhile are ignored, too
    return socket.socket(fileno=descriptor)


def first_frame(sock: socket.socket, decoder: FrameDecoder[F]) -> F:
    """Read a frame, and no byte of the next one. FrameError."""
    return decoder.decode(_exactly(sock, body_length(_exactly(sock, LENGTH))))


def cannot_start(sock: socket.socket, frame: bytes) -> Never:
    """End, with *frame* as the last words."""
    sock.setblocking(True)
    sock.sendall(frame)
    sys.exit(CANNOT_START)


def lines_to(descriptor: int) -> TextIO:
    return open(descriptor, "w", encoding="utf-8", errors="backslashreplace")


def reopen(path: str, descriptor: int) -> None:
    """Open *path* again as *descriptor*; "": log lines go to no file. OSError."""
    if path:
        new = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(new, descriptor)
        os.close(new)


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            sys.exit(1)  # the supervisor has ended
        data += more
    return data
