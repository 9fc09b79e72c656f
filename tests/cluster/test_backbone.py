# The inbound backbone of whole workers: with a real Redis, and a model of the log.
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from broker.config.schema import Config, Overload
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    Ack,
    Disconnect,
    Properties,
    Publish,
    SubAck,
    Subscribe,
    Unsubscribe,
    Wanted,
    Will,
)
from broker.mqtt.properties import MESSAGE_EXPIRY_INTERVAL, SESSION_EXPIRY_INTERVAL
from broker.protocol import inbound_dispatch
from broker.protocol.inbound_backbone import RETRY, STANDS
from broker.reasons import CloseReason, DropReason, LogFailure
from broker.routing.fanout import PAGE
from broker.store.logs.records import Position
from broker.store.logs.topics import LogError
from tests.cluster.backbone_node import PARTITIONS, BackboneNode, name_of
from tests.cluster.durable_node import StartRedis
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.store.durable.model_log import refusal

pytestmark = [pytest.mark.system, pytest.mark.interpreted]  # a real Redis

LASTING: Final[Properties] = {SESSION_EXPIRY_INTERVAL: 3600}


@pytest.fixture
def start(start_redis: StartRedis) -> Iterator[Callable[..., BackboneNode]]:
    """Starts nodes of some workers, `start(2, Config(...))`."""
    made: list[BackboneNode] = []

    def begin(workers: int = 2, config: Config | None = None, durable: bool = True) -> BackboneNode:
        made.append(BackboneNode(start_redis(), workers, config, durable))
        made[-1].settle()
        return made[-1]

    yield begin
    for one in made:
        one.node.close()


def subscriber(
    node: BackboneNode,
    broker: Broker,
    filter: bytes = b"#",
    client_id: str = "subscriber",
    qos: int = 2,
    **options: bool,
) -> Client:
    client = broker.connect(client_id, V5)
    client.send(Subscribe(1, [Wanted(filter, qos, **options)]))
    node.settle()
    assert [SubAck(1, [qos])] == client.receive()
    return client


def durable_subscriber(node: BackboneNode, broker: Broker, client_id: str = "durable") -> Client:
    client = broker.connect(client_id, V5, clean_start=False, properties=LASTING)
    node.settle()
    if not client.connack.session_present:
        client.send(Subscribe(1, [Wanted(b"#", 2)]))
        node.settle()
        assert [SubAck(1, [2])] == client.receive()
    return client


def payloads(client: Client) -> list[bytes]:
    """Of the messages that have come since the last call, which are acknowledged."""
    found: list[bytes] = []
    for packet in client.receive():
        if isinstance(packet, Publish):
            found.append(packet.payload)
            if packet.qos:
                client.send(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
        elif isinstance(packet, Ack) and packet.kind == PUBREL:
            client.send(Ack(PUBCOMP, packet.packet_id))
    return found


def read_all(node: BackboneNode, client: Client) -> list[bytes]:
    found: list[bytes] = []
    while True:
        node.settle()
        came = payloads(client)
        if not came:
            return found
        found += came


def answers(client: Client) -> list[tuple[int, int, int]]:
    return [(each.kind, each.packet_id, each.code) for each in client.receive() if isinstance(each, Ack)]


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


# Acknowledged when it is in the log.


@pytest.mark.parametrize(("qos", "kind"), [(1, PUBACK), (2, PUBREC)])
def test_a_publish_is_acknowledged_when_the_log_has_it(start: Callable[..., BackboneNode], qos: int, kind: int) -> None:
    """What is acknowledged would be lost with the worker."""
    node = start(1)
    node.stores = node.gives = False
    reader = subscriber(node, node.node[0])
    publisher = node.node[0].connect("publisher")
    for number in (1, 2):
        publisher.send(Publish(b"t", b"%d" % number, qos, packet_id=number))
    node.settle()
    assert ([], []) == (answers(publisher), payloads(reader))
    node.stores = True
    node.settle()
    assert [(kind, 1, 0), (kind, 2, 0)] == answers(publisher)
    assert [] == payloads(reader)
    node.gives = True

    assert [b"1", b"2"] == read_all(node, reader)


def test_publishes_of_all_qos_keep_their_order(start: Callable[..., BackboneNode]) -> None:
    """[MQTT-4.6.0-5], beyond what it asks for: messages of one publisher would overtake each other."""
    node = start(2)
    readers = [subscriber(node, broker, client_id=f"reader{broker.shard}") for broker in node.node]
    publisher = node.node[1].connect("publisher", V5)
    for number in range(30):
        publisher.send(Publish(b"t%d" % (number % 3), b"%d" % number, number % 3, packet_id=number + 1))
    for number in range(30, 40):
        publisher.send(Publish(b"t", b"%d" % number, 0))

    for reader in readers:
        assert numbers(0, 40) == read_all(node, reader)


def test_what_is_published_is_in_one_partition_for_each_client(start: Callable[..., BackboneNode]) -> None:
    """Without it the order would be lost; and with a single one the node would not be faster than one worker."""
    node = start(1)
    for number in range(20):
        client = node.node[0].connect(f"client{number}")
        client.send(Publish(b"a", b"1", 1, packet_id=1))
        client.send(Publish(b"b", b"2", 1, packet_id=2))
    node.settle()

    assert 20 == node.packs()
    assert all(node.log.bodies(name_of(number)) for number in range(PARTITIONS))


def test_nobody_listens_is_no_answer(start: Callable[..., BackboneNode]) -> None:
    """0x10 would say something about receivers that nobody has looked for."""
    node = start(1)
    publisher = node.node[0].connect("publisher", V5)
    publisher.send(Publish(b"t", b"1", 1, packet_id=1))
    node.settle()

    assert [(PUBACK, 1, 0)] == answers(publisher)


def test_a_publish_that_is_not_allowed_is_not_appended(start: Callable[..., BackboneNode]) -> None:
    """Reserved topics could be published to by anybody."""
    node = start(1)
    publisher = node.node[0].connect("publisher", V5)
    publisher.send(Publish(b"$SYS/broker/x", b"1", 1, packet_id=1))
    publisher.send(Publish(b"$SYS/broker/x", b"1", 0))
    node.settle()

    assert 0 == node.packs()
    assert [(PUBACK, 1, 0x87)] == answers(publisher)


def test_a_qos_2_publish_that_is_sent_again_is_appended_once(start: Callable[..., BackboneNode]) -> None:
    """[MQTT-4.3.3-10]: receivers would get it twice."""
    node = start(1)
    node.stores = False
    reader = subscriber(node, node.node[0])
    publisher = node.node[0].connect("publisher")
    publisher.send(Publish(b"t", b"1", 2, packet_id=1))
    publisher.send(Publish(b"t", b"1", 2, packet_id=1, dup=True))
    node.settle()
    assert [] == answers(publisher)
    node.stores = True

    assert [b"1"] == read_all(node, reader)
    assert (PUBREC, 1, 0) in answers(publisher)


# Back-pressure, and a log that fails.


def test_bursts_wait_in_the_log_while_receivers_are_slow(start: Callable[..., BackboneNode]) -> None:
    """They would fill the memory of the worker, or publishers would wait for receivers."""
    node = start(1, Config(overload=Overload(gate_floor=4)))
    worker = node.node[0]
    durable_subscriber(node, worker).socket.close()
    node.settle()
    gate = worker.worker.links.store_gate
    assert gate is not None
    gate.block()
    publisher = worker.connect("publisher")
    for number in range(200):
        publisher.send(Publish(b"t", b"%d" % number, 1, packet_id=number + 1))
        node.settle() if number % 50 == 0 else None
    node.settle()
    assert 200 == len(answers(publisher))
    statistics = node.backbone(worker).statistics()
    assert (0, 200) == (statistics.dispatched, statistics.appended)
    assert statistics.behind > 0 and statistics.lag > 0.0
    gate.unblock()
    client = durable_subscriber(node, worker)

    assert numbers(0, 200) == read_all(node, client)
    after = node.backbone(worker).statistics()
    assert (200, 0.0, 0) == (after.dispatched, after.lag, after.unfinished)


def test_publishers_wait_for_a_topic_that_cannot_be_made(start_redis: StartRedis) -> None:
    """They would be told that something is safe which is nowhere; or the node would have to be started again."""
    node = BackboneNode(start_redis(), 1)
    worker = node.node[0]
    node.failure = LogError(LogFailure.OTHER_TOPIC, "it has partitions: 3, and not 4")
    node.settle()
    publisher, older = worker.connect("publisher", V5), worker.connect("older")
    for client in (publisher, older):
        client.send(Publish(b"t", b"1", 1, packet_id=1))
    node.settle()
    assert [] == answers(publisher) == answers(older)
    assert str(node.failure) == node.backbone(worker).trouble()
    worker.advance(Overload().wait + 1.0)
    node.settle()
    assert [(PUBACK, 1, 0x97)] == answers(publisher)
    assert older.closed
    node.failure = None
    worker.advance(RETRY)
    node.settle()
    publisher.send(Publish(b"t", b"2", 1, packet_id=2))
    node.settle()

    assert [(PUBACK, 2, 0)] == answers(publisher)
    assert "" == node.backbone(worker).trouble()
    node.node.close()


def test_a_partition_that_takes_nothing_stops_its_publishers_alone(start: Callable[..., BackboneNode]) -> None:
    """All would wait for one partition without a leader; or those of it fill the memory with QoS 0."""
    node = start(1)
    worker, log = node.node[0], node.backbone(node.node[0]).log
    node.stores = False
    stuck, other = worker.connect("a"), worker.connect("b")
    assert log.partition_of("a") is not log.partition_of("b")
    stuck.send(Publish(b"t", b"1", 1, packet_id=1))
    node.settle()
    node.links[worker].unstored[0].appender.late(worker.clock.now)
    for number in range(10):
        stuck.send(Publish(b"t", b"%d" % number, 0))
    other.send(Publish(b"t", b"2", 1, packet_id=1))
    node.settle()
    assert 2 == len(node.links[worker].unstored)
    node.stores = True
    node.settle()

    assert [(PUBACK, 1, 0)] == answers(stuck) == answers(other)
    assert 12 == log.appended


def test_what_the_log_refuses_is_not_acknowledged(start: Callable[..., BackboneNode]) -> None:
    """A publisher would be told that a message is safe which nobody has."""
    node = start(1)
    worker = node.node[0]
    publisher = worker.connect("publisher", V5)
    node.links[worker].refuse = refusal()
    publisher.send(Publish(b"t", b"1", 1, packet_id=1))
    node.settle()

    assert [Disconnect(CloseReason.BACKBONE_REFUSED.code)] == publisher.receive()
    assert 1 == worker.counters.dropped_by_reason[DropReason.BACKBONE_REFUSED.label]


# Who dispatches, and what the death of a worker costs.


def test_partitions_are_dispatched_by_all_workers(start: Callable[..., BackboneNode]) -> None:
    """One worker would do the work of all."""
    node = start(2)

    assert {0: 0, 1: 1, 2: 0, 3: 1} == node.owners()


def test_a_worker_that_dies_is_followed_and_gets_its_partitions_back(start: Callable[..., BackboneNode]) -> None:
    """What waits in its partitions would wait until somebody starts the node again; or one worker keep all."""
    node = start(2)
    node.kill(node.node[1])
    node.settle()
    assert dict.fromkeys(range(PARTITIONS), 0) == node.owners()
    node.start(1)
    node.settle()

    assert {0: 0, 1: 1, 2: 0, 3: 1} == node.owners()


def test_a_partition_with_something_under_way_is_given_back_later(start: Callable[..., BackboneNode]) -> None:
    """What is under way would come twice, or nothing of the partition be dispatched meanwhile."""
    node = start(2)
    node.kill(node.node[1])
    worker = node.node[0]
    reader = subscriber(node, worker)
    durable_subscriber(node, worker).socket.close()
    node.settle()
    log = node.backbone(worker).log
    name = next(str(number) for number in range(99) if log.partition_of(str(number)).number == 1)
    publisher = worker.connect(name)
    commit = worker.worker.links.durable_store.commit
    stored, commit.tick = commit.tick, lambda now: now + 1.0
    publisher.send(Publish(b"t", b"1", 1, packet_id=1))
    node.settle()
    assert [b"1"] == payloads(reader)
    node.start(1)
    for _ in range(30):
        node.settle()
    assert 0 == node.owners()[1]
    publisher.send(Publish(b"t", b"2", 1, packet_id=2))
    node.settle()
    assert [b"2"] == payloads(reader)
    commit.tick = stored
    for _ in range(40):
        node.settle()

    assert 1 == node.owners()[1]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_acknowledged_outlives_the_worker_that_took_it(start: Callable[..., BackboneNode], qos: int) -> None:
    """It would be lost with that worker; and QoS 2 come twice."""
    node = start(2)
    reader = durable_subscriber(node, node.node[0])
    node.gives = False
    publisher = node.node[1].connect("publisher")
    for number in range(20):
        publisher.send(Publish(b"t", b"%d" % number, qos, packet_id=number + 1))
    node.settle()
    assert 20 == len(answers(publisher))
    node.kill(node.node[1])
    node.gives = True

    assert numbers(0, 20) == read_all(node, reader)


def test_qos_2_is_not_doubled_for_a_durable_receiver_when_its_dispatcher_dies(
    start: Callable[..., BackboneNode],
) -> None:
    """The worker that goes on dispatches again what was not saved as done."""
    node = start(2)
    reader = durable_subscriber(node, node.node[0])
    log = node.backbone(node.node[0]).log
    name = next(str(number) for number in range(99) if log.partition_of(str(number)).number == 1)
    publisher = node.node[0].connect(name)
    ownership = node.backbone(node.node[1])._ownership
    ownership.save = lambda now: now + 1.0  # type: ignore[method-assign]  # nothing of what it does is saved
    for number in range(20):
        publisher.send(Publish(b"t", b"%d" % number, 2, packet_id=number + 1))
    assert numbers(0, 20) == read_all(node, reader)
    node.kill(node.node[1])

    assert [] == read_all(node, reader)
    assert 20 <= node.backbone(node.node[0]).statistics().dispatched


def test_qos_0_is_not_doubled_when_its_dispatcher_dies(start: Callable[..., BackboneNode]) -> None:
    """QoS 0 is at most once."""
    node = start(2)
    reader = subscriber(node, node.node[0])
    log = node.backbone(node.node[0]).log
    name = next(str(number) for number in range(99) if log.partition_of(str(number)).number == 1)
    publisher = node.node[0].connect(name)
    for number in range(5):
        publisher.send(Publish(b"t", b"%d" % number, 0))
    node.settle()
    assert numbers(0, 5) == read_all(node, reader)
    with node.redis.client() as client:  # as if it had died before it could save that
        client.hset(node.key(), "position/1", Position(0).encode())
    node.kill(node.node[1])

    assert [] == read_all(node, reader)
    for _ in range(3):
        node.settle()
    assert 5 == node.backbone(node.node[0]).statistics().left_out


def test_what_a_dead_worker_had_is_dispatched_again_also_if_it_is_as_much_as_may_be_under_way(
    start: Callable[..., BackboneNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is lost counts as under way: the partition would stand still for ever."""
    monkeypatch.setattr(inbound_dispatch, "UNFINISHED", 3)
    node = start(2)
    first, second = node.node
    durable_subscriber(node, second)
    store = second.worker.links.durable_store
    assert store is not None
    store.commit.tick = lambda now: now + 1.0  # type: ignore[method-assign]  # it stores nothing
    publisher = first.connect(named_for(node, 0))
    for number in range(10):
        publisher.send(Publish(b"t", b"%d" % number, 1, packet_id=number + 1))
    node.settle()
    assert 3 == node.backbone(first).statistics().unfinished
    node.kill(second)
    node.settle()
    node.start(1)
    node.settle()
    reader = durable_subscriber(node, first)

    assert reader.connack.session_present
    assert numbers(0, 10) == read_all(node, reader)


# What a message keeps on its way.


def named_for(node: BackboneNode, partition: int) -> str:
    """A client id whose publishes are in *partition*."""
    log = node.backbone(node.node[0]).log
    return next(str(number) for number in range(99) if log.partition_of(str(number)).number == partition)


@pytest.mark.parametrize("home", [0, 1])
@pytest.mark.parametrize("dispatcher", [0, 1])
@pytest.mark.parametrize(("qos", "retain"), [(0, False), (1, False), (2, True)])
def test_no_local_holds_whoever_dispatches(
    start: Callable[..., BackboneNode], home: int, dispatcher: int, qos: int, retain: bool
) -> None:
    """[MQTT-3.8.3-3]: bridges would send messages in circles."""
    node = start(2)
    name = named_for(node, dispatcher)
    client = subscriber(node, node.node[home], client_id=name, no_local=True)
    other = subscriber(node, node.node[1 - home], client_id="other", no_local=True)
    client.send(Publish(b"t", b"1", qos, retain, packet_id=1))
    assert [b"1"] == read_all(node, other)
    assert [] == payloads(client)
    other.send(Publish(b"t", b"2", qos, packet_id=1))

    assert [b"2"] == read_all(node, client)
    assert [] == payloads(other)


def test_an_expired_publish_is_not_delivered(start: Callable[..., BackboneNode]) -> None:
    """What has waited in the log for too long would be taken for news [MQTT-3.3.2-5]."""
    node = start(1)
    worker = node.node[0]
    reader = subscriber(node, worker)
    node.gives = False
    publisher = worker.connect("publisher", V5)
    publisher.send(Publish(b"t", b"1", 1, packet_id=1, properties={MESSAGE_EXPIRY_INTERVAL: 5}))
    publisher.send(Publish(b"t", b"2", 1, packet_id=2, properties={MESSAGE_EXPIRY_INTERVAL: 500}))
    node.settle()
    worker.advance(10.0)
    node.gives = True
    node.settle()

    came = [each for each in reader.receive() if isinstance(each, Publish)]
    assert [b"2"] == [each.payload for each in came]
    assert 485 <= came[0].properties[MESSAGE_EXPIRY_INTERVAL] <= 490  # type: ignore[operator]


def retained_of(broker: Broker, topic: bytes = b"t") -> bytes:
    found = broker.retained.get(topic, broker.clock.now)
    return b"" if found is None else found.payload


def test_what_is_retained_is_what_was_accepted_last(start: Callable[..., BackboneNode]) -> None:
    """A partition that is behind would undo what was retained later."""
    node = start(2)
    one, two = (node.node[0].connect(named_for(node, partition)) for partition in (0, 1))
    reader = subscriber(node, node.node[1])
    behind = node.backbone(node.node[0])._ownership.feeds[0]
    dispatch, behind.next = behind.next, lambda now, wall: None  # type: ignore[method-assign]
    one.send(Publish(b"t", b"earlier", 1, True, packet_id=1))
    node.settle()
    two.send(Publish(b"t", b"later", 1, True, packet_id=1))
    assert [b"later"] == read_all(node, reader)
    behind.next = dispatch  # type: ignore[method-assign]
    assert [b"earlier"] == read_all(node, reader)

    assert [b"later", b"later"] == [retained_of(broker) for broker in node.node]
    one.send(Publish(b"t", b"", 1, True, packet_id=2))
    node.settle()
    assert [b"", b""] == [retained_of(broker) for broker in node.node]


def test_a_will_is_delivered_directly(start: Callable[..., BackboneNode]) -> None:
    """Receivers would learn of a death when Kafka is there again."""
    node = start(2)
    reader = subscriber(node, node.node[0])
    node.stores = False
    client = node.node[1].connect("client", will=Will(b"t", b"gone", 1, False))
    client.drop()

    assert [b"gone"] == read_all(node, reader)


def test_one_member_of_a_shared_subscription_gets_each_message(start: Callable[..., BackboneNode]) -> None:
    """Each worker would choose a member of its own."""
    node = start(2)
    members = [subscriber(node, broker, b"$share/g/t", f"member{broker.shard}") for broker in node.node]
    publisher = node.node[0].connect("publisher")
    for number in range(20):
        publisher.send(Publish(b"t", b"%d" % number, 1, packet_id=number + 1))
    node.settle()

    assert sorted(numbers(0, 20)) == sorted(read_all(node, members[0]) + read_all(node, members[1]))


def test_a_wide_publish_is_delivered_before_what_follows_it(start: Callable[..., BackboneNode]) -> None:
    """What is delivered in pages would be overtaken."""
    node = start(1)
    worker = node.node[0]
    readers = [worker.connect(f"reader{number}") for number in range(PAGE + 10)]
    for reader in readers:
        reader.send(Subscribe(1, [Wanted(b"wide", 1), Wanted(b"narrow", 1)]))
    node.settle()
    for reader in readers[:-1]:
        reader.send(Unsubscribe(2, [b"narrow"]))
    node.settle()
    last = readers[-1]
    last.receive()
    publisher = worker.connect("publisher")
    for number in range(3):
        publisher.send(Publish(b"wide", b"%d" % (2 * number), 1, packet_id=2 * number + 1))
        publisher.send(Publish(b"narrow", b"%d" % (2 * number + 1), 1, packet_id=2 * number + 2))

    assert numbers(0, 6) == read_all(node, last)


def test_a_wide_publish_holds_up_no_other_publishers(start: Callable[..., BackboneNode]) -> None:
    """A client that publishes to many would have the messages of all others wait."""
    node = start(1)
    worker = node.node[0]
    readers = [worker.connect(f"reader{number}") for number in range(PAGE + 10)]
    for reader in readers:
        reader.send(Subscribe(1, [Wanted(b"wide", 1)]))
    other = subscriber(node, worker, b"narrow", client_id="other")
    readers[-1].receive()
    deliveries = worker.hub._deliveries
    work, deliveries.work = deliveries.work, lambda until: False  # no page goes out
    wide, narrow = (worker.connect(named_for(node, partition)) for partition in (0, 1))
    wide.send(Publish(b"wide", b"1", 1, packet_id=1))
    node.settle()
    wide.send(Publish(b"narrow", b"2", 1, packet_id=2))
    narrow.send(Publish(b"narrow", b"3", 1, packet_id=1))
    assert [b"3"] == read_all(node, other)
    assert [] == payloads(readers[-1])
    deliveries.work = work

    assert [b"2"] == read_all(node, other)
    assert [b"1"] == read_all(node, readers[-1])


def test_a_receiver_that_moves_to_another_worker_by_force_loses_nothing(start: Callable[..., BackboneNode]) -> None:
    """What its former worker had not stored would be passed, as its publishers were answered long ago."""
    node = start(3)
    reader = durable_subscriber(node, node.node[1])
    publisher = node.node[0].connect(named_for(node, 0))
    node.node[1].stopped = True  # it does not answer
    for number in range(10):
        publisher.send(Publish(b"t", b"%d" % number, 2, packet_id=number + 1))
    for _ in range(3):
        node.node.advance(0.1)
        for broker in node.node:
            if not broker.stopped:
                link = node.links[broker]
                link.store()
                link.tell(broker.clock.now)
                link.give(broker.clock.now)
        node.node.settle()
    del reader
    stopped = node.node[1]
    node.kill(stopped)
    node.settle()
    again = node.node[0].connect("durable", V5, clean_start=False, properties=LASTING)
    node.settle()
    node.start(1)
    node.settle()
    again = again if again.connack.session_present else durable_subscriber(node, node.node[0])

    assert numbers(0, 10) == read_all(node, again)


# Beside it.


def test_a_worker_that_ends_gives_its_partitions_up(start: Callable[..., BackboneNode]) -> None:
    """What it has under way would come twice after each restart."""
    node = start(2)
    backbone = node.backbone(node.node[1])
    publisher = node.node[1].connect("publisher")
    publisher.send(Publish(b"t", b"1", 1, packet_id=1))
    node.settle()
    assert not backbone.settled()
    for _ in range(3):
        node.settle()

    assert backbone.settled()
    assert {0, 2} == node.owners().keys()


def test_the_lag_is_a_signal_of_the_level(start: Callable[..., BackboneNode]) -> None:
    """Publishers would fill Kafka for as long as they like."""
    node = start(1, Config(overload=Overload(backbone_lag=1.0)))
    worker = node.node[0]
    feed = node.backbone(worker)._ownership.feeds[0]
    feed.next = lambda now, wall: None  # type: ignore[method-assign]  # it dispatches nothing
    publisher = worker.connect(named_for(node, 0))
    publisher.send(Publish(b"t", b"1", 1, packet_id=1))
    node.settle()
    for _ in range(30):
        worker.advance(0.1)
    signals = worker.protection.signals

    assert signals.named("backbone").value > 2.0
    assert "weir backbone lag" in signals.contended
    assert worker.overload_monitor.level.value > 0.0
    gate = node.gate(worker)
    assert "weir backbone lag" in worker.protection.resources.names(gate.needs)


def test_a_worker_that_cannot_begin_is_behind(start_redis: StartRedis) -> None:
    """Partitions would wait for it, and the lag of the node be 0."""
    node = BackboneNode(start_redis(), 1)
    worker = node.node[0]
    node.failure = LogError(LogFailure.OTHER_TOPIC, "it has partitions: 3, and not 4")
    node.settle()
    worker.advance(7.0)
    node.settle()
    assert 7.0 < node.backbone(worker).statistics().lag < 10.0
    assert node.backbone(worker).statistics().lag == worker.protection.signals.named("backbone").measured
    node.failure = None
    worker.advance(RETRY)
    node.settle()

    assert 0.0 == node.backbone(worker).statistics().lag
    node.node.close()


def test_without_a_backbone_publishing_is_as_it_was(start_node: Callable[..., Node]) -> None:
    """Whoever does not want it would pay for it."""
    worker = start_node(1)[0]

    assert worker.publishing._target is None
    assert worker.worker.links.backbone is None
    assert "backbone" not in worker.protection.signals.values()


def test_a_partition_that_stands_still_is_told(start: Callable[..., BackboneNode]) -> None:
    """A receiver that is never done with a publish would be seen nowhere, as nothing waits to be dispatched."""
    node = start(1)
    worker = node.node[0]
    backbone = node.backbone(worker)
    durable_subscriber(node, worker).socket.close()
    node.settle()
    commit = worker.worker.links.durable_store.commit
    stored, commit.tick = commit.tick, lambda now: now + 1.0
    worker.connect(named_for(node, 0)).send(Publish(b"t", b"1", 1, packet_id=1))
    node.settle()
    worker.advance(STANDS - 5.0)
    assert "" == backbone.unread()
    worker.advance(10.0)
    told = backbone.unread()
    commit.tick = stored
    for _ in range(40):
        node.settle()
    worker.advance(2.0)

    assert told.startswith("partition 0 stands at record 0: a receiver has not been done with it for 3")
    assert "" == backbone.unread()


def test_a_partition_that_cannot_be_read_is_told(start: Callable[..., BackboneNode]) -> None:
    """Nobody would know why nothing of it is delivered."""
    node = start(1)
    worker = node.node[0]
    backbone = node.backbone(worker)
    assert "" == backbone.unread()
    backbone._ownership.feeds[2].failed(LogError(LogFailure.NO_LEADER, ""), worker.clock.now)

    assert f"partition 2 cannot be read: {LogFailure.NO_LEADER.words}" == backbone.unread()
    assert {"trouble": "", "unread": backbone.unread()} == worker.worker.metrics.report()["backbone"]
    assert (PARTITIONS, 0) == (worker.gauges().backbone_partitions, worker.gauges().backbone_behind)
