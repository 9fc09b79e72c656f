# A worker with one durable session, a client of it, and a model of Redis; time passes when the test says so.
from collections.abc import Callable
from typing import Final

from broker.mqtt.packets import V311
from broker.session.limits import SessionLimits
from broker.session.message import Message
from broker.session.queue import MessageBudget
from broker.session.session import RELEASED, Session
from broker.store.durable.queue import DurableQueue
from broker.store.durable.store import DurableStore
from broker.store.redis.address import RedisAddress
from broker.store.redis.pipeline import CommandPipeline
from tests.session.receiver import PLENTY, Receiver, message
from tests.store.durable.model import ModelRedis
from tests.store.loop import Lines

KEY: Final = b"queue"
FENCE: Final = b"fence"
HOLD: Final = 0.002  # seconds
WALL: Final = 1_800_000_000.0
EXPIRY: Final = 3600
LONG: Final = 100_000  # turns: more than anything takes


class DurableWorker:
    """Begins with what *redis* has stored; *number* makes its commit number its own."""

    def __init__(self, redis: ModelRedis, number: int = 1, now: float = 1000.0, queue: int = PLENTY) -> None:
        """*queue*: how many messages may wait."""
        self.redis = redis
        self.now = now
        self.budget = MessageBudget(PLENTY)
        self.fenced: list[bytes] = []
        self.damaged = ""
        self.client = Receiver()
        self._queue: DurableQueue | None = None
        self._most = queue
        self.commands = CommandPipeline(redis, RedisAddress(path="/model"), "test", Lines())
        self.store = DurableStore(
            self.commands,
            fence=FENCE,
            commit_number=b"commit:%d" % number,
            hold=HOLD,
            wall=lambda: WALL + self.now,
            fenced=lambda clients, now: self.fenced.extend(clients),
        )
        self.commands.start(now)
        self.store.load(KEY, PLENTY, self.budget, self._loaded)
        self.until(lambda: self._queue is not None)

    def _loaded(self, queue: DurableQueue | None, why: str, now: float) -> None:
        self.damaged = why
        self._queue = queue or self.store.begin(KEY, PLENTY, self.budget)
        self.client = Receiver(expiry=EXPIRY)
        limits = SessionLimits(inflight=65535, pending=9, queue=self._most, queue_bytes=PLENTY, budget=self.budget)
        self.client.session = Session("client", limits, self.client.counters, self._queue)
        self.client.session.expiry = EXPIRY
        self.client.session.restore(dict.fromkeys(self.queue.released_ids(), RELEASED))

    @property
    def queue(self) -> DurableQueue:
        assert self._queue is not None
        return self._queue

    @property
    def session(self) -> Session:
        return self.client.session

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.commands.tick(self.now)
        self.store.tick(self.now)

    def turn(self, seconds: float = HOLD) -> None:
        """Redis executes and answers everything, and some time passes."""
        self.redis.execute()
        self.redis.answer(self.now)
        self.tick(seconds)

    def until(self, done: Callable[[], bool]) -> None:
        """Take turns until *done*."""
        for _ in range(LONG):
            if done():
                return
            self.turn()
        raise AssertionError("it does not come to rest")

    def settle(self) -> None:
        """Take turns until everything is stored, and nothing is under way."""
        self.until(lambda: self.store.commit.idle() and not self.redis.busy())

    def connect(self, window: int = 65535) -> None:
        self.client.connect(V311, window=window)

    def offer(self, payload: bytes, qos: int = 1) -> Message:
        """Have the session receive a message of a publish."""
        offered = message(payload, qos)
        self.session.offer(offered, self.now)
        return offered


def answered(published: Message) -> bool:
    """Whether the publisher has its answer."""
    completion = published.completion
    return completion is None or completion.pending == 0
