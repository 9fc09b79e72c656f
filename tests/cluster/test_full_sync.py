# Full synchronisation: everything that a peer is told when it joins.
from collections.abc import Iterator
from typing import Final

import pytest

from broker.cluster import wire
from broker.cluster.announcements import Announcements
from broker.cluster.full_sync import COLD_PAGE, PAGE, FullSync
from broker.cluster.peer import Peer
from broker.config.schema import Overload
from broker.overload.gate import Gate
from broker.routing.cold_index import ColdIndex
from broker.routing.cold_segments import NO_DEADLINE
from broker.routing.hybrid_clock import HybridClock, writer_of
from broker.routing.interest import entries_of, entry_of
from broker.routing.neighbour import ColdReceiver
from broker.routing.retained import Retained
from broker.routing.routes import Routes
from broker.session.message import NEVER, Message
from broker.session.subscription import Subscription
from broker.worker_id import WorkerId
from tests.cluster.lanes import Lanes, told, written
from tests.routing.party import Party
from tests.session.receiver import Receiver


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    made = Lanes()
    yield made
    made.close()


HERE: Final = WorkerId("node", 0, 0)


class Worker:
    """What a worker has to tell."""

    def __init__(self, lanes: Lanes, here: WorkerId = HERE) -> None:
        self.lanes = lanes
        self.retained = Retained(10_000, 1 << 20)
        self.announcements = Announcements(lanes.peers, lanes.reactor, lanes.failures.append, lanes.note_late)
        self.routes = Routes(100, 1 << 20, 10, 100, Party().backlog, neighbours=self.announcements)
        self.all_told: list[Peer] = []  # the peers that know all interest
        self.adopted = True  # the sessions of its predecessor
        self.stamps = HybridClock(here, lambda: 1000.0)
        self.sync = FullSync(
            lanes.peers, self.routes, self.retained, self.stamps, lambda: self.adopted, self.all_told.append
        )

    def keep(self, topic: bytes, writer: WorkerId) -> None:
        stamp = HybridClock(writer, lambda: 1000.0).stamp()
        self.retained.merge(Message(topic, b"x", 0, True, b"", NEVER), 0.0, "", stamp)

    def keep_cold(self) -> ColdIndex:
        """The index of its sessions that are in Redis only."""
        index = ColdIndex()
        self.routes.set_cold(index, ColdReceiver(Gate(Overload(), "store", 1, 0.0), Gate(Overload(), "cold", 2, 0.0)))
        return index

    def tell(self) -> int:
        """Tell everything that can be told; how many pages that were."""
        pages = 0
        while self.sync.step():
            pages += 1
        return pages


def kinds(frames: list[tuple[int, bytes]]) -> list[int]:
    return [kind for kind, _ in frames]


def topics(peer: Peer) -> set[bytes]:
    return {wire.read_message(body, 0, len(body), 0.0)[0].topic for kind, body in written(peer) if kind == wire.MESSAGE}


def test_a_peer_hears_the_end_even_if_there_is_nothing_to_tell(lanes: Lanes) -> None:
    """It would never serve a client."""
    worker = Worker(lanes)
    peer = lanes.join(1)
    worker.sync.begin(peer)
    worker.tell()

    assert [wire.ALL_TOLD] == kinds(told(peer))
    assert [wire.ALL_RETAINED] == kinds(written(peer))
    assert 0 == len(worker.sync.pending)


def test_retained_messages_go_in_pages(lanes: Lanes) -> None:
    """A million of them would hold the loop for seconds."""
    worker = Worker(lanes)
    for n in range(2 * PAGE + 1):
        worker.keep(b"%d" % n, WorkerId("node", 0, 0))
    peer = lanes.join(1)
    worker.sync.begin(peer)

    assert 4 == worker.tell()  # of interest, which there is none, and three of messages
    assert [wire.MESSAGE] * (2 * PAGE + 1) + [wire.ALL_RETAINED] == kinds(written(peer))


def test_each_worker_tells_what_it_wrote_and_all_tell_what_the_dead_wrote(lanes: Lanes) -> None:
    """A newcomer would be told everything by everybody, or something by nobody."""
    worker = Worker(lanes)
    other = lanes.join(2)
    worker.keep(b"ours", WorkerId("node", 0, 0))
    worker.keep(b"other's", other.worker)
    worker.keep(b"predecessor's", WorkerId("node", 1, 99))  # of the same shard as the newcomer, and dead
    newcomer = lanes.join(1)
    worker.keep(b"its own", newcomer.worker)
    worker.sync.begin(newcomer)
    worker.tell()

    assert {b"ours", b"predecessor's"} == topics(newcomer)


def test_workers_whose_stamps_look_alike_tell_what_they_wrote(lanes: Lanes) -> None:
    """With many nodes two workers may have one writer number: neither would tell, as the other one is there."""
    here, alike = (WorkerId("node", 0, incarnation) for incarnation in (985363169096806298, 3921439482902955718))
    assert writer_of(here) == writer_of(alike)
    worker = Worker(lanes, here)
    peer = lanes.join(0, alike.incarnation)
    worker.keep(b"ours", here)
    worker.sync.begin(peer)
    worker.tell()

    assert {b"ours"} == topics(peer)


def test_who_asks_for_what_a_dead_worker_wrote_is_told_it_by_those_who_have_not_heard_of_the_death(
    lanes: Lanes,
) -> None:
    """Nodes hear of the end of another one at different times: nobody would tell it."""
    worker = Worker(lanes)
    dead, newcomer = lanes.join(2), lanes.join(1)
    worker.keep(b"dead's", dead.worker)
    worker.sync.begin(newcomer)
    worker.tell()
    assert set() == topics(newcomer)
    worker.sync.repeat_retained(newcomer, dead.writer)
    worker.tell()

    assert {b"dead's"} == topics(newcomer)


def test_a_full_lane_is_waited_for(lanes: Lanes) -> None:
    """What a stopped worker has to be told would fill the memory."""
    worker = Worker(lanes)
    worker.keep(b"a", WorkerId("node", 0, 0))
    full, open_one = lanes.join(1), lanes.join(2)
    full.gate.block()
    for peer in (full, open_one):
        worker.sync.begin(peer)
    worker.tell()
    assert ([], {b"a"}, 1) == (written(full), topics(open_one), len(worker.sync.pending))

    full.gate.unblock()
    worker.tell()
    assert ({b"a"}, 0) == (topics(full), len(worker.sync.pending))


def test_a_peer_that_is_gone_is_told_nothing(lanes: Lanes) -> None:
    """Its part of the work would never end."""
    worker = Worker(lanes)
    peer = lanes.join(1)
    worker.sync.begin(peer)
    peer.gone = True
    worker.tell()

    assert ([], 0) == (told(peer), len(worker.sync.pending))


def entries(frames: list[tuple[int, bytes]]) -> list[bytes]:
    """What is told of cold sessions."""
    found: list[bytes] = []
    for kind, body in frames:
        if kind == wire.COLD_GAINED:
            page = entries_of(wire.read_change(body)[1], len(body))
            assert page is not None and 0 < len(page) <= 3 * COLD_PAGE
            found += page
    return found


def test_cold_sessions_go_in_pages_once_all_are_adopted(lanes: Lanes) -> None:
    """A newcomer would not send what a session waits for that is in Redis only; or be told for seconds at once."""
    worker = Worker(lanes)
    worker.adopted = False
    peer = lanes.join(1)
    worker.sync.begin(peer)
    assert 0 == worker.tell()
    index = worker.keep_cold()
    for number in range(10_000):
        assert index.add(b"%d" % number, NO_DEADLINE, entry_of(b"%d" % (number // 2)), 0)
    assert 0 == worker.tell()
    worker.adopted = True
    assert worker.tell() > 5

    frames = told(peer)
    assert sorted(entry_of(b"%d" % number) for number in range(5000)) == sorted(entries(frames))
    assert wire.ALL_TOLD == kinds(frames)[-1]
    assert {0} == {wire.read_number(body) for kind, body in frames if kind == wire.COLD_GAINED}


def test_a_page_of_filters_does_not_bring_those_of_sessions_that_are_not_adopted_yet(lanes: Lanes) -> None:
    """The newcomer would take the sessions that are adopted so far for all of them."""
    worker = Worker(lanes)
    worker.adopted = False
    worker.keep_cold().add(b"one", NO_DEADLINE, entry_of(b"a"), 0)
    subscription = Subscription(Receiver("subscriber").session, b"b", b"")
    worker.routes.add(subscription)
    peer = lanes.join(1)
    worker.sync.begin(peer)
    worker.tell()
    assert [wire.GAINED] == kinds(told(peer))
    worker.adopted = True
    worker.tell()

    assert [wire.COLD_GAINED, wire.ALL_TOLD] == kinds(told(peer))


def test_changes_of_cold_sessions_are_told_from_the_first_page_on(lanes: Lanes) -> None:
    """A session that becomes cold behind its page, or warm before it, would be known wrongly for ever."""
    worker = Worker(lanes)
    index = worker.keep_cold()
    for number in range(1000):
        index.add(b"%d" % number, NO_DEADLINE, entry_of(b"%d" % number), 0)
    peer = lanes.join(1)
    worker.sync.begin(peer)
    worker.sync.step()
    known = set(entries(told(peer)))
    assert 0 < len(known) < 1000
    for number in range(500):
        index.discard(b"%d" % number)
        index.add(b"new %d" % number, NO_DEADLINE, entry_of(b"new %d" % number), 0)
    worker.tell()
    worker.announcements.when_confirmed(None, lambda: None)

    for kind, body in told(peer):
        if kind in (wire.COLD_GAINED, wire.COLD_LOST):
            changed = entries_of(wire.read_change(body)[1], len(body))
            assert changed is not None
            known = known | set(changed) if kind == wire.COLD_GAINED else known - set(changed)
    expected = [b"%d" % number for number in range(500, 1000)] + [b"new %d" % number for number in range(500)]
    assert {entry_of(filter) for filter in expected} == known
