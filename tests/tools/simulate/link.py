# A connection between a client and a worker, and the lanes between workers: what is on its way.
#
# Both sides act when the history says so. What was sent stays in the socket until the other side reads it, also if the
# sender has ended; a worker that is stopped reads nothing.
from collections import deque
from typing import TYPE_CHECKING, Final

from broker.delivery.completion import AnswerQueue
from broker.delivery.outbox import OutboundBudget, Outbox
from broker.delivery.ring import Ring
from broker.mqtt.packets import CONNECT
from broker.session.session import Session
from tests.session.receiver import PLENTY

if TYPE_CHECKING:
    from tests.tools.simulate.transfer import Transfer
    from tests.tools.simulate.worker import SimWorker


class Outgoing:
    """A publish that is not done. *ends*: when it expires, 0.0: never."""

    def __init__(self, number: int, topic: str, payload: bytes, qos: int, ends: float) -> None:
        self.number = number
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.ends = ends
        self.received = False  # PUBREC came


Packet = tuple[int, int, Outgoing | None, bool]  # kind, packet id, of a PUBLISH: what it is, and DUP

UNBOUNDED: Final = OutboundBudget(1 << 40)


class Link:
    """A connection of the client *client*."""

    def __init__(self, client: str, filter: bytes, qos: int, window: int) -> None:
        """*filter*, *qos*: of its SUBSCRIBE. *window*: its receive maximum."""
        self.client = client
        self.filter = filter
        self.qos = qos
        self.window = window
        self.outbox = Outbox(0, PLENTY, PLENTY >> 1, UNBOUNDED, Ring())
        self.inbox: deque[Packet] = deque([(CONNECT, 0, None, False)])
        self.open = True  # at the worker
        self.left = False  # the client has closed it
        self.will = 0  # its number; 0: there is none
        self.waits = False  # the worker reads nothing until it has stored, or found, something
        self.session: Session | None = None
        self.answers: AnswerQueue | None = None

    def received(self) -> bytes:
        """What the worker has sent."""
        outbox = self.outbox
        if not outbox.size:
            return b""
        data = bytes(outbox.gather())
        outbox.sent(len(data), 0.0)
        return data


class Crossed:
    """A publish on its way from *source* to another worker, for the sessions of *clients* there."""

    def __init__(
        self, source: "SimWorker", topic: bytes, payload: bytes, qos: int, expires: float, token: bytes
    ) -> None:
        self.source = source
        self.target = source  # the worker that it goes to
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.expires = expires
        self.token = token
        self.clients: list[str] = []
        self.refused = False  # for another session, which will get it again


class Given:
    """A session is that of another worker now, which needs *state* beside what is stored."""

    def __init__(self, transfer: "Transfer", state: bytes) -> None:
        self.transfer = transfer
        self.state = state


class Lane:
    """From one worker to another."""

    def __init__(self) -> None:
        self.items: deque[Crossed | Given] = deque()
        self.written = 0
        self.taken = 0

    def write(self, item: Crossed | Given) -> None:
        self.items.append(item)
        self.written += 1

    def end(self) -> None:
        """The worker that reads it has ended."""
        self.items.clear()
        self.taken = self.written

    def take(self) -> Crossed | Given:
        self.taken += 1
        return self.items.popleft()


class Mark:
    """A place in lanes: everything that was written so far."""

    def __init__(self, lanes: list[Lane]) -> None:
        self._places = [(lane, lane.written) for lane in lanes if lane.items]

    def passed(self) -> bool:
        return all(lane.taken >= place for lane, place in self._places)
