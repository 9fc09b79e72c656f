# A node with one worker whose sessions are stored, in the test process.
from collections.abc import Callable
from typing import Final

from broker.config.schema import Config
from broker.mqtt.packets import PUBACK, PUBREC, V5, V311, Ack, Properties, Publish, SubAck, Subscribe, Wanted, Will
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from broker.worker_id import WorkerId
from tests.innode import stored
from tests.inprocess import Broker, Client, Clock
from tests.redis_servers import RunningRedis

StartRedis = Callable[..., RunningRedis]
WALL: Final = 1_800_000_000.0
EXPIRY: Final = 3600  # seconds


class Durable:
    """A node with one worker, which ends and is replaced when the test says so."""

    def __init__(self, redis: RunningRedis, config: Config | None = None) -> None:
        self.redis = redis
        self.config = stored(config)
        self._incarnations = 0
        self.worker = self._start()

    def _start(self, now: float = 1000.0) -> Broker:
        self._incarnations += 1
        clock = Clock()
        clock.now = now
        broker = Broker(
            self.config,
            clock=clock,
            redis=self.redis.address,
            identity=WorkerId("weir", 0, self._incarnations),
            alone=True,
            wall=lambda: WALL + clock.now,
        )
        broker.answered = True
        self.prepare(broker)
        durable = broker.worker.protocol.durable
        assert durable is not None
        store = broker.worker.protocol.store
        ready: list[int] = []
        durable.when_ready(lambda: ready.append(sum(len(each.subscriptions) for each in store.sessions())), now)
        while not ready:
            broker.settle()
        self.subscriptions = ready[0]  # that were registered when clients might have been served
        return broker

    def prepare(self, broker: Broker) -> None:
        """*broker* is the next worker, and has not begun to read what is stored."""

    def kill(self, away: float = 0.0) -> None:
        """The worker ends as if it were killed, and another one begins *away* seconds later."""
        now = self.worker.clock.now
        self.worker.close()
        self.worker = self._start(now + away)

    def connect(
        self,
        client_id: str,
        version: int = V311,
        expiry: int = EXPIRY,
        clean: bool = False,
        will: Will | None = None,
    ) -> Client:
        properties: Properties | None = {SESSION_EXPIRY_INTERVAL: expiry} if version == V5 else None
        client = self.worker.connect(client_id, version, clean_start=clean, will=will, properties=properties)
        self.worker.settle()
        return client

    def subscriber(self, client_id: str, filter: bytes, qos: int = 1, version: int = V311) -> Client:
        client = self.connect(client_id, version)
        client.send(Subscribe(1, [Wanted(filter, qos)]))
        assert [SubAck(1, [qos])] == client.receive()
        return client

    def publish(self, topic: bytes, *payloads: bytes, qos: int = 1) -> None:
        """Publish, and see the acknowledgements."""
        publisher = self.worker.connect("publisher")
        for number, payload in enumerate(payloads):
            publisher.send(Publish(topic, payload, qos, packet_id=number + 1))
        self.worker.settle()
        self.worker.advance(0.3)
        wanted = PUBACK if qos == 1 else PUBREC
        assert [wanted] * len(payloads) == [each.kind for each in publisher.receive() if isinstance(each, Ack)]
        publisher.socket.close()
        self.worker.settle()
