import socket
from typing import Final

from broker.auth.passwords import Check
from broker.delivery.completion import AnswerQueue
from broker.delivery.outbox import Outbox
from broker.net.stream import Stream
from broker.overload.addresses import Address
from broker.overload.client import ProtectedClient
from broker.overload.connects import Waiter
from broker.reasons import CloseReason
from broker.routing.retained import RetainedScan
from broker.session.session import Session, Subscription

GRACE: Final = 1.5  # times the keep alive a client may be silent [MQTT-3.1.2-22]


class Replay:
    """Retained messages on their way to a new subscription, page by page."""

    def __init__(self, subscription: Subscription, scan: RetainedScan) -> None:
        self.subscription = subscription
        self.scan = scan
        self.page: list[bytes] = []  # topics found, the next one last


class Connection(Stream):
    """A stream that speaks MQTT: what holds for one connection and not for the session."""

    def __init__(self, sock: socket.socket, address: str, outbox: Outbox, now: float) -> None:
        super().__init__(sock, address, outbox)
        self.since = now
        self.version = 0  # until CONNECT
        self.named = ""  # the client id in its CONNECT, before anybody has verified it
        self.session: Session | None = None
        self.origin: Address | None = None  # who it counts for, if connections are counted by address
        self.surplus: CloseReason | None = None  # the limit of its address that it is over: taken in to be told
        self.claiming = False  # its CONNECT waits: for its turn, the check of its password, or the session store
        self.waiter: Waiter | None = None  # its CONNECT, while it waits for its turn
        self.check: Check | None = None  # of its password, while that is under way
        self.user: str | None = None  # the name that was verified
        self.refusal = ""  # for the log, while its refusal waits
        self.keep_alive = 0.0  # seconds of silence that end it; 0 = any
        self.timer = 0  # the key of its deadline for CONNECT or of its refusal, then of its keep alive
        self.heard = now  # when its last packet was complete
        self.wants_reasons = True  # reason strings and user properties may be sent [MQTT-3.1.2-29]
        self.answers: AnswerQueue | None = None  # to publishes; made when the first of them has to wait
        self.aliases: dict[int, bytes] | None = None  # topic aliases the client set
        self.replays: dict[Subscription, Replay] | None = None  # the first one is under way
        self.client: ProtectedClient | None = None  # while it has a session: its client, for overload protection
        self.scanned: bytes | None = None  # the input in which acknowledgements were looked for behind that
        self.unseen = 0  # bytes at the end of it that were no whole packet
        self.replaying = False  # in the hub's list of those to go on with
