# A sweep: one pass over the packs of a queue that are unread, page by page, for messages that have ended.
#
# It also counts what is there. A worker that takes a queue over after a crash knows only the first and the last pack,
# and takes each position between for a message, also of those that were acknowledged or have ended. Limits must not
# drop messages for that, so a queue is counted before anything is dropped (`DurableQueue.exact`).
from typing import Final

from broker.session.expiry import NEVER_DUE
from broker.session.message import Message
from broker.store.durable.pack import Pack, StoredMessage

PAUSE_PER_PAGE: Final = 0.05  # seconds until the next sweep: a deep queue takes 0.3 % of a worker, however it expires


class Sweep:
    def __init__(self, left: int, expected: int, expected_bytes: int) -> None:
        """Of *left* packs, with *expected* messages."""
        self.left = left  # packs that are not looked at yet
        self.index = 0  # of the first of them in what is unread
        self.pages = 0
        self.waits = False  # until a transaction is carried out
        self.earliest = NEVER_DUE  # when the first of the messages ends that stay, Unix time
        self.ended = 0  # messages
        self.ended_bytes = 0
        self._kept = 0
        self._kept_bytes = 0
        self._expected = expected
        self._expected_bytes = expected_bytes

    def keep(self, message: Message, now: float, offset: float) -> None:
        """*message* waits on. *offset*: Unix time less *now*, the worker's time."""
        self._kept += 1
        self._kept_bytes += message.size
        if not message.expired(now):  # else it may have been sent, and does not end
            self.earliest = min(self.earliest, message.ends + offset)

    def end(self, message: Message) -> None:
        """*message* has ended."""
        self.ended += 1
        self.ended_bytes += message.size

    def page_done(self, packs: int, removed: int) -> None:
        """*packs* packs were looked at, of which *removed* are, or will be, no more in what is unread."""
        self.pages += 1
        self.left -= packs
        self.index += packs - removed

    def excess(self) -> tuple[int, int]:
        """How many messages less, and bytes, there were than expected. Of a sweep that is complete."""
        found, found_bytes = self._kept + self.ended, self._kept_bytes + self.ended_bytes
        return self._expected - found, self._expected_bytes - found_bytes


def rest_of(pack: Pack, messages: list[StoredMessage]) -> Pack:
    """*pack* with no others than *messages*, which are some of its own."""
    writer = pack.writer if any(stored.body is not None for stored in messages) else b""
    return Pack(pack.bytes_before, pack.stored_at, pack.end, pack.due, messages, writer, pack.may_refer())
