# The log of the inbound backbone, as the worker appends to it what its clients publish.
#
# A publish that is accepted is offered to the partition of its publisher: so the publishes of one client are in one
# order, whatever their topics are. At the end of a slice, what was offered is appended, one pack for each partition. A
# publish of QoS 1 or 2 is answered when the log has its pack; one of QoS 0 waits for nothing.
#
# What waits here is bounded by the gate of the log (store/logs/log_gate.py), which each publish passes. That gate stops
# waiting for a pack that others have overtaken, or one partition without a leader would stop all publishers. From then
# on nothing is accepted for that partition: its publishers wait at a gate of their own, and those of other partitions
# go on. They wait there as well while the topic is not known to be as it has to be.
#
# A pack that the log refuses for good is never answered: its publishers are told so by the end of their connections.
# As a large publish is alone in its pack, nobody else is.
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from broker.config.inbound import Inbound
from broker.delivery.completion import Completion
from broker.log import Log
from broker.metrics.counters import Counters
from broker.overload.gate import Gate
from broker.reasons import DropReason
from broker.session.message import Message
from broker.session.run import Run
from broker.store.inbound.pack import PackBuilder
from broker.store.logs.pack_appender import PackAppender
from broker.store.logs.port import LogLink
from broker.store.logs.topics import LogError, TopicProperties

LARGE: Final = 64 * 1024  # bytes of a publish that has a pack of its own
UNKNOWN: Final = -1  # an offset


def inbound_properties(config: Inbound) -> TopicProperties:
    """Those of the topic, if it has to be made."""
    return TopicProperties(
        partitions=config.partitions,
        retention=int(config.retention),
        retention_bytes=config.retention_bytes,
        replication=config.replication or -1,
    )


class Partition:
    """One partition, and what was offered to it and is not appended yet."""

    def __init__(self, number: int) -> None:
        self.number: Final = number
        self.builder = PackBuilder()
        self.completions: list[Completion] = []  # of the publishes of QoS 1 and 2
        self.due = False  # something was offered
        self.late = 0  # packs that the gate of the log does not wait for any more
        self.end = UNKNOWN  # the offset behind the last record that this worker knows of


class AppendedPack(PackAppender):
    """A pack that is under way, and the publishes that wait for it. *count*: with those of QoS 0."""

    def __init__(self, log: "InboundLog", partition: Partition, completions: list[Completion], count: int) -> None:
        super().__init__(completions)
        self._log = log
        self._partition = partition
        self._count = count
        self._late = False

    def stored(self, offset: int, now: float) -> None:
        partition = self._partition
        if offset >= partition.end:
            partition.end = offset + 1
        self._recovered()
        self._log.appended += self._count
        self._log.unstored -= 1
        self._settle(now)

    def refused(self, error: LogError, now: float) -> None:
        self._recovered()
        self._log.unstored -= 1
        self._log.refused(self._count, self._completions, error, now)

    def late(self, now: float) -> None:
        self._late = True
        self._partition.late += 1
        super().late(now)

    def _recovered(self) -> None:
        if self._late:
            self._late = False
            self._partition.late -= 1


class InboundLog:
    def __init__(
        self,
        link: LogLink,
        topic: str,
        partitions: int,
        gate: Gate,
        waiting: Gate,
        opened: Callable[[Gate, float], None],
        abandon: Callable[[Completion, float], None],
        counters: Counters,
        log: Log,
        wall: Callable[[], float],
    ) -> None:
        """*gate*: that of the log, which all publishes pass. *waiting*: measures nothing; there publishers wait for the
        topic, and for partitions that take nothing. *opened* is called when it is open.

        *abandon* is called with publishes that the log refuses, which must not be answered. *wall*: Unix time.
        """
        self.topic: Final = topic
        self.gate: Final = gate
        self.gates: Final = [gate]
        self.partitions: Final = [Partition(number) for number in range(partitions)]
        self.appended = 0  # publishes that the log has; a run of QoS 0 counts each of its packets
        self.unstored = 0  # packs that are under way
        self.open = False
        self._link = link
        self._waiting = waiting
        self._opened = opened
        self._abandon = abandon
        self._counters = counters
        self._log = log
        self._wall = wall
        self._due: list[Partition] = []
        waiting.block()

    def begin(self, ends: Sequence[int], now: float) -> None:
        """The topic is there, and goes to these offsets: publishes may be accepted from now on."""
        for partition, end in zip(self.partitions, ends, strict=True):
            partition.end = end
        self.open = True
        self._waiting.unblock()
        self._opened(self._waiting, now)

    def partition_of(self, client_id: str) -> Partition:
        """The partition of all that the client publishes, at whatever worker."""
        name = client_id.encode(errors="surrogateescape")
        return self.partitions[zlib.crc32(name) % len(self.partitions)]

    def closed_gate(self, partition: Partition) -> Gate | None:
        """The gate at which publishes for *partition* have to wait; None: they need not.

        It may be open, as others wait there for nothing but the topic: then who waits is judged again every few
        milliseconds.
        """
        return None if self.open and not partition.late else self._waiting

    # What is accepted.

    def offer(self, partition: Partition, message: Message, publisher: str, retained_at: int, now: float) -> None:
        """Have *message* appended. It is held until the log has it, unless it is of QoS 0.

        *publisher*, *retained_at*: see `AcceptedPublish`.
        """
        self._make_room(partition, message.size, now)
        if message.qos:
            partition.completions.append(message.hold())
        partition.builder.add(message, publisher, retained_at)

    def offer_run(self, partition: Partition, run: Run, now: float) -> None:
        """Have *run* appended; its packets are of QoS 0."""
        self._make_room(partition, run.longest * run.count, now)
        partition.builder.add_run(run, now, self._wall())

    def _make_room(self, partition: Partition, size: int, now: float) -> None:
        builder = partition.builder
        alone = builder.count > 0 and (size > LARGE or (builder.count == 1 and builder.size > LARGE))
        if alone or not builder.has_room(size):
            self._append(partition, now)
        if not partition.due:
            partition.due = True
            self._due.append(partition)

    def has_work(self) -> bool:
        """Whether `flush()` has something to append."""
        return len(self._due) > 0

    def flush(self, now: float) -> None:
        """Append what was offered. To be called between two publishes, before the gate of the log is marked."""
        due, self._due = self._due, []
        for partition in due:
            partition.due = False
            if partition.builder.count:
                self._append(partition, now)

    def _append(self, partition: Partition, now: float) -> None:
        completions, partition.completions = partition.completions, []
        count = partition.builder.publishes
        body = partition.builder.take(now, self._wall())
        self.unstored += 1
        self._link.append(self.topic, partition.number, body, AppendedPack(self, partition, completions, count), now)

    def refused(self, count: int, completions: Sequence[Completion], error: LogError, now: float) -> None:
        """For packs: the log will never have *count* publishes, of which some wait for that."""
        self._counters.dropped(DropReason.BACKBONE_REFUSED, count)
        self._log.warning("backbone_refused_publishes", topic=self.topic, count=count, why=str(error))
        for completion in completions:
            self._abandon(completion, now)
