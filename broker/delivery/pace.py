# The pace of a client that catches up: asked before a message leaves its queue. catching_up.py explains it.
from typing import Protocol


class Pace(Protocol):
    def allows(self) -> bool:
        """Whether a message that waited may be delivered now.

        If not, the pace reports to the session that its client is writable again, once one may be.
        """
        ...

    def charge(self, messages: int, size: int) -> None:
        """Charge *messages* messages that waited, of *size* bytes, which were written."""
        ...

    def over(self) -> None:
        """Nothing waits for the client any more."""
        ...
