# A worker's connection to the registry of sessions in Redis, and the time at which each part has something to do.
import time
import uuid
from collections.abc import Callable

from broker.cluster.registry import Registry
from broker.config.schema import Overload
from broker.log import Log
from broker.net.dialling import Dialler
from broker.net.reactor import Reactor
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import READY
from broker.store.redis.keys import Keys
from broker.store.redis.memory import RedisMemory
from broker.store.redis.pipeline import CommandPipeline
from broker.worker_id import WorkerId


class RegistryClient:
    def __init__(
        self,
        reactor: Reactor,
        address: RedisAddress,
        worker: WorkerId,
        prefix: str,
        alone: bool,
        clock: Callable[[], float],
        log: Log,
        failed: Callable[[Exception], None],
        overload: Overload,
        wall: Callable[[], float] = time.time,
        durable: bool = False,
    ) -> None:
        """*prefix*: of all keys in Redis. *alone*: no other worker registers sessions under this prefix. *durable*:
        sessions are stored.

        *failed* is called with exceptions of our own code that handles a reply. *wall*: Unix time in seconds.
        """
        self.keys = Keys(prefix)
        self.commands = CommandPipeline(Dialler(reactor, failed), address, f"weir-{worker.node}-{worker.shard}", log)
        self.memory = RedisMemory(self.commands)
        self.registry = Registry(
            self.commands,
            self.keys,
            worker=worker,
            wall=wall,
            new_generation=_new_generation,
            overload=overload,
            alone=alone,
            durable=durable,
        )
        self.commands.start(clock())

    def tick(self, now: float) -> float:
        """Do what is due; the time of the next thing that will be. To be called after whatever sends commands."""
        return min(self.registry.tick(now), self.memory.tick(now), self.commands.tick(now))

    def settled(self) -> bool:
        """Whether Redis has been told everything, or cannot be told: no will of ours is published a second time."""
        owned = self.registry.owned.statistics()
        return self.commands.state != READY or not (self.commands.statistics.waiting or owned.ended)

    def move(self, address: RedisAddress, now: float) -> None:
        """Redis is at *address* from now on."""
        self.commands.move(address, now)


def _new_generation() -> str:
    return uuid.uuid4().hex
