# The lanes between two processes of a node: the supervisor makes the socket pairs and hands an end to each.
import socket
from typing import Final

# Bytes of output that the kernel takes for a data lane, if net.core.wmem_max allows it. A lane is written to once in a
# turn of the worker's loop, so its throughput is this some 400 times a second. The default, 208 KiB, is little: 1 500
# messages of 60 KiB a second.
LANE_BUFFER: Final = 1 << 20

Pair = tuple[socket.socket, socket.socket]


def lane_pairs() -> tuple[Pair, Pair]:
    """The ends of a data lane, and of a control lane."""
    data, control = socket.socketpair(), socket.socketpair()
    for end in data:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LANE_BUFFER)
    return data, control
