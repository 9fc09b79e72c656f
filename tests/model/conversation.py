# Random conversations of several clients with a broker, held against the reference.
#
# After each step everybody receives what there is, clients that are prompt acknowledge it, and the reference says
# whether it was right. The others acknowledge when a rule tells them to, so that windows are full, messages wait,
# and connections break in the middle of every exchange.
#
# Time comes in weeks of seven seconds and every interval is a multiple of ten below seventy, alone or two of them
# together: nothing is ever due at the very instant in which something else is done.
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.config.schema import Config, Limits
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
from broker.reasons import DropReason
from tests.inprocess import Broker
from tests.model.lines import Line
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

CONFIG = Config(limits=Limits(inflight=WINDOW))
WEEK = 7  # seconds
LONGEST_EXPIRY = 7 * 86400  # of a session: what 3.x gets for clean session 0

WITH_WILL = 0x04
NOBODY_HEARS = 0x10
UNSPECIFIED_ERROR = 0x80
TAKEN_OVER = 0x8E
LAWFUL_DROPS = {
    reason.label
    for reason in (DropReason.OFFLINE_QOS0, DropReason.EXPIRED, DropReason.SESSION_ENDED, DropReason.NO_SHARED_MEMBER)
}


def _where(says: Callable[[Session], object]) -> st.SearchStrategy[str]:
    """The names of the clients whose session is so."""
    return st.runner().flatmap(lambda machine: st.sampled_from(machine.names(says)))


def _anybody(says: Callable[[Session], object]) -> Callable[["Conversation"], bool]:
    return lambda machine: bool(machine.names(says))


def _is_connected(session: Session) -> bool:
    return session.connected


def _is_away(session: Session) -> bool:
    return not session.connected


def _was_sent_much(session: Session) -> bool:
    return session.connected and bool(session.on_the_wire())


def _has_published_halfway(session: Session) -> bool:
    return session.connected and bool(session.unreleased)


class Conversation(RuleBasedStateMachine):
    def __init__(self, model: Model | None = None, workers: Sequence[Broker] | None = None) -> None:
        """With one worker, if not with *workers* that are one node."""
        super().__init__()
        self.workers: Sequence[Broker] = [Broker(CONFIG)] if workers is None else workers
        self.clock = self.workers[0].clock
        self.model = model or Model(WINDOW)
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

    @precondition(_anybody(_is_away))
    @rule(name=_where(_is_away), asked=st.none() | askings, at=places)
    def come_back(self, name: str, asked: Asked | None, at: int = 0) -> None:
        """Most clients ask for the same each time: None."""
        self._connect(name, False, asked or self.asked[name], at)

    @precondition(_anybody(_is_connected))
    @rule(name=_where(_is_connected), with_will=st.booleans(), expiry=st.sampled_from([None, 0, 10, 20]))
    def disconnect(self, name: str, with_will: bool, expiry: int | None) -> None:
        line = self.lines.pop(name)
        session = self.model.sessions[name]
        if line.client.version != V5 or session.expiry == 0:
            expiry = None  # 3.x cannot say it, and 5.0 may not (3.14.2.2.2)
        with_will = with_will and line.client.version == V5
        asked: Properties = {} if expiry is None else {SESSION_EXPIRY_INTERVAL: expiry}
        line.client.send(Disconnect(WITH_WILL if with_will else 0, asked))
        self.model.disconnect(name, with_will, expiry)
        line.part()

    @precondition(_anybody(_is_connected))
    @rule(name=_where(_is_connected))
    def drop(self, name: str) -> None:
        self.lines.pop(name).client.drop()
        self.model.lose(name)

    @rule(weeks=st.sampled_from([1, 2, 6]))
    def wait(self, weeks: int) -> None:
        for _ in range(weeks):
            began = self.clock.now
            for second in range(1, WEEK + 1):
                # A timer is at most a tenth late. The last second is one that nothing is due at.
                self.clock.now = began + second + (0.0 if second == WEEK else 0.2)
                self.model.pass_second()
                self.everybody_has_what_it_is_owed()

    # Who wants what.

    @precondition(_anybody(_is_connected))
    @rule(name=_where(_is_connected), filters=st.lists(wanted, min_size=1, max_size=3), identifier=st.integers(0, 2))
    def subscribe(self, name: str, filters: list[Wanted], identifier: int) -> None:
        line = self.lines[name]
        filters = [_as_known(one, line.client.version) for one in filters]
        if line.client.version != V5:
            identifier = 0
        asked: Properties = {SUBSCRIPTION_IDENTIFIER: [identifier]} if identifier else {}
        codes = [self.model.subscribe(name, one, identifier) for one in filters]
        packet_id = next(self.ids)
        line.say(Subscribe(packet_id, filters, asked), SubAck(packet_id, codes))

    @precondition(_anybody(lambda session: session.connected and session.subscriptions))
    @rule(
        name=_where(lambda session: session.connected and session.subscriptions),
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

    @precondition(_anybody(_is_connected))
    @rule(name=_where(_is_connected), said=st.lists(publishes, min_size=1, max_size=4))
    def publish(self, name: str, said: list[Said]) -> None:
        self._publish(name, said)

    @precondition(_anybody(_is_connected))
    @rule(name=_where(_is_connected), topic=st.sampled_from(TOPICS), qos=qualities, times=st.integers(2, 5))
    def publish_in_a_row(self, name: str, topic: bytes, qos: int, times: int) -> None:
        """What the broker may handle in one piece."""
        self._publish(name, [Said(topic, qos)] * times)

    @precondition(_anybody(_has_published_halfway))
    @rule(name=_where(_has_published_halfway), at=st.integers(0, 9))
    def publish_once_more(self, name: str, at: int) -> None:
        """A QoS 2 message whose PUBREC the client has forgotten: nobody receives it twice [MQTT-4.3.3-10]."""
        unreleased = self.model.sessions[name].unreleased
        packet_id = list(unreleased)[at % len(unreleased)]
        said = unreleased[packet_id]
        packet = Publish(said.topic, said.payload, 2, said.retain, True, packet_id)
        self.lines[name].say(packet, Ack(PUBREC, packet_id))

    @precondition(_anybody(_has_published_halfway))
    @rule(name=_where(_has_published_halfway), at=st.integers(0, 9))
    def release(self, name: str, at: int) -> None:
        unreleased = list(self.model.sessions[name].unreleased)
        self._release(name, unreleased[at % len(unreleased)])

    @precondition(_anybody(_was_sent_much))
    @rule(name=_where(_was_sent_much), at=st.integers(0, 9), refuse=st.booleans())
    def acknowledge(self, name: str, at: int, refuse: bool) -> None:
        """A client that is not prompt answers one packet, in any order."""
        sent = self.model.sessions[name].on_the_wire()
        self._acknowledge(name, sent[at % len(sent)], refuse)

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
            for broker in self.workers:
                broker.close()

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
        for broker in self.workers:
            assert 0 == broker.outbound_budget.used
            assert 0 == broker.queue_budget.used

    def _compare_counts(self) -> None:
        """The broker holds what it should and no more."""
        for broker in self.workers:
            self._compare_counts_of(broker)

    def sessions_of(self, broker: Broker) -> list[Session]:
        """Those that are to be found there, whatever it says how many."""
        return [session for session in self.model.sessions.values() if broker.session(session.name)]

    def _compare_counts_of(self, broker: Broker) -> None:
        sessions = self.sessions_of(broker)
        subscriptions = [subscription for session in sessions for subscription in session.subscriptions.values()]
        groups = {(one.share, one.filter) for one in subscriptions if one.share}
        alone = sum(1 for one in subscriptions if not one.share)
        assert (alone + len(groups), len(groups)) == broker.routes.statistics()[1:]
        assert len(sessions) == broker.session_count()
        assert sum(1 for session in sessions if session.connected) == broker.connected
        broker.retained.expire(self.clock.now, len(TOPICS) + len(NAMES))
        assert len(self.model.retained()) == broker.retained.statistics().count
        dropped = {reason for reason, times in broker.counters.dropped_by_reason.items() if times}
        assert dropped <= LAWFUL_DROPS
        assert 0 == broker.counters.internal_errors

    # How it is said.

    def _connect(
        self, name: str, clean: bool, asked: Asked, at: int, meanwhile: Callable[[], None] | None = None
    ) -> None:
        """CONNECT to the worker number *at*; *meanwhile*: what else happens before the answer is read."""
        five = asked.version == V5
        properties: Properties = {}
        if five:
            properties[SESSION_EXPIRY_INTERVAL] = asked.expiry
            properties[RECEIVE_MAXIMUM] = asked.window
            properties[TOPIC_ALIAS_MAXIMUM] = asked.aliases
        message, delay, will = None, 0, None
        if asked.parting is not None:
            message, delay, will = self._will(name, asked.parting, five)
        client = self.workers[at % len(self.workers)].open(asked.version)
        client.send(Connect(asked.version, name, clean, 0, None, None, will, properties))
        if meanwhile is not None:
            meanwhile()
        connack, *rest = client.receive()
        client.inbox.extend(rest)
        former = self.lines.pop(name, None)
        if former is not None:
            self._part(name, former)
        expiry = asked.expiry if five else 0 if clean else LONGEST_EXPIRY
        window = asked.window if five else WINDOW
        present = self.model.connect(name, asked.version, clean, expiry, window, message, delay)
        assert isinstance(connack, ConnAck) and connack.code == 0, connack
        assert connack.session_present == (present and asked.version != V31)  # which 3.1 does not tell
        self.lines[name] = Line(client, asked.prompt)
        self.asked[name] = asked

    def _part(self, name: str, former: Line, code: int = TAKEN_OVER) -> None:
        """The broker has closed *former* with *code*; what it was sent until then it has received."""
        said = former.client.receive()
        for packet in [packet for packet in said if isinstance(packet, Publish)]:
            self.model.receive(name, former.unaliased(packet))
        former.client.inbox = [packet for packet in said if not isinstance(packet, Publish)]
        former.part(Disconnect(code))

    def _will(self, name: str, parting: Parting, five: bool) -> tuple[Message, int, Will]:
        message = Message(name, b"will/" + name.encode(), b"will %d" % next(self.payloads), parting.qos, parting.retain)
        will = Will(message.topic, message.payload, message.qos, message.retain)
        if not five:
            return message, 0, will
        message.lifetime, message.properties = parting.lifetime, parting.properties
        will.properties = _with_lifetime(message) | {WILL_DELAY_INTERVAL: parting.delay}
        return message, parting.delay, will

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
            message.lifetime, message.properties = said.lifetime, said.properties
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

    def _receive(self, names: Iterable[str] | None = None) -> None:
        """Everybody, or those of *names*, reads what there is."""
        self.workers[0].settle()
        for name in list(self.lines) if names is None else names:
            line = self.lines[name]
            for packet in line.client.receive():
                if isinstance(packet, Publish):
                    self.model.receive(name, line.unaliased(packet))
                elif packet in line.expected[:1]:
                    del line.expected[0]
                else:
                    assert isinstance(packet, Ack) and packet.kind == PUBREL, f"{name} got {packet}"
                    self.model.receive_pubrel(name, packet.packet_id)
            assert not line.expected, f"{name} was not answered {line.expected}"
            assert not line.client.closed, f"{name} was thrown out"


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
