# The queue of TLS handshakes: whose step a thread does next.
#
# A handshake takes about a millisecond of a core, so not all of a flood of them can be served. The newest is served
# first: its client waits for an answer, and the oldest are those whose clients have given up. Steps that end a
# handshake go before those that begin one, as the costly part of theirs is done. A connection that ends leaves the
# queue. It is bounded: when it is full, the oldest handshake gives its place to the newest.
# The threads are not those that hash passwords: neither flood delays the other.
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final

from broker.net.offload import Offload

UNDER_WAY: Final = 2  # steps that threads were given
WAITING: Final = 4000  # handshakes: as many as two threads do until the clients that wait give up


class HandshakeStep:
    """A step of the handshake of one connection."""

    def __init__(self, work: Callable[[], object], first: bool) -> None:
        """*work* is done in a thread. *first*: it begins the handshake."""
        self.work = work
        self.first = first

    def done(self, outcome: object) -> None:
        """*outcome*: what `work` returned or raised."""

    def displaced(self) -> None:
        """The step lost its place in the queue."""
        raise NotImplementedError


class Handshakes:
    def __init__(self, offload: Offload, most: int = WAITING) -> None:
        """At most *most* handshakes wait to begin. The threads of *offload* do nothing else."""
        self._offload = offload
        self._most = most
        self._under_way = 0
        self._beginning: OrderedDict[HandshakeStep, None] = OrderedDict()  # the newest last
        self._ending: OrderedDict[HandshakeStep, None] = OrderedDict()  # the oldest first; each was in the queue before

    def offer(self, step: HandshakeStep) -> None:
        """Do *step* when its turn comes."""
        if not step.first:
            self._ending[step] = None
        else:
            self._beginning[step] = None
        self._go_on()
        if len(self._beginning) > self._most:
            self._beginning.popitem(last=False)[0].displaced()

    def forget(self, step: HandshakeStep) -> None:
        """The connection of *step* has ended: the step is not done if it still waits."""
        waiting = self._beginning if step.first else self._ending
        waiting.pop(step, None)

    def waiting(self) -> int:
        """Steps that wait for a thread."""
        return len(self._beginning) + len(self._ending)

    def _go_on(self) -> None:
        """Give the threads what they have room for."""
        while self._under_way < UNDER_WAY and (self._ending or self._beginning):
            step = self._ending.popitem(last=False)[0] if self._ending else self._beginning.popitem()[0]
            self._under_way += 1
            self._offload.run(step.work, partial(self._done, step))

    def _done(self, step: HandshakeStep, outcome: object) -> None:
        self._under_way -= 1
        self._go_on()
        step.done(outcome)
