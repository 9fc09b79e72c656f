# Limits of one address: connections at once, and new connections a second.
#
# An address is an IPv4 host or an IPv6 /64: the smallest network that a site is given, in which one host can use as
# many addresses as it likes. Clients that share an address share its limits, and a whole fleet behind one NAT is one
# address. So both limits are off unless they are configured.
#
# The rate is a token bucket, filled lazily. It counts accepted connections and not CONNECTs, as a connection costs the
# broker already: a TLS handshake takes a millisecond, a WebSocket upgrade 0.2 ms. So it is one rate for all transports,
# and connections beyond the number of their address count as well. A connection that comes too soon takes no token, so
# an address that hammers still gets its rate.
#
# An address is remembered while it has connections, and until its bucket is full again: a new entry would be equal
# then. Of the addresses without connections at most MOST are kept; beyond that the first to leave is forgotten with its
# debt. An attacker with so many addresses is not stopped by a limit for one address.
from collections import deque
from ipaddress import AddressValueError, IPv6Address
from typing import Final

MOST: Final = 65_536  # addresses without a connection, of about 250 bytes each
IPV6_NETWORK_BITS: Final = 64


class Address:
    """What is known about one address."""

    def __init__(self, name: str, tokens: float, now: float) -> None:
        self.name = name
        self.connections = 0
        self.tokens = tokens  # connections that may be made at once, at the time `counted`
        self.counted = now
        self.leaving = False  # in `Addresses._leaving`


class Addresses:
    """At most *connections* of an address at once, and *rate* new ones a second after *burst*; 0 is no limit."""

    def __init__(self, connections: int, rate: int, burst: int) -> None:
        self.limited = connections > 0 or rate > 0
        self._connections = connections
        self._rate = float(rate)
        self._burst = float(burst)
        self._known: dict[str, Address] = {}
        self._leaving: deque[Address] = deque()  # without connections, the first to leave first

    def arrive(self, peer: str, now: float) -> Address:
        """A connection of *peer*, "host:port", was accepted. `leave()` has to follow."""
        name = network(peer)
        address = self._known.get(name)
        if address is None:
            address = self._known[name] = Address(name, self._burst, now)
            if len(self._leaving) > MOST:
                self._forget_first()
        address.connections += 1
        return address

    def crowded(self, address: Address) -> bool:
        """Whether *address* has more connections than allowed."""
        return 0 < self._connections < address.connections

    def too_fast(self, address: Address, now: float) -> bool:
        """Whether *address* makes connections too fast; if not, one connection is counted."""
        if self._rate == 0.0:
            return False
        address.tokens = min(self._burst, address.tokens + (now - address.counted) * self._rate)
        address.counted = now
        if address.tokens < 1.0:
            return True
        address.tokens -= 1.0
        return False

    def leave(self, address: Address) -> None:
        """A connection of *address* has ended."""
        address.connections -= 1
        if address.connections:
            return
        if self._rate == 0.0:
            del self._known[address.name]
        elif not address.leaving:
            address.leaving = True
            self._leaving.append(address)

    def forget(self, now: float, limit: int) -> int:
        """Forget addresses whose bucket is full, of up to *limit* addresses without connections; return how many."""
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
        """Forget the address that left first, whatever is in its bucket."""
        while self._leaving:
            address = self._leaving.popleft()
            address.leaving = False
            if not address.connections:
                del self._known[address.name]
                return

    def statistics(self) -> tuple[int, int]:
        """(addresses with connections, remembered addresses without). O(n)."""
        absent = sum(1 for address in self._known.values() if not address.connections)
        return len(self._known) - absent, absent


def network(peer: str) -> str:
    """The address whose limits apply to *peer*, "host:port". A host that is not an IP address is its own address."""
    host = peer.rpartition(":")[0]
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.strip("[]"))
    except AddressValueError:
        return host
    mapped = address.ipv4_mapped  # an IPv4 client of a dual-stack socket: all of them are in one /64
    if mapped is not None:
        return str(mapped)
    return address.packed[: IPV6_NETWORK_BITS // 8].hex()
