from broker.session.losses import LossListener
from broker.session.origin import NOWHERE, Origin
from broker.session.queue import MessageBudget


class SessionLimits:
    """How much one session may hold, in messages and bytes. All sessions of a worker share one object, and *budget*."""

    def __init__(
        self,
        *,
        inflight: int,
        pending: int,
        queue: int,
        queue_bytes: int,
        budget: MessageBudget,
        origin: Origin | None = None,
        queue_qos0: bool = False,
        listener: LossListener | None = None,
    ) -> None:
        """*origin* names the worker whose messages are being delivered, where there are several workers.

        *listener*: who tells clients of messages that they lost.
        """
        self.origin = origin or Origin(NOWHERE)
        self.inflight = inflight
        self.pending = pending  # messages that wait for a session which ends with its connection
        self.queue = queue  # messages that wait for a session which outlives its connection
        self.queue_bytes = queue_bytes
        self.queue_qos0 = queue_qos0  # QoS 0 waits there, too; not where sessions are stored
        self.budget = budget
        self.listener = listener or LossListener()
