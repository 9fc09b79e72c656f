# The gate of a store: publishes of QoS 1 and 2 with durable receivers at a worker pass it, so that no more of them wait
# for Redis than it stores in time.
#
# A publish counts as under way from when it is accepted until a transaction that was sent afterwards is carried out. A
# receiver that acknowledges within `store.hold` makes storing needless: if nothing has to be written, all is done. So
# the gate follows what the store does: away or full it carries nothing out, and the gate closes at its limit.
#
# Other workers have a gate of the same name for publishes with durable receivers here, which they measure by what this
# worker confirms (cluster/confirmations.py).
from collections.abc import Callable

from broker.overload.gate import NONE, Gate


class StoreGate:
    def __init__(self, gate: Gate, opened: Callable[[Gate, float], None]) -> None:
        """*opened* is called when there is room again."""
        self.gate = gate
        self._opened = opened
        self._sent = 0  # publishes before the transaction under way
        self._sent_bytes = 0
        self._sent_at = 0.0  # when the last of them was taken
        self._done = 0  # publishes
        self._done_bytes = 0

    def sent(self, now: float) -> None:
        """A transaction leaves, with everything that is to be written of the publishes taken so far."""
        gate = self.gate
        self._sent, self._sent_bytes = gate.taken, gate.taken_bytes
        self._sent_at = gate.latest() if gate.count else now

    def carried_out(self, now: float) -> None:
        """That transaction was carried out."""
        self._complete(now - self._sent_at, now)

    def needless(self, now: float) -> None:
        """Nothing has to be written of the publishes taken so far."""
        self._sent, self._sent_bytes = self.gate.taken, self.gate.taken_bytes
        self._complete(NONE, now)

    def _complete(self, latency: float, now: float) -> None:
        count, size = self._sent - self._done, self._sent_bytes - self._done_bytes
        self._done, self._done_bytes = self._sent, self._sent_bytes
        if count:
            self.gate.done(count, size, latency, now)
            if self.gate.open:
                self._opened(self.gate, now)
