# Topics of a log, as a worker and the carrier speak of them.
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker.reasons import LogFailure


class Partition(NamedTuple):
    topic: str  # ASCII letters and digits, ".", "_" and "-", at most 249: what Kafka allows
    number: int = 0


class LogError(Exception):
    """Why the log did not do what it was asked; its text is a sentence for people."""

    def __init__(self, failure: LogFailure, detail: str) -> None:
        super().__init__(f"{failure.words} ({detail})" if detail else failure.words)
        self.failure = failure
        self.detail = detail


@dataclass(frozen=True, kw_only=True)
class TopicProperties:
    partitions: int = 1
    retention: int = 7 * 86_400  # seconds that a record stays
    retention_bytes: int = 1_048_576_000  # of a partition; beyond it the oldest records go
    replication: int = -1  # copies that Kafka keeps; -1: as many as its default is


@dataclass(frozen=True, kw_only=True)
class TopicDescription:
    """A topic that exists."""

    properties: TopicProperties
    log: bytes = b""  # its identity: no former topic of this name had the same (LOG_BYTES, records.py); b"": not known
    first: Sequence[int]  # of each partition, the offset of the oldest record
    next: Sequence[int]  # of each partition, the offset that the next record will have
