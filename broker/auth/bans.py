# Bans: clients that an administrator keeps out until a deadline, by client id, user, address or pattern.
#
# A ban says who made it, when and why, and ends by itself. The supervisor holds the table of the node and its file;
# every worker has a copy (broker/protocol/ban_enforcement.py).
#
# Every CONNECT is compared with the bans, also those of an attacker, so the time is bounded: client ids and users are
# looked up; an address is looked up once for each length of a banned network; patterns (config/patterns.py) are tried
# one by one. PATTERNS patterns take about 0.1 ms.
from ipaddress import ip_address, ip_network
from typing import Any, Final

from broker.config.patterns import WILDCARDS, is_pattern, matches

MOST: Final = 1000  # bans; the first frame to each worker has all of them
PATTERNS: Final = 100  # of them
LONGEST: Final = 365 * 86_400.0  # seconds until a ban ends; one without an end would be forgotten
LONGEST_REASON: Final = 200  # characters
LONGEST_VALUE: Final = 1024  # bytes; the default of limits.client_id_bytes

CLIENT: Final = "client"
USER: Final = "user"
ADDRESS: Final = "address"
PATTERN: Final = "pattern"
WORDS: Final = {  # of kinds
    CLIENT: "client id",
    USER: "user",
    ADDRESS: "address",
    PATTERN: "client id pattern",
}


class BanError(Exception):
    """A ban cannot be made. The text is one sentence: what is wrong and what would be right."""


class Ban:
    def __init__(
        self, kind: str, value: str, until: float, *, seconds: float, by: str, reason: str, made: float
    ) -> None:
        """*value*: a client id, a user name, an address or network ("192.0.2.0/24"), or a pattern, as *kind* says.

        *until*: by the clock of `now`. *seconds* (the duration that was asked for), *by*, *reason* and *made* (Unix
        time) are for people. BanError: *kind* or *value* is none.
        """
        self.kind = kind
        self.value = _checked(kind, value)
        self.until = until
        self.seconds = seconds
        self.by = by
        self.reason = reason
        self.made = made

    def described(self) -> dict[str, Any]:
        """All fields except `until`, for a file, a frame or an answer."""
        return {
            "kind": self.kind,
            "value": self.value,
            "seconds": self.seconds,
            "by": self.by,
            "reason": self.reason,
            "made": self.made,
        }


def ban_from(facts: dict[str, Any], until: float) -> Ban:
    """The ban that `described()` has described; *until* by the clock of `now`. BanError."""
    return Ban(
        facts["kind"],
        facts["value"],
        until,
        seconds=facts["seconds"],
        by=facts["by"],
        reason=facts["reason"],
        made=facts["made"],
    )


class Bans:
    def __init__(self, most: int = MOST, patterns: int = PATTERNS) -> None:
        self.count = 0  # also of bans that have ended and are not forgotten yet
        self._most = most
        self._patterns = patterns
        self._bans: dict[tuple[str, str], Ban] = {}  # by kind and value
        self._networks: dict[tuple[int, int], dict[int, Ban]] = {}  # by IP version and bits of the host, then by prefix

    def check(self, ban: Ban, now: float) -> None:
        """BanError: *ban* cannot be made."""
        if not 0.0 < ban.until - now <= LONGEST:
            raise BanError(f"The ban of {ban.value} must end within {LONGEST / 86_400:g} days.")
        if len(ban.reason) > LONGEST_REASON or not _is_text(ban.reason):
            raise BanError(f"The ban of {ban.value} may have a reason of up to {LONGEST_REASON} characters.")
        held = self.bans(now)
        if self.get(ban.kind, ban.value, now) is not None:
            return  # it is replaced
        if len(held) >= self._most:
            raise BanError(f"There are {self._most} bans already: remove one, or ban a network or a pattern.")
        if ban.kind == PATTERN and sum(1 for one in held if one.kind == PATTERN) >= self._patterns:
            raise BanError(f"There are {self._patterns} bans by pattern already: remove one.")

    def set(self, ban: Ban) -> None:
        """Apply *ban* from now on, in place of a former one of the same kind and value."""
        self.drop(ban.kind, ban.value)
        self._bans[ban.kind, ban.value] = ban
        self.count = len(self._bans)
        if ban.kind == ADDRESS:
            length, prefix = _place(ban.value)
            self._networks.setdefault(length, {})[prefix] = ban

    def drop(self, kind: str, value: str) -> Ban | None:
        """Remove the ban of *value*, which is written as in `Ban.value`, and return it."""
        ban = self._bans.pop((kind, value), None)
        self.count = len(self._bans)
        if ban is not None and kind == ADDRESS:
            length, prefix = _place(value)
            del self._networks[length][prefix]
            if not self._networks[length]:
                del self._networks[length]
        return ban

    def get(self, kind: str, value: str, now: float) -> Ban | None:
        """The ban of exactly this *value* that applies now."""
        ban = self._bans.get((kind, value))
        return ban if ban is not None and now < ban.until else None

    def find(self, client_id: str, user: str | None, address: str, now: float) -> Ban | None:
        """The ban that keeps out a client: *address* is host:port, "" and None are not compared."""
        if not self.count:
            return None
        ban = self.get(CLIENT, client_id, now) if client_id else None
        if ban is None and user is not None:
            ban = self.get(USER, user, now)
        if ban is None and self._networks and address:
            ban = self._find_network(address, now)
        if ban is None and client_id:
            ban = self._find_pattern(client_id, now)
        return ban

    def bans(self, now: float) -> list[Ban]:
        """All bans that apply now, the next to end first."""
        return sorted([ban for ban in self._bans.values() if now < ban.until], key=_end_of)

    def forget_ended(self, now: float) -> list[Ban]:
        """Remove and return the bans that have ended."""
        ended = [ban for ban in self._bans.values() if now >= ban.until]
        for ban in ended:
            self.drop(ban.kind, ban.value)
        return ended

    def _find_network(self, address: str, now: float) -> Ban | None:
        number = _number(address)
        if number is None:
            return None
        for (version, host_bits), networks in self._networks.items():
            if version == number[0]:
                ban = networks.get(number[1] >> host_bits)
                if ban is not None and now < ban.until:
                    return ban
        return None

    def _find_pattern(self, client_id: str, now: float) -> Ban | None:
        for ban in self._bans.values():
            if ban.kind == PATTERN and now < ban.until and matches(ban.value, client_id):
                return ban
        return None


def _checked(kind: str, value: str) -> str:
    """*value* as it is compared. BanError."""
    if kind not in WORDS:
        raise BanError(f"{kind!r} is no kind of ban: it must be one of {', '.join(WORDS)}.")
    if not _is_text(value) or not 1 <= len(value.encode()) <= LONGEST_VALUE:
        raise BanError(f"No ban can be made for {value[:80]!r}: a {WORDS[kind]} has 1 to {LONGEST_VALUE} bytes.")
    if kind == PATTERN and not is_pattern(value):
        raise BanError(
            f"The pattern {value} is not valid: it must be a client id with up to {WILDCARDS} `*`, and not only `*`."
        )
    if kind != ADDRESS:
        return value
    try:
        network = ip_network(value, strict=False)
    except ValueError:
        raise BanError(
            f"The address {value} is not valid: it must be an address or a network such as 192.0.2.1, 192.0.2.0/24 or "
            "2001:db8::/48."
        ) from None
    if not network.prefixlen:
        raise BanError(f"The address {value} is not valid: it would ban every client.")
    return str(network)


def _place(network: str) -> tuple[tuple[int, int], int]:
    """Where a *network* is filed: (IP version, bits of the host), and the bits before them."""
    parsed = ip_network(network)
    host_bits = parsed.max_prefixlen - parsed.prefixlen
    return (parsed.version, host_bits), int(parsed.network_address) >> host_bits


def _number(peer: str) -> tuple[int, int] | None:
    """(IP version, the address as a number) of *peer*, "host:port"; None: the host is no IP address."""
    try:
        address = ip_address(peer.rpartition(":")[0].strip("[]"))
    except ValueError:
        return None
    if address.version == 6 and address.ipv4_mapped is not None:  # an IPv4 client of a dual-stack socket
        return 4, int(address.ipv4_mapped)
    return address.version, int(address)


def _end_of(ban: Ban) -> float:
    return ban.until


def _is_text(text: str) -> bool:
    """Whether *text* can be encoded: JSON can contain halves of surrogate pairs, and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
