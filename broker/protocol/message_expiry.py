# Message expiry: messages that wait in memory leave it when they have ended, although nobody reads their queue.
#
# The queues that are due are looked through one after the other, until AT_ONCE messages were seen; the others follow
# with the next pass. Durable queues have a sweeper of their own (store/durable/sweeper.py).
from typing import Final, cast

from broker.session.queue import MemoryQueue, MessageBudget

AT_ONCE: Final = 20_000  # messages, and queues: a millisecond


class MessageExpiry:
    def __init__(self, budget: MessageBudget) -> None:
        self._expiry = budget.expiry

    def run(self, now: float) -> None:
        """Have queues drop what has ended. To be called once a second."""
        looked_at = 0
        while looked_at < AT_ONCE:
            queue = self._expiry.pop_due(now)
            if queue is None:
                return
            looked_at += 1 + cast(MemoryQueue, queue).expire(now)
