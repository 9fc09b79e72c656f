# Metrics records as tests want them: one that fits, with what a test wants to be another.
import json
from typing import Any, Final

BEGAN: Final = 1_700_000_000


def record(**changes: Any) -> dict[str, Any]:
    """A record of a worker at peace, with *changes* at the top."""
    made: dict[str, Any] = {
        "version": 1,
        "ts": BEGAN + 1.0,
        "interval_s": 1.0,
        "node": "a",
        "worker": 0,
        "boot": "b00",
        "sequence": 0,
        "level": 0,
        "cluster_level": 0,
        "cause": "",
        "signals": {"lag": 0.25, "outbound": 0.0},
        "credits_per_tick": 50_000,
        "clients": {
            "connected": 3,
            "throttled": 0,
            "using_credits": 1,
            "average_credits": 49_000.5,
            "non_writable": 0,
            "became_non_writable": 0,
        },
        "paused": {},
        "connects": {"received": 2, "accepted": 2, "refused": 0},
        "in": {"messages": 5, "bytes": 50},
        "out": {"messages": 7, "bytes": 70},
        "dropped": {},
        "refused": {},
        "closed": {},
        "queues": {
            "messages": 0,
            "bytes": 0,
            "limit_bytes": 1000,
            "outbound_bytes": 10,
            "outbound_limit_bytes": 2000,
        },
        "latency": {"messages": 5, "p50_ms": 0.5, "p99_ms": 1.5},
        "stores": {"retained": {"used_bytes": 1, "limit_bytes": 0, "ops": 2}},
        "flushes": {"end": 4},
        "top": {"clients": top("client", pump=60), "topics": top("topic", river=60)},
    }
    return made | changes


def top(what: str, paused: dict[str, int] | None = None, /, **costs: int) -> dict[str, Any]:
    """The table of those who cost so much; *paused*: milliseconds, by name."""
    rows = [
        {what: name, "cost": cost, "messages": 1, "bytes": 10, "paused_ms": (paused or {}).get(name, 0)}
        for name, cost in costs.items()
    ]
    return {"rows": rows, "error": {"cost": 0, "messages": 0, "bytes": 0, "paused_ms": 0}, "others": 0}


def body(**changes: Any) -> str:
    return json.dumps(record(**changes))
