# The queue of a session: messages that wait for a place in its window, the oldest first.
#
# MessageQueue is what a session needs of its queue, and MemoryQueue keeps the messages in the memory of the worker. The
# port leaves room for a queue that stores its messages elsewhere, as packs in a list:
# - `append()` may call `message.hold()`: the publish is then acknowledged when the queue settles the Completion,
#   because
#   the message is stored or its receiver is done with it, whichever is first.
# - `pop()` gives None although messages wait, while their page is being read; the queue calls `Session.pump()` when the
#   page is there. Within `append()` the session must not be called.
# - A message that was popped stays stored until `done()`: its client has acknowledged it, or it will never be sent.
# - Such a queue is there as long as its session (`permanent`). A MemoryQueue is made for the first message that waits
#   and
#   forgotten with the last: most sessions of a large fleet are idle, and an empty one would be most of what they cost.
# A session without a queue delivers at once if its window has room; that path never looks at a queue.
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.session.message import Message

UNLIMITED: Final = 1 << 60  # messages


class QueueBudget:
    """The bytes that may wait in all sessions of a worker together, and what does wait."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.messages = 0

    def take(self, message: Message) -> None:
        self.used += message.size
        self.messages += 1

    def give_back(self, message: Message) -> None:
        self.used -= message.size
        self.messages -= 1


class MessageQueue:
    """The port."""

    def __init__(self, permanent: bool) -> None:
        self.count = 0  # messages that wait
        self.permanent = permanent  # the session keeps it although it is empty

    def limit(self, most_bytes: int) -> None:
        """Let at most *most_bytes* wait, from the next message on."""
        raise NotImplementedError

    def append(self, message: Message, most: int) -> int:
        """Add *message* as the last one; drop the oldest while there are more than *most*, or more bytes than allowed.

        Returns how many messages were dropped.
        """
        raise NotImplementedError

    def prepend(self, earlier: deque[Message], most: int) -> int:
        """Put *earlier*, which count in the budget already, before all other messages; limits as for `append()`."""
        raise NotImplementedError

    def pop(self) -> Message | None:
        """Take the oldest message; None if there is none now."""
        raise NotImplementedError

    def done(self, message: Message) -> None:
        """The session is done with *message*, which was popped: acknowledged, expired or too large for its client."""
        raise NotImplementedError

    def take_all(self) -> deque[Message]:
        """Take all messages, in order. They count in the budget until the caller gives their places back."""
        raise NotImplementedError

    def remove_unless(self, keep: Callable[[Message], bool]) -> int:
        """Remove all messages for which *keep* is false; return how many."""
        raise NotImplementedError

    def clear(self) -> int:
        """Remove all messages; return how many."""
        raise NotImplementedError


class MemoryQueue(MessageQueue):
    """At most *most_bytes* bytes of messages in memory. They share *budget* with all other queues of the worker."""

    def __init__(self, most_bytes: int, budget: QueueBudget) -> None:
        super().__init__(False)
        self.full = False  # messages were dropped: for whoever reports it once
        self._messages: deque[Message] = deque()
        self._size = 0  # bytes
        self._most_bytes = most_bytes
        self._budget = budget

    def limit(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes

    def append(self, message: Message, most: int) -> int:
        budget = self._budget
        size = message.size
        self._messages.append(message)
        self.count += 1
        self._size += size
        budget.used += size
        budget.messages += 1
        if self._size > self._most_bytes or budget.used > budget.limit or self.count > most:
            return self._drop_oldest(most)
        return 0

    def prepend(self, earlier: deque[Message], most: int) -> int:
        for message in earlier:
            self._size += message.size
        self.count += len(earlier)
        earlier.extend(self._messages)
        self._messages = earlier
        return self._drop_oldest(most)

    def pop(self) -> Message | None:
        if self.count == 0:
            return None
        message = self._messages.popleft()
        budget = self._budget
        size = message.size
        self.count -= 1
        self._size -= size
        budget.used -= size
        budget.messages -= 1
        return message

    def put_back(self, messages: list[Message]) -> None:
        """Put *messages*, which were popped just now, before all other messages; no limit applies."""
        for message in reversed(messages):
            self._messages.appendleft(message)
            self.count += 1
            self._size += message.size
            self._budget.take(message)

    def done(self, message: Message) -> None:
        pass  # nothing of it is left here

    def take_all(self) -> deque[Message]:
        messages = self._messages
        self._messages = deque()
        self.count = 0
        self._size = 0
        return messages

    def remove_unless(self, keep: Callable[[Message], bool]) -> int:
        kept: deque[Message] = deque()
        for message in self._messages:
            if keep(message):
                kept.append(message)
            else:
                self._size -= message.size
                self._budget.give_back(message)
        removed = self.count - len(kept)
        self._messages = kept
        self.count -= removed
        return removed

    def clear(self) -> int:
        cleared = self.count
        for message in self.take_all():
            self._budget.give_back(message)
        return cleared

    def _drop_oldest(self, most: int) -> int:
        budget = self._budget
        dropped = 0
        while self.count and (self._size > self._most_bytes or budget.used > budget.limit or self.count > most):
            self.pop()
            dropped += 1
        return dropped
