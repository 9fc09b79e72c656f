# The benchmarks' own programs: what they measure over a transport must have gone over that transport.
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.system.processes import BrokerProcess, packages
from tests.tools.bench import (
    catch_up,
    durable,
    durable_sizes,
    flush,
    hostile,
    node,
    overload,
    protection,
    scale,
    versus,
)
from tests.tools.bench.contenders import MOSQUITTO, TRANSPORTS, WEIR, Bench, beside, build_tool, has_openssl, run_tool
from tests.tools.bench.loads import LOADS

PAIRS = ["--pattern", "p2p", "--pubs", "3", "--qos", "1"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    if not has_openssl():
        pytest.skip("OpenSSL's headers (libssl-dev) are missing")
    return Bench(tmp_path_factory.mktemp("bench"), packages())


def run_mqload(program: Path, broker: BrokerProcess, transport: str, *options: str) -> dict[str, Any]:
    to = ["--transport", transport, "--port", str(broker.port), "--pids", str(broker.pid), "--maxsec", "10"]
    return run_tool([str(program), *to, *options])


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", [WEIR, pytest.param(MOSQUITTO, marks=pytest.mark.nightly)])
def test_messages_pass_and_clients_connect(bench: Bench, name: str, transport: str) -> None:
    """`python -m tests.tools.bench transports` would end with an error, or stall, at this transport."""
    with bench.weir(transport) if name == WEIR else bench.mosquitto(transport) as broker:
        passed = run_mqload(bench.mqload, broker, transport, *PAIRS, "--window", "200", "--count", "600")
        left = run_tool(scale.swarm(bench, broker, "connects", count=40, window=10, transport=transport))
        with beside(scale.swarm(bench, broker, "idle", count=20, window=10, transport=transport)) as idle:
            assert idle.stdout is not None and '"count": 20' in idle.stdout.readline()

    assert (600, 600, 0) == (passed["sent"], passed["received"], passed["stalled"])
    assert 0 < passed["broker_cpu_us_per_rx"]
    assert 40 == left["count"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_send_that_the_socket_takes_in_pieces(bench: Bench, transport: str) -> None:
    """Loads with large payloads would send broken frames or records: these are too large for one of either."""
    with bench.weir(transport) as broker:
        options = [
            "--pattern",
            "p2p",
            "--pubs",
            "1",
            "--qos",
            "1",
            "--window",
            "150",
            "--payload",
            "60000",
            "--count",
            "150",
        ]
        passed = run_mqload(bench.mqload, broker, transport, *options)

    assert (150, 0) == (passed["received"], passed["stalled"])


def test_without_openssl_there_is_no_tls(tmp_path: Path) -> None:
    """Who lacks libssl-dev could not measure anything, or would take figures of TCP for those of TLS."""
    program = build_tool("mqload", tmp_path, tls=False)

    done = subprocess.run([program, "--transport", "tls"], capture_output=True, text=True, timeout=10)

    assert 2 == done.returncode
    assert "made without OpenSSL, so there is no tls and no wss: install libssl-dev" in done.stderr


@pytest.mark.nightly  # 15 s for each
@pytest.mark.parametrize("transport", ["tcp", "ws"])
def test_a_pair_is_measured_beside_an_attacker(bench: Bench, transport: str) -> None:
    """`python -m tests.tools.bench hostile` would show a pair at peace, or end with an error."""
    table, results = hostile.measure(bench, transport, ["garbage"], seconds=1)

    beside_it = results["garbage"]
    assert (hostile.RATE, 0) == (beside_it["received"], beside_it["lost"])
    assert 0 < beside_it["reasons"]["closed/malformed_packet"]
    assert "| garbage" in table


@pytest.mark.nightly
def test_two_workers_are_measured_beside_one(bench: Bench) -> None:
    """`python -m tests.tools.bench node` would compare a node with itself, or end with an error."""
    table, results = node.measure(bench, runs=1, v5=False, least_cpu=0.05, names=["p2p-10-qos1"])

    (measured,) = results.values()
    assert all(0 < one["received"] == one["expected"] for runs in measured.values() for one in runs["results"])
    assert "us a message that crosses" in table


@pytest.mark.nightly
def test_protection_is_measured_on_and_off(bench: Bench) -> None:
    """`python -m tests.tools.bench protection` would compare a node with itself, or end with an error."""
    load = next(load for load in LOADS if load.name == "p2p-10-qos1")
    table, results = protection.measure(bench, [load], runs=2, v5=False, least_cpu=0.05)

    measured = results["p2p-10-qos1"]
    assert ["protected", "unprotected"] == list(measured)
    assert all(0 < one["received"] == one["expected"] for runs in measured.values() for one in runs["results"])
    assert "| p2p-10-qos1" in table
    assert 1 == sum(log.read_text().count("overload_protection_off") for log in bench.folder.glob("broker-*.log"))


def test_another_build_is_started_by_its_own_interpreter(bench: Bench, tmp_path: Path) -> None:
    """`python -m tests.tools.bench versus` would compare a build with itself."""
    load = next(load for load in LOADS if load.name == "p2p-10-qos1")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho >>"{tmp_path}/started"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    table, results = versus.measure(bench, python, bench.packages, [load], runs=2, v5=False, least_cpu=0.05)

    measured = results["p2p-10-qos1"]
    assert ["this", "other"] == list(measured)
    assert all(0 < one["received"] == one["expected"] for runs in measured.values() for one in runs["results"])
    assert "| p2p-10-qos1" in table
    assert 2 == (tmp_path / "started").read_text().count("\n")  # asked for its banner, and started


@pytest.mark.nightly
def test_flushing_is_measured_both_ways(bench: Bench) -> None:
    """`python -m tests.tools.bench flush` would compare a strategy with itself, lose messages, or end with an error."""
    table, results = flush.measure(bench, runs=1, seconds=0.2, rates=(5000,))

    for measured in results["flush"]:
        assert set(flush.STRATEGIES) == set(measured["runs"])
        for runs in measured["runs"].values():
            assert [flush.PUBLISHERS] == [one["received"] for one in runs]
            assert 0 < runs[0]["broker_cpu_us_per_rx"]
    assert "| 2 " in table


@pytest.mark.nightly
@pytest.mark.parametrize("scene", overload.SCENES, ids=lambda scene: scene.name)
def test_an_overload_is_measured_by_the_second(bench: Bench, scene: overload.Scene) -> None:
    """`make charts` would show a run without clients, without memory, or end with an error."""
    surge = build_tool("surge", bench.folder, tls=False)
    with overload.overloaded(bench, protected=True) as weir:
        found = overload.run(surge, weir, scene, overload.CLOSED[0], 0, seconds=3)
        assert weir.control is not None
        records = overload.told(weir.control, time.time() - 3, seconds=3)

    assert [1, 2, 3] == [row["second"] for row in found.rows]
    for row in found.rows:
        assert 0 < float(row["aggressors_received"]) < float(row["goodput"])
        assert 0 < float(row["worker0_mib"]) < float(row["budget_mib"])
    for fleet in (overload.AGGRESSORS, overload.MODEST):
        total = found.total[fleet]
        assert 0 < total["p50_ms"] <= total["p99_ms"]
        assert total["received"] == sum(float(row[f"{fleet}_received"]) for row in found.rows)
    assert any({0, 1} == {record["worker"] for record in second} for second in records)


@pytest.mark.nightly
def test_an_open_loop_offers_what_it_was_told(bench: Bench) -> None:
    """An overload would be one in name alone: clients that wait for answers offer what the broker can do."""
    surge = build_tool("surge", bench.folder, tls=False)
    with overload.overloaded(bench, protected=True) as weir:
        found = overload.run(surge, weir, overload.SCENES[0], overload.AGGRESSIVE, 100, seconds=3)

    assert 290 <= found.total[overload.AGGRESSORS]["sent"] <= 330  # a run that ends late has gone on until then


def test_what_waits_for_clients_that_return_is_measured(bench: Bench) -> None:
    """`python -m tests.tools.bench durable` would end with an error, or measure no live clients."""
    small = catch_up.CatchUp("small", subscribers=20, messages=10, least=0)
    with bench.weir(more=durable.SETTINGS) as weir:
        alone = catch_up.once(bench, small, weir, "alone")
        beside_others = catch_up.once(bench, small._replace(live=500), weir, "beside-others")

    for result in (alone, beside_others):
        assert (200, 200, 0) == (result["received"], result["expected"], result["stalled"])
        assert 0 < result["broker_cpu_us_per_rx"]
    assert 0 == alone["live_p99_us"] < beside_others["live_p99_us"]


@pytest.mark.nightly
def test_what_durable_sessions_take_is_measured(bench: Bench) -> None:
    """`python -m tests.tools.bench durable-sizes` would end with an error, or measure a node without its sessions."""
    _, found = durable_sizes.measure(bench, 300)

    assert 0 < found[durable_sizes.IDLE.what] < durable_sizes.IDLE.most
    assert 0 < found[durable_sizes.ONE.what] < durable_sizes.ONE.most
    assert 13 == len(found)
