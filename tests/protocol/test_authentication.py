# Authentication of clients: passwords are checked in another thread, while all other clients are served.
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from broker.auth.authenticator import AuthResult
from broker.auth.check_queue import WAITING
from broker.auth.failures import FIRST, LONGEST
from broker.auth.passwords import hash_password
from broker.config.schema import Access, Config, Limits
from broker.mqtt.packets import V5, V31, V311, ConnAck, Connect, Disconnect, PingReq, PingResp, Publish, Will
from broker.mqtt.properties import REASON_STRING, SESSION_EXPIRY_INTERVAL, USER_PROPERTY
from broker.reasons import CloseReason
from tests.inprocess import Broker, Client
from tests.protocol.talk import closed, greeting, payloads, subscribe

Brokers = Callable[..., Broker]
Log = list[MutableMapping[str, Any]]
SALT = b"twelve bytes"
BUSY = 0x89


def line(name: str, password: str) -> str:
    return f"{name}:{hash_password(password.encode(), SALT, 1)}\n"


@pytest.fixture
def users(tmp_path: Path) -> Path:
    file = tmp_path / "passwords"
    file.write_text(line("alice", "right") + line("bob", "right too"))
    return file


def asking(users: Path, *, allow_anonymous: bool = False, limits: Limits | None = None) -> Config:
    access = Access(password_file=str(users), allow_anonymous=allow_anonymous)
    return Config(access=access, limits=limits or Limits())


def credentials(user: str | None, password: str | None, version: int = V5, client_id: str = "me") -> Connect:
    return Connect(version, client_id, True, 0, user, None if password is None else password.encode())


def say(broker: Broker, packet: Connect) -> Client:
    """A new connection that has sent *packet*; the broker has done all it can do now."""
    client = broker.open(packet.version)
    client.send(packet)
    broker.settle()
    return client


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_who_knows_the_password_comes_in(brokers: Brokers, users: Path, version: int) -> None:
    """Nobody could use a broker that asks."""
    client = brokers(asking(users)).connect("me", version, user="alice", password=b"right")

    assert 0 == client.connack.code
    client.send(PingReq())
    assert [PingResp()] == client.receive()


WRONG = [("alice", "wrong"), ("alice", ""), ("alice", None), ("nobody", "right"), ("bob", "right"), ("", "right")]


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize(("user", "password"), WRONG)
def test_who_does_not_is_told_so_and_logged_without_the_password(
    brokers: Brokers, users: Path, log: Log, version: int, user: str, password: str | None
) -> None:
    """Anybody would come in; or nobody could tell why a client is missing, or the log would hold passwords."""
    broker = brokers(asking(users))
    client = say(broker, credentials(user, password, version))
    broker.advance(1.0)

    assert [ConnAck(False, 0x86 if version == V5 else 4)] == client.receive()
    assert client.closed
    assert {CloseReason.BAD_CREDENTIALS: 1} == closed(broker)
    assert 1 == broker.counters.connects_refused
    failed, told = log
    assert ("auth_failed", "warning", "me", user) == tuple(
        failed[key] for key in ("event", "log_level", "client", "user")
    )
    assert ("bad_user_name_or_password", told["address"]) == (failed["reason"], failed["address"])
    assert ("client_closed", "bad_user_name_or_password") == (told["event"], told["reason"])
    assert f"user {user!r}, client 'me'" == told["detail"]
    assert "right" not in str(log)
    assert "wrong" not in str(log)


@pytest.mark.parametrize(("version", "code"), [(V31, 5), (V311, 5), (V5, 0x87)])
def test_without_a_user_name_nobody_comes_in_unless_it_is_allowed(
    brokers: Brokers, users: Path, version: int, code: int
) -> None:
    """A password file would keep out only those who try, or `allow_anonymous` mean nothing."""
    strict, open_to_all = brokers(asking(users)), brokers(asking(users, allow_anonymous=True))
    refused = say(strict, greeting("me", version))

    assert [ConnAck(False, code)] == refused.receive()
    assert {CloseReason.NOT_AUTHORIZED: 1} == closed(strict)
    assert 0 == open_to_all.connect("me", version).connack.code
    assert [] == say(open_to_all, credentials("nobody", "x", version)).receive()  # a name is checked all the same


def test_without_a_password_file_names_are_not_looked_at(brokers: Brokers) -> None:
    """On this machine alone a client that sends some name would be kept out."""
    assert 0 == brokers().connect("me", V5, user="anybody", password=b"anything").connack.code


def test_each_failure_of_an_address_is_answered_later(brokers: Brokers, users: Path) -> None:
    """Passwords could be guessed as fast as we answer."""
    broker = brokers(asking(users))
    for wait in (FIRST, 2 * FIRST, 4 * FIRST):
        client = say(broker, credentials("alice", "wrong"))
        broker.advance(wait - 0.1)
        assert [] == client.receive()
        assert not client.closed
        broker.advance(0.2)
        assert [ConnAck(False, 0x86)] == client.receive()
        assert client.closed


def test_who_knows_the_password_never_waits_for_the_failures_of_others(brokers: Brokers, users: Path) -> None:
    """One device with an old password would lock out all others behind its address."""
    broker = brokers(asking(users))
    waiting = [say(broker, credentials("alice", "wrong")) for _ in range(10)]

    assert 0 == broker.connect("me", V5, user="alice", password=b"right").connack.code
    assert not any(client.closed for client in waiting)


def test_our_own_delay_is_longer_than_the_deadline_of_connect(brokers: Brokers, users: Path) -> None:
    """A guess would be closed by the deadline before its answer, so that the delay counts for nothing."""
    broker = brokers(asking(users, limits=Limits(connect_timeout=1.0)))
    for _ in range(8):
        client = say(broker, credentials("alice", "wrong"))
    broker.advance(LONGEST - 0.2)
    assert not client.closed
    broker.advance(0.4)

    assert [ConnAck(False, 0x86)] == client.receive()
    assert {CloseReason.BAD_CREDENTIALS: 8} == closed(broker)


def test_the_deadline_of_connect_covers_the_check(brokers: Brokers, users: Path) -> None:
    """When hashing falls behind, connections would pile up."""
    broker = brokers(asking(users, limits=Limits(connect_timeout=1.0)))
    broker.threads.stopped = True
    client = say(broker, credentials("alice", "right"))
    broker.advance(1.2)
    assert client.closed
    broker.threads.go_on()
    broker.settle()

    assert {CloseReason.CONNECT_TIMEOUT: 1} == closed(broker)
    assert 0 == broker.connected
    assert (0, 0) == broker.authenticator.statistics()


def test_nothing_of_a_client_is_done_before_it_is_known(brokers: Brokers, users: Path) -> None:
    """What somebody sends behind its CONNECT would be done in whatever name it gives."""
    broker = brokers(asking(users))
    listener = broker.connect("listener", user="bob", password=b"right too")
    subscribe(listener, "t")
    broker.threads.stopped = True
    client = broker.open(V5)
    client.send(credentials("alice", "right"), Publish(b"t", b"x"), PingReq())
    intruder = broker.open(V5)
    intruder.send(credentials("alice", "wrong"), Publish(b"t", b"stolen"))
    assert [] == client.receive()
    assert [] == payloads(listener.receive())
    broker.threads.go_on()

    assert [ConnAck, PingResp] == [type(packet) for packet in client.receive()]
    broker.advance(1.0)
    assert [b"x"] == payloads(listener.receive())


def test_others_are_served_while_a_password_is_checked(brokers: Brokers, users: Path) -> None:
    """One CONNECT would hold up everybody for as long as hashing takes."""
    broker = brokers(asking(users))
    other = broker.connect("other", user="bob", password=b"right too")
    broker.threads.stopped = True
    say(broker, credentials("alice", "right"))
    other.send(PingReq())

    assert [PingResp()] == other.receive()


def test_who_is_not_known_takes_no_session_over_and_learns_of_none(brokers: Brokers, users: Path) -> None:
    """Anybody could throw out a client by its id, or find out which ids there are [MQTT-3.1.4-3]."""
    broker = brokers(asking(users))
    alice = broker.connect("me", V5, user="alice", password=b"right", properties={SESSION_EXPIRY_INTERVAL: 60})
    answers = []
    for client_id in ("me", "nobody"):
        intruder = say(broker, Connect(V5, client_id, False, 0, "alice", b"wrong"))
        broker.advance(1.0)
        answers.append(intruder.receive())
    alice.send(PingReq())

    assert [[ConnAck(False, 0x86)]] * 2 == answers
    assert [PingResp()] == alice.receive()
    assert 1 == broker.session_count()


def test_a_client_that_leaves_while_its_password_is_checked_is_forgotten(brokers: Brokers, users: Path) -> None:
    """A session would begin for nobody, and a will be kept that nobody takes back; or we would hash for nothing."""
    broker = brokers(asking(users))
    broker.threads.stopped = True
    client = broker.open(V5)
    client.send(Connect(V5, "me", True, 0, "alice", b"right", Will(b"t", b"gone")))
    broker.settle()
    client.drop()
    broker.advance(10.0)
    broker.threads.go_on()
    broker.settle()

    assert 0 == broker.session_count()
    assert 0 == broker.counters.connects_accepted
    assert 1 == sum(broker.counters.closed_by_reason.values())
    broker.threads.stopped = True
    assert [] == say(broker, credentials("alice", "right")).receive()  # it was not even hashed


def test_what_was_verified_once_is_not_hashed_again(brokers: Brokers, users: Path) -> None:
    """A fleet that reconnects would keep us busy for minutes."""
    broker = brokers(asking(users))
    broker.connect("me", V5, user="alice", password=b"right")
    broker.threads.stopped = True

    assert 0 == broker.connect("me again", V5, user="alice", password=b"right").connack.code
    assert [] == say(broker, credentials("alice", "wrong")).receive()


def test_checks_that_wait_are_bounded(brokers: Brokers, users: Path) -> None:
    """A flood of wrong passwords would fill our memory with work that nobody waits for."""
    broker = brokers(asking(users), connections=WAITING + 10)
    broker.connect("known", V5, user="bob", password=b"right too")
    broker.threads.stopped = True
    waiting = [
        say(broker, credentials("alice", "right", client_id=f"{n}")) for n in range(WAITING + 1)
    ]  # one is hashed
    late = [say(broker, credentials("alice", "right", version)) for version in (V311, V5)]

    plain, explained = [client.receive()[0] for client in late]
    assert ConnAck(False, 3) == plain
    assert isinstance(explained, ConnAck)
    assert (BUSY, [REASON_STRING, USER_PROPERTY]) == (explained.code, list(explained.properties))
    assert {CloseReason.SERVER_BUSY: 2} == closed(broker)
    assert 0 == broker.connect("known too", V5, user="bob", password=b"right too").connack.code
    broker.threads.go_on()
    broker.settle()
    assert WAITING + 3 == broker.connected
    assert not any(client.closed for client in waiting)


def test_a_check_that_fails_by_our_mistake_costs_its_connection(brokers: Brokers, users: Path) -> None:
    """A client would be held for ever, or be let in because nobody said no."""
    broker = brokers(asking(users))
    authenticator = broker.authenticator
    broker.threads.stopped = True
    client = say(broker, credentials("alice", "right"))
    broker.threads.fail = OSError("no memory")
    broker.threads.go_on()

    assert [ConnAck(False, 0x83)] == client.receive()
    assert client.closed
    assert {CloseReason.INTERNAL_ERROR: 1} == closed(broker)
    assert (0, 0) == authenticator.statistics()


def test_a_worker_that_stops_lets_nobody_in_whose_check_is_under_way(brokers: Brokers, users: Path) -> None:
    """A client would get a session of a broker that is gone in a moment."""
    broker = brokers(asking(users))
    broker.threads.stopped = True
    say(broker, credentials("alice", "right"))
    broker.lifecycle.stop(broker.clock.now)
    broker.threads.go_on()
    broker.settle()

    assert 0 == broker.counters.connects_accepted


@pytest.mark.parametrize(
    ("enabled", "identity", "answer"),
    [
        (True, "device-7", (None, "device-7")),
        (False, "device-7", (CloseReason.NOT_AUTHORIZED, None)),
        (True, "", (CloseReason.NOT_AUTHORIZED, None)),
    ],
)
def test_a_certificate_stands_for_a_password_where_it_is_allowed(
    brokers: Brokers, users: Path, enabled: bool, identity: str, answer: tuple[CloseReason | None, str | None]
) -> None:
    """A client with a certificate would need a password, too; or come in though nobody said that it may."""
    broker = brokers(Config(access=Access(password_file=str(users), certificate_user=enabled)))
    told: list[AuthResult] = []
    broker.authenticator.authenticate(identity, "192.0.2.1:5000", greeting("me", V5), told.append)

    assert [answer] == [(one.reason, one.user) for one in told]


# Reloading.


def test_a_reload_takes_new_users_and_forgets_what_was_verified(brokers: Brokers, users: Path, log: Log) -> None:
    """A new device would have to wait for a restart, or an old password be good until then."""
    broker = brokers(asking(users))
    broker.connect("me", V5, user="alice", password=b"right").drop()
    users.write_text(line("alice", "new") + line("carol", "hers"))
    broker.reload()

    assert 0 == broker.connect("me", V5, user="alice", password=b"new").connack.code
    assert 0 == broker.connect("you", V5, user="carol", password=b"hers").connack.code
    assert [] == say(broker, credentials("alice", "right")).receive()
    assert "reloaded" in [entry["event"] for entry in log]


def test_a_reload_ends_the_connections_of_those_who_lost_their_password(brokers: Brokers, users: Path) -> None:
    """Who was taken out of the file would stay as long as its connection."""
    broker = brokers(asking(users, allow_anonymous=True))
    alice = broker.connect("a", V5, user="alice", password=b"right")
    bob = broker.connect("b", V5, user="bob", password=b"right too")
    anonymous = broker.connect("c", V5)
    users.write_text(line("alice", "new") + line("bob", "right too"))
    broker.reload()

    assert [Disconnect(0x87)] == [
        Disconnect(packet.code) for packet in alice.receive() if isinstance(packet, Disconnect)
    ]
    assert alice.closed
    assert not bob.closed
    assert not anonymous.closed
    assert {CloseReason.NOT_AUTHORIZED: 1} == closed(broker)


def test_a_check_under_way_at_a_reload_is_made_again(brokers: Brokers, users: Path) -> None:
    """A password that was taken away in that moment would still let somebody in."""
    broker = brokers(asking(users))
    broker.threads.stopped = True
    old = say(broker, credentials("alice", "right", client_id="old"))
    new = say(broker, credentials("alice", "new", client_id="new"))
    users.write_text(line("alice", "new"))
    broker.reload()
    broker.threads.go_on()
    broker.advance(1.0)

    assert [0x86] == [packet.code for packet in old.receive() if isinstance(packet, ConnAck)]
    assert [0] == [packet.code for packet in new.receive() if isinstance(packet, ConnAck)]


def test_a_file_that_cannot_be_used_leaves_the_former_in_force(brokers: Brokers, users: Path, log: Log) -> None:
    """A slip of an editor would let everybody in, or nobody."""
    broker = brokers(asking(users))
    client = broker.connect("me", V5, user="alice", password=b"right")
    users.write_text(line("carol", "hers") + "alice:plain\n")
    broker.reload()

    (error,) = [entry for entry in log if entry["log_level"] == "error"]
    assert ("reload_failed", True) == (error["event"], f"The password file {users}, line 2: " in error["why"])
    assert "reloaded" not in [entry["event"] for entry in log]
    client.send(PingReq())
    assert [PingResp()] == client.receive()
    assert 0 == broker.connect("me too", V5, user="alice", password=b"right").connack.code
    assert [] == say(broker, credentials("carol", "hers")).receive()
