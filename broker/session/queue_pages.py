# Pages of the messages that wait for a session: for operators, who look at a queue, copy it, or remove messages of it.
#
# A queue changes between two pages, so a page does not begin at an index. Each message has a position, which is greater
# than those of all messages before it, and a page goes on behind a position. So what is delivered meanwhile moves
# nothing else out of view. What arrives after the first page is not part of it: under load there would be no last page.
#
# A page is bounded in messages and bytes, as the loop that serves clients makes it. To look at a queue takes nothing
# out of it.
from typing import Final

from broker.session.message import Message

MESSAGES: Final = 1000  # of a page from memory: less than a millisecond
BYTES: Final = 32 * 1024  # after which a page ends, if there was a message
UNKNOWN: Final = 0  # a time


class WaitingMessage:
    """*stored_at*: seconds, Unix time, or UNKNOWN. *sent*: it may have been sent before, over another connection."""

    def __init__(self, position: int, message: Message, stored_at: int, sent: bool) -> None:
        self.position = position
        self.message = message
        self.stored_at = stored_at
        self.sent = sent


class QueuePage:
    """Messages up to the position *last*. *following*: the next page begins behind it; 0: there is none."""

    def __init__(self, messages: list[WaitingMessage], following: int, last: int) -> None:
        self.messages = messages
        self.following = following
        self.last = last


class PurgedPage:
    """How many *messages* were removed, of *size* bytes; else as `QueuePage`."""

    def __init__(self, messages: int, size: int, following: int, last: int) -> None:
        self.messages = messages
        self.size = size
        self.following = following
        self.last = last
