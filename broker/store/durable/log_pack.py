# Packs in the log of an APPLICATION session (application_queue.py): messages that it was offered together, in order.
#
#   FORM; flags: LATE; the era of the session; how many messages have tokens, and of each its index, with IN_GROUP if
#   it came through a group, and its token;
#   a pack as it is in Redis (pack.py), whose positions are no positions in a queue
#
# A log outlives sessions: what was appended for a former one may be in it, and may even come later. So a session has
# an era, drawn at random, and takes no pack of another one.
#
# LATE: what is offered to the session may come behind what was published later (tokens.py). That is known where a pack
# is appended, and needed where its messages are taken, perhaps a week later and at another worker.
from collections.abc import Sequence
from struct import Struct
from typing import Final

from broker.session.message import GroupMessage, Message
from broker.store.durable.pack import DamagedPack, Pack, StoredMessage, decode_pack, encode_pack, time_of
from broker.store.durable.tokens import TOKEN, token_of

FORM: Final = 1
LATE: Final = 0x01
IN_GROUP: Final = 0x8000
ERA: Final = 8  # bytes
PACK: Final = 200  # messages
PACK_BYTES: Final = 128 * 1024  # and about as many bytes of them
LASTS: Final = 0xFFFFFFFF  # a log keeps messages for as long as it is told to, whenever they were stored
START: Final = Struct(">BB8sH")
MARKED: Final = Struct(">H16s")


class LogMessage:
    """A message in a log. *token*: b"", if it has none. *late*: of its pack, and *source*: who has appended that."""

    def __init__(self, message: Message, token: bytes, late: bool, source: int) -> None:
        self.message = message
        self.token = token
        self.in_group = False  # it has a token, and came through a group: in any order
        self.late = late
        self.source = source


def encode_log_pack(messages: Sequence[Message], era: bytes, late: bool, now: float, wall: float) -> bytes:
    """The pack of *messages*, at most PACK. *now*: the worker's time; *wall*: the same in Unix time."""
    marked: list[bytes] = []
    stored: list[StoredMessage] = []
    for message in messages:
        token = token_of(message)
        if token:
            in_group = IN_GROUP if isinstance(message, GroupMessage) else 0
            marked.append(MARKED.pack(len(stored) | in_group, token))
        stored.append(StoredMessage(len(stored) + 1, message))
    start = START.pack(FORM, LATE if late else 0, era, len(marked))
    return start + b"".join(marked) + encode_pack(Pack(0, int(wall), LASTS, 0, stored), now, wall)


def offered_at(data: bytes) -> int:
    """When the messages of a pack were offered, in seconds of Unix time, whatever its era. DamagedPack."""
    if len(data) < START.size:
        raise DamagedPack("it ends in its head")
    form, _, _, count = START.unpack_from(data)
    if form != FORM:
        raise DamagedPack("unknown form")
    return time_of(data[START.size + count * MARKED.size :])


def decode_log_pack(data: bytes, era: bytes, source: int, now: float, wall: float) -> list[LogMessage]:
    """The messages of a pack of *era*, that *source* has appended; none if it is of another era. DamagedPack."""
    if len(data) < START.size:
        raise DamagedPack("it ends in its head")
    form, flags, of_era, count = START.unpack_from(data)
    if form != FORM:
        raise DamagedPack("unknown form")
    if of_era != era:
        return []
    at = START.size + count * MARKED.size
    messages = decode_pack(data[at:], now, wall).messages
    late = flags & LATE != 0
    found = [LogMessage(stored.message, b"", late, source) for stored in messages]
    for mark, token in MARKED.iter_unpack(data[START.size : at]):
        index = mark & ~IN_GROUP
        if index >= len(found):
            raise DamagedPack("a token of no message")
        found[index].token = token
        found[index].in_group = mark & IN_GROUP != 0
    return found


assert MARKED.size == 2 + TOKEN
