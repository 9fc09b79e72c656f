# What tests of several workers have their clients do.
from broker.mqtt.packets import Properties, Publish, SubAck, Subscribe, Wanted
from tests.inprocess import Client


def subscribed(client: Client, *filters: str | Wanted, properties: Properties | None = None) -> None:
    """*client* subscribes, at QoS 2 unless it says otherwise, and is granted it."""
    wanted = [one if isinstance(one, Wanted) else Wanted(one.encode(), 2) for one in filters]
    client.send(Subscribe(1, wanted, properties or {}))
    (answer, *rest) = client.receive()
    assert isinstance(answer, SubAck) and max(answer.codes) <= 2, answer
    client.inbox.extend(rest)


def payloads(client: Client) -> list[bytes]:
    return [packet.payload for packet in client.receive() if isinstance(packet, Publish)]
