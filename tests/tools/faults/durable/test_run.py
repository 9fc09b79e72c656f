# A short run with faults, and the parts of the tool that a run rests on.
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from broker.config.schema import POWER, PROCESS
from tests.system.processes import HOST, free_port
from tests.tools.faults.durable import moves
from tests.tools.faults.durable.__main__ import Summary, campaign, options, report
from tests.tools.faults.durable.__main__ import run as run_one
from tests.tools.faults.durable.client import Run
from tests.tools.faults.durable.cold import COOLED, NAMES, READ, ColdClients
from tests.tools.faults.durable.counters import NodeCounters
from tests.tools.faults.durable.judged_run import LAST_WORDS, Outcome
from tests.tools.faults.durable.plan import (
    BEHIND_PROXY,
    CUT_POWER,
    DEATHS,
    EMBEDDED,
    KILL_WORKER,
    MOST_DEATHS,
    READING,
    RESTARTS,
    plan,
)
from tests.tools.faults.durable.power import (
    DAMAGED_TAILS,
    EXACT,
    PARTIAL,
    compile_recorder,
    compiler,
    cut,
    read_record,
)
from tests.tools.faults.durable.proxy import TO_CLIENT, Proxy
from tests.tools.faults.durable.run import DurableRun
from tests.tools.fuzz.loop import Loop

PATIENCE = 10.0  # seconds for what should take milliseconds
needs_compiler = pytest.mark.skipif(compiler() is None, reason="there is no C compiler")


@pytest.fixture
def folder() -> Iterator[Path]:
    """One whose sockets have short paths."""
    path = Path(tempfile.mkdtemp(prefix="weir-"))
    yield path
    shutil.rmtree(path)


@needs_compiler
@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize(
    ("seed", "workers"), [(797, 3), (2728, 2)]
)  # behind a proxy; with a power cut that the class covers
def test_stored_sessions_lose_nothing_whatever_is_harmed(folder: Path, seed: int, workers: int) -> None:
    """An acknowledged message would be lost or doubled with a process, a connection to Redis, or the power."""
    outcome = DurableRun(folder, seed, workers, faults=10, brisk=True).go()

    print(report(outcome))  # with the seed, which a failure needs
    assert [] == outcome.failures
    assert outcome.figures["acknowledged"] > 0


def test_a_plan_follows_from_its_seed_and_does_not_end_the_node() -> None:
    """A run could not be repeated, or would find a node that gave up, as it should."""
    assert plan(Random(5), EMBEDDED, POWER, 2, 20) == plan(Random(5), EMBEDDED, POWER, 2, 20)
    assert plan(Random(5), EMBEDDED, POWER, 2, 20) != plan(Random(6), EMBEDDED, POWER, 2, 20)
    for seed in range(100):
        deaths = 0
        for each in plan(Random(seed), EMBEDDED, POWER, 2, 50):
            deaths = 0 if each.kind in RESTARTS else deaths + (each.kind in DEATHS)
            assert deaths <= MOST_DEATHS


def test_sessions_that_are_read_are_harmed_only_where_some_are_cold() -> None:
    """A brisk run is over before a session is cold: it would wait for one at each fault."""
    kinds = {each.kind for each in plan(Random(1), EMBEDDED, POWER, 2, 500)}
    assert kinds >= READING.keys()
    assert not READING.keys() & {each.kind for each in plan(Random(1), EMBEDDED, POWER, 2, 500, brisk=True)}


def test_power_is_cut_where_something_syncs() -> None:
    """A server that nobody syncs would lose everything, and lawfully so."""
    kinds = {each.kind for each in plan(Random(1), BEHIND_PROXY, PROCESS, 2, 500)}
    assert CUT_POWER not in kinds
    assert CUT_POWER in {each.kind for each in plan(Random(1), BEHIND_PROXY, POWER, 2, 500)}


# A campaign.


def outcome(seed: int, *failures: str) -> Outcome:
    found = Outcome(seed, "embedded", failures=list(failures))
    found.kinds.update({KILL_WORKER: 2, CUT_POWER: 1})
    found.verdicts.update(["lost"] if failures else [])
    found.figures = {"acknowledged": 1000, "delivered": 5000, COOLED: 7, READ: 5}
    return found


def test_a_summary_adds_up_what_the_runs_found() -> None:
    """The seed of a failure, or its kind, would be lost in a thousand lines."""
    summary = Summary()
    for found in (outcome(7), outcome(8, "lost"), outcome(9, "lost")):
        summary.add(found)
    told = str(summary).splitlines()

    assert told[0].startswith("2 of 3 runs failed; 9 faults in ")
    assert ["6 kill worker", "3 cut power"] == [line.strip() for line in told[1:3]]
    assert "     3000 acknowledged" in str(summary)
    assert "       21 went cold\n         15 were read again" in str(summary)
    assert "     2 lost" in str(summary)
    assert "seeds of runs that failed: 8 9" == told[-1]


@pytest.mark.parametrize(("words", "seeds"), [([], [1, 2]), (["--keep-going"], [1, 2, 3])])
def test_a_campaign_keeps_what_a_failure_left_and_goes_on_if_it_is_asked_to(
    tmp_path: Path, words: list[str], seeds: list[int]
) -> None:
    """The logs of a failure would be gone, or the first one would end a night's runs."""
    asked: list[int] = []

    def run(folder: Path, seed: int, workers: int, faults: int, messages: int) -> Outcome:
        asked.append(seed)
        (folder / "node.log").write_text(f"{workers} workers, {faults} faults, {messages} messages")
        return outcome(seed, *(["lost"] if seed == 2 else []))

    given = ["--seed", "1", "--faults", "50", "--messages", "10", "--keep", f"{tmp_path}", *words]
    summary = campaign(options().parse_args(given), run)

    assert seeds == asked
    assert [2] == summary.failed
    (kept,) = tmp_path.iterdir()
    assert "2 workers, 20 faults, 200 messages" == (kept / "node.log").read_text()


def test_a_node_that_does_not_start_is_a_failure_of_its_run(tmp_path: Path) -> None:
    """It would end the campaign, without a summary."""
    (tmp_path / "node").write_text("a file, where the node wants its folder")
    found = run_one(tmp_path, 1, 2, 1, 0)

    assert [True] == [len(failure) < 2 * LAST_WORDS for failure in found.failures]
    assert "did not end" == found.told


def test_the_file_of_redis_shows_where_a_session_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody could tell which worker had ended a session, or whose it was, when a message is lost."""

    def written(*words: str) -> bytes:
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in words)

    (tmp_path / "appendonlydir").mkdir()
    data = written("SADD", "weir:{1}:sessions:a", "me") + b"#TS:17\r\n" + written("SET", "weir:{1}:owner:you", "1")
    data += written("RENAME", "weir:{1}:session:a:me", "weir:{1}:session:b:me") + written("DEL", "x")[:-3]
    (tmp_path / "appendonlydir" / "appendonly.aof.1.incr.aof").write_bytes(data)

    assert 0 == moves.main([str(tmp_path), "me"])
    _, added, renamed = capsys.readouterr().out.splitlines()
    assert "1 SADD weir:{1}:sessions:a me" == added.strip()
    assert "3 RENAME weir:{1}:session:a:me weir:{1}:session:b:me" == renamed.strip()


# Cold sessions.


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def admin() -> Iterator[socket.socket]:
    """Where a node would tell its counters."""
    with socket.create_server((HOST, 0)) as listener:
        listener.settimeout(PATIENCE)
        yield listener


def answer(admin: socket.socket, loop: Loop, counters: NodeCounters, told: bytes | None) -> None:
    """Have *counters* read *told*, which is sent in two parts; None: the connection ends instead."""
    counters.ask()
    node, _ = admin.accept()
    node.settimeout(0.0)
    with node:
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            loop.turn(0.01)
            try:
                request += node.recv(1000)
            except BlockingIOError:
                continue
        for part in () if told is None else (told[:30], told[30:]):
            node.sendall(part)
            loop.turn(0.01)
    deadline = time.monotonic() + PATIENCE
    while counters.waiting() and time.monotonic() < deadline:
        loop.turn(0.01)
    assert not counters.waiting()


def exposition(cooled: int, read: int) -> bytes:
    lines = f"# HELP\nweir_sessions_cooled_total {cooled}.0\nweir_sessions_warmed_total {read}.0\n"
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n{lines}".encode()


def test_counters_go_on_over_the_ends_of_supervisors(admin: socket.socket, loop: Loop) -> None:
    """A run would tell of the time since its last restart alone, or take half of an answer for zero."""
    counters = NodeCounters(loop, admin.getsockname()[1], NAMES)
    answer(admin, loop, counters, exposition(10, 4))
    answer(admin, loop, counters, exposition(12, 5))
    answer(admin, loop, counters, None)
    answer(admin, loop, counters, exposition(3, 60)[:-4])  # 6
    answer(admin, loop, counters, exposition(3, 60)[:-10])
    assert {COOLED: 12, READ: 5} == counters.totals
    answer(admin, loop, counters, exposition(3, 6))
    assert {COOLED: 15, READ: 6} == counters.totals

    admin.close()
    counters.ask()
    while counters.waiting():
        loop.turn(0.01)
    assert {COOLED: 15, READ: 6} == counters.totals


def test_a_run_wants_cold_sessions_that_are_read_again(loop: Loop) -> None:
    """A run in which no session was cold would be said to be well."""
    run = Run(loop, free_port(), Random(1), lambda event: None)
    counters = NodeCounters(loop, run.port, NAMES)
    cold = ColdClients(run, counters)
    found = []
    for cooled, read in ((0, 0), (3, 0), (0, 3), (1, 1)):
        counters.totals = {COOLED: cooled, READ: read}
        found.append(cold.proven())

    run.close()
    assert [False, False, False, True] == found


# Power.


def files(folder: Path, *, written: int, synced: int) -> tuple[Path, Path]:
    """An append-only file of *written* bytes, and a record that says that *synced* of them are on the disk."""
    path, record = folder / "appendonly.aof.1.incr.aof", folder / "synced"
    path.write_bytes(bytes(range(written)))
    record.write_text(f"1 5 6\n{path.stat().st_ino} {synced} 7000000000\n")
    return path, record


def test_a_power_cut_takes_what_was_not_synced(tmp_path: Path) -> None:
    """A run would take for durable what is in the memory of the kernel."""
    path, record = files(tmp_path, written=100, synced=60)
    found = cut([path], record, EXACT, Random(1))

    assert bytes(range(60)) == path.read_bytes()
    assert 7.0 == found.since
    assert 60 == read_record(record)[path.stat().st_ino][0]


def test_a_power_cut_leaves_what_was_synced(tmp_path: Path) -> None:
    """A loss would be excused that the class of durability does not allow."""
    path, record = files(tmp_path, written=100, synced=100)
    found = cut([path], record, PARTIAL, Random(1))

    assert bytes(range(100)) == path.read_bytes()
    assert float("inf") == found.since


def test_a_torn_tail_begins_with_what_was_written(tmp_path: Path) -> None:
    """A disk that has more than it was asked for would not be tried."""
    sizes = set()
    for seed in range(20):
        path, record = files(tmp_path, written=100, synced=60)
        cut([path], record, PARTIAL, Random(seed))
        assert bytes(range(100)).startswith(path.read_bytes())
        sizes.add(path.stat().st_size)
    assert len(sizes) > 5
    for tail in DAMAGED_TAILS:
        path, record = files(tmp_path, written=100, synced=60)
        cut([path], record, tail, Random(1))
        assert path.read_bytes().startswith(bytes(range(60)))
        assert not bytes(range(100)).startswith(path.read_bytes())


@needs_compiler
def test_what_a_process_syncs_is_recorded_with_the_size_that_it_had(tmp_path: Path) -> None:
    """A power cut would take everything, or nothing."""
    record, path = tmp_path / "synced", tmp_path / "file"
    program = (
        "import os, sys; file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "for sync in (os.fdatasync, os.fsync): os.write(file, b'12345'); sync(file)\n"
        "os.write(file, b'123')"
    )
    environment = {**os.environ, "LD_PRELOAD": str(compile_recorder(tmp_path)), "SYNC_RECORD": str(record)}
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", program, path], env=environment, check=True)
    size, at = read_record(record)[path.stat().st_ino]

    assert 13 == path.stat().st_size
    assert 10 == size
    assert began <= at <= time.monotonic()


# The proxy.


@pytest.fixture
def proxied(folder: Path) -> Iterator[tuple[Proxy, socket.socket, socket.socket]]:
    """A proxy, and both ends of a connection through it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "server"))
    listener.listen()
    proxy = Proxy(folder / "proxy", folder / "server")
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(folder / "proxy"))
    server, _ = listener.accept()
    for end in (client, server):
        end.settimeout(PATIENCE)
    yield proxy, client, server
    proxy.close()
    for end in (client, server, listener):
        end.close()


def read_all(end: socket.socket) -> bytes:
    data = b""
    try:
        while more := end.recv(100):
            data += more
    except ConnectionResetError:
        pass
    return data


def test_a_proxy_cuts_connections_in_the_middle_of_a_frame(
    proxied: tuple[Proxy, socket.socket, socket.socket],
) -> None:
    """A worker would never see half of a reply."""
    proxy, client, server = proxied
    client.sendall(b"request")
    assert b"request" == server.recv(100)
    proxy.cut(TO_CLIENT, 3)
    client.sendall(b"more")
    assert b"more" == server.recv(100)
    while not proxy.armed():
        pass
    server.sendall(b"reply")

    assert b"rep" == read_all(client)
    assert b"" == server.recv(100)


def test_a_proxy_that_is_mute_passes_nothing_and_closes_in_the_end(
    proxied: tuple[Proxy, socket.socket, socket.socket],
) -> None:
    """A half-open connection would be one that is closed."""
    proxy, client, server = proxied
    proxy.mute(True)
    client.sendall(b"request")
    assert ([], [], []) == select.select([server], [], [], 0.05)
    proxy.heal()

    assert b"" == read_all(server) == read_all(client)


def test_a_proxy_delays(proxied: tuple[Proxy, socket.socket, socket.socket]) -> None:
    """A slow server would be a quick one."""
    proxy, client, server = proxied
    proxy.delay(0.05)
    began = time.monotonic()
    client.sendall(b"request")
    assert b"request" == server.recv(100)

    assert time.monotonic() - began >= 0.05
