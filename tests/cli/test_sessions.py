# `weir sessions`: what operators see of sessions and how they end them, at a node whose sessions are stored.
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker as broker_package
from broker.mqtt.packets import V5, Disconnect, Will
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from tests.cli.running import weir
from tests.system.processes import BrokerProcess, free_port, start_weir
from tests.system.raw import RawClient

pytestmark = pytest.mark.system

EVIL = "\x1b[2J[bold]one[/bold]"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A node whose sessions are stored."""
    assert broker_package.__file__ is not None
    folder, settings = tmp_path_factory.mktemp("node"), {"log.format": "json", "store.durability": "process"}
    process = start_weir(free_port(), folder, settings, Path(broker_package.__file__).parent.parent)
    yield process
    assert 0 == process.terminate()


def away(port: int, client_id: str) -> None:
    """A client with a filter and one message that waits, which has left."""
    client = RawClient(port, V5)
    client.connect(client_id, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 3600})
    client.subscribe("news/#", qos=1)
    client.close()
    publisher = RawClient(port, V5)
    publisher.connect("publisher")
    publisher.publish("news/1", b"12345", qos=1)
    publisher.close()


def test_sessions_are_listed_and_shown(running: BrokerProcess, folder: str) -> None:
    """An operator could not find what waits, or a client id could paint on the terminal."""
    away(running.port, EVIL)

    listed = weir("sessions", "list", "--away", "--folder", folder).stdout
    told = json.loads(weir("sessions", "list", "one", "--folder", folder, "--json").stdout)
    shown = weir("sessions", "show", EVIL, "--folder", folder)

    assert r"\x1b[2J[bold]one[/bold]" in listed and "\x1b" not in listed + shown.stdout
    assert "durable" in listed and "1 session" == listed.splitlines()[-1].strip()
    (one,) = told["sessions"]
    assert (EVIL, False, True, 1, 11) == tuple(
        one[key] for key in ("client", "connected", "durable", "waiting", "waiting_bytes")
    )
    assert 0 == shown.returncode and "news/#" in shown.stdout and "1 message, 11 bytes" in shown.stdout


def test_sessions_are_dropped_and_that_is_written_down(running: BrokerProcess, folder: str) -> None:
    """A session could not be ended, nobody would know who did it, or a slip would end one that is needed."""
    client = RawClient(running.port, V5)
    client.connect("here", will=Will(b"gone", b"here"), properties={SESSION_EXPIRY_INTERVAL: 3600})
    away(running.port, "absent")

    unasked = weir("sessions", "drop", "here", "absent", "--folder", folder)
    dropped = weir("sessions", "drop", "here", "absent", "nobody", "--yes", "--folder", folder)

    assert (2, "", 1) == (unasked.returncode, unasked.stdout, len(unasked.stderr.splitlines()))
    assert 1 == dropped.returncode
    assert ["The session of client here has ended.", "The session of client absent has ended."] == (
        dropped.stdout.splitlines()
    )
    assert ["weir: There is no session of a client 'nobody'."] == dropped.stderr.splitlines()
    assert [0x98] == [packet.code for packet in client.expect_end() if isinstance(packet, Disconnect)]
    client.close()
    audited = [json.loads(line) for line in running.wait_for_log('"session_drop"')]
    assert [("here", "done"), ("absent", "done")] == [
        (line["arguments"]["client"], line["result"]) for line in audited[:2]
    ]
    gone = weir("sessions", "show", "absent", "--folder", folder)
    assert (1, "", 1) == (gone.returncode, gone.stdout, len(gone.stderr.splitlines()))
