# A CONNECT, from its bytes to its CONNACK.
#
# A `ConnectAttempt` takes the steps of `State` (states.py) one after the other: it validates the packet, waits for its
# turn if more clients connect than overload/connects.py lets in, has the client authenticated, asks the session store
# for the session, and welcomes the client. The store is asked only for a client that is authenticated: any other takes
# over no session, and does not learn whether there is one.
#
# A client whose end has come with its CONNECT takes over no session either, unless it has sent more: a worker that
# was stopped for a while finds such CONNECTs of clients that are connected elsewhere by now. The kernel reports the
# end with the input, so no other CONNECT costs a call for that. Such a CONNECT waits for its turn, which comes in the
# same slice: in between the loop reads on, and drops a connection that ends there. A client that sent all it had to
# say and went (it need not wait for CONNACK) is served.
#
# Each step that does not answer at once pauses the connection and has a deadline. The time to authenticate and to claim
# begins with the turn; neither the wait for the turn nor the delay of a refusal counts in it.
# Authentication may take several rounds: the authenticator answers when it is ready, and AUTH is legal in that state.
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final, cast

from broker.auth.authenticator import Authenticator, AuthResult, PendingCheck
from broker.auth.bans import Bans
from broker.auth.client_ids import ClientIds
from broker.config.schema import Limits
from broker.log import Log
from broker.metrics.counters import Counters
from broker.metrics.pause_statistics import PauseStatistics
from broker.mqtt.connect import decode_connect, peek_version
from broker.mqtt.encode import encode
from broker.mqtt.fields import read_length
from broker.mqtt.packets import V5, Connect
from broker.mqtt.packets import Will as WillFields
from broker.net.pauses import Pause
from broker.net.reactor import Reactor
from broker.overload.connects import Connects
from broker.overload.placement import LONG, NodeRoom, Placement
from broker.protocol.ban_enforcement import words
from broker.protocol.client_kinds import ClientKinds
from broker.protocol.connection import Connection, PendingConnect
from broker.protocol.handshake import accept, agree, busy, elsewhere, examine, waiting_memory
from broker.protocol.kind_changes import KindChanges
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.protocol.session_lifecycle import SessionLifecycle
from broker.protocol.states import DEADLINES, Input, State
from broker.protocol.subscribing import Subscribing
from broker.reasons import CloseReason, PauseReason
from broker.routing.authority import Authoriser
from broker.session.principal import ANONYMOUS, NOBODY, Principal
from broker.session.session import Session
from broker.session.will import will_memory
from broker.store.sessions import Claims, SessionStore

TURNS: Final = 16  # CONNECTs whose turn comes in one slice, at about 40 us each
RETRY: Final = 0.1  # seconds until a store that is full is asked again for room; its answers lead to a tick, too
TURN_TIMEOUT: Final = 300.0  # seconds that a CONNECT may wait for its turn; a client gives up long before
BUSY: Final = (CloseReason.SERVER_BUSY, CloseReason.CONNECTS_WAITING, CloseReason.CONNECT_DISPLACED)
AUTH_FAILED: Final = (
    CloseReason.BAD_CREDENTIALS,
    CloseReason.NOT_AUTHORIZED,
    CloseReason.GUESSES_OF_USER,
    CloseReason.GUESSES_OF_ADDRESS,
)


class ConnectAttempts:
    """Makes an attempt of each CONNECT, and has those that wait take their turns."""

    def __init__(
        self,
        lifecycle: ConnectionLifecycle,
        sessions: SessionLifecycle,
        authenticator: Authenticator,
        bans: Bans,
        client_ids: ClientIds,
        kinds: ClientKinds,
        changes: KindChanges,
        claims: Claims,
        store: SessionStore,
        subscribing: Subscribing,
        reactor: Reactor,
        counters: Counters,
        log: Log,
        limits: Limits,
        connects: Connects,
        placement: Placement,
        pauses: PauseStatistics,
        new_client_id: Callable[[], str],
        chance: Callable[[], float],
        clock: Callable[[], float],
        authoriser: Authoriser | None,
    ) -> None:
        """*chance* returns random numbers from 0 to 1, which spread the clients that are told to come again."""
        self.lifecycle = lifecycle
        self.sessions = sessions
        self.authenticator = authenticator
        self.bans = bans
        self.client_ids = client_ids
        self.kinds = kinds
        self.changes = changes
        self.claims = claims
        self.store = store
        self.subscribing = subscribing
        self.reactor = reactor
        self.counters = counters
        self.log = log
        self.limits = limits
        self.connects = connects
        self.placement = placement
        self.pauses = pauses
        self.new_client_id = new_client_id
        self.chance = chance
        self.clock = clock
        self.authoriser = authoriser

    def connect(self, connection: Connection, data: bytes, header: int, body: int, stop: int, now: float) -> None:
        """Answer the CONNECT in data[header:stop], now or later. ProtocolError: it is none.

        Bytes that are no CONNECT of a known version are refused in 5.0 with a CONNACK, in 3.x without [MQTT-3.1.4-1],
        3.1.1 [MQTT-3.1.4-1].
        """
        connection.enter(Input.CONNECT)
        self.counters.connects_received += 1
        connection.version = peek_version(data, body, stop)
        packet = decode_connect(data[header], data, body, stop)
        connection.version = packet.version
        # Whether the length may be padded depends on the version. 3.1.1 asks for no shortest form (2.2.3), so a client
        # of it may write four bytes before it knows the length.
        read_length(data, header + 1, body, packet.version)  # [MQTT-1.5.5-1]
        attempt = ConnectAttempt(self, connection, packet, stop - header, now)
        connection.attempt = attempt
        attempt.validate(now)

    def tick(self, now: float) -> float:
        """Have CONNECTs take their turns; the time of the next turn."""
        connects = self.connects
        for _ in range(TURNS):
            if not connects.waiting():
                return inf
            if not self.claims.has_room(now):
                return now + RETRY
            waiter = connects.next(now)
            if waiter is None:
                break
            cast(ConnectAttempt, waiter).take_turn(now)
        return connects.due(now)


class ConnectAttempt(PendingConnect):
    """One CONNECT: the `Waiter` of overload/connects.py, and the `Claimant` of the session store."""

    def __init__(
        self, attempts: ConnectAttempts, connection: Connection, packet: Connect, size: int, now: float
    ) -> None:
        """*size*: bytes of *packet* on the wire."""
        super().__init__(packet.client_id)
        self._size = size
        self.since = now
        self.client_id = packet.client_id  # the broker assigns one to a client that has none
        self.clean_start = packet.clean_start
        self.will = packet.will
        self.terms = agree(packet, attempts.limits)
        self.expiry = self.terms.expiry
        self.user: str | None = None  # the user name, once it is verified
        self.owner = ANONYMOUS
        self._attempts = attempts
        self._connection = connection
        self._packet = packet
        self._principal = NOBODY
        self._check: PendingCheck | None = None  # of the password, while it waits or is under way

    # Validating.

    def validate(self, now: float) -> None:
        """Refuse what no state of the broker could accept; wait for the turn, or take it at once."""
        attempts = self._attempts
        reason = examine(self._packet, attempts.limits)
        if reason is None and self._connection.surplus is CloseReason.CONNECT_RATE:
            reason = CloseReason.CONNECT_RATE
        if reason is None and attempts.lifecycle.stopping:
            reason = CloseReason.SHUTTING_DOWN
        if reason is not None:
            attempts.lifecycle.refuse(self._connection, reason, "", now)  # [MQTT-3.1.4-2], [MQTT-3.1.3-8]
        elif attempts.lifecycle.draining:
            self._send_elsewhere(CloseReason.DRAINING, attempts.placement.send(now), now)
        elif self._refused_if_banned(self._packet.user_name, now):
            pass
        elif self._connection.end_reported:
            self._wait(now)
        elif attempts.claims.has_room(now) and attempts.connects.at_once(now):
            self._connection.enter(Input.TURN)
            self._authenticate()
        else:
            attempts.counters.connects_delayed += 1
            attempts.log.info("client_throttled", client=self.client_id, reason=PauseReason.CONNECT.label)
            self._wait(now)

    def _refused_if_banned(self, user: str | None, now: float) -> bool:
        """Refuse a client that is banned by its client id, its address, or as *user*."""
        attempts, connection = self._attempts, self._connection
        ban = attempts.bans.find(self.client_id, user, connection.address, now)
        if ban is None:
            return False
        attempts.lifecycle.refuse(connection, CloseReason.BANNED, f"{words(ban)}, {_who(self._packet)}", now)
        return True

    # Waiting for the turn.

    def _wait(self, now: float) -> None:
        attempts, connection = self._attempts, self._connection
        if self._packet.version == V5 and attempts.connects.ahead() >= LONG:
            room = attempts.placement.better(now)
            if room is not None:
                self._send_elsewhere(CloseReason.OTHER_NODE_CALMER, room, now)
                return
        displaced = attempts.connects.offer(self, waiting_memory(self._packet, self._size))
        if displaced is self:
            self._refuse(CloseReason.CONNECTS_WAITING, now)
            return
        connection.enter(Input.NO_TURN)
        attempts.lifecycle.set_deadline(connection, now + TURN_TIMEOUT)
        attempts.pauses.begin_unnamed(PauseReason.CONNECT, now)
        attempts.reactor.pause_unauthenticated(connection, Pause.CONNECT)
        attempts.reactor.soon(attempts.connects.due(now))
        if displaced is not None:
            cast(ConnectAttempt, displaced)._refuse(CloseReason.CONNECT_DISPLACED, now)

    def silent(self) -> bool:
        """Whether the client has sent nothing since its CONNECT."""
        return not (self._connection.has_input() or self._connection.left)

    def take_turn(self, now: float) -> None:
        """Go on: the attempt does not stand in the queue any more."""
        attempts, connection = self._attempts, self._connection
        connection.enter(Input.TURN)
        attempts.pauses.end_unnamed(PauseReason.CONNECT, now)
        attempts.lifecycle.set_deadline(connection, now + attempts.limits.connect_timeout)
        try:
            self._authenticate()
        except Exception as error:
            self._failed(error)

    # Authenticating.

    def _authenticate(self) -> None:
        attempts, connection = self._attempts, self._connection
        identity = "" if connection.layer is None else connection.layer.identity
        check = attempts.authenticator.authenticate(
            identity, connection.address, self._packet, self._authentication_done
        )
        if State.AUTHENTICATING <= connection.protocol_state <= State.CLAIMING:  # it is answered later
            self._check = check
            attempts.reactor.pause_unauthenticated(connection, Pause.CONNECT)

    def _authentication_done(self, result: AuthResult) -> None:
        try:
            self._authenticated(result)
        except Exception as error:  # the caller knows nothing of this connection
            self._failed(error)

    def _authenticated(self, result: AuthResult) -> None:
        attempts, connection, packet = self._attempts, self._connection, self._packet
        self._check = None
        if connection.protocol_state is not State.AUTHENTICATING:
            return  # it ended meanwhile
        now = attempts.clock()
        reason = result.reason
        if reason in AUTH_FAILED:  # an event of its own: other refusals cannot use up its lines
            attempts.log.warning(
                "auth_failed",
                client=packet.client_id,
                user=packet.user_name,
                address=connection.address,
                reason=reason.label,
            )
        if reason is CloseReason.BAD_CREDENTIALS:  # the answer is delayed, longer with each failure of the address
            connection.enter(Input.BAD_CREDENTIALS)
            delay = attempts.authenticator.failures.add(connection.address, now)
            attempts.lifecycle.set_deadline(connection, now + delay)
            return
        self.user = connection.user = result.user
        if self._refused_if_banned(result.user, now):
            return
        # [MQTT-3.1.3-6], [MQTT-3.1.3-7]; 122 random bits: no other client has this id [MQTT-3.2.2-16].
        client_ids = attempts.client_ids
        self.client_id = packet.client_id or client_ids.assigned(result.user, attempts.new_client_id())
        self.owner = client_ids.owner(result.user)
        authoriser = attempts.authoriser
        if result.user is not None or authoriser is not None:  # other sessions share NOBODY
            generation = 0 if authoriser is None else authoriser.generation
            self._principal = Principal(self.client_id, result.user, generation)
        if reason is None and not client_ids.allows(self.client_id, result.user):
            reason = CloseReason.CLIENT_ID_RULE
        if reason is None and authoriser is not None:
            if packet.will is not None and not authoriser.may_publish(self._principal, packet.will.topic):
                reason = CloseReason.NOT_AUTHORIZED
        if reason is None and packet.will is not None and not self._will_fits(packet.will):
            reason = CloseReason.WILL_BUDGET
        if reason is not None:
            self._refuse(reason, now)
            return
        connection.enter(Input.AUTHENTICATED)
        attempts.claims.claim(self)

    def _will_fits(self, will: WillFields) -> bool:
        """Whether there is room for *will*, which replaces one that the session has at this worker."""
        attempts = self._attempts
        here = attempts.store.find(self.client_id)
        replaced = 0 if here is None or here.will is None else here.will.held
        return attempts.sessions.wills.fits(will_memory(will) - replaced)

    # Claiming.

    def found(self, session: Session | None) -> None:
        """The store has found *session*, or none, for this client."""
        connection = self._connection
        try:
            now = self._attempts.clock()
            if connection.protocol_state is State.CLAIMING:
                self._attempts.reactor.resume(connection, Pause.CONNECT)
                self._welcome(session, now)
            if session is not None and session.outbox is None and session.expiry_timer == 0 and not session.ended:
                self._attempts.sessions.rest(session, now)  # it came from another worker for a client that is gone
        except Exception as error:  # a store that answers later knows nothing of this connection
            self._failed(error)

    def refused(self, reason: CloseReason) -> None:
        """The store cannot say whether there is a session, or the client may not have it."""
        connection = self._connection
        try:
            if connection.protocol_state is State.CLAIMING:
                self._refuse(reason, self._attempts.clock())
        except Exception as error:
            self._failed(error)

    # Welcoming.

    def _welcome(self, found: Session | None, now: float) -> None:
        """Give the client its session, the one that was *found* or a new one, and answer with CONNACK."""
        attempts, connection, packet, terms = self._attempts, self._connection, self._packet, self.terms
        lifecycle, sessions = attempts.lifecycle, attempts.sessions
        assigned = "" if packet.client_id else self.client_id
        connack = accept(packet, terms, False, assigned, attempts.limits)
        if terms.maximum_packet and len(encode(connack, packet.version)) > terms.maximum_packet:
            # A refusal could be too large as well [MQTT-3.1.2-24].
            lifecycle.refuse_with(None, connection, CloseReason.PACKET_TOO_LARGE, "CONNACK", now)
            return
        former = None if found is None else lifecycle.connection_of(found)
        reason = lifecycle.missing_room(connection, former)
        if reason is None and found is None and attempts.store.count() >= attempts.limits.sessions:
            reason = CloseReason.SESSION_LIMIT
        ends = former is not None and found is not None and found.expiry == 0  # with its connection
        begins = found is None or found.ended or ends or packet.clean_start
        if reason is None and begins and not sessions.may_begin(terms.expiry, now):
            reason = CloseReason.SERVER_UNAVAILABLE
        if reason is None and found is not None and not begins and attempts.changes.under_way(found):
            reason = CloseReason.SERVER_UNAVAILABLE
        application, detail = False, ""
        if reason is None and begins:
            application = attempts.kinds.of(self.client_id, self.user, connection.transport, packet, terms.expiry)
            detail = sessions.log_trouble() if application else ""
            reason = CloseReason.LOG_UNAVAILABLE if detail else None
            replaces = found is not None and found.storage is not None and found.storage.application
            if application and not replaces and attempts.store.count_applications() >= attempts.kinds.most:
                reason = CloseReason.APPLICATION_LIMIT
        if reason is not None:
            lifecycle.refuse(connection, reason, detail, now)
            return
        if former is not None:
            lifecycle.close(former, CloseReason.SESSION_TAKEN_OVER, now)  # [MQTT-3.1.4-3]
        if found is not None and not begins and self._waits_for_log(found, now):
            return
        if found is not None and packet.clean_start and not found.ended:  # [MQTT-3.1.4-4]
            sessions.end(found, now)  # [MQTT-3.1.2-4], 3.1.1 [MQTT-3.1.2-6]
        if found is None or found.ended:
            session = sessions.begin(  # [MQTT-3.1.2-6]; session present stays 0 [MQTT-3.2.2-2]
                self.client_id, terms.expiry, application
            )
        else:
            session = found  # [MQTT-3.1.2-5], 3.1.1 [MQTT-3.1.2-4]
            connack.session_present = True  # [MQTT-3.2.2-3]
        self._act_for_principal(session)
        sessions.limit(session)
        lifecycle.begin(connection, session, terms, packet.will, now)
        connection.outbox.answer(encode(connack, packet.version))  # [MQTT-3.1.4-5], [MQTT-3.2.0-1], [MQTT-3.2.0-2]
        attempts.counters.answers_sent += 1
        attempts.counters.connects_accepted += 1
        attempts.log.info(
            "client_connected",
            client=session.client_id,
            address=connection.address,
            transport=connection.transport,
            version=packet.version,
            clean=packet.clean_start,
            keep_alive=terms.keep_alive,
        )
        session.resume(now)
        attempts.subscribing.continue_replays(connection)

    def _waits_for_log(self, session: Session, now: float) -> bool:
        """Whether the client waits for a log that *session* gets, as it is of another kind than before."""
        attempts, connection, expiry = self._attempts, self._connection, self.terms.expiry
        if not expiry:  # it ends with the connection, and stays what it is until then
            return False
        application = attempts.kinds.of(self.client_id, self.user, connection.transport, self._packet, expiry)
        if not attempts.changes.wanted(session, application, attempts.kinds, now):
            return False
        attempts.changes.begin_log(session, partial(self._has_log, session))
        if connection.protocol_state is State.CLAIMING:
            attempts.reactor.pause_unauthenticated(connection, Pause.CONNECT)
        return True

    def _has_log(self, session: Session) -> None:
        connection = self._connection
        try:
            if connection.protocol_state is State.CLAIMING:
                self._attempts.reactor.resume(connection, Pause.CONNECT)
                self._welcome(session, self._attempts.clock())
        except Exception as error:  # the store knows nothing of this connection
            self._failed(error)

    def _act_for_principal(self, session: Session) -> None:
        """Have *session*, which has no connection, act for the client that was authenticated.

        The session may have been left by another user, or the rules have changed since. Then its routes are decided
        anew, and queued messages that the client may not receive are dropped.
        """
        principal, former = self._principal, session.principal
        session.principal = principal
        authoriser = self._attempts.authoriser
        if authoriser is None or former is NOBODY:
            return
        if not principal.acts_for(former):
            self._attempts.subscribing.judge_again(session)
        elif principal.judged == former.judged:
            return
        session.withhold(partial(authoriser.may_receive, principal), self._attempts.clock())

    # Ends.

    def deadline_passed(self, now: float) -> None:
        reason = DEADLINES[self._connection.protocol_state]
        if reason is CloseReason.CONNECT_TIMEOUT:
            self._attempts.lifecycle.close(self._connection, reason, now)
        else:
            self._refuse(reason, now)

    def cancel(self, now: float) -> None:
        if self._connection.protocol_state is State.WAITING_TURN:
            self._attempts.connects.remove(self)
            self._attempts.pauses.end_unnamed(PauseReason.CONNECT, now)
        if self._check is not None:
            self._attempts.authenticator.abandon(self._check)
            self._check = None

    def _refuse(self, reason: CloseReason, now: float) -> None:
        attempts, packet = self._attempts, self._packet
        if reason in BUSY:
            room = attempts.placement.better(now) if packet.version == V5 else None
            if room is not None:
                self._send_elsewhere(CloseReason.OTHER_NODE_CALMER, room, now)
                return
            wait = attempts.placement.connect_wait(attempts.connects.ahead(), now)
            connack = busy(packet, reason, attempts.connects.retry_after(attempts.chance(), wait))
            attempts.lifecycle.refuse_with(connack, self._connection, reason, _who(packet), now)
        else:
            attempts.lifecycle.refuse(self._connection, reason, _who(packet), now)

    def _send_elsewhere(self, reason: CloseReason, room: NodeRoom | None, now: float) -> None:
        """Refuse the client, which is to use the node with that *room*; None: another one."""
        reference = "" if room is None else room.reference
        detail = f"sent to {reference}, {_who(self._packet)}" if reference else _who(self._packet)
        connack = elsewhere(self._packet, reason, reference)
        self._attempts.lifecycle.refuse_with(connack, self._connection, reason, detail, now)

    def _failed(self, error: Exception) -> None:
        self._attempts.lifecycle.failed(self._connection, error, self._attempts.clock())


def _who(packet: Connect) -> str:
    """For the log: the names that a CONNECT gives. Never the password."""
    user = "no user name" if packet.user_name is None else f"user {packet.user_name!r}"
    return f"{user}, client {packet.client_id!r}"
