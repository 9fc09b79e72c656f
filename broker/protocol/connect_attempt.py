# Arrivals: from the bytes of a CONNECT to the question for its session.
#
# A CONNECT is examined, and then it has its turn: at once, or when those before it have had theirs, at the rate that
# overload/connects.py allows. The authenticator says who sent it, and only then the store is asked: who is not
# known takes no session over, and does not learn whether there is one. Meanwhile the connection is held. Its deadline
# covers the check of its password, and not the time that we make it wait: because that was wrong, or for its turn, with
# which it begins again.
from collections.abc import Callable
from math import inf
from typing import Final, cast

from broker.auth.authenticator import Authenticator, AuthResult
from broker.config.schema import Limits
from broker.metrics.counters import Counters
from broker.metrics.pauses import Pauses
from broker.mqtt.connect import decode_connect, peek_version
from broker.mqtt.fields import read_length
from broker.mqtt.packets import Connect
from broker.net.pauses import Pause
from broker.net.reactor import Reactor
from broker.net.stream import OPEN
from broker.overload.connects import Connects
from broker.protocol.connection import Connection
from broker.protocol.handshake import Terms, agree, busy, examine
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.protocol.timers import CONNECT_DEADLINE, REFUSAL, Timers
from broker.reasons import CloseReason, PauseReason, ProtocolError
from broker.routing.authority import Authoriser
from broker.session.principal import NOBODY, Principal
from broker.session.session import Session
from broker.store.sessions import SessionStore

AT_ONCE: Final = 16  # whose turn it is in one slice, at about 40 us each
LOOK: Final = 0.1  # seconds until we look again whether the store takes more; its answers have us look, too
BUSY: Final = (CloseReason.SERVER_BUSY, CloseReason.CONNECTS_WAITING, CloseReason.CONNECT_DISPLACED)


class Arrivals:
    def __init__(
        self,
        lifecycle: ConnectionLifecycle,
        authenticator: Authenticator,
        store: SessionStore,
        reactor: Reactor,
        timers: Timers,
        counters: Counters,
        limits: Limits,
        connects: Connects,
        pauses: Pauses,
        new_client_id: Callable[[], str],
        chance: Callable[[], float],
        clock: Callable[[], float],
        authoriser: Authoriser | None,
    ) -> None:
        """*chance*: from 0 to 1, another one each time, to spread those whom we tell to come again."""
        self._lifecycle = lifecycle
        self._authenticator = authenticator
        self._store = store
        self._reactor = reactor
        self._timers = timers
        self._counters = counters
        self._limits = limits
        self._connects = connects
        self._pauses = pauses
        self._chance = chance
        self._new_client_id = new_client_id
        self._clock = clock
        self._authoriser = authoriser

    def connect(self, connection: Connection, data: bytes, header: int, start: int, stop: int, now: float) -> None:
        """The CONNECT that begins at *header*, its body data[start:stop]: refused, or answered with its session.

        What is no CONNECT at all ends here, too: 5.0 and an unknown level are told so, 3.x is not [MQTT-3.1.4-1],
        3.1.1 [MQTT-3.1.4-1].
        """
        self._counters.connects_received += 1
        if connection.claiming:
            raise ProtocolError(CloseReason.PROTOCOL_ERROR, "a second CONNECT")  # [MQTT-3.1.0-2]
        connection.version = peek_version(data, start, stop)
        packet = decode_connect(data, start, stop)
        # Only now is it known whether the length may be padded. 3.1.1 asks for no shortest form (2.2.3), and a client
        # that leaves room for four bytes before it knows the length is within its rights there.
        read_length(data, header + 1, start, packet.version)  # [MQTT-1.5.5-1]
        connection.named = packet.client_id
        reason = examine(packet, self._limits)
        if reason is None and connection.surplus is CloseReason.CONNECT_RATE:
            reason = CloseReason.CONNECT_RATE
        if reason is None and self._lifecycle.stopping:
            reason = CloseReason.SHUTTING_DOWN
        if reason is not None:
            self._lifecycle.refuse(connection, reason, "", now)  # [MQTT-3.1.4-2], [MQTT-3.1.3-8]
            return
        connection.claiming = True
        if self._store.has_room(now) and self._connects.at_once(now):
            self._ask(connection, packet)
        else:
            self._wait(connection, packet, now)

    def _wait(self, connection: Connection, packet: Connect, now: float) -> None:
        """It is not its turn yet."""
        self._lifecycle.delay(packet.client_id)
        waiter = _Waiting(connection, packet, now)
        displaced = self._connects.offer(waiter)
        if displaced is not waiter:
            self._timers.cancel(connection.timer, connection)
            connection.timer = 0
            connection.waiter = waiter
            self._pauses.hold(PauseReason.CONNECT, now)
            self._reactor.pause_unauthenticated(connection, Pause.CONNECT)
            self._reactor.soon(self._connects.due(now))
        if displaced is not None:
            gone = cast(_Waiting, displaced)
            reason = CloseReason.CONNECTS_WAITING if gone is waiter else CloseReason.CONNECT_DISPLACED
            if gone is not waiter:
                self._waits_no_more(gone.connection, now)
            self._refuse(gone.connection, gone.packet, reason, now)

    def tick(self, now: float) -> float:
        """Let go on whose turn it is; when the next one's will be."""
        connects = self._connects
        for _ in range(AT_ONCE):
            if not connects.waiting():
                return inf
            if not self._store.has_room(now):
                return now + LOOK
            waiter = connects.next(now)
            if waiter is None:
                break
            self._take_turn(cast(_Waiting, waiter), now)
        return connects.due(now)

    def _take_turn(self, waiter: "_Waiting", now: float) -> None:
        connection = waiter.connection
        self._waits_no_more(connection, now)
        connection.timer = self._timers.set(now + self._limits.connect_timeout, CONNECT_DEADLINE, connection)
        try:
            self._ask(connection, waiter.packet)
        except Exception as error:  # our mistake; nobody above us knows of this connection
            self.failed(connection, error)

    def _waits_no_more(self, connection: Connection, now: float) -> None:
        connection.waiter = None
        self._pauses.let_go(PauseReason.CONNECT, now)

    def _ask(self, connection: Connection, packet: Connect) -> None:
        identity = "" if connection.layer is None else connection.layer.identity
        check = self._authenticator.authenticate(identity, packet, _Admitted(self, connection, packet))
        if connection.claiming and connection.state == OPEN:
            connection.check = check
            # Until the authenticator and the store have answered.
            self._reactor.pause_unauthenticated(connection, Pause.CONNECT)

    def admitted(self, connection: Connection, packet: Connect, result: AuthResult) -> None:
        """Authenticator has answered: go on with the store, or refuse."""
        connection.check = None
        if connection.state != OPEN:
            return
        now = self._clock()
        if result.reason is CloseReason.BAD_CREDENTIALS:
            self._refuse_slowly(connection, packet, now)
            return
        reason = result.reason
        connection.user = result.user
        principal = NOBODY
        # [MQTT-3.1.3-6], [MQTT-3.1.3-7]; 122 random bits: nobody has it [MQTT-3.2.2-16].
        assigned = "" if packet.client_id else self._new_client_id()
        packet.client_id = packet.client_id or assigned
        authoriser = self._authoriser
        if reason is None and authoriser is not None:
            principal = Principal(packet.client_id, result.user, authoriser.generation)
            if packet.will is not None and not authoriser.may_publish(principal, packet.will.topic):
                reason = CloseReason.NOT_AUTHORIZED  # its will would not be published
        if reason is not None:
            self._refuse(connection, packet, reason, now)
            return
        terms = agree(packet, self._limits)
        self._store.claim(_Claim(self, self._lifecycle, connection, packet, terms, assigned, principal))

    def _refuse(self, connection: Connection, packet: Connect, reason: CloseReason, now: float) -> None:
        connection.claiming = False
        connack = None
        if reason in BUSY:
            connack = busy(packet, reason, self._connects.retry_after(self._chance()))
        self._lifecycle.refuse(connection, reason, _who(packet), now, connack)

    def failed(self, connection: Connection, error: Exception) -> None:
        self._lifecycle.failed(connection, error, self._clock())

    def _refuse_slowly(self, connection: Connection, packet: Connect, now: float) -> None:
        """A wrong password: the answer waits, longer with each failure of that address."""
        self._timers.cancel(connection.timer, connection)
        wait = self._authenticator.failures.add(connection.address, now)
        connection.refusal = _who(packet)
        connection.timer = self._timers.set(now + wait, REFUSAL, connection)


class _Waiting:
    """A CONNECT that waits for its turn."""

    def __init__(self, connection: Connection, packet: Connect, since: float) -> None:
        self.since = since
        self.client_id = packet.client_id
        self.connection = connection
        self.packet = packet

    def silent(self) -> bool:
        return not (self.connection.has_input() or self.connection.left)


class _Admitted:
    """What to do when authenticator knows who sent a CONNECT."""

    def __init__(self, arrivals: Arrivals, connection: Connection, packet: Connect) -> None:
        self._arrivals = arrivals
        self._connection = connection
        self._packet = packet

    def __call__(self, result: AuthResult) -> None:
        try:
            self._arrivals.admitted(self._connection, self._packet, result)
        except Exception as error:  # our mistake; whoever calls us later knows nothing of this connection
            self._arrivals.failed(self._connection, error)


class _Claim:
    """A CONNECT whose session the store looks for: a `Claimant`."""

    def __init__(
        self,
        arrivals: Arrivals,
        lifecycle: ConnectionLifecycle,
        connection: Connection,
        packet: Connect,
        terms: Terms,
        assigned: str,
        principal: Principal,
    ) -> None:
        self.client_id = packet.client_id
        self.clean_start = packet.clean_start
        self.expiry = terms.expiry
        self.will = packet.will
        self.user = connection.user
        self._arrivals = arrivals
        self._lifecycle = lifecycle
        self._connection = connection
        self._packet = packet
        self._terms = terms
        self._assigned = assigned
        self._principal = principal

    def found(self, session: Session | None) -> None:
        connection = self._connection
        try:
            self._lifecycle.claimed(connection, self._packet, self._terms, self._assigned, self._principal, session)
        except Exception as error:  # our mistake; a store that answers later knows nothing of this connection
            self._arrivals.failed(connection, error)

    def refused(self, reason: CloseReason) -> None:
        try:
            self._lifecycle.not_claimed(self._connection, reason)
        except Exception as error:
            self._arrivals.failed(self._connection, error)


def _who(packet: Connect) -> str:
    """For the log: who somebody said to be. Never what they said to prove it."""
    user = "no user name" if packet.user_name is None else f"user {packet.user_name!r}"
    return f"{user}, client {packet.client_id!r}"
