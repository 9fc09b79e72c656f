# Failures: each wrong password from an address delays the answer to the next wrong password from that address.
#
# The first answer waits 0.1 s, and each further failure doubles the wait, up to 5 s. Only answers to failures wait, so
# a client with the right password is never delayed by a neighbour behind the same address. A success does not reset
# the delay: the owner of one account could otherwise guess the passwords of other accounts for ever. Ten minutes
# without a failure reset it. The table is bounded: when it is full, the address whose last failure is oldest goes.
from typing import Final

from broker.overload.addresses import network

FIRST: Final = 0.1  # seconds
LONGEST: Final = 5.0  # seconds; after a longer wait clients give up and dial again, which costs the broker more
PEACE: Final = 600.0  # seconds without a failure after which an address is forgotten
ADDRESSES: Final = 10_000  # 2 MB


class Failures:
    def __init__(self, limit: int = ADDRESSES) -> None:
        self._limit = limit
        self._seen: dict[str, tuple[float, float]] = {}  # (the last wait, time of the last failure), the oldest first

    def add(self, address: str, now: float) -> float:
        """Count a wrong password from *address* (host:port); return the seconds that its answer has to wait."""
        key = network(address)
        wait, last = self._seen.pop(key, (0.0, now))
        if now - last > PEACE:
            wait = 0.0
        wait = min(LONGEST, wait * 2) if wait else FIRST
        self._seen[key] = (wait, now)
        if len(self._seen) > self._limit:
            del self._seen[next(iter(self._seen))]
        return wait

    def forget(self, now: float) -> None:
        """Forget the addresses whose last failure is PEACE seconds ago."""
        while self._seen:
            key = next(iter(self._seen))
            if now - self._seen[key][1] <= PEACE:
                return
            del self._seen[key]

    def statistics(self) -> int:
        """Addresses that are remembered."""
        return len(self._seen)
