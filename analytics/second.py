# One worker's second: what a batch is boiled down to before it is folded. seconds.py makes them; windows.py,
# episodes.py and findings.py fold them.
from typing import TypedDict


class Heavy(TypedDict):
    """A client or topic that cost much, in this second of this worker."""

    name: str
    cost: int
    messages: int
    bytes: int
    paused_ms: int


class Second(TypedDict):
    node: str
    worker: int
    boot: str
    sequence: int
    second: int  # Unix time: the second that the middle of the record's interval lies in
    level: int
    cluster_level: int
    cause: str
    signals: dict[str, float]
    credits_per_tick: int
    connected: int
    throttled: int
    using_credits: int
    average_credits: float
    non_writable: int
    outbound_bytes: int
    outbound_limit_bytes: int
    paused: dict[str, int]  # ms, by reason
    connects: int
    connects_refused: int
    messages_in: int
    messages_out: int
    cost_in: int  # of what its clients published: the sum of the cost in top.clients (at least)
    dropped: dict[str, int]
    refused: dict[str, int]
    p99_ms: float
    clients: list[Heavy]
    topics: list[Heavy]
