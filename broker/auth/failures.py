# Failures: who guesses passwords gets slower answers.
#
# Only the answer to a failure waits, twice as long with each, so a client that knows its password is never made to
# wait for a neighbour that does not. What is remembered is bounded: when it is full, the address that has been quiet
# the longest is forgotten. Peace makes us forget, a success does not: who owns one account could guess for ever.
from typing import Final

from broker.overload.addresses import network

FIRST: Final = 0.1  # seconds
LONGEST: Final = 5.0  # seconds; longer, and clients give up and dial again, which costs us more
PEACE: Final = 600.0  # seconds without a failure until an address is as any other
ADDRESSES: Final = 10_000  # 2 MB


class Failures:
    def __init__(self, limit: int = ADDRESSES) -> None:
        self._limit = limit
        self._seen: dict[str, tuple[float, float]] = {}  # (the last wait, when), the quiet ones first

    def add(self, address: str, now: float) -> float:
        """Somebody at *address* (host:port) named a wrong password: seconds that the answer has to wait."""
        whose = network(address)
        wait, last = self._seen.pop(whose, (0.0, now))
        if now - last > PEACE:
            wait = 0.0
        wait = min(LONGEST, wait * 2) if wait else FIRST
        self._seen[whose] = (wait, now)
        if len(self._seen) > self._limit:
            del self._seen[next(iter(self._seen))]
        return wait

    def forget(self, now: float) -> None:
        """Drop those who have had their peace."""
        while self._seen:
            whose = next(iter(self._seen))
            if now - self._seen[whose][1] <= PEACE:
                return
            del self._seen[whose]

    def statistics(self) -> int:
        """Addresses that are remembered."""
        return len(self._seen)
