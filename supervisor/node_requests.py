# What one node asks of another, on the channel of notices in Redis (node_notices.py): to be drained, to take clients
# again, or to send a surplus of clients away.
#
# Who asks sees in the list of nodes that it is done; a request that is lost is asked for again by a person. It is
# sealed with the key of the cluster, if there is one, and names the incarnation of the node that it is for and the
# time, so that an old one that somebody publishes again does nothing.
import json
from dataclasses import dataclass
from typing import Any, Final

from broker.cluster.seal import Seal
from broker.log import Log
from broker.metrics.counters import Counters

REQUEST: Final = b"request "  # how such a message begins
KIND: Final = b"request"  # of the seal
LARGEST: Final = 1024  # bytes
FRESH: Final = 15.0  # seconds that a request is valid; clocks of nodes may differ by five
DRAIN: Final = "drain"
UNDRAIN: Final = "undrain"
REBALANCE: Final = "rebalance"
EVERYBODY: Final = "*"  # no incarnation


@dataclass(frozen=True)
class NodeRequest:
    """A request to the node with the *incarnation*, or to EVERYBODY."""

    what: str
    incarnation: str
    forced: bool
    by: str  # the name of the node that asks


class NodeRequests:
    def __init__(self, channel: bytes, key: bytes, log: Log) -> None:
        """*key* of the cluster; b"": there is none."""
        self._channel = channel
        self._seal = Seal(key, Counters(), log)

    def encode(self, request: NodeRequest, wall: float) -> bytes:
        """*wall*: Unix time."""
        fields = [request.what, request.incarnation, request.forced, request.by, wall]
        return REQUEST + self._seal.seal(KIND, self._channel, json.dumps(fields).encode())

    def decode(self, content: bytes, wall: float, now: float) -> NodeRequest | None:
        """The request in *content*; None: it is none, or none that is valid now. *now*: monotonic seconds."""
        if not content.startswith(REQUEST) or len(content) > LARGEST:
            return None
        data = self._seal.open(KIND, self._channel, content[len(REQUEST) :], now)
        if data is None:
            return None
        try:
            fields: Any = json.loads(data)
            what, incarnation, forced, by, at = fields
        except (ValueError, TypeError, RecursionError):
            return None
        if not (isinstance(what, str) and isinstance(incarnation, str) and isinstance(by, str)):
            return None
        if type(forced) is not bool or type(at) not in (int, float) or not abs(wall - at) <= FRESH:
            return None
        return NodeRequest(what, incarnation, forced, by)
