# Logs of APPLICATION clients in a backup, if Redis has them: topics whose partitions are streams.
#
# Logs are read after sessions and groups, so a log reaches at least as far as they have read it. A topic that is
# deleted meanwhile may be there without records, as one that retention has emptied. Logs in Kafka are Kafka's to keep:
# sessions and groups of a backup go on in them where they were.
from typing import Any, Final

import redis
from redis.exceptions import ResponseError

from broker.carrier.redis_keys import LogKeys
from broker.store.logs.topics import Partition
from broker.store.redis.keys import Keys
from supervisor.backup.backup_file import OF_HEAD, OF_RECORD, BackupWriter

PAGE: Final = 16  # records in one call: 8 MiB at most
HEAD: Final = (b"next", b"bytes", b"log")
FIELDS: Final = (b"record", b"at", b"before")


class LogExport:
    def __init__(self, server: "redis.Redis", prefix: str, backup: BackupWriter) -> None:
        self.topics = 0
        self.unreadable: list[bytes] = []  # keys
        self._server = server
        self._keys = LogKeys(prefix)
        self._backup = backup

    def run(self) -> None:
        """redis.RedisError, BackupUnusable."""
        found: Any = self._server.hgetall(self._keys.topics)
        for topic, properties in sorted(found.items()):
            try:
                self._read(topic, properties)
            except (ResponseError, ValueError, UnicodeDecodeError):
                self.unreadable.append(topic)

    def _read(self, topic: bytes, properties: bytes) -> None:
        partitions = [Partition(topic.decode(), number) for number in range(int(properties.split()[0]))]
        heads: list[bytes] = []
        for partition in partitions:
            found: Any = self._server.hmget(self._keys.head(partition), HEAD)
            heads += [b"" if each is None else each for each in found]
        if b"" in heads:  # it is being deleted
            return
        self._backup.log(topic, properties, heads)
        self.topics += 1
        for partition, following in zip(partitions, heads[::OF_HEAD], strict=True):
            self._read_records(topic, partition, int(following))

    def _read_records(self, topic: bytes, partition: Partition, following: int) -> None:
        """Add the records before the offset *following*; their ids are from 1 on."""
        first = 1
        while first <= following:
            page: Any = self._server.xrange(self._keys.records(partition), f"{first}-0", f"{following}-0", PAGE)
            if not page:
                return
            values: list[bytes] = []
            for key, fields in page:
                values += (key, *[fields[name] for name in FIELDS])
            self._backup.records(topic, partition.number, values)
            first = int(page[-1][0].partition(b"-")[0]) + 1


class RestoredLogs:
    """Logs of a backup. Nobody sees them before `make_visible()`; a topic of the same name is replaced."""

    def __init__(self, prefix: str) -> None:
        self._keys = Keys(prefix)
        self._logs = LogKeys(prefix)
        self._topics: dict[bytes, bytes] = {}  # and their properties
        self._partitions: dict[Partition, bool] = {}  # whether there are records

    def add(self, batch: Any, topic: bytes, properties: bytes, heads: list[bytes]) -> int:
        """Add the commands of a log without its records to *batch*; bytes."""
        self._topics[topic] = properties
        for number in range(len(heads) // OF_HEAD):
            partition = Partition(topic.decode(), number)
            self._partitions[partition] = False
            values = heads[number * OF_HEAD : (number + 1) * OF_HEAD]
            batch.hset(self._restoring(partition, "head"), mapping=dict(zip(HEAD, values, strict=True)))
        return sum(map(len, heads))

    def add_records(self, batch: Any, topic: bytes, number: int, values: list[bytes]) -> int:
        partition = Partition(topic.decode(), number)
        self._partitions[partition] = True
        for at in range(0, len(values), OF_RECORD):
            key, *fields = values[at : at + OF_RECORD]
            batch.xadd(self._restoring(partition, "records"), dict(zip(FIELDS, fields, strict=True)), id=key)
        return sum(map(len, values))

    def make_visible(self, last: Any) -> None:
        for partition, has_records in self._partitions.items():
            last.rename(self._restoring(partition, "head"), self._logs.head(partition))
            last.unlink(self._logs.records(partition))
            if has_records:
                last.rename(self._restoring(partition, "records"), self._logs.records(partition))
        for topic, properties in self._topics.items():
            last.hset(self._logs.topics, topic, properties)

    def _restoring(self, partition: Partition, what: str) -> bytes:
        return self._keys.restoring_log(f"{partition.topic}/{partition.number}:{what}")
