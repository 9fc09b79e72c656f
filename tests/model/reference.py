# The reference: what MQTT and DESIGN section 6 promise, in its plainest form.
#
# Sessions are a dict, queues are lists, and everything is searched from front to back; nothing here is taken from
# the broker but the names of packet fields. Where MQTT leaves a choice the model makes none. It knows what each
# client is owed, is told what each received, and says whether that was right:
# - order counts within a stream, that is one publisher, one topic and one QoS [MQTT-4.6.0-6];
# - a message for a shared subscription is an offer to the whole group, met when one member has received it. A message
#   of QoS 1 or 2 that no member can be sent waits for the first that can, also one that comes later, with the options
#   of that member then; it is dropped when the group has no member any more (4.8.2);
# - a retained message comes as it is when it is sent, not as it was at the SUBSCRIBE.
# Time is in whole seconds. Nothing is slow here but acknowledgements, so nothing may be dropped for its size.
from collections.abc import Iterator

from broker.mqtt.packets import V5, Publish, Wanted
from tests.model.sessions import FOREVER, Copy, Message, Offer, Replay, Session, Share, Subscription
from tests.routing.reference import matches

SHARE = b"$share/"


class Model:
    """A broker that lets each client have at most *window* messages unacknowledged."""

    def __init__(self, window: int) -> None:
        self.now = 0
        self.sessions: dict[str, Session] = {}
        self.offers: list[Offer] = []
        self._window = window
        self._retained: dict[bytes, tuple[Message, int]] = {}  # with the second of its expiry

    # Connections.

    def connect(
        self,
        name: str,
        version: int,
        clean: bool,
        expiry: int,
        window: int,
        will: Message | None,
        will_delay: int,
    ) -> bool:
        """CONNECT; whether a session was present."""
        former = self.sessions.get(name)
        if former is not None and former.connected:
            self.lose(name)  # [MQTT-3.1.4-3]
        former = self.sessions.get(name)
        if former is not None and clean:
            self._end([former])
        present = name in self.sessions
        session = self.sessions.setdefault(name, Session(name))
        session.connected = True
        session.version = version
        session.window = min(window, self._window)
        session.expiry = expiry
        session.will, session.will_delay = will, will_delay
        session.will_at = session.ends_at = FOREVER
        session.again = list(session.sent)  # [MQTT-4.4.0-1]
        return present

    def disconnect(self, name: str, with_will: bool, expiry: int | None) -> None:
        """DISCONNECT."""
        session = self.sessions[name]
        if not with_will:
            session.will = None  # [MQTT-3.14.4-3]
        if expiry is not None:
            session.expiry = expiry
        self.lose(name)

    def lose(self, name: str) -> None:
        """The connection is gone."""
        session = self.sessions[name]
        session.connected = False
        session.again = []
        if session.expiry == 0:
            self._end([session])
            return
        session.ends_at = self.now + session.expiry
        if session.will is not None and session.will_delay == 0:
            self._publish_will(session)
        else:
            session.will_at = self.now + session.will_delay

    def pass_second(self) -> None:
        """A second passes, and what is due at its end happens."""
        self.now += 1
        ending = [session for session in self.sessions.values() if session.ends_at == self.now]
        for session in [session for session in self.sessions.values() if session.will_at == self.now]:
            if session not in ending:
                self._publish_will(session)
        self._end(ending)

    def _end(self, sessions: list[Session]) -> None:
        """All at the same instant: each may still be chosen for the will of another, but not for its own."""
        for session in sessions:
            self._publish_will(session, session)
        for session in sessions:
            session.ended = True
            del self.sessions[session.name]
        self._drop_for_groups_without_members()

    def members(self, share: Share) -> list[tuple[Session, Subscription]]:
        """The members of now of the group that *share* is for."""
        return [each for each in self.subscriptions() if (each[1].share, each[1].filter) == (share.name, share.filter)]

    def _drop_for_groups_without_members(self) -> None:
        for offer in self.offers:
            for share in offer.shares:
                share.waits = share.waits and bool(self.members(share))

    def _publish_will(self, session: Session, leaving: Session | None = None) -> None:
        will, session.will = session.will, None
        if will is not None:
            self.publish(will, leaving)

    # Subscriptions.

    def subscribe(self, name: str, wanted: Wanted, identifier: int) -> int:
        """One filter of a SUBSCRIBE; its code."""
        session = self.sessions[name]
        subscription = session.subscriptions.get(wanted.filter)
        new = subscription is None
        if subscription is None:
            share, filter = b"", wanted.filter
            if filter.startswith(SHARE):
                share, filter = filter[len(SHARE) :].split(b"/", 1)
            subscription = session.subscriptions[wanted.filter] = Subscription(filter, share, wanted, identifier)
        subscription.wanted, subscription.identifier = wanted, identifier  # [MQTT-3.8.4-3]
        if not subscription.share and (wanted.retain_handling == 0 or (wanted.retain_handling == 1 and new)):
            topics = {topic for topic in self.retained() if matches(subscription.filter, topic)}
            self._forget_replay(session, subscription)  # asked again: from the beginning
            session.replays.append(Replay(subscription, topics))
        return wanted.qos

    def unsubscribe(self, name: str, filter: bytes) -> int:
        """One filter of an UNSUBSCRIBE; its code. What was published before is still delivered (3.10.4)."""
        session = self.sessions[name]
        subscription = session.subscriptions.pop(filter, None)
        if subscription is None:
            return 0x11
        self._forget_replay(session, subscription)
        self._drop_for_groups_without_members()
        return 0x00

    def _forget_replay(self, session: Session, subscription: Subscription) -> None:
        session.replays = [replay for replay in session.replays if replay.subscription is not subscription]

    def subscriptions(self) -> Iterator[tuple[Session, Subscription]]:
        """All there are."""
        for session in self.sessions.values():
            for subscription in session.subscriptions.values():
                yield session, subscription

    def retained(self) -> dict[bytes, Message]:
        """What is retained now, by topic."""
        return {topic: message for topic, (message, expires) in self._retained.items() if expires > self.now}

    # Messages.

    def publish(self, message: Message, leaving: Session | None = None) -> bool:
        """A message comes in; False if nobody has subscribed to it. Whose session just ends is nobody."""
        if message.retain:
            self._retained.pop(message.topic, None)
            if message.payload:  # [MQTT-3.3.1-6]
                self._retained[message.topic] = (message, self.now + message.lifetime)
        own: dict[Session, list[Subscription]] = {}
        shares: dict[tuple[bytes, bytes], Share] = {}
        expires = self.now + message.lifetime
        for session, subscription in self.subscriptions():
            if session is leaving or not matches(subscription.filter, message.topic):
                continue
            if subscription.share:
                share = shares.setdefault(
                    (subscription.share, subscription.filter), Share(subscription.share, subscription.filter)
                )
                share.admit(session, subscription, message, expires)
            else:
                own.setdefault(session, []).append(subscription)
        for session, subscriptions in own.items():
            self._owe(session, subscriptions, message)
        offered = [share for share in shares.values() if share.copies]
        self.offers.append(self._offer(offered, message, expires, set(own)))
        return bool(own or shares)

    def _offer(self, shares: list[Share], message: Message, expires: int, owed: set[Session]) -> Offer:
        return Offer(shares, message, expires, owed)

    def _owe(self, session: Session, subscriptions: list[Subscription], message: Message) -> None:
        """One copy for overlapping subscriptions, at the highest QoS, with all identifiers [MQTT-3.3.4-2]."""
        if session.name == message.publisher:
            subscriptions = [one for one in subscriptions if not one.wanted.no_local]  # [MQTT-3.8.3-3]
        if not subscriptions:
            return
        qos = min(message.qos, max(one.wanted.qos for one in subscriptions))
        retain = message.retain and any(one.wanted.retain_as_published for one in subscriptions)
        identifiers = [identifier for one in subscriptions for identifier in one.identifiers()]
        if session.connected or qos or session.coming:  # QoS 0 does not wait for a session that is away
            copy = Copy(message, qos, retain, identifiers, self.now + message.lifetime)
            copy.optional = session.coming and qos == 0
            session.owed.append(copy)

    # What a client received, and what it answers.

    def receive(self, name: str, packet: Publish) -> None:
        """The client received *packet*; AssertionError if it should not have."""
        session = self.sessions[name]
        if packet.dup:
            due = next(packet_id for packet_id in session.again if not session.sent[packet_id].released)
            assert packet.packet_id == due, f"resent out of order: {packet}"
            copy = session.sent[due]
            assert copy.is_like(packet, session.version, self.now), f"resent with changes: {packet}"
            session.again.remove(due)
            return
        copy = self._take(session, packet)
        if session.version != V5:
            self._blur(session, copy)
        if packet.qos:
            assert packet.packet_id not in session.sent, f"the packet id is in use: {packet}"
            assert not session.again, f"before all was resent: {packet}"
            assert session.has_room(), f"over the receive maximum: {packet}"
            session.sent[packet.packet_id] = copy

    def receive_pubrel(self, name: str, packet_id: int) -> None:
        """The client received a PUBREL that answers nothing: it must be one that is resent [MQTT-4.4.0-1]."""
        session = self.sessions[name]
        assert packet_id in session.again and session.sent[packet_id].released, f"PUBREL {packet_id}"
        session.again.remove(packet_id)

    def acknowledge(self, name: str, packet_id: int, refuse: bool) -> None:
        """The client answers the last packet about *packet_id*; *refuse*: with an error [MQTT-4.3.3-5]."""
        session = self.sessions[name]
        copy = session.sent[packet_id]
        if copy.qos == 2 and not copy.released and not refuse:
            copy.released = True
        else:
            del session.sent[packet_id]

    def _blur(self, session: Session, copy: Copy) -> None:
        """Without identifiers we cannot tell which of a message's copies it was: the others may come with any."""
        copy.identifiers = None
        for offer in self.offers:
            for other in [other for share in offer.shares for other in share.copies.get(session, ())]:
                if other.message is copy.message:
                    other.identifiers = None

    def _take(self, session: Session, packet: Publish) -> Copy:
        """What it is that *session* received."""
        overtaken: list[Copy] = []
        for at, copy in enumerate(session.owed):
            if copy.lives(self.now) and copy.is_like(packet, session.version, self.now):
                overtaken = [
                    other
                    for other in session.owed[:at]
                    if other.shares_stream(copy) and other.lives(self.now)
                    if not other.optional
                ]
                if not overtaken:
                    return session.owed.pop(at)
                break  # unless it is another copy: those of shared subscriptions and of replays have no order
        # Another replay may bring the topic as well, if it was retained while that one was under way; this one must.
        for replay in sorted(session.replays, key=lambda replay: packet.topic not in replay.missing):
            message = self.retained().get(packet.topic)
            if message is None or packet.topic in replay.seen or not matches(replay.subscription.filter, packet.topic):
                continue
            copy = replay.subscription.copy(message, True, self.now)
            copy.expires = self._retained[packet.topic][1]
            if copy.is_like(packet, session.version, self.now):
                replay.seen.add(packet.topic)
                replay.missing.discard(packet.topic)
                return copy
        for offer in self.offers:
            self._admit(session, offer)
            taken = offer.take(session, packet, self.now)
            if taken is not None:
                return taken
        assert not overtaken, f"overtook {overtaken[0].message}: {packet}"
        raise AssertionError(f"{session.name} is not owed {packet}")

    def _admit(self, session: Session, offer: Offer) -> None:
        """What waits may go to *session* as it has subscribed by now."""
        for share in offer.shares:
            for member, subscription in self.members(share) if share.waits else ():
                if member is session:
                    share.admit(session, subscription, offer.message, offer.expires)

    # Checks, when nothing happens any more. AssertionError if the broker kept back what it should have delivered.

    def check_offers(self) -> None:
        """Each offer was taken if somebody could: at once if it does not wait, else by now."""
        self.offers = [offer for offer in self.offers if offer.expires > self.now and not offer.met()]
        for offer in self.offers:
            assert offer.explained(self.members), f"no member received {offer.shares}"
            offer.fresh = False

    def check_settled(self) -> None:
        """Everybody has what it can take."""
        self.check_offers()
        lack = self.lack()
        assert not lack, lack
        for session in self.sessions.values():
            session.owed = [copy for copy in session.owed if copy.lives(self.now) and not copy.optional]
            if session.has_room():
                session.replays = []

    def lack(self) -> str:
        """What somebody should have by now and has not; "": nothing."""
        for offer in self.offers:
            if offer.expires > self.now and not offer.met() and not offer.explained(self.members):
                return f"no member received {offer.shares}"
        retained = self.retained()
        for session in self.sessions.values():
            if not session.connected:
                continue
            owed = [copy for copy in session.owed if copy.lives(self.now) and not copy.optional]
            at_once = [copy for copy in owed if copy.qos == 0 or session.has_room()]
            if at_once:
                return f"{session.name} did not receive {at_once}"
            if not session.has_room():
                continue
            if session.again:
                return f"{session.name} was not sent {session.again} again"
            for replay in session.replays:
                if late := replay.missing & retained.keys():
                    return f"{session.name} did not receive what is retained for {late}"
        return ""
