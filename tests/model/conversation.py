# Random conversations of several clients with a broker, held against the reference.
#
# After each step everybody receives what there is, clients that are prompt acknowledge it, and the reference says
# whether it was right. The others acknowledge when a rule tells them to, so that windows are full, messages wait,
# and connections break in the middle of every exchange.
#
# Time comes in weeks of seven seconds and every interval is a multiple of ten below seventy, alone or two of them
# together: nothing is ever due at the very instant in which something else is done.
#
# Where the clients connect is said by classes derived from this one: to workers in this process
# (worker_conversation.py, node_conversation.py) or to nodes that are processes (cluster_conversation.py).
from collections.abc import Callable, Sequence
from itertools import count
from typing import cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V31,
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Properties,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Wanted,
    Will,
)
from broker.mqtt.properties import (
    MESSAGE_EXPIRY_INTERVAL,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
    WILL_DELAY_INTERVAL,
)
from tests.model.lines import Client, Line, Place
from tests.model.reference import Model
from tests.model.sessions import FOREVER, Message, Session
from tests.model.vocabulary import (
    FILTERS,
    NAMES,
    SHARED,
    TOPICS,
    UNSHARED,
    WINDOW,
    Asked,
    Parting,
    Said,
    arrivals,
    askings,
    places,
    publishes,
    qualities,
    wanted,
)

LONGEST_EXPIRY = 7 * 86400  # of a session: what 3.x gets for clean session 0

WITH_WILL = 0x04
NOBODY_HEARS = 0x10
UNSPECIFIED_ERROR = 0x80
TAKEN_OVER = 0x8E


def where(says: Callable[[Session], object]) -> st.SearchStrategy[str]:
    """The names of the clients whose session is so."""
    return st.runner().flatmap(lambda machine: st.sampled_from(machine.names(says)))


def anybody(says: Callable[[Session], object]) -> Callable[["Conversation"], bool]:
    return lambda machine: bool(machine.names(says))


def is_connected(session: Session) -> bool:
    return session.connected


def _is_away(session: Session) -> bool:
    return not session.connected


def _was_sent_much(session: Session) -> bool:
    return session.connected and bool(session.on_the_wire())


def _has_published_halfway(session: Session) -> bool:
    return session.connected and bool(session.unreleased)


class Conversation(RuleBasedStateMachine):
    unit = 1  # seconds that a client asks for where the reference says one

    def __init__(self, model: Model, places: Sequence[Place]) -> None:
        """*places*: where a CONNECT may come to."""
        super().__init__()
        self.places = places
        self.model = model
        self.lines: dict[str, Line] = {}
        self.asked: dict[str, Asked] = {}  # by each client in its last CONNECT
        self.sound = True  # nothing was found wrong yet
        self.ids = count(1)  # packet ids: no conversation is so long that they begin anew
        self.payloads = count(1)

    def names(self, says: Callable[[Session], object]) -> list[str]:
        return [name for name, session in sorted(self.model.sessions.items()) if says(session)]

    # Who comes and who goes.

    @initialize(arriving=arrivals)
    def begin(self, arriving: list[tuple[Asked, list[Wanted], int]]) -> None:
        for name, (asked, filters, at) in zip(NAMES, arriving, strict=False):
            self._connect(name, True, asked, at)
            if filters:
                self.subscribe(name, filters, 0)
            self.everybody_has_what_it_is_owed()

    @rule(name=st.sampled_from(NAMES), clean=st.booleans(), asked=askings, at=places)
    def connect(self, name: str, clean: bool, asked: Asked, at: int = 0) -> None:
        self._connect(name, clean, asked, at)

    @precondition(anybody(_is_away))
    @rule(name=where(_is_away), asked=st.none() | askings, at=places)
    def come_back(self, name: str, asked: Asked | None, at: int = 0) -> None:
        """Most clients ask for the same each time: None."""
        self._connect(name, False, asked or self.asked[name], at)

    @precondition(anybody(is_connected))
    @rule(name=where(is_connected), with_will=st.booleans(), expiry=st.sampled_from([None, 0, 10, 20]))
    def disconnect(self, name: str, with_will: bool, expiry: int | None) -> None:
        line = self.lines.pop(name)
        session = self.model.sessions[name]
        if line.client.version != V5 or session.expiry == 0:
            expiry = None  # 3.x cannot say it, and 5.0 may not (3.14.2.2.2)
        with_will = with_will and line.client.version == V5
        if expiry is not None:
            expiry = self._seconds(expiry)
        asked: Properties = {} if expiry is None else {SESSION_EXPIRY_INTERVAL: expiry}
        line.client.send(Disconnect(WITH_WILL if with_will else 0, asked))
        self.model.disconnect(name, with_will, expiry)
        line.part(self._last_words(line.client))

    @precondition(anybody(is_connected))
    @rule(name=where(is_connected))
    def drop(self, name: str) -> None:
        self.lines.pop(name).client.drop()
        self.model.lose(name)

    # Who wants what.

    @precondition(anybody(is_connected))
    @rule(name=where(is_connected), filters=st.lists(wanted, min_size=1, max_size=3), identifier=st.integers(0, 2))
    def subscribe(self, name: str, filters: list[Wanted], identifier: int) -> None:
        line = self.lines[name]
        filters = [_as_known(one, line.client.version) for one in filters]
        if line.client.version != V5:
            identifier = 0
        asked: Properties = {SUBSCRIPTION_IDENTIFIER: [identifier]} if identifier else {}
        codes = [self.model.subscribe(name, one, identifier) for one in filters]
        packet_id = next(self.ids)
        line.say(Subscribe(packet_id, filters, asked), SubAck(packet_id, codes))

    @precondition(anybody(lambda session: session.connected and session.subscriptions))
    @rule(
        name=where(lambda session: session.connected and session.subscriptions),
        at=st.integers(0, 9),
        other=st.sampled_from(FILTERS),
    )
    def unsubscribe(self, name: str, at: int, other: bytes) -> None:
        line = self.lines[name]
        own = list(self.model.sessions[name].subscriptions)
        filters = [own[at % len(own)], other]
        codes = [self.model.unsubscribe(name, filter) for filter in filters]
        packet_id = next(self.ids)
        line.say(Unsubscribe(packet_id, filters), UnsubAck(packet_id, codes if line.client.version == V5 else []))

    # Who says what.

    @precondition(anybody(is_connected))
    @rule(name=where(is_connected), said=st.lists(publishes, min_size=1, max_size=4))
    def publish(self, name: str, said: list[Said]) -> None:
        self._publish(name, said)

    @precondition(anybody(is_connected))
    @rule(name=where(is_connected), topic=st.sampled_from(TOPICS), qos=qualities, times=st.integers(2, 5))
    def publish_in_a_row(self, name: str, topic: bytes, qos: int, times: int) -> None:
        """What the broker may handle in one piece."""
        self._publish(name, [Said(topic, qos)] * times)

    @precondition(anybody(_has_published_halfway))
    @rule(name=where(_has_published_halfway), at=st.integers(0, 9))
    def publish_once_more(self, name: str, at: int) -> None:
        """A QoS 2 message whose PUBREC the client has forgotten: nobody receives it twice [MQTT-4.3.3-10]."""
        unreleased = self.model.sessions[name].unreleased
        packet_id = list(unreleased)[at % len(unreleased)]
        said = unreleased[packet_id]
        packet = Publish(said.topic, said.payload, 2, said.retain, True, packet_id)
        self.lines[name].say(packet, Ack(PUBREC, packet_id))

    @precondition(anybody(_has_published_halfway))
    @rule(name=where(_has_published_halfway), at=st.integers(0, 9))
    def release(self, name: str, at: int) -> None:
        unreleased = list(self.model.sessions[name].unreleased)
        self._release(name, unreleased[at % len(unreleased)])

    @precondition(anybody(_was_sent_much))
    @rule(name=where(_was_sent_much), at=st.integers(0, 9), refuse=st.booleans())
    def acknowledge(self, name: str, at: int, refuse: bool) -> None:
        """A client that is not prompt answers one packet, in any order."""
        sent = self.model.sessions[name].on_the_wire()
        self._acknowledge(name, sent[at % len(sent)], refuse)

    def _say(self, speakers: list[str], said: tuple[int, bytes, int]) -> None:
        who, topic, qos = said
        self._publish(speakers[who % len(speakers)], [Said(topic, qos)])

    # After each step.

    @invariant()
    def everybody_has_what_it_is_owed(self) -> None:
        self.sound = False
        self._receive()
        self.model.check_offers()
        while self._answer():
            self._receive()
        self.model.check_settled()
        self._compare_counts()
        self.sound = True

    def teardown(self) -> None:
        try:
            if self.sound:
                self._end_all()
        finally:
            self._close()

    def _end_all(self) -> None:
        """Everybody comes, takes all it is owed, and leaves for good."""
        for at, name in enumerate(list(self.model.sessions)):
            self._connect(name, False, Asked(), at)
            self.everybody_has_what_it_is_owed()
        for name, session in self.model.sessions.items():
            assert not session.owed and not session.sent, f"{name} did not receive everything"
        for name in list(self.lines):
            self.disconnect(name, False, None)
            self.everybody_has_what_it_is_owed()

    # What hangs on where the clients connect.

    def _receive(self) -> None:
        """Everybody reads what there is, when nothing more is under way."""
        raise NotImplementedError

    def _first_words(self, client: Client) -> list[Packet]:
        """What *client*, which has sent CONNECT, receives: the answer first."""
        raise NotImplementedError

    def _last_words(self, client: Client) -> list[Packet]:
        """What *client* receives, whose connection the broker ends."""
        raise NotImplementedError

    def _compare_counts(self) -> None:
        """The broker holds what it should and no more."""
        raise NotImplementedError

    def _close(self) -> None:
        """The conversation is over, whatever was found."""
        raise NotImplementedError

    # How it is said.

    def _connect(
        self, name: str, clean: bool, asked: Asked, at: int, meanwhile: Callable[[], None] | None = None
    ) -> None:
        """CONNECT to the place number *at*; *meanwhile*: what else happens before the answer is read."""
        five = asked.version == V5
        properties: Properties = {}
        if five:
            properties[SESSION_EXPIRY_INTERVAL] = self._seconds(asked.expiry)
            properties[RECEIVE_MAXIMUM] = asked.window
            properties[TOPIC_ALIAS_MAXIMUM] = asked.aliases
        message, delay, will = None, 0, None
        if asked.parting is not None:
            message, delay, will = self._will(name, asked.parting, five)
        client = self.places[at % len(self.places)].open(asked.version)
        client.send(Connect(asked.version, name, clean, 0, None, None, will, properties))
        if meanwhile is not None:
            meanwhile()
        connack, *rest = self._first_words(client)
        client.inbox.extend(rest)
        former = self.lines.pop(name, None)
        if former is not None:
            self._part(name, former)
        expiry = self._seconds(asked.expiry) if five else 0 if clean else LONGEST_EXPIRY
        window = asked.window if five else WINDOW
        present = self.model.connect(name, asked.version, clean, expiry, window, message, delay)
        assert isinstance(connack, ConnAck) and connack.code == 0, connack
        assert connack.session_present == (present and asked.version != V31)  # which 3.1 does not tell
        self.lines[name] = Line(client, asked.prompt)
        self.asked[name] = asked

    def _part(self, name: str, former: Line, code: int = TAKEN_OVER) -> None:
        """The broker has closed *former* with *code*; what it was sent until then it has received."""
        said = self._last_words(former.client)
        for packet in [packet for packet in said if isinstance(packet, Publish)]:
            self.model.receive(name, former.unaliased(packet))
        former.part([packet for packet in said if not isinstance(packet, Publish)], Disconnect(code))

    def _will(self, name: str, parting: Parting, five: bool) -> tuple[Message, int, Will]:
        message = Message(name, b"will/" + name.encode(), b"will %d" % next(self.payloads), parting.qos, parting.retain)
        will = Will(message.topic, message.payload, message.qos, message.retain)
        if not five:
            return message, 0, will
        message.lifetime, message.properties = self._seconds(parting.lifetime), parting.properties
        delay = self._seconds(parting.delay)
        will.properties = _with_lifetime(message) | {WILL_DELAY_INTERVAL: delay}
        return message, delay, will

    def _publish(self, name: str, said: list[Said]) -> None:
        """All in one go."""
        line = self.lines[name]
        line.client.send(*[self._publication(name, line, one) for one in said])

    def _publication(self, name: str, line: Line, said: Said) -> Publish:
        five = line.client.version == V5
        empty = said.empty and said.retain and said.topic in UNSHARED
        payload = b"" if empty else b"%d" % next(self.payloads)
        message = Message(name, said.topic, payload, said.qos, said.retain)
        if five:
            message.lifetime, message.properties = self._seconds(said.lifetime), said.properties
        heard = self.model.publish(message)
        packet = Publish(said.topic, payload, said.qos, said.retain, said.again and said.qos == 1)
        if said.qos:
            packet.packet_id = next(self.ids)
            code = NOBODY_HEARS if five and not heard else 0
            line.expected.append(Ack(PUBACK if said.qos == 1 else PUBREC, packet.packet_id, code))
        if said.qos == 2:
            self.model.sessions[name].unreleased[packet.packet_id] = message
        packet.properties = _with_lifetime(message)
        if five and said.alias:
            packet.properties[TOPIC_ALIAS] = said.alias
            if line.our_aliases.get(said.alias) == said.topic:
                packet.topic = b""
            line.our_aliases[said.alias] = said.topic
        return packet

    def _release(self, name: str, packet_id: int) -> None:
        del self.model.sessions[name].unreleased[packet_id]
        self.lines[name].say(Ack(PUBREL, packet_id), Ack(PUBCOMP, packet_id))

    def _acknowledge(self, name: str, packet_id: int, refuse: bool = False) -> None:
        line = self.lines[name]
        copy = self.model.sessions[name].sent[packet_id]
        kind = PUBACK if copy.qos == 1 else PUBCOMP if copy.released else PUBREC
        refuse = refuse and kind != PUBCOMP and line.client.version == V5
        answers = [Ack(PUBREL, packet_id)] if kind == PUBREC and not refuse else []
        self.model.acknowledge(name, packet_id, refuse)
        line.say(Ack(kind, packet_id, UNSPECIFIED_ERROR if refuse else 0), *answers)

    def _answer(self) -> bool:
        """Who is prompt answers all it was sent; false if there was nothing."""
        something = False
        for name, line in self.lines.items():
            session = self.model.sessions[name]
            if line.prompt and (session.on_the_wire() or session.unreleased):
                something = True
                for packet_id in session.on_the_wire():
                    self._acknowledge(name, packet_id)
                for packet_id in list(session.unreleased):
                    self._release(name, packet_id)
        return something

    def _take(self, name: str) -> None:
        """*name* reads what there is."""
        line = self.lines[name]
        for packet in line.client.receive():
            if isinstance(packet, Publish):
                self.model.receive(name, line.unaliased(packet))
            elif packet in self._next_answers(line):
                line.expected.remove(packet)
            else:
                released = isinstance(packet, Ack) and packet.kind == PUBREL
                assert released, f"{name} got {packet}, expected {line.expected}"
                self.model.receive_pubrel(name, cast(Ack, packet).packet_id)
        assert not line.client.closed, f"{name} was thrown out"

    def _next_answers(self, line: Line) -> list[Packet]:
        """The answers that may come next."""
        return line.expected[:1]

    def _seconds(self, units: int) -> int:
        return units if units == FOREVER else units * self.unit


def _as_known(wanted: Wanted, version: int) -> Wanted:
    """*wanted* without what the version does not know, or what may not be with a shared subscription."""
    if version != V5:
        return Wanted(wanted.filter, wanted.qos)
    if wanted.filter in SHARED:
        return Wanted(wanted.filter, wanted.qos)  # no local is an error there [MQTT-3.8.3-4]
    return wanted


def _with_lifetime(message: Message) -> Properties:
    if message.lifetime == FOREVER:
        return dict(message.properties)
    return message.properties | {MESSAGE_EXPIRY_INTERVAL: message.lifetime}
