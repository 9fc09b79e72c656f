# One reading of what a worker holds at this moment. table.py has a row for each field, which says where it is shown.
from dataclasses import dataclass, field

from broker.metrics.overload_figures import OverloadFigures


@dataclass(kw_only=True)
class Gauges:
    clients_connected: int = 0
    clients_total: int = 0  # sessions, of clients that are connected or away
    sessions_in_memory: int = 0  # those of them that end with the worker
    sessions_cold: int = 0  # those that are in their durable store alone
    connects_waiting: int = 0
    subscriptions: int = 0
    shared_subscriptions: int = 0
    store_waiting: int = 0  # publishes that wait for the store of durable sessions here
    store_ms: float = 0.0  # that they wait
    log_waiting: int = 0  # packs that the log is not known to have
    log_waiting_bytes: int = 0
    log_held_bytes: int = 0  # of records that were read, and are not passed on
    log_readings: int = 0
    log_failing: int = 0  # logs of clients here that cannot be used
    log_ms: float = 0.0  # that publishes wait for the log
    backbone_lag_ms: float = 0.0  # the age of the oldest publish in the inbound backbone that waits to be dispatched
    backbone_behind: int = 0  # records of it that are not done
    backbone_unfinished: int = 0  # publishes that were dispatched from it and are not done
    backbone_partitions: int = 0  # that the worker dispatches
    store_fill: float = 0.0  # share of its memory that Redis uses
    retained: int = 0
    retained_bytes: int = 0
    retained_unwritten: int = 0
    queued: int = 0
    queued_bytes: int = 0
    queued_limit: int = 0
    heap_bytes: int = 0
    non_writable: int = 0
    paused: int = 0
    outbound_bytes: int = 0
    outbound_limit: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    overload: OverloadFigures = field(default_factory=OverloadFigures)
