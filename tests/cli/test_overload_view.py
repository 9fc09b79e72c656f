# What `weir overload` shows of what a node tells.
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from cli.overload_view import calm, line, screen, seconds

Told = dict[str, Any]


def signal(name: str, value: float = 0.0, **more: object) -> Told:
    return {"name": name, "value": value, "resource": "here/0", "contended_s": None, "injected_s": None, **more}


def worker(number: int, level: float = 0.0, **more: object) -> Told:
    """A worker that answered; calm, but for *level* and *more*."""
    cause = "lag" if level else ""
    told = {
        "enabled": True,
        "level": level,
        "cause": cause,
        "worst": 3.2 if level else 0.1,
        "signals": [signal("lag", 3.2 if level else 0.1), signal("memory"), signal("outbound"), signal("connect")],
        "cluster": {"level": level, "cause": cause, "value": 3.2, "node": "here", "worker": number},
        "credits": {"per_tick": 750.0 if level else 50_000.0, "when_calm": 50_000, "tick_s": 0.2, "most": 3750.0},
        "held": {},
        "connects": {"waiting": 0, "oldest_s": 0.0},
        "reports": {"heard": [], "others": 0, "ignored": {}, "lost_redis": 0},
        "trace": None,
        **more,
    }
    return {"worker": number, "state": "serving", "overload": told}


def node(*workers: Told) -> Told:
    return {"node": "here", "workers": list(workers)}


def said(name: str, number: int, level: float, age: float = 0.3) -> Told:
    facts = {"node": name, "worker": number, "level": level, "cause": "memory", "value": 1.5}
    return {**facts, "contended": [f"{name}/{number}"], "age_s": age, "counts": age <= 1.0}


def heard(*reports: Told, **ignored: int) -> Told:
    return {"heard": list(reports), "others": 0, "ignored": ignored, "lost_redis": 2}


def shown(told: Told, width: int = 120) -> str:
    out = StringIO()
    console = Console(file=out, width=width, force_terminal=False)
    for part in screen(told):
        console.print(part)
    return out.getvalue()


TROUBLE = node(
    worker(
        0,
        5.6,
        signals=[
            signal("lag", 3.2, contended_s=12.4, injected_s=47.6),
            signal("here/1", 1.3, resource="here/1", contended_s=0.31),
            signal("memory", 0.04),
        ],
        held={
            "credits": {"clients": 3, "interval_ms": 2900, "minute_ms": 130_000},
            "gate": {"clients": 1, "interval_ms": 40, "minute_ms": 40},
        },
        connects={"waiting": 12, "oldest_s": 0.42},
        reports=heard(said("far", 0, 2.2), said("gone", 1, 9.9, age=40.0), malformed=3),
    ),
    worker(1, 0.0),
    {"worker": 2, "state": "serving", "error": "Worker 2 did not answer within 5 seconds."},
)


def test_calm_is_one_sentence() -> None:
    """Somebody would search tables for a trouble that there is none of."""
    assert "No overload: here is at level 0, and no client is throttled.\n" == shown(node(worker(0), worker(1)))
    with_others = node(worker(0, reports=heard(said("far", 0, 0.0), said("gone", 0, 0.0, age=9.0))))
    assert "here and 1 other node are at level 0" in calm(with_others)


@pytest.mark.parametrize(
    "unrest",
    [
        worker(1, 0.1),
        worker(1, enabled=False),
        worker(1, signals=[signal("lag", injected_s=3.0)]),
        worker(1, signals=[signal("lag", 0.5, contended_s=3.0)]),
        worker(1, connects={"waiting": 1, "oldest_s": 0.1}),
        worker(1, held={"gate": {"clients": 1, "interval_ms": 0, "minute_ms": 0}}),
        worker(1, cluster={"level": 2.0, "cause": "lag", "value": 1.0, "node": "far", "worker": 0}),
        {"worker": 1, "state": "dead"},
    ],
)
def test_what_is_not_calm_is_not_said_to_be(unrest: Told) -> None:
    """A trouble would be called calm."""
    assert "" == calm(node(worker(0), unrest))
    assert "calm:" not in line(node(worker(0), unrest))


def test_trouble_says_how_bad_because_of_what_and_who_pays() -> None:
    """In the middle of an overload somebody would have to work that out of numbers."""
    text = shown(TROUBLE)

    for words in (
        "here  level 6 of 10, caused by lag of worker 0 at 3.20 of its target",
        "each client receives 750 credits every 200 ms, instead of 50000 at level 0",
        "throttled: 3 clients for credits, 1 client for gate",
        "2m 10s",
        "12 CONNECTs waiting, the oldest for 0.42 s",
        "here/0 for 12.4 s",
        "injected, 47.6 s more",
        "4 more signals below 0.05 of the target",
        "Worker 2 did not answer within 5 seconds.",
        "3 ignored as malformed, 2 not accepted by Redis",
        "too long ago to count",
    ):
        assert words in text


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal(width: int) -> None:
    """Lines would break in the middle of a table."""
    assert max(map(len, shown(TROUBLE, width).splitlines())) <= width


def test_a_level_that_comes_from_another_node_says_so() -> None:
    """Somebody would look for the cause on the wrong machine."""
    far = {"level": 3.1, "cause": "memory", "value": 1.5, "node": "far", "worker": 1}
    told = node(worker(0, cluster=far))

    assert "here  level 4 of 10, caused by memory of worker 1 of far at 1.50 of its target" in shown(told)
    assert line(told).startswith("here level 4, caused by memory of worker 1 of far at 1.50 of its target  credits ")


def test_a_line_has_the_same_on_one_line() -> None:
    """What is watched into a file would not be told when it is bad."""
    text = line(TROUBLE)

    assert "throttled 3 clients for credits, 1 client for gate" in text
    assert "CONNECTs waiting 12" in text
    assert text.endswith("with injected signals")
    assert "here: no worker answers" == line(node({"worker": 0, "state": "dead"}))


def test_a_trace_is_mentioned_even_when_all_is_calm() -> None:
    """Somebody would rely on a recording that has ended."""
    trace = {"file": "/data/trace/worker-0.trace", "bytes": 12_345, "limit_bytes": 64_000_000, "left_out": 0}
    going, full = {**trace, "state": "recording"}, {**trace, "state": "it is full", "left_out": 7}
    text = shown(node(worker(0, trace=going), worker(1, trace=full)))

    assert "No overload" in text
    assert "worker 0 records a trace: 12.3kB of 64MB in /data/trace/worker-0.trace" in text
    assert "Worker 1 stopped recording its trace: it is full. 12.3kB of 64MB" in text


def test_names_of_others_cannot_paint_on_the_terminal() -> None:
    """Reports come over Redis from anybody: one could hide what is above it."""
    text = shown(node(worker(0, 1.0, reports=heard(said("\x1b[2J[red]far", 0, 9.0)))))

    assert "\\x1b[2J[red]far" in text


@pytest.mark.parametrize(
    ("time", "text"), [(0.0, "0"), (0.123, "0.12 s"), (9.54, "9.54 s"), (119.0, "119 s"), (190.0, "3m 10s")]
)
def test_seconds_are_short(time: float, text: str) -> None:
    """A column of times would not fit."""
    assert text == seconds(time)
