# Recent bodies: the shared bodies that were read last, as messages.
#
# When a fleet comes back, each of its clients reads the same bodies, as far as they were published to all of them: a
# quarter of what its return took the worker, and as much again for messages that were alike. So what was read is kept
# for the next one, as long as MOST bytes have room for it. The messages are those of sessions: they count in the budget
# of messages while a session has them, and once however many have them.
#
# A reference never gets another body (shared_bodies.py), so nothing here is out of date.
from collections.abc import Iterable
from typing import Final

from broker.session.message import Message
from broker.session.queue import MESSAGE
from broker.store.durable.pack import Pack

MOST: Final = 512 * 1024  # bytes that are kept, with what a message takes beside its own
LARGEST: Final = MOST // 8  # of one message
ALIKE: Final = 0.001  # seconds: a time in a pack is that of another clock, and read at another moment


class RecentBodies:
    def __init__(self) -> None:
        self.size = 0  # bytes
        self._groups: dict[tuple[bytes, int], dict[int, Message]] = {}  # by writer and number; then by index

    def keep(self, packs: Iterable[Pack]) -> None:
        """Keep the messages of *packs* that have shared bodies."""
        for pack in packs:
            for stored in pack.messages:
                body, message = stored.body, stored.message
                if body is None or not stored.has_body() or message.size > LARGEST:
                    continue
                group = self._groups.setdefault((pack.writer, body.group), {})
                if body.index not in group:
                    self.size += message.size + MESSAGE
                group[body.index] = message
        while self.size > MOST:
            oldest = next(iter(self._groups))
            for message in self._groups.pop(oldest).values():
                self.size -= message.size + MESSAGE

    def fill(self, packs: Iterable[Pack]) -> bool:
        """Give the messages of *packs* the bodies that are here; false if others are missing."""
        whole = True
        for pack in packs:
            number = 0
            group: dict[int, Message] | None = None
            for stored in pack.messages:
                body = stored.body
                if body is None or stored.has_body():
                    continue
                if body.group != number:
                    number = body.group
                    group = self._groups.get((pack.writer, number))
                found = None if group is None else group.get(body.index)
                if found is None or not _alike(found, stored.message):
                    whole = False
                else:
                    stored.message = found
        return whole


def _alike(found: Message, bare: Message) -> bool:
    """Whether *found* is what *bare* is with its body, which is the same."""
    same = found.qos == bare.qos and found.retain == bare.retain and found.size == bare.size
    return same and abs(found.ends - bare.ends) < ALIKE and abs(found.expires - bare.expires) < ALIKE
