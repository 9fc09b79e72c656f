# SUBSCRIBE and UNSUBSCRIBE, and the retained messages that a new subscription gets.
#
# Retained messages follow their SUBACK in pages, as fast as the session takes them: a scan of a million topics for a
# slow reader must block neither the loop nor fill the memory. The client pays for each level that a scan visits, even
# if it finds no message there. Nothing polls: `continue_replays()` is called when the session has room again.
# Subscriptions of a session that ends or moves are removed and registered in pages, too.
#
# A SUBSCRIBE of many filters takes long if there are many access rules, and an UNSUBSCRIBE if many routes change. Then
# the filters are taken in turns of the connection; the packet stays in the input meanwhile, so nothing overtakes it. It
# is answered after its last filter.
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from broker.config.schema import Limits
from broker.delivery.completion import SourcePause
from broker.log import Log
from broker.metrics.counters import Counters
from broker.mqtt.encode import encode
from broker.mqtt.fields import encode_length
from broker.mqtt.packets import V5, Properties, SubAck, Subscribe, UnsubAck, Unsubscribe, Wanted
from broker.mqtt.properties import REASON_STRING, SUBSCRIPTION_IDENTIFIER, USER_PROPERTY
from broker.mqtt.topics import check_filter, split_share
from broker.net.stream import OPEN
from broker.overload.admit import FILTER
from broker.overload.cost import VISITS_PER_DELIVERY
from broker.overload.quantum import FILTER_COST, VISIT_COST
from broker.overload.quotas.quota import Quota, QuotaExceeded
from broker.protocol.connection import Connection, PendingSubscribe, PendingUnsubscribe, Replay
from broker.protocol.handshake import RETRY_AFTER
from broker.reasons import CloseReason, FilterRefusal, ProtocolError
from broker.routing.authority import Authoriser
from broker.routing.retained import Retained
from broker.routing.routes import Routes
from broker.routing.subscription_budget import SubscriptionBudget
from broker.session.session import Session
from broker.session.subscription import Subscription
from broker.store.durable.index import SUBSCRIPTIONS

AT_ONCE: Final = 0.00025  # seconds for filters of one SUBSCRIBE, after which other connections have their turn
UNSUBSCRIBED_AT_ONCE: Final = 64  # filters of one UNSUBSCRIBE, after which other connections have their turn
VISITED_AT_ONCE: Final = 4096  # receivers of routes visited to remove them, after which others have their turn, too
PAGE: Final = 64  # retained messages between two looks at the clock
LEVELS: Final = 1024  # levels of the tree walked between two looks at the clock

NO_SUBSCRIPTION_EXISTED: Final = 0x11  # [MQTT-3.11.3-2]
FAILURE_3: Final = 0x80

SEND_ALWAYS: Final = 0
SEND_IF_NEW: Final = 1


class Withdrawal:
    """Subscriptions that are removed in pages."""

    def __init__(self, session: Session, then: Callable[[], None] | None) -> None:
        self.session = session
        self.then = then


class Enrolment:
    """Subscriptions that are registered in pages."""

    def __init__(self, session: Session, subscriptions: list[Subscription], then: Callable[[], None]) -> None:
        self.session = session
        self.left = subscriptions[::-1]  # the next one last
        self.then = then


class Subscribing:
    def __init__(
        self,
        routes: Routes,
        retained: Retained,
        counters: Counters,
        log: Log,
        limits: Limits,
        clock: Callable[[], float],
        budget: SubscriptionBudget,
        settled: Callable[[Connection, Callable[[], None]], None],
        store_pause: SourcePause,
        shared_filters: int,
        authoriser: Authoriser | None = None,
    ) -> None:
        """*settled* pauses a connection until all workers of the cluster know its subscriptions, then calls back.

        *store_pause*: of a connection until its subscriptions are stored. *shared_filters*: that an APPLICATION client
        may have.
        """
        self._settled = settled
        self._store_pause = store_pause
        self.shared_filters: Final = shared_filters
        self._authoriser = authoriser
        self._routes = routes
        self._retained = retained
        self._counters = counters
        self._log = log
        self._clock = clock
        self._limits = limits
        self._budget = budget
        self._replaying: deque[Connection] = deque()
        self._withdrawing: deque[Withdrawal] = deque()
        self._enrolling: deque[Enrolment] = deque()

    def subscribe(self, connection: Connection, session: Session, packet: Subscribe, now: float) -> int:
        """Take the filters one after the other [MQTT-3.8.4-5], and answer in their order [MQTT-3.9.3-1].

        [MQTT-3.8.4-1], [MQTT-3.8.4-2], [MQTT-3.8.4-6], [MQTT-3.8.4-7], [MQTT-2.2.1-6]. Returns the units used. If
        `connection.pending` is set then, filters are left, for `continue_packet()`.
        """
        identifiers = b""
        wanted_identifier = packet.properties.get(SUBSCRIPTION_IDENTIFIER)
        if isinstance(wanted_identifier, list):
            for identifier in wanted_identifier:
                if isinstance(identifier, int):
                    identifiers = bytes((SUBSCRIPTION_IDENTIFIER,)) + encode_length(identifier)
        pending = PendingSubscribe(packet, identifiers, _scarce(connection, len(packet.filters), now))
        return self._take_filters(connection, session, pending, now)

    def continue_packet(
        self, connection: Connection, session: Session, pending: PendingSubscribe | PendingUnsubscribe, now: float
    ) -> int:
        """Go on with *pending*, the SUBSCRIBE or UNSUBSCRIBE of *connection* that has filters left. The units used."""
        if isinstance(pending, PendingSubscribe):
            return self._take_filters(connection, session, pending, now)
        return self._remove_filters(connection, session, pending)

    def _take_filters(self, connection: Connection, session: Session, pending: PendingSubscribe, now: float) -> int:
        """Take further filters of *pending*, for about AT_ONCE seconds; answer after the last one. The units used."""
        filters = pending.packet.filters
        before = taken = len(pending.codes)
        until = self._clock() + AT_ONCE
        while taken < len(filters) and (taken == before or self._clock() < until):
            self._take_filter(connection, session, pending, filters[taken], now)
            taken += 1
        if taken < len(filters):
            connection.pending = pending
            return FILTER_COST * (taken - before)
        connection.pending = None
        self._counters.subscribes += len(filters)
        over = pending.over
        words = _words(over, now) if over is not None and connection.wants_reasons else {}
        answer = self._encoded(connection, session, SubAck(pending.packet.packet_id, pending.codes, words))
        subscribed = partial(self._subscribed, connection, session, answer, pending.replays)
        self._settled(connection, partial(self._when_stored, connection, session, subscribed))
        return FILTER_COST * (taken - before)

    def _take_filter(
        self, connection: Connection, session: Session, pending: PendingSubscribe, wanted: Wanted, now: float
    ) -> None:
        """Subscribe to *wanted*, or refuse it, and note its code in *pending*."""
        refusal = self._refusal(session, wanted.filter)
        quota = None if connection.client is None else connection.client.quota
        if refusal is None and quota is not None:
            over = _take_one(quota, pending.scarce, now)
            if over is not None:
                pending.over = over
                refusal = over.filter_refusal()
        if refusal is None:
            code, replay = self._subscribe_one(session, wanted, pending.identifiers)
            pending.codes.append(code)
            if replay is not None:
                pending.replays.append(replay)
            return
        pending.codes.append(refusal.code if connection.version == V5 else FAILURE_3)  # 3.1.1 [MQTT-3.9.3-2]
        self._counters.filter_refused(refusal)
        if session.note(FILTER, refusal.label, now):
            self._log.info("filter_refused", client=session.client_id, reason=refusal.label)

    def _subscribed(self, connection: Connection, session: Session, answer: bytes, replays: list[Replay]) -> None:
        """Send the SUBACK: every worker of the cluster delivers to the new subscriptions. Retained messages follow."""
        if connection.state != OPEN or connection.session is not session:
            return
        self._write(connection, answer)
        if session.losses is not None:
            session.losses.attend()  # one of the filters may be for notices of gaps
        for replay in replays:
            if connection.replays is None:
                connection.replays = {}
            connection.replays[replay.subscription] = replay  # a replay that is under way begins again
        self.continue_replays(connection)

    def unsubscribe(self, connection: Connection, session: Session, packet: Unsubscribe) -> int:
        """Remove each filter that is there [MQTT-3.10.4-1], and answer [MQTT-3.10.4-4], in their order [MQTT-3.11.3-1].

        [MQTT-3.10.4-5], [MQTT-3.10.4-6], [MQTT-2.2.1-6]. The session still delivers what it has queued or begun to
        send [MQTT-3.10.4-3]. Returns the units used. If `connection.pending` is set then, filters are left, for
        `continue_packet()`.
        """
        return self._remove_filters(connection, session, PendingUnsubscribe(packet))

    def _remove_filters(self, connection: Connection, session: Session, pending: PendingUnsubscribe) -> int:
        """Remove some further filters of *pending*; answer after the last one. The units used."""
        filters, codes = pending.packet.filters, pending.codes
        before = len(codes)
        until = min(before + UNSUBSCRIBED_AT_ONCE, len(filters))
        visits = self._routes.visits + VISITED_AT_ONCE
        while len(codes) < until and self._routes.visits < visits:
            subscription = session.subscriptions.pop(filters[len(codes)], None)
            if subscription is None:
                codes.append(NO_SUBSCRIPTION_EXISTED)
            else:
                self._budget.give_back(subscription)
                self._routes.remove(subscription)
                self._drop_replay(connection, subscription)  # [MQTT-3.10.4-2]
                if session.storage is not None:
                    session.storage.unsubscribed(filters[len(codes)])
                codes.append(0)
        if len(codes) < len(filters):
            connection.pending = pending
        else:
            connection.pending = None
            self._counters.unsubscribes += len(codes)
            answer = self._encoded(connection, session, UnsubAck(pending.packet.packet_id, codes))
            self._when_stored(connection, session, partial(self._unsubscribed, connection, session, answer))
        return FILTER_COST * (len(codes) - before)

    def _unsubscribed(self, connection: Connection, session: Session, answer: bytes) -> None:
        if connection.state == OPEN and connection.session is session:
            self._write(connection, answer)

    def _when_stored(self, connection: Connection, session: Session, then: Callable[[], None]) -> None:
        """Call *then* once the subscriptions of *session* are stored; *connection* is not read until then."""
        storage = session.storage
        if storage is None:
            then()
            return
        self._store_pause.pause(connection.outbox)
        storage.when_stored(partial(self._stored, connection, session, then))

    def _stored(self, connection: Connection, session: Session, then: Callable[[], None]) -> None:
        logs = self._routes.logs
        if logs is None or not _has_logs(session):
            self._joined(connection, then)
        else:  # a group begins where its log ends: what is published behind the SUBACK is for it
            logs.when_joined(session, partial(self._joined, connection, then))

    def _joined(self, connection: Connection, then: Callable[[], None]) -> None:
        self._store_pause.resume(connection.outbox)
        then()

    def withdraw(self, session: Session, then: Callable[[], None] | None = None) -> None:
        """Remove all subscriptions of *session*, in pages if that takes long; then call *then*."""
        if len(session.subscriptions) > SUBSCRIPTIONS or not self._withdraw_page(session):
            self._withdrawing.append(Withdrawal(session, then))
        elif then is not None:
            then()

    def enrol(self, session: Session, subscriptions: list[Subscription], then: Callable[[], None]) -> None:
        """Register *subscriptions*, which came from another worker, for *session*, in pages if they are many.

        Then call *then*, also if the session has ended meanwhile. A withdrawal of it that is under way stops.
        """
        for withdrawal in list(self._withdrawing):
            if withdrawal.session is session:
                self._withdrawing.remove(withdrawal)
        enrolment = Enrolment(session, subscriptions, then)
        if len(subscriptions) > SUBSCRIPTIONS:
            self._enrolling.append(enrolment)
            return
        self._enrol_page(enrolment)
        then()

    def owe(self, subscriptions: list[Subscription]) -> dict[Subscription, Replay]:
        """Replays of the retained messages of *subscriptions*, for a client that is not connected yet."""
        return {each: Replay(each, self._retained.match(each.filter)) for each in subscriptions}

    def regroup(self, session: Session, change: Callable[[], None]) -> None:
        """Have *change* make the client of *session* one of the other kind: its shared subscriptions change groups."""
        visits = self._routes.visits
        shared = [each for each in session.subscriptions.values() if each.share]
        for each in shared:
            self._routes.remove(each)
        change()
        for each in shared:
            self._routes.add(each)
        self._routes.invalidate_session(session)  # its publishers wait at another gate
        self._routes.visits = visits

    def judge_again(self, session: Session) -> None:
        """Decide anew what *session* receives: it acts for another principal."""
        self._routes.invalidate_session(session)

    def continue_replays(self, connection: Connection) -> None:
        """Go on with the retained messages for *connection*, if its session has room."""
        if connection.replays is not None and not connection.replaying:
            session = connection.session
            if session is not None and session.ready():
                connection.replaying = True
                self._replaying.append(connection)

    def busy(self) -> bool:
        """Whether `work()` has something to do."""
        return bool(self._replaying or self._withdrawing or self._enrolling)

    def work(self, until: float) -> bool:
        """Work until the time *until*, on a page of each kind at least; true if there is more to do now."""
        now = self._clock()
        while self._withdrawing:
            withdrawal = self._withdrawing.popleft()
            if not self._withdraw_page(withdrawal.session):
                self._withdrawing.appendleft(withdrawal)
            elif withdrawal.then is not None:
                withdrawal.then()
            now = self._clock()
            if now >= until:
                break
        while self._enrolling:
            enrolment = self._enrolling.popleft()
            if enrolment.session.ended or self._enrol_page(enrolment):
                enrolment.then()
            else:
                self._enrolling.appendleft(enrolment)
            now = self._clock()
            if now >= until:
                break
        replaying = self._replaying
        while replaying:
            connection = replaying.popleft()
            if self._replay_page(connection, now):
                replaying.append(connection)
            else:
                connection.replaying = False
            now = self._clock()
            if now >= until:
                break
        return self.busy()

    def _encoded(self, connection: Connection, session: Session, packet: SubAck | UnsubAck) -> bytes:
        """*packet* in bytes, without properties if the client does not accept so many bytes: [MQTT-3.9.2-1],
        [MQTT-3.9.2-2], [MQTT-3.11.2-1], [MQTT-3.11.2-2]. It waits for no acknowledgement [MQTT-3.3.4-10].
        """
        encoded = encode(packet, connection.version)
        if packet.properties and session.maximum_packet and len(encoded) > session.maximum_packet:
            packet.properties = {}
            encoded = encode(packet, connection.version)
        if session.maximum_packet and len(encoded) > session.maximum_packet:
            raise ProtocolError(CloseReason.PACKET_TOO_LARGE, "the answer would be larger than the client takes")
        return encoded

    def _write(self, connection: Connection, answer: bytes) -> None:
        self._counters.answers_sent += 1
        connection.outbox.answer(answer)

    def _withdraw_page(self, session: Session) -> bool:
        """Remove up to SUBSCRIPTIONS of them; true if none is left."""
        visits = self._routes.visits
        for _ in range(min(SUBSCRIPTIONS, len(session.subscriptions))):
            subscription = session.subscriptions.popitem()[1]
            self._budget.give_back(subscription)
            self._routes.remove(subscription)
            if self._routes.visits - visits >= VISITED_AT_ONCE:
                break
        self._routes.visits = visits  # no client pays for them
        return not session.subscriptions

    def _enrol_page(self, enrolment: Enrolment) -> bool:
        """Register up to SUBSCRIPTIONS of them; true if none is left."""
        session = enrolment.session
        left = enrolment.left
        for _ in range(min(SUBSCRIPTIONS, len(left))):
            subscription = left.pop()
            session.subscriptions[subscription.key()] = subscription
            self._budget.take(subscription)
            self._routes.add(subscription)
        return not left

    def _drop_replay(self, connection: Connection, subscription: Subscription) -> None:
        if connection.replays is not None:
            connection.replays.pop(subscription, None)
            if not connection.replays:
                connection.replays = None

    def _refusal(self, session: Session, filter: bytes) -> FilterRefusal | None:
        """Why *session* may not subscribe to *filter*. A filter that it has is refused only by changed access rules."""
        present = session.subscriptions.get(filter)
        if present is not None:
            return self._not_authorized(session, present.filter)
        try:
            check_filter(filter)
        except ProtocolError:
            return FilterRefusal.INVALID
        share, filter = split_share(filter) or (b"", filter)
        if filter.count(b"/") >= self._limits.topic_levels:
            return FilterRefusal.LEVELS
        if len(filter) > self._limits.topic_bytes:
            return FilterRefusal.BYTES
        if len(share) > self._limits.share_name_bytes:
            return FilterRefusal.SHARE_NAME
        if len(session.subscriptions) >= self._limits.subscriptions:
            return FilterRefusal.SUBSCRIPTIONS
        if not self._routes.patterns.fits(filter, share != b"", session.client_id):
            return FilterRefusal.PATTERNS
        if not self._budget.fits(session, filter, share):
            return FilterRefusal.BUDGET
        logs = self._routes.logs
        if share and logs is not None and _has_logs(session):
            if session.storage is not None and session.storage.shared_subscriptions() >= self.shared_filters:
                return FilterRefusal.SHARED_FILTERS
            if logs.unusable():
                return FilterRefusal.LOG_UNAVAILABLE
        return self._not_authorized(session, filter)

    def _not_authorized(self, session: Session, filter: bytes) -> FilterRefusal | None:
        if self._authoriser is None or self._authoriser.may_subscribe(session.principal, filter):
            return None
        return FilterRefusal.NOT_AUTHORIZED

    def _subscribe_one(self, session: Session, wanted: Wanted, identifiers: bytes) -> tuple[int, Replay | None]:
        """Make or replace one subscription; the QoS granted, and the retained messages to follow."""
        subscription = session.subscriptions.get(wanted.filter)
        new = subscription is None
        if subscription is None:
            share, filter = split_share(wanted.filter) or (b"", wanted.filter)
            subscription = session.subscriptions[wanted.filter] = Subscription(session, filter, share)
            self._budget.take(subscription)
        subscription.qos = min(wanted.qos, self._limits.qos)  # granted less, not refused [MQTT-3.2.2-10]
        subscription.no_local = wanted.no_local
        subscription.retain_as_published = wanted.retain_as_published
        subscription.identifiers = identifiers
        if session.storage is not None:
            session.storage.subscribed(subscription)
        if new:
            self._routes.add(subscription)
        else:
            self._routes.changed(subscription)  # replaced, without a gap [MQTT-3.8.4-3], [MQTT-3.8.4-4]
        if subscription.share:
            return subscription.qos, None  # no retained messages for a shared subscription (4.8.2)
        # 3.x has no such option: always, 3.1.1 [MQTT-3.3.1-6]. [MQTT-3.3.1-9] to [MQTT-3.3.1-11]
        if wanted.retain_handling == SEND_ALWAYS or (wanted.retain_handling == SEND_IF_NEW and new):
            return subscription.qos, Replay(subscription, self._retained.match(subscription.filter))
        return subscription.qos, None

    def _replay_page(self, connection: Connection, now: float) -> bool:
        """The next page of retained messages for *connection*; true if it can take more at once."""
        session = connection.session
        replays = connection.replays
        if session is None or replays is None or connection.state != OPEN:
            return False
        replay = next(iter(replays.values()))
        subscription = replay.subscription
        if not replay.page:
            replay.page = [message.topic for message in replay.scan.next_page(PAGE, LEVELS, now)]
            replay.page.reverse()
            visited = replay.scan.visited
            connection.debt += len(replay.page) + 1 + VISIT_COST * visited  # the time is taken off its next turns
            # Credits, too: the messages pay for the levels on their way.
            session.replayed += max(0, visited // VISITS_PER_DELIVERY - len(replay.page))
        authoriser = self._authoriser
        while replay.page and session.ready():
            topic = replay.page.pop()
            if authoriser is not None and not authoriser.may_receive(session.principal, topic):
                continue
            message = self._retained.get(topic, now)  # it may have been replaced since the page was read
            if message is not None:  # as a retained one, 3.1.1 [MQTT-3.3.1-8]
                session.replayed += 1
                session.offer(message.variant(min(message.qos, subscription.qos), True, subscription.identifiers), now)
        if not replay.page and replay.scan.done:
            self._drop_replay(connection, subscription)
        return connection.replays is not None and session.ready()


def _has_logs(session: Session) -> bool:
    return session.storage is not None and session.storage.application


def _scarce(connection: Connection, filters: int, now: float) -> bool:
    """Whether the quota has no room for so many *filters*. Never for 3.x: its SUBSCRIBE waits until there is room."""
    quota = None if connection.client is None else connection.client.quota
    return connection.version == V5 and quota is not None and quota.over_filters(filters, now) is not None


def _take_one(quota: Quota, scarce: bool, now: float) -> QuotaExceeded | None:
    """Charge one filter to *quota*, unless filters are *scarce* and *quota* has no room for it."""
    over = quota.over_filters(1, now) if scarce else None
    if over is None:
        quota.take_filters(1, now)
    return over


def _words(over: QuotaExceeded, now: float) -> Properties:
    """Properties for a SUBACK: why a filter was refused, and when the client may try again."""
    return {REASON_STRING: over.words(), USER_PROPERTY: [(RETRY_AFTER, str(over.retry_after(now)))]}
