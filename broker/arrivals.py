# Arrivals: from the bytes of a CONNECT to the question for its session.
#
# A CONNECT is examined, then admission says who sent it, and only then the store is asked for its session: who is not
# known takes no session over, and does not learn whether there is one. Meanwhile the connection is held. Its deadline
# covers the check of its password, and not the time that we make somebody wait who named a wrong one.
from collections.abc import Callable

from broker.admission import Admission, Answer
from broker.config import Limits
from broker.connection import Connection
from broker.handshake import Terms, agree, examine
from broker.metrics.counters import Counters
from broker.mqtt.connect import decode_connect, peek_version
from broker.mqtt.fields import read_length
from broker.mqtt.packets import Connect
from broker.net.reactor import Reactor
from broker.net.stream import OPEN
from broker.reasons import CloseReason, ProtocolError
from broker.reception import Reception
from broker.routing.authority import Authoriser
from broker.session.principal import NOBODY, Principal
from broker.session.session import Session
from broker.store.sessions import SessionStore
from broker.timers import REFUSAL, Timers


class Arrivals:
    def __init__(
        self,
        reception: Reception,
        admission: Admission,
        store: SessionStore,
        reactor: Reactor,
        timers: Timers,
        counters: Counters,
        limits: Limits,
        new_client_id: Callable[[], str],
        clock: Callable[[], float],
        authoriser: Authoriser | None,
    ) -> None:
        self._reception = reception
        self._admission = admission
        self._store = store
        self._reactor = reactor
        self._timers = timers
        self._counters = counters
        self._limits = limits
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
        reason = examine(packet, self._limits)
        if reason is None and connection.surplus is CloseReason.CONNECT_RATE:
            reason = CloseReason.CONNECT_RATE
        if reason is None and self._reception.stopping:
            reason = CloseReason.SHUTTING_DOWN
        if reason is not None:
            self._reception.refuse(connection, reason, "", now)  # [MQTT-3.1.4-2], [MQTT-3.1.3-8]
            return
        connection.claiming = True
        identity = "" if connection.layer is None else connection.layer.identity
        check = self._admission.ask(identity, packet, _Admitted(self, connection, packet))
        if connection.claiming and connection.state == OPEN:
            connection.check = check
            self._reactor.hold(connection)  # until admission and the store have answered

    def admitted(self, connection: Connection, packet: Connect, answer: Answer) -> None:
        """Admission has answered: go on with the store, or refuse."""
        connection.check = None
        if connection.state != OPEN:
            return
        now = self._clock()
        if answer.reason is CloseReason.BAD_CREDENTIALS:
            self._refuse_slowly(connection, packet, now)
            return
        reason = answer.reason
        connection.user = answer.user
        principal = NOBODY
        # [MQTT-3.1.3-6], [MQTT-3.1.3-7]; 122 random bits: nobody has it [MQTT-3.2.2-16].
        assigned = "" if packet.client_id else self._new_client_id()
        packet.client_id = packet.client_id or assigned
        authoriser = self._authoriser
        if reason is None and authoriser is not None:
            principal = Principal(packet.client_id, answer.user, authoriser.generation)
            if packet.will is not None and not authoriser.may_publish(principal, packet.will.topic):
                reason = CloseReason.NOT_AUTHORIZED  # its will would not be published
        if reason is not None:
            connection.claiming = False
            self._reception.refuse(connection, reason, _who(packet), now)
            return
        terms = agree(packet, self._limits)
        self._store.claim(_Claim(self, self._reception, connection, packet, terms, assigned, principal))

    def failed(self, connection: Connection, error: Exception) -> None:
        self._reception.failed(connection, error, self._clock())

    def _refuse_slowly(self, connection: Connection, packet: Connect, now: float) -> None:
        """A wrong password: the answer waits, longer with each failure of that address."""
        self._timers.cancel(connection.timer, connection)
        wait = self._admission.failures.add(connection.address, now)
        connection.refusal = _who(packet)
        connection.timer = self._timers.set(now + wait, REFUSAL, connection)


class _Admitted:
    """What to do when admission knows who sent a CONNECT."""

    def __init__(self, arrivals: Arrivals, connection: Connection, packet: Connect) -> None:
        self._arrivals = arrivals
        self._connection = connection
        self._packet = packet

    def __call__(self, answer: Answer) -> None:
        try:
            self._arrivals.admitted(self._connection, self._packet, answer)
        except Exception as error:  # our mistake; whoever calls us later knows nothing of this connection
            self._arrivals.failed(self._connection, error)


class _Claim:
    """A CONNECT whose session the store looks for: a `Claimant`."""

    def __init__(
        self,
        arrivals: Arrivals,
        reception: Reception,
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
        self._reception = reception
        self._connection = connection
        self._packet = packet
        self._terms = terms
        self._assigned = assigned
        self._principal = principal

    def found(self, session: Session | None) -> None:
        connection = self._connection
        try:
            self._reception.claimed(connection, self._packet, self._terms, self._assigned, self._principal, session)
        except Exception as error:  # our mistake; a store that answers later knows nothing of this connection
            self._arrivals.failed(connection, error)

    def refused(self, reason: CloseReason) -> None:
        try:
            self._reception.not_claimed(self._connection, reason)
        except Exception as error:
            self._arrivals.failed(self._connection, error)


def _who(packet: Connect) -> str:
    """For the log: who somebody said to be. Never what they said to prove it."""
    user = "no user name" if packet.user_name is None else f"user {packet.user_name!r}"
    return f"{user}, client {packet.client_id!r}"
