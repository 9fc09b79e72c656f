# The durable sessions of a worker: those that are stored become sessions again, with their subscriptions and timers.
#
# A worker serves clients once all of them are here, so that it acknowledges no publish that one of them should get, and
# once it has read all retained messages, so that no subscriber misses one.
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from broker.delivery.completion import Completion
from broker.log import Log
from broker.metrics.counters import Counters
from broker.net.stream import Stream
from broker.protocol.cold_sessions import ColdSessions
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.protocol.pending_wills import PendingWill
from broker.protocol.session_lifecycle import SessionLifecycle
from broker.protocol.session_transfer import SessionTransfer
from broker.protocol.subscribing import Subscribing
from broker.reasons import CloseReason
from broker.routing.routes import Routes
from broker.session.origin import ClosedFilter, ForcedFilter, LeavingFilter
from broker.session.session import Session
from broker.session.subscription import Subscription
from broker.store.durable.adoption import AdoptedSession, client_id_of
from broker.store.durable.group_commit import SETTLED
from broker.store.durable.group_queue import is_pending_will, is_session
from broker.store.durable.shared_lists import SharedLists
from broker.store.durable.store import DurableStore
from broker.store.durable.stored_session import StoredSession
from broker.store.sessions import SessionStore
from broker.worker_id import WorkerId

Taken = Callable[[Session | None, list[Subscription]], None]  # None: there is no session that goes on


class WhenConfirmed(Protocol):
    def __call__(self, stream: Stream | None, then: Callable[[], None]) -> None:
        """Call *then* once all workers of the cluster know what is subscribed to here.

        *stream*, if any, is not read until then.
        """
        ...


class DurableSessions:
    """The `SessionOwner` of *durable*."""

    def __init__(
        self,
        durable: DurableStore,
        shared: SharedLists,
        sessions: SessionLifecycle,
        lifecycle: ConnectionLifecycle,
        subscribing: Subscribing,
        transfer: SessionTransfer,
        store: SessionStore,
        routes: Routes,
        counters: Counters,
        log: Log,
        clock: Callable[[], float],
        when_confirmed: WhenConfirmed,
        cold: ColdSessions,
        me: bytes,
    ) -> None:
        """*durable*: where they are stored, and what waits for their *shared* subscriptions. *cold*: those that are
        not in memory. *me*: the incarnation of this worker.
        """
        self._durable = durable
        self._shared = shared
        self._sessions = sessions
        self._lifecycle = lifecycle
        self._subscribing = subscribing
        self._transfer = transfer
        self._store = store
        self._routes = routes
        self._counters = counters
        self._log = log
        self._clock = clock
        self._when_confirmed = when_confirmed
        self.cold = cold
        cold.is_ours(me)
        durable.commit.fenced = self.taken
        self._all_read = False
        self._adopted = False  # they are here, with their subscriptions
        # With other workers: `Mesh.when_all_have_heard()`.
        self.when_heard: Callable[[Callable[[], None]], None] = partial(when_confirmed, None)
        self.settled: Callable[[], None] = _nothing  # called when all sessions of this worker are another one's
        # Sessions that were taken are numbered: it may be all that a worker has, and for each of them something waits.
        self._taken = 0  # the number of the last one
        self._leaving: set[int] = set()  # those that are in the routes still
        self._refused = ForcedFilter()  # what these were offered
        self._in_order: deque[int] = deque()  # the same, with some that are not any more behind the first
        self._when_left: deque[tuple[int, Callable[[], None]]] = deque()  # what waits for all up to that number
        self._enrolling = 0  # sessions that were read, and whose subscriptions are not all registered
        self._waiting: list[Callable[[], None]] = []  # until then
        self._before_serving: list[Callable[[], None]] = []  # what waits for the retained messages as well

    def when_ready(self, then: Callable[[], None], now: float) -> None:
        """Have all sessions served here that those had which had this shard before, and all retained messages read.

        Then call *then*.
        """
        self._before_serving.append(then)
        self._lifecycle.hold_timers()
        self._durable.serve(self, now)

    def ready(self) -> bool:
        """Whether all sessions are here that this worker is to adopt."""
        return self._adopted

    def all_known(self) -> None:
        """All sessions are here, and what is subscribed to at all workers: what is due may be published."""
        self._lifecycle.release_timers()

    def when_adopted(self, then: Callable[[], None]) -> None:
        """Call *then* once they are."""
        self._waiting.append(then)

    def prepare_to_settle(self) -> None:
        """More is to be adopted: `ready()` is false from now on. `settle()` follows."""
        self._adopted = False

    def settle(self, workers: list[WorkerId], then: Callable[[], None]) -> None:
        """Adopt what *workers* of other nodes have left; they are former owners of this shard by now (inheritance.py).

        *then* is called once all workers know what their sessions wait for, and `ready()` is true.
        """
        self._waiting.append(then)
        if workers:
            self._durable.adoption.settle([worker.incarnation_text.encode() for worker in workers])
        else:
            self._all_read = True

    def has(self, client_id: str) -> bool:
        name = client_id.encode(errors="surrogateescape")
        if self._session(client_id) is not None or self.cold.has(client_id) or client_id in self._transfer.arriving:
            return True
        return self._shared.has(name) or self._sessions.has_pending(name)

    def tick(self, now: float) -> float:
        """Do what is due; the time of the next thing that will be. To be called at the end of each slice."""
        due = min(self._durable.tick(now), self.cold.tick(now))
        if self._all_read and not self._enrolling:
            self._all_read = False
            self._when_confirmed(None, self._serve)
        if self._before_serving and self._adopted and self._durable.retained_loaded():
            self._tell_of_retained()
            waiting, self._before_serving = self._before_serving, []
            for then in waiting:
                then()
        return due

    def may_store(self) -> bool:
        """Whether `store_now()` has something to do, or will have."""
        return self._durable.may_send()

    def store_now(self) -> float:
        """Begin to store and read what is to be by now, without waiting for `tick()`; the time of the next such thing.

        While events keep coming, the loop calls `tick()` every 10 ms, and publishers and returning clients would wait
        for that.
        """
        return self._durable.send(self._clock())

    def stand_in_for(
        self, client_id: str, former: WorkerId, forced: ForcedFilter, then: Callable[[Session | None], None]
    ) -> None:
        """Have a stand-in (cluster/forced_takeovers.py) of the session of *client_id* in the routes here before
        `take()`; then call *then* with it.

        Otherwise there would be times at which no worker is known to have it: *former*, which has it, may learn that it
        was taken, or be followed by a worker that does not have it, before this worker is heard of. What the stand-in
        is offered *forced* keeps; `withdraw()` ends it. None: *former* has no such session.
        """
        found = partial(self._stand_in, client_id, forced, then)
        self._durable.look(client_id.encode(), former.incarnation_text.encode(), found, self._clock())

    def _stand_in(
        self,
        client_id: str,
        forced: ForcedFilter,
        then: Callable[[Session | None], None],
        stored: StoredSession | None,
    ) -> None:
        if stored is None:
            then(None)
            return
        session = self._sessions.stand_in(client_id, stored.user, ClosedFilter(forced), stored.log != b"")
        self._subscribing.enrol(session, stored.subscriptions(session), partial(then, session))

    def withdraw(self, session: Session, then: Callable[[], None]) -> None:
        """End a stand-in, and call *then* when it is offered nothing any more."""
        self._subscribing.withdraw(session, then)

    def drop_early(self, session: Session) -> None:
        """Drop what was delivered to *session*, which comes from a worker that has ended: it has to come again."""
        early = self._sessions.disown(session)
        self._durable.expect_again(session.client_id.encode())
        for message in early:
            self._lifecycle.abandon(message.as_published().completion, self._clock())

    def take(self, client_id: str, former: WorkerId, lives: bool, then: Taken) -> None:
        """Make the session of *client_id* one of this worker, if *former* has it, which has ended or does not answer.
        *former* may be this worker: see `find()`.

        Then call *then* with it and its subscriptions: see `enrol()`. *former* learns it with its next transaction, if
        it *lives*: then it publishes the will, as its connection ends; see `hold_will()`.
        """
        if self.cold.warm(client_id, partial(self._warmed, client_id, then)):
            return  # it was adopted meanwhile
        client = client_id.encode()
        self._transfer.arriving.add(client_id)
        self._durable.expect(client)
        take = partial(self._take, client, former, lives, then)
        self._durable.commit.when_removed(take)  # what an earlier session here has under the same keys is removed first

    def _take(self, client: bytes, former: WorkerId, lives: bool, then: Taken) -> None:
        found = partial(self._found, client_id_of(client), lives, then)
        self._durable.take(client, former.incarnation_text.encode(), b"", found, self._clock())

    def _warmed(self, client_id: str, then: Taken, warm: bool) -> None:
        then(self._store.find(client_id), [])

    def _found(self, client_id: str, lives: bool, then: Taken, session: AdoptedSession | None, now: float) -> None:
        self._transfer.arriving.discard(client_id)
        present = self._store.find(client_id)
        if present is not None and session is not None:  # it was adopted meanwhile
            then(present, [])
            return
        adopted = None if session is None else self._sessions.adopt(session, now)
        if adopted is None or session is None or adopted.ended:
            then(None, [])
        else:
            if not lives:
                self._sessions.publish_overdue_will(adopted, now)
            then(adopted, session.stored.subscriptions(adopted))

    def hold_will(self, session: Session) -> PendingWill | None:
        """The will of *session*, which the worker that it was taken from publishes unless it dies before.

        `end_hold()` follows.
        """
        return self._sessions.hold_will(session)

    def end_hold(self, will: PendingWill, published: bool) -> None:
        """That worker has *published* it, or has died."""
        self._sessions.end_hold(will, published, self._clock())

    def find(self, client_id: str, then: Callable[[WorkerId | None], None]) -> None:
        """Call *then* with the worker of any node that has the session of *client_id* stored, or None.

        It is this one if the session was adopted, and left out of memory as it was to come from another worker.
        """
        self._durable.find(client_id.encode(), then, self._clock())

    def enrol(self, session: Session, subscriptions: list[Subscription], then: Callable[[], None]) -> None:
        """Register the *subscriptions* of *session*, which was taken; then call *then*."""
        self._subscribing.enrol(session, subscriptions, then)

    def confirm(self, then: Callable[[], None]) -> None:
        """Call *then* once this worker knows which of its sessions were taken until now, and has ended them."""
        self._durable.commit.confirm(then)

    # What the store tells.

    def expect_cold(self, sessions: int) -> None:
        self.cold.index.expect(sessions)

    def keep_cold(self, entries: list[bytes], incarnation: bytes) -> list[bytes]:
        return self.cold.keep_cold(entries, incarnation)

    def renamed(self, clients: list[bytes]) -> None:
        self.cold.renamed(clients)

    def adopt(self, session: AdoptedSession, now: float) -> None:
        name = session.client_id.encode()
        if is_pending_will(name):
            self._sessions.adopt_pending(session, now)
            return
        if not is_session(name):
            self._shared.adopt(session)
            return
        adopted = self._sessions.adopt(session, now)
        if not adopted.ended:
            self._enrolling += 1
            self._subscribing.enrol(adopted, session.stored.subscriptions(adopted), self._enrolled)

    def _tell_of_retained(self) -> None:
        """Count and log what was read of the retained messages."""
        load = self._durable.retained_load
        if load is None:
            return
        self._counters.retained_damaged += load.damaged
        self._counters.retained_left += load.left
        self._log.info("retained_loaded", messages=load.messages)
        if load.left:
            self._log.warning("retained_left", messages=load.left)
        if load.damaged:
            topic = load.damaged_topic.decode(errors="replace")
            self._log.error("retained_damaged", messages=load.damaged, topic=topic, why=load.damaged_why)

    def _serve(self) -> None:
        self._adopted = True
        self._durable.adoption.held = False
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def _enrolled(self) -> None:
        self._enrolling -= 1

    def adopted(self, now: float) -> None:
        self._all_read = True
        self._durable.adoption.held = True
        self._routes.invalidate()  # cold sessions are in no route yet
        self._log.info("sessions_adopted", sessions=self._durable.adoption.sessions, cold=self.cold.count())

    def taken(self, clients: list[bytes], now: float) -> None:
        """Another worker has taken the sessions of *clients*, as this one did not answer: they end here.

        They stay in the routes until this worker has heard all others, and with them the one that has them now, or a
        publish of a client here would reach nobody. If one was on its way to a third worker, what was refused here for
        it reaches nobody either: it comes again, before this worker lets go (cluster/forced_takeovers.py).
        """
        if SETTLED in clients:
            self.settled()
        for client in clients:
            self._durable.taken(client)
            session = self._session(client_id_of(client))
            if session is not None:
                former = session.transfer_filter
                session.transfer_filter = ClosedFilter(self._refused)
                if session.will is not None and session.will.delay:
                    self._sessions.set_will(session, None)  # that worker has it; another one is published now
                self._lifecycle.evict(session, withdraw=False)
                if isinstance(former, LeavingFilter):
                    self._abandon(former.take_refused())
                self.when_heard(partial(self._leave_routes, self._leaves(), session))
            elif self.cold.holds(client):
                self.cold.taken(client, partial(self._has_left, self._leaves()))

    def when_left(self, then: Callable[[], None]) -> None:
        """Call *then* once all sessions that were taken so far are out of the routes.

        What was refused for them comes again then: its publishers have no connection any more.
        """
        if self._leaving:
            self._when_left.append((self._taken, then))
        else:
            then()

    def _leaves(self) -> int:
        """The number of a session that was taken."""
        self._taken += 1
        self._leaving.add(self._taken)
        self._in_order.append(self._taken)
        return self._taken

    def _leave_routes(self, number: int, session: Session) -> None:
        self._subscribing.withdraw(session, partial(self._has_left_routes, number))

    def _has_left_routes(self, number: int) -> None:
        self.abandon_refused()
        self._has_left(number)

    def abandon_refused(self) -> None:
        """Have all come again that was refused for sessions which were taken: their publishers' connections end now."""
        self._abandon(self._refused.take_all_refused())
        self.cold.abandon_missing(self._clock())

    def _has_left(self, number: int, _: bool = True) -> None:
        self._leaving.discard(number)
        while self._in_order and self._in_order[0] not in self._leaving:
            self._in_order.popleft()
        while self._when_left and (not self._in_order or self._in_order[0] > self._when_left[0][0]):
            self._when_left.popleft()[1]()

    def _abandon(self, completions: list[Completion]) -> None:
        for completion in completions:
            self._lifecycle.abandon(completion, self._clock())

    def _session(self, client_id: str) -> Session | None:
        """That of *client_id*, also if it is on its way to another worker."""
        return self._store.find(client_id) or self._transfer.leaving.get(client_id)

    def damaged(self, client_id: str, why: str, here: bool, now: float) -> None:
        self._counters.sessions_damaged += 1
        name = client_id.encode(errors="surrogateescape")
        if not is_session(name) and not is_pending_will(name):
            self._shared.damaged(name, why)
            return
        self._log.error("session_damaged", client=client_id, why=why)
        session = self._session(client_id) if here else None
        if session is None:
            return
        connection = self._lifecycle.connection_of(session)
        if connection is not None:
            self._lifecycle.close(connection, CloseReason.SESSION_DAMAGED, now)
        if not session.ended:
            self._sessions.end(session, now)


def _nothing() -> None:
    pass
