# The shared subscriptions of a durable session.
from typing import Final

FORMER: Final = 64  # shared subscriptions that a session has left, and that its messages may return to


class Memberships:
    """The shared subscriptions that messages of a session may have come through, by key."""

    def __init__(self) -> None:
        self.current: dict[bytes, None] = {}
        self.former: dict[bytes, None] = {}  # it has unsubscribed since its queue was empty
        self.parted: list[bytes] = []  # in whose groups of APPLICATION clients it is no member any more, not stored yet

    def add(self, key: bytes) -> None:
        self.current[key] = None
        self.former.pop(key, None)

    def remove(self, key: bytes, queued: bool) -> None:
        """*queued*: there may be messages."""
        if key in self.current:
            del self.current[key]
            if queued and len(self.former) < FORMER:
                self.former[key] = None

    def all(self) -> list[bytes]:
        return [*self.current, *self.former]
