# What Kafka gives to the logs of a node, for `weir config check`: `python -m broker.carrier.survey`.
#
# A process of its own, as only the carrier may import kafka-python. It takes the settings as JSON from its input, and
# writes JSON: {"error": SENTENCE}, or what `KafkaSize` has, and `Copies` of the logs of clients (`logs`), of the topic
# of the inbound backbone (`backbone`) and of that of metrics records (`metrics`). These two are {"error": SENTENCE} if
# the topic cannot be used. What the node has not is null.
import json
import os
import sys
import uuid
from collections.abc import Mapping
from dataclasses import asdict

from broker.carrier.carrier import TRIED, CarrierUnusable, kafka_options, kafka_unusable, metrics_properties
from broker.config.schema import Config
from broker.config.sources import restored
from broker.metrics.record import LOG
from broker.store.durable.application_logs import log_settings
from broker.store.inbound.log import inbound_properties
from broker.store.logs.topics import LogError, TopicProperties


def survey(config: Config) -> dict[str, object]:
    hosts = config.kafka.hosts
    try:
        options = kafka_options(config.kafka, "weir-config-check")
        from kafka.errors import KafkaError

        from broker.carrier.inbox import Inbox
        from broker.carrier.kafka_admin import FIXED, KafkaAdmin
        from broker.carrier.kafka_errors import error_of
        from broker.carrier.kafka_metrics import TIMES
    except CarrierUnusable as error:
        return {"error": str(error)}
    admin = KafkaAdmin(options, Inbox(lambda work: None))

    def copies(topic: str, wanted: TopicProperties, fixed: Mapping[str, str] = FIXED) -> dict[str, object]:
        try:
            return asdict(admin.copies(topic, wanted, fixed))
        except LogError as error:
            return {"error": str(error)}

    try:
        logs: dict[str, object] | None = None
        backbone: dict[str, object] | None = None
        metrics: dict[str, object] | None = None
        if config.application.clients:
            unknown = f"{TRIED}.{uuid.uuid4().hex}"  # what a new log has; one that exists may differ
            logs = asdict(admin.copies(unknown, log_settings(config.application).properties))
        if config.inbound.enabled():
            backbone = copies(config.inbound.topic, inbound_properties(config.inbound))
        if config.metrics.enabled:
            metrics = copies(LOG, metrics_properties(config.metrics), TIMES)
        return {**asdict(admin.size()), "logs": logs, "backbone": backbone, "metrics": metrics}
    except LogError as error:
        return {"error": kafka_unusable(hosts, error)}
    except KafkaError as error:
        return {"error": kafka_unusable(hosts, error_of(error))}
    finally:
        admin.stop()


if __name__ == "__main__":
    print(json.dumps(survey(restored(json.load(sys.stdin)))), flush=True)
    os._exit(0)  # threads of Kafka's client may wait for it still
