# Nodes that share a Redis are one broker: what clients of one node may expect of clients of another.
#
# Nothing here stops or kills a node; test_cluster_faults.py does. So two nodes, and a third one for a few, serve all.
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain

import pytest

from broker.mqtt import packets
from broker.mqtt.packets import V5, V311, Ack, Disconnect, Publish, Will
from tests.redis_servers import SERVERS, RunningRedis
from tests.system.cluster import LASTING, Cluster, collect, send, start
from tests.system.nodes import Node
from tests.system.raw import payloads

pytestmark = pytest.mark.weir_only("it is one node")

TAKEN_OVER = 0x8E
MANY = 100  # times that what hangs on a race is tried


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        redis = RunningRedis(SERVERS[-1], folder / "redis")
        stack.callback(redis.end)
        yield stack.enter_context(start(folder, redis, 3))


@pytest.fixture
def a(cluster: Cluster) -> Node:
    return cluster.nodes[0]


@pytest.fixture
def b(cluster: Cluster) -> Node:
    return cluster.nodes[1]


@pytest.fixture
def c(cluster: Cluster) -> Node:
    return cluster.nodes[2]


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_kind_of_subscriber_hears_all_nodes(a: Node, b: Node, c: Node, name: str, version: int, qos: int) -> None:
    """Whom a message reaches would hang on the node that its publisher came to."""
    wanted = [f"{name}/x/y", f"{name}/+/y", f"{name}/#", f"+/x/y/{name}"]
    listeners = [
        (at.client(f"{name}-{at.port}-{number}", version=version), wish)
        for at in (a, b, c)
        for number, wish in enumerate(wanted)
    ]
    for client, wish in listeners:
        client.subscribe(wish, qos=qos)
    publisher = a.client(f"{name}-publisher", version=version)

    for number in range(20):
        publisher.publish(f"{name}/x/y", b"%d" % number, qos)
    publisher.publish(f"q/x/y/{name}", b"end", qos)
    publisher.publish(f"{name}/x/y", b"end", qos)

    for client, wish in listeners:
        messages = client.take_until(b"end")
        assert payloads(messages) == ([] if wish.startswith("+") else [b"%d" % number for number in range(20)])
        assert {qos} >= {message.qos for message in messages}


def test_a_suback_means_subscribed_at_every_node(a: Node, b: Node, name: str) -> None:
    """Who subscribes and then asks a question at another node would miss the answer."""
    publisher, subscriber = a.client(f"{name}-p"), b.client(f"{name}-s")

    for number in range(MANY):
        subscriber.subscribe(f"{name}/{number}")
        publisher.publish(f"{name}/{number}", b"%d" % number)
        assert b"%d" % number == subscriber.take().payload


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_retained_is_so_at_every_node(a: Node, b: Node, name: str, qos: int) -> None:
    """A subscriber would find what was true before, after its publisher knows that it has been replaced or deleted."""
    publisher = a.client(f"{name}-p")
    subscriber = b.client(f"{name}-s")

    def found() -> list[bytes]:
        ahead = subscriber.subscribe(name)
        subscriber.send(packets.PingReq())
        while isinstance(packet := subscriber.receive(), Publish):
            ahead.append(packet)
        subscriber.unsubscribe(name)
        return [message.payload for message in ahead if message.retain]

    for number in range(MANY):
        publisher.publish(name, b"%d" % number, qos, retain=True)
        assert [b"%d" % number] == found()
        publisher.publish(name, b"", qos, retain=True)
        assert [] == found()


def test_each_publisher_is_heard_in_its_order(a: Node, b: Node, c: Node, name: str) -> None:
    """A subscriber would take an older value for the newer one [MQTT-4.6.0-6]."""
    subscriber = b.client(f"{name}-s")
    subscriber.subscribe(f"{name}/+", qos=1)
    publishers = [at.client(f"{name}-{n}") for n, at in enumerate((a, a, b, c))]
    for number in range(300):
        for n, publisher in enumerate(publishers):
            publisher.send(Publish(f"{name}/{n}".encode(), b"%d" % number, 1, packet_id=number + 1))

    came: dict[bytes, list[bytes]] = {}
    for _ in range(300 * len(publishers)):
        message = subscriber.take()
        came.setdefault(message.topic, []).append(message.payload)

    assert len(publishers) == len(came)
    assert all(each == [b"%d" % number for number in range(300)] for each in came.values())


@pytest.mark.parametrize("durable", [False, True])
def test_a_group_with_members_at_all_nodes_gets_each_message_once(
    a: Node, b: Node, c: Node, name: str, durable: bool
) -> None:
    """Members at different nodes would be groups of their own, and work would be done twice."""
    properties = LASTING if durable else None
    members = [at.client(f"{name}-{n}", properties=properties) for n, at in enumerate((a, b, c, b))]
    for member in members:
        member.subscribe(f"$share/group/{name}", qos=1)

    for at in (a, b, c):
        wanted = [b"%d-%d" % (at.port, n) for n in range(MANY)]
        send(at.client(f"{name}-p{at.port}"), name, wanted)
        came = collect(members, MANY)
        assert sorted(wanted) == sorted(chain.from_iterable(came))
        assert all(came)  # each member has its part
    for member in members:
        member.ping()  # nothing came that nobody expects


def test_what_waits_for_a_group_is_had_at_any_node(a: Node, b: Node, c: Node, name: str) -> None:
    """What a group has not done yet would wait until a member comes to the node that it was at."""
    for at in (a, b):
        member = at.client(f"{name}-{at.port}", properties=LASTING)
        member.subscribe(f"$share/group/{name}", qos=1)
        member.disconnect()
    wanted = [b"%d" % n for n in range(MANY)]
    send(a.client(f"{name}-p"), name, wanted)

    member = c.client(f"{name}-{a.port}", clean_start=False, properties=LASTING)

    assert sorted(wanted) == sorted(member.take().payload for _ in wanted)
    member.ping()


def test_a_will_is_heard_once_at_every_node(a: Node, b: Node, c: Node, name: str) -> None:
    """A device would be dead for those alone that are at its node, or die more than once."""
    listeners = [at.client(f"{name}-{at.port}") for at in (a, b, c)]
    for listener in listeners:
        listener.subscribe(name, qos=1)
    device = a.client(f"{name}-device", will=Will(name.encode(), b"dead", 1))
    device.close()

    assert [b"dead"] * 3 == [listener.take().payload for listener in listeners]
    b.client(f"{name}-device", will=Will(name.encode(), b"dead", 1)).disconnect()
    a.client(f"{name}-p").publish(name, b"end", 1)
    assert [[]] * 3 == [listener.take_until(b"end") for listener in listeners]


def test_a_client_id_is_connected_once_in_the_cluster(a: Node, b: Node, c: Node, name: str) -> None:
    """Two devices of one id would be served side by side, each with half of the messages."""
    last = a.client(name)
    for number in range(30):
        following = (b, c, a)[number % 3].client(name)
        (said,) = last.expect_end()
        assert isinstance(said, Disconnect) and TAKEN_OVER == said.code
        last = following
    last.subscribe(name)
    c.client(f"{name}-p").publish(name, b"end")
    assert b"end" == last.take().payload


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_in_flight_move_with_their_session(a: Node, b: Node, name: str, qos: int) -> None:
    """A client would get them twice or never, when it has changed its node in the midst."""
    first = a.client(name, properties=LASTING)
    first.subscribe(name, qos=qos)
    publisher = a.client(f"{name}-p")
    for number in range(40):
        publisher.publish(name, b"%d" % number, qos)
    sent = [first.expect(Publish) for _ in range(40)]
    for message in sent[:10]:
        first.acknowledge(message)
    half = sent[10:20] if qos == 2 else []
    for message in half:
        first.send(Ack(packets.PUBREC, message.packet_id))
        first.expect_ack(packets.PUBREL, message.packet_id)
    first.ping()

    second = b.stranger()
    assert second.connect(name, clean_start=False, properties=LASTING).session_present
    publisher.publish(name, b"new", qos)

    assert [TAKEN_OVER] == [said.code for said in first.expect_end() if isinstance(said, Disconnect)]
    left = {(each.packet_id, each.payload) for each in sent[10 + len(half) :]}
    releases = {each.packet_id for each in half}
    new: list[Publish] = []
    while left or releases or not new:
        packet = second.receive()
        if isinstance(packet, Publish) and packet.payload == b"new":
            new.append(packet)
        elif isinstance(packet, Publish):
            assert packet.dup
            left.remove((packet.packet_id, packet.payload))
            second.send(Ack(packets.PUBACK if qos == 1 else packets.PUBREC, packet.packet_id))
            if qos == 2:
                releases.add(packet.packet_id)
        else:
            assert isinstance(packet, Ack) and packets.PUBREL == packet.kind
            releases.remove(packet.packet_id)
            second.send(Ack(packets.PUBCOMP, packet.packet_id))
    assert [False] == [each.dup for each in new]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_that_goes_from_node_to_node_misses_nothing(a: Node, b: Node, c: Node, name: str, qos: int) -> None:
    """What is published while a session is between two nodes would be lost, or come in another order."""
    client = a.client(name, properties=LASTING)
    client.subscribe(name, qos=qos)
    wanted = [b"%d" % number for number in range(1000)]
    publisher = b.client(f"{name}-p")
    sending = threading.Thread(target=send, args=(publisher, name, wanted, qos))
    sending.start()
    came: list[bytes] = []
    had: set[int] = set()  # packet ids that the client has had by QoS 2 and that are not released
    moves = 0
    while len(came) < len(wanted):
        if len(came) // 50 > moves:
            moves += 1
            client = (b, c, a)[moves % 3].client(name, clean_start=False, properties=LASTING)
        packet = client.receive()
        if isinstance(packet, Ack):
            had.discard(packet.packet_id)
            client.send(Ack(packets.PUBCOMP, packet.packet_id))
            continue
        assert isinstance(packet, Publish)
        if qos == 1 and packet.payload in came:
            assert packet.dup
        elif packet.packet_id not in had:
            came.append(packet.payload)
        if qos == 2:
            had.add(packet.packet_id)
        client.send(Ack(packets.PUBACK if qos == 1 else packets.PUBREC, packet.packet_id))
    sending.join()

    assert wanted == came
    assert 19 <= moves


def test_a_session_is_found_at_any_node(a: Node, b: Node, c: Node, name: str) -> None:
    """A client that was away would have to come back to the node that it has left."""
    client = a.client(name, properties=LASTING)
    client.subscribe(name, qos=1)
    client.disconnect()
    wanted = [b"%d" % number for number in range(MANY)]
    send(b.client(f"{name}-p"), name, wanted)

    client = c.stranger()
    assert client.connect(name, clean_start=False, properties=LASTING).session_present

    assert wanted == payloads([client.take() for _ in wanted])
    client.ping()
