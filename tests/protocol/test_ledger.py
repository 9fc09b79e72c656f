# The ledger of memory: clients that are within their own limits stay within the limits of the worker together.
import random
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Delivery, Limits, Retained, Routes
from broker.mqtt.packets import V5, Properties, Publish, Subscribe, Wanted, Will
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from tests.inprocess import Broker, Client

KIB = 1024
LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 1000}
CLIENTS = 20
LARGEST = 16 * KIB  # bytes of a payload
SMALL = Config(
    limits=Limits(
        packet_bytes=20 * KIB,
        queue_budget=200 * KIB,
        subscription_budget=40 * KIB,
        will_budget=50 * KIB,
        connections_per_address=0,
    ),
    delivery=Delivery(high_watermark=32 * KIB, low_watermark=16 * KIB, outbound_budget=100 * KIB),
    retained=Retained(bytes=80 * KIB),
    routes=Routes(bytes=64 * KIB),
)
# By which an account may exceed its limit, as the message that exceeds it is taken.
SLACK = {"messages": 2 * LARGEST, "outbound": 2 * LARGEST}


class Fleet:
    """Clients that do what they may, and a worker that is looked at after each step."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.clients: list[Client | None] = [None] * CLIENTS
        self.number = 0

    def client(self, at: int) -> Client:
        client = self.clients[at]
        if client is None or client.closed:
            will = Will(b"will/%d" % at, bytes(8 * KIB), 1) if at % 4 == 0 else None
            client = self.broker.connect(f"client {at}", V5, clean_start=False, properties=LASTING, will=will)
            self.clients[at] = client
        return client

    def subscribe(self, at: int, size: int) -> None:
        self.number += 1
        names = [b"f/%d/%d/+" % (self.number, each) + b"/x" * (size % 20) for each in range(1 + size // 500)]
        self.client(at).send(Subscribe(1, [Wanted(name, 1) for name in [b"all", b"own/%d" % at, *names]]))

    def publish(self, at: int, size: int) -> None:
        topic = b"own/%d" % (size % CLIENTS) if size % 4 else b"all"
        self.client(at).send(Publish(topic, bytes(size), 1, packet_id=1))

    def retain(self, at: int, size: int) -> None:
        self.number += 1
        self.client(at).send(Publish(b"kept/%d" % self.number, bytes(size), 1, True, packet_id=1))

    def delete(self, at: int, size: int) -> None:
        self.client(at).send(Publish(b"kept/%d" % (size % 20), b"", 1, True, packet_id=1))

    def new_topics(self, at: int, size: int) -> None:
        for _ in range(size // 100):
            self.number += 1
            self.client(at).send(Publish(b"topic/%d" % self.number, b""))

    def stop_reading(self, at: int, size: int) -> None:
        self.client(at).reading = False

    def leave(self, at: int, size: int) -> None:
        client = self.clients[at]
        if client is not None:
            client.socket.close()
            client.closed = True

    def time(self, at: int, size: int) -> None:
        self.broker.shed()
        self.broker.advance(0.5)


# How often each step is taken.
STEPS: dict[Callable[[Fleet, int, int], None], int] = {
    Fleet.subscribe: 3,
    Fleet.publish: 6,
    Fleet.retain: 3,
    Fleet.delete: 1,
    Fleet.new_topics: 2,
    Fleet.stop_reading: 1,
    Fleet.leave: 1,
    Fleet.time: 1,
}


@pytest.mark.parametrize("seed", range(5))
def test_clients_within_their_limits_stay_within_those_of_the_worker(brokers: Callable[..., Broker], seed: int) -> None:
    """A worker would be killed for its memory although no client did more than it may."""
    fleet, chance = Fleet(brokers(SMALL)), random.Random(seed)
    fullest: dict[str, float] = {}
    for _ in range(500):
        step = chance.choices(list(STEPS), list(STEPS.values()))[0]
        step(fleet, chance.randrange(CLIENTS), chance.randrange(LARGEST))
        fleet.broker.settle()
        for name, (used, limit) in fleet.broker.ledger().items():
            assert 0 <= used <= limit + SLACK.get(name, 0), (name, used, limit, step)
            fullest[name] = max(fullest.get(name, 0.0), used / limit)

    assert all(fullest[name] > 0.6 for name in ("messages", "wills", "filters", "retained", "routes")), fullest
