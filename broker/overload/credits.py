# Credits: how much more a client may publish.
#
# "Client" stands for whom overload.credits_per names: a client id, or all clients of a user or of a tenant that are
# connected to this worker. Credits that several share stay at their worker when one of them moves.
#
# All clients are granted the same credits, all the time, at a rate that falls as the level rises. So the ledger keeps
# one running total of what has been granted, and an account keeps one number: the total at which its balance would be
# 0. The balance is what has been granted since, up to the cap. No loop over clients is needed.
#
# The level counts in tenths, by a table made at the start, so a replay of a trace computes equal values to the last
# bit.
#
# At level 0 credits are not enforced: a publish only adds to `spent`, and whatever reads the account next subtracts it.
# So a client that was quiet for long and then spends much can look richer than it is by that amount, up to the cap.
# Refused publishes, replays and wills add to `spent` at any level: no verdict depends on whether the client can afford
# them, so they may use up its credits and leave no debt.
import math
from collections import OrderedDict
from typing import Final

from broker.config.schema import Overload
from broker.config.tenants import TenantRule

TICK: Final = 0.2  # seconds; the table says what is granted in each
ROWS_A_LEVEL: Final = 10
ROWS: Final = 101  # levels 0.0, 0.1, ... 10.0
BUCKETS: Final = 1024  # of the largest cap, to count the accounts below the cap; the least cap is 20 of them
REST: Final = 0.05  # seconds that a wait lasts at least: several publishes at once cost less each than one by one
ROUNDING: Final = 0.001  # seconds that are added to a time, so that rounding does not make it too early
NOWHERE: Final = -1 << 60  # the bucket of an account that is not counted
UNKNOWN: Final = math.inf  # the balance of a client that was never here: the cap applies


def refills(table: tuple[int, ...]) -> list[float]:
    """Credits per 200 ms at the levels 0.0, 0.1, ... 10.0, interpolated geometrically from *table*."""
    rows: list[float] = []
    for row in range(ROWS):
        level = min(row // ROWS_A_LEVEL, len(table) - 2)
        part = (row - level * ROWS_A_LEVEL) / ROWS_A_LEVEL
        # The last bits of a power differ between mathematics libraries; rounding removes the difference.
        rows.append(round(float(table[level]) * (float(table[level + 1]) / float(table[level])) ** part, 3))
    return rows


class Ledger:
    """What every client has been granted until now, and the cap of what it may save."""

    def __init__(self, settings: Overload, now: float) -> None:
        self._refills = refills(settings.refill)
        self._most = float(settings.cap)
        self._cap_refills = float(settings.cap_refills)
        self._least = float(settings.cap_least)
        self._granted = 0.0  # until `_since`
        self._since = now
        self._width = self._most / BUCKETS
        self._counts: dict[
            int, int
        ] = {}  # accounts by the bucket of their zero, without those that are full at any cap
        self.enforcing = False  # the level is above 0
        self.level = 0.0
        self.refill = self._refills[0]  # credits each 200 ms
        self.cap = self._most

    def change(self, level: float, now: float) -> None:
        """Apply *level*, 0 to 10, from now on."""
        self._granted = self.granted(now)
        self._since = now
        self.level = level
        self.enforcing = level > 0.0
        self.refill = self._refills[int(level * ROWS_A_LEVEL + 0.5)]
        self.cap = self._most
        if self.enforcing:
            self.cap = min(self._most, max(self._least, self._cap_refills * self.refill))
        if len(self._counts) > 2 * BUCKETS:
            self._forget_full()

    def granted(self, now: float) -> float:
        """Credits that a client which was always here has been granted until *now*."""
        return self._granted + (now - self._since) * (self.refill / TICK)

    def using(self, now: float) -> tuple[int, float]:
        """(clients whose balance is below the cap, the sum of their balances), to a thousandth of the largest cap.

        What was spent at level 0 counts once it was subtracted from the account.
        """
        granted = self.granted(now)
        clients = 0
        balances = 0.0
        for bucket, count in self._counts.items():
            balance = granted - (bucket + 0.5) * self._width
            if balance < self.cap:
                clients += count
                balances += count * balance
        return clients, balances

    def count(self, before: int, zero: float) -> int:
        """Count an account of the bucket *before* by its new *zero*; return its new bucket."""
        bucket = int(zero // self._width)
        if bucket != before:
            self.discount(before)
            self._counts[bucket] = self._counts.get(bucket, 0) + 1
        return bucket

    def discount(self, bucket: int) -> None:
        """Stop counting an account of *bucket*."""
        count = self._counts.get(bucket, 0)
        if count > 1:
            self._counts[bucket] = count - 1
        elif count:
            del self._counts[bucket]

    def _forget_full(self) -> None:
        """Stop counting the accounts that are full at any cap."""
        full = int((self._granted - self._most) // self._width)
        self._counts = {bucket: count for bucket, count in self._counts.items() if bucket >= full}

    def state(self) -> tuple[float, float, float]:
        """(granted, since when, level), for `restore()`."""
        return self._granted, self._since, self.level

    def restore(self, granted: float, since: float, level: float) -> None:
        """Take over a `state()` of another ledger."""
        self.change(level, since)
        self._granted = granted


class CreditOwners:
    """Whose credits a client uses, by `overload.credits_per`; *tenant_of* is the rule of the quotas."""

    def __init__(self, credits_per: str, tenant_of: str) -> None:
        self.shared = credits_per != "client"
        self._rule = TenantRule(tenant_of if credits_per == "tenant" else "user") if self.shared else None

    def owner(self, client_id: str, user: str | None) -> str:
        """The name of an account. Anonymous clients have one each, if users share credits."""
        if self._rule is None:
            return client_id
        name = self._rule.tenant(client_id, user)
        return f"client {client_id}" if user is None and self._rule.by_user else f"shared {name}"


class Account:
    """The credits of one client id, or those that several clients share."""

    def __init__(self, client: str, zero: float) -> None:
        self.client = client  # or the name that CreditOwners gives
        self.zero = zero  # the total of grants at which the balance is 0
        self.spent = 0  # without a verdict that asked for credits, and not subtracted yet
        self.bucket = NOWHERE  # where the ledger counts it
        self.connections = 0

    def balance(self, ledger: Ledger, now: float) -> float:
        """Credits, at most the cap; below 0 if the client owes a part of its last publish."""
        granted = ledger.granted(now)
        return granted - self._zero(granted, ledger.cap)

    def passes(self, ledger: Ledger, cost: int, now: float) -> bool:
        """Whether the balance suffices for a publish of *cost* credits; half of the cap suffices for any."""
        return self.balance(ledger, now) >= min(float(cost), ledger.cap / 2)

    def when(self, ledger: Ledger, cost: int, now: float) -> float:
        """When a publish of *cost* that waits is to be tried again: it passes then, if the level does not change.

        *now* if it passes now. A wait lasts REST at least.
        """
        if self.spent:  # subtracted now: at later times it would count as a debt that grants have to pay off
            self.zero = self._zero(ledger.granted(now), ledger.cap)
            self.spent = 0
            self.bucket = ledger.count(self.bucket, self.zero)
        missing = min(float(cost), ledger.cap / 2) - self.balance(ledger, now)
        return now if missing <= 0.0 else now + max(REST, missing * TICK / ledger.refill + ROUNDING)

    def charge(self, ledger: Ledger, cost: int, now: float) -> None:
        """Pay *cost* in full; the balance may fall below 0."""
        self.zero = self._zero(ledger.granted(now), ledger.cap) + cost
        self.spent = 0
        self.bucket = ledger.count(self.bucket, self.zero)

    def charge_idle(self, ledger: Ledger, cost: int, now: float) -> None:
        """Pay for a publish that passed without credits, as its resources were idle: at most the balance."""
        granted = ledger.granted(now)
        zero = self._zero(granted, ledger.cap)
        self.zero = max(zero, min(zero + cost, granted))
        self.spent = 0
        self.bucket = ledger.count(self.bucket, self.zero)

    def follow(self, ledger: Ledger, cost: int, now: float) -> None:
        """Pay for the publishes that followed an accepted one, as `admit.following()` allows."""
        if ledger.enforcing:
            self.charge(ledger, cost, now)
        else:
            self.spent += cost

    def _zero(self, granted: float, cap: float) -> float:
        """`zero` after subtracting `spent`, which leaves no debt, and with the cap applied."""
        zero = self.zero
        if self.spent:
            zero = max(zero, min(zero + self.spent, granted))
        return max(zero, granted - cap)


class Accounts:
    """The accounts of connected clients, and of those that left last, so that reconnecting pays no debt.

    *moving*: an account goes with its client to another worker; false for accounts that clients share.
    """

    def __init__(self, settings: Overload, ledger: Ledger, moving: bool = True) -> None:
        self._moving = moving
        self._most = settings.accounts
        self._ledger = ledger
        self._here: dict[str, Account] = {}
        self._left: OrderedDict[str, Account] = OrderedDict()  # the first to leave first
        self.forgotten = 0  # accounts of clients that left, dropped as there were too many

    def arrive(self, client: str, now: float) -> Account:
        """The account of a client that has connected. A new account has one refill, or at level 0 the full cap."""
        account = self._here.get(client)
        if account is None:
            account = self._left.pop(client, None)
            if account is None:
                ledger = self._ledger
                start = min(ledger.refill, ledger.cap) if ledger.enforcing else ledger.cap
                account = Account(client, ledger.granted(now) - start)
            self._here[client] = account
            account.bucket = self._ledger.count(NOWHERE, account.zero)
        account.connections += 1
        return account

    def leave(self, account: Account) -> None:
        """A connection of the client of *account* has ended."""
        account.connections -= 1
        if account.connections:
            return
        del self._here[account.client]
        self._ledger.discount(account.bucket)
        self._remember(account)

    def spend(self, client: str, cost: int) -> None:
        """Charge *cost* to a client that is here or has left; to nobody if it is not remembered."""
        account = self._here.get(client) or self._left.get(client)
        if account is not None:
            account.spent += cost

    def balance_of(self, client: str, now: float) -> float:
        """The credits of a client that has left, for the worker that it went to; or UNKNOWN."""
        account = self._left.get(client) if self._moving else None
        return UNKNOWN if account is None else account.balance(self._ledger, now)

    def bring(self, client: str, balance: float, now: float) -> None:
        """A client that is about to connect had *balance* credits, perhaps UNKNOWN, at another worker.

        That balance replaces the one of a former visit here: moving back and forth must not gain credits.
        """
        if balance == UNKNOWN or client in self._here or not self._moving:
            return
        self._left.pop(client, None)
        self._remember(Account(client, self._ledger.granted(now) - balance))

    def _remember(self, account: Account) -> None:
        self._left[account.client] = account
        if len(self._left) > self._most:
            self._left.popitem(last=False)
            self.forgotten += 1

    def statistics(self, now: float) -> tuple[int, int, float, int]:
        """(clients here, those below the cap, average balance of all of them, clients remembered that left)."""
        here = len(self._here)
        using, balances = self._ledger.using(now)
        average = (balances + (here - using) * self._ledger.cap) / here if here else 0.0
        return here, using, average, len(self._left)
