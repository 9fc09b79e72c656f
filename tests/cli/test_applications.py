# `weir applications`: the lags of APPLICATION clients, and to have one go on elsewhere in its log.
import json
from collections.abc import Iterator

import pytest

from broker.mqtt.packets import V5, Properties, Publish
from broker.mqtt.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from tests.cli.running import weir
from tests.system.processes import BrokerProcess, free_port, packages, start_weir
from tests.system.raw import RawClient

pytestmark = pytest.mark.system

EVIL = "app\x1b[2J"
ONE_BY_ONE: Properties = {SESSION_EXPIRY_INTERVAL: 3600, RECEIVE_MAXIMUM: 1}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A node whose clients app* are APPLICATION clients."""
    folder = tmp_path_factory.mktemp("node")
    settings = {"store.durability": "process", "application.clients": '[{client = "app*"}]'}
    process = start_weir(free_port(), folder, settings, packages())
    yield process
    assert 0 == process.terminate()


def connect(running: BrokerProcess, client_id: str) -> RawClient:
    """A client that is sent one message at a time, and has subscribed."""
    client = RawClient(running.port, V5)
    if not client.connect(client_id, clean_start=False, properties=ONE_BY_ONE).session_present:
        client.subscribe("t", qos=1)
    return client


def publish(running: BrokerProcess, *payloads: bytes) -> None:
    publisher = RawClient(running.port, V5)
    publisher.connect("publisher")
    for payload in payloads:
        publisher.publish("t", payload, qos=1)
    publisher.close()


def test_an_application_is_listed_shown_and_goes_on_elsewhere(running: BrokerProcess, folder: str) -> None:
    """An operator could not see that a service falls behind, nor have it read again what it has lost."""
    connect(running, EVIL).close()
    publish(running, b"1", b"2", b"3")

    listed = weir("applications", "list", "--folder", folder)
    told = json.loads(weir("applications", "list", "--json", "--folder", folder).stdout)
    shown = weir("applications", "show", EVIL, "--folder", folder).stdout

    assert r"app\x1b[2J" in listed.stdout and "\x1b" not in listed.stdout + shown
    assert "1 APPLICATION client" == listed.stdout.splitlines()[-1].strip()
    ((lag, position, end),) = [(one["lag"], one["position"], one["end"]) for one in told["applications"]]
    assert (3, 0, 3) == (lag, position, end)
    assert "3 records (0 of 3)" in shown and "7d 0h" in shown

    client = connect(running, EVIL)
    assert b"1" == client.expect(Publish).payload  # in flight; the others wait in Redis
    connected = weir("applications", "reset", EVIL, "--to", "earliest", "--yes", "--folder", folder)
    assert (2, ["weir: The client is connected: stop it, and try again."]) == (
        connected.returncode,
        connected.stderr.splitlines(),
    )
    client.close()
    unasked = weir("applications", "reset", EVIL, "--to", "earliest", "--folder", folder)
    moved = weir("applications", "reset", EVIL, "--to", "earliest", "--yes", "--folder", folder)

    assert (2, "", 1) == (unasked.returncode, unasked.stdout, len(unasked.stderr.splitlines()))
    assert [r"Client app\x1b[2J goes on at offset 0 in place of 3, and 2 messages in Redis removed."] == (
        moved.stdout.splitlines()
    )
    client = connect(running, EVIL)
    again = []
    for _ in range(4):
        message = client.expect(Publish)
        again.append((message.payload, message.dup))
        client.acknowledge(message)
    client.close()
    assert [(b"1", True), (b"1", False), (b"2", False), (b"3", False)] == again


@pytest.mark.parametrize("to", ["yesterday", "-1", "1e3", "99999999999999999999"])
def test_a_place_that_is_none_is_refused(running: BrokerProcess, folder: str, to: str) -> None:
    """It would be taken for another one."""
    refused = weir("applications", "reset", "app", f"--to={to}", "--yes", "--folder", folder)

    assert (2, "", 1) == (refused.returncode, refused.stdout, len(refused.stderr.splitlines()))


def test_a_client_of_another_kind_has_no_log(running: BrokerProcess, folder: str) -> None:
    """What is shown would be empty, as if nothing waited."""
    connect(running, "device").close()

    shown = weir("applications", "show", "device", "--folder", folder)
    nobody = weir("applications", "show", "nobody", "--folder", folder)

    assert "weir: The client 'device' is no APPLICATION client: its messages wait in no log." == shown.stderr.strip()
    assert (1, 2, 1) == (nobody.returncode, shown.returncode, len(nobody.stderr.splitlines()))


def test_logs_that_clients_share_are_listed(running: BrokerProcess, folder: str) -> None:
    """Nobody could see that a group falls behind, or that nobody reads for it."""
    client = RawClient(running.port, V5)
    client.connect("app-shared", clean_start=False, properties=ONE_BY_ONE)
    client.subscribe("$share/g/shared/#", qos=1)
    client.close()
    publisher = RawClient(running.port, V5)
    publisher.connect("publisher")
    for number in range(3):
        publisher.publish("shared/t", b"%d" % number, qos=1)
    publisher.close()

    lines = weir("applications", "list", "--folder", folder).stdout.splitlines()
    (told,) = json.loads(weir("applications", "list", "$share/g", "--json", "--folder", folder).stdout)["shared"]
    shown = weir("applications", "show", "app-shared", "--folder", folder).stdout
    status = weir("status", "--folder", folder).stdout

    assert "1 group with shared logs" == lines[-1].strip()
    assert " ".join(lines[-2].split()).startswith("$share/g/shared/# 0 of 1 0 of 12 3 ")
    assert ("g", "shared/#", 1, 0, [], 3, "") == tuple(
        told[key] for key in ("name", "filter", "members", "connected", "reads", "lag", "trouble")
    )
    assert 0 <= told["oldest"] < 60
    group = "0 of 1 member connected, 0 of 12 partitions read, lag 3 records, the oldest"
    assert f"all members: {group}" in " ".join(shown.split())
    assert f"shared log  $share/g/shared/#: {group}" in status

    asked = ("applications", "reset-shared")
    refused = weir(*asked, "$share/g/shared/#", "--to", "5", "--yes", "--folder", folder)
    nobody = weir(*asked, "$share/none/t", "--to", "latest", "--yes", "--folder", folder)
    moved = weir(*asked, "$share/g/shared/#", "--to", "latest", "--yes", "--folder", folder)
    assert (2, 1, 0) == (refused.returncode, nobody.returncode, moved.returncode)
    assert "$share/g/shared/# goes on at latest, with 0 records to be read." == moved.stdout.strip()
