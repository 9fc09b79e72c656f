# Guesses: how many wrong passwords may be checked, for one user and from one address.
#
# A budget is a debt that each wrong password raises by one and that falls with time: 20 at once and then 1 a second for
# a user, 50 at once and then 5 a second for an address (IPv4 host or IPv6 /64). A guess over a budget is refused
# without hashing, whether it is right or wrong, so that it tells nothing. Only wrong passwords count: a fleet with the
# right ones never meets a budget. The budgets are those of the node, and each worker has its share.
#
# Guesses from elsewhere must not lock a user out. So the budget of a user does not apply
# - to an address from which the user gave the right password: the pair has a budget of its own, and that of its address
#   does not apply either, as neighbours behind a NAT would lock each other out;
# - to an address without a failure within PEACE seconds. For IPv6 that is the whole /48, as one site can use each /64
#   in it for one guess.
# What is left to an attacker is one guess in PEACE seconds for each IPv4 host or IPv6 /48 that it has. An attacker with
# more than SITES of them loses that, too: then the table of failures is full of recent ones, and an address that is not
# in it proves nothing. In that case only remembered pairs are free of the budget of a user.
#
# All tables are bounded, and the entry that was changed least recently goes. To have a debt forgotten, an attacker has
# to fill a table with other debts, each of which takes a hash: that takes longer than the debt takes to fall by itself.
from collections import OrderedDict
from hashlib import blake2b
from typing import Final

from broker.overload.addresses import network
from broker.reasons import CloseReason

PEACE: Final = 600.0  # seconds without a failure after which an address counts as one that never failed
DEBTS: Final = 10_000  # in one table; 3 MB
SITES: Final = 10_000  # with failures within PEACE; 2 MB
PAIRS: Final = 10_000  # of a user and an address that were right; 2 MB
LEAST: Final = 3.0  # wrong passwords at once that a worker's share of a budget allows
USER_RECOVERY: Final = 20.0  # seconds after which the whole budget of a user is there again
ADDRESS_RECOVERY: Final = 10.0  # and that of an address
USUAL_ADDRESS: Final = 50  # the budget that tells failing addresses from others where none is configured
FAILING: Final = 0.1  # of its budget in debt: an address waits behind all others
LONGEST_NAME: Final = 64  # characters of a user name that are kept; a longer one is kept as its digest
SITE_DIGITS: Final = 12  # of 16 hexadecimal digits of a /64: the /48


class Debt:
    """The wrong guesses of one key that its budget has not recovered from yet."""

    def __init__(self, now: float) -> None:
        self.guesses = 0.0
        self.counted = now


class Budget:
    """At most *most* wrong guesses of one key at once, which it recovers from at *rate* a second."""

    def __init__(self, most: float, rate: float, limit: int = DEBTS) -> None:
        self.most = most
        self._rate = rate
        self._limit = limit
        self._debts: OrderedDict[str, Debt] = OrderedDict()  # the one that was changed least recently stands first

    def debt(self, key: str, now: float) -> float:
        """Wrong guesses of *key* that count now."""
        known = self._debts.get(key)
        return 0.0 if known is None else max(0.0, known.guesses - (now - known.counted) * self._rate)

    def used_up(self, key: str, now: float) -> bool:
        return self.debt(key, now) > self.most - 1.0

    def take(self, key: str, now: float) -> None:
        """Count a guess of *key*, which may still turn out to be right."""
        debt = self.debt(key, now)
        known = self._debts.get(key)
        if known is None:
            known = self._debts[key] = Debt(now)
            if len(self._debts) > self._limit:
                self._debts.popitem(last=False)
        known.guesses = min(self.most, debt + 1.0)  # guesses that the budget did not stop must not lock out for hours
        known.counted = now
        self._debts.move_to_end(key)

    def give_back(self, key: str, now: float) -> None:
        """A guess that was counted was right, or was not made."""
        known = self._debts.get(key)
        if known is None:
            return
        known.guesses = self.debt(key, now) - 1.0
        known.counted = now
        if known.guesses <= 0.0:
            del self._debts[key]

    def forget(self, now: float) -> None:
        """Forget debts of zero, from the one that was changed least recently up to the first that is above zero."""
        while self._debts:
            key = next(iter(self._debts))
            if self.debt(key, now) > 0.0:
                return
            del self._debts[key]

    def statistics(self) -> int:
        """Keys that are remembered."""
        return len(self._debts)


class Source:
    """From where a password for a user comes: the keys of all tables."""

    def __init__(self, address: str, user: str) -> None:
        """*address*: host:port. *user*: as the client wrote it."""
        name = user
        if len(user) > LONGEST_NAME:
            name = "#" + blake2b(user.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        self.address = network(address)
        self.site = _site(self.address)
        self.user = name
        self.pair = f"{self.address} {name}"
        self.of_pair = False  # the guess under way is counted for the pair, and not for the user


class Guesses:
    def __init__(self, per_user: int, per_address: int, workers: int = 1) -> None:
        """Budgets of wrong passwords at once, of the node; 0 is no limit. *workers* share them."""
        users = max(LEAST, per_user / workers)
        addresses = max(LEAST, (per_address or USUAL_ADDRESS) / workers)
        self._limits_users = per_user > 0
        self._limits_addresses = per_address > 0
        self._users = Budget(users, per_user / workers / USER_RECOVERY)
        self._pairs = Budget(users, per_user / workers / USER_RECOVERY)
        self._addresses = Budget(addresses, (per_address or USUAL_ADDRESS) / workers / ADDRESS_RECOVERY)
        self._good: OrderedDict[str, None] = OrderedDict()  # pairs, the one that was right least recently first
        self._failed: OrderedDict[str, float] = OrderedDict()  # sites and when they last failed, the oldest first
        self._crowded_until = 0.0  # failures within PEACE were forgotten: a site that is not known proves nothing

    def refusal(self, source: Source, now: float) -> CloseReason | None:
        """The budget that *source* has used up, or None: its password may be checked."""
        if source.pair in self._good:
            return CloseReason.GUESSES_OF_USER if self._used_up(self._pairs, source.pair, now) else None
        if self._limits_addresses and self._addresses.used_up(source.address, now):
            return CloseReason.GUESSES_OF_ADDRESS
        if self._used_up(self._users, source.user, now) and not self._never_failed(source.site, now):
            return CloseReason.GUESSES_OF_USER
        return None

    def lane(self, source: Source) -> str:
        """Guesses of one lane are checked one after the other, so that each of them is counted before the next."""
        return source.pair if source.pair in self._good else source.user

    def trusted(self, source: Source) -> bool:
        """Whether the user gave the right password from that address before."""
        return source.pair in self._good

    def failing(self, source: Source, now: float) -> bool:
        """Whether many wrong passwords came from the address or its /48 of late."""
        most = self._addresses.most
        if self._addresses.debt(source.address, now) >= most * FAILING:
            return True
        return source.site != source.address and self._addresses.debt(source.site, now) >= most

    def begin(self, source: Source, now: float) -> None:
        """A password of *source* is hashed now: it counts as wrong until `right()` or `give_back()`."""
        source.of_pair = source.pair in self._good
        if source.of_pair:
            self._pairs.take(source.pair, now)
        else:
            self._users.take(source.user, now)
        self._addresses.take(source.address, now)
        if source.site != source.address:
            self._addresses.take(source.site, now)

    def give_back(self, source: Source, now: float) -> None:
        """The guess that has begun was not made, or was right."""
        if source.of_pair:
            self._pairs.give_back(source.pair, now)
        else:
            self._users.give_back(source.user, now)
        self._addresses.give_back(source.address, now)
        if source.site != source.address:
            self._addresses.give_back(source.site, now)

    def right(self, source: Source) -> None:
        """The user gave the right password from that address."""
        self._good[source.pair] = None
        self._good.move_to_end(source.pair)
        if len(self._good) > PAIRS:
            self._good.popitem(last=False)

    def wrong(self, source: Source, now: float) -> None:
        """The guess that has begun was wrong."""
        self._failed[source.site] = now
        self._failed.move_to_end(source.site)
        if len(self._failed) > SITES:
            _, last = self._failed.popitem(last=False)
            self._crowded_until = max(self._crowded_until, last + PEACE)

    def forget(self, now: float) -> None:
        """Forget what does not count any more."""
        for budget in (self._users, self._pairs, self._addresses):
            budget.forget(now)
        while self._failed:
            site = next(iter(self._failed))
            if now - self._failed[site] <= PEACE:
                return
            del self._failed[site]

    def statistics(self) -> tuple[int, int, int, int]:
        """(users, addresses and networks with debts, sites with failures, pairs that were right)."""
        return self._users.statistics(), self._addresses.statistics(), len(self._failed), len(self._good)

    def _used_up(self, budget: Budget, key: str, now: float) -> bool:
        return self._limits_users and budget.used_up(key, now)

    def _never_failed(self, site: str, now: float) -> bool:
        last = self._failed.get(site)
        return now >= self._crowded_until if last is None else now - last > PEACE


def _site(address: str) -> str:
    """The IPv6 /48 of *address*, as `network()` makes it; an IPv4 host is its own site."""
    is_ipv6 = len(address) == 16 and "." not in address
    return address[:SITE_DIGITS] if is_ipv6 else address
