# Why what could be written now is not (group_commit.py): a quick client may make it needless, or more is about to come.
#
# A message for a connected client is held for `store.hold` seconds, or longer where acknowledgements cannot be sooner:
# - by as long as outboxes are held (delivery/flushing.py), as it may not have been sent yet;
# - while the worker is behind with reading, by three times as much;
# - while the worker is busy, by as long as clients took for messages that were stored all the same. A client that
#   answers 10 ms later, or a program with hundreds of clients, gets each message stored and removed: 10 us of a worker
#   that has no time left. Only packs that are stored tell of this, so a message that is done in time costs nothing.
#   Clients that take longer than LONGEST_HOLD make holds shorter again.
# A worker that is not busy stores what takes longer than `store.hold`: publishers of distant clients would wait for
# them.
#
# A queue that gets two messages in one transaction costs hardly more than with one: its command takes the server 1 us,
# and packing it the worker another. So a message for hundreds of queues that comes while a transaction is under way
# waits for the next ones after the answer, too: from when it came for as long as the last transaction took. Publishers
# that were answered send the next ones together, so after a transaction with several such messages the first of those
# waits for the others, for half as long at most. With a publisher that waits for each answer there is nothing to wait
# for: nothing is under way when it publishes, and there was one message before.
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.store.durable.writer import Writer

GATHERED: Final = 0.01  # seconds at most that a message for so many waits for others
BEHIND: Final = 3.0  # a hold lasts longer by so many times what the worker is behind with reading
LONGEST_HOLD: Final = 0.05  # seconds that it may last longer, beside the time that outboxes are held
BUSY: Final = 0.5  # share of the time that the worker works, from which on it has no time to store what is removed soon
SMOOTHING: Final = 1 / 16
NEVER: Final = float("inf")


def _zero() -> float:
    return 0.0


class Holds:
    """The writers that may write later, until what they have to write is due."""

    def __init__(
        self,
        seconds: float,
        read_up_to: Callable[[], float] | None = None,
        share: Callable[[], float] = _zero,
        outbox_hold: Callable[[], float] = _zero,
    ) -> None:
        """*read_up_to*: see `Reactor.read_up_to()`; None: reading is never behind. *share*: of the time, in which the
        worker works lately. *outbox_hold*: seconds for which outboxes may be held now.
        """
        self.read_up_to = read_up_to
        self._seconds = seconds
        self._share = share
        self._outbox_hold = outbox_hold
        self._held: deque[tuple[float, list[Writer]]] = deque()  # in the order in which they are due
        self._new: list[Writer] = []  # since the last tick
        self._new_at = 0.0  # when the last of those came
        self._longer = 0.0  # seconds by which each hold is longer now
        self.answers = 0.0  # seconds by which clients answer later, of those that answer within LONGEST_HOLD

    def add(self, writer: Writer, now: float) -> None:
        """Hold *writer*, which is not held."""
        writer.held = True
        self._new.append(writer)
        self._new_at = now

    def is_empty(self) -> bool:
        return not self._held and not self._new

    def due(self) -> float:
        """When the first hold is over. What came since the last call is due at the same time."""
        if self._new:
            self._held.append((self._new_at + self._seconds, self._new))
            self._new = []
        return self._held[0][0] + self._longer if self._held else NEVER

    def take_due(self, now: float) -> list[Writer]:
        """End the holds that are over; returns their writers."""
        due: list[Writer] = []
        if self.is_empty():
            return due
        self._longer = self._extension(now)
        held = self._held
        while self.due() <= now:
            for writer in held.popleft()[1]:
                writer.held = False
                due.append(writer)
        return due

    def removed(self, seconds: float) -> None:
        """Something that was stored as its hold was over is removed, *seconds* after it was stored."""
        if seconds < LONGEST_HOLD:
            self.answers = min(LONGEST_HOLD, self.answers + SMOOTHING * seconds)
        else:
            self.answers -= SMOOTHING * self.answers

    def _extension(self, now: float) -> float:
        """Seconds by which holds are longer now.

        While the worker is behind with reading, acknowledgements that came in time wait in sockets, and clients that
        get what a long round brings at once answer later. What was stored then would be removed a moment later: of 200
        clients that keep a worker busy, two thirds of the messages.
        """
        if self._seconds == 0.0:
            return 0.0
        longer = 0.0
        if self.read_up_to is not None:
            longer = BEHIND * (now - self.read_up_to())
        if longer < self.answers and self._share() >= BUSY:
            longer = self.answers
        return min(LONGEST_HOLD, longer) + self._outbox_hold()


class Gathering:
    """Until when the next transaction waits for further messages for hundreds of queues."""

    def __init__(self) -> None:
        self.until = 0.0  # 0.0: it does not wait
        self._took = 0.0  # seconds from when the last transaction was sent to its answer, or GATHERED
        self._further_until = 0.0  # until then, publishers that were answered with it send further messages
        self._messages = 0  # for hundreds of queues, since the last one was sent
        self._before = 0  # and in the last one

    def message(self, under_way: bool, now: float) -> None:
        """Hundreds of queues get a message. *under_way*: a transaction is."""
        self._messages += 1
        if self.until:
            return
        if under_way:
            self.until = now + self._took
        elif self._before > 1 and now < self._further_until:
            self.until = self._further_until

    def sent(self) -> None:
        """A transaction leaves with all messages."""
        self._before, self._messages = self._messages, 0

    def answered(self, seconds: float, now: float) -> None:
        """The transaction under way is carried out, *seconds* after it was sent for the first time."""
        self._took = min(seconds, GATHERED)
        self._further_until = now + self._took / 2

    def go_on(self) -> None:
        """Let the messages that are already waiting wait for those of publishers that were answered just now."""
        if self.until:
            self.until = max(self.until, self._further_until)
