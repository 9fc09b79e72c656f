# Where a durable session is stored, beside its messages: the port. store/durable/record.py stores in Redis.
from collections.abc import Callable

from broker.session.subscription import Subscription


class SessionStorage:
    def store_head(self, expiry: int, user: bytes | None, connected: bool) -> None:
        """Store that the session is that of *user*, and lasts *expiry* seconds once its client has left: now, unless it
        is *connected*.
        """
        raise NotImplementedError

    def subscribed(self, subscription: Subscription) -> None:
        """Store *subscription*, which is new or has changed."""
        raise NotImplementedError

    def unsubscribed(self, key: bytes) -> None:
        """Remove the subscription under *key*."""
        raise NotImplementedError

    def when_stored(self, then: Callable[[], None]) -> None:
        """Call *then* once all that was given to be stored so far is: at once if it is.

        Whoever waits already is forgotten: a connection waits for one answer, and the one before it has ended.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Remove everything: the session has ended."""
        raise NotImplementedError
