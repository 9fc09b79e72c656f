# Nodes of two builds whose lanes have neighbouring formats: an upgrade of a cluster, one node after another.
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.former_build import make_former_build
from tests.redis_servers import RunningRedis
from tests.system import node
from tests.system.cluster import LASTING, Cluster, collect, send, start

pytestmark = [pytest.mark.weir_only("a matter of Weir's processes"), pytest.mark.slow]


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_former_build(tmp_path_factory.mktemp("former") / "build")


@pytest.fixture
def cluster(start_redis: Callable[..., RunningRedis], tmp_path: Path, former: Path) -> Iterator[Cluster]:
    """Of two nodes of the former build."""
    with start(tmp_path, start_redis(), 2, former) as started:
        yield started


def lanes(cluster: Cluster) -> list[int]:
    """The format that each node has."""
    return [node.status(each.control)["cluster"]["lanes"] for each in cluster.nodes]


def upgrade(cluster: Cluster, number: int) -> None:
    """Stop node *number*, and start it as this build."""
    cluster.nodes[number - 1].end()
    assert 0 == cluster.nodes[number - 1].process.returncode
    cluster.start(number)
    cluster.wait_joined()


def test_nodes_of_two_formats_act_as_one_broker(cluster: Cluster) -> None:
    """An upgrade would part the nodes, or end the lanes between them with each frame that one of them does not know."""
    upgrade(cluster, 2)
    first, second = lanes(cluster)
    assert first + 1 == second

    clients = [each.client(f"reader-{number}", properties=LASTING) for number, each in enumerate(cluster.nodes)]
    for client in clients:
        client.subscribe("topic", qos=2)
    wanted = [b"%d" % number for number in range(100)]
    for number, each in enumerate(cluster.nodes):
        send(each.client(f"publisher-{number}"), "topic", wanted, 1 + number)
    for came in collect(clients, 4 * len(wanted)):
        assert sorted(wanted * 2) == sorted(came)
    for client in clients:
        client.disconnect()
    upgrade(cluster, 2)  # it ends beside a node of the former format
    upgrade(cluster, 1)

    assert [second, second] == lanes(cluster)
    for each in cluster.nodes:
        assert not each.lines("lanes_malformed")
