# The same conversations with nodes that are processes and share a Redis, each CONNECT coming to any of them, held
# against the reference of a node of several workers (node_reference.py) but for what is listed at ClusterModel.
#
# No time passes: what a client asks for in tens of seconds are hours here, so nothing expires and no delay ends but by
# the end of its session. node_conversation.py is where time passes.
import time
from dataclasses import replace
from typing import Final, cast

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from broker.mqtt.packets import PUBCOMP, V5, Ack, Connect, Disconnect, Packet, Wanted
from tests.model.cluster_clients import PATIENCE, NodeClient, NodePlace, Observers
from tests.model.conversation import Conversation, anybody, is_connected, where
from tests.model.lines import Client, Line
from tests.model.node_reference import NodeModel, NodeOffer
from tests.model.sessions import Copy, Message, Offer, Session, Share
from tests.model.vocabulary import NAMES, TOPICS, WINDOW, Asked, arrivals, askings, places, talk
from tests.routing.reference import matches
from tests.system.cluster import Cluster

ALL_TOPICS: Final = [*TOPICS, *(b"will/" + name.encode() for name in NAMES)]


def _lasts(session: Session) -> bool:
    return session.expiry > 0


class ClusterModel(NodeModel):
    """What may differ when the broker is several nodes, beside what may differ between workers.

    - Which member of a shared subscription gets a message: a worker knows from what others told it up to a tenth of a
      second ago which of their members could take one. So not even the first message of a step is sure to find such a
      member at once, and a message that does not wait may be dropped.
    - What a member of a shared subscription was sent with QoS 1 and has not acknowledged when its session ends goes to
      another member if the session was stored (store/durable/returned.py). MQTT says SHOULD (4.8.2).
    - The retained messages of a new subscription may begin anew with each CONNECT: any may come to another worker.
    """

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
        if name in self.sessions:
            self.move(name)
        return super().connect(name, version, clean, expiry, window, will, will_delay)

    def _offer(self, shares: list[Share], message: Message, expires: int, owed: set[Session]) -> Offer:
        offer = super()._offer(shares, message, expires, owed)
        offer.fresh = False
        return offer

    def _end(self, sessions: list[Session]) -> None:
        super()._end(sessions)
        for session in sessions:
            for copy in session.sent.values():
                if copy.qos == 1 and copy.shares and copy.lives(self.now):
                    self._return(copy, session.expiry > 0)

    def _return(self, copy: Copy, stored: bool) -> None:
        """Offer *copy* to its group again; if it was not *stored* nobody needs to take it."""
        shares = [Share(share.name, share.filter) for share in copy.shares]
        for share in shares:
            share.waits = bool(self.members(share))
        offer = NodeOffer(shares, replace(copy.message, qos=1), copy.expires, set())
        offer.expect_one()
        offer.fresh = False
        offer.uncertain = not stored
        self.offers.append(offer)

    def is_heard(self, topic: bytes) -> bool:
        """Whether anybody has subscribed to *topic*."""
        return any(matches(subscription.filter, topic) for _, subscription in self.subscriptions())


class ClusterConversation(Conversation):
    unit = 1000

    def __init__(self, cluster: Cluster, observers: Observers) -> None:
        self.reference = ClusterModel(WINDOW)
        self.observers = observers
        self._retained: dict[bytes, bytes] = {}  # payloads by topics, as each worker was seen to have them
        self._unheard: set[bytes] = set()  # topics that each worker was seen to have no subscription to
        self.nodes = [NodePlace(node.port) for node in cluster.nodes]
        super().__init__(self.reference, self.nodes)

    @initialize(arriving=arrivals)
    def begin(self, arriving: list[tuple[Asked, list[Wanted], int]]) -> None:
        assume(arriving)  # the simplest conversation of all, with which Hypothesis begins, is not worth its time
        super().begin(arriving)

    # What hangs on which nodes there are.

    @precondition(lambda self: anybody(_lasts)(self) and anybody(is_connected)(self))
    @rule(name=where(_lasts), at=places, asked=st.none() | askings, said=talk, before=st.integers(0, 3))
    def come_while_others_talk(
        self, name: str, at: int, asked: Asked | None, said: list[tuple[int, bytes, int]], before: int
    ) -> None:
        """Nothing is lost, comes twice or in another order while a session moves."""
        others = [other for other in self.names(is_connected) if other != name]
        assume(others)
        session = self.model.sessions[name]
        session.coming = True
        for one in said[:before]:
            self._say(others, one)

        def meanwhile() -> None:
            for one in said[before:]:
                self._say(others, one)

        self._connect(name, False, asked or self.asked[name], at, meanwhile)
        session.coming = False

    # After each step.

    def _receive(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            for line in self.lines.values():
                cast(NodeClient, line.client).ping()
            for name in list(self.lines):
                self._take(name)
            lack = self._lack()
            if not lack:
                return
            assert time.monotonic() < deadline, lack

    def _lack(self) -> str:
        for name, line in self.lines.items():
            if line.expected:
                return f"{name} was not answered {line.expected}"
        return self.model.lack()

    def _next_answers(self, line: Line) -> list[Packet]:
        """What is confirmed by other nodes is answered later: only PUBACKs, and PUBRECs, are in order (4.6)."""
        following: dict[object, Packet] = {}
        for packet in line.expected:
            ordered = isinstance(packet, Ack) and packet.kind != PUBCOMP
            following.setdefault(cast(Ack, packet).kind if ordered else id(packet), packet)
        return list(following.values())

    def _first_words(self, client: Client) -> list[Packet]:
        return cast(NodeClient, client).first_words()

    def _last_words(self, client: Client) -> list[Packet]:
        return cast(NodeClient, client).last_words()

    def _compare_counts(self) -> None:
        """Nothing comes that nobody expects, and what has changed is known to each worker."""
        self.observers.settle()
        self._receive()
        retained = {topic: one.payload for topic, one in self.model.retained().items()}
        if retained != self._retained:
            self.observers.compare_retained(retained)
            self._retained = retained
            self._unheard = set()  # the observers have subscribed to everything
        unheard = {topic for topic in ALL_TOPICS if not self.reference.is_heard(topic)}
        self.observers.compare_unheard(unheard - self._unheard)
        self._unheard = unheard

    def _end_all(self) -> None:
        super()._end_all()
        self.observers.compare_retained({topic: one.payload for topic, one in self.model.retained().items()})

    def _close(self) -> None:
        """The next conversation finds no sessions and no retained messages."""
        for place in self.nodes:
            place.close()
        for name in NAMES if not self.sound else []:
            client = self.nodes[0].open(V5)
            client.send(Connect(V5, name, True))
            client.first_words()
            client.send(Disconnect())
            client.last_words()
        self.nodes[0].close()
        self.observers.forget(ALL_TOPICS)
