# Fixtures of the carrier's tests: each log in turn, with a server of its kind.
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.carrier.logs import KafkaStage, RedisStage, Stage
from tests.kafka_servers import kafka, kafka_of_the_process, own_kafka
from tests.redis_servers import RunningRedis
from tests.store.conftest import every_server

__all__ = ["every_server", "kafka", "kafka_of_the_process", "own_kafka"]  # fixtures

# kafka-python leaves sockets of attempts to connect that failed to the garbage collector.
UNCLOSED = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
LOGS = ["redis", pytest.param("kafka", marks=[pytest.mark.slow, UNCLOSED])]
LOGS_AT_NIGHT = ["redis", pytest.param("kafka", marks=[pytest.mark.nightly, UNCLOSED])]


@pytest.fixture(params=LOGS)
def stage(request: pytest.FixtureRequest, start_redis: Callable[..., RunningRedis]) -> Iterator[Stage]:
    """Each log; the server of Kafka is used by others, too."""
    yield from made(request, start_redis, "kafka")


@pytest.fixture(params=LOGS_AT_NIGHT)
def stage_at_night(request: pytest.FixtureRequest, start_redis: Callable[..., RunningRedis]) -> Iterator[Stage]:
    """Each log, where a test takes seconds with Kafka, or kills it."""
    yield from made(request, start_redis, "own_kafka")


@pytest.fixture
def redis_stage(start_redis: Callable[..., RunningRedis]) -> Iterator[RedisStage]:
    one = RedisStage(start_redis())
    yield one
    one.close()


@pytest.fixture
def kafka_stage(kafka: Any) -> Iterator[KafkaStage]:
    one = KafkaStage(kafka)
    yield one
    one.close()


def made(
    request: pytest.FixtureRequest, start_redis: Callable[..., RunningRedis], kafka_server: str
) -> Iterator[Stage]:
    one: Stage
    if request.param == "redis":
        one = RedisStage(start_redis())
    else:
        one = KafkaStage(request.getfixturevalue(kafka_server))
    yield one
    one.close()
