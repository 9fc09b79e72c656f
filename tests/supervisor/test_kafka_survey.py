# What Kafka gives to the logs of a node, as `weir config check` says it.
from typing import Any

import pytest

from broker.config.schema import Config, Kafka
from supervisor.kafka_survey import MOST_PARTITIONS, KafkaUnusable, ask_kafka, sentences
from tests.kafka_servers import free_port, kafka

__all__ = ["kafka"]  # a fixture


def test_what_survives_is_stated() -> None:
    """Who relies on logs would learn after a loss of power what one copy is worth."""
    (one,) = sentences(partitions=3, brokers=1, replication=1, in_sync=1)
    (three,) = sentences(partitions=3, brokers=3, replication=3, in_sync=2)

    assert "one copy of each log" in one and "not a loss of power" in one
    assert "3 copies of each log, and 2 of them" in three and "the loss of 1 of these" in three


def test_many_partitions_are_warned_of() -> None:
    """Kafka would become slow, and nobody know that clients of Weir are the cause."""
    told = [sentences(MOST_PARTITIONS * 2 + more, 2, 1, 1)[1:] for more in (0, 1)]

    assert [] == told[0]
    assert f"Warning: Kafka has {MOST_PARTITIONS * 2 + 1} partitions" in told[1][0]


@pytest.mark.slow
def test_a_kafka_is_asked(kafka: Any) -> None:
    """A node would be thought to start, whose Kafka is not there."""
    assert "one copy" in ask_kafka(Config(kafka=Kafka(hosts=(kafka.address,))))[0]
    away = f"127.0.0.1:{free_port()}"
    with pytest.raises(KafkaUnusable) as caught:
        ask_kafka(Config(kafka=Kafka(hosts=(away,))))

    assert str(caught.value).startswith(f"Kafka at {away} cannot be used: the log ")
