# The judge of a history: what was lost, doubled, reordered, or said wrongly. Pure, and in the style of Jepsen's queues.
#
#   lost               acknowledged to its publisher, and never delivered to a durable session that had subscribed
#                      before the message was first sent and has not ended since
#   unrouted           acknowledged with "no matching subscribers" while such a session was there
#   doubled            QoS 2 twice in one session; QoS 1 twice on one connection, or again without DUP, although its
#                      publisher has sent it once; QoS 0 twice, likewise
#   reordered          the first deliveries of one publisher's messages of one topic to one session do not rise
#   session present    false although the session was stored for certain, or true although none can be there
#   packet id reused   for another message while the client had it in flight
#   packet id changed  QoS 1 again under another one, in the session of an APPLICATION client
#   answers            out of the order of the publishes, or to nothing that was sent
#   expiry             a message came first when it had expired, with more time than it was sent with, or without any
#   will               of a client that is gone: never published, or more than once
#   retained           the message that a new subscriber finds is older than the last one that was acknowledged
#
# What a connection gets late, when its session was taken, is not wrong by itself: a worker that was stopped tells what
# had happened before. But a late acknowledgement counts like any other: what it acknowledges must not be lost.
# A message with an expiry is owed as long as it has not passed, by the time at which it was sent first.
# An operation without an answer counts as "maybe": it may have happened or not, and may happen later.
# A `Rollback` makes a "maybe" of everything that happened in its last moments, and excuses what comes again.
# That holds for a clean start, too, which a stopped worker may find in a socket that its client has left, even behind
# later ones that were answered. Nothing is owed to the client until a CONNECT without a clean start finds a new
# session, or one finds the same session after OVERDUE seconds.
# A session with a CONNACK and no SUBACK yet may be lost: Weir stores a new session after its CONNACK, and before its
# first SUBACK.
# An APPLICATION client of MQTT 3.1.1 may be sent again over the same connection what it has not acknowledged in time.
# Nothing is owed at QoS 0, or to a session that ends with its connection.
# Where each publish goes through a log (*at_least_once*), QoS 1 may come again in any way, as the worker that
# dispatches it may die; and QoS 2 to a session that ends with its connection. What was not answered there, and is not
# sent again, may come behind what its client sends over its next connection. So it is where publishers go from node to
# node (*wandering*): a node that was stopped finds it in a socket that its client has left.
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tests.tools.faults.durable.history import (
    ERROR,
    NO_SUBSCRIBERS,
    Acknowledged,
    Answered,
    Connected,
    Connecting,
    Died,
    Ended,
    Event,
    Kept,
    Late,
    Message,
    Received,
    Released,
    Rollback,
    Sent,
    Stray,
    Subscribed,
    matches,
)

LOST: Final = "lost"
UNROUTED: Final = "unrouted"
DOUBLED: Final = "doubled"
REORDERED: Final = "reordered"
SESSION_PRESENT: Final = "session present"
PACKET_ID_REUSED: Final = "packet id reused"
PACKET_ID_CHANGED: Final = "packet id changed"
ANSWERS: Final = "answers"
RETAINED: Final = "retained"
EXPIRY: Final = "expiry"
WILL_LOST: Final = "will lost"
WILL_DOUBLED: Final = "will doubled"

OVERDUE: Final = 30.0  # seconds after which a clean start that was not answered has come, or never will
STOPPED: Final = 8.0  # seconds that a message may be late: workers that pass it on are stopped, one after the other


@dataclass(frozen=True)
class Violation:
    kind: str
    at: float
    client: str
    what: str
    message: Message | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.at:.3f} s: {self.client}: {self.what}"


@dataclass(slots=True)
class Publish:
    """One operation."""

    topic: str
    sent: int  # place of its first PUBLISH in the history
    deletes: bool
    at: float = 0.0  # when that was
    expiry: int = 0  # seconds; 0: it has none
    qos: int = 1
    connection: int = 0  # of the publisher, if those that it sends over several of them keep no order
    times: int = 1
    will: bool = False
    answered: float | None = None  # when it was acknowledged with success; None: maybe, or refused
    in_doubt: bool = False  # it was not answered at a `Rollback`: what follows may come beside it


@dataclass(slots=True)
class Receipt:
    """A message in one session."""

    connection: int  # the last one that had it
    packet_id: int
    finished: float | None = None  # PUBACK was sent, or PUBREL came
    excused: bool = False  # it may come once more


@dataclass
class Session:
    """What is known of a client's session, and what it was told."""

    application: bool = False  # its client is of the kind APPLICATION
    mqtt_5: bool = True
    lasting: bool = True  # it outlives the connection
    possible: bool = False  # there may be one
    stored: float | None = None  # it is, for certain, since then
    connection: int = 0
    clean: bool = False  # the CONNECT under way
    asked: bool = False  # a CONNECT was not answered: it may have begun a session
    overdue: list[float] = field(default_factory=list)  # when clean starts were sent that may still end the session
    forgot: float = 0.0  # when it ended last, or may have
    uncertain: int = 0  # what was sent before this place may have come in a session that was thought to be over
    filters: dict[str, tuple[int, float]] = field(default_factory=dict)  # place and time of the SUBACK
    receipts: dict[Message, Receipt] = field(default_factory=dict)
    # By publisher, topic, and `Publish.connection`: the greatest number.
    last: dict[tuple[str, str, int], int] = field(default_factory=dict)
    unreleased: dict[int, tuple[Message, float]] = field(default_factory=dict)  # QoS 2, by packet id
    unacknowledged: dict[int, Message] = field(default_factory=dict)  # QoS 1 of this connection
    unanswered: dict[int, None] = field(default_factory=dict)  # numbers that were sent on this connection, in order

    @property
    def retried(self) -> bool:
        """Whether messages may come again over the same connection."""
        return self.application and not self.mqtt_5

    def forget(self, at: float) -> None:
        """It ends, or may."""
        self.forgot = at
        self.stored = None
        self.filters, self.receipts, self.last, self.unreleased = {}, {}, {}, {}

    def wants(self, publish: Publish) -> bool:
        """Whether it had a filter for *publish* before that was sent."""
        return any(place < publish.sent and matches(each, publish.topic) for each, (place, _) in self.filters.items())


class Checker:
    def __init__(self, at_least_once: bool = False, wandering: bool = False) -> None:
        """*at_least_once*, *wandering*: see above."""
        self._at_least_once = at_least_once
        self._may_come_late = at_least_once or wandering
        self.violations: list[Violation] = []
        self.publishes: dict[Message, Publish] = {}
        self.acknowledged = 0  # publishes, with success
        self.delivered = 0  # to all sessions, without what came again
        self.repeated = 0  # deliveries that came again, and may
        self.late = 0  # packets to connections that another one had replaced
        self._sessions: dict[str, Session] = defaultdict(Session)
        self._by_topic: dict[str, list[Message]] = defaultdict(list)
        self._place = 0
        self._now = 0.0

    def check(self, history: Iterable[Event]) -> list[Violation]:
        """Judge a whole history: at its end all that is owed has had the time to come."""
        for event in history:
            self.take(event)
        for client, message in self.missing():
            publish = self.publishes[message]
            assert publish.answered is not None
            what = f"{message} on {publish.topic}, acknowledged, never came"
            kind = WILL_LOST if publish.will else LOST
            self._found(kind, Ended(publish.answered, client), what, message)
        return self.violations

    def missing(self) -> list[tuple[str, Message]]:
        """(client, message) of what is owed and has not come."""
        found = []
        for client, session in self._sessions.items():
            if not session.lasting:
                continue
            for topic, messages in self._by_topic.items():
                if any(matches(each, topic) for each in session.filters):
                    found += [
                        (client, each)
                        for each in messages
                        if each not in session.receipts and self._owed(each, session)
                    ]
        return found

    def unfinished(self, client: str) -> list[Message]:
        """What must be stored for the session of *client*; empty if it is not certain which session it has.

        It was published for certain, is owed, and the client has not sent PUBACK or PUBREC for it.
        """
        session = self._sessions[client]
        if session.stored is None or session.overdue:
            return []
        received = {message for message, _ in session.unreleased.values()}
        found = []
        for topic, messages in self._by_topic.items():
            if any(matches(each, topic) for each in session.filters):
                for each in messages:
                    receipt = session.receipts.get(each)
                    done = each in received or (receipt is not None and receipt.finished is not None)
                    if not done and not self.publishes[each].will and self._owed(each, session):
                        found.append(each)
        return [each for each in found if not self._is_uncertain(session, each)]

    def _owed(self, message: Message, session: Session) -> bool:
        publish = self.publishes[message]
        lasts = not publish.expiry or self._now < publish.at + publish.expiry
        return publish.answered is not None and lasts and session.wants(publish)

    def take(self, event: Event) -> None:
        self._place += 1
        self._now = event.at
        session = self._sessions[event.client]
        match event:
            case Connecting():
                self._connecting(session, event)
            case Connected():
                self._connected(session, event)
            case Ended():
                session.unacknowledged = {}
                session.unanswered = {}
            case Subscribed():
                session.stored = event.at if session.stored is None else session.stored
                if not session.overdue and event.qos:
                    session.filters.setdefault(event.filter, (self._place, event.at))
            case Sent():
                self._sent(session, event)
            case Answered():
                self._answered(session, event)
            case Received():
                self._received(session, event)
            case Acknowledged():
                message = session.unacknowledged.pop(event.packet_id, None)
                if message in session.receipts:
                    session.receipts[message].finished = event.at
            case Released():
                released = session.unreleased.pop(event.packet_id, None)
                if released is not None and released[0] in session.receipts:
                    session.receipts[released[0]].finished = event.at
            case Died():
                self._begin((event.client, 1), Publish(event.topic, self._place, False, will=True, answered=event.at))
            case Kept():
                self._kept(event)
            case Rollback():
                self._rollback(event)
            case Stray():
                self._found(ANSWERS, event, event.what)
            case Late():
                self._late(event)

    # Sessions.

    def _connecting(self, session: Session, event: Connecting) -> None:
        session.clean = event.clean
        session.application, session.mqtt_5, session.lasting = event.application, event.mqtt_5, event.lasting
        session.possible = session.possible or session.asked
        session.asked = True
        if event.clean:
            session.forget(event.at)
            session.overdue.append(event.at)

    def _connected(self, session: Session, event: Connected) -> None:
        session.connection += 1
        session.asked = False
        session.unacknowledged = {}
        session.unanswered = {}
        if session.clean:
            session.overdue.pop()  # this one
        if event.present and (session.clean or not session.possible):
            why = "a clean start" if session.clean else "no session before"
            self._found(SESSION_PRESENT, event, f"present after {why}")
        elif not event.present and session.stored is not None and not session.overdue:
            self._found(SESSION_PRESENT, event, f"a session that was stored since {session.stored:.3f} s is not there")
        if event.present and session.overdue:
            session.uncertain = self._place
            session.unreleased = {}  # it may be the session that the clean start has begun
        if not event.present:
            session.forget(event.at)
            if not session.clean:
                del session.overdue[:1]
        else:
            session.overdue = [at for at in session.overdue if event.at - at < OVERDUE]
        session.possible = True

    # Publishes.

    def _sent(self, session: Session, event: Sent) -> None:
        if event.qos:
            session.unanswered[event.number] = None
        publish = self.publishes.get((event.client, event.number))
        if publish is None:
            begun = Publish(event.topic, self._place, event.deletes, event.at, event.expiry, event.qos)
            if self._may_come_late and (not session.lasting or not event.qos):  # it is not sent again
                begun.connection = session.connection
            self._begin((event.client, event.number), begun)
        else:
            publish.times += 1

    def _begin(self, message: Message, publish: Publish) -> None:
        self.publishes[message] = publish
        self._by_topic[publish.topic].append(message)

    def _answered(self, session: Session, event: Answered) -> None:
        message = (event.client, event.number)
        publish = self.publishes[message]
        first = next(iter(session.unanswered), None)
        if first != event.number:
            self._found(ANSWERS, event, f"{event.number} is answered while {first} is not", message)
        session.unanswered.pop(event.number, None)
        if event.code >= ERROR:
            return
        self.acknowledged += 1
        publish.answered = event.at
        if event.code == NO_SUBSCRIBERS:
            for client, other in self._sessions.items():
                if other.wants(publish):
                    self._found(UNROUTED, event, f"{message} has no subscribers, and {client} is one", message)

    def _late(self, event: Late) -> None:
        self.late += 1
        if event.answers is not None:
            publish = self.publishes[event.client, event.answers]
            publish.answered = event.at if publish.answered is None else publish.answered

    # Deliveries.

    def _received(self, session: Session, event: Received) -> None:
        message, packet_id = event.message, event.packet_id
        again = event.qos > 0 and self._takes_packet_id(session, event)
        receipt = session.receipts.get(message)
        publish = self.publishes.get(message)
        if receipt is None:
            session.receipts[message] = Receipt(session.connection, packet_id)
            self.delivered += 1
            self._judge_expiry(event)
            line = (message[0], event.topic, 0 if publish is None else publish.connection)
            if message[1] < session.last.get(line, 0) and self._keeps_order(session, message):
                self._found(REORDERED, event, f"{message} came first after {session.last[line]}", message)
            session.last[line] = max(session.last.get(line, 0), message[1])
            return
        self.repeated += 1
        in_doubt = publish is not None and publish.in_doubt
        excused = receipt.excused or in_doubt or self._may_come_again(session, event, publish)
        if not excused and not self._is_uncertain(session, message):
            self._judge_repetition(session, event, receipt, again)
        receipt.excused = False
        if receipt.connection != session.connection:  # else the acknowledgement may be on its way still
            receipt.finished = None
        receipt.connection, receipt.packet_id = session.connection, packet_id

    def _judge_expiry(self, event: Received) -> None:
        if not self._sessions[event.client].mqtt_5:
            return  # it is not told
        publish = self.publishes.get(event.message)
        given = 0 if publish is None else publish.expiry
        if (event.expiry is None) != (given == 0) or (event.expiry or 0) > given:
            what = f"{event.message} came with an expiry of {event.expiry} s, and was sent with {given}"
            self._found(EXPIRY, event, what, event.message)
        if publish is None or not given or publish.answered is None or event.dup:
            return  # with DUP it was sent before, on a connection that was lost
        late = event.at - publish.answered - given
        if late > STOPPED:
            self._found(EXPIRY, event, f"{event.message} came {late:.3f} s after its end", event.message)

    def _keeps_order(self, session: Session, message: Message) -> bool:
        """Whether *message* was first sent to this very session. If not, what comes is a repetition [MQTT-4.6.0-1].

        So it may be if it was sent again, and what was sent first has expired.
        """
        publish = self.publishes.get(message)
        if publish is None or (publish.expiry and publish.times > 1 and self._now >= publish.at + publish.expiry):
            return False
        return session.wants(publish) and not self._is_uncertain(session, message)

    def _is_uncertain(self, session: Session, message: Message) -> bool:
        publish = self.publishes.get(message)
        return publish is not None and publish.sent < session.uncertain

    def _takes_packet_id(self, session: Session, event: Received) -> bool:
        """Note the packet id; whether the client has it in flight for this message, at QoS 2."""
        message, packet_id = event.message, event.packet_id
        held = session.unreleased.get(packet_id)
        other = held[0] if held is not None else session.unacknowledged.get(packet_id)
        if other is not None and other != message:
            self._found(PACKET_ID_REUSED, event, f"{packet_id} for {message} while {other} has it", message)
        if event.qos == 2:
            session.unreleased[packet_id] = (message, event.at)
        else:
            session.unacknowledged[packet_id] = message
        return held is not None and held[0] == message

    def _may_come_again(self, session: Session, event: Received, publish: Publish | None) -> bool:
        """Whether it may have been dispatched again."""
        if not self._at_least_once or publish is None or publish.will or not publish.qos:
            return False
        return event.qos < 2 or not session.lasting

    def _judge_repetition(self, session: Session, event: Received, receipt: Receipt, again: bool) -> None:
        message = event.message
        same = receipt.connection == session.connection
        publish = self.publishes.get(message)
        if publish is None or publish.will:  # a will may come before the client knows that it is gone
            if same or not event.dup:
                self._found(WILL_DOUBLED, event, f"the will of {message[0]} came again", message)
        elif event.qos == 2:
            if not again:
                before = "in flight" if receipt.finished is None else f"done at {receipt.finished:.3f} s"
                what = f"{message} at QoS 2 again, as {event.packet_id}; was {receipt.packet_id}, {before}"
                self._found(DOUBLED, event, what, message)
            elif (same and not session.retried) or not event.dup:
                self._found(
                    DOUBLED, event, f"{message} at QoS 2 again, DUP {event.dup}, same connection {same}", message
                )
        elif publish.times > 1:
            return
        elif event.qos == 0 or (same and not session.retried) or not event.dup:
            what = f"{message} at QoS {event.qos} again, DUP {event.dup}, same connection {same}"
            self._found(DOUBLED, event, what, message)
        elif session.application and event.packet_id != receipt.packet_id:
            what = f"{message} again as {event.packet_id}, and not as {receipt.packet_id}"
            self._found(PACKET_ID_CHANGED, event, what, message)

    # Retained messages.

    def _kept(self, event: Kept) -> None:
        messages = self._by_topic[event.topic]  # one publisher a topic
        sent = {message[1]: self.publishes[message] for message in messages}
        known = max((number for number, publish in sent.items() if publish.answered is not None), default=0)
        if event.number is None:
            if known and not any(publish.deletes and number >= known for number, publish in sent.items()):
                self._found(RETAINED, event, f"nothing on {event.topic}, where {known} was acknowledged")
        elif event.number < known or event.number not in sent:
            self._found(RETAINED, event, f"{event.number} on {event.topic}, where {known} was acknowledged")

    # Power.

    def _rollback(self, event: Rollback) -> None:
        since = event.since
        for publish in self.publishes.values():
            if publish.answered is not None and publish.answered > since:
                publish.answered = None
            publish.in_doubt |= publish.answered is None
        for session in self._sessions.values():
            if session.forgot > since:
                session.uncertain = self._place
            if session.stored is not None and session.stored > since:
                session.stored = None
            session.filters = {each: found for each, found in session.filters.items() if found[1] <= since}
            session.unreleased = {each: found for each, found in session.unreleased.items() if found[1] <= since}
            for receipt in session.receipts.values():
                receipt.excused |= receipt.finished is None or receipt.finished > since

    def _found(self, kind: str, event: Event, what: str, message: Message | None = None) -> None:
        self.violations.append(Violation(kind, event.at, event.client, what, message))
