# The clients of kafka-python: how they are made, and with which options.
#
# Idempotence is off. One record of a partition is under way at a time, and packs have tokens, so it would add nothing.
# And it would end the producer: kafka-python 3.0.12, the newest one, resets its producer id when it gives up a record
# that it has sent, and waits for a new one. It never asks for it: its state is still READY, and not UNINITIALIZED.
#
# Options are those that KafkaAdminClient knows, too: servers, SASL, TLS, time-outs. It is made first and refuses
# others, so `acks` and the like cannot be changed.
import logging
from collections.abc import Mapping
from typing import Any, Final

from kafka.net.compat import KafkaNetClient

CONNECT: Final = 5_000  # milliseconds until an attempt to connect fails
REQUEST: Final = 10_000  # milliseconds until a request fails; Kafka that was stopped for seconds still answers
DELIVERY: Final = 12_000  # milliseconds until the producer gives a record up; below the 30 s of the gate
MOST_REQUEST: Final = 64 * 1024 * 1024  # bytes; what a topic takes is up to its own limit
MOST_ANSWER: Final = 100_000_000  # bytes; one record may be larger than what was asked for

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
    except Exception:
        for one in networks:
            one.close()
        raise
