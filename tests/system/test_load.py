# `weir bench` as users run it: against Weir and Mosquitto, and against what is no broker.
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.system import processes
from tests.system.addresses import TRANSPORTS, Address, Transport
from tests.system.processes import HOST, PATIENCE, BrokerProcess, free_port
from tests.system.raw import RawClient

StartWeir = Callable[..., BrokerProcess]
SCHEMES: dict[Transport, str] = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss"}
WAIT = 9 * PATIENCE  # for a program to begin or to end: it has to be loaded first, and a load waits for what is missing
LONG = ["--seconds", "60", "--rate", "1000"]  # until something happens


@pytest.fixture(params=["weir", pytest.param("mosquitto", marks=pytest.mark.nightly)])
def broker_port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    if request.param == "weir":
        yield request.getfixturevalue("port")
        return
    mosquitto = processes.start_mosquitto(free_port(), tmp_path)
    yield mosquitto.port
    mosquitto.terminate()


def command(broker: int | str, *options: str) -> list[str]:
    address = broker if isinstance(broker, str) else f"{HOST}:{broker}"
    return [sys.executable, "-m", "cli", "bench", address, *options]


def bench(broker: int | str, *options: str, code: int = 0) -> Any:
    """Run it; what it prints as JSON, or the sentence it says if it prints nothing."""
    done = subprocess.run(command(broker, "--json", *options), capture_output=True, text=True, timeout=WAIT)
    assert code == done.returncode, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr


@contextmanager
def running(port: int, *options: str) -> "Iterator[subprocess.Popen[str]]":
    """A load that has begun to publish."""
    with dial_in(port, "running/0") as watcher:
        process = subprocess.Popen(
            command(port, "--json", "--topic", "running/%i", *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            watcher.take()
            yield process
        finally:
            process.kill()
            process.communicate()


@contextmanager
def dial_in(port: int, topic: str) -> Iterator[RawClient]:
    """A client that is subscribed."""
    client = RawClient(port)
    client.socket.settimeout(WAIT)
    client.connect("")
    client.subscribe(topic)
    yield client
    client.close()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(("pattern", "copies"), [("pairs", 1), ("fan-out", 4), ("fan-in", 4)])
def test_every_message_is_sent_and_counted(broker_port: int, pattern: str, copies: int, qos: int) -> None:
    """Losses would be reported that are none, or figures of messages that were never sent."""
    sizes = ["--publishers", "4", "--subscribers", "4"]
    told = bench(broker_port, "--pattern", pattern, *sizes, "-q", str(qos), "--messages", "1000", "--window", "20")

    counted = [told[key] for key in ("sent", "expected", "received", "lost", "duplicates")]
    assert [1000, 1000 * copies, 1000 * copies, 0, 0] == counted
    assert 8 == told["connections"]["connected"]
    assert 0 < told["latency_us"]["p50"] <= told["latency_us"]["max"]


@pytest.mark.parametrize("version", ["3.1", "3.1.1", "5"])
def test_an_open_loop_keeps_its_rate(broker_port: int, version: str) -> None:
    """What was asked for would not be what was measured."""
    # Ten messages of each: less than any broker's receive maximum, so that a busy one cannot hold them back.
    told = bench(broker_port, "--version", version, "--rate", "200", "--seconds", "1", "--publishers", "20")

    assert (200, 200, 0) == (told["sent"], told["received"], told["lost"])
    assert 1.0 <= told["seconds"]


def test_another_client_sees_exactly_what_the_load_says_it_sent(broker_port: int) -> None:
    """The tool would be its own only witness."""
    witness = RawClient(broker_port)
    witness.connect("witness")
    witness.subscribe("seen/#", qos=1)

    told = bench(broker_port, "--topic", "seen/%i", "--publishers", "3", "--messages", "300", "--payload", "33")

    messages = [witness.take() for _ in range(300)]
    witness.ping()
    assert 300 == told["sent"]
    assert {33} == {len(message.payload) for message in messages}
    assert {b"seen/0", b"seen/1", b"seen/2"} == {message.topic for message in messages}
    witness.close()


def test_two_processes_share_a_load(broker_port: int) -> None:
    """More than one process would double the load, or lose half of its result."""
    told = bench(broker_port, "--processes", "2", "--publishers", "5", "--messages", "1000", "--pattern", "fan-in")

    assert (1000, 1000, 0, 6) == (told["sent"], told["received"], told["lost"], told["connections"]["connected"])


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.usefixtures("broker")
def test_every_transport_is_loaded(addresses: dict[Transport, Address], transport: Transport) -> None:
    """Only the fastest listener of a broker could be measured."""
    address = addresses[transport]
    options = ["--cafile", str(address.authority)] if address.encrypted else []
    # Large enough that the kernel does not take all at once.
    options += ["--messages", "400", "--window", "10", "--payload", "150000"]
    told = bench(f"{SCHEMES[transport]}://{HOST}:{address.port}", *options)

    assert (400, 400, 0, 0) == (told["sent"], told["received"], told["lost"], told["out_of_order"])


@pytest.mark.usefixtures("broker")
def test_certificates_are_checked_unless_it_is_said_otherwise(addresses: dict[Transport, Address]) -> None:
    """A load could be sent to somebody else, password and all."""
    port = addresses["tls"].port

    said = bench(port, "--tls", "--messages", "10", code=4)
    assert "a certificate that is not trusted" in said and "--cafile" in said
    assert 10 == bench(port, "--insecure", "--messages", "10")["received"]


def test_a_ramp_connects_no_faster_than_it_says(port: int) -> None:
    """A broker's limit of connects a second would be run into."""
    told = bench(port, "--connect-rate", "20", "--publishers", "5", "--messages", "5")

    assert 10 == told["connections"]["connected"]
    assert 9 / 20 <= told["connections"]["seconds"]


def test_ctrl_c_ends_it_with_the_results_so_far(port: int) -> None:
    """Who has seen enough would get nothing."""
    with running(port, *LONG) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT)

    told = json.loads(out)
    assert (130, True, 0) == (process.returncode, told["interrupted"], told["lost"]), err
    assert 0 < told["sent"] == told["received"]


def test_ctrl_c_while_connecting_ends_it_without_results() -> None:
    """Who named the wrong broker would have to wait for it."""
    with socket.create_server((HOST, 0)) as silent:
        process = subprocess.Popen(
            command(silent.getsockname()[1]), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        peers = [silent.accept()[0] for _ in range(20)]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT)
        for peer in peers:
            peer.close()

    assert (130, "") == (process.returncode, out)
    assert "weir: interrupted by Ctrl-C before there was a result.\n" == err


@pytest.mark.nightly  # 13 s: the broker might come back
def test_a_broker_that_goes_away_is_told_with_the_results_so_far(start_weir: StartWeir) -> None:
    """The load would hang, or all that was measured be lost."""
    weir = start_weir({})
    with running(weir.port, *LONG) as process:
        weir.terminate()
        out, err = process.communicate(timeout=WAIT)

    told = json.loads(out)
    assert (5, True, 20) == (process.returncode, told["broker_gone"], told["connections"]["missing_at_end"])
    assert 0 < told["received"]
    assert f"weir: the connection to {HOST}:{weir.port} was lost before the end; these are the results so far.\n" == err
    assert ["20 connections were lost"] == [note[:24] for note in told["notes"] if "lost" in note]


def test_no_process_outlives_a_killed_command(port: int) -> None:
    """A load would go on that nobody can end."""
    with running(port, *LONG, "--processes", "2") as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        watched = [os.pidfd_open(int(child)) for child in children]
        process.kill()
        ended = [select.select([one], [], [], WAIT)[0] for one in watched]

    assert [[one] for one in watched] == ended and 2 == len(watched)
    for one in watched:
        os.close(one)


def test_nobody_there_is_one_sentence(tmp_path: Path) -> None:
    """The user would get a traceback, or wait."""
    port = free_port()
    assert (
        f"weir: nothing listens on {HOST}:{port}: is the broker running (`weir start`), and is that its port?\n"
        == bench(port, code=4)
    )


def test_too_few_descriptors_are_told_before_anything_begins(port: int) -> None:
    """A load would fail in the middle of connecting; who cannot raise the limit can use more processes."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 120))

    options = ["--publishers", "100", "--messages", "100"]
    done = subprocess.run(command(port, *options), capture_output=True, text=True, timeout=WAIT, preexec_fn=limit)
    assert (2, "") == (done.returncode, done.stdout)
    assert "need 232 descriptors, but only 120 are allowed: use --processes 3 or more" in done.stderr

    options += ["--processes", "3"]
    done = subprocess.run(command(port, *options), capture_output=True, text=True, timeout=WAIT, preexec_fn=limit)
    assert (0, "") == (done.returncode, done.stderr)


def test_a_refusal_is_told_in_words(start_weir: StartWeir, tmp_path: Path) -> None:
    """The user would have to look codes up."""
    file = tmp_path / "passwords"
    file.write_text("")
    weir = start_weir({"access.password_file": file})

    said = {version: bench(weir.port, "--version", version, code=4) for version in ("3.1.1", "5")}

    assert "refused: CONNACK 5, not authorized" in said["3.1.1"] or "refused: CONNACK 4, bad user" in said["3.1.1"]
    assert "refused: CONNACK 0x8" in said["5"] and "--user" in said["5"]
    assert [1, 1] == [len(sentence.splitlines()) for sentence in said.values()]


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-x\r\n", b""])
@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws"])
def test_what_is_no_broker_is_told(answer: bytes, scheme: str) -> None:
    """A wrong port would look like a slow broker."""
    with _server(answer) as port:
        said = bench(f"{scheme}://{HOST}:{port}", code=4)

    assert 1 == len(said.splitlines()), said
    assert "port" in said


@contextmanager
def _server(answer: bytes) -> Iterator[int]:
    """Says *answer* to what it is sent, whatever it is, and closes."""
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    if peer.recv(1000):
                        peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


def test_the_page_for_people_has_figures_and_a_histogram(port: int) -> None:
    """Only programs could read a result."""
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        command(port, "--messages", "500"), capture_output=True, text=True, timeout=WAIT, env=environment
    )

    assert (0, "") == (done.returncode, done.stderr)
    words = [
        "10 pairs, QoS 1",
        "500 sent  500 received  0 lost  0 duplicates",
        "p99.9",
        "us of CPU per message",
        "up to",
        "█",
    ]
    assert [] == [word for word in words if word not in done.stdout]
