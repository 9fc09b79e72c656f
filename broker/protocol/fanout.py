# A publish on its way to its receivers, which can stop anywhere and go on.
#
# Most publishes have few receivers and are delivered on the spot. One with thousands would hold the loop, so it is
# worked on in pieces between other work; meanwhile its publisher is held, so that its messages stay in order
# [MQTT-4.6.0-5], and so do its acknowledgements [MQTT-4.6.0-2], [MQTT-4.6.0-3], each behind the last delivery.
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from broker.metrics.counters import Counters
from broker.net.pauses import Pause
from broker.net.reactor import Reactor
from broker.net.stream import OPEN, Stream
from broker.overload.admit import DROP
from broker.protocol.connection import Connection
from broker.reasons import DropReason
from broker.routing.routes import Group, Route
from broker.routing.shared import SharedGroup
from broker.session.message import Message, SharedMessage
from broker.session.origin import NOWHERE, Origin
from broker.session.run import Run
from broker.session.session import QueueBudget, Session

PAGE: Final = 512  # receivers served between two looks at the clock
SHARED_PAGE: Final = 64  # messages handed to a shared group, where each may look at many members


class Unfinished:
    """Work in pages. *stream*, where it came from, is held until it is done, and is then written *answer*."""

    def __init__(self, answer: bytes) -> None:
        self.stream: Stream | None = None
        self.origin = NOWHERE  # the worker that it came from
        self.answer = answer

    def step(self, now: float) -> bool:
        """Do the next page; false when there is none."""
        raise NotImplementedError


class FanOut(Unfinished):
    """What is left of one publish. It goes to those who were receivers of its route when it began.

    A group keeps the places of its receivers, so a position in it stays right: who leaves leaves a hole, and who comes
    is behind the end. When the route replaces a group we keep the former one: who leaves after that may still be
    served.
    """

    def __init__(
        self,
        route: Route,
        message: Message | None,
        run: Run | None,
        publisher: Session | None,
        answer: bytes,
        counters: Counters,
        crossed: bool = False,
    ) -> None:
        """*crossed*: it was published at another worker, which has chosen a member of each shared subscription."""
        super().__init__(answer)
        self.message = message
        self.run = run
        self.publisher = publisher
        self._counters = counters
        self._groups: list[Group] = list(route.groups)
        self._ends = [len(group.sessions) for group in self._groups]
        self._group = 0
        self._receiver = 0
        self._shared: list[SharedGroup] = [] if crossed else list(route.shared)
        self._messages: list[Message] = []  # for shared groups: each message has a receiver of its own
        if self._shared:
            self._messages = run.messages(b"") if run is not None else [message] if message is not None else []

    def step(self, now: float) -> bool:
        """Serve the next page; false when there was none."""
        room = PAGE
        while room > 0 and self._shared:
            group = self._shared.pop()
            for message in self._messages:
                share(group, message, self.publisher, self._counters, now)
            room -= len(self._messages)
        while room > 0 and self._group < len(self._groups):
            room -= self._serve(self._groups[self._group], self._ends[self._group], room, now)
        return room < PAGE

    def _serve(self, group: Group, end: int, room: int, now: float) -> int:
        """Serve up to *room* further receivers of *group*; how many it were."""
        start = self._receiver
        stop = min(start + room, end)
        if self.run is not None:
            group.deliver_run(self.run, start, stop, self.publisher, now)
        elif self.message is not None:
            group.deliver(self.message, start, stop, self.publisher, now)
        if stop == end:
            self._group += 1
            self._receiver = 0
        else:
            self._receiver = stop
        return stop - start


class HandOver(Unfinished):
    """What waited in a session that has ended, on its way to other members of its shared subscriptions."""

    def __init__(self, messages: list[SharedMessage], budget: QueueBudget, counters: Counters) -> None:
        super().__init__(b"")
        self._messages = messages
        self._messages.reverse()  # the next one last
        self._budget = budget
        self._counters = counters

    def step(self, now: float) -> bool:
        for _ in range(min(SHARED_PAGE, len(self._messages))):
            message = self._messages.pop()
            self._budget.give_back(message)
            if message.expired(now):
                self._counters.dropped(DropReason.EXPIRED, 1)
            elif not cast(SharedGroup, message.group).deliver(message.original, now):
                self._counters.dropped(DropReason.SESSION_ENDED, 1)
        return bool(self._messages)


class Deliveries:
    """Hands publishes to their receivers, at once or in pieces."""

    def __init__(self, reactor: Reactor, counters: Counters, clock: Callable[[], float], origin: Origin) -> None:
        self._origin = origin
        self._reactor = reactor
        self._counters = counters
        self._clock = clock
        self.unfinished: deque[Unfinished] = deque()

    def deliver(
        self,
        route: Route,
        message: Message,
        publisher: Session | None,
        connection: Connection | None,
        answer: bytes,
        now: float,
    ) -> None:
        """Deliver *message* in the whole node, then write *answer* to *connection*."""
        if route.crossing:
            for neighbour in route.neighbours:
                neighbour.offer(message, now)
        self.deliver_here(route, message, publisher, connection, answer, now)

    def deliver_here(
        self,
        route: Route,
        message: Message,
        publisher: Session | None,
        stream: Stream | None,
        answer: bytes,
        now: float,
    ) -> None:
        """Deliver *message* to those who are at this worker, then write *answer* to *stream*."""
        if route.receivers > PAGE:
            self._begin(FanOut(route, message, None, publisher, answer, self._counters), stream)
            return
        for shared in route.shared:
            share(shared, message, publisher, self._counters, now)
        for group in route.groups:
            group.deliver(message, 0, len(group.sessions), publisher, now)
        if answer and stream is not None:
            self._counters.answers_sent += 1
            stream.outbox.answer(answer)
            stream.acknowledged += 1

    def deliver_crossed(self, route: Route, message: Message, stream: Stream, now: float) -> None:
        """Deliver *message*, which came from another worker by *stream*, to those who are here.

        Not to members of shared subscriptions: that worker has chosen one in the whole node, and sends it by itself.
        """
        if route.receivers > PAGE:
            self._begin(FanOut(route, message, None, None, b"", self._counters, True), stream)
            return
        for group in route.groups:
            group.deliver(message, 0, len(group.sessions), None, now)

    def deliver_run(self, route: Route, run: Run, connection: Connection, now: float) -> None:
        """Deliver a run of QoS 0 packets in the whole node."""
        if route.crossing:
            for neighbour in route.neighbours:
                neighbour.offer_run(run)
        publisher = connection.session
        if route.receivers > PAGE:
            self._begin(FanOut(route, None, run, publisher, b"", self._counters), connection)
            return
        if route.shared:
            for message in run.messages(b""):
                for shared in route.shared:
                    share(shared, message, publisher, self._counters, now)
        for group in route.groups:
            group.deliver_run(run, 0, len(group.sessions), publisher, now)

    def deliver_crossed_run(self, route: Route, run: Run, stream: Stream, now: float) -> None:
        """The same as `deliver_crossed()` for a run."""
        if route.receivers > PAGE:
            self._begin(FanOut(route, None, run, None, b"", self._counters, True), stream)
            return
        for group in route.groups:
            group.deliver_run(run, 0, len(group.sessions), None, now)

    def hand_over(self, messages: list[SharedMessage], budget: QueueBudget) -> None:
        """Give *messages*, which still count in *budget*, to other members of their groups, soon."""
        if messages:
            handover = HandOver(messages, budget, self._counters)
            handover.origin = self._origin.here
            self.unfinished.append(handover)

    def work(self, until: float) -> bool:
        """Go on with what is unfinished, the oldest first, by a page at least; true if something is left."""
        unfinished = self.unfinished
        origin = self._origin
        while unfinished:
            now = self._clock()
            origin.worker = unfinished[0].origin
            if not unfinished[0].step(now):
                self._end(unfinished.popleft())
            if now >= until:
                break
        origin.worker = origin.here
        return bool(unfinished)

    def give_up(self) -> Connection | None:
        """Forget the publish that is worked on, which failed; the connection that it came from."""
        if not self.unfinished or isinstance(self.unfinished[0], HandOver):
            return None  # of a hand-over, the message that failed is gone already, and the others may go on
        stream = self.unfinished.popleft().stream
        if isinstance(stream, Connection):
            return stream
        if stream is not None:  # another worker's: its other messages are not to blame
            self._reactor.resume(stream, Pause.FANOUT)
        return None

    def _begin(self, fanout: FanOut, stream: Stream | None) -> None:
        fanout.stream = stream
        fanout.origin = self._origin.worker
        self.unfinished.append(fanout)
        if stream is not None:
            self._reactor.pause(stream, Pause.FANOUT)

    def _end(self, work: Unfinished) -> None:
        stream = work.stream
        if stream is not None and stream.state == OPEN:
            if work.answer:
                self._counters.answers_sent += 1
                stream.outbox.answer(work.answer)
                self._reactor.latencies.add(self._clock() - stream.read_at, 1)
            self._reactor.resume(stream, Pause.FANOUT)


def share(group: SharedGroup, message: Message, publisher: Session | None, counters: Counters, now: float) -> None:
    """One member of *group* gets *message*, of *publisher*, who may ask why nobody did."""
    if not group.deliver(message, now):
        counters.dropped(DropReason.NO_SHARED_MEMBER, 1)
        if publisher is not None:
            publisher.note(DROP, DropReason.NO_SHARED_MEMBER.label, now)
