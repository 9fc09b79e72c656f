# How much of a round one connection may use, so that a busy processor does not delay modest clients.
#
# Work is counted in cost units (a small publish takes ten). A round serves each ready connection once, by surplus round
# robin: a connection may finish the packet that it began, and pays for that in its next round. The quantum shrinks as
# more connections are ready, so that a round stays under ROUND seconds. The seconds for a unit are measured.
#
# With very many ready connections a visit to each of them takes longer than ROUND by itself, and nothing would be left
# for their packets. Each may use SMALLEST nevertheless, which takes about as long as the visit: a worker that is late
# would get later still if it made a visit for each single publish that waits.
from typing import Final

ROUND: Final = 0.020  # seconds
LONGEST: Final = (
    0.002  # seconds for one connection, even if it is alone: connections that become ready meanwhile wait for it
)
LARGEST: Final = 20_000  # units: about two thousand small publishes, half a millisecond compiled
SMALLEST: Final = 64  # six small publishes
TELLING: Final = 256  # units of a round from which a unit is measured; a shorter round is mostly the cost of waking up
SMOOTHING: Final = 0.05
CHEAPEST: Final = 1e-9  # seconds for a unit at least: a coarse clock could measure 0

PUBLISH_COST: Final = 10
DELIVERY_COST: Final = 1
ANSWER_COST: Final = 1  # an acknowledgement or a ping
FRAME_COST: Final = 10  # a WebSocket frame, beside its content: an empty frame takes less, a ping more
UPGRADE_COST: Final = 4000  # a WebSocket request: about 0.2 ms of trio-websocket
FILTER_COST: Final = 40  # adding or removing a filter: 1 to 3 us
VISIT_COST: Final = 4  # a level of a tree of filters, or a receiver, that is visited to make a route
CONNECT_COST: Final = 100
BYTES_PER_UNIT_SHIFT: Final = 7  # 128 bytes cost one unit


class Quantum:
    def __init__(self) -> None:
        self._unit_seconds = 50e-9  # compiled; corrected by the first rounds

    def of_round(self, ready: int) -> int:
        """Units for each of *ready* connections."""
        fair = int(min(ROUND / max(1, ready), LONGEST) / self._unit_seconds)
        return min(LARGEST, max(SMALLEST, fair))

    def measured(self, units: int, seconds: float) -> None:
        """A round took *seconds* for *units*."""
        if units > 0:
            self._unit_seconds += SMOOTHING * (max(CHEAPEST, seconds / units) - self._unit_seconds)
