# `weir why` of a real node with two workers: what a person reads who asks about a client.
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from broker.auth.passwords import hash_password
from broker.mqtt.packets import V5, V311, ConnAck, Connect, Publish
from tests.cli.running import weir
from tests.system import node
from tests.system.processes import PATIENCE, BrokerProcess
from tests.system.raw import RawClient

pytestmark = pytest.mark.weir_only("a matter of Weir's commands")

StartWeir = Callable[..., BrokerProcess]
CONNECTIONS: Final = 20  # so many do not all come to the same one of two workers


@pytest.fixture
def running(start_weir: StartWeir, tmp_path: Path) -> Iterator[BrokerProcess]:
    passwords = tmp_path / "passwords"
    passwords.write_text(f"alice:{hash_password(b'secret', b'twelve bytes', 1)}\n")
    settings = {
        "node.workers": 2,
        "quotas.session.incoming_messages": "2:600",
        "quotas.reserve": 0,
        "access.password_file": passwords,
        "access.allow_anonymous": "true",
    }
    yield start_weir(settings, environment={"WEIR_TEST": "1"})


def ask(running: BrokerProcess, client: str) -> str:
    """What `weir why` prints, its lines joined."""
    assert running.control is not None
    done = weir("why", client, "--folder", str(running.control.parent))
    assert (0, "") == (done.returncode, done.stderr), done
    return " ".join(done.stdout.split())


def wait_for(running: BrokerProcess, client: str, words: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while words not in (told := ask(running, client)):
        assert time.monotonic() < deadline, told
    return told


def client_of(running: BrokerProcess, client_id: str, version: int = V311) -> RawClient:
    client = RawClient(running.port, version)
    client.connect(client_id)
    return client


def test_a_client_that_is_held_back_is_told_why_and_until_when(running: BrokerProcess) -> None:
    """The answers of the worker would be lost on their way, or be those of a worker that has another client."""
    with closing(client_of(running, "phone")) as client:
        calm = ask(running, "phone")
        for number in range(1, 4):
            client.send(Publish(b"t", b"x", 1, packet_id=number))
        held = wait_for(running, "phone", "throttled for")

    assert "phone has been connected to worker" in calm and "Nothing throttles it." in calm
    assert "(quota_session_messages of 2:600): the client published as many messages as its quota allows." in held
    assert "The setting is quotas.session.incoming_messages." in held
    assert "It continues in 5 min." in held


def test_the_facts_are_there_for_programs(running: BrokerProcess) -> None:
    """A program would have to read sentences."""
    assert running.control is not None
    with closing(client_of(running, "phone", V5)):
        done = weir("why", "phone", "--json", "--folder", str(running.control.parent))

    told = json.loads(done.stdout)
    assert ("phone", 5, []) == (told["client"], told["connection"]["version"], told["unanswered"])
    assert {"name": "QUOTA_SESSION_MESSAGES", "rate": "2:600", "room": 2.0} in told["limits"]


def test_who_was_taken_over_at_any_worker_is_told_so(running: BrokerProcess) -> None:
    """How a connection ended would be known only where nobody asks: its client is at another worker now."""
    clients = [client_of(running, "twin") for _ in range(CONNECTIONS)]
    try:
        told = ask(running, "twin")
    finally:
        for client in clients:
            client.close()

    assert "twin has been connected to worker" in told
    assert "another connection uses the same client id (session_taken_over, 0x8e)" in told
    assert "two programs use one client id" in told


def test_who_was_refused_and_who_is_not_known_are_told_apart(running: BrokerProcess) -> None:
    """A wrong password would look like a client that never came."""
    assert running.control is not None
    with closing(RawClient(running.port, V5)) as stranger:
        stranger.send(Connect(V5, "phone", True, 0, "alice", b"wrong", None, {}))
        assert 0x86 == stranger.expect(ConnAck).code
        stranger.expect_end()
    nobody = weir("why", "nobody", "--folder", str(running.control.parent))

    told = wait_for(running, "phone", "was refused")
    assert "the user name or the password is wrong (bad_user_name_or_password, 0x86)" in told
    assert "`weir passwd FILE USER`" in told and "secret" not in told and "wrong'" not in told
    assert (1, "", 1) == (nobody.returncode, nobody.stdout, len(nobody.stderr.splitlines()))
    assert "'nobody'" in nobody.stderr and "`weir clients list`" in nobody.stderr


def test_the_cause_of_an_overload_is_told_of_the_worker_that_has_it(running: BrokerProcess) -> None:
    """Who asks about a client of a calm worker would not learn that another one is overloaded, and how much."""
    assert running.control is not None
    with closing(client_of(running, "phone")):
        node.ask(running.control, "inject", worker=1, signal="lag", value=0.15, seconds=60.0)
        told = wait_for(running, "phone", "The overload level is 10 of 10")

    assert "The cause is the signal lag of worker 1 of node" in told
    assert "clients wait too long to be served, 150 ms, which is 3 times the target" in told
