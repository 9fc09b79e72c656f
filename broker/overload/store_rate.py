# The store rate: how many messages a second publishers may have stored, for all durable sessions together.
#
# It protects a Redis that is shared, or a disk that wears out, from a load that Weir itself could take. A publish of
# QoS 1 or 2 is charged for each receiver that may store it when it enters; another worker counts as one. Beyond the
# rate a gate is closed: publishes with such receivers wait, as for a slow store, and all others pass. Nothing is
# dropped before `overload.wait` is over. A publish passes whole, however many sessions store it, and those behind it
# pay that debt.
#
# TBMQ has such a limit (device-persisted-messages) and drops what is beyond it, although it was acknowledged. Why not
# charge what is really stored? What a client acknowledges in time is not, but nobody knows that when the publish
# enters; and to delay the store itself would hold up what it is to remove and who subscribes.
from collections.abc import Callable
from math import inf
from typing import Final

from broker.overload.throttle import Throttle

BURST: Final = 0.1  # seconds of the rate that may come at once
SOON: Final = 0.01  # seconds: the gate is opened that late at most


class StoreRate:
    def __init__(
        self, rate: float, resource: str, throttle: Throttle, now: float, soon: Callable[[float], None]
    ) -> None:
        """*rate*: messages a second. *resource*: the name of the gate. *soon*: has `tick()` called at a time."""
        self.gate = throttle.add_gate(resource, now)
        self._rate = rate
        self._throttle = throttle
        self._soon = soon
        self._most = max(1.0, BURST * rate)
        self._room = self._most
        self._filled = now

    def take(self, messages: int, now: float) -> None:
        """A publish has passed that *messages* receivers may store."""
        if messages:
            self._fill(now)
            self._room -= messages
            if self._room < 0.0 and not self.gate.blocked:
                self.gate.block()
                self._soon(self._due())

    def tick(self, now: float) -> float:
        """Open the gate if there is room again; return when to look again."""
        if not self.gate.blocked:
            return inf
        self._fill(now)
        if self._room < 0.0:
            return self._due()
        self.gate.unblock()
        self._throttle.opened(self.gate, now)
        return inf

    def _fill(self, now: float) -> None:
        self._room = min(self._most, self._room + (now - self._filled) * self._rate)
        self._filled = now

    def _due(self) -> float:
        return self._filled + max(SOON, -self._room / self._rate)
