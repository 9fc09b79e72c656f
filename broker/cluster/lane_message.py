# A message of the lanes between two workers of different nodes, as Redis carries it: FORMAT 1.
#
# It begins with the fixed HEAD: the version of the format, flags, the incarnation of the sender, the epoch of the
# sender's lanes, the epoch of the receiver's lanes as the sender knows it (0: not yet), and how many bytes of the data
# lane and of the control lane the sender has received in all. Parts follow until the end: the number of a lane, where
# its bytes begin in the lane, how many they are, and the bytes.
# The name of the node and the shard are not in it: the incarnation, 63 random bits, is enough to find the worker among
# those that the membership names.
from struct import Struct
from typing import Final

FORMAT: Final = 1

PAIRED: Final = 1  # flags: the sender knows that the receiver knows the sender's epoch
RESEND: Final = 2  # the sender may have missed messages: send all again from what it has received on

DATA: Final = 0  # numbers of lanes
CONTROL: Final = 1
LANES: Final = 2

HEAD: Final = Struct(">BBQQQQQ")
PART: Final = Struct(">BQI")
HEAD_BYTES: Final = HEAD.size
PART_BYTES: Final = PART.size


class LaneMessageError(Exception):
    """The bytes are no message of this version."""


class Part:
    """Bytes of one lane. *offset*: how many bytes of the lane are before them."""

    def __init__(self, lane: int, offset: int, data: bytes) -> None:
        self.lane: Final = lane
        self.offset: Final = offset
        self.data: Final = data


class LaneMessage:
    def __init__(
        self,
        sender: int,
        flags: int,
        epoch: int,
        known: int,
        data_received: int,
        control_received: int,
        parts: list[Part],
    ) -> None:
        self.sender: Final = sender
        self.flags: Final = flags
        self.epoch: Final = epoch
        self.known: Final = known
        self.data_received: Final = data_received
        self.control_received: Final = control_received
        self.parts: Final = parts

    def encode(self) -> bytes:
        head = HEAD.pack(
            FORMAT, self.flags, self.sender, self.epoch, self.known, self.data_received, self.control_received
        )
        pieces = [head]
        for part in self.parts:
            pieces.append(PART.pack(part.lane, part.offset, len(part.data)))
            pieces.append(part.data)
        return b"".join(pieces)


def decode(payload: bytes) -> LaneMessage:
    """LaneMessageError: *payload* is of another version, is cut, or names a lane that does not exist."""
    end = len(payload)
    if end < HEAD_BYTES or payload[0] != FORMAT:
        raise LaneMessageError
    _format, flags, sender, epoch, known, data_received, control_received = HEAD.unpack_from(payload)
    parts: list[Part] = []
    at = HEAD_BYTES
    while at < end:
        if at + PART_BYTES > end:
            raise LaneMessageError
        lane, offset, size = PART.unpack_from(payload, at)
        at += PART_BYTES
        if lane >= LANES or size == 0 or at + size > end:
            raise LaneMessageError
        parts.append(Part(lane, offset, payload[at : at + size]))
        at += size
    return LaneMessage(sender, flags, epoch, known, data_received, control_received, parts)
