# What concerns the inbound backbone: the log in Kafka in which what clients publish waits until it is dispatched.
from dataclasses import dataclass
from typing import Final

from broker.config.fields import choice, duration, name, number, size
from broker.config.values import MIB

# Values of inbound.backbone.
NONE: Final = "none"
KAFKA: Final = "kafka"


@dataclass(frozen=True, kw_only=True)
class Inbound:
    """The inbound backbone: publishes are appended to a topic of Kafka, acknowledged, and dispatched from there."""

    # "none": publishes are dispatched at once, and acknowledged when their receivers are done with them: that is
    # quicker, and costs less. "kafka": bursts wait in Kafka, and no memory bounds them.
    backbone: str = choice(NONE, NONE, KAFKA)
    topic: str = name("weir.msg.all")  # nodes that share a Kafka and not their clients need topics of their own
    partitions: int = number(16, least=1, most=1000)  # as in TBMQ; the publishes of a client are in one of them
    # What Kafka keeps, also of what was dispatched; what is not dispatched by then is lost. Set when the topic is made.
    retention: float = duration(7 * 86400.0, least=60.0)  # as in TBMQ
    retention_bytes: int = size(2048 * MIB, least=MIB)  # of each partition, as in TBMQ
    replication: int = number(0, most=100)  # copies that Kafka keeps of the topic; 0 = as many as its default is

    def enabled(self) -> bool:
        """Whether what clients publish goes through the backbone."""
        return self.backbone == KAFKA
