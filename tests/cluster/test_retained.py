# Retained messages: the same ones at every worker, whoever wrote them and in whatever order that is heard.
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.config.schema import Config, Retained
from broker.mqtt.packets import V5, V311, Ack, Publish, Subscribe, Wanted
from broker.net.pauses import Pause
from broker.reasons import DropReason
from broker.routing.hybrid_clock import HybridClock
from broker.routing.retained import TOMBSTONE
from broker.routing.retained import Retained as RetainedMessages
from broker.session.message import NEVER, Message
from broker.worker_id import WorkerId
from tests.cluster.across import names
from tests.cluster.talk import payloads, subscribed
from tests.innode import Node

__all__ = ["names"]  # a fixture

Nodes = Callable[..., Node]


def test_a_retained_message_is_there_at_every_worker(nodes: Nodes) -> None:
    """Who subscribes elsewhere would get nothing, or what was deleted."""
    one, two, three = nodes(3)
    publisher = two.connect("publisher")
    publisher.send(Publish(b"a", b"1", 1, True, packet_id=1))
    publisher.receive()
    for n, broker in enumerate((one, two, three)):
        client = broker.connect(f"c{n}")
        subscribed(client, "a")
        (message,) = client.receive() or client.inbox
        assert isinstance(message, Publish) and message.retain and b"1" == message.payload

    publisher.send(Publish(b"a", b"", 1, True, packet_id=2))
    publisher.receive()
    late = three.connect("late")
    subscribed(late, "a")
    assert [] == payloads(late) + late.inbox


def test_who_is_there_gets_it_once_and_live(nodes: Nodes) -> None:
    """It would come twice, as a publish and as what is retained, or not at all."""
    one, two = nodes(2)
    subscriber, publisher = one.connect("subscriber", V5), two.connect("publisher")
    subscribed(subscriber, "a")
    publisher.send(Publish(b"a", b"1", 1, True, packet_id=1))
    (message,) = subscriber.receive()

    assert isinstance(message, Publish)
    assert (b"1", False, 1) == (message.payload, message.retain, message.qos)


def test_a_newcomer_has_all_that_is_retained(nodes: Nodes) -> None:
    """After a worker was replaced, its clients would find nothing."""
    node = nodes(2)
    one, two = node
    publishers = [one.connect("p1"), two.connect("p2")]
    for n in range(600):
        publishers[n % 2].send(Publish(b"r/%d" % n, b"%d" % n, 0, True))
    node.settle()
    node.kill(two)
    late = node.start(number=5)

    assert late.mesh.complete()
    assert 600 == late.retained.statistics().count
    assert 600 == one.retained.statistics().count


def test_who_has_heard_of_a_write_writes_later(nodes: Nodes) -> None:
    """Workers whose clocks tell the same time, or differ, would not agree on what was last."""
    node = nodes(3)
    first, second = node[0].connect("first"), node[1].connect("second")
    first.send(*[Publish(b"a", b"%d" % n, 0, True) for n in range(10)])
    first.receive()
    second.send(Publish(b"a", b"last", 0, True))
    second.receive()

    kept = [broker.retained.peek(b"a") for broker in node]
    assert [b"last"] * 3 == [message.payload for message in kept if message is not None]


class Wall:
    """Wall time that a test sets."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.now = time.time() + ahead

    def __call__(self) -> float:
        return self.now


def everywhere(node: Node, topic: bytes) -> list[bytes | None]:
    return [kept(broker.retained, topic) for broker in node]


@pytest.mark.parametrize("jump", [-3600.0, -10.0, 10.0, 3600.0])
def test_a_jump_of_the_wall_clock_turns_no_writes_round(nodes: Nodes, jump: float) -> None:
    """After a step of NTP the last write to a topic would lose against an older one at some of the workers."""
    node = nodes(1)
    wall = Wall()
    jumping = node.start(wall=wall)
    first, second = node[0].connect("first"), jumping.connect("second")
    said: list[bytes] = []
    for n in range(3):
        for publisher in (second, first, second):
            said.append(b"%d of %d" % (len(said), n))
            publisher.send(Publish(b"a", said[-1], 0, True))
            publisher.receive()
            assert [said[-1]] * 2 == everywhere(node, b"a")
        second.send(Publish(b"a", b"", 0, True))
        second.receive()
        assert [None] * 2 == everywhere(node, b"a")
        wall.now += jump


def test_a_newcomer_whose_clock_was_set_back_is_told_what_the_dead_wrote(nodes: Nodes) -> None:
    """It would be taken for the writer of what its predecessor wrote, and be told by nobody."""
    node = nodes(1)
    ahead = node.start(1, wall=Wall(7200.0))
    publisher = ahead.connect("publisher")
    publisher.send(Publish(b"a", b"1", 0, True))
    publisher.receive()
    node.kill(ahead)
    late = node.start(1, wall=Wall(-7200.0))

    assert b"1" == kept(late.retained, b"a")
    publisher = late.connect("publisher")
    publisher.send(Publish(b"a", b"2", 0, True))
    publisher.receive()
    assert [b"2"] * 2 == everywhere(node, b"a")


def test_a_suback_waits_for_what_was_retained_elsewhere_before(nodes: Nodes) -> None:
    """What crosses behind other messages would be missing among what is retained [MQTT-3.3.1-9]."""
    one, two = nodes(2)
    (peer,) = two.mesh.peers
    publisher, subscriber = one.connect("publisher"), two.connect("subscriber")
    two.reactor.pause(peer.data, Pause.FANOUT)  # as while a message with thousands of receivers is delivered
    publisher.send(Publish(b"a", b"1", 1, True, packet_id=1))
    assert 1 == len(publisher.receive())
    subscriber.send(Subscribe(1, [Wanted(b"a", 1)]))
    assert [] == subscriber.receive()

    two.reactor.resume(peer.data, Pause.FANOUT)
    said = subscriber.receive()
    # It may come as a publish, too: nobody can say which of the two was first.
    assert [b"1"] == [packet.payload for packet in said if isinstance(packet, Publish) and packet.retain]


def test_what_the_dead_had_retained_is_there_for_who_takes_its_place(nodes: Nodes) -> None:
    """Who is told by whoever wrote it would not be told, as it has the number of the dead itself."""
    node = nodes(3)
    _one, two, three = node
    publishers = [broker.connect(f"p{n}") for n, broker in enumerate(node)]
    for n, publisher in enumerate(publishers):
        publisher.send(Publish(b"r/%d" % n, b"%d" % n, 0, True), Publish(b"r/none/%d" % n, b"x", 0, True))
        publisher.send(Publish(b"r/none/%d" % n, b"", 0, True))
    node.settle()
    node.kill(two)
    node.kill(three)
    successors = [node.start(1), node.start(2)]

    assert [3, 3] == [broker.retained.statistics().count for broker in successors]
    assert all(broker.retained.tombstone(b"r/none/%d" % n) for broker in successors for n in range(3))


def test_who_was_to_tell_a_newcomer_dies(nodes: Nodes) -> None:
    """The others would leave it to him, and the newcomer would never know what he had retained."""
    node = nodes(3)
    publisher = node[0].connect("publisher")
    publisher.send(Publish(b"a", b"1", 0, True), Publish(b"b", b"1", 0, True), Publish(b"b", b"", 0, True))
    publisher.receive()
    node[0].stopped = True
    late = node.start()
    assert not late.mesh.complete()
    node.kill(node[0])

    assert late.mesh.complete()
    assert 1 == late.retained.statistics().count
    assert late.retained.tombstone(b"b")


def test_a_newcomer_does_not_bring_back_what_was_deleted(nodes: Nodes) -> None:
    """It may hear of a write after its deletion, from somebody slower."""
    node = nodes(1)
    (one,) = node
    publisher = one.connect("publisher")
    publisher.send(Publish(b"a", b"1", 0, True), Publish(b"a", b"", 0, True))
    one.settle()
    late = node.start()

    assert late.retained.tombstone(b"a")


def test_one_that_has_no_room_is_delivered_everywhere(nodes: Nodes) -> None:
    """Those at the publisher's worker would get it, and the others not."""
    one, two = nodes(2, Config(retained=Retained(messages=0)))
    subscriber, publisher = one.connect("subscriber"), two.connect("publisher", V311)
    subscribed(subscriber, "a")
    publisher.send(Publish(b"a", b"1", 1, True, packet_id=1))
    publisher.receive()

    assert [b"1"] == payloads(subscriber)
    assert 0 == one.retained.statistics().count
    assert 1 == two.counters.dropped_by_reason[DropReason.RETAINED_FULL.label]


def test_one_that_was_refused_is_delivered_nowhere(nodes: Nodes) -> None:
    """Its publisher sends it again, as it was told so, and it would come twice."""
    one, two = nodes(2, Config(retained=Retained(messages=0)))
    subscriber, publisher = one.connect("subscriber"), two.connect("publisher", V5)
    subscribed(subscriber, "a")
    publisher.send(Publish(b"a", b"1", 1, True, packet_id=1))
    (answer,) = publisher.receive()

    assert isinstance(answer, Ack) and 0x97 == answer.code
    assert [] == payloads(subscriber)


def kept(retained: RetainedMessages, topic: bytes) -> bytes | None:
    message = retained.peek(topic)
    return None if message is None else message.payload


ORDERS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["put", "delete", "lanes"])), max_size=8)


def test_whatever_the_order_all_workers_agree(nodes: Nodes) -> None:
    """Two workers would answer differently, for ever, after a deletion that came before the write that it deletes."""
    node = nodes(3)
    clients = [broker.connect(f"c{n}") for n, broker in enumerate(node)]
    lanes = [(broker, peer.data) for broker in node for peer in broker.mesh.peers]
    topics = iter(range(1 << 30))

    @settings(max_examples=150)
    @given(ORDERS, st.permutations(range(len(lanes))))
    @example([(0, "put"), (1, "delete")], range(6))
    @example([(0, "put"), (1, "put"), (2, "delete"), (1, "lanes"), (2, "delete")], range(6))
    def check(steps: list[tuple[int, str]], order: list[int]) -> None:
        topic = b"t/%d" % next(topics)
        for broker, lane in lanes:
            broker.reactor.pause(lane, Pause.FANOUT)  # as while a message with thousands of receivers is delivered
        for n, (at, action) in enumerate(steps):
            if action == "lanes":  # all that was sent to this worker arrives
                for broker, lane in lanes[at * 2 : at * 2 + 2]:
                    broker.reactor.resume(lane, Pause.FANOUT)
                node.settle()
                for broker, lane in lanes[at * 2 : at * 2 + 2]:
                    broker.reactor.pause(lane, Pause.FANOUT)
            else:
                clients[at].send(Publish(topic, b"%d" % n if action == "put" else b"", 0, True))
                node.settle()
        for number in order:
            broker, lane = lanes[number]
            broker.reactor.resume(lane, Pause.FANOUT)
            node.settle()

        writes = [b"%d" % n if action == "put" else None for n, (_, action) in enumerate(steps) if action != "lanes"]
        last = writes[-1] if writes else None
        assert [last] * 3 == everywhere(node, topic)

    check()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_deletion_of_nothing_leaves_nothing(nodes: Nodes, workers: int) -> None:
    """A client could fill the memory of all workers with topics that never had a message."""
    node = nodes(workers)
    publisher = node[0].connect("publisher")
    publisher.send(*[Publish(b"t/%d" % n, b"", 0, True) for n in range(500)])
    publisher.receive()

    assert [[]] * workers == [broker.retained.deleted() for broker in node]


def with_deletions(retained: RetainedMessages, number: int, since: float, topic: bytes = b"%d") -> None:
    """Have *number* topics set and deleted, one a second from *since* on."""
    clock = HybridClock(WorkerId("weir", 0, 1), time.time)
    for n in range(number):
        retained.put(Message(topic % n, b"x", 0, True, b"", NEVER), 1.0, "", clock.stamp())
        retained.delete(topic % n, clock.stamp(), since + n)


def test_a_deletion_is_forgotten_when_no_older_write_can_come() -> None:
    """Each topic that was ever deleted would cost memory."""
    retained = RetainedMessages(100, 10_000)
    with_deletions(retained, 5, 10.0)
    retained.forget_tombstones(10.0 + TOMBSTONE + 1.5, 10)
    assert [b"2", b"3", b"4"] == retained.deleted()
    retained.forget_tombstones(1000.0, 2)
    assert [b"4"] == retained.deleted()
    assert 301 == retained.statistics().tombstone_bytes


def test_a_topic_that_is_deleted_again_and_again_has_one_tombstone() -> None:
    """Those of others would be given up for bytes that nobody holds."""
    retained = RetainedMessages(100, 10_000)
    clock = HybridClock(WorkerId("weir", 0, 1), time.time)
    for _ in range(5):
        retained.delete(b"t", clock.stamp(), 10.0, deleted_before=True)

    assert (1, 301) == (retained.statistics().tombstones, retained.statistics().tombstone_bytes)


def test_tombstones_stay_within_the_bytes_of_retained_messages() -> None:
    """A client that sets and deletes ever new topics could fill the memory within the life of a tombstone."""
    retained = RetainedMessages(100, 10_000)
    with_deletions(retained, 1000, 10.0, b"%04d")
    statistics = retained.statistics()

    assert 9_000 < statistics.tombstone_bytes <= 10_000
    assert 1000 == statistics.tombstones + statistics.tombstones_displaced
    assert b"0999" == retained.deleted()[-1]


def test_tombstones_give_way_to_messages() -> None:
    """A message would be refused for a minute because others were deleted."""
    retained = RetainedMessages(100, 10_000)
    with_deletions(retained, 30, 10.0, b"%04d")

    assert retained.put(Message(b"a", bytes(9_300), 0, True, b"", NEVER), 1.0) is None
    assert 0 == retained.statistics().tombstones


def test_what_is_set_again_is_no_deletion_any_more() -> None:
    """It would be deleted again by who hears of both."""
    clock = HybridClock(WorkerId("weir", 0, 1), time.time)
    retained = RetainedMessages(100, 10_000)
    for payload in (b"1", b"2"):
        retained.put(Message(b"a", payload, 0, True, b"", NEVER), 1.0, "", clock.stamp())
        assert [] == retained.deleted()
        retained.delete(b"a", clock.stamp())
        assert [b"a"] == retained.deleted()


@pytest.mark.parametrize("payload", [b"", b"x"])
def test_what_is_older_changes_nothing(payload: bytes) -> None:
    """A slow worker would undo what others did since."""
    clock = HybridClock(WorkerId("weir", 0, 1), time.time)
    old, new = clock.stamp(), clock.stamp()
    retained = RetainedMessages(100, 10_000)
    retained.put(Message(b"a", b"new", 0, True, b"", NEVER), 1.0, "", new)

    assert not retained.merge(Message(b"a", payload, 0, True, b"", NEVER), 1.0, "", old)
    assert b"new" == kept(retained, b"a")


def test_what_was_acknowledged_before_is_found_as_retained(nodes: Nodes) -> None:
    """It would come a moment later, as a live message: who asks for retained ones only would miss it."""
    one, two = nodes(2)
    other, subscriber, publisher = one.connect("other"), one.connect("subscriber", V5), two.connect("publisher")
    subscribed(other, "a")  # so that nobody has to be told that the filter is subscribed to
    one.stopped = True
    publisher.send(Publish(b"a", b"1", 1, True, packet_id=1))
    assert 1 == len(publisher.receive())
    one.stopped = False
    subscribed(subscriber, "a")

    assert [True] == [packet.retain for packet in subscriber.receive() if isinstance(packet, Publish)]
