# What Kafka gives to the logs of a node, as `weir config check` says it.
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from broker.config.applications import Application, ApplicationRule
from broker.config.inbound import KAFKA, Inbound
from broker.config.schema import Config, Kafka
from broker.metrics.record import LOG
from supervisor.kafka_survey import MOST_PARTITIONS, KafkaUnusable, ask_kafka, sentences
from tests.kafka_servers import free_port, kafka, kafka_of_the_process, own_kafka

__all__ = ["kafka", "kafka_of_the_process", "own_kafka"]  # fixtures


ONE = {"replication": 1, "in_sync": 1, "present": 1}
THREE = {"replication": 3, "in_sync": 2, "present": 2}
TOO_FEW = {"replication": 3, "in_sync": 2, "present": 1}


def told_of(
    partitions: int = 3,
    brokers: int = 1,
    logs: Mapping[str, int] | None = None,
    backbone: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    sessions: int = 9,
) -> list[str]:
    return sentences(partitions, brokers, logs, backbone, metrics, sessions, "weir.msg.all")


def test_what_survives_is_stated() -> None:
    """Who relies on logs would learn after a loss of power what one copy is worth."""
    one, backbone, metrics = told_of(logs=ONE, backbone=THREE, metrics=THREE)
    (three,) = told_of(brokers=3, logs=THREE)

    assert "one copy of each log" in one and "not a loss of power" in one
    assert "3 copies of each log, and 2 of them" in three and "the loss of 1 of these" in three
    assert "3 copies of the topic weir.msg.all, and 2 of them" in backbone
    assert "3 copies of the topic weir.metrics, and 2 of them" in metrics


def test_many_partitions_are_warned_of() -> None:
    """Kafka would become slow, and nobody know that clients of Weir are the cause."""
    told = [told_of(MOST_PARTITIONS * 2 + more, 2, ONE, sessions=0)[1:] for more in (0, 1)]

    assert [] == told[0]
    assert f"Warning: Kafka has {MOST_PARTITIONS * 2 + 1} partitions" in told[1][0]


@pytest.mark.slow
def test_a_kafka_is_asked(kafka: Any) -> None:
    """A node would be thought to start, whose Kafka is not there."""
    application = Application(clients=(ApplicationRule(client="app-*"),), sessions=1)
    inbound = Inbound(backbone=KAFKA, topic="checked", partitions=2)
    settings = Config(application=application, inbound=inbound, kafka=Kafka(hosts=(kafka.address,)))
    logs, backbone, metrics = ask_kafka(settings)
    assert "one copy of each log" in logs
    assert "one copy of the topic checked" in backbone
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
    told = [told_of(10, 2, ONE, sessions=sessions)[1:] for sessions in (most, most + 1)]

    assert [] == told[0]
    assert f"application.sessions = {most + 1} " in told[1][0]


def test_a_topic_that_takes_nothing_is_warned_of() -> None:
    """What too few replicas mean would be learned from publishers that wait."""
    for told in (told_of(logs=TOO_FEW), told_of(backbone=TOO_FEW), told_of(metrics=TOO_FEW)):
        assert told[0].startswith("Warning: Kafka takes nothing for ")
        assert "too few replicas: of 3, 1 are in sync, and min.insync.replicas asks for 2" in told[0]


@pytest.mark.slow
def test_a_topic_of_the_backbone_that_will_not_do_is_warned_of(own_kafka: Any) -> None:
    """The node would start, and no client could publish."""
    from kafka import KafkaAdminClient

    inbound = Inbound(backbone=KAFKA, partitions=3)
    settings = Config(inbound=inbound, kafka=Kafka(hosts=(own_kafka.address,)))
    settings = replace(settings, metrics=replace(settings.metrics, enabled=False))
    with KafkaAdminClient(bootstrap_servers=own_kafka.address) as admin:
        admin.create_topics({inbound.topic: {"num_partitions": 2}})
        try:
            (other,) = ask_kafka(settings)
            admin.delete_topics([inbound.topic])
            configs = {"min.insync.replicas": "2"}
            few = replace(inbound, topic="few", partitions=1)
            admin.create_topics({few.topic: {"num_partitions": 1, "configs": configs}})
            (too_few,) = ask_kafka(replace(settings, inbound=few))
        finally:
            admin.delete_topics([few.topic])
    (copies,) = ask_kafka(replace(settings, inbound=replace(inbound, replication=3)))

    assert other.startswith("Warning: no client can publish, as publishes cannot wait in Kafka: ")
    assert "(weir.msg.all has partitions: 2, and not 3)" in other
    assert "Warning: Kafka takes nothing for the topic few now" in too_few
    assert copies.startswith("Warning: no client can publish, as publishes cannot wait in Kafka: ")
