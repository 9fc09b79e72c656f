# How clients leave a node that is stopped or drained.
from dataclasses import dataclass
from typing import Final

from broker.config.fields import duration, number

LONGEST_REFERENCE: Final = 1024  # bytes; of a Server Reference, which nobody shortens


@dataclass(frozen=True, kw_only=True)
class Drain:
    timeout: float = duration(5.0, most=3600.0)  # for clients to leave after SIGTERM; most supervisors kill at 10
    # Clients of the node that `weir drain` disconnects in a second while the other nodes are calm: an eighth of what a
    # node lets in (overload.connects_per_second), as all of them may come to one.
    fastest: int = number(500, least=1, most=1_000_000)
    slowest: int = number(10, least=1, most=1_000_000)  # the same at level 10, so that a drain has an end
