# One second of one worker: the compact form of a metrics record. seconds.py makes these rows; windows.py, episodes.py
# and findings.py fold them.
from typing import TypedDict


class Heavy(TypedDict):
    """A costly client or topic, in one second of one worker."""

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
    second: int  # Unix time: the second that contains the middle of the interval of the record
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
    cost_in: int  # the cost of incoming publishes: the sum over top.clients, a lower bound
    dropped: dict[str, int]
    refused: dict[str, int]
    p99_ms: float
    clients: list[Heavy]
    topics: list[Heavy]
