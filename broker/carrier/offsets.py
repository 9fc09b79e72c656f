# The positions up to which groups of readers have read partitions, in Redis, whichever log has the records.
#
# Kafka keeps offsets, too, but forgets those of a group that was idle for a week, and an offset alone does not know
# which packs come twice (records.py).
from collections.abc import Callable
from typing import Final

from broker.carrier.redis_keys import LogKeys
from broker.reasons import StoreFailure
from broker.store.logs.records import Position
from broker.store.logs.topics import Partition
from broker.store.redis.connection import packed
from broker.store.redis.pipeline import CallbackCommand, CommandPipeline

TIMEOUT: Final = 5.0  # seconds

Then = Callable[[StoreFailure | None], None]


class Offsets:
    def __init__(self, commands: CommandPipeline, prefix: str, clock: Callable[[], float]) -> None:
        self._commands = commands
        self._keys = LogKeys(prefix)
        self._clock = clock

    def commit(self, group: str, partition: Partition, position: Position, then: Then) -> None:
        """Have *group* go on at *position*, as it is now; *then* is told None when that is stored."""
        words = packed("HSET", self._keys.offsets(group), _field(partition), position.encode())
        self._submit(words, lambda _, failure: then(failure))

    def committed(
        self, group: str, partition: Partition, then: Callable[[Position | None, StoreFailure | None], None]
    ) -> None:
        """Tell *then* where *group* goes on; (None, None): it has read nothing of the partition yet."""

        def found(reply: object, failure: StoreFailure | None) -> None:
            position = None
            if isinstance(reply, bytes):
                try:
                    position = Position.decode(reply)
                except ValueError:
                    failure = StoreFailure.MALFORMED_REPLY
            then(position, failure)

        self._submit(packed("HGET", self._keys.offsets(group), _field(partition)), found)

    def forget(self, group: str, then: Then) -> None:
        """Delete all positions of *group*."""
        self._submit(packed("DEL", self._keys.offsets(group)), lambda _, failure: then(failure))

    def _submit(self, words: bytes, then: Callable[[object, StoreFailure | None], None]) -> None:
        self._commands.submit(CallbackCommand(words, TIMEOUT, then), self._clock())


def _field(partition: Partition) -> str:
    return f"{partition.topic}/{partition.number}"
