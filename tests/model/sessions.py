# What the reference knows of a client: messages, the copies that it is owed, its session.
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import cast

from broker.mqtt.packets import V5, Properties, Publish, Wanted
from broker.mqtt.properties import MESSAGE_EXPIRY_INTERVAL, SUBSCRIPTION_IDENTIFIER

FOREVER = 10**9  # seconds


@dataclass
class Message:
    """What somebody publishes, or will."""

    publisher: str
    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    lifetime: int = FOREVER  # seconds from its publication on
    properties: Properties = field(default_factory=dict)  # which every receiver of 5.0 gets as they are


@dataclass(eq=False)
class Copy:
    """A message as one client is to receive it."""

    message: Message
    qos: int
    retain: bool
    identifiers: list[int] | None  # None = any
    expires: int
    released: bool = False  # the client has sent PUBREC
    optional: bool = False
    shares: list["Share"] = field(default_factory=list)  # the shared subscriptions of which it came through one

    def is_like(self, packet: Publish, version: int, now: int) -> bool:
        """*packet* is this copy, whatever its packet id and DUP."""
        message = self.message
        if (packet.topic, packet.payload) != (message.topic, message.payload):
            return False
        if (packet.qos, packet.retain) != (self.qos, self.retain):
            return False
        if version != V5:
            return True
        properties = dict(packet.properties)
        identifiers = cast(list[int], properties.pop(SUBSCRIPTION_IDENTIFIER, []))
        left = cast(int, properties.pop(MESSAGE_EXPIRY_INTERVAL, FOREVER))
        return (
            properties == message.properties
            and (self.identifiers is None or sorted(identifiers) == sorted(self.identifiers))
            and self._leaves(left, now)
        )

    def _leaves(self, left: int, now: int) -> bool:
        """*left* is the rest of its lifetime [MQTT-3.3.2-6]; a second just begun may count or not.

        A lifetime of hours is one of which no second passes in the reference, while a conversation takes some.
        """
        if self.message.lifetime == FOREVER:
            return left == FOREVER
        return abs(left - max(0, self.expires - now)) <= 1 + self.message.lifetime // 100

    def is_as(self, other: "Copy") -> bool:
        mine, others = (self.qos, self.retain, self.identifiers), (other.qos, other.retain, other.identifiers)
        return mine == others

    def lives(self, now: int) -> bool:
        return self.expires > now

    def shares_stream(self, other: "Copy") -> bool:
        """Which of the two comes first is not free."""
        mine, others = self.message, other.message
        return (mine.publisher, mine.topic, self.qos) == (others.publisher, others.topic, other.qos)


@dataclass(eq=False)
class Subscription:
    filter: bytes
    share: bytes  # b"" = not shared
    wanted: Wanted
    identifier: int  # 0 = none

    def copy(self, message: Message, retain: bool, now: int) -> Copy:
        return Copy(message, min(message.qos, self.wanted.qos), retain, self.identifiers(), now + message.lifetime)

    def identifiers(self) -> list[int]:
        return [self.identifier] if self.identifier else []


@dataclass(eq=False)
class Replay:
    """The retained messages that a new subscription gets."""

    subscription: Subscription
    missing: set[bytes]  # topics
    seen: set[bytes] = field(default_factory=set)


class Session:
    def __init__(self, name: str) -> None:
        self.name = name
        self.connected = False
        self.coming = False  # to another worker, at no certain time
        self.ended = False
        self.version = 0
        self.window = 0
        self.expiry = 0
        self.will: Message | None = None
        self.will_delay = 0
        self.will_at = FOREVER
        self.ends_at = FOREVER
        self.subscriptions: dict[bytes, Subscription] = {}
        self.owed: list[Copy] = []  # not sent yet
        self.sent: dict[int, Copy] = {}  # not acknowledged to the end, by packet id
        self.again: list[int] = []  # of these, what has to be sent once more on this connection
        self.replays: list[Replay] = []
        self.unreleased: dict[int, Message] = {}  # QoS 2 messages of the client itself, before their PUBREL

    def on_the_wire(self) -> list[int]:
        """The packet ids that this connection knows and has not finished with."""
        return [packet_id for packet_id in self.sent if packet_id not in self.again]

    def __repr__(self) -> str:
        return self.name

    def has_room(self) -> bool:
        """It would receive a message of QoS 1 at once."""
        return self.connected and len(self.on_the_wire()) < self.window


class Share:
    """The members of one shared subscription that a message may go to, each with the copies it may be."""

    def __init__(self, name: bytes, filter: bytes) -> None:
        self.name = name
        self.filter = filter
        self.copies: dict[Session, list[Copy]] = {}
        self.waits = False  # for a member that can be sent it; else it is dropped if there is none

    def admit(self, session: Session, subscription: Subscription, message: Message, expires: int) -> None:
        """*message*, published by now, may go to *session*, if it may wait for it or need not."""
        retain = message.retain and subscription.wanted.retain_as_published
        copy = Copy(message, min(message.qos, subscription.wanted.qos), retain, subscription.identifiers(), expires)
        if copy.qos and (session.connected or session.expiry):
            self.waits = True  # a member at QoS 0, or whose session is ending, lets nothing wait
        if session.connected or copy.qos or session.coming:
            known = self.copies.setdefault(session, [])
            if not any(copy.is_as(other) for other in known):
                known.append(copy)

    def fitting(self, session: Session, packet: Publish, now: int) -> Copy | None:
        """The copy that *packet* may be."""
        return next((copy for copy in self.copies.get(session, ()) if copy.is_like(packet, session.version, now)), None)

    def __repr__(self) -> str:
        return f"{self.name!r} {self.copies}"


Members = Callable[[Share], list[tuple[Session, Subscription]]]


class Offer:
    """One message for one member of each of several shared subscriptions."""

    def __init__(self, shares: list[Share], message: Message, expires: int, owed: set[Session]) -> None:
        self.shares = shares
        self.message = message
        self.expires = expires
        self.owed = owed  # who gets a copy of its own as well
        self.fresh = True  # nobody has acknowledged anything since
        self.present = {session for share in shares for session in share.copies if session.connected}
        self._taken: list[set[int]] = []  # for each copy received: the shares it may have been meant for

    def expect_one(self) -> None:
        """The message goes through one of the shares, and nobody knows through which."""
        self._taken = [set(range(len(self.shares))) for _ in self.shares[1:]]

    def take(self, session: Session, packet: Publish, now: int) -> Copy | None:
        """The copy that *packet* is, if one more of this offer may go to *session*."""
        fitting = {at: copy for at, share in enumerate(self.shares) if (copy := share.fitting(session, packet, now))}
        self._taken.append(set(fitting))
        if fitting and next(self._unmet(), None) is not None:
            # A copy of its own, as the shares' copies may look alike.
            return replace(fitting[min(fitting)], shares=[self.shares[at] for at in fitting])
        self._taken.pop()
        return None

    def met(self) -> bool:
        return len(self._taken) == len(self.shares)

    def explained(self, members: Members) -> bool:
        """For each share that has not had the message, no member could be sent it."""
        return any(all(self._was_not_taken(share, members) for share in shares) for shares in self._unmet())

    def _unmet(self) -> Iterator[list[Share]]:
        """The shares that have not had it, for each way in which the copies received may be assigned."""
        for order in permutations(range(len(self.shares))):
            if all(at in fitting for at, fitting in zip(order, self._taken, strict=False)):
                yield [self.shares[at] for at in order[len(self._taken) :]]

    def _was_not_taken(self, share: Share, members: Members) -> bool:
        """Why *share* has not had it is clear."""
        if any(session in self.owed and (session.ended or not session.has_room()) for session in share.copies):
            return True  # we may have taken the one copy that it received for its own, and its own waits or is gone
        if share.waits:
            return not any(self._could_take(session, subscription) for session, subscription in members(share))
        if not self.fresh:
            return True  # it was dropped
        return not any(
            session in self.present and self._takes_now(session, copy)
            for session, copies in share.copies.items()
            for copy in copies
        )

    def _could_take(self, session: Session, subscription: Subscription) -> bool:
        """What waits would be sent to *session* now."""
        return session.has_room() or (session.connected and subscription.wanted.qos == 0)

    def _takes_now(self, session: Session, copy: Copy) -> bool:
        return session.has_room() or (session.connected and copy.qos == 0)
