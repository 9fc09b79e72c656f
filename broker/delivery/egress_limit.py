# The egress limit: asked before anything is delivered to a client that has an outgoing quota.
#
# The outbox of such a client is never writable, so that everybody who delivers takes the slow path of a client that is
# not: each delivery (a message, or a part of a run: 16 messages or 16 KiB at most, see session/run.py) is allowed or
# refused as a whole, and is charged once it is written. A delivery that was allowed is finished although it may be
# larger than what was left; the client pays that debt before its next one. Clients without a quota pay nothing for it:
# that an outbox is writable is tested anyway.
from typing import Protocol

from broker.reasons import DropReason


class EgressLimit(Protocol):
    def refusal(self) -> DropReason | None:
        """Why nothing may be delivered now; None if a delivery may begin.

        After a refusal the limit reports to the session that its client is writable again, once there is room.
        """
        ...

    def charge(self, messages: int, size: int) -> None:
        """Charge a delivery of *messages* messages and *size* bytes, which was written."""
        ...
