# What differs for workers of other nodes: lanes that fail while both ends live, nodes that have died and are listed
# still, and frames of another build.
import socket
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from broker.cluster import wire
from broker.cluster.announcements import PATIENCE
from broker.cluster.distant_peers import CALM, LONGEST_PAUSE, LaneOpener
from broker.cluster.incoming_sessions import DISTANT_ANSWER
from broker.cluster.silent_peers import SILENCE
from broker.delivery.outbox import unbounded
from broker.insight.explain import explain
from broker.mqtt.packets import PUBACK, V5, Ack, ConnAck, Connect, Properties, Publish, SubAck, Subscribe, Wanted
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from broker.net.pauses import Pause
from broker.net.stream import Stream
from broker.routing.shared import HOPS
from broker.session.message import NEVER, Message
from broker.store.redis.keys import Keys
from broker.worker_id import WorkerId
from tests.cluster.talk import payloads, subscribed
from tests.innode import LanesOf, Node
from tests.inprocess import Broker, Client
from tests.redis_servers import RunningRedis

Nodes = Callable[..., Node]
LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 100}


@pytest.fixture
def names() -> Sequence[str]:
    return ("a", "b")


@pytest.fixture
def durable(nodes: Nodes, redis: RunningRedis) -> Callable[[int], Node]:
    """Starts workers whose sessions are stored."""
    return lambda workers: nodes(workers, None, redis, durable=True)


def lasting(broker: Broker, client_id: str) -> Client:
    return broker.connect(client_id, V5, clean_start=False, properties=LASTING)


def publish(client: Client, *said: bytes) -> int:
    """Publish to `a` at QoS 1; how many are acknowledged by now."""
    client.send(*[Publish(b"a", payload, 1, packet_id=n + 1) for n, payload in enumerate(said)])
    return len([packet for packet in client.receive() if isinstance(packet, Ack)])


# Lanes.


def test_a_worker_is_joined_when_it_is_heard(nodes: Nodes) -> None:
    """Of a node that has died and is listed still, each worker would be waited for, in vain."""
    node = nodes(1)
    (one,) = node
    assert one.mesh.complete()
    dead = nodes(1, name="b")[0]
    node._lanes.brokers[dead.identity] = dead
    one.mesh.join_distant(dead.identity)
    one.settle()
    assert ([], ["b/0"], False) == (one.mesh.peers, one.mesh.untold(), one.mesh.complete())
    client = one.connect("client", V5)
    subscribed(client, "a")  # which has its answer
    one.mesh.leave(dead.identity)

    assert one.mesh.complete()


def test_lanes_that_are_begun_anew_bring_all_that_is_to_be_known(nodes: Nodes) -> None:
    """Both workers live: what one has told the other of subscribers and retained messages would be lost."""
    one, two = nodes(2)
    here, there, publisher = one.connect("here", V5), two.connect("there", V5), one.connect("publisher", V5)
    subscribed(here, "a")
    subscribed(there, "a", "$share/group/b")
    publisher.send(Publish(b"kept", b"1", 1, True, packet_id=9))
    publisher.receive()
    (former,) = one.mesh.peers
    one.mesh.restarted(two.identity)
    one.settle()
    publish(publisher, b"1")
    publish(two.connect("other", V5), b"2")
    publisher.send(Publish(b"b", b"shared", 1, packet_id=1))
    publisher.receive()

    (peer,) = one.mesh.peers
    assert peer is not former and peer.distant and former.gone
    assert [b"1", b"2"] == payloads(here)
    assert [b"1", b"2", b"shared"] == payloads(there)
    assert 1 == two.retained.statistics().count
    assert one.mesh.complete() and two.mesh.complete()
    assert (0, 0) == (one.mesh.pending(), two.mesh.pending())


@pytest.mark.parametrize("lane", ["data", "control"])
@pytest.mark.parametrize(
    "what",
    [
        wire.frame(99),  # a kind that nobody knows
        wire.frame(wire.DONE, b"short"),
        b"\xff\xff\xff\xff" + bytes(8),  # a length that no frame has
        wire.frame(wire.ASK, b""),
        b"\0\0\0\0" + bytes(8),
    ],
)
def test_what_cannot_be_read_ends_the_lanes_and_not_the_worker(nodes: Nodes, lane: str, what: bytes) -> None:
    """A node of another version, or one with a mistake, would take all the others down."""
    one, two = nodes(2)
    here, publisher = one.connect("here", V5), two.connect("publisher", V5)
    subscribed(here, "a")
    (peer,) = two.mesh.peers
    if lane == "data":
        peer.write(wire.DATA_HEAD + what)
    else:
        peer.tell(what)
    two.settle()
    assert 1 == one.counters.lanes_malformed
    publish(publisher, b"1")

    assert [b"1"] == payloads(here)
    (again,) = two.mesh.peers
    assert again is not peer


def test_a_peer_whose_lanes_fail_again_and_again_costs_little(nodes: Nodes) -> None:
    """Each time both are told everything: a peer of another build would keep all nodes busy."""
    node = nodes(2)
    one, two = node
    for _ in range(100):
        for peer in list(two.mesh.peers):
            peer.tell(wire.frame(99))
        node.advance(1.0)
    assert 9 <= one.counters.lanes_malformed <= 12  # pauses of 0, 0.1, 0.2, 0.4 ...
    node.advance(LONGEST_PAUSE + 0.1)
    assert [two.identity] == [peer.worker for peer in one.mesh.peers]
    node.advance(CALM)
    (peer,) = two.mesh.peers
    peer.tell(wire.frame(99))
    node.advance(0.1)

    assert [two.identity] == [peer.worker for peer in one.mesh.peers]


def test_a_worker_that_leaves_is_not_joined_again(nodes: Nodes) -> None:
    """Its node has ended: lanes to it would be opened for ever."""
    node = nodes(2)
    one, two = node
    node.kill(two, heard=False)
    one.mesh.restarted(two.identity)
    one.mesh.leave(two.identity)
    node.advance(LONGEST_PAUSE + 0.1)

    assert ([], True) == (one.mesh.peers, one.mesh.complete())


@pytest.mark.parametrize("joins", [False, True])
def test_what_a_worker_had_sent_before_it_left_is_delivered(nodes: Nodes, joins: bool) -> None:
    """It was acknowledged: it would be lost when the list of workers is quicker than the messages are taken."""
    one, two = nodes(2)
    here, publisher = one.connect("here", V5), two.connect("publisher", V5)
    subscribed(here, "a")
    one.stopped = True
    assert 3 == publish(publisher, b"1", b"2", b"3")
    one.mesh.leave(two.identity)
    if joins:  # before that is taken
        one.mesh.join_distant(two.identity)
    one.stopped = False
    assert [b"1", b"2", b"3"] == payloads(here)
    one.mesh.join_distant(two.identity)
    one.settle()
    publish(publisher, b"4")

    assert [b"4"] == payloads(here)
    assert (1, 1) == (len(one.mesh.peers), len(two.mesh.peers))


# What waits.


def test_a_suback_does_not_wait_long_for_other_nodes(nodes: Nodes) -> None:
    """Until the lease of a dead node ends, no client would be answered."""
    node = nodes(3)
    one, far, near = node
    far.stopped = True
    client = one.connect("client", V5)
    client.send(Subscribe(1, [Wanted(b"a", 1)]))
    one.settle()
    one.advance(PATIENCE - 0.1)
    assert [] == client.receive()
    one.advance(0.1)
    assert [SubAck(1, [1])] == client.receive()
    assert 1 == one.counters.subscriptions_not_confirmed
    said = " ".join(explain(one.diagnostics.facts("client")))
    assert "subscription_not_confirmed" in said and "published there may not reach the client" in said

    near.stopped = True  # of the same node: it is waited for
    client.send(Subscribe(2, [Wanted(b"b", 1)]))
    one.settle()
    one.advance(PATIENCE + 0.4)
    assert [] == client.receive()
    near.stopped = False
    assert [SubAck(2, [1])] == client.receive()


def test_a_suback_waits_once_for_a_worker_that_nothing_reaches(nodes: Nodes) -> None:
    """Until the lease of a dead node ends, each client that subscribes would wait for half a second."""
    node = nodes(3)
    one, dead, other = node
    dead.stopped = True
    lanes = one.mesh._distant.lanes
    assert isinstance(lanes, LanesOf)
    lanes.unreached = lambda worker, now: 1.0 if worker == dead.identity else 0.0  # type: ignore[method-assign]
    clients = [one.connect("first", V5), one.connect("second", V5)]
    clients[0].send(Subscribe(1, [Wanted(b"a", 1)]))
    node.advance(0.15)
    assert [SubAck(1, [1])] == clients[0].receive()
    clients[1].send(Subscribe(1, [Wanted(b"b", 1)]))

    assert [SubAck(1, [1])] == clients[1].receive()
    assert 1 == one.counters.lanes_silent
    assert [other.identity] == [peer.worker for peer in one.mesh.peers]


def test_a_node_that_has_died_keeps_no_session_from_moving(durable: Callable[[int], Node]) -> None:
    """The node is listed for seconds: all clients that come back to another worker meanwhile would be refused."""
    node = durable(4)
    a0, b0, a1, b1 = node
    lasting(a0, "me").drop()
    for dead in (b1, b0):
        node.kill(dead, heard=False)
    client = a1.open(V5)
    client.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    a0.advance(SILENCE + 0.3)

    assert [True] == [packet.session_present for packet in client.receive() if isinstance(packet, ConnAck)]
    assert 0 < a0.counters.lanes_silent + a1.counters.lanes_silent
    again = a0.open(V5)  # nobody waits a second time
    again.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    a0.advance(0.1)
    assert [True] == [packet.session_present for packet in again.receive() if isinstance(packet, ConnAck)]


def test_a_worker_whose_lane_is_slow_is_not_silent(nodes: Nodes, redis: RunningRedis) -> None:
    """Its lanes would be begun anew, with all that is under way, when much is before what is waited for."""
    node = nodes(3, None, redis)
    owner, asking, other = node
    lasting(owner, "me").drop()
    slow = node.peer(asking, other).data
    asking.reactor.pause(slow, Pause.FANOUT)
    client = asking.open(V5)
    client.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    node.advance(SILENCE + 0.5)
    assert ([], 0) == (client.receive(), asking.counters.lanes_silent)
    asking.reactor.resume(slow, Pause.FANOUT)

    assert [True] == [packet.session_present for packet in client.receive() if isinstance(packet, ConnAck)]


def test_a_worker_that_has_answered_is_not_waited_for(nodes: Nodes) -> None:
    """Its lanes would be begun anew each time a peer waits for another one."""
    node = nodes(3)
    one, idle, stopped = node
    node.advance(10)
    stopped.stopped = True
    passed: list[float] = []
    one.worker.links.barriers.when_passed(passed.append, node.clock.now)
    one.worker.links.announcements.when_confirmed(None, lambda: passed.append(0.0))
    one.advance(5)

    assert ([], 0) == (passed, one.counters.lanes_silent)
    (_, there) = sorted((node.peer(one, idle), node.peer(one, stopped)), key=lambda peer: peer.distant, reverse=True)
    assert not there.distant
    stopped.stopped = False
    node.settle()
    assert 2 == len(passed)


# Durable sessions.


def test_a_session_of_a_worker_that_does_not_answer_is_taken_at_once(durable: Callable[[int], Node]) -> None:
    """Its client would wait for the end of a lease."""
    node = durable(2)
    one, two = node
    first = lasting(one, "me")
    subscribed(first, "a")
    one.stopped = True
    client = two.open(V5)
    client.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    two.advance(DISTANT_ANSWER - 0.1)
    assert [] == client.receive()
    two.advance(0.2)

    assert [True] == [packet.session_present for packet in client.receive() if isinstance(packet, ConnAck)]
    one.stopped = False
    node.advance(0.5)
    assert first.closed or (first.receive() and first.closed)
    assert [None] == [one.session("me")]
    publish(two.connect("publisher", V5), b"1")
    assert [b"1"] == payloads(client)


@pytest.mark.parametrize("alive", [True, False])
def test_a_stored_session_is_found_at_any_node(
    durable: Callable[[int], Node], redis: RunningRedis, alive: bool
) -> None:
    """Its claim has run out, or it was adopted, which claims nothing: the client would get a second session."""
    node = durable(2)
    one, two = node
    first = lasting(one, "me")
    subscribed(first, "a")
    first.drop()
    node.settle()
    redis.client().delete(Keys("weir").owner(b"me"))
    if not alive:
        node.kill(one)
    client = two.open(V5)
    client.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    two.advance(0.5)

    assert [True] == [packet.session_present for packet in client.receive() if isinstance(packet, ConnAck)]
    assert two.session("me") is not None


@pytest.mark.parametrize("how", ["followed", "adopted elsewhere", "back"])
def test_publishes_for_sessions_of_a_node_that_has_left_wait_until_somebody_has_them(
    durable: Callable[[int], Node], how: str
) -> None:
    """They would be acknowledged, and reach nobody."""
    node = durable(2)
    one, two = node
    away = lasting(two, "away")
    subscribed(away, "a")
    away.drop()
    publisher = one.connect("publisher", V5)
    if how == "back":
        two.stopped = True
        one.mesh.leave(two.identity)
    else:
        node.kill(two)
    assert 0 == publish(publisher, b"1")
    if how == "back":
        two.stopped = False
        one.mesh.join_distant(two.identity)
    elif how == "followed":
        node.start(1)
    else:
        one.mesh.adopted_elsewhere(two.identity)
        one.mesh.expect_distant(0)
    node.advance(0.5)

    assert [PUBACK] == [packet.kind for packet in publisher.receive() if isinstance(packet, Ack)]


@pytest.mark.parametrize("how", ["told again", "adopted elsewhere"])
def test_publishes_wait_for_a_session_that_has_moved_unheard(durable: Callable[[int], Node], how: str) -> None:
    """Two workers give up a third one that stands still, and a session moves between them. When it goes on, it hears
    the former owner first: it would take the session for gone.
    """
    node = durable(4)
    still, former, beside, owner = node
    assert ("a", "b", "b") == (still.identity.node, former.identity.node, owner.identity.node)
    subscribed(lasting(former, "me"), "a")
    publisher = still.connect("publisher", V5)
    still.stopped = beside.stopped = True
    for silent in (still, beside):
        former.mesh.leave(silent.identity)
        peer = node.peer(owner, silent)
        owner.mesh.lane_lost(peer, peer.control)
    session = lasting(owner, "me")
    assert not former.session("me")
    still.stopped = beside.stopped = False
    if how == "told again":
        former.mesh.join_distant(still.identity)
    else:
        still.mesh.leave(former.identity)
        still.mesh.adopted_elsewhere(former.identity)
    node.settle()
    before = publish(publisher, b"1")
    for each in (still, beside):
        owner.mesh.restarted(each.identity)
        former.mesh.join_distant(each.identity)
        each.mesh.join_distant(former.identity)
    node.advance(0.5)

    assert (0, [b"1"]) == (before, payloads(session))
    assert [PUBACK] == [packet.kind for packet in publisher.receive() if isinstance(packet, Ack)]


def test_publishes_wait_for_a_session_that_was_taken_from_here_unheard(durable: Callable[[int], Node]) -> None:
    """A worker gives up one that stands still, and takes a session from it. That one hears from Redis that it has lost
    the session, before it hears who has it.
    """
    node = durable(4)
    still, _, beside, owner = node
    subscribed(lasting(still, "me"), "a")
    publisher, later = still.connect("publisher", V5), still.connect("later", V5)
    still.stopped = beside.stopped = True
    for silent in (still, beside):
        peer = node.peer(owner, silent)
        owner.mesh.lane_lost(peer, peer.control)
    session = lasting(owner, "me")
    still.stopped = beside.stopped = False
    publish(publisher, b"1")
    node.advance(0.1)
    assert still.session("me") is None
    owner.stopped = True
    node.advance(SILENCE + 0.2)
    before = publish(later, b"2")
    owner.stopped = False
    node.advance(SILENCE + 0.5)  # until all have heard each other
    publish(still.connect("last", V5), b"3")

    assert (0, [b"3"]) == (before, payloads(session))
    assert [] == [packet for packet in (*publisher.receive(), *later.receive()) if isinstance(packet, Ack)]
    assert publisher.closed and later.closed  # and both publish again


def test_a_worker_lets_go_of_what_was_taken_from_it_behind_what_it_has_refused(durable: Callable[[int], Node]) -> None:
    """What its publishers send next would be taken first, and what was refused be lost as a duplicate with QoS 2."""
    node = durable(3)
    former, owner, third = node
    subscribed(lasting(former, "me"), "a")
    publisher, later = former.connect("publisher", V5), former.connect("later", V5)
    former.stopped = True
    session = owner.open(V5)
    session.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    owner.advance(DISTANT_ANSWER + 0.2)
    third.stopped, former.stopped = True, False
    publish(publisher, b"1")
    node.advance(0.5)
    assert former.session("me") is None
    publish(later, b"2")
    node.advance(0.5)
    assert (1, False) == (owner.takeovers.pending(), later.closed)
    third.stopped = False
    node.advance(0.2)

    later.receive()
    assert (0, True) == (owner.takeovers.pending(), later.closed)
    publish(former.connect("later", V5), b"2", b"3")
    assert [b"2", b"3"] == payloads(session)


class Unheard:
    """Lanes of *broker* to other nodes, of which those to *worker* bring nothing."""

    def __init__(self, broker: Broker, lanes: LaneOpener, worker: WorkerId) -> None:
        self._broker = broker
        self._lanes = lanes
        self._worker = worker
        self._ends: list[socket.socket] = []

    def open(self, worker: WorkerId, now: float) -> tuple[Stream, Stream]:
        if worker != self._worker:
            return self._lanes.open(worker, now)
        pairs = [socket.socketpair() for _ in range(2)]
        self._ends += [one for pair in pairs for one in pair]
        for one in self._ends:
            one.setblocking(False)
        dirty = self._broker.reactor.dirty
        data, control = (Stream(one, str(worker), unbounded(one.fileno(), dirty)) for one, _ in pairs)
        return data, control

    def close(self, worker: WorkerId) -> None:
        self._lanes.close(worker)

    def unreached(self, worker: WorkerId, now: float) -> float:
        return 0.0

    def end(self) -> None:
        for one in self._ends:
            one.close()


@pytest.mark.parametrize("how", ["given up", "unread", "late"])
def test_publishes_wait_for_a_session_that_was_taken_from_another_worker_unheard(
    durable: Callable[[int], Node], how: str
) -> None:
    """A worker takes a session from one that stands still, and a third one, which stands still as well, does not hear
    that. When both go on it hears from the former owner that this has lost the session. *late*: the former owner gives
    the session away, as it was asked to, and learns that it has none before it is told that nobody waits for it.
    """
    node = durable(4)
    third, _, former, owner = node
    subscribed(lasting(former, "me"), "a")
    first, later = third.connect("first", V5), third.connect("later", V5)
    third.stopped = former.stopped = True
    lanes = third.mesh._distant.lanes
    assert lanes is not None
    unheard = Unheard(third, lanes, owner.identity)
    unread = node.peer(third, owner).control
    if how == "given up":
        third.mesh._distant.lanes = unheard
        for silent in (third, former):
            owner.mesh.restarted(silent.identity)
    else:
        third.reactor.pause(unread, Pause.FANOUT)
    session = owner.open(V5)
    session.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    owner.advance(DISTANT_ANSWER + 0.3)
    assert [True] == [packet.session_present for packet in session.receive() if isinstance(packet, ConnAck)]
    third.stopped = former.stopped = False
    owner.stopped = how == "late"
    publish(first, b"1")  # so that the former owner looks at Redis
    node.advance(0.2)
    assert former.session("me") is None
    owner.stopped = False
    node.advance(0.1)
    assert 0 == publish(later, b"2")
    node.advance(0.1)
    if how == "given up":
        third.mesh._distant.lanes = lanes
        third.mesh.restarted(owner.identity)
        unheard.end()
    else:
        third.reactor.resume(unread, Pause.FANOUT)
    node.advance(0.5)
    last = third.connect("last", V5)
    acknowledged = publish(last, b"3")
    node.advance(0.1)

    acknowledged += len([packet for packet in last.receive() if isinstance(packet, Ack)])
    assert (1, [b"3"]) == (acknowledged, payloads(session))
    assert [] == [packet for packet in (*first.receive(), *later.receive()) if isinstance(packet, Ack)]
    assert first.closed and later.closed  # and both publish again
    assert [0, 0, 0, 0] == [each.mesh.pending() for each in node]


@pytest.mark.parametrize("beside", [True, False])
def test_messages_keep_their_order_if_who_sends_them_did_not_hear_that_the_session_was_taken(
    durable: Callable[[int], Node], beside: bool
) -> None:
    """What a publisher sends once its worker has heard of it would come before what the former owner has refused."""
    node = durable(4)
    third, _, former, owner = node
    worker = third if beside else former
    subscribed(lasting(former, "me"), "a")
    publisher = worker.connect("publisher", V5)
    third.stopped = former.stopped = True
    for silent in (third, former):
        owner.mesh.restarted(silent.identity)
    session = owner.open(V5)
    session.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    owner.advance(DISTANT_ANSWER + 0.3)
    assert [True] == [packet.session_present for packet in session.receive() if isinstance(packet, ConnAck)]
    unheard = WorkerId("c", 0, 77)
    former.mesh.join_distant(unheard)  # so it keeps what it refuses
    owner.stopped, third.stopped, former.stopped = True, False, False
    publish(former.connect("other", V5), b"0")  # so that the former owner looks at Redis
    node.advance(0.1)
    assert former.session("me") is None
    publish(publisher, b"1")
    node.advance(0.1)
    assert not publisher.closed
    owner.stopped = False
    node.advance(0.1)
    publish(publisher, b"2")
    node.advance(0.1)
    before = payloads(session)
    former.mesh.leave(unheard)
    node.advance(0.5)
    publish(worker.connect("publisher", V5), b"1", b"2")
    node.advance(0.1)

    assert ([], [b"1", b"2"]) == (before, payloads(session))
    publisher.receive()
    assert publisher.closed
    assert 0 == owner.takeovers.pending()


@pytest.mark.parametrize("cold", [False, True])
def test_messages_keep_their_order_if_a_session_is_taken_from_who_has_taken_it_from_their_worker(
    durable: Callable[[int], Node], cold: bool
) -> None:
    """Their worker refuses some until it has heard who has taken the session, and that one has died meanwhile."""
    node = durable(4)
    former, _, beside, owner = node
    client = lasting(former, "me")
    subscribed(client, "a")
    if cold:
        client.drop()
        node.advance(20)
    publisher, other = former.connect("publisher", V5), former.connect("other", V5)
    former.stopped = True
    owner.mesh.restarted(former.identity)
    session = owner.open(V5)
    session.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    owner.advance(DISTANT_ANSWER + 0.3)
    assert [True] == [packet.session_present for packet in session.receive() if isinstance(packet, ConnAck)]
    owner.stopped, former.stopped = True, False
    publish(other, b"0")  # so that the former owner looks at Redis
    node.advance(0.1)
    if not cold:
        assert former.session("me") is None
    publish(publisher, b"1")
    node.advance(0.1)
    assert not publisher.closed
    session = beside.open(V5)
    session.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    node.advance(DISTANT_ANSWER + 0.3)
    assert [True] == [packet.session_present for packet in session.receive() if isinstance(packet, ConnAck)]
    if not publisher.closed:
        publish(publisher, b"2")
    node.advance(0.1)
    before = payloads(session)
    publish(former.connect("publisher", V5), b"1", b"2")
    node.advance(0.1)

    assert ([], [b"1", b"2"]) == (before, payloads(session))
    assert publisher.closed


def taken_by_force(former: Broker, owner: Broker, *silent: Broker) -> Client:
    """The client of the session "me" of *former* is at *owner*, as *former* stands still. So do *silent* workers, which
    *owner* has given up as well.
    """
    for each in (former, *silent):
        each.stopped = True
        owner.mesh.restarted(each.identity)
    return came_back(owner, DISTANT_ANSWER + 0.3)


def came_back(broker: Broker, seconds: float) -> Client:
    """The client of the session "me", which is at another worker, has come to *broker*, and waits for so long."""
    client = broker.open(V5)
    client.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    broker.advance(seconds)
    answers = client.receive()
    assert [True] == [packet.session_present for packet in answers if isinstance(packet, ConnAck)]
    client.inbox = [packet for packet in answers if not isinstance(packet, ConnAck)]
    return client


def refuses(former: Broker, publisher: Client) -> None:
    """*former* learns of Redis that it has lost the session, and refuses what *publisher* says until all are heard."""
    publish(former.connect("other", V5), b"0")
    former.advance(0.1)
    assert former.session("me") is None
    publish(publisher, b"1")
    former.advance(0.1)
    assert not publisher.closed


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_messages_keep_their_order_if_who_has_taken_the_session_by_force_does_not_tell_all(
    durable: Callable[[int], Node], how: str
) -> None:
    """A third worker takes it from that one, and not from the former owner, which refuses the first of the messages."""
    node = durable(4)
    third, beside, former, owner = node
    subscribed(lasting(former, "me"), "a")
    publisher = third.connect("publisher", V5)
    taken_by_force(former, owner, third)
    owner.stopped, third.stopped, former.stopped = True, False, False
    refuses(former, publisher)
    if how == "dies":
        node.kill(owner)
    unread = node.peer(third, former).control
    third.reactor.pause(unread, Pause.FANOUT)  # so it does not hear that the first one is to come again
    session = came_back(beside, 0.5 if how == "dies" else 2.5)
    publish(publisher, b"2")
    before = payloads(session)
    third.reactor.resume(unread, Pause.FANOUT)
    node.advance(0.5)
    publish(third.connect("publisher", V5), b"1", b"2")
    node.advance(0.1)

    assert ([], [b"1", b"2"]) == (before, payloads(session))
    publisher.receive()
    assert publisher.closed


def test_messages_keep_their_order_if_a_session_that_was_taken_by_force_moves_on(
    durable: Callable[[int], Node],
) -> None:
    """Its former owner has not heard all yet, and refuses the first of the messages."""
    node = durable(4)
    silent, beside, former, owner = node
    subscribed(lasting(former, "me"), "a")
    publisher = former.connect("publisher", V5)
    taken_by_force(former, owner, silent)
    former.stopped = False
    refuses(former, publisher)
    session = came_back(beside, 2.0)
    publish(publisher, b"2")
    before = payloads(session)
    silent.stopped = False
    node.advance(0.5)
    publish(former.connect("publisher", V5), b"1", b"2")
    node.advance(0.1)

    assert ([], [b"1", b"2"]) == (before, payloads(session))
    publisher.receive()
    assert publisher.closed
    assert [0, 0, 0, 0] == [each.takeovers.pending() for each in node]


def test_messages_keep_their_order_if_a_session_is_taken_back_by_force(durable: Callable[[int], Node]) -> None:
    """The worker that has it again has refused the first of the messages, as it did not know where the session is."""
    node = durable(2)
    former, owner = node
    subscribed(lasting(former, "me"), "a")
    publisher = former.connect("publisher", V5)
    taken_by_force(former, owner)
    owner.stopped, former.stopped = True, False
    refuses(former, publisher)
    session = came_back(former, 1.5)
    publish(publisher, b"2")
    before = payloads(session)
    owner.stopped = False
    node.advance(0.5)
    publish(former.connect("publisher", V5), b"1", b"2")
    node.advance(0.1)

    assert ([], [b"1", b"2"]) == (before, payloads(session))
    publisher.receive()
    assert publisher.closed


def test_messages_keep_their_order_if_a_node_has_its_lease_again_before_it_is_settled(
    durable: Callable[[int], Node],
) -> None:
    """Its workers go on, and do not know yet that a session was taken from one of them."""
    node = durable(4)
    third, beside, former, owner = node
    subscribed(lasting(former, "me"), "a")
    session = taken_by_force(former, owner, third)
    for each in (owner, beside):
        each.mesh.expect_distant(2)
        for silent in (third, former):
            each.mesh.leave(silent.identity)
    owner.advance(0.1)
    owner.stopped = beside.stopped = True  # the former owner does not hear them, and refuses all
    third.stopped = former.stopped = False
    publisher = third.connect("publisher", V5)
    refuses(former, publisher)
    owner.stopped = False
    for silent in (third, former):
        owner.mesh.join_distant(silent.identity)
    owner.mesh.expect_distant(0)
    node.advance(0.3)
    publish(publisher, b"2")
    before = payloads(session)
    beside.stopped = False
    for silent in (third, former):
        beside.mesh.join_distant(silent.identity)
    beside.mesh.expect_distant(0)
    node.advance(0.5)
    publish(third.connect("publisher", V5), b"1", b"2")
    node.advance(0.1)

    assert ([], [b"1", b"2"]) == (before, payloads(session))
    publisher.receive()
    assert publisher.closed
    assert 0 == owner.takeovers.pending()


def test_a_session_that_was_taken_while_it_was_cold_and_is_back_stays(durable: Callable[[int], Node]) -> None:
    """The worker that has it again would learn later that it was taken once, and end it: it would be lost."""
    node = durable(2)
    former, owner = node
    client = lasting(former, "me")
    subscribed(client, "a")
    client.drop()
    node.advance(20)
    assert former.worker.protocol.cold is not None and 1 == former.worker.protocol.cold.count()
    taken_by_force(former, owner).drop()
    owner.advance(0.5)
    node.kill(owner)  # so nobody tells the former owner
    follower = node.start(1, adopts=False)
    follower.stopped = former.stopped = False
    node.advance(0.5)
    session = came_back(former, 1.0)
    publisher = follower.connect("publisher", V5)
    acknowledged = publish(publisher, b"1")
    node.advance(0.1)
    acknowledged += len([packet for packet in publisher.receive() if isinstance(packet, Ack)])

    assert (1, [b"1"], False) == (acknowledged, payloads(session), session.closed)


def test_a_session_that_was_taken_waits_for_no_worker_of_a_dead_node(durable: Callable[[int], Node]) -> None:
    """What is kept for each such session would be kept for ever."""
    node = durable(4)
    third, _, former, owner = node
    subscribed(lasting(former, "me"), "a")
    third.stopped = former.stopped = True
    for silent in (third, former):
        owner.mesh.restarted(silent.identity)
    session = owner.open(V5)
    session.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
    owner.advance(DISTANT_ANSWER + 0.3)
    assert 1 == owner.takeovers.pending()
    for silent in (third, former):
        owner.mesh.leave(silent.identity)

    assert 0 == owner.takeovers.pending()


def test_a_worker_that_goes_while_others_hear_all_keeps_nothing_waiting(durable: Callable[[int], Node]) -> None:
    """What another one has lost would stay in the routes for ever, and publishes for it be refused."""
    node = durable(4)
    gone, other, waiting, _ = node
    gone.reactor.pause(node.peer(gone, other).control, Pause.FANOUT)  # so it does not hear all
    let_go: list[int] = []
    for number in (1, 2):  # the second one waits for the next round
        waiting.mesh.when_all_have_heard(partial(let_go.append, number))
    waiting.settle()
    node.advance(0.1)
    assert [] == let_go
    node.kill(gone)
    node.start(0)
    node.advance(0.5)

    assert ([1, 2], 0) == (let_go, waiting.mesh.pending())


def test_a_worker_that_is_given_up_while_it_is_to_hear_all_is_heard_again_first(durable: Callable[[int], Node]) -> None:
    """It knows who has what another one has lost, perhaps: publishes would be acknowledged that reach nobody."""
    node = durable(2)
    silent, waiting = node
    let_go: list[int] = []
    waiting.mesh.when_all_have_heard(partial(let_go.append, 1))
    while not waiting.mesh._all_heard._answers:
        silent.turn()
        waiting.turn()
    silent.stopped = True
    waiting.mesh.restarted(silent.identity)
    node.advance(0.5)
    assert [] == let_go
    silent.stopped = False
    node.advance(0.5)

    assert ([1], 0) == (let_go, waiting.mesh.pending())


def test_a_worker_that_was_taken_for_dead_has_nothing_that_is_waited_for(durable: Callable[[int], Node]) -> None:
    """Others have its sessions: once it is gone, publishers would wait for a worker that has none."""
    node = durable(2)
    one, two = node
    away = lasting(two, "away")
    subscribed(away, "a")
    away.drop()
    two.stopped = True
    one.mesh.adopted_elsewhere(two.identity)
    one.mesh.leave(two.identity)
    one.settle()

    assert 1 == publish(one.connect("publisher", V5), b"1")


def test_members_are_known_when_all_nodes_have_told_them(durable: Callable[[int], Node]) -> None:
    """What waits for a shared subscription would be discarded, as its members are at a worker that is to come."""
    node = durable(2)
    one = node[0]
    node.settle()
    assert one.backlog.members_known
    one.mesh.expect_distant(1)
    assert (False, False) == (one.backlog.members_known, one.mesh.complete())
    one.mesh.expect_distant(0)
    assert (True, True) == (one.backlog.members_known, one.mesh.complete())


def test_a_worker_of_another_node_does_not_stand_for_one_of_the_own_node(durable: Callable[[int], Node]) -> None:
    """It has the same shard: the first worker of a node would serve before what the others have stored is known."""
    node = durable(4)
    for dead in (node[2], node[0]):
        node.kill(dead)
    first = node.start(0)
    assert (False, ["a/1"]) == (first.mesh.complete(), first.mesh.untold())
    node.start(2)

    assert (True, []) == (first.mesh.complete(), first.mesh.untold())


# What stays within a node.


def test_sessions_of_a_worker_that_ends_go_to_its_own_node(nodes: Nodes, redis: RunningRedis) -> None:
    """Their clients come back to that node, and each would be moved twice."""
    node = nodes(5, None, redis)
    ending = node[0]
    clients = [lasting(ending, f"client {number}") for number in range(9)]
    for client in clients:
        client.drop()
    node.settle()
    for session in ending.sessions():
        ending.takeovers.offer(session)
    node.settle()

    assert [0, 0, 9] == [sum([each.session_count() for each in node if each.identity.node == name]) for name in "_ba"]
    assert 0 == ending.session_count()


def test_reports_go_to_other_nodes_by_their_channel_alone(nodes: Nodes) -> None:
    """Each would come twice, by the same Redis."""
    node = nodes(3)
    node[0].reports.tell(b"report", node.clock.now)

    assert 1 == node[0].counters.reports_sent_mesh


def test_a_message_goes_round_the_workers_of_all_nodes() -> None:
    """Workers of several nodes have the same shards: it would go to and fro between two, and never reach the third."""
    node = Node(3, names=("a", "b", "c"))
    seen: list[int] = []
    at = node[0]
    for hop in (HOPS, HOPS + 1):
        group = at.routes._group(b"group", b"a")
        for peer in at.mesh.peers:
            group.set_remote_members(peer, 1, 0)
        before = {peer: peer.written() for peer in at.mesh.peers}
        assert group._pass_round(Message(b"a", b"", 1, False, b"", NEVER), hop, 0.0)
        (taken,) = [peer for peer in at.mesh.peers if peer.written() > before[peer]]
        seen.append(taken.worker.incarnation)
        (at,) = [broker for broker in node if broker.identity == taken.worker]

    assert 3 == len({node[0].identity.incarnation, *seen})
    node.close()


def test_what_a_taken_session_costs_does_not_grow_with_their_number(
    durable: Callable[[int], Node], traced: None
) -> None:
    """A worker that goes on after it stood still may have lost all of its sessions, and waits for a silent one."""
    left: list[str] = []
    former, third, _ = node = durable(3)
    sessions = former.worker.protocol.durable
    assert sessions is not None
    clients = [str(number) for number in range(220)]
    for client in clients:
        subscribed(lasting(former, client), "a")
    third.stopped = True
    former.mesh.leave(third.identity)

    def bytes_each(taken: list[str]) -> float:
        before, _ = tracemalloc.get_traced_memory()
        for client in taken:
            sessions.taken([client.encode()], former.clock())
            sessions.when_left(partial(left.append, client))
        after, _ = tracemalloc.get_traced_memory()
        return (after - before) / len(taken)

    few, many = bytes_each(clients[:20]), bytes_each(clients[20:])
    left_before = len(left)
    third.stopped = False
    former.mesh.join_distant(third.identity)
    node.advance(0.5)

    assert (0, clients) == (left_before, left)
    assert many < 1.5 * few
