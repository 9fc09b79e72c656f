from typing import Any

import pytest

from cli.load.conductor import Observed
from cli.load.histogram import Histogram
from cli.load.process import Result
from cli.load.report import Summary, summarise
from tests.load.test_plan import plan


def result(**changes: Any) -> Result:
    """One process of two that had nothing special; 500 messages in a second to one subscriber each."""
    latencies = Histogram()
    latencies.add(1000, 400)
    latencies.add(3000, 100)
    normal: dict[str, Any] = {
        "seconds": 1.0,
        "sent": 500,
        "expected": 500,
        "received": 500,
        "connected": 4,
        "latest": 1_000_000,
        "cpu": 0.1,
        "busy": 0.1,
        "connect_times": [100, 200],
        "latencies": latencies,
    }
    return Result(**{**normal, **changes})


def summary(*results: Result, **changes: Any) -> Summary:
    return summarise(plan(processes=2, **changes), Observed(list(results), False, False))


def test_processes_add_up() -> None:
    """Half of a load would be reported as all of it."""
    two = summary(result(), result(duplicates=1, received=499, busy=0.5, lost=1, reconnects=1))

    assert (1000, 1000, 999, 2, 1) == (two.sent, two.expected, two.received, two.lost, two.duplicates)
    assert (1000.0, 999.0, 1000) == (two.sent_per_s, two.received_per_s, two.latencies.count)
    assert (8, 1, 1, 0.5) == (two.connected, two.connections_lost, two.reconnects, two.busiest)
    assert 4 == two.connect_times.count
    assert 0.2 * 1_000_000 / 999 == pytest.approx(two.cpu_us_per_message)


def test_json_has_what_the_page_has() -> None:
    """Programs would have to read the page for people."""
    told: Any = summary(result(), result()).as_json()

    assert [(1003, 800), (3000, 200)] == told["latency_histogram_us"]
    assert {"p50": 1003, "max": 3000} == {key: told["latency_us"][key] for key in ("p50", "max")}
    assert (1000, 0, False) == (told["sent"], told["lost"], told["broker_gone"])


def late(us: int) -> Histogram:
    histogram = Histogram()
    histogram.add(0, 97)
    histogram.add(us, 3)
    return histogram


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"busy": 0.95}, "was the bottleneck: one of its processes used 95% of a core"),
        ({"lateness": late(1500)}, "was the bottleneck: 1 % of the messages left 1.5 ms late"),
        (
            {"waiting": 0.2, "lateness": late(9000)},
            "too busy for measurements: a process of the load generator waited 20%",
        ),
        ({"overdue": 7}, "did not keep up with --rate 100: 0 messages left late"),
        ({"delayed": 70}, "70 messages left late because it was not ready"),
        ({"stalls": 2}, "Windows made no progress for 2 s, 2 times"),
        ({"refused": 3, "refusal": 0x97}, "refused 3 messages: 0x97, quota exceeded."),
        ({"foreign": 5}, "5 messages of other publishers"),
        (
            {"lost": 4, "first_lost": 1_500_000, "missing": 4, "why": "h:1 closed the connection."},
            "4 connections were lost, the first after 1.5 s; 0 were reconnected, 4 were missing at the end: h:1 closed",
        ),
    ],
)
def test_what_a_figure_does_not_say_is_said_in_a_sentence(changes: dict[str, Any], words: str) -> None:
    """The figures of a tool at its limit would be taken for the broker's."""
    notes = summary(result(), result(**changes), rate=100).notes

    assert 1 == len(notes), notes
    assert words in notes[0]


def test_nothing_is_said_when_nothing_was_wrong() -> None:
    """A warning that is always there is not read."""
    assert [] == summary(result(), result(lateness=late(900), delayed=5)).notes


def test_a_load_that_was_ended_before_it_began_is_reported() -> None:
    """Ctrl-C while connecting would end in a division by zero."""
    nothing = summary()
    assert (0, 0.0, 0.0, []) == (nothing.sent, nothing.sent_per_s, nothing.received_per_s, nothing.notes)
