# What `weir top` shows of what nodes tell.
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.heavy_hitters import HeavyHitters
from broker.metrics.latency import Latencies
from broker.metrics.overload_figures import OverloadFigures
from broker.metrics.pause_statistics import PauseStatistics
from broker.metrics.record import misfit
from broker.metrics.recorder import Recorder
from broker.reasons import DropReason, PauseReason
from broker.worker_id import WorkerId
from cli.heavy_hitters import ORDERS
from cli.top_view import screen, together

Told = dict[str, Any]

CALM = OverloadFigures()
LATE = OverloadFigures(
    level=6, cluster_level=6, cause="lag", signals={"lag": 3.2}, credits_per_tick=750, throttled=3, using_credits=3
)


def worker(number: int, overload: OverloadFigures = CALM, heavy: int = 1) -> Told:
    """What a worker tells of a second in which *heavy* clients and topics cost much."""
    counters, clients, topics = Counters(), HeavyHitters(), HeavyHitters()
    pauses = PauseStatistics(counters, clients)
    recorder = Recorder(counters, clients, topics, Latencies(), pauses, worker=WorkerId("n", number, 0), now=0.0)
    counters.publishes_received = 12_345
    counters.publishes_sent = 2_400_000
    counters.dropped(DropReason.NOT_WRITABLE, 12)
    for n in range(heavy):
        clients.add(f"client-{number}-{n}", 1000 - n, n, 50 + n)
        topics.add(b"plant/line-%d/temperature" % n, 500 - n, n, 25 + n)
    pauses.begin(f"client-{number}-0", PauseReason.CREDITS, 0.5)
    record = recorder.record(1.0, 1e9, Gauges(clients_connected=100, overload=overload), {})
    assert "" == misfit(record)
    return {"worker": number, "state": "serving", "record": record}


def node(name: str, *workers: Told) -> Told:
    return {"node": name, "workers": list(workers)}


def shown(nodes: list[Told], width: int = 120, height: int = 40, by: str = "cost") -> str:
    out = StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=False)
    for part in screen(nodes, by, height, "weir top"):
        console.print(part)
    return out.getvalue()


TROUBLE = [
    node("left", worker(0, LATE, 12), worker(1), {"worker": 2, "state": "starting", "error": "Worker 2 is starting."}),
    node("right", worker(0), {"worker": 1, "state": "serving", "record": None}),
    {"node": "gone", "error": "The node gone does not answer."},
]


def test_a_screen_names_the_worker_that_suffers_and_the_client_that_costs() -> None:
    """Somebody would see that something is wrong, and neither where nor who."""
    lines = shown(TROUBLE).splitlines()

    (late,) = [line for line in lines if "lag 3.20" in line]
    assert ["left", "0", "6", "100", "3", "750", "12.3k", "2.4M"] == late.split()[:8]
    assert "dropped/s: 36 not_writable   throttled: 3 for credits" in lines
    (heaviest,) = [line for line in lines if line.startswith("client-0-0 ")]
    assert ["2000", "0", "100", "100%"] == heaviest.split()[1:]
    assert any(line.startswith("plant/line-0/temperature") for line in lines)


def test_who_says_nothing_is_named() -> None:
    """A node that hangs would be missing, and the rest look well."""
    text = shown(TROUBLE)

    assert "left: Worker 2 is starting." in text
    assert "right: worker 1 is serving and has no figures yet." in text
    assert "The node gone does not answer." in text


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("height", [24, 50])
def test_it_fits_the_terminal(width: int, height: int) -> None:
    """What matters would scroll away, or lines break in the middle."""
    many = [node("left", *[worker(n, LATE if n == 30 else CALM, 12) for n in range(32)])]
    for nodes in (TROUBLE, many):
        lines = shown(nodes, width, height).splitlines()
        assert max(map(len, lines)) <= width
        assert len(lines) <= height


def test_of_too_many_workers_the_worst_are_shown() -> None:
    """The one that matters would be below the end of the screen."""
    text = shown([node("left", *[worker(n, LATE if n == 30 else CALM) for n in range(32)])], height=24)

    assert "lag 3.20" in text
    assert " more" in text


@pytest.mark.parametrize("by", ORDERS)
def test_programs_and_people_get_the_same_order(by: str) -> None:
    """A script would act on another client than the one that is shown."""
    told = together(TROUBLE, by)
    first = told["clients"][0]["client"]
    text = shown(TROUBLE, by=by)
    rows = [line for line in text.splitlines() if line.startswith("client-")]

    assert rows[0].startswith(first)
    assert f"{by}/s ▼" in text
    assert f"{by} is " in text
    assert TROUBLE == told["nodes"]


def test_names_cannot_paint_on_the_terminal() -> None:
    """A client could hide from the list by its id, or write another's name into it."""
    evil = worker(0)
    evil["record"]["top"]["clients"]["rows"][0]["client"] = "\x1b[2J[red]" + "x" * 200

    text = shown([node("left", evil)], width=80)

    assert "\\x1b[2J[red]" in text
    assert max(map(len, text.splitlines())) <= 80
