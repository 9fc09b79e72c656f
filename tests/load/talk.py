# A load's clients without sockets, and the packets that a broker would send them.
from collections.abc import Sequence

from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, ConnAck, Connect, Packet, Properties, SubAck
from broker.mqtt.stream import PacketReader
from cli.load.client import STAMP, Client
from cli.load.histogram import Histogram
from cli.load.publisher import Publisher
from cli.load.subscriber import Deliveries, Subscriber

RUN = b"run!"
TOPIC = b"bench/7"
LARGEST = 1 << 28
NOW = 5_000_000_000  # us; beyond 2**32, as real ones are


class Seen:
    """What subscribers tell."""

    def __init__(self) -> None:
        self.by_publisher: dict[int, int] = {}
        self.duplicates = 0

    def delivered(self, publisher: int, count: int, now: int) -> None:
        self.by_publisher[publisher] = self.by_publisher.get(publisher, 0) + count

    def duplicated(self) -> None:
        self.duplicates += 1


def said(client: Client) -> list[Packet]:
    """What *client* wants to send, and has not yet."""
    data, client.out = b"".join(client.out), []
    return list(PacketReader(client.version, LARGEST).feed(data))


def said_bytes(client: Client) -> bytes:
    data, client.out = b"".join(client.out), []
    return data


def hear(client: Client, packets: Sequence[Packet], now: int = NOW) -> None:
    """Give *client* these packets in one piece."""
    client.take(b"".join(encode(packet, client.version) for packet in packets), now)


def publisher(
    *,
    version: int = V5,
    qos: int = 1,
    payload: int = 40,
    window: int = 10,
    readers: int = 1,
    copies: int = 1,
    properties: Properties | None = None,
) -> Publisher:
    """Number 7 of its load; up."""
    made = Publisher(Connect(version, "p"), 7, TOPIC, qos, bytes(payload - STAMP), RUN, window, readers, copies)
    made.open()
    hear(made, [ConnAck(False, 0, properties or {})])
    said(made)
    return made


def subscriber(seen: Deliveries, latencies: Histogram | None = None, *, version: int = V5, qos: int = 1) -> Subscriber:
    """Up."""
    made = Subscriber(Connect(version, "s"), TOPIC, qos, RUN, latencies or Histogram(), seen)
    made.open()
    hear(made, [ConnAck(False)])
    hear(made, [SubAck(1, [qos])])
    said(made)
    return made
