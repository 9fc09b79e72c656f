# What tests of several workers have their clients do, and look at.
from broker.mqtt.packets import PUBACK, Ack, Properties, Publish, SubAck, Subscribe, Wanted
from broker.net.stream import Stream
from tests.innode import Node
from tests.inprocess import Broker, Client


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
