# What nearly every part of a worker is made with.
from collections.abc import Callable

from broker.config.schema import Config
from broker.log import Log
from broker.metrics.counters import Counters
from broker.net.reactor import Reactor
from broker.protocol.internal_errors import InternalErrors
from broker.worker_id import WorkerId


class Essentials:
    def __init__(
        self,
        config: Config,
        worker: WorkerId,
        reactor: Reactor,
        counters: Counters,
        log: Log,
        client_log: Log,
        clock: Callable[[], float],
        wall: Callable[[], float],
        workers: int,
    ) -> None:
        """*worker* is one of *workers* of its node. *client_log* is for what clients cause: it is limited in its rate.

        *clock* is monotonic, *wall* Unix time.
        """
        self.config = config
        self.worker = worker
        self.reactor = reactor
        self.counters = counters
        self.log = log
        self.client_log = client_log
        self.clock = clock
        self.wall = wall
        self.workers = workers
        self.internal_errors = InternalErrors(counters, client_log)
