# A toll: what is asked before anything is delivered to a client that may be sent only so much.
#
# Its outbox is never plainly writable: each delivery is a batch of its own, a message or a run of them, that is let
# pass or not as a whole, and is charged when it is written. So a batch that has begun is finished, though it may be
# more than there was room for; what is owed then is paid before the next. Who has no such limit has no toll, and pays
# nothing for those who have: that one is not writable had to be tested anyway.
from typing import Protocol

from broker.reasons import DropReason


class Toll(Protocol):
    def closed(self) -> DropReason | None:
        """Why nothing may be delivered now; None: a batch may. Once it may again, the client is told that it can."""
        ...

    def take(self, messages: int, size: int) -> None:
        """A batch of *size* bytes was written."""
        ...
