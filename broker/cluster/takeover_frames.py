# The bodies of the frames about sessions that go from one worker to another; wire.py has their kinds.
#
# Workers are named by their incarnations: shards of two nodes have the same numbers.
import struct
from typing import Final

from broker.session.principal import TAG_BYTES

# What ANSWER says.
NOTHING: Final = 0  # there is no session here, or there is none any more
COMES: Final = 1  # the session follows in chunks
SUPERSEDED: Final = 2  # this worker owns it with a later epoch
STORED: Final = 4  # the session follows in chunks, and its messages are in the store
OF_OTHER_USER: Final = 3  # it belongs to another user, and this worker owns it with the epoch of the answer
FORCE: Final = 5  # the session is here, and is to be taken by force: not every worker has let go for this one

USER: Final = struct.Struct(f"{TAG_BYTES}s")  # the tag of a user
ASK: Final = struct.Struct(f">QQB{TAG_BYTES}s")  # number, epoch, whether it is wanted, user; then the client id
ANSWER: Final = struct.Struct(">QBQd")  # number, one of the above, epoch, credits
SWITCH: Final = struct.Struct(">QQ")  # number, incarnation of the giving worker
MARK: Final = struct.Struct(">QQ")  # number, incarnation of the asking worker
HAS: Final = struct.Struct(">QB")  # number, whether the worker has the session
NUMBER: Final = struct.Struct(">Q")
TOOK: Final = struct.Struct(">QQ")  # number, incarnation of the worker that had the session


def user_of(packed: bytes) -> str:
    """The tag of a user from the bytes that have it in a frame."""
    return packed.rstrip(b"\0").decode()
