# A node whose Redis fills up: what people see of it, and who is slowed down before nothing can be stored.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Cost, Overload
from broker.mqtt.packets import Subscribe, Wanted
from broker.overload.level import store_memory_of
from tests.cluster.durable_node import Durable
from tests.cluster.test_gates import acks, flood

pytestmark = pytest.mark.system  # real servers


def test_a_redis_that_is_nearly_full_slows_those_down_that_fill_it(nodes_of: Callable[..., Durable]) -> None:
    """Publishers would fill Redis at full speed until it stores nothing of anybody; or all clients would wait."""
    node = nodes_of(Config(overload=Overload(cost=Cost(publish=1000))))
    worker = node.worker
    node.subscriber("away", b"a").socket.close()
    clean, filling, other = worker.connect("clean"), worker.connect("filling"), worker.connect("other")
    clean.send(Subscribe(1, [Wanted(b"b", 0)]))
    worker.settle()
    assert 0.0 == worker.worker.metrics.gauges().store_fill
    with node.redis.client() as redis:
        redis.config_set("maxmemory", int(redis.info("memory")["used_memory"] / 0.92))
        worker.advance(30.0)
        assert 0.85 < worker.worker.metrics.gauges().store_fill < 1.0
        assert "redis" == worker.overload_monitor.level.cause
        assert worker.protection.ledger.level > 1.0
        flood(filling, b"a", 100, b"")
        flood(other, b"b", 100, b"")
        assert 0 < acks(filling) < 60
        assert 100 == acks(other)
        needs = worker.diagnostics.facts("filling")["publish"]
        assert needs is not None and store_memory_of("weir/0") in needs["needs"]
        worker.worker.metrics.close_interval(worker.clock.now)
        record = worker.worker.interval_metrics.last
        assert record is not None
        assert record["stores"]["redis"]["used_bytes"] > 0.85 * record["stores"]["redis"]["limit_bytes"] > 0
        redis.config_set("maxmemory", 0)
    worker.advance(2.0)
    assert 0.0 == worker.worker.metrics.gauges().store_fill
    assert acks(filling) > 30
