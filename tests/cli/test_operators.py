# `weir sessions`, `weir queue` and `weir retained`: what operators see and repair, at a node whose sessions are stored.
import json
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import broker as broker_package
from broker.mqtt.packets import V5, Disconnect, Properties, Will
from broker.mqtt.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY_INTERVAL,
    SESSION_EXPIRY_INTERVAL,
    USER_PROPERTY,
)
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


def test_sessions_that_cannot_be_read_are_listed(running: BrokerProcess, folder: str) -> None:
    """An operator would have to know the names of keys in Redis, or believe that nothing was lost."""
    assert running.control is not None
    with redis.Redis(unix_socket_path=str(running.control.parent / "redis" / "redis.sock")) as server:
        server.hset(f"weir:{{3}}:damaged:{EVIL}", "", "no head")

    listed = weir("sessions", "list", "--quarantined", "--folder", folder)
    told = json.loads(weir("sessions", "list", "--quarantined", "--json", "--folder", folder).stdout)
    wrong = weir("sessions", "list", "one", "--quarantined", "--folder", folder)

    assert r"\x1b[2J[bold]one[/bold]" in listed.stdout and "\x1b" not in listed.stdout
    assert "1 session could not be read" in listed.stdout
    assert [(EVIL, 1, None)] == [(one["client"], one["fields"], one["packs"]) for one in told["sessions"]]
    assert (2, "", 1) == (wrong.returncode, wrong.stdout, len(wrong.stderr.splitlines()))


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


def test_a_queue_is_shown_exported_and_purged(running: BrokerProcess, folder: str, tmp_path: Path) -> None:
    """An operator could not see what waits, save it before it is removed, or remove only what is wrong."""
    reader = RawClient(running.port, V5)
    reader.connect("reader", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 3600})
    reader.subscribe("work/#", qos=1)
    reader.close()
    publisher = RawClient(running.port, V5)
    publisher.connect("publisher")
    about: Properties = {CONTENT_TYPE: "text", CORRELATION_DATA: b"\0", USER_PROPERTY: [("a", "1"), ("a", "2")]}
    publisher.publish("work/\x85evil", b"\x1b[2J", qos=1, properties=about)
    publisher.publish("work/good", b"good", qos=1, properties={MESSAGE_EXPIRY_INTERVAL: 600})
    publisher.close()
    file = tmp_path / "copy"

    shown = weir("queue", "show", "reader", "--folder", folder)
    told = json.loads(weir("queue", "show", "reader", "--folder", folder, "--json").stdout)
    exported = weir("queue", "export", "reader", str(file), "--folder", folder)
    again = weir("queue", "export", "reader", str(file), "--folder", folder)
    purged = weir("queue", "purge", "reader", "--topic", "work/+", "--yes", "--folder", folder)
    empty = weir("queue", "export", "reader", "--folder", folder)

    assert r"work/\x85evil" in shown.stdout and "\x85" not in shown.stdout
    assert "These topics have the most messages of all that wait." in shown.stdout
    # The first message leaves by limits.queue_ttl, the other one by its own expiry.
    assert re.search("7d 0h|6d 23h", shown.stdout) and " 9m " in shown.stdout and "never" not in shown.stdout
    assert (2, True, 2, 0) == tuple(told[key] for key in ("waiting", "complete", "examined", "inaccuracy"))
    assert [("work/\x85evil", 1), ("work/good", 1)] == [(one["topic"], one["messages"]) for one in told["topics"]]
    first, second = (json.loads(line) for line in file.read_text().splitlines())
    assert ("work/\x85evil", "G1sySg==", 1, False, None) == tuple(
        first[key] for key in ("topic", "payload", "qos", "retain", "expires_in")
    )
    assert {"content_type": "text", "correlation_data": "AA==", "user_properties": [["a", "1"], ["a", "2"]]} == (
        first["properties"]
    )
    assert 500 < second["expires_in"] <= 600
    assert (0, 0o600) == (exported.returncode, stat.S_IMODE(file.stat().st_mode))
    assert (2, f"weir: The file {file} cannot be made: File exists.") == (again.returncode, again.stderr.strip())
    assert (0, "Removed 2 messages, 53 bytes.") == (purged.returncode, purged.stdout.strip())
    assert (0, "") == (empty.returncode, empty.stdout)


@pytest.mark.parametrize("command", [["show", "nobody"], ["export", "nobody"], ["purge", "nobody", "--yes"]])
def test_a_queue_that_is_not_there_is_exit_code_1(running: BrokerProcess, folder: str, command: list[str]) -> None:
    """A program could not tell a slip from an empty queue."""
    done = weir("queue", *command, "--folder", folder)

    assert (1, "weir: There is no session of a client 'nobody'.") == (done.returncode, done.stderr.strip())


def test_a_wrong_filter_removes_nothing(running: BrokerProcess, folder: str) -> None:
    """A slip would remove everything, or say that there was nothing."""
    away(running.port, "phone")

    done = weir("queue", "purge", "phone", "--topic", "a/#/b", "--yes", "--folder", folder)

    assert (2, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert "'a/#/b' is not a topic filter" in done.stderr
    assert 1 == json.loads(weir("queue", "show", "phone", "--folder", folder, "--json").stdout)["waiting"]


def test_a_queue_longer_than_what_is_examined_is_shown_in_part(running: BrokerProcess, folder: str) -> None:
    """To look at a queue of gigabytes would make the store read gigabytes, or the memory hold each of many topics."""
    reader = RawClient(running.port, V5)
    reader.connect("long", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 3600})
    reader.subscribe("long/#", qos=1)
    reader.close()
    publisher = RawClient(running.port, V5)
    publisher.connect("publisher")
    for number in range(20):
        publisher.publish(f"long/{number}", bytes(1_000_000), qos=1)
    publisher.close()

    told = json.loads(weir("queue", "show", "long", "--first", "3", "--folder", folder, "--json").stdout)
    exported = weir("queue", "export", "long", "--folder", folder)

    assert (20, False, 3) == (told["waiting"], told["complete"], len(told["messages"]))
    assert 16 <= told["examined"] <= 18
    assert [f"long/{number}" for number in range(20)] == (
        [json.loads(line)["topic"] for line in exported.stdout.splitlines()]
    )


def test_retained_messages_are_listed_shown_and_cleared(running: BrokerProcess, folder: str) -> None:
    """An operator could not see or remove what every new subscriber gets; a payload could paint on the terminal."""
    client = RawClient(running.port, V5)
    client.connect("sensor")
    client.publish("kept/1", b"\x1b[2J\xffone", qos=1, retain=True)
    client.publish("kept/2", b"two", qos=1, retain=True)
    client.publish("other", b"three", qos=1, retain=True)
    client.close()

    listed = weir("retained", "list", "kept/#", "--folder", folder)
    limited = json.loads(weir("retained", "list", "--limit", "1", "--folder", folder, "--json").stdout)
    shown = weir("retained", "show", "kept/1", "--folder", folder)
    raw = subprocess.run(
        [sys.executable, "-m", "cli", "retained", "show", "kept/1", "--raw", "--folder", folder],
        stdout=subprocess.PIPE,
        check=True,
    )
    unasked = weir("retained", "clear", "kept/#", "--folder", folder)
    cleared = weir("retained", "clear", "kept/#", "--yes", "--folder", folder)
    gone = weir("retained", "show", "kept/1", "--folder", folder)
    left = json.loads(weir("retained", "list", "--folder", folder, "--json").stdout)

    assert "kept/1" in listed.stdout and "other" not in listed.stdout
    assert "2 messages" == listed.stdout.splitlines()[-1].strip()
    assert (1, True) == (len(limited["messages"]), limited["more"])
    assert r"\x1b[2J\xffone" in shown.stdout and "\x1b" not in shown.stdout
    assert b"\x1b[2J\xffone" == raw.stdout
    assert (2, "") == (unasked.returncode, unasked.stdout)
    assert (0, "Cleared 2 messages.") == (cleared.returncode, cleared.stdout.strip())
    assert (1, "weir: No message is retained for the topic 'kept/1'.") == (gone.returncode, gone.stderr.strip())
    assert ["other"] == [one["topic"] for one in left["messages"]]
    running.wait_for_log('"retained_clear"')


def test_sessions_of_all_workers_are_found(tmp_path: Path) -> None:
    """An operator would see and repair the sessions of one worker only."""
    assert broker_package.__file__ is not None
    port, settings = free_port(), {"store.durability": "process", "node.workers": 2}
    process = start_weir(port, tmp_path, settings, Path(broker_package.__file__).parent.parent)
    assert process.control is not None
    node = ["--folder", str(process.control.parent)]
    try:
        names = [f"client-{number}" for number in range(12)]
        for one in names:
            away(port, one)
        told = json.loads(weir("sessions", "list", "client-", "--json", *node).stdout)["sessions"]
        by_worker = {one["worker"]: one["client"] for one in told}
        purged = [weir("queue", "purge", one, "--yes", *node).stdout for one in by_worker.values()]
        dropped = weir("sessions", "drop", "--yes", *by_worker.values(), *node)
        left = json.loads(weir("sessions", "list", "client-", "--json", *node).stdout)["sessions"]
    finally:
        assert 0 == process.terminate()

    assert (sorted(names), {0, 1}) == (sorted(one["client"] for one in told), set(by_worker))
    assert 2 == len(purged) and all(text.startswith("Removed ") for text in purged)
    assert 0 == dropped.returncode
    assert sorted(set(names) - set(by_worker.values())) == sorted(one["client"] for one in left)
