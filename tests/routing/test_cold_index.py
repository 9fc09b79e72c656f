import random
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from broker.routing.cold_index import NAME, ColdIndex
from broker.routing.cold_segments import NO_DEADLINE
from broker.routing.cold_shapes import NEW_SHAPES, SHAPES
from broker.routing.cold_walk import ColdWalk
from broker.routing.interest import entries_of, entry_of, interest_of
from broker.routing.neighbour import Neighbours
from tests.routing.reference import filters, matches, topics

clients = st.integers(0, 30).map(lambda number: b"c%d" % number)


def interest(*wanted: bytes) -> bytes:
    found = interest_of(wanted)
    assert found is not None
    return found


def _cut(value: bytes) -> bytes:
    """A value with an entry that ends at any place."""
    return value[:4] + interest(b"a/+/b")[: len(value)]


def index_of(sessions: dict[bytes, list[bytes]]) -> ColdIndex:
    index = ColdIndex()
    for client, wanted in sessions.items():
        assert index.add(client, NO_DEADLINE, interest(*wanted), 0)
    return index


class Peers(Neighbours):
    """What they have been told."""

    def __init__(self) -> None:
        self.entries: Counter[bytes] = Counter()

    def cold_gained(self, entry: bytes) -> None:
        self.entries[entry] += 1

    def cold_lost(self, entry: bytes) -> None:
        self.entries[entry] -= 1


class Session:
    def __init__(self, deadline: int, wanted: list[bytes], owner: int) -> None:
        self.deadline = deadline
        self.wanted = wanted
        self.owner = owner
        self.expired = False

    def waits_for(self, topic: bytes) -> bool:
        return any(matches(filter, topic) for filter in self.wanted)


class Walk:
    """A walk over an index, and who has to be found by it."""

    def __init__(self, topic: bytes, walk: ColdWalk, owed: set[bytes]) -> None:
        self.topic = topic
        self.walk = walk
        self.owed = owed


class Model(RuleBasedStateMachine):
    """An index beside a dict. Its clients are few, so sessions are replaced, and its filters short, so they meet."""

    walks = Bundle("walks")

    @initialize(many=st.sampled_from([0, 0, 300]), expected=st.sampled_from([0, 20, 5000, 10_000]))
    def begin(self, many: int, expected: int) -> None:
        self.index = ColdIndex()
        self.index.expect(expected)
        self.peers = Peers()
        self.index.neighbours = self.peers
        self.sessions: dict[bytes, Session] = {}
        self.open: list[Walk] = []
        self.now = 100
        for number in range(many):  # tables have been split
            self.add(b"m%d" % number, NO_DEADLINE, [b"many", b"%d/+" % number], 7)

    @rule(
        client=clients,
        deadline=st.integers(90, 130) | st.just(NO_DEADLINE),
        wanted=st.lists(filters, max_size=4, unique=True),
        owner=st.integers(0, 65535),
    )
    def add(self, client: bytes, deadline: int, wanted: list[bytes], owner: int) -> None:
        assert self.index.add(client, deadline, interest(*wanted), owner)
        self.sessions[client] = Session(deadline, wanted, owner)
        for walk in self.open:
            walk.owed.discard(client)

    @rule(
        page=st.lists(st.tuples(clients, st.lists(filters, max_size=4, unique=True) | st.none()), max_size=6),
        deadline=st.integers(90, 130) | st.just(NO_DEADLINE),
        owner=st.integers(0, 65535),
    )
    def load(self, page: list[tuple[bytes, list[bytes] | None]], deadline: int, owner: int) -> None:
        stored = deadline.to_bytes(4, "big")
        values = [b"" if wanted is None else stored + interest(*wanted) for _, wanted in page]
        entries = [part for (client, _), value in zip(page, values, strict=True) for part in (client, value)]
        assert [client for client, wanted in page if wanted is None] == self.index.load(entries, owner)
        for client, wanted in page:
            if wanted is not None:
                self.sessions[client] = Session(deadline, wanted, owner)
                for walk in self.open:
                    walk.owed.discard(client)

    @rule(client=clients)
    def discard(self, client: bytes) -> None:
        for walk in self.open:
            assert walk.walk.owes(client) == (client in walk.owed)
            walk.owed.discard(client)
        assert self.index.discard(client) == (self.sessions.pop(client, None) is not None)

    @rule(client=clients, owner=st.integers(0, 65535))
    def set_owner(self, client: bytes, owner: int) -> None:
        assert self.index.set_owner(client, owner) == (client in self.sessions)
        if client in self.sessions:
            self.sessions[client].owner = owner

    @rule(client=clients)
    def find(self, client: bytes) -> None:
        session = self.sessions.get(client)
        assert self.index.find(client) == (-1 if session is None else session.owner)

    @rule(topic=topics | st.just(b"many"))
    def match(self, topic: bytes) -> None:
        expected = sorted(client for client, session in self.sessions.items() if session.waits_for(topic))
        assert expected == sorted(self.index.matching(topic))
        assert bool(expected) == self.index.matches(topic)

    @rule(target=walks, topic=topics | st.just(b"many"))
    def walk(self, topic: bytes) -> Walk:
        owed = {client for client, session in self.sessions.items() if session.waits_for(topic)}
        walk = Walk(topic, self.index.walk(topic), owed)
        self.open.append(walk)
        return walk

    @rule(walk=walks, most=st.integers(1, 5))
    def take(self, walk: Walk, most: int) -> None:
        found = walk.walk.take(most)
        assert len(found) <= most
        assert len(set(found)) == len(found)
        assert set(found) <= walk.owed
        walk.owed -= set(found)
        if walk.walk.done:
            assert not walk.owed

    @rule(walk=consumes(walks), to_the_end=st.booleans())
    def finish(self, walk: Walk, to_the_end: bool) -> None:
        while to_the_end and not walk.walk.done:
            self.take(walk, 100)
        walk.walk.stop()
        self.open.remove(walk)

    @rule(seconds=st.integers(0, 10), most=st.integers(1, 4))
    def expire(self, seconds: int, most: int) -> None:
        self.now += seconds
        due = [c for c, session in self.sessions.items() if session.deadline <= self.now and not session.expired]
        found = self.index.expired(self.now, most)
        assert len(found) == min(most, len(due))
        assert set(found) <= set(due)
        for client in found:
            self.sessions[client].expired = True
        assert len(found) == len(due) or self.index.next_deadline() <= self.now

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "index"):
            assert len(self.sessions) == len(self.index)
            wanted = {entry_of(filter) for session in self.sessions.values() for filter in session.wanted}
            assert len(wanted) == self.index.filters()
            assert dict.fromkeys(wanted, 1) == +self.peers.entries

    @rule(most=st.integers(1, 50))
    def list_all(self, most: int) -> None:
        names: list[bytes] = []
        entries: list[bytes] = []
        place = 0
        while place >= 0:
            page, place = self.index.names(place, most)
            assert len(page) <= most
            names += page
        place = 0
        while place >= 0:
            told, place = self.index.entries(place, most)
            entries += entries_of(told, len(told)) or []
        assert sorted(names) == sorted(self.sessions)
        assert sorted(entries) == sorted(+self.peers.entries)


@pytest.mark.interpreted  # Peers
def test_an_index_is_a_dict_of_sessions() -> None:
    """A session would miss a message, get one twice, or never end; a peer would not send what is for one."""
    run_state_machine_as_test(Model, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


@given(st.dictionaries(clients, st.lists(filters, max_size=4, unique=True)), topics)
def test_a_match_is_what_the_rules_say(sessions: dict[bytes, list[bytes]], topic: bytes) -> None:
    """A message would not wake a session that waits for it [MQTT-3.3.2-3], or deliver twice to one."""
    expected = sorted(client for client, wanted in sessions.items() if any(matches(w, topic) for w in wanted))

    assert expected == sorted(index_of(sessions).matching(topic))


# (what, client, how many are taken, filters that are added)
Step = tuple[str, bytes, int, list[bytes]]
few = st.sampled_from([b"c%d" % number for number in range(5)])
wants = st.lists(st.sampled_from([b"a", b"+", b"#", b"b"]), max_size=3, unique=True)
steps = st.lists(st.tuples(st.sampled_from(["take", "discard", "add"]), few, st.integers(1, 3), wants), max_size=15)


@example(
    [("add", b"c2", 1, [b"a"]), ("add", b"c0", 1, [b"a"])], [("take", b"", 1, []), ("discard", b"c2", 1, [])]
)  # the rest of a chain leaves
@given(steps, steps)
def test_a_walk_finds_each_session_that_stays_cold_and_says_which_it_still_owes(
    before: list[Step], during: list[Step]
) -> None:
    """A session that is warmed while a large publish is under way would miss it, or get it twice."""
    index, wanted = ColdIndex(), dict[bytes, list[bytes]]()

    def change(what: str, client: bytes, names: list[bytes]) -> None:
        if what == "discard":
            assert index.discard(client) == (wanted.pop(client, None) is not None)
        elif what == "add":
            assert index.add(client, NO_DEADLINE, interest(*names), 0)
            wanted[client] = names

    for what, client, _most, names in before:
        change(what, client, names)
    walk = index.walk(b"a")
    owed = {client for client, names in wanted.items() if {b"a", b"+", b"#"} & set(names)}
    for what, client, most, names in [*during, *[("take", b"", 1, list[bytes]())] * 30]:
        assert owed == {each for each in [b"c%d" % number for number in range(5)] if walk.owes(each)}
        if what == "take":
            found = walk.take(most)
            assert set(found) <= owed and len(set(found)) == len(found)
            owed -= set(found)
        else:
            owed.discard(client)
            change(what, client, names)

    assert walk.done and not owed
    assert not index.walks


def test_a_message_for_thousands_finds_them_in_steps() -> None:
    """A publish for a fleet that is away would hold the loop until all of it is found."""
    index = index_of({b"%d" % number: [b"all", b"all/#"] for number in range(5000)})
    walk = index.walk(b"all")
    found = walk.take(10)
    index.discard(found[-1])  # found before: it changes nothing
    index.discard(b"17")
    assert index.add(b"new", NO_DEADLINE, interest(b"all"), 0)
    while not walk.done:
        step = walk.take(100)
        assert len(step) <= 100
        found += step

    assert sorted(found) == sorted(b"%d" % number for number in range(5000) if number != 17)
    assert walk.take(10) == []


def test_a_topic_costs_a_bounded_number_of_hashes() -> None:
    """Clients with filters of many shapes would make each publish of all others slow."""
    index = ColdIndex()
    for number in range(SHAPES):
        assert index.add(b"%d" % number, NO_DEADLINE, interest(b"/".join([b"a"] * (number + 1) + [b"+"])), 0)

    assert not index.add(b"one more", NO_DEADLINE, interest(b"a/#"), 0)
    assert index.add(b"a known one", NO_DEADLINE, interest(b"a/+"), 0)
    assert -1 == index.find(b"one more")
    assert index.discard(b"5")
    assert index.add(b"one more", NO_DEADLINE, interest(b"a/#"), 0)


def test_one_session_does_not_take_all_shapes() -> None:
    """One client would keep the sessions of all others in memory."""
    index = ColdIndex()
    deep = [b"/".join([b"a"] * (number + 1) + [b"+"]) for number in range(NEW_SHAPES + 1)]

    assert not index.add(b"one", NO_DEADLINE, interest(*deep), 0)
    assert index.add(b"one", NO_DEADLINE, interest(*deep[1:]), 0)
    assert index.add(b"two", NO_DEADLINE, interest(*deep), 0)


def test_a_filter_that_is_stored_twice_counts_once() -> None:
    """A message would be for one session twice."""
    index = index_of({b"client": [b"a"]})
    assert index.add(b"twice", NO_DEADLINE, interest(b"a") * 2, 0)

    assert [b"twice", b"client"] == index.matching(b"a")
    assert index.discard(b"twice")
    assert [b"client"] == index.matching(b"a")


def test_a_deadline_may_be_beyond_2038() -> None:
    """Sessions that are stored then would end at once, or never."""
    index = ColdIndex()
    assert [] == index.load([b"client", b"\x80\0\0\0"], 0)

    assert float(1 << 31) == index.next_deadline()
    assert [b"client"] == index.expired(float(1 << 31), 1)


def test_what_cannot_be_read_is_not_added() -> None:
    """A record that somebody has written to Redis would end a worker, or a session be lost."""
    index = ColdIndex()

    assert not index.add(b"client", NO_DEADLINE, b"\0abc", 0)
    assert [b"client", b"short"] == index.load([b"client", b"\0\0\0\0\0abc", b"short", b"\0\0\0", b"odd"], 0)
    assert not index.add(b"c" * (NAME + 1), NO_DEADLINE, b"", 0)
    assert not index.discard(b"c" * (NAME + 1))
    assert 0 == len(index)
    assert index.add(b"c" * NAME, NO_DEADLINE, b"", 3)
    assert 3 == index.find(b"c" * NAME)


@given(st.lists(st.tuples(clients, st.binary(max_size=40) | st.binary(min_size=4, max_size=30).map(_cut)), max_size=5))
def test_values_are_read_as_they_are_everywhere(stored: list[tuple[bytes, bytes]]) -> None:
    """What somebody has written to Redis would end each worker that starts."""
    index = ColdIndex()
    warm = index.load([part for entry in stored for part in entry], 0)

    assert warm == [client for client, value in stored if len(value) < 4 or entries_of(value[4:]) is None]


def test_numbers_and_text_are_used_again() -> None:
    """The memory of a worker would grow as long as sessions come and go."""
    index = ColdIndex()
    names = [b"client-%d" % number for number in range(2000)]
    for name in names:
        index.add(name, NO_DEADLINE, interest(name, b"x/+"), 0)
    size = index.size()
    for _ in range(20):
        random.Random(1).shuffle(names)
        for name in names[:1000]:
            assert index.discard(name)
        for name in names[:1000]:
            assert index.add(name, NO_DEADLINE, interest(name, b"x/+"), 0)

    assert index.size() < 1.3 * size
    assert sorted(names) == sorted(index.matching(b"x/1"))
    for name in names:
        index.discard(name)
    assert index.size() > 2 * ColdIndex().size()  # a million sessions would hold the loop while they are freed
    index.expired(0.0, 1)
    assert index.size() == ColdIndex().size()


def test_malformed_shapes_match_nothing() -> None:
    """What somebody has written to Redis would fail each publish."""
    index = ColdIndex()
    for number in range(40):
        shape = random.Random(number).randbytes(2 + number % 5)
        index.add(b"%d" % number, NO_DEADLINE, bytes((len(shape),)) + shape + bytes(8), 0)

    assert entries_of(interest(b"a")) == [entry_of(b"a")]
    assert [] == index.matching(b"a/b/c")
