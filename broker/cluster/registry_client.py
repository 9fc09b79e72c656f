# A worker's part in the registry of sessions: its line to Redis, what is said on it, and when.
#
# The hub calls `tick()` in each of its turns. The rest is called from there, by the reactor when Redis answers, or by
# who knows the other workers: `store.give_up()` when one of them has claimed what is ours, `publish_wills_of()` when
# one has died.
import time
import uuid
from collections.abc import Callable, Iterable

from broker.cluster.orphaned_wills import OrphanedWills
from broker.cluster.owned_sessions import OwnershipListener
from broker.cluster.registry import Registry
from broker.cluster.session_claims import SessionClaims
from broker.cluster.takeover import TakeoverRequests
from broker.config.schema import Overload
from broker.log import Log
from broker.mqtt.packets import Will
from broker.net.dialling import Dialler
from broker.net.reactor import Reactor
from broker.session.session import Session
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import READY
from broker.store.redis.keys import Keys
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
        neighbours: TakeoverRequests,
        clock: Callable[[], float],
        log: Log,
        failed: Callable[[Exception], None],
        overload: Overload,
        evict: Callable[[Session], None],
        publish_will: Callable[[str, str | None, Will, float], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """*prefix*: of all keys in Redis. *alone*: no other worker registers sessions under this prefix.

        *evict* ends a session of this worker that another worker has claimed, and its connection. *publish_will*
        publishes the will of a client whose worker has died: client id, user name, will, time.
        *failed* is called with exceptions of our own code that handles a reply. *wall*: Unix time in seconds.
        """
        self._publish_will = publish_will
        self.commands = CommandPipeline(Dialler(reactor, failed), address, f"weir-{worker.node}-{worker.shard}", log)
        self._keys = Keys(prefix)
        self._worker = worker
        self._alone = alone
        self._wall = wall
        self._overload = overload
        self.store = SessionClaims(self._make_registry, neighbours, clock, evict)
        self.registry = self.store.registry
        self.orphaned_wills = OrphanedWills(self.commands, self._keys, self.registry.script, self)
        self.commands.start(clock())

    def tick(self, now: float) -> float:
        """Do what is due; when the next thing will be."""
        due = min(self.registry.tick(now), self.orphaned_wills.tick(now))
        return min(due, self.commands.tick(now))  # last: it knows the deadlines of what the others have asked

    def settled(self) -> bool:
        """Redis knows all it has to, or cannot be told: nobody publishes again what we have published."""
        told = self.registry.owned.statistics()
        return self.commands.state != READY or not (self.commands.statistics.waiting or told.ended)

    def publish_wills_of(self, incarnation: int, now: float, done: Iterable[tuple[str, int]] = ()) -> None:
        """That worker is dead: publish what its clients left, unless they are back. One worker has to do it.

        *done*: what it said by `store.untold`.
        """
        self.orphaned_wills.publish_wills_of(incarnation, now, done)

    def move(self, address: RedisAddress, now: float) -> None:
        """Redis is somewhere else from now on."""
        self.commands.move(address, now)

    def publish_will(self, client_id: str, user: str | None, will: Will, now: float) -> None:
        self._publish_will(client_id, user, will, now)

    def _make_registry(self, listener: OwnershipListener) -> Registry:
        return Registry(
            self.commands,
            self._keys,
            listener,
            worker=self._worker,
            wall=self._wall,
            new_generation=_new_generation,
            overload=self._overload,
            alone=self._alone,
        )


def _new_generation() -> str:
    return uuid.uuid4().hex
