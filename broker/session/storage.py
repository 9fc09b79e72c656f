# Where a durable session is stored, beside its messages: the port. store/durable/record.py stores in Redis.
from collections.abc import Callable

from broker.session.subscription import Subscription


class SessionStorage:
    def keep(self, expiry: int, user: bytes | None, ends_in: float | None, now: float) -> None:
        """Store that the session of *user* has an *expiry* in seconds, and what is left of it.

        *ends_in*: seconds from *now*; None: its client is connected.
        """
        raise NotImplementedError

    def subscribed(self, subscription: Subscription) -> None:
        """Store *subscription*, which is new or has changed."""
        raise NotImplementedError

    def unsubscribed(self, key: bytes) -> None:
        """Remove the subscription under *key*."""
        raise NotImplementedError

    def when_stored(self, then: Callable[[], None]) -> None:
        """Call *then* once all that was given to be stored so far is: at once if it is."""
        raise NotImplementedError

    def end(self) -> None:
        """Remove everything: the session has ended."""
        raise NotImplementedError
