# A session on its way to another worker: nobody who talks to it can tell, and what is no session becomes none.
from collections import deque
from collections.abc import Callable

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.delivery.outbox import OutboundBudget, Outbox
from broker.delivery.ring import Ring
from broker.metrics.counters import Counters
from broker.mqtt.packets import V5, V311, Properties
from broker.mqtt.packets import Will as WillFields
from broker.mqtt.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY_INTERVAL,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    USER_PROPERTY,
    WILL_DELAY_INTERVAL,
)
from broker.reasons import DropReason, ProtocolError
from broker.session.limits import SessionLimits
from broker.session.message import NEVER, Message
from broker.session.packet_ids import FEW
from broker.session.principal import NOBODY, Principal
from broker.session.queue import MESSAGE, QUEUED, MessageBudget
from broker.session.session import Session
from broker.session.subscription import Subscription
from broker.session.transfer.entries import to_message
from broker.session.transfer.pages import CHUNK
from broker.session.transfer.session_export import SessionExport
from broker.session.transfer.session_import import SessionImport, SessionImportError
from broker.session.will import Will
from tests.session.receiver import NOW, PLENTY, Receiver, message

LATER = NOW + 100.0
WAITING = MESSAGE + QUEUED + 2  # bytes of a message that waits, with a topic and a payload of one byte


def limits_with(
    budget: MessageBudget, *, inflight: int = 3, queue: int = 4, queue_bytes: int = PLENTY
) -> SessionLimits:
    return SessionLimits(inflight=inflight, pending=2, queue=queue, queue_bytes=queue_bytes, budget=budget)


def chunks_of(exported: SessionExport) -> list[bytes]:
    chunks = []
    while chunk := exported.next_chunk():
        chunks.append(chunk)
    return chunks


def leave(session: Session) -> SessionExport:
    """*session*, exported, and nothing follows."""
    exported = SessionExport(session, MessageBudget(PLENTY), 1.0, 0.0, [])
    session.subscriptions.clear()
    exported.leaving = True
    return exported


def no_store(client_id: str, application: bool) -> None:
    """This worker keeps sessions in memory."""


def an_import(limits: SessionLimits, counters: Counters) -> SessionImport:
    """An import of any session, which gets *limits*."""
    return SessionImport(lambda client_id, user: limits, limits.budget, counters, no_store)


def arrive(chunks: list[bytes], limits: SessionLimits | None = None, counters: Counters | None = None) -> SessionImport:
    imported = an_import(limits or limits_with(MessageBudget(PLENTY)), counters or Counters())
    for chunk in chunks:
        imported.take(chunk)
    return imported


def moved(session: Session) -> Session:
    return arrive(chunks_of(leave(session))).finish()


def away(**options: int) -> Receiver:
    """A session that outlives its connections and has none."""
    return Receiver(expiry=100, **options)  # type: ignore[arg-type]  # the budget is no option here


# One that moves and one that stays.


class Side:
    """A session with what surrounds it: as *moving*, it may go from one worker to the next."""

    def __init__(self, *, moving: bool) -> None:
        self.moving = moving
        self.budget = MessageBudget(PLENTY)
        self.counters = Counters()
        self.session = Session("client", limits_with(self.budget), self.counters)
        self.session.expiry = 100
        self.outbox: Outbox | None = None

    def connect(self, version: int, window: int, maximum: int, aliases: int, now: float) -> None:
        self.drop(now)
        self.outbox = Outbox(0, 200, 100, OutboundBudget(1 << 40), Ring())
        self.session.attach(self.outbox, version, window, maximum, aliases if version == V5 else 0)
        self.session.resume(now)

    def drop(self, now: float) -> None:
        self.session.detach()
        self.outbox = None

    def take(self, now: float) -> bytes:
        out = self.outbox
        if out is None or not out.size:
            return b""
        taken = bytes(out.gather())
        if out.sent(len(taken), 0.0):
            self.session.pump(now)
        return taken

    def offer(self, *messages: Message, now: float) -> None:
        for each in messages:
            own = Message(each.topic, each.payload, each.qos, each.retain, each.properties, each.expires)
            self.session.offer(own, now)

    def move(self, late: list[Message], direct: list[Message], now: float) -> None:
        self.drop(now)
        if not self.moving:
            self.offer(*late, *direct, now=now)
            return
        exported = SessionExport(self.session, self.budget, 1.0, 2.0, [])
        budget = MessageBudget(PLENTY)
        imported = an_import(limits_with(budget), self.counters)
        while imported.session is None:
            imported.take(exported.next_chunk())
        self.offer(*late[:1], now=now)
        imported.take(exported.next_chunk())
        self.session = imported.session
        self.offer(*direct, now=now)
        self.session = exported.session
        self.offer(*late[1:], now=now)
        exported.leaving = True
        for chunk in chunks_of(exported):
            imported.take(chunk)
        exported.release()
        assert (0, 0) == (self.budget.used, self.budget.messages)
        self.session = imported.finish()
        self.budget = budget


def offered() -> st.SearchStrategy[Message]:
    plain = st.builds(
        message,
        st.binary(max_size=30),
        st.integers(0, 2),
        topic=st.sampled_from([b"t", b"u/v"]),
        properties=st.sampled_from([b"", b"\x01\x01", b"\x26\0\x01a\0\x01b"]),
        expires=st.sampled_from([NEVER, NEVER, NOW + 3.0, NOW + 60.5]),
    )
    return plain


Event = tuple[str, tuple[object, ...]]
IDS = st.integers(1, 6)
EVENTS = st.one_of(
    st.tuples(st.just("offer"), st.tuples(offered())),
    st.tuples(st.just("offer"), st.tuples(offered())),
    st.tuples(
        st.just("connect"),
        st.tuples(st.sampled_from([V311, V5]), st.integers(1, 4), st.sampled_from([0, 20]), st.integers(0, 2)),
    ),
    st.tuples(st.sampled_from(["drop", "take"]), st.just(())),
    st.tuples(st.sampled_from(["puback", "pubcomp"]), st.tuples(IDS)),
    st.tuples(st.just("pubrec"), st.tuples(IDS, st.sampled_from([0, 0, 0x80]))),
    st.tuples(st.sampled_from(["receive", "pubrel"]), st.tuples(IDS)),
    st.tuples(st.just("move"), st.tuples(st.lists(offered(), max_size=4), st.lists(offered(), max_size=2))),
)


def happen(side: Side, event: Event, now: float) -> object:
    name, arguments = event
    if name == "offer":
        return getattr(side, name)(*arguments, now=now)
    if name in ("connect", "drop", "take", "move"):
        return getattr(side, name)(*arguments, now)
    if name in ("puback", "pubcomp", "pubrec"):
        try:
            return getattr(side.session, name)(*arguments, now)
        except ProtocolError as error:  # an acknowledgement of the wrong kind
            return error.detail
    return getattr(side.session, name)(*arguments)


def held(session: Session) -> tuple[int, int, int, list[bool]]:
    unreleased = session.unreleased() if session.outbox is not None else 0  # a number of the connection's
    return session.waiting(), session.inflight(), unreleased, [session.holds(packet_id) for packet_id in range(8)]


@given(st.lists(EVENTS, max_size=40))
@settings(max_examples=300)
def test_a_session_that_moved_says_what_it_would_have_said(events: list[Event]) -> None:
    """Something of it would have been left behind: a client would be told other bytes than by the worker it left."""
    stays, moves = Side(moving=False), Side(moving=True)
    now = NOW
    for event in [*events, ("move", ([], [])), ("connect", (V5, 4, 0, 0)), *[("take", ())] * 3]:
        now += 0.5
        assert happen(stays, event, now) == happen(moves, event, now)
        assert stays.take(now) == moves.take(now)
        assert held(stays.session) == held(moves.session)
        assert (stays.budget.used, stays.budget.messages) == (moves.budget.used, moves.budget.messages)


# What it holds beside messages.


def test_it_is_the_same_session() -> None:
    """Its client would find less than it left, or somebody else's rights."""
    former = away().session
    former.principal = Principal("client", "user", 7)
    former.last_id = 77
    for packet_id in range(1, 4):
        former.receive(packet_id)
    session = moved(former)

    assert ("client", 100, 77) == (session.client_id, session.expiry, session.last_id)
    assert session.principal.acts_for(former.principal)
    assert [True, True, True, False] == [session.holds(packet_id) for packet_id in range(1, 5)]
    assert (None, 0) == (session.will, session.version)


def test_its_rights_are_looked_at_anew() -> None:
    """The number of some rules here would be taken for that of others there."""
    former = away().session
    for generation in (0, 1, 7):
        former.principal = Principal("client", None, generation)
        assert generation != moved(former).principal.judged

    former.principal = NOBODY  # nobody decides by it here, but there somebody may
    assert moved(former).principal is not NOBODY
    assert moved(former).principal.acts_for(Principal("client", None, 0))


@pytest.mark.parametrize("count", [0, FEW, FEW + 1, 65535])
def test_many_unreleased_ids_come_along(count: int) -> None:
    """A QoS 2 message would be delivered twice."""
    former = away().session
    for packet_id in range(1, count + 1):
        former.receive(packet_id)
    session = moved(former)

    assert all(session.holds(packet_id) for packet_id in range(1, count + 1))
    assert count == 65535 or not session.holds(count + 1)
    assert count == (session.incoming.count if session.incoming else 0)


def test_subscriptions_come_along_with_their_options() -> None:
    """A client would get what it did not ask for, or not get what it did."""
    former = away().session
    wanted = [
        (b"a/+", 0, False, False, b""),
        (b"$share/group/a/#", 2, False, True, b"\x0b\x07"),
        (b"b", 1, True, False, b""),
    ]
    for key, qos, no_local, retain_as_published, identifiers in wanted:
        share, filter = (b"group", b"a/#") if key.startswith(b"$share/group") else (b"", key)
        subscription = former.subscriptions[key] = Subscription(former, filter, share)
        subscription.qos, subscription.no_local = qos, no_local
        subscription.retain_as_published, subscription.identifiers = retain_as_published, identifiers
    exported = SessionExport(former, MessageBudget(PLENTY), 12.5, 3.5, [former.subscriptions[b"b"]])
    imported = an_import(limits_with(MessageBudget(PLENTY)), Counters())
    imported.take(exported.next_chunk())
    imported.take(exported.next_chunk())
    assert imported.session is None
    imported.take(exported.next_chunk())

    assert (b"", False) == (exported.next_chunk(), exported.finished)
    assert wanted == [
        (each.key(), each.qos, each.no_local, each.retain_as_published, each.identifiers)
        for each in imported.subscriptions
    ]
    assert [(b"", b"a/+"), (b"group", b"a/#"), (b"", b"b")] == [
        (each.share, each.filter) for each in imported.subscriptions
    ]
    assert all(each.session is imported.session for each in imported.subscriptions)
    assert ([b"b"], 12.5, 3.5) == ([each.filter for each in imported.owed], imported.expires, imported.will_due)


def test_times_of_another_clock_become_times_of_the_clock_here() -> None:
    """What waits would expire at once, or never, and so would the session: the clocks of machines differ."""
    former = away().session
    sent = [Message(b"t", payload, 1, False, b"", expires) for payload, expires in ((b"1", 700.0), (b"2", NEVER))]
    sent[1].ends = 900.0  # queues keep it no longer
    former.put_before(deque(sent))
    limits = limits_with(MessageBudget(PLENTY))
    imported = SessionImport(lambda client_id, user: limits, limits.budget, Counters(), no_store, 0.5)
    exported = SessionExport(former, MessageBudget(PLENTY), 12.5, 0.0, [])
    exported.leaving = True
    for chunk in chunks_of(exported):
        imported.take(chunk)

    assert (13.0, 0.0) == (imported.expires, imported.will_due)
    assert [(700.5, 700.5), (NEVER, 900.5)] == [
        (message.expires, message.ends) for message in imported.finish().take_waiting()
    ]


def test_the_will_comes_along() -> None:
    """Another will would be published than the client left, or without what it said of it."""
    properties: Properties = {
        WILL_DELAY_INTERVAL: 30,
        PAYLOAD_FORMAT_INDICATOR: 1,
        MESSAGE_EXPIRY_INTERVAL: 60,
        CONTENT_TYPE: "text/plain",
        RESPONSE_TOPIC: "answers",
        CORRELATION_DATA: b"\0\1",
        USER_PROPERTY: [("b", "1"), ("a", "2"), ("b", "3")],
    }
    for fields in (WillFields(b"wills", b"gone", 2, True, properties), WillFields(b"w", b"", 0, False, {})):
        former = away().session
        former.will = Will(fields)
        session = moved(former)
        assert session.will is not None
        assert (fields, former.will.delay) == (session.will.fields(), session.will.delay)


# Chunks.


def test_a_long_queue_goes_in_small_pieces() -> None:
    """A client with a large queue would hold the loops of both workers."""
    client = away(queue=2000)
    payloads = [b"%d" % number + bytes(900) for number in range(1200)]
    for payload in payloads:
        client.offer(message(payload, 1))
    exported = leave(client.session)
    chunks = chunks_of(exported)

    assert exported.finished
    assert 10 < len(chunks)
    assert CHUNK >= max(map(len, chunks))
    session = arrive(chunks, limits_with(MessageBudget(PLENTY), queue=2000)).finish()
    client.session = session
    client.connect()
    assert payloads == client.acknowledge()


def test_many_small_things_are_many_pages() -> None:
    """One page of a hundred thousand filters, or unacknowledged messages, would hold the loop."""
    client = away().connect()
    for number in range(600):
        client.offer(message(b"%d" % number, 1))
        filter = b"%d" % number + bytes(1000)
        client.session.subscriptions[filter] = Subscription(client.session, filter, b"")
    client.take()
    client.session.detach()
    exported = leave(client.session)
    chunks = chunks_of(exported)
    imported = arrive(chunks)

    assert 7 < len(chunks)
    assert (600, 600) == (len(imported.subscriptions), imported.finish().inflight())


def test_a_large_message_goes_in_pieces() -> None:
    """It could not be handed over at all, or in a piece that holds others up."""
    client = away(queue_bytes=1 << 23).connect()
    sent, waits = bytes(CHUNK) + b"sent", bytes(CHUNK * 3) + b"waits"
    client.offer(message(sent, 1))
    client.session.detach()
    client.offer(message(waits, 1))
    chunks = chunks_of(leave(client.session))

    assert CHUNK == max(map(len, chunks))
    client.session = arrive(chunks, limits_with(MessageBudget(PLENTY), queue_bytes=1 << 23)).finish()
    client.connect()
    assert [sent, waits] == client.acknowledge()


def test_what_a_former_version_had_wait_for_a_group_stays_with_the_session() -> None:
    """A node that is updated worker by worker would lose the messages of shared subscriptions."""
    fields = (b"t", b"a", 1, b"\x03\0\x01a\x0b\x07", LATER, b"share", b"t", 6, b"\x03\0\x01a")
    read = to_message(list(fields), 0.0)

    assert (b"t", b"a", 1, False, b"\x03\0\x01a\x0b\x07", LATER) == (
        read.topic,
        read.payload,
        read.qos,
        read.retain,
        read.properties,
        read.expires,
    )


# What it costs, and who pays.


def test_the_budget_counts_a_message_once() -> None:
    """Messages would take room in a worker that does not have them: after a day it would let all others go."""
    old, new = MessageBudget(PLENTY), MessageBudget(PLENTY)
    client = away(queue=9)
    former = Session("client", limits_with(old, queue=9), client.counters)
    former.expiry = 100
    for number in range(3):
        former.offer(message(b"%d" % number, 1), NOW)
    exported = SessionExport(former, old, 1.0, 0.0, [])
    former.offer(message(b"late", 1), NOW)
    exported.leaving = True
    chunks = chunks_of(exported)
    assert (4, 0) == (old.messages, new.messages)

    imported = arrive(chunks, limits_with(new, queue=9))
    assert 4 == new.messages
    exported.release()
    imported.finish()
    assert (0, 0, 4) == (old.messages, old.used, new.messages)
    imported.abandon()  # too late: it is somebody's
    assert (0, 4) == (client.dropped(DropReason.SESSION_ENDED), new.messages)
    former.offer(message(b"stray", 1), NOW)
    assert 1 == client.dropped(DropReason.SESSION_ENDED)


def test_a_worker_with_less_room_lets_the_oldest_go() -> None:
    """It would hold more than it may, or lose messages that nobody counts."""
    former = away(queue=9)
    for number in range(5):
        former.offer(message(b"%d" % number, 1))
    chunks = chunks_of(leave(former.session))
    for limits, left in (
        (limits_with(MessageBudget(3 * WAITING + 60), queue=9), [b"2", b"3", b"4"]),
        (limits_with(MessageBudget(PLENTY), queue=2), [b"3", b"4"]),
        (limits_with(MessageBudget(PLENTY), queue=9, queue_bytes=8), [b"1", b"2", b"3", b"4"]),
        (limits_with(MessageBudget(0)), []),
    ):
        client = away()
        client.session = arrive(chunks, limits, client.counters).finish()
        assert (len(left), WAITING * len(left)) == (limits.budget.messages, limits.budget.used)
        assert 5 - len(left) == client.dropped(DropReason.QUEUE_FULL)
        assert left == client.connect().acknowledge()


def test_a_session_arrives_with_the_limits_of_its_client_and_user() -> None:
    """A move to another worker would cut the long queue that the configuration gives to this client."""
    former = away(queue=9)
    former.session.principal = Principal(former.session.client_id, "u", 0)
    for number in range(5):
        former.offer(message(b"%d" % number, 1))
    asked = []
    budget = MessageBudget(PLENTY)

    def limits_of(client_id: str, user: str | None) -> SessionLimits:
        asked.append((client_id, user))
        return limits_with(budget, queue=4)

    imported = SessionImport(limits_of, budget, former.counters, no_store)
    for chunk in chunks_of(leave(former.session)):
        imported.take(chunk)

    assert 4 == imported.finish().waiting()
    assert [(former.session.client_id, "u")] == asked


def test_no_more_is_held_than_may_be_on_the_way() -> None:
    """A worker that takes many sessions at once would hold them all before it lets anything go."""
    former = away(queue=999)
    for number in range(300):
        former.offer(message(b"%03d" % number, 1))
    budget = MessageBudget(10 * (WAITING + 2))
    imported = an_import(limits_with(budget, queue=999), former.counters)
    for chunk in chunks_of(leave(former.session)):
        imported.take(chunk)
        assert budget.used <= budget.limit

    assert (290, budget.limit) == (former.dropped(DropReason.QUEUE_FULL), budget.used)
    session = imported.finish()
    assert {DropReason.QUEUE_FULL.label: former.dropped(DropReason.QUEUE_FULL)} == session.drops  # its client is told


def test_what_comes_late_has_room_of_its_own() -> None:
    """A full queue on its way would leave no room for what is still delivered at its former place."""
    former = away(queue=9, queue_bytes=6)
    former.offer(message(b"0", 1), message(b"1", 1), message(b"2", 1))
    exported = SessionExport(former.session, MessageBudget(PLENTY), 1.0, 0.0, [])
    former.offer(message(b"3", 1))
    exported.leaving = True
    client = away()
    client.session = arrive(chunks_of(exported), limits_with(MessageBudget(PLENTY), queue=9)).finish()

    assert [b"0", b"1", b"2", b"3"] == client.connect().acknowledge()


def test_what_is_not_handed_over_stays() -> None:
    """A worker that dies while it takes a session would take it along."""
    client = away(queue=9)
    budget = MessageBudget(PLENTY)
    client.session = Session("client", limits_with(budget, queue=9), client.counters)
    client.session.expiry = 100
    client.offer(message(b"0", 1), message(b"1", 1))
    exported = SessionExport(client.session, budget, 1.0, 0.0, [])
    client.offer(message(b"2", 1))
    while exported.next_chunk():
        pass
    client.offer(message(b"3", 1))
    assert exported.next_chunk()
    client.offer(message(b"4", 1))
    exported.undo()

    assert 5 == budget.messages
    assert [b"0", b"1", b"2", b"3", b"4"] == client.connect().acknowledge()
    assert (0, 0) == (budget.messages, budget.used)


def test_what_does_not_arrive_whole_leaves_nothing() -> None:
    """Messages of half a session would fill the budget."""
    budget = MessageBudget(PLENTY)
    client = away(queue=9).connect()
    client.offer(message(b"sent", 1))
    client.session.detach()
    client.offer(message(b"0", 1), message(b"1", 1))
    chunks = chunks_of(leave(client.session))
    for count in range(len(chunks) + 1):
        imported = arrive(chunks[:count], limits_with(budget), client.counters)
        assert imported.complete == (count == len(chunks))
        if not imported.complete:
            with pytest.raises(SessionImportError, match="not here yet"):
                imported.finish()
        if imported.session is not None:
            imported.session.offer(message(b"direct", 1), NOW)
        imported.abandon()
        assert (0, 0) == (budget.messages, budget.used)
    assert 2 == client.dropped(DropReason.SESSION_ENDED)  # those that came there


# What is no session.

HEAD = [0, 1, "client", None, 100, 0, b"", None, 1.0, 0.0]
PLAIN = [b"t", b"x", 1, b"", 0.0]


def pack(*pages: object) -> bytes:
    return b"".join(msgpack.packb(page) for page in pages)


def head(place: int, value: object) -> bytes:
    return pack([*HEAD[:place], value, *HEAD[place + 1 :]])


@pytest.mark.parametrize(
    ("chunk", "why"),
    [
        (head(1, 2), "it has format 2, and this worker knows format 1"),
        (b"\xc1", "cannot be read"),
        (pack(7), "int where a list should be"),
        (pack({}), "cannot be read"),
        (pack([]), "cannot be read"),
        (pack(["x"]), "str where a number should be"),
        (pack(HEAD[:5]), "cannot be read"),
        (head(2, b"x"), "bytes where text should be"),
        (head(3, 1), "int where text should be"),
        (head(4, None), "NoneType where a number should be"),
        (head(6, "x"), "str where bytes should be"),
        (head(6, b"odd"), "cannot be read"),
        (head(7, 1), "int where a list should be"),
        (head(7, [b"w", b"", 0, b"\x05\xff"]), "properties longer"),
        (head(8, 1), "int where a time should be"),
        (pack([3, [PLAIN]]), "a page of kind 3 in the wrong place"),
        (pack(HEAD, HEAD), "a page of kind 0 in the wrong place"),
        (pack(HEAD, [5, [0] * 6]), "a page of kind 5 in the wrong place"),
        (pack(HEAD, [9, []]), "a page of kind 9 in the wrong place"),
        (pack(HEAD, [4, [0] * 6], [1, []]), "a page of kind 1 in the wrong place"),
        (pack(HEAD, [4, [0] * 6], [4, [0] * 6]), "a page of kind 4 in the wrong place"),
        (pack(HEAD, [4, [0] * 6], [5, [0] * 6], [3, []]), "a page of kind 3 in the wrong place"),
        (pack(HEAD, [4, [0, 0, 0, 1, 0, 0]]), "a part of it is missing"),
        (pack(HEAD, [4, [0] * 6], [3, [PLAIN]], [5, [0] * 6]), "a part of it is missing"),
        (pack(HEAD, [3, [PLAIN[:4]]]), "cannot be read"),
        (pack(HEAD, [3, [[*PLAIN, b"share"]]]), "cannot be read"),
        (pack(HEAD, [2, [[1, 2]]]), "int where a list should be"),
        (pack(HEAD, [1, [[b"filter", 1]]]), "cannot be read"),
        (pack(HEAD, [1, [[]] * 257]), "cannot be read"),
    ],
)
def test_what_is_no_session_is_refused_with_a_sentence(chunk: bytes, why: str) -> None:
    """Half a session would be somebody's, or another format be read as ours."""
    imported = an_import(limits_with(MessageBudget(PLENTY)), Counters())

    with pytest.raises(SessionImportError, match=why) as caught:
        imported.take(chunk)
    assert str(caught.value).startswith("A session that was handed over cannot be read: ")
    assert not imported.complete or "kind 3" in why
    imported.abandon()


def test_a_durable_session_is_refused_where_sessions_are_in_memory() -> None:
    """It would begin empty, and what is stored of it be nobody's."""
    with pytest.raises(SessionImportError, match="this worker keeps sessions in memory"):
        arrive([pack([*HEAD, True])])


def test_the_pages_of_these_tests_are_what_they_should_be() -> None:
    """The table above would refuse what is refused for another reason than it says."""
    page: Callable[..., list[object]] = lambda kind, *entries: [kind, list(entries)]  # noqa: E731
    sums = [0, 1, 1, 1, 0, 0]
    pages = [HEAD, page(1, [b"f", 1, b""]), page(2, [1, PLAIN]), page(3, PLAIN), [4, sums], [5, sums]]

    session = arrive([pack(each) for each in pages]).finish()
    assert (1, 1) == (session.inflight(), session.waiting())
