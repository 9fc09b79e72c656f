# Asks Kafka what it gives to the logs of a node, before there is one: for `weir config check`.
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from broker.config.schema import Config
from broker.config.sources import described
from broker.metrics.record import LOG
from supervisor.process import interpreter_flags

PATIENCE: Final = 60.0  # seconds: an attempt to connect takes five, a request ten
MOST_PARTITIONS: Final = 4000  # of a broker; as Kafka's developers advise


class KafkaUnusable(Exception):
    """The text is one sentence for the user."""


def ask_kafka(config: Config) -> list[str]:
    """Sentences about the Kafka of *config*, which is usable. KafkaUnusable: it is not."""
    command = [sys.executable, *interpreter_flags(), "-m", "broker.carrier.survey"]
    settings = json.dumps(described(config))
    try:
        done = subprocess.run(command, input=settings, capture_output=True, text=True, timeout=PATIENCE)
        told: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise KafkaUnusable(f"Kafka at {', '.join(config.kafka.hosts)} cannot be asked.") from None
    if "error" in told:
        raise KafkaUnusable(told["error"])
    return sentences(**told, sessions=config.application.sessions, topic=config.inbound.topic)


def sentences(
    partitions: int,
    brokers: int,
    logs: Mapping[str, int] | None,
    backbone: Mapping[str, Any] | None,
    metrics: Mapping[str, Any] | None,
    sessions: int,
    topic: str,
) -> list[str]:
    """What a Kafka means for the logs of clients, the inbound backbone and metrics records: see
    broker/carrier/survey.py.

    *sessions*: `application.sessions`. *topic*: `inbound.topic`.
    """
    told = []
    if logs is not None:
        told.append(f"{durable('each log', **logs)} (application.replication).")
    if backbone is not None and "error" in backbone:
        told.append(f"Warning: no client can publish, as publishes cannot wait in Kafka: {backbone['error']}.")
    elif backbone is not None:
        told.append(f"{durable(f'the topic {topic}', **backbone)} (inbound.replication).")
    if metrics is not None and "error" in metrics:
        told.append(f"Warning: metrics records cannot be published to Kafka: {metrics['error']}.")
    elif metrics is not None:
        told.append(f"{durable(f'the topic {LOG}', **metrics)}.")
    if logs is not None and partitions > MOST_PARTITIONS * brokers:
        told.append(
            f"Warning: Kafka has {partitions} partitions, and each APPLICATION client adds one. With more than "
            f"{MOST_PARTITIONS} for each of its brokers, which are {brokers}, a broker takes long to start, and to be "
            "followed by another."
        )
    elif logs is not None and partitions + sessions > MOST_PARTITIONS * brokers:
        told.append(
            f"Note: application.sessions = {sessions} allows so many logs, each a partition, and Kafka has "
            f"{partitions} already: that could be more than {MOST_PARTITIONS} for each of its brokers, which are "
            f"{brokers}."
        )
    return told


def durable(what: str, replication: int, in_sync: int, present: int) -> str:
    """See `Copies` of broker/carrier/kafka_admin.py."""
    if present < in_sync:
        return (
            f"Warning: Kafka takes nothing for {what} now, as there are too few replicas: of {replication}, {present} "
            f"are in sync, and min.insync.replicas asks for {in_sync}"
        )
    if replication == 1:
        return (
            f"Kafka keeps one copy of {what}: what is acknowledged survives the kill of its broker, but not a loss of "
            "power or of its disk"
        )
    return (
        f"Kafka keeps {replication} copies of {what}, and {in_sync} of them have what is acknowledged, or more "
        f"(min.insync.replicas): it survives the loss of {in_sync - 1} of these brokers"
    )
