# Who waits for one gate.
#
# When there is room again those with more credits go first, in a few classes, and within a class who came first; only
# as many as there is room for, or all would come to wait again. Each has a turn, which is an equal part of the room:
# else who floods would fill it at the head of all who were woken with it, and they would go back to the end. Who waits
# for credits stands apart: it goes when it can afford its publish, or when the resource has so little to do that
# holding it back helps nobody.
from collections import OrderedDict
from typing import Final

from broker.config.schema import Overload
from broker.overload.credits import Account, Ledger
from broker.overload.gate import Gate

RICHER: Final = 4  # classes of those with credits, by their share of the cap
POOR: Final = 0  # the class of those without
ANY: Final = 1 << 30
SLOT: Final = 0.01  # seconds: times are kept so exactly; at 100 ms, all who wait for credits would come in waves


class WaitEntry:
    def __init__(self, connection: object, account: Account, deadline: int) -> None:
        self.connection = connection
        self.account = account
        self.place = POOR
        self.deadline = deadline  # slot
        self.affords = 0  # slot, while it is poor


class TimeSlots:
    """Who has something to come at which time. Adding and removing take no longer for many than for few."""

    def __init__(self) -> None:
        self._slots: dict[int, dict[object, None]] = {}
        self._first = 0  # nobody is in a slot before it

    def add(self, slot: int, connection: object) -> None:
        if not self._slots or slot < self._first:
            self._first = slot
        self._slots.setdefault(slot, {})[connection] = None

    def remove(self, slot: int, connection: object) -> None:
        same = self._slots.get(slot)
        if same is not None:
            same.pop(connection, None)
            if not same:
                del self._slots[slot]

    def empty(self) -> bool:
        return not self._slots

    def take(self, slot: int) -> list[object]:
        """All until *slot*, the earliest first, who are in there no more."""
        found: list[object] = []
        while self._slots and self._first <= slot:
            found += self._slots.pop(self._first, {})
            self._first += 1
        return found


class WaitList:
    def __init__(self, settings: Overload, ledger: Ledger) -> None:
        self._wait = settings.wait
        self._ledger = ledger
        self._all: dict[object, WaitEntry] = {}
        self._classes: list[OrderedDict[object, None]] = [OrderedDict() for _ in range(RICHER + 1)]
        self._deadlines = TimeSlots()
        self._affording = TimeSlots()

    def __len__(self) -> int:
        return len(self._all)

    def queued(self) -> bool:
        """Whether somebody here waits for nothing but its turn."""
        return any(self._classes[POOR + 1 :])

    def add(self, connection: object, account: Account, since: float, until: float, now: float) -> None:
        """*connection* waits, since *since*: for the gate if *until* is 0, else for credits, which it has then."""
        self.remove(connection)
        waiter = self._all[connection] = WaitEntry(connection, account, _slot_after(since + self._wait))
        self._deadlines.add(waiter.deadline, connection)
        if until:
            waiter.affords = _slot_after(until)
            self._affording.add(waiter.affords, connection)
            self._classes[POOR][connection] = None
        else:
            self._place(waiter, now)

    def remove(self, connection: object) -> bool:
        """It does not wait any more; whether it did."""
        waiter = self._all.pop(connection, None)
        if waiter is None:
            return False
        del self._classes[waiter.place][connection]
        self._deadlines.remove(waiter.deadline, connection)
        if waiter.place == POOR:
            self._affording.remove(waiter.affords, connection)
        return True

    def wake(self, room: int, idle: int, now: float) -> list[object]:
        """Those whose turn it is, and who wait no more: *room* is for those with credits, *idle* of it for all."""
        for connection in self._affording.take(int(now / SLOT)):
            waiter = self._all[connection]
            del self._classes[POOR][connection]
            self._place(waiter, now)
        woken: list[object] = []
        for place in range(RICHER, POOR, -1):
            self._wake(woken, place, room)
        self._wake(woken, POOR, min(room, idle))
        return woken

    def remove_all(self) -> list[object]:
        """All of them, who wait no more."""
        found = list(self._all)
        for connection in found:
            self.remove(connection)
        return found

    def expired(self, now: float) -> list[object]:
        """Those who have waited for as long as anybody may, and wait no more."""
        found = self._deadlines.take(int(now / SLOT))
        for connection in found:
            self.remove(connection)
        return found

    def _place(self, waiter: WaitEntry, now: float) -> None:
        """Among those with credits, by how many."""
        share = waiter.account.balance(self._ledger, now) / self._ledger.cap
        waiter.place = max(1, min(RICHER, 1 + int(share * RICHER)))
        self._classes[waiter.place][waiter.connection] = None

    def _wake(self, woken: list[object], place: int, most: int) -> None:
        """Add those of the class *place* to *woken*, until that are *most*."""
        same = self._classes[place]
        while same and len(woken) < most:
            connection = next(iter(same))
            woken.append(connection)
            self.remove(connection)


def of_gate(waiting: WaitList, gate: Gate, now: float) -> list[object]:
    """Of those who wait for *gate* the ones whose turn has come, or whose time is over; they wait no more."""
    room = gate.room() if gate.open else 0
    return waiting.expired(now) + waiting.wake(room, gate.idle_room(), now)


def give_turns(waiting: WaitList, gate: Gate, woken: int) -> int:
    """So many publishes each of the *woken* has before it waits again; who waits alone may fill the gate."""
    gate.let_in_turns(woken > 1 or waiting.queued())
    return max(1, gate.room() // max(1, woken))


def of_credits(waiting: WaitList, contended: bool, now: float) -> list[object]:
    """The same of those who wait for nothing but credits, while what they need is *contended*."""
    return waiting.expired(now) + waiting.wake(ANY, 0 if contended else ANY, now)


def _slot_after(time: float) -> int:
    return int(time / SLOT) + 1
