# The logs of filters that APPLICATION clients share, as routes see them: the port of store/durable/shared_logs.py.
from collections.abc import Callable

from broker.overload.gate import Gate
from broker.session.message import Message
from broker.session.session import Session
from broker.session.subscription import Subscription


class FilterLog:
    """The log of one filter, which all groups of APPLICATION clients with that filter read."""

    def append(self, message: Message, now: float) -> None:
        """Append *message*, of QoS 1 or 2, which is held until the log has it. It is never dropped before."""
        raise NotImplementedError


class SharedLogs:
    def publish_gate(self) -> Gate:
        """The gate that publishes of QoS 1 and 2 for such filters have to pass."""
        raise NotImplementedError

    def log_of(self, filter: bytes) -> FilterLog:
        """The log of *filter*, for one group more."""
        raise NotImplementedError

    def forget(self, filter: bytes) -> None:
        """One group less has the log of *filter*; what was given to it is appended all the same."""
        raise NotImplementedError

    def joined(self, subscription: Subscription) -> None:
        """*subscription*, of an APPLICATION session at this worker, is shared, and new or has changed."""
        raise NotImplementedError

    def left(self, subscription: Subscription) -> None:
        """*subscription* is not at this worker any more."""
        raise NotImplementedError

    def when_joined(self, session: Session, then: Callable[[], None]) -> None:
        """Call *then* once all groups of *session* are known to begin at the end of their logs, or earlier."""
        raise NotImplementedError

    def unusable(self) -> str:
        """Why no log can be made or found now; "": nothing is known to be wrong."""
        raise NotImplementedError
