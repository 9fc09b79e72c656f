# `weir pub` and `weir sub` as users run them.
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.running import weir
from tests.system.addresses import TRANSPORTS, Address, Transport
from tests.system.processes import HOST, PATIENCE, BrokerProcess, free_port
from tests.system.raw import RawClient

WAIT = 9 * PATIENCE  # for a program to begin or to end: it has to be loaded first
StartWeir = Callable[..., BrokerProcess]
Dial = Callable[..., RawClient]


def pub(port: int, *arguments: str, typed: str = "", code: int = 0) -> str:
    """What it says, which is nothing if all is well; *arguments* may name another broker."""
    done = weir("pub", "-h", f"{HOST}:{port}", *arguments, typed=typed)
    assert code == done.returncode, done.stderr
    assert "" == done.stdout
    return done.stderr


@contextmanager
def sub(port: int, *arguments: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A `weir sub` that is subscribed: it has printed the retained message that was there for it.

    *arguments* may name another listener of the same broker.
    """
    first = RawClient(port)
    first.connect("")
    topic = f"subscribed/{os.urandom(4).hex()}"
    first.publish(topic, b"subscribed", 1, retain=True)
    first.close()
    command = [sys.executable, "-m", "cli", "sub", "-h", f"{HOST}:{port}", *arguments, topic]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    try:
        assert b"subscribed" in line_of(process)
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: "subprocess.Popen[bytes]") -> bytes:
    """The next line that it prints, and prints now."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], WAIT)[0], "it prints nothing"
    return process.stdout.readline()


@pytest.mark.parametrize("qos", ["0", "1", "2"])
@pytest.mark.parametrize("version", ["3.1", "3.1.1", "5"])
def test_what_is_published_is_printed(port: int, name: str, qos: str, version: str) -> None:
    """A first try would fail, with any version and QoS."""
    with sub(port, f"{name}/#", "-q", qos, "-V", version, "-c", "3") as printing:
        pub(port, f"{name}/a", "hello", "-q", qos, "-V", version)
        pub(port, f"{name}/b", "", "-q", qos)
        out, err = printing.communicate(timeout=WAIT)

    assert (b"hello\n\n", b"", 0) == (out, err, printing.returncode)


def test_topics_are_printed_when_they_are_asked_for(port: int, name: str) -> None:
    """Who subscribes with a wildcard could not tell what came from where."""
    with sub(port, f"{name}/+", "-v", "-c", "2") as printing:
        pub(port, f"{name}/Grüße", "schön")
        assert f"{name}/Grüße schön\n".encode() == printing.communicate(timeout=WAIT)[0]


def test_json_keeps_what_is_no_text(port: int, name: str, dial: Dial) -> None:
    """A binary payload would break the line, or be lost."""
    with sub(port, name, "--json", "-q", "1", "-c", "3") as printing:
        client = dial()
        client.connect("")
        client.publish(name, b"\xff\n", 1)
        client.publish(name, "ü\n".encode())
        lines = [json.loads(line) for line in printing.communicate(timeout=WAIT)[0].splitlines()]

    assert [
        {"topic": name, "qos": 1, "retain": False, "payload_base64": "/wo="},
        {"topic": name, "qos": 0, "retain": False, "payload": "ü\n"},
    ] == lines


def test_each_message_is_printed_when_it_comes(port: int, name: str) -> None:
    """Who reads a pipe would see nothing before a buffer is full."""
    with sub(port, name) as printing:
        for text in ("one", "two"):
            pub(port, name, text)
            assert f"{text}\n".encode() == line_of(printing)


def test_ctrl_c_ends_it_with_0(port: int, name: str) -> None:
    """Scripts would take the usual end for a failure."""
    with sub(port, name) as printing:
        printing.send_signal(signal.SIGINT)
        assert (b"", b"") == printing.communicate(timeout=WAIT)
        assert 0 == printing.returncode


def test_a_reader_that_has_seen_enough_is_no_error(port: int, name: str) -> None:
    """`weir sub ... | head -1` would end in a traceback."""
    with sub(port, name) as printing:
        assert printing.stdout is not None and printing.stderr is not None
        printing.stdout.close()
        pub(port, name, "for nobody")
        assert 0 == printing.wait(WAIT)
        assert b"" == printing.stderr.read()


def test_lines_and_files_are_published(port: int, name: str, dial: Dial, tmp_path: Path) -> None:
    """Only short texts could be published."""
    reader = dial()
    reader.connect("")
    reader.subscribe(name, qos=2)
    pub(port, name, "-", "-q", "2", typed="first\n\nlast")
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 300)
    pub(port, name, "--file", str(file))

    assert [b"first", b"", b"last", file.read_bytes()] == [reader.take().payload for _ in range(4)]


def test_a_retained_message_waits_for_those_to_come(port: int, name: str, dial: Dial) -> None:
    """`--retain` would not be passed on."""
    pub(port, name, "kept", "-r", "-q", "1")
    reader = dial()
    reader.connect("")

    (message,) = reader.subscribe(name) or [reader.take()]
    assert (b"kept", True) == (message.payload, message.retain)


def test_the_user_is_who_was_named(start_weir: StartWeir, tmp_path: Path) -> None:
    """A broker that wants passwords could not be tried."""
    file = tmp_path / "passwords"
    assert 0 == weir("passwd", str(file), "ann", "--create", "--iterations", "1", typed="s3cret\n").returncode
    weir_process = start_weir({"access.password_file": file})

    pub(weir_process.port, "t", "x", "-u", "ann", "-P", "s3cret", "-q", "1")
    refused = pub(weir_process.port, "t", "x", "-u", "ann", "-P", "wrong", code=4)
    assert refused.startswith(f"weir: {HOST}:{weir_process.port} refused: CONNACK 0x86, bad user name or password")


def test_what_may_not_be_done_is_said_with_its_code(start_weir: StartWeir, tmp_path: Path) -> None:
    """A message that nobody gets, or a filter that nothing matches, would look like success."""
    acl = tmp_path / "acl"
    acl.write_text("topic read open\n")
    weir_process = start_weir({"access.acl_file": acl})
    port = weir_process.port

    said = pub(port, "open", "x", "-q", "1", code=4)
    assert f"weir: {HOST}:{port} refused: PUBACK 0x87, not authorized" in said
    done = weir("sub", "-h", HOST, "-p", str(port), "closed")
    assert (4, "") == (done.returncode, done.stdout)
    assert f"weir: {HOST}:{port} refused 'closed': 0x87, not authorized" in done.stderr


def test_a_broker_that_goes_away_is_told(start_weir: StartWeir, name: str) -> None:
    """A silent end would look as if nothing more was published."""
    weir_process = start_weir({})
    with sub(weir_process.port, name) as printing:
        weir_process.terminate()
        out, err = printing.communicate(timeout=WAIT)

    assert (5, b"") == (printing.returncode, out)
    said = f"weir: {HOST}:{weir_process.port} ended the connection: 0x8b, server shutting down.\n"
    assert said == err.decode()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_transport_is_spoken(
    port: int, addresses: dict[Transport, Address], transport: Transport, name: str
) -> None:
    """A first try would have to be on plain TCP."""
    address = addresses[transport]
    broker = [f"ws://{HOST}:{address.port}"] if address.websocket else [f"{HOST}:{address.port}"]
    if address.encrypted:
        broker += ["--cafile", str(address.authority)]
    text = "long " * 20_000  # more than TLS takes at once
    with sub(port, name, "-c", "2", "-h", *broker) as printing:
        pub(port, name, text, "-q", "1", "-h", *broker)
        assert (f"{text}\n".encode(), b"") == printing.communicate(timeout=WAIT)


@pytest.mark.usefixtures("broker")
def test_certificates_are_checked_unless_it_is_said_otherwise(addresses: dict[Transport, Address], name: str) -> None:
    """A password could be told to anybody."""
    address = addresses["tls"]
    pub(address.port, name, "x", "-q", "1", "--insecure")

    assert "does it want TLS (--tls)?" in pub(address.port, name, "x", code=4)
    assert "--cafile" in pub(address.port, name, "x", "--tls", code=4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a/+", "x"], "'a/+' is not valid: wildcard in a topic name."),
        (["", "x"], "'' is not valid: empty topic name."),
        (["t" * 65_536, "x"], "a topic of 65536 bytes is too long"),
        (["t"], "nothing to publish: give one of MESSAGE"),
        (["t", "x", "--file", "y"], "nothing to publish: give one of MESSAGE"),
        (["t", "--file", "/no/such"], "cannot read --file /no/such: No such file or directory."),
        (["t", "x", "-V", "4"], "--version 4 is not valid"),
        (["t", "x", "--cafile", "/no/such"], "cannot read --cafile /no/such: No such file or directory."),
        (["t", "x", "--cafile", "/dev/null"], "cannot read --cafile /dev/null: it holds no certificate."),
    ],
)
def test_what_cannot_be_published_is_one_sentence(arguments: list[str], words: str) -> None:
    """The user would get a traceback, or something else would be published."""
    said = pub(free_port(), *arguments, code=2)

    assert said.startswith("weir: ") and words in said
    assert 1 == len(said.splitlines())
