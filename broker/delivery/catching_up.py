# Catching up: what waited for a client while it was away is delivered at a pace, not all at once.
#
# A device that was away for a night is sent its whole queue when it returns, and may drown in it. With
# `delivery.replay_messages` or `delivery.replay_bytes`, or an override of them, the outbox of such a client has a
# `Pace` from its return until nothing waits for it any more: a token bucket for the messages that leave its queue.
# Messages that come meanwhile join the queue behind them, as always when something waits, so the order stays. QoS 0
# does not wait and is not paced; but with `limits.queue_qos0` it joins the queue as well, behind its like. The pace is
# one more thing to ask beside the receive maximum, the room in the outbox and an outgoing quota, and replaces none.
#
# A client whose bucket is empty is in a slot of time, and goes on like a slow reader that has drained: no client has a
# timer of its own, and what leaves in one slot is one send. The bucket begins with one message, and holds no more than
# that and what the rate gives in BURST seconds: one that began full, as those of quotas do, would begin with the flood
# that it is to prevent.
#
# Why not an outgoing quota? It holds for all that a client is sent, for ever; and skips QoS 0 beyond it.
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from broker.delivery.outbox import Outbox
from broker.overload.client import ProtectedClient
from broker.overload.quotas.configured import ConfiguredOverrides
from broker.overload.wait_list import SLOT, TimeSlots

AT_ONCE: Final = 100  # clients that go on in one page
BURST: Final = 0.05  # seconds: slots that come late lose nothing of the rate
ENOUGH: Final = 0.999  # of a message: times are rounded


class ClientPace:
    """The `Pace` of one connected client: so many *messages* and bytes (*size*) a second, 0 for any number."""

    def __init__(self, paces: "Paces", client: ProtectedClient, outbox: Outbox, messages: int, size: int) -> None:
        self.messages = messages
        self.size = size
        self.client = client
        self.outbox = outbox
        self.slot = 0  # of time, in which the client goes on; 0: it does not wait for the pace
        self._paces = paces
        self._room = 1.0  # messages
        self._bytes_room = 0.0  # below 0: the last message was larger than what was left
        self._filled = paces.clock()

    def allows(self) -> bool:
        now = self._paces.clock()
        elapsed, self._filled = now - self._filled, now
        wait = 0.0
        if self.messages:
            self._room = min(self._room + elapsed * self.messages, 1.0 + BURST * self.messages)
            if self._room < ENOUGH:
                wait = (1.0 - self._room) / self.messages
        if self.size:
            self._bytes_room = min(self._bytes_room + elapsed * self.size, BURST * self.size)
            if self._bytes_room < 0.0:
                wait = max(wait, -self._bytes_room / self.size)
        if wait > 0.0:
            self._paces.wait(self, now + wait)
            return False
        return True

    def charge(self, messages: int, size: int) -> None:
        self._room -= messages
        self._bytes_room -= size

    def over(self) -> None:
        self._paces.leave(self.outbox)


class Paces:
    def __init__(
        self,
        messages: int,
        size: int,
        queue_qos0: bool,
        configured: ConfiguredOverrides,
        clock: Callable[[], float],
        soon: Callable[[float], None],
    ) -> None:
        """*messages*, *size*: those of clients without an override. *soon*: has `tick()` called at the given time.

        *queue_qos0*: QoS 0 waits, too, and later QoS 0 must not overtake it: all clients that catch up have a pace.
        """
        self.clock = clock
        self._messages = messages
        self._size = size
        self._queue_qos0 = queue_qos0
        self._configured = configured
        self._soon = soon
        self._waiting = TimeSlots()
        self._due: deque[ClientPace] = deque()  # their clients do not go on yet

    def arrive(self, client: ProtectedClient, outbox: Outbox) -> None:
        """Pace what waits for *client*, which has just connected, if a pace is configured for it."""
        messages, size = self._rates(client)
        if messages or size or self._queue_qos0:
            outbox.set_pace(ClientPace(self, client, outbox, messages, size))

    def change(self, client: ProtectedClient, outbox: Outbox) -> None:
        """The configuration has changed: what still waits for *client* since its return has its new pace, or none."""
        if outbox.pace is not None:
            self.leave(outbox)
            self.arrive(client, outbox)

    def leave(self, outbox: Outbox) -> None:
        """Pace nothing of *outbox* any more."""
        pace = outbox.pace
        if pace is None:
            return
        outbox.end_pace()  # the pace has the outbox: the two would be a cycle
        assert isinstance(pace, ClientPace)
        self._waiting.remove(pace.slot, pace)

    def wait(self, pace: ClientPace, until: float) -> None:
        """Have the client of *pace* go on at about *until*."""
        if not pace.slot:
            pace.slot = int(until / SLOT) + 1
            self._waiting.add(pace.slot, pace)
            self._soon(pace.slot * SLOT)

    def tick(self, now: float) -> float:
        """Have the clients go on whose time has come; return when to look again."""
        if not self._waiting.empty():
            for pace in self._waiting.take(int(now / SLOT)):
                assert isinstance(pace, ClientPace)
                pace.slot = 0
                self._due.append(pace)
        for _ in range(min(AT_ONCE, len(self._due))):
            pace = self._due.popleft()
            if pace.outbox.pace is pace and not pace.outbox.full:  # a full outbox reports that it has drained
                pace.client.writable(now)
        if self._due:
            return now
        return inf if self._waiting.empty() else now + SLOT

    def _rates(self, client: ProtectedClient) -> tuple[int, int]:
        override = self._configured.find(client.client_id, client.user)
        messages = size = None
        if override is not None:
            messages, size = override.table.replay_messages, override.table.replay_bytes
        return self._messages if messages is None else messages, self._size if size is None else size
