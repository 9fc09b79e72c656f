# How overload reports travel: over the mesh to the other workers of the node, and over Redis to those of every node.
#
# Each report goes both ways, so that a slow Redis does not carry the news that Redis is slow; who hears one twice knows
# it by its number. Nothing is kept for who is away or not ready: a report says how things are now, and the next one is
# never far. What comes over Redis may be anybody's, so nothing is believed of it here: it is handed on as it came.
from collections.abc import Callable
from typing import Final

from broker.cluster.mesh import Mesh
from broker.cluster.wire import LARGEST_REPORT
from broker.log import Log
from broker.metrics.counters import Counters
from broker.reasons import StoreFailure
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import ByteStream, packed
from broker.store.redis.keys import Keys
from broker.store.redis.pipeline import Command, CommandPipeline
from broker.store.redis.pubsub import Subscription
from broker.worker_id import WorkerId

PATIENCE: Final = 1.0  # seconds; an older report does not count for anybody (DESIGN section 7, rule 3)
NEVER: Final = float("inf")


class OverloadReports:
    def __init__(self, mesh: Mesh, counters: Counters) -> None:
        """Over *mesh* alone, until `over_redis()` is called."""
        self.heard: Callable[[bytes, float], None] = _unheard  # called with a report and the time (s) of its arrival
        self._mesh = mesh
        self._counters = counters
        self._channel = b""
        self._commands: CommandPipeline | None = None
        self._subscription: Subscription | None = None
        mesh.on_report = self._heard_over_mesh

    def over_redis(
        self,
        commands: CommandPipeline,
        wire: ByteStream,
        address: RedisAddress,
        worker: WorkerId,
        prefix: str,
        log: Log,
        now: float,
    ) -> None:
        """From now on over Redis as well: told by *commands*, heard over *wire* from the same server at *address*."""
        self._commands = commands
        self._channel = Keys(prefix).overload(address.db)
        name = f"weir-{worker.node}-{worker.shard}-reports"
        self._subscription = Subscription(wire, address, name, log, self._channel, self._heard_over_redis)
        self._subscription.start(now)

    def tell(self, report: bytes, now: float) -> None:
        """Have all others hear *report*, within a turn of the reactor. ValueError: over LARGEST_REPORT bytes."""
        if len(report) > LARGEST_REPORT:
            raise ValueError(f"a report of {len(report)} bytes: {LARGEST_REPORT} are the most")
        self._counters.reports_sent_mesh += self._mesh.report(report)
        if self._commands is not None:
            self._commands.ask(_Publish(packed("PUBLISH", self._channel, report), self._counters), now)

    def tick(self, now: float) -> float:
        """Keep hearing; when there is something to do next. Nothing is ever due without Redis."""
        return NEVER if self._subscription is None else self._subscription.tick(now)

    def move(self, address: RedisAddress, now: float) -> None:
        """Redis is somewhere else from now on."""
        if self._subscription is not None:
            self._subscription.move(address, now)

    def _heard_over_mesh(self, report: bytes, now: float) -> None:
        self._counters.reports_heard_mesh += 1
        self.heard(report, now)

    def _heard_over_redis(self, report: bytes, now: float) -> None:
        self._counters.reports_heard_redis += 1
        self.heard(report, now)


class _Publish(Command):
    def __init__(self, packed: bytes, counters: Counters) -> None:
        super().__init__(packed, PATIENCE)
        self._counters = counters

    def replied(self, reply: object, now: float) -> None:
        self._counters.reports_sent_redis += 1

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._counters.reports_lost_redis += 1


def _unheard(report: bytes, now: float) -> None:
    pass
