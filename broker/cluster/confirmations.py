# Confirmations: a publish that has durable receivers at another worker is acknowledged when they are done with it.
#
# A worker reports the filters of its durable subscribers beside those of all (GAINED_DURABLE), and in which groups of
# shared subscriptions it has durable members. For a topic that one of them matches, and for such a group, the other
# workers use a `ConfirmingPeer` instead of the peer: behind each publish of QoS 1 or 2 it
# writes CONFIRM, and the publish waits until the peer says, in SETTLED, that all receivers there are done with it: at
# once if none of them needs time. Nothing waits for receivers in memory alone.
#
# The publishes of a lane that are to be confirmed have numbers from 1 on. They are confirmed in any order: one that
# waits for a slow store does not hold back one whose receiver has acknowledged it.
#
# A publish that waits long for cold sessions there takes no room at the gate of the store any more: the peer says so,
# in LONG, and its publisher waits for it instead of all that publish for that store.
#
# For which topics there are APPLICATION sessions there is not known here. So a publish for one passes the gate of the
# store; the peer says at once, in LOGGED, that it is being appended to a log, and it is under way at the gate of that
# log from then on. Where that has no more room, the publisher waits for its answer: a slow log stops nobody who
# publishes for the store alone. The road not taken is to tell filters of APPLICATION sessions by themselves, as those
# of durable ones are, for publishers to wait before the publish: a second kind of confirming neighbour, for one publish
# of each connection.
#
# If the peer dies, nobody knows what it has stored; or it says itself, in UNSETTLED, that a session was taken from it
# before it had stored a publish. The publishers that wait for that are not answered: their connections are closed, and
# they publish again.
from collections.abc import Callable
from typing import Final

from broker.cluster import wire
from broker.delivery.completion import Completion, CompletionListener
from broker.delivery.outbox import Outbox
from broker.overload.gate import NONE, Gate
from broker.routing.neighbour import Neighbour
from broker.session.message import Message
from broker.session.run import Run

CONFIRM: Final = bytes((wire.CONFIRM,))


class Unconfirmed:
    """A publish of *size* bytes that was written at the time *at*."""

    def __init__(self, completion: Completion, size: int, at: float) -> None:
        self.completion = completion
        self.size = size
        self.at = at
        self.gated = True  # it is under way at the gate of the store
        self.logged = False  # it is being appended to a log there
        self.log_gated = False  # it is under way at the gate of the log


class ConfirmingPeer(Neighbour):
    """*peer*, for topics with durable receivers there."""

    def __init__(
        self, peer: Neighbour, write: Callable[[bytes], None], store: Gate | None, log: Gate | None = None
    ) -> None:
        """*write* appends to the data lane of *peer*. *store*: the gate of publishes that are to be confirmed. *log*:
        that of those of them that are being appended to a log there.
        """
        super().__init__(peer.worker, peer.gate, True, store)
        self.filters: dict[bytes, None] = {}  # of durable subscribers there
        self.shared: dict[tuple[bytes, bytes], None] = {}  # (share name, filter) of groups with durable members there
        self.orphaned = False  # the peer is gone, and nobody has adopted its sessions yet
        self.log: Final = log
        self._peer = peer
        self._write = write
        self._number = 0  # of the last publish that is to be confirmed
        self._waiting: dict[int, Unconfirmed] = {}
        self._gated = 0  # publishes of them that are under way at the gate of the store
        self._gated_bytes = 0

    def offer(self, message: Message, now: float) -> None:
        """While the worker is orphaned its gate is closed: only what needs no gate comes, and has to come again."""
        if message.qos:
            self._wait_for(message, now)
        if not self.orphaned:
            if not message.retain:  # then it was written already
                self._write(wire.token(message))
            self._peer.offer(message, now)
            if message.qos:
                self._write(CONFIRM)

    def offer_run(self, run: Run) -> None:
        if not self.orphaned:
            self._peer.offer_run(run)

    def offer_from(self, client_id: str) -> None:
        if not self.orphaned:
            self._peer.offer_from(client_id)

    def offer_shared(self, share: bytes, filter: bytes, message: Message, hop: int, now: float) -> None:
        if message.qos:
            self._wait_for(message, now)
            if self.store is not None:
                self.store.take(1, message.size, now)
        if not self.orphaned:  # without its token: messages for a group may come by several lanes, in another order
            self._peer.offer_shared(share, filter, message, hop, now)
            if message.qos:
                self._write(CONFIRM)

    def _wait_for(self, message: Message, now: float) -> None:
        self._number += 1
        self._waiting[self._number] = Unconfirmed(message.hold(), message.size, now)
        self._gated += 1
        self._gated_bytes += message.size

    def settled(self, ranges: list[tuple[int, int]], now: float) -> None:
        """The peer has confirmed the publishes with these numbers."""
        for completion in self.take(ranges, now):
            completion.settle(now)

    def take(self, ranges: list[tuple[int, int]], now: float) -> list[Completion]:
        """Remove the publishes with these numbers from those that wait, and at the gate of the store."""
        numbers = [number for first, count in ranges for number in range(first, first + count)]
        taken = [self._waiting.pop(number) for number in numbers]
        self._pass_gate(taken, now)
        self._leave_log(taken, now)
        return [each.completion for each in taken]

    def are_logged(self, ranges: list[tuple[int, int]], now: float) -> None:
        """The publishes with these numbers are being appended to a log there."""
        numbers = [number for first, count in ranges for number in range(first, first + count)]
        waiting = [self._waiting[number] for number in numbers]
        self._pass_gate(waiting, now)
        log = self.log
        if log is None:
            return
        for each in waiting:
            if not each.logged:
                each.logged = each.log_gated = True
                log.take(1, each.size, each.at)
            if not log.open:
                each.completion.needs_long(log=True)

    def need_long(self, ranges: list[tuple[int, int]], now: float) -> None:
        """The publishes with these numbers wait for what is being read there, or for a log that takes long."""
        numbers = [number for first, count in ranges for number in range(first, first + count)]
        waiting = [self._waiting[number] for number in numbers]
        self._pass_gate(waiting, now)
        self._leave_log(waiting, now)
        for each in waiting:
            each.completion.needs_long(each.logged)

    def _pass_gate(self, publishes: list[Unconfirmed], now: float) -> None:
        passing = [each for each in publishes if each.gated]
        if passing:
            self._gated -= len(passing)
            size = sum([each.size for each in passing])
            self._gated_bytes -= size
            if self.store is not None:
                self.store.done(len(passing), size, now - passing[-1].at, now)
        for each in passing:
            each.gated = False

    def _leave_log(self, publishes: list[Unconfirmed], now: float) -> None:
        leaving = [each for each in publishes if each.log_gated]
        if leaving and self.log is not None:
            self.log.done(len(leaving), sum([each.size for each in leaving]), now - leaving[-1].at, now)
        for each in leaving:
            each.log_gated = False

    def pass_undelivered(self, now: float) -> bool:
        """Tell the gate of the publishes that it has let pass, and that came to nothing; whether there were some.

        So it is of those that were sent again, and of those that were refused. To be called between two publishes.
        """
        store = self.store
        if store is None or store.count <= self._gated:
            return False
        store.done(store.count - self._gated, max(0, store.bytes - self._gated_bytes), NONE, now)
        return True

    def take_all(self) -> list[Completion]:
        """Remove all publishes that wait; the peer is gone."""
        waiting, self._waiting = self._waiting, {}
        self._gated = self._gated_bytes = 0
        return [each.completion for each in waiting.values()]

    def unconfirmed(self) -> list[Completion]:
        """The publishes that wait."""
        return [each.completion for each in self._waiting.values()]

    def pending(self) -> int:
        return len(self._waiting)


class Confirmations:
    """What this worker has to confirm of what came by one lane."""

    def __init__(self, soon: Callable[[], None]) -> None:
        """*soon* is called when there is something to tell."""
        self._soon = soon
        self._number = 0  # of the last publish that is to be confirmed
        self._settled: list[int] = []  # not told yet
        self._abandoned: list[int] = []  # the same
        self._long: list[int] = []  # the same
        self._logged: list[int] = []  # the same

    def add(self, completion: Completion | None) -> None:
        """The next publish is to be confirmed, when *completion* is settled: None: at once.

        It was delivered before, perhaps in another slice: a receiver may have lost it meanwhile.
        """
        self._number += 1
        if completion is not None and completion.abandoned:
            self.abandoned(self._number)
        elif completion is None or completion.pending == 0:
            self.settled(self._number)
        else:
            completion.queue = _Confirmation(self, self._number)
            if completion.logged:
                self._logged.append(self._number)
                self._soon()
            if completion.long:
                self.needs_long(self._number)

    def needs_long(self, number: int) -> None:
        self._long.append(number)
        self._soon()

    def settled(self, number: int) -> None:
        self._settled.append(number)
        self._soon()

    def abandoned(self, number: int) -> None:
        self._abandoned.append(number)
        self._soon()

    def take(self) -> bytes:
        """The frames that tell what was not told yet."""
        kinds = (  # SETTLED and UNSETTLED last, as those that were settled are not known any more then
            (wire.LOGGED, self._logged),
            (wire.LONG, self._long),
            (wire.SETTLED, self._settled),
            (wire.UNSETTLED, self._abandoned),
        )
        self._long, self._logged, self._settled, self._abandoned = [], [], [], []
        return b"".join([wire.settled(kind, sorted(numbers)) for kind, numbers in kinds if numbers])


class _Confirmation(CompletionListener):
    def __init__(self, confirmations: Confirmations, number: int) -> None:
        self._confirmations = confirmations
        self._number = number
        self._told = False  # that it is abandoned: nobody waits for it any more

    def advance(self, now: float) -> None:
        if not self._told:
            self._confirmations.settled(self._number)

    def needs_long(self, log: bool) -> None:
        self._confirmations.needs_long(self._number)

    def abandoned(self, now: float) -> Outbox | None:
        self._told = True
        self._confirmations.abandoned(self._number)
        return None
