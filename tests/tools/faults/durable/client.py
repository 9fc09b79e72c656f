# A client with a session that lasts: it does what the specification asks of both ends after each reconnect.
#
# It keeps what a client keeps for its session: its publishes that are not done, in order, and the packet ids of QoS 2
# that it has not released. It connects again whenever its connection ends, unless it is absent for a while. It may also
# connect beside a connection that it still has (`take_over()`); what the old one gets from then on is told as `Late`.
#
# Everything it sends and gets is written down in the history, and judged there (checker.py).
import errno
import select
import socket
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, cast

from broker.mqtt.encode import encode
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingResp,
    Properties,
    Publish,
    SubAck,
    Subscribe,
    Wanted,
    Will,
)
from broker.mqtt.properties import MESSAGE_EXPIRY_INTERVAL, RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from broker.mqtt.stream import PacketReader
from tests.system.processes import HOST
from tests.tools.faults.durable.history import (
    ERROR,
    Acknowledged,
    Answered,
    Connected,
    Connecting,
    Ended,
    Event,
    Late,
    Message,
    Received,
    Refused,
    Released,
    Sent,
    Stray,
    Subscribed,
)
from tests.tools.fuzz.loop import Loop

AGAIN: Final = (0.03, 0.15)  # seconds until it connects again
PATIENCE: Final = 3.0  # seconds for CONNACK and SUBACK, then it tries anew
OLD: Final = 6.0  # seconds that the old connection of a takeover is watched
EXPIRY: Final = 3600
LIMIT: Final = 1 << 20  # bytes of a packet
READ: Final = 65536
PACKET_IDS: Final = 60_000  # of publishes


class Run:
    """What all clients of a run share."""

    def __init__(self, loop: Loop, port: int, random: Random, note: Callable[[Event], None]) -> None:
        self.loop = loop
        self.port = port
        self.random = random
        self.note = note
        self.began = loop.now
        self.links: set[Link] = set()  # that are open
        self.watched = OLD  # seconds that the old connection of a takeover is

    def door(self, avoided: int) -> int:
        """The port for the next connection of a client. *avoided*: where its last attempt has failed; 0: nowhere."""
        return self.port

    def close(self) -> None:
        """Close all connections; nobody is told."""
        for link in list(self.links):
            link.close()

    def at(self) -> float:
        return self.loop.now - self.began


class Link:
    """One connection of *client*."""

    def __init__(self, run: Run, client: "DurableClient", port: int) -> None:
        """OSError: nobody listens."""
        self.port = port
        self.address = ""
        self.welcome = False  # CONNACK came
        self.refusal: int | None = None  # the code of the CONNACK that came instead
        self._run = run
        self._client = client
        self._version = client.version
        self._reader = PacketReader(client.version, LIMIT)
        self._out = bytearray()
        self._wants_out = True  # it is told when the socket takes bytes
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found = sock.connect_ex((HOST, port))
        if found not in (0, errno.EINPROGRESS):
            sock.close()
            raise OSError(found, "connect")
        self._sock: socket.socket | None = sock
        run.links.add(self)
        run.loop.watch(sock.fileno(), select.EPOLLIN | select.EPOLLOUT, self._ready)

    def say(self, packet: Packet) -> None:
        if self._sock is not None:
            self._out += encode(packet, self._version)
            if not self._wants_out:
                self._wants_out = True
                self._run.loop.change(self._sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def close(self, politely: bool = False) -> None:
        sock = self._sock
        if sock is None:
            return
        if politely and not self._out:
            try:
                sock.send(encode(Disconnect(0), self._version))
            except OSError:
                pass
        self._sock = None
        self._run.links.discard(self)
        self._run.loop.forget(sock.fileno())
        sock.close()

    def drain(self) -> None:
        """Take what has come so far."""
        if self._sock is not None:
            self._ready(select.EPOLLIN)

    def _ready(self, mask: int) -> None:
        sock = self._sock
        assert sock is not None
        try:
            if mask & select.EPOLLOUT:
                if self._out:
                    del self._out[: sock.send(self._out)]
                elif not self.address:
                    self.address = "{}:{}".format(*sock.getsockname())
                if not self._out:
                    self._wants_out = False
                    self._run.loop.change(sock.fileno(), select.EPOLLIN)
            data = sock.recv(READ) if mask & ~select.EPOLLOUT else b"."
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            self._client.lost(self)
        elif mask & ~select.EPOLLOUT:
            for packet in self._reader.feed(data):
                self._client.take(self, packet)
                if self._sock is None:
                    return


@dataclass
class Outgoing:
    """A publish that is not done."""

    number: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    expiry: int  # seconds; 0: none
    received: bool = False  # PUBREC came


class DurableClient:
    def __init__(
        self,
        run: Run,
        client_id: str,
        *,
        filter: str,
        qos: int = 1,
        receive_maximum: int = 0,
        slow: float = 0.0,
        will: Will | None = None,
        once: Callable[[bool], None] | None = None,
        retained: bool = False,
        application: bool = False,
        version: int = V5,
        lasting: bool = True,
    ) -> None:
        """*filter*: that it subscribes to. *slow*: the most seconds that it takes to acknowledge a message.

        *receive_maximum*: 0 for the default. *once*: is called when its connection ends, with whether it was up; it
        never connects again then. *retained*: it wants the retained messages. *application*: it is of the kind
        APPLICATION. *version*: with V311 it never starts clean, as its sessions would not outlive the connection.
        *lasting*: else each session of it ends with its connection, whatever the name of this class says.
        """
        self.client_id = client_id
        self.version = version
        self.up = False  # it has its CONNACK, and its SUBACK
        self.absent = False
        self.outgoing: dict[int, Outgoing] = {}  # by packet id, in the order of sending
        self.number = 0  # of its last publish
        self.refused = 0  # CONNECTs and publishes, with a reason
        self.sessions = 0  # that began with a connection
        self.discarded = 0  # its publishes, with a session that was not there any more
        self.disconnected: Counter[int] = Counter()  # by the reason code of DISCONNECT
        self.heard: Callable[[Publish], None] = _ignore
        self.link: Link | None = None
        self._avoided = 0  # the port where its last attempt has failed; 0: it has not
        self._run = run
        self._filter = filter
        self._qos = qos
        self._receive_maximum = receive_maximum
        self._slow = slow
        self._will = will
        self._once = once
        self._retained = retained
        self._application = application
        self._lasting = lasting
        self._subscribed = False  # the session has the filter, for certain
        self._closed = False
        self._left = 0.0  # when it became absent
        self._absences = 0
        self._clean = False
        self._packet_id = 0
        self._unreleased: set[int] = set()
        self._owed: deque[tuple[Link, int]] = deque()  # PUBACKs, in order
        self._attempt = 0
        self._connect(retained)

    # What it is told to do.

    def publish(self, topic: str, qos: int, retain: bool = False, empty: bool = False, expiry: int = 0) -> None:
        """A message with its number as payload, or an *empty* one. Only while it is up.

        *expiry*: of the message, in seconds; 0: it has none.
        """
        link = self.link
        assert link is not None
        self.number += 1
        payload = b"" if empty else f"{self.client_id} {self.number}".encode()
        one = Outgoing(self.number, topic, payload, qos, retain, expiry)
        if qos == 0:
            self._send(link, 0, one, False)
            return
        self._packet_id = self._packet_id % PACKET_IDS + 1
        self.outgoing[self._packet_id] = one
        self._send(link, self._packet_id, one, False)

    def leave(self, politely: bool, seconds: float) -> None:
        """Be absent for *seconds*."""
        if self.link is not None and not self.absent:
            self.link.close(politely)
            self._down()
            self.absent = True
            self._left = self._run.loop.now
            self._absences += 1
            absence = self._absences
            self._run.loop.later(seconds, lambda: self._return(absence))

    def come_back(self) -> None:
        """Be absent no longer."""
        self._return(self._absences)

    def absent_for(self) -> float:
        """Seconds that it has been absent; 0: it is not."""
        return self._run.loop.now - self._left if self.absent else 0.0

    def take_over(self) -> None:
        """Connect once more, and keep the old connection to see what it still gets."""
        old = self.link
        if old is not None and not self.absent:
            self._down()
            self._old = old
            self._run.loop.later(self._run.watched, old.close)
            self._connect(False)

    def hurry(self) -> None:
        """Acknowledge messages at once from now on."""
        self._slow = 0.0
        self._pay()

    def start_clean(self) -> None:
        """End the session and begin a new one."""
        assert self.version == V5
        if self.link is not None and not self.absent:
            self.link.close()
            self._down()
            self._connect(True)

    def subscribe_again(self) -> None:
        """The subscription may be undone."""
        self._subscribed = False
        if self.up and self.link is not None:
            self.up = False
            self._subscribe(self.link)

    def close(self) -> None:
        self._closed = True
        if self.link is not None:
            self.link.close(True)
            self._down()

    # Its connection.

    _old: Link | None = None

    def _note(self, event: Event) -> None:
        self._run.note(event)

    def _return(self, absence: int) -> None:
        if self.absent and absence == self._absences:
            self.absent = False
            self._again()

    def _again(self) -> None:
        if self.link is None and not self._closed and not self.absent:
            self._connect(False)

    def _connect(self, clean: bool) -> None:
        run = self._run
        clean = clean or not self._lasting
        port = run.door(self._avoided)
        try:
            link = Link(run, self, port)
        except OSError:
            if self._once is not None:
                run.loop.later(0.0, lambda: None if self._once is None else self._once(False))
            else:
                run.loop.later(run.random.uniform(*AGAIN), self._again)
            return
        self.link = link
        self._clean = clean
        if clean:
            self._subscribed = False
        five = self.version == V5
        self._note(Connecting(run.at(), self.client_id, clean, self._application, five, self._lasting, port))
        properties: Properties = {SESSION_EXPIRY_INTERVAL: EXPIRY} if five and self._lasting else {}
        if self._receive_maximum:
            properties[RECEIVE_MAXIMUM] = self._receive_maximum
        link.say(Connect(self.version, self.client_id, clean, will=self._will, properties=properties))
        self._expect(link)

    def _expect(self, link: Link) -> None:
        """It shall be up within PATIENCE."""
        self._attempt += 1
        attempt = self._attempt
        self._run.loop.later(PATIENCE, lambda: self._impatient(link, attempt))

    def _impatient(self, link: Link, attempt: int) -> None:
        if link is self.link and attempt == self._attempt and not self.up:
            link.close()
            self.lost(link)

    def lost(self, link: Link) -> None:
        """*link* is closed."""
        if link is self.link:
            was_up = self.up
            if not link.welcome:
                self._avoided = link.port
                self._note(Refused(self._run.at(), self.client_id, link.refusal))
            self._down()
            if self._once is not None:
                self._closed = True
                self._once(was_up)
                return
            self._run.loop.later(self._run.random.uniform(*AGAIN), self._again)

    def _down(self) -> None:
        self.up = False
        self.link = None
        self._owed.clear()
        self._note(Ended(self._run.at(), self.client_id))

    # What it gets.

    def take(self, link: Link, packet: Packet) -> None:
        if link is not self.link:
            if self.link is None or not self.link.welcome:
                return  # in time, but it does not count any more
            if not isinstance(packet, Disconnect | PingResp | ConnAck):
                message = _message(packet) if isinstance(packet, Publish) else None
                answers = self._answers_late(packet)
                self._note(Late(self._run.at(), self.client_id, f"{packet}", answers, message, link.port))
            return
        match packet:
            case ConnAck():
                self._greeted(link, packet)
            case SubAck():
                self._granted(packet)
            case Publish():
                self._received(link, packet)
            case Ack(kind=kind) if kind == PUBREL:
                self._note(Released(self._run.at(), self.client_id, packet.packet_id))
                self._unreleased.discard(packet.packet_id)
                link.say(Ack(PUBCOMP, packet.packet_id))
            case Ack():
                self._acknowledged(link, packet)
            case Disconnect():
                self.disconnected[packet.code] += 1
                link.close()
                self.lost(link)

    def _answers_late(self, packet: Packet) -> int | None:
        """The number of the publish that *packet* acknowledges, if that is not answered yet."""
        if not isinstance(packet, Ack) or packet.kind not in (PUBACK, PUBREC) or packet.code >= ERROR:
            return None
        one = self.outgoing.get(packet.packet_id)
        return None if one is None or one.received else one.number

    def _greeted(self, link: Link, packet: ConnAck) -> None:
        if packet.code >= (ERROR if self.version == V5 else 1):
            self.refused += 1
            link.refusal = packet.code
            link.close()
            self.lost(link)
            return
        self._avoided = 0
        if self._old is not None:  # what it was sent before this CONNACK is here by now
            self._old.drain()
            self._old = None
        link.welcome = True
        self._note(Connected(self._run.at(), self.client_id, packet.session_present))
        if not packet.session_present:
            self.sessions += 1
            self._subscribed = False
            self._unreleased.clear()
            self.discarded += len(self.outgoing)
            self.outgoing.clear()
        for packet_id, one in list(self.outgoing.items()):
            if one.received:
                link.say(Ack(PUBREL, packet_id))
            else:
                self._send(link, packet_id, one, True)
        if self._subscribed:
            self.up = True
        else:
            self._subscribe(link)

    def _subscribe(self, link: Link) -> None:
        link.say(Subscribe(1, [Wanted(self._filter.encode(), self._qos, retain_handling=0 if self._retained else 2)]))
        self._expect(link)

    def _granted(self, packet: SubAck) -> None:
        if packet.codes[0] >= ERROR:
            self.refused += 1
            return  # it becomes impatient
        self._subscribed = self.up = True
        self._note(Subscribed(self._run.at(), self.client_id, self._filter, self._qos))

    def _send(self, link: Link, packet_id: int, one: Outgoing, dup: bool) -> None:
        expiry = one.expiry
        sent = Sent(self._run.at(), self.client_id, one.number, one.topic, one.retain, not one.payload, expiry, one.qos)
        self._note(sent)
        properties: Properties = {MESSAGE_EXPIRY_INTERVAL: expiry} if expiry else {}
        link.say(Publish(one.topic.encode(), one.payload, one.qos, one.retain, dup, packet_id, properties))

    def _acknowledged(self, link: Link, packet: Ack) -> None:
        one = self.outgoing.get(packet.packet_id)
        kinds = (
            (PUBACK,) if one is not None and one.qos == 1 else (PUBCOMP,) if one is None or one.received else (PUBREC,)
        )
        if one is None or packet.kind not in kinds:
            self._note(Stray(self._run.at(), self.client_id, f"{packet} for {one}"))
            return
        if packet.kind == PUBCOMP:
            del self.outgoing[packet.packet_id]
            return
        self._note(Answered(self._run.at(), self.client_id, one.number, packet.code))
        if packet.code >= ERROR:
            self.refused += 1
        if packet.kind == PUBACK or packet.code >= ERROR:
            del self.outgoing[packet.packet_id]
            return
        one.received = True
        link.say(Ack(PUBREL, packet.packet_id))

    def _received(self, link: Link, packet: Publish) -> None:
        event = Received(
            self._run.at(),
            self.client_id,
            _message(packet),
            packet.topic.decode(),
            packet.qos,
            packet.packet_id,
            packet.dup,
            cast(int | None, packet.properties.get(MESSAGE_EXPIRY_INTERVAL)),
        )
        self._note(event)
        self.heard(packet)
        if packet.qos == 0:
            return
        if packet.qos == 2:
            self._unreleased.add(packet.packet_id)
            link.say(Ack(PUBREC, packet.packet_id))
            return
        self._owed.append((link, packet.packet_id))
        if not self._slow:
            self._pay()
        elif len(self._owed) == 1:
            self._run.loop.later(self._run.random.uniform(0.0, self._slow), self._pay)

    def _pay(self) -> None:
        """Acknowledge all that it has."""
        while self._owed:
            link, packet_id = self._owed.popleft()
            if link is self.link:
                self._note(Acknowledged(self._run.at(), self.client_id, packet_id))
                link.say(Ack(PUBACK, packet_id))


def _message(packet: Publish) -> Message:
    publisher, number = packet.payload.decode().split()
    return publisher, int(number)


def _ignore(packet: Publish) -> None:
    pass
