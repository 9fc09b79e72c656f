# SUBACKs that were sent before all workers of other nodes had confirmed the subscriptions: announcements.py.
#
# What is published at such a worker may not reach the subscriber until the worker has heard of it. Who asks why a
# message did not come is told (`weir why`); the log has a line for each worker, and not for each SUBACK.
from typing import Final

from broker.cluster.peer import Peer
from broker.log import Log
from broker.metrics.counters import Counters
from broker.net.stream import Stream
from broker.overload.admit import SUBACK
from broker.protocol.connection import Connection
from broker.reasons import SubscribeNotice
from broker.worker_id import WorkerId

LOG_AGAIN: Final = 60.0  # seconds between two lines about one worker


class LateConfirmations:
    def __init__(self, counters: Counters, log: Log) -> None:
        self._counters = counters
        self._log = log
        self._logged: dict[WorkerId, float] = {}  # when; of workers in the last LOG_AGAIN

    def late(self, stream: Stream, peers: list[Peer], now: float) -> None:
        """The client of *stream* is sent a SUBACK that *peers* have not confirmed."""
        self._counters.subscriptions_not_confirmed += 1
        self._logged = {worker: when for worker, when in self._logged.items() if now - when < LOG_AGAIN}
        for peer in peers:
            if peer.worker not in self._logged:
                self._logged[peer.worker] = now
                self._log.warning("subscription_not_confirmed", peer=str(peer.worker))
        session = stream.session if isinstance(stream, Connection) else None
        if session is not None:
            session.note(SUBACK, SubscribeNotice.NOT_CONFIRMED.label, now)
