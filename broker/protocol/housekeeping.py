# Housekeeping: what a worker drops in the course of time, a limited number at once.
from collections.abc import Callable
from typing import Final

from broker.auth.authenticator import Authenticator
from broker.overload.addresses import Addresses
from broker.protocol.message_expiry import MessageExpiry
from broker.routing.retained import Retained
from broker.session.queue import MessageBudget

EXPIRED_AT_ONCE: Final = 1_000  # retained messages
TOMBSTONES_AT_ONCE: Final = 10_000  # of retained messages: 5 ms
FORGOTTEN_AT_ONCE: Final = 1_000  # addresses


class Housekeeping:
    def __init__(
        self,
        retained: Retained,
        addresses: Addresses,
        authenticator: Authenticator,
        queue_budget: MessageBudget,
        clock: Callable[[], float],
    ) -> None:
        """*queue_budget*: that of the messages that wait in memory."""
        self._retained = retained
        self._addresses = addresses
        self._authenticator = authenticator
        self._messages = MessageExpiry(queue_budget)
        self._clock = clock

    def run(self) -> None:
        """Drop messages that have ended, old tombstones, and what is remembered of addresses and need not be."""
        now = self._clock()
        self._messages.run(now)
        self._retained.expire(now, EXPIRED_AT_ONCE)
        self._retained.forget_tombstones(now, TOMBSTONES_AT_ONCE)
        self._addresses.forget(now, FORGOTTEN_AT_ONCE)
        self._authenticator.forget(now)
