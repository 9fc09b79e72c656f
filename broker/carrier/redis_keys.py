# Every key that the carrier has in Redis, with its content.
#
#   PREFIX:log:topics                 hash    topic -> "PARTITIONS SECONDS BYTES", its properties
#   PREFIX:log:{TOPIC/NUMBER}:records stream  a partition; the record at offset n has the id (n + 1)-0, and the fields
#                                             record, at (milliseconds) and before (bytes of all records before it)
#   PREFIX:log:{TOPIC/NUMBER}:head    hash    next (the offset of the next record), bytes (of all records ever) and
#                                             log (16 bytes that no former topic of this name had)
#   PREFIX:log:wake:ID                stream  one entry, for a carrier that waits for records of other streams
#   PREFIX:log:offsets:GROUP          hash    "TOPIC/NUMBER" -> a position (store/logs/records.py)
from broker.store.logs.topics import Partition


class LogKeys:
    def __init__(self, prefix: str) -> None:
        """*prefix* differs between clusters that share one Redis."""
        self._prefix = prefix
        self.topics = f"{prefix}:log:topics".encode()

    def records(self, partition: Partition) -> bytes:
        return f"{self._prefix}:log:{{{partition.topic}/{partition.number}}}:records".encode()

    def head(self, partition: Partition) -> bytes:
        return f"{self._prefix}:log:{{{partition.topic}/{partition.number}}}:head".encode()

    def around(self, topic: str) -> tuple[str, str, str]:
        """What is in the keys of the partitions of *topic*: before the number, and behind it in that of the records
        and of the head."""
        return f"{self._prefix}:log:{{{topic}/", "}:records", "}:head"

    def wake(self, carrier: str) -> bytes:
        return f"{self._prefix}:log:wake:{carrier}".encode()

    def offsets(self, group: str) -> bytes:
        return f"{self._prefix}:log:offsets:{group}".encode()
