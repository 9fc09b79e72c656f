# What one address may take of us: how many connections at once, and how many a second.
#
# An address is a host of IPv4, and a /64 of IPv6: the smallest that a site is given, within which a host can have as
# many addresses as it likes. Nobody is kept apart from whom it shares an address with, so a whole fleet behind one
# NAT is one here: both limits are off unless they are set.
#
# The rate is a token bucket, filled lazily. What counts is the connection and not its CONNECT, as a connection costs
# us already, with TLS most of all. One that comes too soon takes no token: who hammers gets its share all the same.
#
# An address is remembered while it has connections, and until its bucket is full again: after that a new entry would
# say the same. Of those that wait for that, at most MOST are kept. Then the one that left first goes, with its debt:
# whoever has so many addresses is not held by a limit for one.
from collections import deque
from ipaddress import AddressValueError, IPv6Address
from typing import Final

MOST: Final = 65_536  # addresses without a connection, of about 250 bytes each
IPV6_NETWORK_BITS: Final = 64


class Address:
    """One address, as long as there is something to know about it."""

    def __init__(self, name: str, tokens: float, now: float) -> None:
        self.name = name
        self.connections = 0
        self.tokens = tokens  # connections it may make at once, as of `counted`
        self.counted = now
        self.leaving = False  # it stands in the line of those that had no connection any more


class Addresses:
    """At most *connections* of one address at once, and *rate* a second beyond the first *burst*; 0 is any number."""

    def __init__(self, connections: int, rate: int, burst: int) -> None:
        self.limited = connections > 0 or rate > 0
        self._connections = connections
        self._rate = float(rate)
        self._burst = float(burst)
        self._known: dict[str, Address] = {}
        self._leaving: deque[Address] = deque()  # in the order in which they were left

    def arrive(self, peer: str, now: float) -> Address:
        """A connection of *peer*, "host:port", was accepted; `leave()` has to follow."""
        name = network(peer)
        address = self._known.get(name)
        if address is None:
            address = self._known[name] = Address(name, self._burst, now)
            if len(self._leaving) > MOST:
                self._forget_first()
        address.connections += 1
        return address

    def crowded(self, address: Address) -> bool:
        """It has more connections than it may have."""
        return 0 < self._connections < address.connections

    def too_fast(self, address: Address, now: float) -> bool:
        """It makes connections faster than it may; if not, one more is counted."""
        if self._rate == 0.0:
            return False
        address.tokens = min(self._burst, address.tokens + (now - address.counted) * self._rate)
        address.counted = now
        if address.tokens < 1.0:
            return True
        address.tokens -= 1.0
        return False

    def leave(self, address: Address) -> None:
        """One of its connections ended."""
        address.connections -= 1
        if address.connections:
            return
        if self._rate == 0.0:
            del self._known[address.name]
        elif not address.leaving:
            address.leaving = True
            self._leaving.append(address)

    def forget(self, now: float, limit: int) -> int:
        """Look at up to *limit* of those without a connection, and forget whose bucket is full; how many those were."""
        forgotten = 0
        for _ in range(min(limit, len(self._leaving))):
            address = self._leaving.popleft()
            if address.connections:
                address.leaving = False
            elif address.tokens + (now - address.counted) * self._rate < self._burst:
                self._leaving.append(address)
            else:
                del self._known[address.name]
                forgotten += 1
        return forgotten

    def _forget_first(self) -> None:
        """Forget who left first, whatever its bucket says."""
        while self._leaving:
            address = self._leaving.popleft()
            address.leaving = False
            if not address.connections:
                del self._known[address.name]
                return

    def statistics(self) -> tuple[int, int]:
        """(addresses with connections, those without that are remembered). O(n)."""
        absent = sum(1 for address in self._known.values() if not address.connections)
        return len(self._known) - absent, absent


def network(peer: str) -> str:
    """The address that *peer*, "host:port", counts for; what is no IP address counts for itself."""
    host = peer.rpartition(":")[0]
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.strip("[]"))
    except AddressValueError:
        return host
    mapped = address.ipv4_mapped  # an IPv4 client of a socket for both: all of these are in one /64
    if mapped is not None:
        return str(mapped)
    return address.packed[: IPV6_NETWORK_BITS // 8].hex()
