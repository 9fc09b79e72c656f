# Quotas that workers share, with a real Redis between them.
from collections.abc import Callable

import pytest

from broker.config.schema import ClusterQuota, Config, Quotas
from broker.mqtt.packets import Publish
from tests.cluster.talk import payloads, subscribed
from tests.innode import Node
from tests.protocol.talk import dropped
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # a real server


def test_within_an_outgoing_quota_nothing_is_dropped_while_redis_is_asked(
    nodes: Callable[..., Node], start_redis: Callable[..., RunningRedis]
) -> None:
    """QoS 0 would be lost each time that a worker has to ask for more of what there is plenty of."""
    node = nodes(2, Config(quotas=Quotas(cluster=ClusterQuota(outgoing_messages="1000:1"))), start_redis())
    readers = [broker.connect(f"reader{shard}") for shard, broker in enumerate(node)]
    for reader in readers:
        subscribed(reader, "t/#")
    writer = node[0].connect("writer")
    expected = [b"%d" % n for n in range(60)]
    for payload in expected:
        writer.send(Publish(b"t/" + payload, payload))
    node.settle()

    assert [expected, expected] == [payloads(reader) for reader in readers]
    assert [{}, {}] == [dropped(broker) for broker in node]
