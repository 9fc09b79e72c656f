# Bugs in Weir: each exception is counted and logged, and costs no more than the work in which it was raised.
from broker.log import Log
from broker.metrics.counters import Counters


class InternalErrors:
    def __init__(self, counters: Counters, log: Log) -> None:
        self._counters = counters
        self._log = log

    def report(self, error: Exception) -> None:
        """Report *error*, which is not the fault of one client's connection."""
        self._counters.internal_errors += 1
        self._log.warning("internal_error", exc_info=error)

    def report_for(self, address: str, error: Exception) -> None:
        """Report *error*, raised by what the client at *address* sent."""
        self._counters.internal_errors += 1
        self._log.warning("internal_error", address=address, exc_info=error)
