# The clients of kafka-python: how they are made, and with which options.
#
# Idempotence is off. One record of a partition is under way at a time, and packs have tokens, so it would add nothing.
# And it would end the producer: kafka-python 3.0.12 resets its producer id when it gives up a record that it has sent,
# then waits for a new one, and never asks for it.
import logging
from collections.abc import Mapping
from typing import Any, Final

from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient

CONNECT: Final = 5_000  # milliseconds until an attempt to connect fails
REQUEST: Final = 10_000  # milliseconds until a request fails; Kafka that was stopped for seconds still answers
DELIVERY: Final = 12_000  # milliseconds until the producer gives a record up; below the 30 s of the gate
MOST_REQUEST: Final = 64 * 1024 * 1024  # bytes; what a topic takes is up to its own limit
FETCH_WAIT: Final = 500  # milliseconds that Kafka waits for records; with 20, ten idle readings are a quarter of a core
FETCH_BYTES: Final = 4 * 1024 * 1024  # of one reply
PARTITION_BYTES: Final = 1024 * 1024  # of one partition in it
RECORDS: Final = 64  # of one poll

logging.getLogger("kafka").setLevel(
    logging.CRITICAL
)  # it logs each attempt; what matters is in the statistics of a log

CLIENT: Final = {
    "request_timeout_ms": REQUEST,
    "bootstrap_timeout_ms": CONNECT,
    "retry_backoff_ms": 50,
    "reconnect_backoff_max_ms": 1_000,
}
PRODUCER: Final = {
    **CLIENT,
    "acks": "all",
    "enable_idempotence": False,
    "max_block_ms": 0,  # `send()` raises an exception in place of waiting for metadata
    "allow_auto_create_topics": False,
    "linger_ms": 0,  # records are packs already
    "max_request_size": MOST_REQUEST,
    "delivery_timeout_ms": DELIVERY,
    "metrics_enabled": False,
}
CONSUMER: Final = {
    **CLIENT,
    "group_id": None,  # offsets are ours
    "enable_auto_commit": False,
    "auto_offset_reset": "none",
    "allow_auto_create_topics": False,
    "check_crcs": False,  # records have a checksum of their own
    "max_poll_records": RECORDS,
    "fetch_max_wait_ms": FETCH_WAIT,
    "fetch_max_bytes": FETCH_BYTES,
    "max_partition_fetch_bytes": PARTITION_BYTES,
    "metrics_enabled": False,
}


def made(kind: Any, settings: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """A client of class *kind*, connected. KafkaError.

    One that cannot connect leaves its thread and its sockets behind, unless what it has made is closed.
    """
    networks: list[Any] = []

    def network(**config: Any) -> Any:
        networks.append(KafkaNetClient(**config))
        return networks[-1]

    try:
        return kind(**{**settings, "kafka_client": network, **options})
    except KafkaError:
        for one in networks:
            one.close()
        raise
