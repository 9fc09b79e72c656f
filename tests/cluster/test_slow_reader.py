# A real slow reader: a durable subscriber takes 1 KiB a second from a TCP socket with a small buffer, while 20 times as
# much is published for it. Only the clock of the worker is the test's, so two minutes of that take a moment.
import json
import select
import socket
from collections.abc import Callable
from itertools import pairwise
from typing import Final

import pytest

from broker.config.schema import Config, Delivery, Limits
from broker.config.values import KIB
from broker.mqtt.packets import (
    PUBACK,
    V5,
    Ack,
    ConnAck,
    Connect,
    Packet,
    Properties,
    Publish,
    SubAck,
    Subscribe,
    Wanted,
)
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from broker.reasons import DropReason
from broker.session.queue import INFLIGHT, MESSAGE
from broker.store.durable.parts import READY_BYTES
from tests.cluster.durable_node import Durable
from tests.inprocess import Client

pytestmark = pytest.mark.system  # a real Redis

QUEUE: Final = 300  # messages
HIGH: Final = 32 * KIB
KERNEL: Final = 64 * KIB  # bytes not sent yet with which a socket counts as full
WINDOW: Final = 4 * KIB  # the receive buffer of the reader
SLOW: Final = 70  # seconds
STALLED: Final = 20.0  # seconds without a byte after which it is closed: less than until the kernel takes more
READ: Final = 1 * KIB  # bytes that it takes in each of them
BATCH: Final = 20  # messages that are published in each of them
PADDING: Final = b"x" * 1000
LARGEST: Final = len(PADDING) + 100  # bytes of a message on the wire, and beside MESSAGE in the ledger
# Messages in the worker: those that the client has not acknowledged, those that are ready, and those that are stored.
MOST: Final = (HIGH + KERNEL + 2 * WINDOW + READY_BYTES) // len(PADDING) + 2 * BATCH
MOST_BYTES: Final = MOST * (LARGEST + MESSAGE + INFLIGHT)
CONFIG: Final = Config(
    limits=Limits(queue=QUEUE),
    delivery=Delivery(
        high_watermark=HIGH, low_watermark=HIGH // 2, notsent_lowat=KERNEL, slow_consumer_timeout=STALLED
    ),
)
GAP: Final = b"$SYS/broker/clients/slow/gap"
KEPT: Final[Properties] = {SESSION_EXPIRY_INTERVAL: 3600}
PATIENCE: Final = 10.0  # seconds for bytes that the kernel has, and will deliver


class Reader:
    """The client: it takes what the test says, and acknowledges it."""

    def __init__(self, node: Durable) -> None:
        self.numbers: list[int] = []  # of the messages
        self.told: dict[str, int] = {}  # messages that it lost, by the reasons in its notices
        self._node = node
        self._client = node.worker.dial(node.worker.listen(), V5, WINDOW)
        self._client.reading = False
        self._client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # no acknowledgement waits
        wanted = [Wanted(b"t", 1), Wanted(GAP, 1)]
        self._client.send(Connect(V5, "slow", False, 0, properties=KEPT), Subscribe(1, wanted))
        answers: list[Packet] = []
        while len(answers) < 2:
            node.worker.settle()
            answers += self._client.take(READ)
        assert [ConnAck, SubAck] == [type(each) for each in answers]

    def take(self, most: int) -> None:
        """Read *most* bytes at most, once there are some."""
        assert select.select([self._client.socket], [], [], PATIENCE)[0], "nothing comes"
        for packet in self._client.take(most):
            assert isinstance(packet, Publish)
            if packet.topic == GAP:
                for reason, count in json.loads(packet.payload)["reasons"].items():
                    self.told[reason] = self.told.get(reason, 0) + count
            else:
                self.numbers.append(int(packet.payload.split()[0]))
            if packet.qos:
                self._client.send(Ack(PUBACK, packet.packet_id))


class Publisher:
    def __init__(self, node: Durable, name: str) -> None:
        self._client: Client = node.worker.connect(name)

    def publish(self, first: int, count: int) -> None:
        """Publish *count* messages with the numbers from *first* on, and see them acknowledged."""
        sent = [Publish(b"t", b"%d " % number + PADDING, 1, packet_id=number) for number in range(first, first + count)]
        self._client.send(*sent)
        self._client.broker.advance(0.3)  # the hold of the store
        assert [Ack(PUBACK, each.packet_id) for each in sent] == self._client.receive()


def test_a_slow_reader_costs_its_queue_in_redis_and_little_in_the_worker(
    nodes_of: Callable[[Config], Durable],
) -> None:
    """It would fill the worker, be closed, lose messages without a word, or get the others in disorder."""
    node = nodes_of(CONFIG)
    worker, redis = node.worker, node.redis.client()
    reader, publishers = Reader(node), [Publisher(node, name) for name in ("one", "two")]
    session = worker.session("slow")
    assert session is not None
    published, packs = 0, [0]
    for second in range(SLOW):
        publishers[second % 2].publish(published + 1, BATCH)
        published += BATCH
        reader.take(READ)
        worker.look_at_gaps()
        worker.advance(0.7)
        ledger = worker.ledger()
        assert ledger["outbound"][0] <= HIGH + LARGEST
        assert ledger["messages"][0] <= MOST_BYTES
        assert all(used <= most for used, most in ledger.values())
        assert session.waiting() <= QUEUE
        packs += [redis.llen(key) for key in redis.keys("*:queue:*")]
    dropped = worker.counters.dropped_by_reason[DropReason.QUEUE_FULL.label]
    assert len(reader.numbers) <= SLOW * READ // len(PADDING)
    assert dropped > QUEUE
    assert all(after > before for before, after in pairwise(packs[: QUEUE // BATCH]))
    assert max(packs) * BATCH > QUEUE

    while len(reader.numbers) + dropped < published:
        reader.take(1 << 20)
        worker.settle()
    worker.advance(1)

    assert {DropReason.QUEUE_FULL.label: dropped} == reader.told
    assert sorted(set(reader.numbers)) == reader.numbers
    assert list(range(published - QUEUE + 1, published + 1)) == reader.numbers[-QUEUE:]
    assert [] == redis.keys("*:queue:*")
