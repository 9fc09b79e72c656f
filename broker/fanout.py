# A publish on its way to its receivers, which can stop anywhere and go on.
#
# Most publishes have few receivers and are delivered on the spot. One with thousands would hold the loop, so it is
# worked on in pieces between other work; meanwhile its publisher is held, so that its messages stay in order and
# its acknowledgement follows the last delivery.
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.connection import Connection
from broker.metrics.counters import Counters
from broker.net.reactor import Reactor
from broker.net.stream import OPEN
from broker.reasons import DropReason
from broker.routing.routes import Group, Route
from broker.session.message import Message
from broker.session.run import Run
from broker.session.session import Session

PAGE: Final = 512  # receivers served between two looks at the clock


class FanOut:
    """What is left of one publish. The groups are those of its route when it began."""

    def __init__(
        self, route: Route, message: Message | None, run: Run | None, publisher: Session | None, answer: bytes
    ) -> None:
        self.groups: list[Group] = list(route.groups)
        self.message = message
        self.run = run
        self.publisher = publisher
        self.answer = answer
        self.connection: Connection | None = None
        self._group = 0
        self._receiver = 0

    def step(self, now: float) -> bool:
        """Serve the next page; false when there is none."""
        if self._group >= len(self.groups):
            return False
        group = self.groups[self._group]
        stop = min(self._receiver + PAGE, len(group.sessions))
        if self.run is not None:
            group.deliver_run(self.run, self._receiver, stop, self.publisher, now)
        elif self.message is not None:
            group.deliver(self.message, self._receiver, stop, self.publisher, now)
        self._receiver = stop
        if stop == len(group.sessions):
            self._group += 1
            self._receiver = 0
        return True


class Deliveries:
    """Hands publishes to their receivers, at once or in pieces."""

    def __init__(self, reactor: Reactor, counters: Counters, clock: Callable[[], float]) -> None:
        self._reactor = reactor
        self._counters = counters
        self._clock = clock
        self.unfinished: deque[FanOut] = deque()

    def deliver(
        self,
        route: Route,
        message: Message,
        publisher: Session | None,
        connection: Connection | None,
        answer: bytes,
        now: float,
    ) -> None:
        """Deliver *message*, then write *answer* to *connection*."""
        if route.shared:
            self._share(route, message, now)
        if route.receivers > PAGE:
            self._begin(FanOut(route, message, None, publisher, answer), connection)
            return
        for group in route.groups:
            group.deliver(message, 0, len(group.sessions), publisher, now)
        if answer and connection is not None:
            self._counters.answers_sent += 1
            connection.outbox.write(answer)

    def deliver_run(self, route: Route, run: Run, connection: Connection, now: float) -> None:
        """Deliver a run of QoS 0 packets."""
        if route.shared:
            for message in run.messages(b""):
                self._share(route, message, now)
        publisher = connection.session
        if route.receivers > PAGE:
            self._begin(FanOut(route, None, run, publisher, b""), connection)
            return
        for group in route.groups:
            group.deliver_run(run, 0, len(group.sessions), publisher, now)

    def work(self, until: float) -> bool:
        """Go on with what is unfinished, the oldest first; true if something is left."""
        unfinished = self.unfinished
        while unfinished:
            now = self._clock()
            if now >= until:
                return True
            if not unfinished[0].step(now):
                self._end(unfinished.popleft())
        return False

    def _begin(self, fanout: FanOut, connection: Connection | None) -> None:
        fanout.connection = connection
        self.unfinished.append(fanout)
        if connection is not None:
            self._reactor.hold(connection)

    def _end(self, fanout: FanOut) -> None:
        connection = fanout.connection
        if connection is not None and connection.state == OPEN:
            if fanout.answer:
                self._counters.answers_sent += 1
                connection.outbox.write(fanout.answer)
            self._reactor.release(connection)

    def _share(self, route: Route, message: Message, now: float) -> None:
        """One member of each group gets *message*."""
        for group in route.shared:
            if not group.deliver(message, now):
                self._counters.dropped(DropReason.NO_SHARED_MEMBER, 1)
