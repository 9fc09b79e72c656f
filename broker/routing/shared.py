# A shared subscription: each message goes to one member of the group [MQTT-4.8.2-4].
#
# Members take turns. One that could take the message at once is preferred to one that would let it wait, and
# one that has a connection to one that is away; so a slow member costs the group nothing while another is quick.
from broker.session.message import Message
from broker.session.session import Session, Subscription
from broker.session.subscriber import Subscriber


class SharedGroup(Subscriber):
    def __init__(self, name: bytes, filter: bytes) -> None:
        self.name = name
        self.filter = filter
        self.members: list[Subscription] = []
        self._turn = 0

    def choose(self, qos: int) -> Subscription | None:
        """The member for the next message at *qos*; None if there is none that may have it."""
        count = len(self.members)
        second: Subscription | None = None
        third: Subscription | None = None
        for step in range(count):
            at = (self._turn + step) % count
            member = self.members[at]
            session: Session = member.session
            waits = min(qos, member.qos) > 0
            if session.ready() if waits else session.writable():  # QoS 0 needs no place in a window, and never waits
                self._turn = at + 1
                return member
            if waits and session.has_room():
                if session.outbox is not None:
                    second = second or member
                elif session.expiry:
                    third = third or member
        chosen = second or third
        if chosen is not None:
            self._turn = self.members.index(chosen) + 1
        return chosen

    def deliver(self, message: Message, now: float) -> bool:
        """Offer *message* to one member; false if nobody may have it."""
        member = self.choose(message.qos)
        if member is None:
            return False
        qos = min(message.qos, member.qos)
        retain = message.retain and member.retain_as_published
        if qos != message.qos or retain != message.retain or member.identifiers:
            message = message.variant(qos, retain, member.identifiers)
        member.session.offer(message, now)
        return True
