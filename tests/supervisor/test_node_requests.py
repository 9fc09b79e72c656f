# What one node asks of another, through a channel that others may write to.
import json

import pytest

from broker.cluster.seal import Seal
from broker.metrics.counters import Counters
from supervisor.node_requests import DRAIN, FRESH, KIND, REQUEST, NodeRequest, NodeRequests
from tests.supervisor.test_embedded_redis import Log

CHANNEL = b"channel"
WALL = 1e9
ASKED = NodeRequest(DRAIN, "0123456789abcdef", True, "n1")


def requests(key: bytes = b"key", channel: bytes = CHANNEL) -> NodeRequests:
    return NodeRequests(channel, key, Log())


@pytest.mark.parametrize("key", [b"", b"key"])
def test_a_request_is_read_as_it_was_written(key: bytes) -> None:
    """A node would be drained that nobody meant."""
    assert ASKED == requests(key).decode(requests(key).encode(ASKED, WALL), WALL + 5.0, 0.0)


@pytest.mark.parametrize("late", [-FRESH - 1, FRESH + 1])
def test_an_old_request_does_nothing(late: float) -> None:
    """Whoever reads Redis could publish it again, and drain the node whenever it is undrained."""
    assert requests().decode(requests().encode(ASKED, WALL), WALL + late, 0.0) is None


def test_only_nodes_of_the_cluster_ask() -> None:
    """Whoever may publish in Redis could take a node out of service."""
    mine = requests()
    for stranger in (requests(b"other"), requests(b""), requests(channel=b"elsewhere")):
        assert mine.decode(stranger.encode(ASKED, WALL), WALL, 0.0) is None


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        [1, 2, 3, 4],
        [DRAIN, "i", 1, "n1", WALL],
        [DRAIN, 7, True, "n1", WALL],
        [DRAIN, "i", True, None, WALL],
        [DRAIN, "i", True, "n1", True],
        [DRAIN, "i", True, "n1", float("nan")],
        [DRAIN, "i", True, "n" * 2000, WALL],
        "x" * 5,
    ],
)
def test_what_is_no_request_is_none(fields: object) -> None:
    """A node with another version, or anybody on the channel, could end the supervisor."""
    seal = Seal(b"key", Counters(), Log())
    data = json.dumps(fields).encode()

    assert requests().decode(REQUEST + seal.seal(KIND, CHANNEL, data), WALL, 0.0) is None
    assert requests().decode(REQUEST + seal.seal(KIND, CHANNEL, b"[" * 900), WALL, 0.0) is None
    assert requests().decode(seal.seal(KIND, CHANNEL, data), WALL, 0.0) is None
