import socket
from typing import Final

from broker.access.passwords import Check
from broker.delivery.outbox import Outbox
from broker.net.stream import Stream
from broker.overload.addresses import Address
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
        self.version = 0  # until CONNECT
        self.session: Session | None = None
        self.origin: Address | None = None  # who it counts for, if connections are counted by address
        self.surplus: CloseReason | None = None  # the limit of its address that it is over: taken in to be told
        self.claiming = False  # its CONNECT waits for its password to be checked, or for the session store
        self.check: Check | None = None  # of its password, while that is under way
        self.user: str | None = None  # the name that was verified
        self.refusal = ""  # for the log, while its refusal waits
        self.keep_alive = 0.0  # seconds of silence that end it; 0 = any
        self.timer = 0  # the key of its deadline for CONNECT or of its refusal, then of its keep alive
        self.heard = now  # when its last packet was complete
        self.wants_reasons = True  # reason strings and user properties may be sent [MQTT-3.1.2-29]
        self.aliases: dict[int, bytes] | None = None  # topic aliases the client set
        self.replays: dict[Subscription, Replay] | None = None  # the first one is under way
        self.stuffed = False  # held because it does not take our answers
        self.replaying = False  # in the hub's list of those to go on with
