# The stored queue of a shared subscription: messages that wait for its group, at the worker that owns the list.
#
# It is a queue as that of a session (queue.py), under a name that is no client id: so group commit, fence, adoption,
# limits, sweeps and damage are those of sessions. What differs follows from its messages having no client yet:
# - One that has ended leaves whatever its QoS: no client may have seen it.
# - One that was taken may come back in its place, if whoever it was given to has not stored it.
# - A mark (marks.py) says that a message of QoS 2 was given to a member here. It is stored in the transaction in which
#   the member stores the message. Without it a pack that stays for its other messages would, after a crash, be given to
#   members once more as a whole.
from typing import Final

from broker.session.message import Message
from broker.store.durable.pack import StoredMessage
from broker.store.durable.queue import DurableQueue

GROUP: Final = b"\0g"  # the beginning of a name that is no client id: no string of MQTT has a NUL
RETURNED: Final = b"\0r"  # and that of messages that return to groups: returned.py
PENDING: Final = b"\0w"  # and that of a will that is published: protocol/pending_wills.py


def is_session(name: bytes) -> bool:
    """Whether *name*, which stands where keys have a client id, is one: it is none of any kind of list."""
    return not name.startswith(b"\0")


def is_group(name: bytes) -> bool:
    """Whether *name*, which stands where keys have a client id, is that of the queue of a group."""
    return name.startswith(GROUP)


def is_returned(name: bytes) -> bool:
    """Whether *name*, which stands where keys have a client id, is that of messages that return to groups."""
    return name.startswith(RETURNED)


def is_pending_will(name: bytes) -> bool:
    """Whether *name*, which stands where keys have a client id, is that of a will that is published."""
    return name.startswith(PENDING)


class GroupQueue(DurableQueue):
    def _has_ended(self, stored: StoredMessage, now: float) -> bool:
        return stored.message.expired(now)

    def _is_of_group(self, message: Message) -> bool:
        return True

    def put_back(self, packet_id: int, message: Message) -> None:
        """Have *message*, which was taken under *packet_id* and counts as in flight, wait again, in its place."""
        position = self._position_of(packet_id)
        at = 0
        for stored in self._ready:
            if stored.position > position:
                break
            at += 1
        self._ready_to_fill().insert(at, StoredMessage(position, message))
        self.count += 1
        self.waiting_bytes += message.size
        self.size += message.size
        self._budget.put_back()

    def mark(self, packet_id: int) -> None:
        """A member here was given the message of QoS 2 under *packet_id*: `Holder.released()` follows.

        The mark is written behind the queue of the member, which has to write already. If a transaction is full between
        the two, a crash in between has the message given twice, not lost.
        """
        if not self.release(packet_id):
            self._commit.move_last(self)

    def _marks_wait(self) -> bool:
        return True

    def now(self) -> float:
        """The time of the transaction that is being carried out."""
        return self._commit.now
