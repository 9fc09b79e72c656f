# Records and rows as tests want them: whole, with what a test is about given.
import json
import time
from collections.abc import Sequence
from typing import Any

from analytics.keys import AnalyticsKeys
from analytics.rows import VERSION

Row = dict[str, Any]


def record(worker: int = 0, sequence: int = 0, **given: Any) -> Row:
    """One of a worker that has nothing to do; *given*: what is otherwise, `in_` for `in`."""
    made: Row = {
        "version": 1,
        "ts": time.time(),
        "interval_s": 1.0,
        "node": "a",
        "worker": worker,
        "boot": "b",
        "sequence": sequence,
        "level": 0,
        "cluster_level": 0,
        "cause": "",
        "signals": {},
        "credits_per_tick": 50_000,
        "clients": {
            "connected": 3,
            "throttled": 0,
            "using_credits": 0,
            "average_credits": 50_000.0,
            "non_writable": 0,
            "became_non_writable": 0,
        },
        "paused": {},
        "connects": {"received": 0, "accepted": 0, "refused": 0},
        "in": {"messages": 0, "bytes": 0},
        "out": {"messages": 0, "bytes": 0},
        "dropped": {},
        "refused": {},
        "closed": {},
        "queues": {
            "messages": 0,
            "bytes": 0,
            "limit_bytes": 1000,
            "outbound_bytes": 0,
            "outbound_limit_bytes": 1000,
        },
        "latency": {"messages": 0, "p50_ms": 0.0, "p99_ms": 0.0},
        "stores": {},
        "flushes": {},
        "top": {"clients": top("client"), "topics": top("topic")},
    }
    for name, value in given.items():
        field = name.rstrip("_")
        made[field] = {**made[field], **value} if field in ("clients", "connects", "top", "latency") else value
    return made


def top(what: str, *hits: tuple[str, int, int]) -> Row:
    """*hits*: (name, cost, messages)."""
    none = {"cost": 0, "messages": 0, "bytes": 0, "paused_ms": 0}
    rows = [
        {what: name, "cost": cost, "messages": messages, "bytes": messages * 64, "paused_ms": 0}
        for name, cost, messages in hits
    ]
    return {"rows": rows, "error": none, "others": 0}


def aggressor(level: int, **given: Any) -> Row:
    """A record of a worker that one client keeps too busy."""
    return record(
        level=level,
        cluster_level=level,
        cause="lag" if level else "",
        signals={"lag": 2.3},
        top={
            "clients": top("client", ("pump-1", 800, 80), ("meter-2", 200, 20)),
            "topics": top("topic", ("t", 1000, 9)),
        },
        **given,
    )


def hitter(name: str, cost: int, paused_ms: int = 0) -> Row:
    return {"name": name, "node": "a", "cost": cost, "messages": cost // 10, "bytes": cost, "paused_ms": paused_ms}


def incident(start: float, end: float | None, culprit: str = "pump-1", **given: Any) -> Row:
    """One of a single episode."""
    whole = episode(start, end, culprit, **given)
    resource = whole.pop("resource")
    member = {name: whole[name] for name in ("id", "cause", "peak", "start", "end")} | {"resource": resource}
    return {"episodes": [member], "episodes_all": 1, **whole}


def episode(start: float, end: float | None, culprit: str = "pump-1", **given: Any) -> Row:
    resource = given.get("resource", "node a")
    return {
        "id": f"{start:.0f} {resource}",
        "resource": resource,
        "start": start,
        "end": end,
        "state": "open" if end is None else "closed",
        "peak": 7,
        "peak_at": start + 3,
        "cause": "lag",
        "cause_worker": "a/0",
        "weight": 100,
        "cost": 10_000,
        "nodes": ["a"],
        "further_nodes": False,
        "slowed": [{"node": "a", "throttled_most": 1, "paused_ms": 21_500}],
        "slowed_nodes": 1,
        "culprits": [{"name": culprit, "share": 0.83}, {"name": "meter-2", "share": 0.1}],
        "clients": [hitter(culprit, 8300), hitter("meter-2", 1000)],
        "topics": [hitter("line/7/raw", 9000)],
        "throttled": [hitter(culprit, 8300, 21_500)],
        "throttled_most": 1,
        "paused_ms": 21_500,
        "dropped": {"not_writable": 4211},
        "refused": {},
        "connects": 12,
        "connects_refused": 0,
        "lost_seconds": 0,
        "interrupted": False,
        "story": [
            f"The level rose to 7 within 3 s, because of lag of worker a/0: {culprit} had 83 % of the cost.",
            f"{culprit} was throttled for 21.5 s in total.",
            "4211 messages did not reach readers that were too slow for them.",
        ],
        **given,
    }


def status(now: float, batch: int = 1, **given: Any) -> Row:
    return {
        "version": VERSION,
        "batch": batch,
        "updated": now,
        "newest": now - 2,
        "delay_s": 2.0,
        "batch_s": 0.8,
        "records": 2,
        "duplicates": 0,
        "late": 0,
        "unfit": 0,
        "lost": 0,
        "clocks": {},
        **given,
    }


def findings(now: float, **given: Any) -> Row:
    return {
        "at": now,
        "warnings": [],
        "skew": [],
        "slow_readers": [],
        "credit_pressure": [],
        "clients": {"10": [], "60": [hitter("pump-1", 800), hitter("meter-2", 200)]},
        "topics": {"10": [], "60": []},
        **given,
    }


def warning(seconds: float = 8.0) -> Row:
    return {
        "node": "a",
        "worker": 0,
        "signal": "outbound",
        "value": 0.8,
        "slope": 0.05,
        "seconds_left": seconds,
        "said": f"outbound of worker a/0 reaches level 5 in {seconds:.0f} s if the trend continues.",
    }


def window(start: int, span: int, level: int) -> Row:
    figures = {"level": level, "messages_in": 100 * span, "messages_out": 200 * span}
    return {"start": start, "span": span, "cluster": figures, "nodes": {"a": figures}, "worker_levels": {}}


def write(
    server: Any,
    prefix: str,
    *,
    incidents: list[Row],
    found: Row | None,
    job: Row | None,
    episodes: Sequence[Row] = (),
) -> None:
    """As the job writes them."""
    keys = AnalyticsKeys(prefix)
    for key, rows in ((keys.incidents, incidents), (keys.episodes, episodes)):
        for one in rows:
            server.hset(key, one["id"], json.dumps(one))
    if found is not None:
        server.set(keys.findings, json.dumps(found))
    if job is not None:
        server.set(keys.status, json.dumps(job))
