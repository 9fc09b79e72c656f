# How overload reports travel: over the mesh to the workers of the node, and over Redis to the workers of all nodes.
#
# Each report goes both ways, so that a slow Redis does not carry the news that Redis is slow. A worker that receives a
# report twice recognises it by its number. Nothing is kept for a worker that is away: a report describes the present,
# and the next one follows within a second. Anybody may publish on the Redis channel, so reports have a seal there
# (seal.py), and overload/reports.py checks what they say.
from collections.abc import Callable
from typing import Final

from broker.cluster import wire
from broker.cluster.peers import Peers
from broker.cluster.seal import REPORT, Seal
from broker.log import Log
from broker.metrics.counters import Counters
from broker.reasons import StoreFailure
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import ByteStream, packed
from broker.store.redis.keys import Keys
from broker.store.redis.pipeline import Command, CommandPipeline
from broker.store.redis.pubsub import ChannelSubscription
from broker.worker_id import WorkerId

PATIENCE: Final = 1.0  # seconds: an older report does not count (overload/level.py, STALE)
NEVER: Final = float("inf")


class ReportReceiver:
    """Counts the reports that arrive over each way, and hands them on."""

    def __init__(self, receive: Callable[[bytes, float], object], counters: Counters) -> None:
        """*receive*: called with each report and the time (s) of its arrival."""
        self.receive = receive
        self._counters = counters

    def over_mesh(self, report: bytes, now: float) -> None:
        self._counters.reports_heard_mesh += 1
        self.receive(report, now)

    def over_redis(self, report: bytes, now: float) -> None:
        self._counters.reports_heard_redis += 1
        self.receive(report, now)


class RedisReports:
    """The channel of reports in Redis."""

    def __init__(
        self,
        commands: CommandPipeline,
        stream: ByteStream | None,
        address: RedisAddress,
        prefix: str,
        worker: WorkerId,
        receiver: ReportReceiver,
        counters: Counters,
        log: Log,
        seal: Seal,
        now: float,
    ) -> None:
        """Publish by *commands*, and subscribe over *stream* at *address*, which is the same server.

        Without *stream* nothing is received: no other worker uses this Redis, only whoever watches the node.
        """
        self._commands = commands
        self._counters = counters
        self._seal = seal
        self._receiver = receiver
        self._channel = Keys(prefix).overload(address.db)
        self.subscription: ChannelSubscription | None = None
        if stream is not None:
            name = f"weir-{worker.node}-{worker.shard}-reports"
            self.subscription = ChannelSubscription(stream, address, name, log, self._channel, self._heard)
            self.subscription.start(now)

    def tell(self, report: bytes, now: float) -> None:
        sealed = self._seal.seal(REPORT, self._channel, report)
        self._commands.submit(_Publish(packed("PUBLISH", self._channel, sealed), self._counters), now)

    def _heard(self, sealed: bytes, now: float) -> None:
        report = self._seal.open(REPORT, self._channel, sealed, now)
        if report is not None:
            self._receiver.over_redis(report, now)


class OverloadReports:
    def __init__(self, peers: Peers, redis: RedisReports | None, counters: Counters) -> None:
        """*redis*: None without Redis."""
        self.redis = redis
        self._peers = peers
        self._counters = counters

    def tell(self, report: bytes, now: float) -> None:
        """Send *report* to all other workers, within a turn of the reactor. ValueError: over LARGEST_REPORT bytes."""
        if len(report) > wire.LARGEST_REPORT:
            raise ValueError(f"a report of {len(report)} bytes: {wire.LARGEST_REPORT} are the most")
        frame, near = wire.frame(wire.REPORT, report), self._peers.of_own_node()
        for peer in near:  # the lanes to other nodes would bring no report that the channel does not
            peer.tell(frame)
        self._counters.reports_sent_mesh += len(near)
        if self.redis is not None:
            self.redis.tell(report, now)

    def tick(self, now: float) -> float:
        """Keep the subscription alive; return the time of the next thing to do."""
        subscription = None if self.redis is None else self.redis.subscription
        return NEVER if subscription is None else subscription.tick(now)

    def move(self, address: RedisAddress, now: float) -> None:
        """Redis is at *address* from now on."""
        if self.redis is not None and self.redis.subscription is not None:
            self.redis.subscription.move(address, now)


class _Publish(Command):
    def __init__(self, packed: bytes, counters: Counters) -> None:
        super().__init__(packed, PATIENCE)
        self._counters = counters

    def replied(self, reply: object, now: float) -> None:
        self._counters.reports_sent_redis += 1

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._counters.reports_lost_redis += 1
