# Cold sessions: durable sessions whose clients are away, and of which this worker has a place in an index only.
#
# A session is *warm* if it is here as a Session. It is *cooled* when its client has been away for some seconds and
# nothing of it is under way, or right after a restart, unread. It is *warmed*, read from Redis, when a client comes for
# it, a publish is for it, an operator asks for it, or it has expired.
#
# - A publish that is for cold sessions is held until each of them is warm, and has been offered it. Each gets such
#   messages in the order of their publishes, and before any later one: they are offered in the turn in which the
#   session gets its places in the routes.
# - A topic may have a million cold receivers. A message walks over them (cold_index.py) with WALKED reads under way at
#   a time, and waits while HOT sessions that it has warmed are not cold again. Walks take turns, a new one first: a
#   message for one session does not wait for those that are for all.
# - If a message is for more sessions than can be read at once, the connection of its publisher is not read until the
#   message is answered (`Completion.needs_long()`): a connection has one such message here. A session gets all that
#   wait for it in one turn, so the more of them there are, the fewer reads are under way (OFFERED). While they fill
#   MOST_WAITING or MOST_BYTES nevertheless, publishes for cold sessions wait at a gate, and all others go on.
# - A session that is not found was taken by another worker, which has told the others what it waits for before. This
#   worker may not have heard that yet, if the session was taken as it did not answer. So the place stays until the
#   others have confirmed that it has; then publishers send again what was for it, to where the session is now.
# - While Redis is away nothing is warmed: publishes wait, and a CONNECT is refused after PATIENCE.
#
# The index says what of a session is in Redis, at any time: a worker that dies loses nothing with it.
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

from broker.delivery.completion import Completion
from broker.metrics.counters import Counters
from broker.overload.gate import Gate
from broker.protocol.session_lifecycle import SessionLifecycle
from broker.protocol.subscribing import Subscribing
from broker.routing.cold_index import ColdIndex
from broker.routing.cold_walk import ColdWalk
from broker.routing.fanout import Deliveries
from broker.routing.interest import DEADLINE, HASH, TopicHashes, entries_of
from broker.routing.neighbour import ColdReceiver
from broker.routing.routes import Routes
from broker.session.message import Message
from broker.session.queue import MessageBudget
from broker.session.session import Session
from broker.store.durable.adoption import AdoptedSession
from broker.store.durable.cold_reads import FOUND, MISSING
from broker.store.durable.index import NEVER, READ, SUBSCRIPTIONS, deadline_of, with_deadline
from broker.store.durable.record import SessionRecord
from broker.store.durable.store import DurableStore
from broker.store.sessions import SessionStore

COOL_AFTER: Final = 10.0  # seconds without a client: one that comes back at once finds its session
COOLED: Final = 64  # sessions that are looked at in one tick: a millisecond if all are cooled
COOLING: Final = 0.001  # seconds for that: sessions with a hundred filters take longer
WALKED: Final = 64  # reads that messages may have under way
# Messages that the sessions may get whose reads are under way: 20 ms, if all answers come at once.
OFFERED: Final = 4096
# Sessions that messages or operators have warmed and that are not cold again; twice, with expired. They take 40 MB. A
# message for more sessions than that costs 70 us for each of them; for one that is warm, it is 1 us.
HOT: Final = 16_384
PATIENCE: Final = 2.0  # seconds that a CONNECT waits, as for a new session that cannot be stored
MOST_WARMING: Final = 4096  # reads under way, beyond which a CONNECT is refused at once: 2 KB each while Redis is away
SOON: Final = 0.01  # seconds
SLACK: Final = 2.0  # seconds by which a deadline may be wrong: clocks differ by that, and rounded times
RETRY: Final = 0.1  # seconds until sessions are looked at that cannot be cooled now
MOST_WAITING: Final = 1024  # messages that wait for cold sessions: each that arrives is looked for in all of them
MOST_BYTES: Final = 8 << 20  # of them
MOST_OWNERS: Final = 65_000  # numbers of incarnations in the index
NOTHING_DUE: Final = float("inf")

# Numbers of owners in the index; from FIRST_FORMER on those of workers that have ended.
OURS: Final = 0  # this worker, and nothing that waits was sent before; and those two, if they are so
SENT: Final = 1  # something that waits may have been sent before
LATE: Final = 2  # something may come late: see `QueuePlaces.expects_late()`
FIRST_FORMER: Final = 4

Then = Callable[[bool], None]  # true: the session is warm, or there is none any more; false: it cannot be read now
Abandon = Callable[[Completion, float], None]


class ColdMessage:
    """A publish that is held for cold sessions."""

    def __init__(self, number: int, message: Message, completion: Completion, walk: ColdWalk) -> None:
        self.number = number  # in the order of the publishes
        self.message = message
        self.completion = completion
        self.walk = walk
        self.open = 0  # sessions that are being read for it


class Warming:
    """A session that is being read."""

    def __init__(self, client: bytes, deadline: int) -> None:
        self.client = client
        self.deadline = deadline  # in the index that is stored
        self.walked = False  # for a message
        self.hot = False  # it is to be cold again as soon as there are many such sessions
        self.messages: list[ColdMessage] = []  # that were taken for it
        self.then: list[Then] = []  # without end
        self.connects: list[Then] = []  # until PATIENCE has passed


class ColdSessions(ColdReceiver):
    def __init__(
        self,
        durable: DurableStore,
        index: ColdIndex,
        store: SessionStore,
        sessions: SessionLifecycle,
        subscribing: Subscribing,
        routes: Routes,
        deliveries: Deliveries,
        budget: MessageBudget,
        counters: Counters,
        abandon: Abandon,
        clock: Callable[[], float],
        when_confirmed: Callable[[Callable[[], None]], None],
        gate: Gate,
        opened: Callable[[Gate, float], None],
    ) -> None:
        """*durable*: where sessions are stored. *abandon*: see `ConnectionLifecycle.abandon()`.

        *when_confirmed*: see `WhenConfirmed`. *gate*: of publishes for cold sessions; *opened* is called when there is
        room again.
        """
        super().__init__(durable.commit.gate.gate, gate)
        self.index: Final = index
        self._durable = durable
        self._store = store
        self._sessions = sessions
        self._subscribing = subscribing
        self._routes = routes
        self._deliveries = deliveries
        self._budget = budget
        self._counters = counters
        self._abandon = abandon
        self._clock = clock
        self.when_heard = when_confirmed  # with other workers: `Mesh.when_all_have_heard()`
        self._opened = opened
        self._owners: list[bytes] = [b""] * FIRST_FORMER  # incarnations by their numbers
        self._numbers: dict[bytes, int] = {}
        self._number = 0  # of the last message
        self._held: dict[ColdMessage, None] = {}
        self._held_bytes = 0
        self._walking: deque[ColdMessage] = deque()
        self._walked = 0  # reads under way for messages
        self._warming: dict[bytes, Warming] = {}
        self._waiting: dict[bytes, Warming] = {}  # of them, those that are read when their keys have new names
        self._missing: set[bytes] = set()  # clients of those that were not found, and may be elsewhere
        self._refused: dict[ColdMessage, None] = {}  # what came for these since `abandon_missing()`
        self._connecting: deque[tuple[float, Warming]] = deque()  # those with `connects`, and when these are refused
        self._resting: dict[Session, float] = {}  # sessions without clients, and since when they rest
        self._hot: dict[Session, None] = {}  # see `Warming.hot`
        self._in_pages: list[TopicHashes] = []  # of messages that sessions may still get in pages
        sessions.resting = self.rests
        routes.set_cold(index, self)
        store.count_also(self.count)

    def count(self) -> int:
        return len(self.index)

    def waiting(self) -> int:
        """Messages that wait for cold sessions."""
        return len(self._held)

    def has(self, client_id: str) -> bool:
        """Whether the session of *client_id* is cold, or being warmed."""
        return self.index.find(client_id.encode(errors="surrogateescape")) >= 0

    # What the store tells.

    def keep_cold(self, entries: list[bytes], incarnation: bytes) -> list[bytes]:
        """See `SessionOwner`."""
        number = self._numbers.get(incarnation, len(self._owners))
        if self._sessions.limits.queue_qos0 or number == MOST_OWNERS:
            return entries[::2]
        if number == len(self._owners):
            self._owners.append(incarnation)
            self._numbers[incarnation] = number
        return self.index.load(entries, number)

    def is_ours(self, incarnation: bytes) -> None:
        """*incarnation* is that of this worker."""
        self._numbers[incarnation] = OURS | SENT

    def renamed(self, clients: list[bytes]) -> None:
        """See `SessionOwner`."""
        for client in clients:
            if self.index.find(client) >= FIRST_FORMER:
                self.index.set_owner(client, OURS | SENT)
            warming = self._waiting.pop(client, None)
            if warming is not None:
                self._read(warming, self._clock())

    def holds(self, client: bytes) -> bool:
        """Whether the session of *client* is cold."""
        return self.index.find(client) >= 0

    def taken(self, client: bytes, then: Then) -> None:
        """Another worker has taken the cold session of *client*, as this one did not answer: it will not be found.

        *then* is called when it is out of the routes.
        """
        self._warm(client, self._clock()).then.append(then)

    # Warming.

    def warm(self, client_id: str, then: Then, hot: bool = False) -> bool:
        """Have the session of *client_id* here; *then* is called once. False: it is not cold, and *then* is not called.

        *hot*: it is one of many, and nobody needs it longer than that.
        """
        client = client_id.encode(errors="surrogateescape")
        if self.index.find(client) < 0:
            return False
        warming = self._warm(client, self._clock())
        warming.hot = warming.hot or hot
        warming.then.append(then)
        return True

    def connect(self, client_id: str, then: Then) -> bool:
        """As `warm()`, for a client that has to be answered while Redis is away, too."""
        client = client_id.encode(errors="surrogateescape")
        if self.index.find(client) < 0:
            return False
        if len(self._warming) >= MOST_WARMING and client not in self._warming:
            then(False)
            return True
        now = self._clock()
        warming = self._warm(client, now)
        if not warming.connects:
            self._connecting.append((now + PATIENCE, warming))
        warming.connects.append(then)
        return True

    def _warm(self, client: bytes, now: float) -> Warming:
        warming = self._warming.get(client)
        if warming is None:
            warming = self._warming[client] = Warming(client, self.index.deadline(client))
            self._read(warming, now)
        return warming

    def _read(self, warming: Warming, now: float) -> None:
        client = warming.client
        if self._durable.adoption.renames(client):  # it is not known under which keys it will be
            self._waiting[client] = warming
            return
        owner = self.index.find(client)
        former, unsent, late = b"", not owner & SENT, bool(owner & LATE)
        if owner >= FIRST_FORMER:
            former, unsent, late = self._owners[owner], False, False
        self._counters.sessions_warmed += 1
        self._durable.cold_reads.load(client, former, unsent, late, partial(self._arrived, warming), now)

    def _arrived(self, warming: Warming, outcome: int, adopted: AdoptedSession | None, now: float) -> None:
        """The read of a session was answered."""
        client = warming.client
        if outcome == MISSING:
            self._missing.add(client)
            self._refused.update(dict.fromkeys(self._owed(warming)))
            # What was taken from here is known before its client has a session here again, which it would end.
            self._durable.commit.confirm(partial(self.when_heard, partial(self._is_elsewhere, warming)))
            return
        del self._warming[client]
        if outcome != FOUND or adopted is None:
            self._give_up(warming, now, True)
            return
        adopted.record.expect_deadline(warming.deadline)
        session = self._sessions.adopt(adopted, now)
        owed = self._owed(warming)
        if not session.ended:
            self._subscribing.enrol(session, adopted.stored.subscriptions(session), _nothing)
        self.index.discard(client)
        if not session.ended:
            for held in owed:
                self._routes.offer_to(session, held.message, now)
            if owed:  # they may end before anything that waited
                self._update_index(session, adopted.record)
            if warming.hot:
                self._hot[session] = None
            self.rests(session, now)
        self._finish(warming, owed, now)
        self._call(warming, True)
        self._walk_on(now)

    def _is_elsewhere(self, warming: Warming) -> None:
        """The session was not found, and this worker has heard all that may have taken it."""
        del self._warming[warming.client]
        self._missing.discard(warming.client)
        self._give_up(warming, self._clock(), False)
        if not self._missing:
            self._refused = {}

    def abandon_missing(self, now: float) -> None:
        """Have come again what came so far for sessions that were not found: its publishers' connections end now."""
        refused, self._refused = self._refused, {}
        for held in refused:
            self._abandon(held.completion, now)

    def _owed(self, warming: Warming) -> list[ColdMessage]:
        """The messages that are for the session, in the order of their publishes."""
        owed = list(warming.messages)
        for held in self._walking:
            if held.walk.owes(warming.client):
                owed.append(held)
        owed.sort(key=_number_of)
        return owed

    def _give_up(self, warming: Warming, now: float, ended: bool) -> None:
        """There is no such session here any more. *ended*: it has ended, and its messages with it.

        Otherwise another worker may have it: the publishers of its messages are to send them again.
        """
        owed = self._owed(warming)
        self.index.discard(warming.client)
        if not ended:
            for each in owed:
                self._abandon(each.completion, now)
        self._finish(warming, owed, now)
        self._call(warming, True)
        self._walk_on(now)

    def _call(self, warming: Warming, warm: bool) -> None:
        callbacks = warming.then + warming.connects
        warming.then, warming.connects = [], []
        for then in callbacks:
            then(warm)

    # Messages.

    def offer(self, message: Message, now: float) -> None:
        walk = self.index.walk(message.topic)
        if walk.done:
            return
        self._number += 1
        held = ColdMessage(self._number, message, message.hold(), walk)
        self._held[held] = None
        self._held_bytes += message.size
        self._budget.hold(message)
        self._walking.appendleft(held)
        gate = self.gate
        if not gate.blocked and (len(self._held) >= MOST_WAITING or self._held_bytes >= MOST_BYTES):
            gate.block()
        self._walk_on(now)
        if not walk.done and not gate.blocked:  # otherwise other workers are to hold publishes back, too
            held.completion.needs_long()

    def _walk_on(self, now: float) -> None:
        """Read further sessions for messages, the messages taking turns."""
        walking = self._walking
        most = min(WALKED, max(1, OFFERED // max(1, len(self._held))))
        while walking and self._walked < most:
            held = walking[0]
            if held.walk.done:
                walking.popleft()
                self._settle_if_done(held, now)
                continue
            if len(self._hot) >= HOT:
                break
            walking.rotate(-1)
            for client in held.walk.take(min(most - self._walked, WALKED // 4)):
                warming = self._warm(client, now)
                if not warming.walked:
                    warming.walked = warming.hot = True
                    self._walked += 1
                warming.messages.append(held)
                held.open += 1
                if client in self._missing:
                    self._refused[held] = None

    def _finish(self, warming: Warming, owed: list[ColdMessage], now: float) -> None:
        """The session of *warming* is done with the messages that it was *owed*."""
        if warming.walked:
            warming.walked = False
            self._walked -= 1
        for held in warming.messages:
            held.open -= 1
        warming.messages = []
        for held in owed:
            self._settle_if_done(held, now)

    def _settle_if_done(self, held: ColdMessage, now: float) -> None:
        if held.open or not held.walk.done or held not in self._held:
            return
        del self._held[held]
        self._held_bytes -= held.message.size
        self._budget.release(held.message)
        gate = self.gate
        if gate.blocked and len(self._held) <= MOST_WAITING // 2 and self._held_bytes <= MOST_BYTES // 2:
            gate.unblock()
            self._opened(gate, now)
        if not held.completion.abandoned:
            held.completion.settle(now)

    # Time.

    def tick(self, now: float) -> float:
        """Do what is due; the time of the next thing that will be."""
        due = NOTHING_DUE
        if self._connecting:
            due = self._refuse_connects(now)
        if self._durable.adoption.done and len(self._warming) < WALKED and len(self._hot) < 2 * HOT:
            wall = self._durable.wall()
            for client in self.index.expired(wall, WALKED - len(self._warming)):
                warming = self._warm(client, now)
                warming.deadline = 0
                warming.hot = True
            due = min(due, max(now + SOON, now + self.index.next_deadline() - wall))
        if self._resting:
            due = min(due, self._cool_some(now))
        if self._walking:
            self._walk_on(now)
            if len(self._hot) >= HOT:
                due = min(due, now + SOON)
        return due

    def _refuse_connects(self, now: float) -> float:
        """Answer clients that have waited for PATIENCE; their sessions are read all the same."""
        connecting = self._connecting
        for _ in range(COOLED):
            if not connecting:
                return NOTHING_DUE
            until, warming = connecting[0]
            if now < until:
                return until
            connecting.popleft()
            connects, warming.connects = warming.connects, []
            for then in connects:
                then(False)
        return now

    # Cooling.

    def rests(self, session: Session, now: float) -> None:
        """*session* has no client, from now on, or something else about it has changed."""
        record = session.storage
        if isinstance(record, SessionRecord):
            self._resting.pop(session, None)
            self._resting[session] = now
            if record.index_known() != READ:
                self._update_index(session, record)

    def _cool_some(self, now: float) -> float:
        if not self._durable.adoption.done:
            return now + RETRY
        self._in_pages = [TopicHashes(topic) for topic in self._deliveries.topics_in_pages()]
        until = self._clock() + COOLING
        if len(self._hot) >= HOT // 2:
            for session in list(islice(self._hot, COOLED)):
                if not self._cool(session):
                    self._hot.pop(session)
                    self._hot[session] = None
                if self._clock() > until:
                    return now
        later: list[Session] = []
        for _ in range(COOLED):
            if not self._resting or self._clock() > until:
                break
            session = next(iter(self._resting))
            if self._resting[session] > now - COOL_AFTER:
                break
            if not self._cool(session):
                del self._resting[session]
                later.append(session)
        for session in later:
            self._resting[session] = now
        if not self._resting:
            return NOTHING_DUE
        return max(now + SOON, self._resting[next(iter(self._resting))] + COOL_AFTER)

    def _forget(self, session: Session) -> bool:
        """*session* is not to be cooled before it rests again."""
        self._resting.pop(session, None)
        self._hot.pop(session, None)
        return True

    def _cool(self, session: Session) -> bool:
        """Have *session* cold, if it may be; false: look at it again."""
        record = session.storage
        if session.ended or session.outbox is not None or not isinstance(record, SessionRecord):
            return self._forget(session)
        if not self._may_be_cold(session):
            return self._forget(session)
        if self._store.find(session.client_id) is not session:
            return self._forget(session)
        queue = record.present_queue()
        if not record.all_stored():
            if queue is not None:
                queue.tidy()
            return False
        if session.transfer_filter is not None or not self._store.may_cool(session):
            return False
        if session in self._sessions.replays or (session.losses is not None and not session.losses.settled()):
            return False
        value = record.index_known()
        if not self._update_index(session, record):
            return self._forget(session) if value == record.index_known() == READ else False
        if self._in_pages and self._awaits_page(value[DEADLINE:]):
            return False
        client = session.client_id.encode()
        owner = OURS
        if queue is not None:
            owner |= (SENT if queue.sent_before() else 0) | (LATE if queue.expects_late() else 0)
        if not self.index.add(client, deadline_of(value), value[DEADLINE:], owner):
            return self._forget(session)
        self._sessions.leave(session)
        self._store.cool(session)
        self._counters.sessions_cooled += 1
        return self._forget(session)

    def _update_index(self, session: Session, record: SessionRecord) -> bool:
        """Have the index say when *session* ends, or the first of its messages: then it is to be read.

        True: it says so already. False: it will, if that is known and the session may be kept unread. Without it the
        messages of a session that a later worker keeps unread would stay when they have ended.
        """
        wall, queue = self._durable.wall(), record.present_queue()
        ends = wall + self._sessions.expires(session) - self._clock()
        if queue is not None:
            if queue.due <= wall + SLACK:  # a sweep finds out
                return False
            ends = min(ends, queue.due)
        value = record.index_known()
        if value == READ:
            record.store_index(self._sessions.index_value(session, ends))
            return False
        if abs(deadline_of(value) - min(ends, NEVER)) <= SLACK:
            return True
        record.store_index(with_deadline(value, ends))  # its filters may not all be registered here yet
        return False

    def _awaits_page(self, interest: bytes) -> bool:
        """Whether a message for a session with *interest* may be under way in pages that have counted it."""
        for entry in entries_of(interest) or ():
            shape, digest = entry[1:-HASH], entry[-HASH:]
            for hashes in self._in_pages:
                if hashes.of(shape) == digest:
                    return True
        return False

    def _may_be_cold(self, session: Session) -> bool:
        """Whether nothing is remembered of *session* that is in memory alone, or costs too much to be restored.

        Nothing of that changes until its client comes back or `rests()` is called.
        """
        if session.will is not None:
            return False
        if session.inflight() or len(session.subscriptions) > SUBSCRIPTIONS or self._sessions.limits.queue_qos0:
            return False
        return session.incoming is None or session.incoming.count == 0


def _number_of(held: ColdMessage) -> int:
    return held.number


def _nothing() -> None:
    pass
