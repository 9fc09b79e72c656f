# Fan-out: hands a publish to its receivers, at once or in pages.
#
# Most publishes have few receivers and are delivered at once. A publish with thousands of receivers would hold the
# loop, so it is delivered in pages between other work. Meanwhile the connection that it came by (its *source*, named by
# its outbox) is paused, so that the messages of one publisher stay in order [MQTT-4.6.0-5], and the fan-out holds the
# Completion of the message until its last page, so that the acknowledgement comes behind the last delivery
# [MQTT-4.6.0-2], [MQTT-4.6.0-3].
# Messages that wait for members of shared subscriptions go to members that have become writable in pages, too.
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from broker.delivery.completion import Completion, SourcePause
from broker.delivery.outbox import Outbox
from broker.metrics.counters import Counters
from broker.overload.admit import DROP
from broker.reasons import DropReason
from broker.routing.route import Group, Route
from broker.routing.shared import SharedGroup
from broker.routing.shared_backlog import SharedBacklog
from broker.session.message import Message
from broker.session.origin import Origin
from broker.session.run import Run
from broker.session.session import Session
from broker.worker_id import WorkerId

PAGE: Final = 512  # receivers served between two looks at the clock
SHARED_PAGE: Final = 64  # messages handed to a shared group, where each may look at many members


class PagedWork:
    """Work that is done in pages."""

    def __init__(self, origin: WorkerId) -> None:
        self.origin = origin  # the worker that the messages come from

    def step(self, now: float) -> bool:
        """Do the next page; false if there was none."""
        raise NotImplementedError


class PagedPublish(PagedWork):
    """A publish, or a run of them, that is delivered in pages to those who were receivers when it began.

    The groups of a route keep the places of their receivers, so a position in a group stays right: a receiver that
    leaves leaves a hole, and new receivers are added behind the end. If the route replaces a group, the former group
    is served, with receivers that left after that.

    Cold sessions are offered the message at once, as they may be warm when their turn would come. No session may become
    cold that is to get such a message (`Deliveries.topics_in_pages()`): it would leave a hole, and not get it.
    """

    def __init__(
        self,
        route: Route,
        message: Message | None,
        run: Run | None,
        publisher: Session | None,
        source: Outbox | None,
        crossed: bool,
        origin: WorkerId,
        counters: Counters,
        now: float,
    ) -> None:
        """*crossed*: it was published at another worker, which has chosen a member of each shared subscription."""
        super().__init__(origin)
        self.source = source
        self.crossed = crossed
        self.finished = False  # all receivers have it, or it has failed
        self.completion = None if message is None else message.hold()
        self._message = message
        self._run = run
        self._publisher = publisher
        self._counters = counters
        self._groups: list[Group] = list(route.groups)
        cold = route.cold
        if cold is not None:
            self._groups.remove(cold)
            if message is not None:
                cold.deliver(message, 0, 0, publisher, now)
        self._ends = [len(group.sessions) for group in self._groups]
        self._group = 0
        self._receiver = 0
        self._shared: list[SharedGroup] = [] if crossed else list(route.shared)
        self._messages: list[Message] = []  # for shared groups: each message has a receiver of its own
        if self._shared:
            self._messages = run.messages(b"") if run is not None else [message] if message is not None else []

    def topic(self) -> bytes:
        """The topic of a message of QoS 1 or 2; otherwise it is empty."""
        return b"" if self._message is None or self._message.qos == 0 else self._message.topic

    def step(self, now: float) -> bool:
        room = PAGE
        while room > 0 and self._shared:
            group = self._shared.pop()
            for message in self._messages:
                share(group, message, self._publisher, self._counters, now)
            room -= len(self._messages)
        while room > 0 and self._group < len(self._groups):
            room -= self._serve(self._groups[self._group], self._ends[self._group], room, now)
        return room < PAGE

    def _serve(self, group: Group, end: int, room: int, now: float) -> int:
        """Serve up to *room* further receivers of *group*; return how many."""
        start = self._receiver
        stop = min(start + room, end)
        if self._run is not None:
            group.deliver_run(self._run, start, stop, self._publisher, now)
        elif self._message is not None:
            group.deliver(self._message, start, stop, self._publisher, now)
        if stop == end:
            self._group += 1
            self._receiver = 0
        else:
            self._receiver = stop
        return stop - start


class SharedDelivery(PagedWork):
    """Delivers messages that wait for shared subscriptions, as far as members are writable, a page of each group."""

    def __init__(self, backlog: SharedBacklog, unfinished: deque[PagedWork], here: WorkerId) -> None:
        super().__init__(here)
        self._backlog = backlog
        self._unfinished = unfinished

    def begin(self) -> None:
        self._unfinished.append(self)

    def step(self, now: float) -> bool:
        backlog = self._backlog
        session = backlog.next_session()
        if session is not None:
            for group, subscription in backlog.memberships(session):
                cast(SharedGroup, group).may_be_ready(subscription)
            return True
        due = backlog.next_group()
        if due is None:
            backlog.scheduled = False
            return False
        group = cast(SharedGroup, due)
        if group.deliver_waiting(SHARED_PAGE, now) == SHARED_PAGE and group.waiting():
            group.retry()
        self._unfinished.append(self)  # behind other work
        return False


class Deliveries:
    """Hands publishes to their receivers, at once or in pages."""

    def __init__(
        self,
        source_pause: SourcePause,
        counters: Counters,
        clock: Callable[[], float],
        origin: Origin,
        backlog: SharedBacklog,
    ) -> None:
        self.unfinished: deque[PagedWork] = deque()
        self._source_pause = source_pause
        self._counters = counters
        self._clock = clock
        self._origin = origin
        self._shared_delivery = SharedDelivery(backlog, self.unfinished, origin.here)
        backlog.begin = self._shared_delivery.begin

    def deliver(
        self, route: Route, message: Message, publisher: Session | None, source: Outbox | None, now: float
    ) -> Completion | None:
        """Deliver *message* in the whole node; None if all receivers are done with it."""
        if route.crossing:
            for neighbour in route.neighbours:
                neighbour.offer(message, now)
            if route.logs is not None and message.qos:
                for log in route.logs:
                    log.append(message, now)
        if route.receivers > PAGE:
            self._begin(route, message, None, publisher, source, False)
        else:
            for shared in route.shared:
                share(shared, message, publisher, self._counters, now)
            for group in route.groups:
                group.deliver(message, 0, len(group.sessions), publisher, now)
        return message.completion

    def deliver_here(self, route: Route, message: Message, now: float) -> None:
        """Deliver *message*, which the broker itself publishes at each worker, to the receivers at this worker."""
        if route.receivers > PAGE:
            self._begin(route, message, None, None, None, False)
            return
        for shared in route.shared:
            share(shared, message, None, self._counters, now)
        for group in route.groups:
            group.deliver(message, 0, len(group.sessions), None, now)

    def deliver_run(self, route: Route, run: Run, publisher: Session | None, source: Outbox | None, now: float) -> None:
        """Deliver a run of QoS 0 packets in the whole node."""
        if route.crossing:
            for neighbour in route.neighbours:
                neighbour.offer_run(run)
        if route.receivers > PAGE:
            self._begin(route, None, run, publisher, source, False)
            return
        if route.shared:
            for message in run.messages(b""):
                for shared in route.shared:
                    share(shared, message, publisher, self._counters, now)
        for group in route.groups:
            group.deliver_run(run, 0, len(group.sessions), publisher, now)

    def deliver_crossed(
        self, route: Route, message: Message, source: Outbox, now: float, publisher: Session | None = None
    ) -> Completion | None:
        """Deliver *message*, which came from another worker by the lane *source*, to the receivers at this worker.

        Members of shared subscriptions are none of them: that worker has chosen one in the whole node, and sends the
        message for it by itself. *publisher*: None if it is not at this worker, as that of most messages is not.
        """
        if route.receivers > PAGE:
            self._begin(route, message, None, publisher, source, True)
        else:
            for group in route.groups:
                group.deliver(message, 0, len(group.sessions), publisher, now)
        return message.completion

    def deliver_crossed_run(self, route: Route, run: Run, source: Outbox, now: float) -> None:
        """Deliver a run that came from another worker, as `deliver_crossed()` does with a message."""
        if route.receivers > PAGE:
            self._begin(route, None, run, None, source, True)
            return
        for group in route.groups:
            group.deliver_run(run, 0, len(group.sessions), None, now)

    def work(self, until: float) -> bool:
        """Go on with unfinished work, the oldest first, by a page at least; true if some is left."""
        unfinished = self.unfinished
        origin = self._origin
        while unfinished:
            now = self._clock()
            work = unfinished[0]
            origin.worker = work.origin
            if not work.step(now):
                unfinished.popleft()
                if isinstance(work, PagedPublish):
                    self._finish(work)
            if now >= until:
                break
        origin.worker = origin.here
        return bool(unfinished)

    def topics_in_pages(self) -> set[bytes]:
        """The topics of the messages of QoS 1 and 2 that have not reached all of their receivers."""
        topics = {work.topic() for work in self.unfinished if isinstance(work, PagedPublish)}
        topics.discard(b"")
        return topics

    def abandon(self) -> Outbox | None:
        """Forget the publish whose page has failed; return the outbox of the client that it came from.

        None: the publish came from no connected client. The lane of another worker goes on, as its other messages are
        not to blame, and this one counts as done. What waits for shared subscriptions goes on with its next message.
        """
        if not self.unfinished:
            return None
        work = self.unfinished[0]
        if not isinstance(work, PagedPublish):
            return None
        self.unfinished.popleft()
        work.finished = True
        source = work.source
        if source is not None and work.crossed:
            self._source_pause.resume(source)
            source = None
        if source is None and work.completion is not None:  # nobody would be told to publish it again
            work.completion.settle(self._clock())
        return source

    def _begin(
        self,
        route: Route,
        message: Message | None,
        run: Run | None,
        publisher: Session | None,
        source: Outbox | None,
        crossed: bool,
    ) -> None:
        self.unfinished.append(
            PagedPublish(
                route, message, run, publisher, source, crossed, self._origin.worker, self._counters, self._clock()
            )
        )
        if source is not None:
            self._source_pause.pause(source)

    def _finish(self, publish: PagedPublish) -> None:
        """Count the fan-out itself as done, and read its source again."""
        publish.finished = True
        if publish.completion is not None:
            publish.completion.settle(self._clock())
        if publish.source is not None:
            self._source_pause.resume(publish.source)


def share(group: SharedGroup, message: Message, publisher: Session | None, counters: Counters, now: float) -> None:
    """Deliver *message* to one member of *group*; if there is none, count it and note it for *publisher*."""
    if not group.publish(message, now):
        counters.dropped(DropReason.NO_SHARED_MEMBER, 1)
        if publisher is not None:
            publisher.note(DROP, DropReason.NO_SHARED_MEMBER.label, now)
