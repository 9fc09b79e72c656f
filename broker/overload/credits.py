# Credits: how much more a client may publish.
#
# All clients are granted the same, all the time, at a rate that falls as the level rises. So the ledger keeps one
# running total of what has been granted, and an account one number: the total at which its balance would have been 0.
# What has been granted since is its balance, up to the cap. Nobody loops over clients, whatever happens.
#
# The level counts to a tenth, by a table made at the start, so whoever replays a trace gets the same to the last bit.
#
# At level 0 nobody is held back: `spent += cost` is all that a publish does, and whoever looks at the account next
# takes it in. A client that was quiet for long and then spends much can look richer than it is by that, up to the cap.
import math
from collections import OrderedDict
from typing import Final

from broker.config.schema import Overload

TICK: Final = 0.2  # seconds; the table grants so much in each
ROWS_A_LEVEL: Final = 10
ROWS: Final = 101  # levels 0.0, 0.1, ... 10.0
BUCKETS: Final = 1024  # of the largest cap, for counting who is below it: the least cap is 20 of them
REST: Final = 0.05  # seconds: who waits comes back for several publishes at once, which cost less each than one by one
ROUNDING: Final = 0.001  # seconds: what is promised for a time holds then, however it was rounded
NOWHERE: Final = -1 << 60  # no bucket
UNKNOWN: Final = math.inf  # what a client has left that was never here: nothing keeps it from having all it may


def refills(table: tuple[int, ...]) -> list[float]:
    """Credits each 200 ms at the levels 0.0, 0.1, ... 10.0: between those of *table* in equal ratios."""
    rows: list[float] = []
    for row in range(ROWS):
        level = min(row // ROWS_A_LEVEL, len(table) - 2)
        part = (row - level * ROWS_A_LEVEL) / ROWS_A_LEVEL
        # Powers are the mathematics library's, and those differ in their last bits: rounded, they agree.
        rows.append(round(float(table[level]) * (float(table[level + 1]) / float(table[level])) ** part, 3))
    return rows


class Ledger:
    """What every client has been granted until now, and what may be saved of it."""

    def __init__(self, settings: Overload, now: float) -> None:
        self._refills = refills(settings.refill)
        self._most = float(settings.cap)
        self._cap_refills = float(settings.cap_refills)
        self._least = float(settings.cap_least)
        self._granted = 0.0  # until `_since`
        self._since = now
        self._width = self._most / BUCKETS
        self._counts: dict[int, int] = {}  # accounts by the bucket of their zero, as far as they may be below a cap
        self.enforcing = False  # the level is above 0
        self.level = 0.0
        self.refill = self._refills[0]  # credits each 200 ms
        self.cap = self._most

    def change(self, level: float, now: float) -> None:
        """*level*, 0 to 10, is in force from now on."""
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
        """Credits that a client which was always here has been granted."""
        return self._granted + (now - self._since) * (self.refill / TICK)

    def using(self, now: float) -> tuple[int, float]:
        """(clients whose balance is below the cap, what they have together), to a thousandth of the largest cap.

        What was spent at level 0 shows when it was taken in.
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
        """An account that stood in the bucket *before* has this *zero* now: its new bucket."""
        bucket = int(zero // self._width)
        if bucket != before:
            self.discount(before)
            self._counts[bucket] = self._counts.get(bucket, 0) + 1
        return bucket

    def discount(self, bucket: int) -> None:
        """An account of *bucket* is gone."""
        count = self._counts.get(bucket, 0)
        if count > 1:
            self._counts[bucket] = count - 1
        elif count:
            del self._counts[bucket]

    def _forget_full(self) -> None:
        """Those who are full whatever cap comes are not counted."""
        full = int((self._granted - self._most) // self._width)
        self._counts = {bucket: count for bucket, count in self._counts.items() if bucket >= full}

    def state(self) -> tuple[float, float, float]:
        """(granted, since when, level): what the next change or balance goes by."""
        return self._granted, self._since, self.level

    def restore(self, granted: float, since: float, level: float) -> None:
        """Go on from a `state()`."""
        self.change(level, since)
        self._granted = granted


class Account:
    """The credits of one client id."""

    def __init__(self, client: str, zero: float) -> None:
        self.client = client
        self.zero = zero  # what had been granted when the balance was 0, or will have been
        self.spent = 0  # at level 0, and not taken in yet
        self.bucket = NOWHERE  # where the ledger counts it
        self.connections = 0

    def balance(self, ledger: Ledger, now: float) -> float:
        """Credits, at most the cap in force; below 0 for who owes a part of its last publish."""
        granted = ledger.granted(now)
        return granted - self._zero(granted, ledger.cap)

    def passes(self, ledger: Ledger, cost: int, now: float) -> bool:
        """Whether a publish of *cost* credits may pass: with the balance for it, or half of what may be saved."""
        return self.balance(ledger, now) >= min(float(cost), ledger.cap / 2)

    def when(self, ledger: Ledger, cost: int, now: float) -> float:
        """When a publish of *cost* that waits is tried again: it passes, should the level stay; *now* if it does now.

        It could pass a little earlier: nobody rests for less than REST.
        """
        missing = min(float(cost), ledger.cap / 2) - self.balance(ledger, now)
        return now if missing <= 0.0 else now + max(REST, missing * TICK / ledger.refill + ROUNDING)

    def charge(self, ledger: Ledger, cost: int, now: float) -> None:
        """Pay for a publish that passed, in full: it may owe a part of one afterwards."""
        self.zero = self._zero(ledger.granted(now), ledger.cap) + cost
        self.spent = 0
        self.bucket = ledger.count(self.bucket, self.zero)

    def charge_idle(self, ledger: Ledger, cost: int, now: float) -> None:
        """Pay for a publish that was let on because there is room for all: with what there is, if that is less."""
        granted = ledger.granted(now)
        zero = self._zero(granted, ledger.cap)
        self.zero = max(zero, min(zero + cost, granted))
        self.spent = 0
        self.bucket = ledger.count(self.bucket, self.zero)

    def follow(self, ledger: Ledger, cost: int, now: float) -> None:
        """Pay for publishes that followed one which passed, and may have as `admit.following()` has it."""
        if ledger.enforcing:
            self.charge(ledger, cost, now)
        else:
            self.spent += cost

    def _zero(self, granted: float, cap: float) -> float:
        """`zero`, with what was spent at level 0, which leaves no debt, and without what exceeds the cap."""
        zero = self.zero
        if self.spent:
            zero = max(zero, min(zero + self.spent, granted))
        return max(zero, granted - cap)


class Accounts:
    """The accounts of all clients here, and of those that left last: who comes back finds its debt again."""

    def __init__(self, settings: Overload, ledger: Ledger) -> None:
        self._most = settings.accounts
        self._ledger = ledger
        self._here: dict[str, Account] = {}
        self._left: OrderedDict[str, Account] = OrderedDict()  # who left first stands first
        self.forgotten = 0  # accounts that made way for those of others

    def arrive(self, client: str, now: float) -> Account:
        """The account of a client that connected; a new one starts with one refill, or full at level 0."""
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
        """A connection of its client ended."""
        account.connections -= 1
        if account.connections:
            return
        del self._here[account.client]
        self._ledger.discount(account.bucket)
        self._remember(account)

    def balance_of(self, client: str, now: float) -> float:
        """The credits of a client that is here no longer, for the worker that it went to; or UNKNOWN."""
        account = self._left.get(client)
        return UNKNOWN if account is None else account.balance(self._ledger, now)

    def bring(self, client: str, balance: float, now: float) -> None:
        """A client that is about to arrive had *balance* credits where it was, which may be UNKNOWN.

        They take the place of what is known here of a former visit, or to go to and fro would be a way to have more.
        """
        if balance == UNKNOWN or client in self._here:
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
