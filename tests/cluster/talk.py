# What tests of several workers have their clients do, and look at.
from broker.cluster import wire
from broker.cluster.owner import Owner, read_owner
from broker.cluster.takeover_frames import NUMBER
from broker.cluster.takeovers import RegisteredTakeovers
from broker.mqtt.packets import PUBACK, Ack, Properties, Publish, SubAck, Subscribe, Wanted
from broker.net.dialling import RedisHandler
from broker.net.stream import Stream
from broker.store.redis.keys import Keys
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.redis_servers import RunningRedis


def subscribed(client: Client, *filters: str | Wanted, properties: Properties | None = None) -> None:
    """*client* subscribes, at QoS 2 unless it says otherwise, and is granted it."""
    wanted = [one if isinstance(one, Wanted) else Wanted(one.encode(), 2) for one in filters]
    client.send(Subscribe(1, wanted, properties or {}))
    (answer, *rest) = client.receive()
    assert isinstance(answer, SubAck) and max(answer.codes) <= 2, answer
    client.inbox.extend(rest)


def payloads(client: Client) -> list[bytes]:
    return [packet.payload for packet in client.receive() if isinstance(packet, Publish)]


def acknowledge(client: Client) -> None:
    """PUBACK for what came at QoS 1; the messages stay in the inbox."""
    packets = client.receive()
    for packet in packets:
        if isinstance(packet, Publish) and packet.packet_id:
            client.send(Ack(PUBACK, packet.packet_id))
            packet.packet_id = 0  # acknowledged
    client.inbox[:0] = packets


def lane(broker: Broker, other: Broker) -> Stream:
    """What comes from *other* to *broker*: messages, and what has to keep its place among them."""
    (peer,) = [peer for peer in broker.mesh.peers if peer.worker == other.identity]
    return peer.data


def sessions(node: Node, client_id: str = "me") -> list[int]:
    """The workers that have one of the client."""
    return [broker.number for broker in node if broker.session(client_id) is not None]


def send_unreadable_chunk(node: Node, giver: Broker, taker: Broker) -> None:
    """The next chunk of the session that is on its way from *giver* to *taker*, the only one, cannot be read."""
    takeovers = taker.takeovers
    assert isinstance(takeovers, RegisteredTakeovers)
    (number,) = takeovers._incoming._pending
    node.peer(giver, taker).write(wire.DATA_HEAD + wire.frame(wire.CHUNK, NUMBER.pack(number) + b"\xc1"))
    giver.turn()


def stored_at(redis: RunningRedis) -> list[str]:
    """The kinds and owners of all keys of durable sessions."""
    found = []
    for key in redis.client(decode_responses=True).keys("weir:{*}:*:*:me"):
        _, _, kind, incarnation, _ = str(key).split(":")
        found.append(f"{kind} {int(incarnation, 16)}")
    return sorted(found)


def named_as_owner(redis: RunningRedis, broker: Broker, later: int = 0) -> Owner:
    """Redis names *broker* as the owner of the session, by a claim whose answer is lost: *later* than the last one."""
    key = Keys("weir").owner(b"me")
    text = redis.client().get(key)
    assert isinstance(text, bytes)
    former = read_owner(text)
    assert former is not None
    owner = Owner(former.epoch + later, broker.identity, former.user)
    redis.client().set(key, owner.text())
    return owner


def replies_of(broker: Broker) -> Stream:
    """What comes from Redis to the part of *broker* that stores sessions."""
    store = broker.worker.links.durable_store
    assert store is not None
    for stream in broker.reactor.table:
        handler = None if stream is None else stream.handler
        if stream is not None and isinstance(handler, RedisHandler) and handler._connection is store._commands:
            return stream
    raise AssertionError("it has no connection")
