# A client's connection: what belongs to it and not to the session.
import socket
from typing import Final

from broker.delivery.completion import AnswerQueue
from broker.delivery.outbox import Outbox
from broker.mqtt.packets import Subscribe, Unsubscribe
from broker.net.stream import Stream
from broker.overload.addresses import Address
from broker.overload.client import ProtectedClient
from broker.overload.quotas.quota import QuotaExceeded
from broker.protocol.states import Input, State, step
from broker.reasons import CloseReason
from broker.routing.retained import RetainedScan
from broker.session.session import Session
from broker.session.subscription import Subscription

GRACE: Final = 1.5  # times the keep alive a client may be silent [MQTT-3.1.2-22]


class Replay:
    """Retained messages on their way to a new subscription, page by page."""

    def __init__(self, subscription: Subscription, scan: RetainedScan) -> None:
        self.subscription = subscription
        self.scan = scan
        self.page: list[bytes] = []  # topics that were found, the next one last


class PendingSubscribe:
    """A SUBSCRIBE whose first filters have been taken. Its packet stays in the input until the last one has been."""

    def __init__(self, packet: Subscribe, identifiers: bytes, scarce: bool) -> None:
        self.packet = packet
        self.identifiers = identifiers  # as an encoded property
        self.scarce = scarce  # the quota has no room for all of its filters
        self.over: QuotaExceeded | None = None  # the last quota that refused a filter
        self.codes: list[int] = []  # one for each filter that was taken
        self.replays: list[Replay] = []


class PendingUnsubscribe:
    """An UNSUBSCRIBE whose first filters have been removed. Its packet stays in the input until the last one is."""

    def __init__(self, packet: Unsubscribe) -> None:
        self.packet = packet
        self.codes: list[int] = []  # one for each filter that was removed


class PendingConnect:
    """A CONNECT that is not answered yet, as far as its connection knows it: a `ConnectAttempt`."""

    def __init__(self, named: str) -> None:
        self.named = named  # the client id in the CONNECT, which is not verified

    def cancel(self, now: float) -> None:
        """Stop what is under way for this CONNECT: its connection ends."""
        raise NotImplementedError

    def deadline_passed(self, now: float) -> None:
        """The deadline of the current step has passed."""
        raise NotImplementedError


class Connection(Stream):
    """A stream that carries MQTT."""

    def __init__(self, sock: socket.socket, address: str, outbox: Outbox, now: float) -> None:
        super().__init__(sock, address, outbox)
        self.since = now
        self.version = 0  # until CONNECT
        self.protocol_state = State.NEW
        self.attempt: PendingConnect | None = None  # its CONNECT, until that is answered
        self.session: Session | None = None  # in the state LIVE, and in no other
        self.origin: Address | None = None  # its address, if connections are counted by address
        self.surplus: CloseReason | None = None  # the limit of its address that it exceeds: it will be refused
        self.user: str | None = None  # the user name, once it is verified
        self.keep_alive = 0.0  # seconds of silence that end it; 0 = any
        self.timer = 0  # the key of its deadline: of its state, or of its keep alive
        self.heard = now  # when its last packet was complete
        self.wants_reasons = True  # reason strings and user properties may be sent [MQTT-3.1.2-29]
        self.answers: AnswerQueue | None = None  # to publishes; made when the first of them has to wait
        self.aliases: dict[int, bytes] | None = None  # topic aliases that the client has set
        self.replays: dict[Subscription, Replay] | None = None  # the first one is under way
        self.pending: PendingSubscribe | PendingUnsubscribe | None = None  # the packet at the beginning of the input
        self.client: ProtectedClient | None = None  # while it has a session: its client, for overload protection
        self.read_ahead = 0  # bytes of the input, from `position` on, that were read ahead while a PUBLISH waits
        self.replaying = False  # retained messages are being read for it, page by page

    def enter(self, event: Input) -> None:
        """Go to the state that follows *event*. ProtocolError, IllegalStep: none does."""
        self.protocol_state = step(self.protocol_state, event)

    def ended(self) -> bool:
        """Whether the protocol has no more to do with this connection."""
        return self.protocol_state >= State.CLOSING
