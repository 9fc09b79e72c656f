# The format of the lanes between nodes: of the frames in them (wire.py, takeover_frames.py) and of their messages in
# Redis (lane_message.py), with whatever else the workers of two nodes have to understand alike.
#
# The lease of a node says its format, and nodes of two neighbouring formats work together (rolling upgrade). So a
# worker knows which of its peers have the *former* format, and sends them nothing that this one has brought. Lanes
# within a node join workers of one build, and need no format.
#
# 1: the first one. 2: LEAVING and RELEASED. 3: HEAR_ALL and HEARD_ALL.
from typing import Final

LANE_FORMAT: Final = 3
NEIGHBOURS: Final = 1  # how far the versions of two nodes may be apart


def understood(theirs: object, ours: int) -> bool:
    """Whether a node with the version *ours* can open lanes to one that says that it has the version *theirs*."""
    return type(theirs) is int and theirs > 0 and abs(theirs - ours) <= NEIGHBOURS
