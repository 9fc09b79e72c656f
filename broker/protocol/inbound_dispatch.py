# Dispatching from the inbound backbone: what was accepted at any worker of the node goes to its receivers from here.
#
# A publish is dispatched as that of a client would be delivered, and passes the gates that it would pass: of other
# workers, and of stores. Nobody is made to wait there: while a gate is closed, its partition stands still, and what
# follows waits in the log. So bursts wait in Kafka, and what is under way here is bounded by number, and in bytes by
# what the carrier gives a reading (carrier/worker_lanes.py).
#
# The gate of this worker's own log is not passed. Publishers fill it, and dispatching would wait behind them; what is
# appended to logs of APPLICATION clients from here counts as what is under way.
#
# While a publish goes out in pages nothing else of its partition is dispatched, as its receivers would get what follows
# before it. Other partitions go on, as other publishers would.
from collections.abc import Callable, Mapping
from typing import Final

from broker.delivery.completion import Completion
from broker.metrics.counters import Counters
from broker.overload.gate import Gate
from broker.overload.store_rate import StoreRate
from broker.protocol.retaining import Retaining
from broker.reasons import DropReason
from broker.routing.fanout import Deliveries, PagedPublish
from broker.routing.neighbour import Neighbours
from broker.routing.route import Route
from broker.routing.routes import Routes
from broker.session.message import Message
from broker.session.run import Run
from broker.session.session import Session
from broker.store.inbound.feed import PartitionFeed
from broker.store.inbound.pack import AcceptedPublish
from broker.store.sessions import SessionStore

UNFINISHED: Final = 2_000  # publishes of a partition that are under way
SPAN: Final = 20_000  # records from the first that is not done to the last: so many may be dispatched again
LOOK: Final = 32  # publishes between two looks at the clock


class InboundDispatch:
    def __init__(
        self,
        routes: Routes,
        deliveries: Deliveries,
        retaining: Retaining,
        neighbours: Neighbours,
        sessions: SessionStore,
        log_gate: Gate,
        store_rate: StoreRate | None,
        counters: Counters,
        failed: Callable[[Exception], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """*log_gate*: of this worker. *store_rate*: None: no limit. *failed* is called with exceptions of our own code.

        *clock*: the worker's time; *wall*: Unix time.
        """
        self.dispatched = 0  # publishes
        self._routes = routes
        self._deliveries = deliveries
        self._retaining = retaining
        self._neighbours = neighbours
        self._sessions = sessions
        self._log_gate = log_gate
        self._store_rate = store_rate
        self._counters = counters
        self._failed = failed
        self._clock = clock
        self._wall = wall
        self._first = 0  # the partition that begins the next turn
        self._wide: dict[int, PagedPublish] = {}  # the last publish that went out in pages, by partition

    def work(self, feeds: Mapping[int, PartitionFeed], until: float) -> bool:
        """Dispatch what *feeds* have, by partition, until the time *until*; whether more can be dispatched at once."""
        now = self._clock()
        wall = self._wall()
        left = LOOK
        numbers = [number for number in feeds if feeds[number].has_more()]
        if not numbers:
            return False
        numbers.sort()
        begin = 0
        while begin < len(numbers) and numbers[begin] < self._first:
            begin += 1
        for number in numbers[begin:] + numbers[:begin]:
            feed = feeds[number]
            while self._dispatch_next(feed, now, wall):
                left -= 1
                if left == 0:
                    left = LOOK
                    before, now = now, self._clock()
                    wall += now - before
                    if now >= until:
                        self._first = number + 1
                        return True
        return False

    def _dispatch_next(self, feed: PartitionFeed, now: float, wall: float) -> bool:
        """Dispatch the next publish of *feed*, if there is one, and if it can be dispatched now."""
        if (feed.unfinished >= UNFINISHED or feed.span() >= SPAN) and not feed.repeats():
            return False  # what is dispatched again is under way already
        if self._wide and not self._is_out(feed.number):
            return False
        publish = feed.next(now, wall)
        if publish is None:
            return False
        run, message = publish.run, publish.message
        completion: Completion | None = None
        unfinished = self._deliveries.unfinished
        before = unfinished[-1] if unfinished else None
        try:
            if run is not None:
                if not self._dispatch_run(run, now):
                    return False
            elif message is not None:
                if not self._dispatch_message(message, publish, now):
                    return False
                completion = message.completion
        except Exception as error:  # it costs this publish
            self._failed(error)
        latest = unfinished[-1] if unfinished else None
        if latest is not before and isinstance(latest, PagedPublish):
            self._wide[feed.number] = latest
        feed.passed(completion)
        self.dispatched += publish.count()
        return True

    def _is_out(self, number: int) -> bool:
        """Whether no publish of the partition *number* is going out in pages."""
        wide = self._wide.get(number)
        if wide is not None and not wide.finished:
            return False
        self._wide.pop(number, None)
        return True

    def _dispatch_run(self, run: Run, now: float) -> bool:
        route = self._routes.find(run.topic)
        if not self._passes(route, route.gates, 0):
            return False
        if route.crossing:
            size = run.payload_bytes + run.count * len(run.topic)
            for gate in route.gates:
                gate.take(run.count, size, now)
        if route.receivers:
            self._deliveries.deliver_run(route, run, None, None, now)
        return True

    def _dispatch_message(self, message: Message, publish: AcceptedPublish, now: float) -> bool:
        if message.expired(now):
            self._counters.dropped(DropReason.EXPIRED, 1)
            return True
        route = self._routes.find(message.topic)
        qos = message.qos
        gates = route.gates_of(qos)
        if message.retain:
            gates = list(dict.fromkeys([*self._neighbours.gates(), *gates]))
        if not self._passes(route, gates, qos):
            return False
        for gate in gates:
            if gate is not self._log_gate:
                gate.take(1, message.size, now)
        if qos and self._store_rate is not None:
            self._store_rate.take(route.persistent, now)
        publisher = self._publisher(route, message, publish)
        if message.retain:
            self._retaining.retain_accepted(message, publish.publisher, publisher, publish.retained_at, now)
        self._deliveries.deliver(route, message, publisher, None, now)
        return True

    def _publisher(self, route: Route, message: Message, publish: AcceptedPublish) -> Session | None:
        """The session that has published *message*, if it is here; the other workers are told, as it may be there."""
        name = publish.publisher
        if not name:
            return None
        session = self._sessions.find(name)
        if session is None and message.retain:
            self._neighbours.retained_from(name)
        elif session is None:
            for neighbour in route.neighbours:
                neighbour.offer_from(name)
        return session

    def _passes(self, route: Route, gates: list[Gate], qos: int) -> bool:
        """Whether a publish of *qos* may be dispatched by *route* now, which has to pass *gates*."""
        for gate in gates:
            if not gate.open and (gate is not self._log_gate or gate.blocked):
                return False
        if route.shared and route.closed_gate() is not None:
            return False
        rate = self._store_rate
        if rate is not None and qos and route.persistent and rate.gate.blocked:
            return False
        return route.closed_for_cold(qos) is None
