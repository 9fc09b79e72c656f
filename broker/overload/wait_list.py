# A wait list: the clients that wait at one gate, or for credits.
#
# When the gate has room, clients with more credits go first, in a few classes, and within a class in the order of their
# arrival. Only as many are woken as there is room for, as the rest would have to wait again. Each woken client has a
# turn, an equal part of the room: a client that floods would otherwise fill the room alone, and the others would go
# back to the end. A turn is bytes, not publishes: with turns of publishes, a client with publishes of 100 bytes would
# wait as long as one that gets 64 KiB through in each turn. A client that waits for credits is in a class of its own:
# it is woken when it can afford its publish, or when the resource is so idle that making it wait helps nobody.
from collections import OrderedDict
from typing import Final

from broker.config.schema import Overload
from broker.overload.credits import Account, Ledger
from broker.overload.gate import Gate

RICHER: Final = 4  # classes of clients with credits, by their share of the cap
POOR: Final = 0  # the class of clients that wait for credits
ANY: Final = 1 << 30
SLOT: Final = 0.01  # seconds, the resolution of times; with 100 ms, clients that wait for credits would come in waves


class WaitEntry:
    def __init__(self, client: object, account: Account, deadline: int) -> None:
        self.client = client
        self.account = account
        self.place = POOR
        self.deadline = deadline  # the slot in which the wait ends
        self.affords = 0  # the slot in which the client can afford its publish, while it is POOR


class TimeSlots:
    """Clients by the time slot in which something is due. Adding and removing take O(1)."""

    def __init__(self) -> None:
        self._slots: dict[int, dict[object, None]] = {}
        self._first = 0  # every slot before it is empty

    def add(self, slot: int, client: object) -> None:
        if not self._slots or slot < self._first:
            self._first = slot
        self._slots.setdefault(slot, {})[client] = None

    def remove(self, slot: int, client: object) -> None:
        same = self._slots.get(slot)
        if same is not None:
            same.pop(client, None)
            if not same:
                del self._slots[slot]

    def empty(self) -> bool:
        return not self._slots

    def take(self, slot: int) -> list[object]:
        """Remove all up to *slot*, and return them, the earliest first."""
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
        """Whether a client waits that has credits."""
        return any(self._classes[POOR + 1 :])

    def add(self, client: object, account: Account, since: float, until: float, now: float) -> None:
        """*client* waits since *since*: for the gate if *until* is 0, else for the credits that it has at *until*."""
        self.remove(client)
        waiter = self._all[client] = WaitEntry(client, account, _slot_after(since + self._wait))
        self._deadlines.add(waiter.deadline, client)
        if until:
            waiter.affords = _slot_after(until)
            self._affording.add(waiter.affords, client)
            self._classes[POOR][client] = None
        else:
            self._place(waiter, now)

    def remove(self, client: object) -> bool:
        """Remove *client*; false if it was not in the list."""
        waiter = self._all.pop(client, None)
        if waiter is None:
            return False
        del self._classes[waiter.place][client]
        self._deadlines.remove(waiter.deadline, client)
        if waiter.place == POOR:
            self._affording.remove(waiter.affords, client)
        return True

    def wake(self, room: int, idle: int, now: float) -> list[object]:
        """Remove and return the clients whose turn it is: at most *room*, and clients without credits up to *idle*."""
        for client in self._affording.take(int(now / SLOT)):
            waiter = self._all[client]
            del self._classes[POOR][client]
            self._place(waiter, now)
        woken: list[object] = []
        for place in range(RICHER, POOR, -1):
            self._wake(woken, place, room)
        self._wake(woken, POOR, min(room, idle))
        return woken

    def remove_all(self) -> list[object]:
        """Remove and return all clients."""
        found = list(self._all)
        for client in found:
            self.remove(client)
        return found

    def expired(self, now: float) -> list[object]:
        """Remove and return the clients whose wait has lasted `overload.wait` seconds."""
        found = self._deadlines.take(int(now / SLOT))
        for client in found:
            self.remove(client)
        return found

    def _place(self, waiter: WaitEntry, now: float) -> None:
        """Put a client into the class of its credits."""
        share = waiter.account.balance(self._ledger, now) / self._ledger.cap
        waiter.place = max(1, min(RICHER, 1 + int(share * RICHER)))
        self._classes[waiter.place][waiter.client] = None

    def _wake(self, woken: list[object], place: int, most: int) -> None:
        """Move clients of the class *place* to *woken*, until *woken* has *most*."""
        same = self._classes[place]
        while same and len(woken) < most:
            client = next(iter(same))
            woken.append(client)
            self.remove(client)


def of_gate(waiting: WaitList, gate: Gate, now: float) -> list[object]:
    """Remove and return the clients at *gate* whose turn has come, or whose wait has lasted too long."""
    return waiting.expired(now) + waiting.wake(gate.places(), gate.idle_room(), now)


def give_turns(waiting: WaitList, gate: Gate, woken: int) -> int:
    """The bytes that each of *woken* clients may publish before it waits again; a single client may fill *gate*."""
    gate.let_in_turns(woken > 1 or waiting.queued())
    return max(1, gate.bytes_room() // max(1, woken))


class CreditWaits:
    """The clients that wait for credits alone, by the contended resources that they need."""

    def __init__(self, settings: Overload, ledger: Ledger) -> None:
        self._settings = settings
        self._ledger = ledger
        self._lists: dict[int, WaitList] = {}

    def __len__(self) -> int:
        return sum([len(waiting) for waiting in self._lists.values()])

    def add(self, client: object, account: Account, since: float, until: float, needed: int, now: float) -> None:
        """*client* waits since *since* for the credits that it has at *until*, as *needed* is contended."""
        waiting = self._lists.get(needed)
        if waiting is None:
            waiting = self._lists[needed] = WaitList(self._settings, self._ledger)
        waiting.add(client, account, since, until, now)

    def remove(self, client: object, needed: int) -> None:
        """Remove *client*, which was added with *needed*, if it still waits."""
        waiting = self._lists.get(needed)
        if waiting is not None:
            waiting.remove(client)

    def take(self, contended: int, now: float) -> list[object]:
        """Remove and return the clients whose turn has come: all, if nothing that they need is *contended* any more."""
        found: list[object] = []
        for needed, waiting in list(self._lists.items()):
            found += waiting.expired(now) + waiting.wake(ANY, 0 if needed & contended else ANY, now)
            if not len(waiting):
                del self._lists[needed]
        return found


def _slot_after(time: float) -> int:
    return int(time / SLOT) + 1
