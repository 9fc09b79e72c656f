# Who may come in, with the programs that people use: mosquitto_passwd writes what we read, Mosquitto reads what we
# write, and one ACL file means the same to both brokers.
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.auth.passwords import hash_password
from broker.mqtt.packets import V5, V311, ConnAck, Connect, Disconnect, Publish
from tests.cli.running import weir
from tests.system.processes import (
    HOST,
    PATIENCE,
    BrokerProcess,
    free_port,
    start_mosquitto,
)
from tests.system.raw import RawClient

Dial = Callable[..., RawClient]
StartWeir = Callable[..., BrokerProcess]
StartMosquitto = Callable[..., BrokerProcess]

pytestmark = pytest.mark.weir_only("these start both brokers themselves")


@pytest.fixture
def start_other(tmp_path: Path) -> Iterator[StartMosquitto]:
    """A function that starts a Mosquitto with these files."""
    started: list[BrokerProcess] = []

    def start(**files: Path) -> BrokerProcess:
        more = ["allow_anonymous false", "user root"]  # whoever started it owns the files
        more += [f"{setting} {file}" for setting, file in files.items()]
        started.append(start_mosquitto(free_port(), tmp_path, "\n".join([*more, ""])))
        return started[-1]

    yield start
    for process in started:
        process.terminate()


def publish(port: int, user: str, password: str, version: str = "5") -> subprocess.CompletedProcess[str]:
    """mosquitto_pub with a user name; QoS 1, so that it ends when the message was taken."""
    command = ["mosquitto_pub", "-h", HOST, "-p", str(port), "-V", version, "-u", user, "-P", password]
    command += ["-q", "1", "-t", "t", "-m", "x"]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


def by_weir(file: Path, user: str, password: str) -> None:
    assert 0 == weir("passwd", str(file), user, "--create", typed=f"{password}\n").returncode


def by_mosquitto(file: Path, user: str, password: str) -> None:
    create = [] if file.exists() else ["-c"]
    subprocess.run(["mosquitto_passwd", *create, "-b", str(file), user, password], check=True)


def by_old_mosquitto(file: Path, user: str, password: str) -> None:
    create = [] if file.exists() else ["-c"]
    subprocess.run(["mosquitto_passwd", "-H", "sha512", *create, "-b", str(file), user, password], check=True)


@pytest.mark.parametrize("write", [by_weir, by_mosquitto, by_old_mosquitto])
def test_a_password_file_is_the_same_to_both_brokers(
    start_weir: StartWeir, start_other: StartMosquitto, tmp_path: Path, write: Callable[[Path, str, str], None]
) -> None:
    """Who changes from one broker to the other would have to give everybody a new password."""
    file = tmp_path / "passwords"
    write(file, "alice", "s3crét")
    write(file, "living room", "x y$z")
    ours, theirs = start_weir({"access.password_file": file}), start_other(password_file=file)

    for broker in (ours, theirs):
        for user, password, right in (("alice", "s3crét", True), ("living room", "x y$z", True), ("alice", "x", False)):
            assert right == (0 == publish(broker.port, user, password).returncode), (broker, user, password)


@pytest.mark.parametrize(
    ("version", "words"), [("311", "bad user name or password"), ("5", "Bad user name or password")]
)
def test_mosquitto_pub_says_why_it_was_refused(start_weir: StartWeir, tmp_path: Path, version: str, words: str) -> None:
    """The user of a common client could not tell a wrong password from a broken network."""
    file = tmp_path / "passwords"
    by_weir(file, "alice", "right")
    broker = start_weir({"access.password_file": file})

    assert 0 == publish(broker.port, "alice", "right", version).returncode
    refused = publish(broker.port, "alice", "wrong", version)
    assert 0 != refused.returncode
    assert words.lower() in refused.stderr.lower()
    assert "wrong" not in broker.log_text()
    assert "bad_user_name_or_password" in broker.log_text()


RULES = """\
# anonymous clients have nothing
user alice
topic readwrite rooms/#
topic deny rooms/vault
topic write inbox
user bob
topic read rooms/+
topic read inbox
topic bare

user nobody
topic everything
pattern read own/%u/#
pattern write own/%c/up
"""
TOPICS = ["rooms", "rooms/1", "rooms/1/2", "rooms/vault", "inbox", "bare", "everything"]
TOPICS += [f"own/{name}/{end}" for name in ("alice", "bob", "c-alice", "c-bob") for end in ("up", "x")]


def enter(client: RawClient, user: str, client_id: str) -> RawClient:
    client.send(Connect(client.version, client_id, True, 0, user, user.encode()))
    assert 0 == client.expect(ConnAck).code
    return client


def readings(port: int, dial: Dial) -> dict[tuple[str, str], set[str]]:
    """Which topics each of two users reads of all that each of them publishes to, by (reader, publisher)."""
    read: dict[tuple[str, str], set[str]] = {}
    for publisher in ("alice", "bob"):
        readers = {user: enter(dial(V5, port=port), user, f"r-{user}") for user in ("alice", "bob")}
        for reader in readers.values():
            reader.subscribe("#")
        for topic in TOPICS:
            say(dial(V311, port=port), publisher, topic)
        say(dial(V311, port=port), "alice", "rooms/end")  # both of them may read it
        for user, reader in readers.items():
            read[user, publisher] = {message.topic.decode() for message in until_the_end(reader)}
    return read


def say(client: RawClient, user: str, topic: str) -> None:
    """Publish as *user*, and wait until it is done. Mosquitto 2.0.11 closes where it refuses."""
    enter(client, user, f"c-{user}")
    client.send(Publish(topic.encode(), b"x", 1, packet_id=1))
    client.send(Disconnect())
    client.expect_end()


def until_the_end(reader: RawClient) -> Iterator[Publish]:
    while (message := reader.take()).topic != b"rooms/end":
        yield message


def test_an_acl_file_is_the_same_to_both_brokers(
    start_weir: StartWeir, start_other: StartMosquitto, dial: Dial, tmp_path: Path
) -> None:
    """Who changes from one broker to the other would open or close topics without knowing."""
    passwords, acl = tmp_path / "passwords", tmp_path / "acl"
    acl.write_text(RULES)
    for user in ("alice", "bob"):
        by_mosquitto(passwords, user, user)
    ours = start_weir({"access.password_file": passwords, "access.acl_file": acl})
    theirs = start_other(password_file=passwords, acl_file=acl)

    found = readings(ours.port, dial)
    assert readings(theirs.port, dial) == found
    assert {"rooms", "rooms/1", "rooms/1/2"} == found["alice", "alice"]
    assert {"rooms/1", "inbox"} == found["bob", "alice"]
    assert {"bare"} == found["bob", "bob"]


def test_sighup_reads_both_files_again(start_weir: StartWeir, dial: Dial, tmp_path: Path) -> None:
    """A new device, or one that was stolen, would have to wait for a restart."""
    passwords, acl = tmp_path / "passwords", tmp_path / "acl"
    acl.write_text("user alice\ntopic a\n")
    for user in ("alice", "bob"):
        by_weir(passwords, user, user)
    broker = start_weir({"access.password_file": passwords, "access.acl_file": acl})
    alice, bob = (enter(dial(V5, port=broker.port), user, user) for user in ("alice", "bob"))
    alice.subscribe("#")
    assert 0 == weir("passwd", str(passwords), "bob", "--delete").returncode
    by_weir(passwords, "carol", "carol")
    acl.write_text("user carol\ntopic write b\nuser alice\ntopic read b\n")
    os.kill(broker.pid, signal.SIGHUP)

    assert [0x87] == [packet.code for packet in bob.expect_end() if isinstance(packet, Disconnect)]
    carol = enter(dial(V5, port=broker.port), "carol", "carol")
    carol.publish("b", b"new", 1)
    assert Publish(b"b", b"new") == alice.receive()
    assert '"reloaded"' in broker.log_text()


def test_a_file_that_is_broken_at_sighup_leaves_the_former(start_weir: StartWeir, tmp_path: Path) -> None:
    """A slip of an editor would stop a running broker, or lock everybody out."""
    file = tmp_path / "passwords"
    by_weir(file, "alice", "right")
    broker = start_weir({"access.password_file": file})
    assert 0 == publish(broker.port, "alice", "right").returncode
    file.write_text("alice:right\n")
    os.kill(broker.pid, signal.SIGHUP)
    wait_for(broker, "reload_failed")

    (told,) = [line for line in broker.log_text().splitlines() if "reload_failed" in line]
    assert f"The password file {file}, line 1: " in told
    assert '"level": "error"' in told
    assert 0 == publish(broker.port, "alice", "right").returncode


def wait_for(broker: BrokerProcess, words: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while words not in broker.log_text():
        assert time.monotonic() < deadline, broker.log_text()
        time.sleep(0.02)  # between two looks; a log tells nobody that it has grown


def test_hashing_does_not_hold_up_others(start_weir: StartWeir, dial: Dial, tmp_path: Path) -> None:
    """Each log-in would stop all traffic for as long as its password is meant to take."""
    file = tmp_path / "passwords"
    file.write_text(f"alice:{hash_password(b'right', b'twelve bytes', 1_000_000)}\n")  # half a second of a core
    broker = start_weir({"access.password_file": file, "access.allow_anonymous": "true"})
    other = dial(V5, port=broker.port)
    other.connect("other")
    alice = dial(V5, port=broker.port)
    alice.send(Connect(V5, "alice", True, 0, "alice", b"right"))
    for _ in range(10):
        other.ping()
    assert isinstance(alice.socket, socket.socket)
    early = select.select([alice.socket], [], [], 0)[0]

    assert [] == early
    assert 0 == alice.expect(ConnAck).code


def test_an_open_address_needs_a_word_on_who_may_come_in(tmp_path: Path) -> None:
    """Somebody would publish a broker that everybody may use, and not notice."""
    refused = weir("start", "--host", "0.0.0.0", "--port", "0")
    sentence = 'weir: listeners.tcp.host = ["0.0.0.0"] in --host is not valid: it must be loopback addresses only'
    assert (2, "", 1) == (refused.returncode, refused.stdout, len(refused.stderr.splitlines()))
    assert refused.stderr.startswith(sentence)

    command = [sys.executable, "-m", "cli", "start", "--host", "0.0.0.0", "--port", "0"]
    command += ["--set", "access.allow_anonymous=true", "--set", f"node.folder={tmp_path / 'node'}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        warnings = []
        for line in process.stderr:
            if '"level": "warning"' in line:
                warnings.append(line)
            if '"started"' in line:
                process.terminate()
    assert 1 == len(warnings)
    assert "anonymous_clients_allowed" in warnings[0]
    assert "0.0.0.0" in warnings[0]
