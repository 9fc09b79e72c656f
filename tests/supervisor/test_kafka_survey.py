# What Kafka gives to the logs of a node, as `weir config check` says it.
from dataclasses import replace
from typing import Any

import pytest

from broker.config.applications import Application, ApplicationRule
from broker.config.schema import Config, Kafka
from broker.metrics.record import LOG
from supervisor.kafka_survey import MOST_PARTITIONS, KafkaUnusable, ask_kafka, sentences
from tests.kafka_servers import free_port, kafka, kafka_of_the_process, own_kafka

__all__ = ["kafka", "kafka_of_the_process", "own_kafka"]  # fixtures


ONE = {"replication": 1, "in_sync": 1}
THREE = {"replication": 3, "in_sync": 2}


def test_what_survives_is_stated() -> None:
    """Who relies on logs would learn after a loss of power what one copy is worth."""
    one, metrics = sentences(partitions=3, brokers=1, logs=ONE, metrics=THREE, sessions=9)
    (three,) = sentences(partitions=3, brokers=3, logs=THREE, metrics=None, sessions=9)

    assert "one copy of each log" in one and "not a loss of power" in one
    assert "3 copies of each log, and 2 of them" in three and "the loss of 1 of these" in three
    assert "3 copies of the topic weir.metrics, and 2 of them" in metrics


def test_many_partitions_are_warned_of() -> None:
    """Kafka would become slow, and nobody know that clients of Weir are the cause."""
    told = [sentences(MOST_PARTITIONS * 2 + more, 2, ONE, None, 0)[1:] for more in (0, 1)]

    assert [] == told[0]
    assert f"Warning: Kafka has {MOST_PARTITIONS * 2 + 1} partitions" in told[1][0]


@pytest.mark.slow
def test_a_kafka_is_asked(kafka: Any) -> None:
    """A node would be thought to start, whose Kafka is not there."""
    application = Application(clients=(ApplicationRule(client="app-*"),), sessions=1)
    logs, metrics = ask_kafka(Config(application=application, kafka=Kafka(hosts=(kafka.address,))))
    assert "one copy of each log" in logs
    assert "one copy of the topic weir.metrics" in metrics
    away = f"127.0.0.1:{free_port()}"
    with pytest.raises(KafkaUnusable) as caught:
        ask_kafka(Config(kafka=Kafka(hosts=(away,))))

    assert str(caught.value).startswith(f"Kafka at {away} cannot be used: the log ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partitions", "configs", "wrong"),
    [
        (2, {"message.timestamp.type": "LogAppendTime"}, "weir.metrics has partitions: 2, and not 1"),
        (
            1,
            {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"},
            "weir.metrics has cleanup.policy=compact, and not delete",
        ),
        (1, {}, "weir.metrics has message.timestamp.type=CreateTime, and not LogAppendTime"),
    ],
)
def test_a_topic_of_metrics_that_will_not_do_is_warned_of(
    own_kafka: Any, partitions: int, configs: dict[str, str], wrong: str
) -> None:
    """The node would start, and publish no metrics record."""
    from kafka import KafkaAdminClient

    settings = Config(kafka=Kafka(hosts=(own_kafka.address,)))
    with KafkaAdminClient(bootstrap_servers=own_kafka.address) as admin:
        admin.create_topics({LOG: {"num_partitions": partitions, "configs": configs}})
        try:
            (metrics,) = ask_kafka(settings)
            without = ask_kafka(replace(settings, metrics=replace(settings.metrics, enabled=False)))
        finally:
            admin.delete_topics([LOG])

    assert metrics.startswith("Warning: metrics records cannot be published to Kafka: ")
    assert f"({wrong})" in metrics
    assert [] == without


def test_a_limit_of_sessions_that_kafka_could_not_hold_is_told() -> None:
    """Who raises it would learn it from a Kafka that takes minutes to start."""
    most = MOST_PARTITIONS * 2 - 10
    told = [sentences(10, 2, ONE, None, sessions)[1:] for sessions in (most, most + 1)]

    assert [] == told[0]
    assert f"application.sessions = {most + 1} " in told[1][0]
