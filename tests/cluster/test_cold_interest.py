# What workers tell each other of sessions that are in Redis only: a publish reaches the worker that has them.
#
# A shelf stands for what reads sessions from Redis: it holds each message that it is offered until the test says so.
import socket
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.cluster import wire
from broker.cluster.announcements import COLD_ENTRIES, Announcements
from broker.cluster.control_lane import ControlLane
from broker.cluster.lane_listener import LaneListener, MeshError
from broker.config.schema import Overload
from broker.delivery.completion import Completion
from broker.mqtt.packets import PUBACK, V311, Ack, Publish
from broker.overload.gate import Gate
from broker.routing.cold_index import ColdIndex
from broker.routing.cold_segments import NO_DEADLINE
from broker.routing.interest import entry_of, interest_of
from broker.routing.neighbour import ColdReceiver
from broker.routing.routes import Routes
from broker.session.message import Message
from broker.session.session import Session
from broker.session.subscription import Subscription
from tests.cluster.lanes import Lanes, told
from tests.innode import Node
from tests.inprocess import Broker
from tests.routing.party import PLENTY, Party
from tests.routing.reference import filters, matches, topics
from tests.session.receiver import Receiver

pytestmark = pytest.mark.interpreted

Nodes = Callable[..., Node]


class Shelf(ColdReceiver):
    def __init__(self, index: ColdIndex) -> None:
        super().__init__(Gate(Overload(), "store", 1, 0.0), Gate(Overload(), "cold", 2, 0.0))
        self.index = index
        self.offered: list[tuple[bytes, list[bytes]]] = []  # (payload, clients)
        self._held: list[Completion] = []

    def offer(self, message: Message, now: float) -> None:
        self.offered.append((message.payload, self.index.matching(message.topic)))
        self._held.append(message.hold())

    def settle(self) -> None:
        held, self._held = self._held, []
        for completion in held:
            completion.settle(0.0)


def interest(*wanted: bytes) -> bytes:
    found = interest_of(wanted)
    assert found is not None
    return found


def shelf_of(broker: Broker, **sessions: bytes) -> Shelf:
    """*broker* has cold sessions, each with one filter."""
    index = ColdIndex()
    for client, wanted in sessions.items():
        assert index.add(client.encode(), NO_DEADLINE, interest(wanted), 0)
    shelf = Shelf(index)
    broker.routes.set_cold(index, shelf)
    broker.routes.invalidate()
    return shelf


def start(node: Node, shard: int, begin: Callable[[Broker], object]) -> Broker:
    """Start a worker that has *begin* done before it meets anybody."""
    waiting, node.workers = node.workers, []
    broker = node.start(shard)
    node.workers = waiting
    begin(broker)
    for other in waiting:
        data, control = socket.socketpair(), socket.socketpair()
        for one in (*data, *control):
            one.setblocking(False)
        broker.mesh.join(other.identity, data[0], control[0])
        other.mesh.join(broker.identity, data[1], control[1])
    node.workers.append(broker)
    for each in node._all:
        each.node = node.workers
    return broker


def neighbours(broker: Broker, topic: bytes) -> list[int]:
    return sorted(neighbour.shard for neighbour in broker.routes.find(topic).neighbours)


def test_a_publish_at_another_worker_is_acknowledged_when_cold_sessions_are_done_with_it(nodes: Nodes) -> None:
    """A publisher would forget what a session in Redis has not got."""
    node = nodes(1)
    shelf = shelf_of(node[0], away=b"a/+")
    publisher = node.start().connect("publisher", V311)
    publisher.send(Publish(b"a/b", b"1", 1, packet_id=1), Publish(b"other", b"2", 1, packet_id=2))
    assert [] == publisher.receive()
    assert [(b"1", [b"away"])] == shelf.offered
    shelf.settle()
    node.settle()

    assert [Ack(PUBACK, 1), Ack(PUBACK, 2)] == publisher.receive()


def test_a_newcomer_is_told_all_entries_before_it_serves(nodes: Nodes) -> None:
    """Its clients would publish what a session waits for, and it would reach nobody."""
    node = nodes(2)
    shelf_of(node[0], **{f"c{number}": b"%d/+" % number for number in range(3000)})
    shelf_of(node[1], one=b"7/8", two=b"#")
    late = node.start()

    assert late.mesh.complete()
    assert [0, 1] == neighbours(late, b"7/8")
    assert [0, 1] == neighbours(late, b"2999/x")
    assert [1] == neighbours(late, b"3000/x")
    assert 3000 + 2 == sum(len(known) for known in late.routes.cold_elsewhere.sets.values())


def test_changes_are_told_to_all(nodes: Nodes) -> None:
    """A session that becomes cold later would be missed, or one that is gone be sent messages for ever."""
    node = nodes(1)
    shelf = shelf_of(node[0], first=b"a")
    node.start()
    node.start()
    assert shelf.index.add(b"second", NO_DEADLINE, interest(b"b/#"), 0)
    shelf.index.discard(b"first")
    node[0].routes._neighbours.gained(b"x", False)
    node.settle()

    for broker in (node[1], node[2]):
        assert ([], [0]) == (neighbours(broker, b"a"), neighbours(broker, b"b"))


def test_what_cold_sessions_of_a_dead_worker_want_waits_for_its_successor(nodes: Nodes) -> None:
    """What is acknowledged between its death and its adoption would reach nobody."""
    node = nodes(1)
    shelf_of(node[0], away=b"a")
    other = node.start()
    publisher = other.connect("publisher", V311)
    node.kill(node[0])
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))
    assert [] == publisher.receive()
    bystander = other.connect("bystander", V311)
    bystander.send(Publish(b"b", b"2", 1, packet_id=1), Publish(b"c", b"3", 1, packet_id=2))
    assert [Ack(PUBACK, 1), Ack(PUBACK, 2)] == bystander.receive()

    adopted: list[bool] = []
    index = ColdIndex()
    shelf = Shelf(index)

    def begin(broker: Broker) -> None:
        broker.mesh._full_sync._adopted = lambda: bool(adopted)
        broker.routes.set_cold(index, shelf)
        assert index.add(b"away", NO_DEADLINE, interest(b"a"), 0)
        assert index.add(b"new", NO_DEADLINE, interest(b"c"), 0)  # stored right before the worker died, and not told

    successor = start(node, 0, begin)
    node.settle()
    assert [] == publisher.receive()
    adopted.append(True)
    successor.mesh._reactor.wake()
    node.settle()
    assert [(b"1", [b"away"])] == shelf.offered
    shelf.settle()
    node.settle()
    assert [Ack(PUBACK, 1)] == publisher.receive()
    bystander.send(Publish(b"c", b"4", 1, packet_id=3))
    assert [] == bystander.receive()  # a route of its topic was made before

    assert [successor.identity] == [each.worker for each in other.routes.cold_elsewhere.sets]


def test_routes_that_were_made_before_a_worker_came_lead_to_it(nodes: Nodes) -> None:
    """What its sessions in Redis wait for would not be sent to it, as nothing else says that a route is old."""
    node = nodes(1)
    assert [] == neighbours(node[0], b"a/b")
    start(node, 1, lambda broker: shelf_of(broker, away=b"a/+"))
    node.settle()

    assert [1] == neighbours(node[0], b"a/b")


def test_what_a_dead_worker_wanted_is_freed_in_steps(nodes: Nodes) -> None:
    """Routes would lead to a worker that is gone, and hashes of it stay in memory."""
    node = nodes(1)
    shelf_of(node[0], **{f"c{number}": b"%d" % number for number in range(20_000)})
    other = node.start()
    assert [0] == neighbours(other, b"7")
    node.kill(node[0])
    assert [0] == neighbours(other, b"7")  # remembered, until somebody has adopted its sessions
    node.start(0)
    node.settle()

    assert [] == neighbours(other, b"7")
    assert 0 == len(other.routes.cold_elsewhere.sets)
    assert not other.mesh._withdrawals.pending


# The order of what is told.


class Nobody(LaneListener):
    pass


class Worker:
    """A worker that tells, and one that is told, with the lane between them in the hands of the test."""

    def __init__(self) -> None:
        self.lanes, self.theirs = Lanes(), Lanes()
        self.peer = self.lanes.join(1)
        lanes = self.lanes
        self.announcements = Announcements(lanes.peers, lanes.reactor, lanes.failures.append, lanes.note_late)
        backlog = Party().backlog
        self.routes = Routes(PLENTY, PLENTY, 10, 100, backlog, neighbours=self.announcements)
        self.index = ColdIndex()
        self.routes.set_cold(self.index, Shelf(self.index))
        self.routes.announce_cold()
        self.there = Routes(PLENTY, PLENTY, 10, 100, Party().backlog)
        self.lane = ControlLane(self.theirs.join(0), Nobody(), self.there)
        self.sessions: dict[str, Session] = {}
        self.cold: set[str] = set()

    def close(self) -> None:
        self.lanes.close()
        self.theirs.close()

    def session(self, name: str) -> Session:
        if name not in self.sessions:
            self.sessions[name] = Receiver(name, expiry=100).session
        return self.sessions[name]

    def subscribe(self, name: str, filter: bytes) -> None:
        session = self.session(name)
        if name not in self.cold and filter not in session.subscriptions:
            subscription = session.subscriptions[filter] = Subscription(session, filter, b"")
            subscription.qos = 1
            self.routes.add(subscription)

    def cool(self, name: str) -> None:
        session = self.session(name)
        if name not in self.cold:
            self.cold.add(name)
            assert self.index.add(name.encode(), NO_DEADLINE, interest(*session.subscriptions), 0)
            for subscription in session.subscriptions.values():
                self.routes.remove(subscription)

    def warm(self, name: str) -> None:
        if name in self.cold:
            self.cold.remove(name)
            for subscription in self.session(name).subscriptions.values():
                self.routes.add(subscription)
            self.index.discard(name.encode())

    def expected(self, topic: bytes) -> bool:
        return any(matches(filter, topic) for each in self.sessions.values() for filter in each.subscriptions)

    def known(self, topic: bytes) -> bool:
        return bool(self.there.find(topic).neighbours)


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    made = Lanes()
    yield made
    made.close()


names = st.sampled_from(["one", "two"])
steps = st.tuples(st.just("subscribe"), names, filters) | st.tuples(st.sampled_from(["cool", "warm"]), names)


@settings(deadline=None)
@given(st.lists(steps, max_size=12), topics)
def test_a_peer_knows_what_a_session_wants_at_each_moment(changes: list[tuple[str, ...]], topic: bytes) -> None:
    """A publish that is taken between two frames, while a session becomes cold or warm, would be lost."""
    worker = Worker()
    for kind, name, *wanted in changes:
        before = worker.expected(topic)
        if kind == "subscribe":
            worker.subscribe(name, *wanted)  # type: ignore[arg-type]
        elif kind == "cool":
            worker.cool(name)
        else:
            worker.warm(name)
        for frame in told(worker.peer):
            assert worker.known(topic) >= before, (kind, name)
            worker.lane._take(*frame, 0.0)
        assert worker.known(topic) >= worker.expected(topic), (kind, name)
    worker.announcements.when_confirmed(None, lambda: None)
    for frame in told(worker.peer):
        worker.lane._take(*frame, 0.0)

    assert worker.known(topic) == worker.expected(topic)
    worker.close()


def test_a_frame_that_cannot_be_read_is_found_out(lanes: Lanes) -> None:
    """A mistake of ours would be taken for interest."""
    lane = ControlLane(lanes.join(1), Nobody(), Party().routes)
    with pytest.raises(MeshError):
        lane._take(wire.COLD_GAINED, bytes(8) + b"\0abc", 0.0)


def test_a_frame_with_many_entries_costs_more_of_a_round(lanes: Lanes) -> None:
    """A peer that tells of many sessions would hold the loop, as each of its frames counts as one filter."""
    peer = lanes.join(1)
    lane = ControlLane(peer, Nobody(), Party().routes)
    entries = b"".join(entry_of(b"%d" % number) for number in range(COLD_ENTRIES))
    peer.control.input = wire.change(wire.COLD_GAINED, 1, entries) * 4
    first = lane.serve(peer.control, 100, 0.0)

    assert first > 2000
    assert len(peer.control.input) * 3 // 4 == peer.control.left
