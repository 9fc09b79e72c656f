import copy
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.heavy_hitters import HeavyHitters
from broker.metrics.latency import Latencies
from broker.metrics.overload_figures import OverloadFigures
from broker.metrics.pause_statistics import PauseStatistics
from broker.metrics.record import LONGEST_NAME, RECORD, TOP, Group, Kind, Rows, Table, misfit
from broker.metrics.recorder import Recorder, Store, encoded
from broker.reasons import CloseReason, DropReason, FilterRefusal, PauseReason, PublishRefusal
from broker.worker_id import WorkerId

BEGAN, WALL = 1000.0, 1_700_000_000.0


class Worker:
    """What a recorder is made of, and its clock."""

    def __init__(self) -> None:
        self.now = BEGAN
        self.counters = Counters()
        self.clients = HeavyHitters()
        self.topics = HeavyHitters()
        self.latencies = Latencies()
        self.pauses = PauseStatistics(self.counters, self.clients)
        self.recorder = Recorder(
            self.counters,
            self.clients,
            self.topics,
            self.latencies,
            self.pauses,
            worker=WorkerId("a", 3, 0xB00),
            now=self.now,
        )

    def record(
        self, after: float = 1.0, gauges: Gauges | None = None, stores: dict[str, Store] | None = None
    ) -> dict[str, Any]:
        """The record of the next seconds, as a reader gets it."""
        self.now += after
        wall = WALL + self.now - BEGAN
        made = encoded(self.recorder.record(self.now, wall, gauges or Gauges(), stores or {}))
        record: dict[str, Any] = json.loads(made)
        assert "" == misfit(record)
        return record

    def work(self) -> None:
        """A little of everything."""
        self.counters.connects_received += 3
        self.counters.connects_accepted += 2
        self.counters.connects_refused += 1
        self.counters.publishes_received += 5
        self.counters.publish_bytes_received += 50
        self.counters.publishes_sent += 7
        self.counters.publish_bytes_sent += 70
        self.counters.became_non_writable += 1
        self.counters.dropped(DropReason.EXPIRED, 4)
        self.counters.closed(CloseReason.KICKED)
        self.counters.filter_refused(FilterRefusal.LEVELS)
        self.counters.publish_refused(PublishRefusal.GATE_TIMEOUT)
        self.counters.flushes_by_cause["tick"] += 6
        self.clients.add("c", 100, 5, 50)
        self.topics.add(b"t", 90, 5, 50)
        self.latencies.add(0.002, 5)
        self.pauses.begin("c", PauseReason.GATE, self.now)
        self.pauses.end("c", self.now + 0.5)


def names(kind: Kind, found: Any) -> list[str]:
    """The fields of *found* that *kind* does not have."""
    if isinstance(kind, Group):
        inner = [f"{name}.{more}" for name, of in kind.fields.items() for more in names(of, found[name])]
        return sorted(found.keys() - kind.fields.keys()) + inner
    if isinstance(kind, Table):
        return [more for value in found.values() for more in names(kind.of, value)]
    return [more for row in found for more in names(kind.of, row)] if isinstance(kind, Rows) else []


def test_a_record_says_what_happened() -> None:
    """The analysis would get other figures than the broker counted."""
    worker = Worker()
    worker.work()
    overload = OverloadFigures(
        level=2,
        cluster_level=4,
        cause="lag",
        signals={"lag": 1.25},
        credits_per_tick=12_500,
        using_credits=1,
        average_credits=49_000.0,
        throttled=1,
    )
    gauges = Gauges(
        clients_connected=8,
        queued=2,
        queued_bytes=20,
        queued_limit=200,
        non_writable=3,
        outbound_bytes=30,
        outbound_limit=300,
        overload=overload,
    )
    figures = {"cost": 100, "messages": 5, "bytes": 50, "paused_ms": 500}
    exact = {"cost": 0, "messages": 0, "bytes": 0, "paused_ms": 0}

    record = worker.record(1.5, gauges, {"redis": Store(1, 2, 9)})

    assert {
        "version": 1,
        "ts": WALL + 1.5,
        "interval_s": 1.5,
        "node": "a",
        "worker": 3,
        "boot": "0000000000000b00",
        "sequence": 0,
        "level": 2,
        "cluster_level": 4,
        "cause": "lag",
        "signals": {"lag": 1.25},
        "credits_per_tick": 12_500,
        "clients": {
            "connected": 8,
            "throttled": 1,
            "using_credits": 1,
            "average_credits": 49_000.0,
            "non_writable": 3,
            "became_non_writable": 1,
        },
        "paused": {"gate": {"clients": 1, "pauses": 1, "ms": 500}},
        "connects": {"received": 3, "accepted": 2, "refused": 1},
        "in": {"messages": 5, "bytes": 50},
        "out": {"messages": 7, "bytes": 70},
        "dropped": {"expired": 4},
        "refused": {"topic_levels": 1, "gate_timeout": 1},
        "closed": {"kicked": 1},
        "queues": {
            "messages": 2,
            "bytes": 20,
            "limit_bytes": 200,
            "outbound_bytes": 30,
            "outbound_limit_bytes": 300,
        },
        "latency": {"messages": 5, "p50_ms": pytest.approx(2.0, rel=0.02), "p99_ms": pytest.approx(2.0, rel=0.02)},
        "stores": {"redis": {"used_bytes": 1, "limit_bytes": 2, "ops": 9}},
        "flushes": {"tick": 6},
        "top": {
            "clients": {"rows": [{"client": "c", **figures}], "error": exact, "others": 0},
            "topics": {
                "rows": [{"topic": "t", "cost": 90, "messages": 5, "bytes": 50, "paused_ms": 0}],
                "error": exact,
                "others": 0,
            },
        },
    } == record


def test_filters_and_publishes_are_refused_for_reasons_of_different_names() -> None:
    """Both are in one table of the record: one count would replace the other."""
    assert set() == {reason.label for reason in FilterRefusal} & {reason.label for reason in PublishRefusal}


def test_nothing_in_it_is_cumulative() -> None:
    """The sum of records would count everything again in each record."""
    worker = Worker()
    worker.work()
    first = worker.record(stores={"redis": Store(0, 0, 9)})
    quiet = worker.record(stores={"redis": Store(0, 0, 9)})
    worker.work()
    third = worker.record(stores={"redis": Store(0, 0, 18)})

    assert [0, 1, 2] == [record["sequence"] for record in (first, quiet, third)]
    told = {"sequence": 0, "ts": 0}
    assert first | told == third | told
    assert Worker().record(stores={"redis": Store(0, 0, 0)}) | told == quiet | told


def test_a_record_has_the_fields_of_its_form_and_no_others() -> None:
    """Records would have fields that RECORD does not describe, and the analysis would not read them."""
    worker = Worker()
    worker.work()
    record = worker.record(gauges=Gauges(overload=OverloadFigures(signals={"lag": 0.5})), stores={"s": Store(1, 1, 1)})

    assert [] == names(RECORD, record)


@given(
    st.text(max_size=100),
    st.binary(max_size=40).map(lambda data: data.decode("utf-8", "replace").encode()),
    st.integers(0),
)
def test_any_client_and_any_topic_can_be_told(client: str, topic: bytes, figure: int) -> None:
    """A name that a client chose would make a record that nobody can read, or none at all."""
    worker = Worker()
    worker.clients.add(client, figure % 2**60, 1, 1)
    worker.topics.add(topic, 1, figure % 2**60, 1)

    top = worker.record()["top"]

    assert [client[:LONGEST_NAME]] == [row["client"] for row in top["clients"]["rows"]]
    assert [topic.decode()[:LONGEST_NAME]] == [row["topic"] for row in top["topics"]["rows"]]


def test_a_record_is_of_bounded_size() -> None:
    """Clients with long names would have each record cost megabytes of Redis."""
    worker = Worker()
    for number in range(5000):
        name = f"{number} " + "x" * 4000
        worker.clients.add(name, number, 5000 - number, number * 3 % 5003)
        worker.topics.add(name.encode(), number, 5000 - number, number * 3 % 5003)

    record = worker.record()

    assert TOP < len(record["top"]["clients"]["rows"]) <= 3 * TOP
    assert {LONGEST_NAME} == {len(row["topic"]) for row in record["top"]["topics"]["rows"]}
    assert record["top"]["topics"]["error"]["cost"] > 0
    assert record["top"]["clients"]["others"] > 0
    assert len(encoded(record)) < 2 * 4 * TOP * (LONGEST_NAME + 200)


def test_the_form_needs_nothing_of_the_broker() -> None:
    """The analysis would have to import the compiled broker to read a record."""
    program = "import sys, broker.metrics.record; print(*[name for name in sys.modules if name.startswith('broker')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)

    assert ["broker", "broker.metrics", "broker.metrics.record"] == done.stdout.split()


def test_a_signal_that_is_no_number_is_left_out() -> None:
    """A signal that is infinite would make the record invalid JSON, during the overload."""
    signals = {"lag": float("nan"), "memory": float("inf"), "connect": 0.5}

    assert {"connect": 0.5} == Worker().record(gauges=Gauges(overload=OverloadFigures(signals=signals)))["signals"]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["level"], -1, "level"),
        (["level"], 1.5, "level"),
        (["level"], True, "level"),
        (["level"], 2**63, "level"),
        (["ts"], "now", "ts"),
        (["ts"], float("inf"), "ts"),
        (["node"], None, "node"),
        (["signals"], [], "signals"),
        (["signals", "lag"], "high", "signals.lag"),
        (["clients", "connected"], None, "clients.connected"),
        (["paused", "gate"], {"clients": 1, "ms": 1}, "paused.gate.pauses"),
        (["top", "clients", "rows"], {}, "top.clients.rows"),
        (["top", "clients", "rows"], [{}] * 41, "top.clients.rows"),
        (["top", "clients", "rows"], [{"client": 1}], "top.clients.rows[0]"),
    ],
)
def test_what_does_not_fit_is_named(path: list[str], value: object, said: str) -> None:
    """A corrupt record would stop the analysis, or get into its sums."""
    record = copy.deepcopy(Worker().record())
    inner = record
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value

    assert misfit(record).startswith(said)


def test_what_is_missing_is_named_and_what_is_more_is_no_matter() -> None:
    """An older job would refuse all records of a newer broker, or take half a record for a whole one."""
    record = Worker().record()
    record["news"] = 1
    assert "" == misfit(record)
    del record["in"]["bytes"]
    assert "in.bytes: missing" == misfit(record)
    assert "the record: not an object" == misfit([])
