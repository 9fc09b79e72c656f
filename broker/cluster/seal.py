# The seal of what this worker leaves in Redis for others, and the check of what others have left.
#
# Whoever reaches Redis could otherwise throttle all clients of a cluster with one overload report, or publish any
# message as the will of any client, or as that of a worker. So reports, wills and the messages of lanes between nodes
# carry an HMAC-SHA256 with a key that only the nodes of the cluster have. What has no valid one is ignored, counted and
# logged. Without a key nothing is sealed or checked: a shared Redis needs the same key file on all nodes, which only
# the operator can place there.
#
# A seal does not say when, as the clocks of nodes differ. A report has the incarnation of its worker and a sequence
# number instead, and each worker takes it once (overload/reports.py). What remains: a worker that has just started
# takes reports that it did not hear itself, each once; a report of the worker that is there follows within a second.
# The messages of lanes have epochs and offsets (lane_pair.py): published again they change nothing. A will has no
# number, and can be put back by whoever may write to Redis.
import hmac
from typing import Final

from broker.log import Log
from broker.metrics.counters import Counters

REPORT: Final = b"report"
WILL: Final = b"will"
LANE: Final = b"lane"
SIZE: Final = 32  # bytes
LOG_INTERVAL: Final = 60.0  # seconds between two lines
BETWEEN: Final = b"\0"  # no client id has it [MQTT-1.5.4-2]


class Seal:
    def __init__(self, key: bytes, counters: Counters, log: Log) -> None:
        """*key*: b"": there is none."""
        self._key = key
        self._counters = counters
        self._log = log
        self._logged = -LOG_INTERVAL  # when the last line was written
        self._unlogged = 0

    def seal(self, kind: bytes, about: bytes, data: bytes) -> bytes:
        """*data* with its seal. *kind* and *about*: the reader has to expect the same, such as the client id."""
        if not self._key:
            return data
        return self._code(kind, about, data) + data

    def open(self, kind: bytes, about: bytes, sealed: bytes, now: float) -> bytes | None:
        """The data of *sealed*; None if the seal is not valid, which is counted and logged. *now*: monotonic, s."""
        if not self._key:
            return sealed
        data = sealed[SIZE:]
        if hmac.compare_digest(sealed[:SIZE], self._code(kind, about, data)):
            return data
        self._counters.redis_forged += 1
        self._unlogged += 1
        if now - self._logged >= LOG_INTERVAL:
            self._log.warning("redis_forged", what=kind.decode(), records=self._unlogged)
            self._logged = now
            self._unlogged = 0
        return None

    def _code(self, kind: bytes, about: bytes, data: bytes) -> bytes:
        return hmac.digest(self._key, BETWEEN.join((kind, about, data)), "sha256")
