# The bodies of the frames about sessions that go from one worker to another; wire.py has their kinds.
import struct
from typing import Final

# What ANSWER says.
NOTHING: Final = 0  # there is no session here, or there is none any more
COMES: Final = 1  # the session follows in chunks
SUPERSEDED: Final = 2  # this worker owns it with a later epoch

ASK: Final = struct.Struct(">QQB")  # number, epoch, whether the session is wanted; then the client id
ANSWER: Final = struct.Struct(">QBQd")  # number, one of the above, epoch, credits
SWITCH: Final = struct.Struct(">QH")  # number, shard of the giving worker
MARK: Final = struct.Struct(">QH")  # number, shard of the asking worker
HAS: Final = struct.Struct(">QB")  # number, whether the worker has the session
NUMBER: Final = struct.Struct(">Q")
