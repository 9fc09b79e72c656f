from typing import Final

from broker.session.origin import NOWHERE, Origin
from broker.session.queue import QueueBudget

NO_LIMIT: Final = 1 << 60  # bytes


class SessionLimits:
    """How much one session may hold, in messages and bytes. All sessions of a worker share one object, and *budget*."""

    def __init__(
        self,
        *,
        inflight: int,
        pending: int,
        queue: int,
        queue_bytes: int,
        budget: QueueBudget,
        origin: Origin | None = None,
    ) -> None:
        """*origin* names the worker whose messages are being delivered, where there are several workers."""
        self.origin = origin or Origin(NOWHERE)
        self.inflight = inflight
        self.pending = pending  # messages that wait for a session which ends with its connection
        self.queue = queue  # messages that wait for a session which outlives its connection
        self.queue_bytes = queue_bytes
        self.window_bytes = queue_bytes or NO_LIMIT  # unacknowledged: if nothing may wait, everything may be sent
        self.budget = budget
