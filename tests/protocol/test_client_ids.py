# A client id belongs to the user whose session it names; and a rule may say which ids a user can have.
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.auth.passwords import hash_password
from broker.config.schema import Access, Config
from broker.mqtt.packets import V5, V31, V311, ConnAck, Connect, PingReq, PingResp, Properties, Publish, Will
from broker.mqtt.properties import ASSIGNED_CLIENT_IDENTIFIER, SESSION_EXPIRY_INTERVAL
from broker.reasons import CloseReason
from tests.inprocess import Broker, Client
from tests.protocol.talk import closed, payloads, subscribe

Brokers = Callable[..., Broker]
LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 100}
NOT_AUTHORIZED = 0x87
NOT_VALID = 0x85


@pytest.fixture
def users(tmp_path: Path) -> str:
    """A password file with the users alice and bob, whose passwords are their names."""
    file = tmp_path / "passwords"
    file.write_text(
        "".join(f"{name}:{hash_password(name.encode(), b'twelve bytes', 1)}\n" for name in ("alice", "bob"))
    )
    return str(file)


def enter(
    broker: Broker, user: str | None, client_id: str = "me", version: int = V5, clean: bool = False, will: str = ""
) -> Client:
    """A client of *user* that has sent its CONNECT; the answer is in `connack`."""
    client = broker.open(version)
    password = None if user is None else user.encode()
    properties = LASTING if version == V5 else {}
    last = Will(will.encode(), b"gone", 1) if will else None
    client.send(Connect(version, client_id, clean, 0, user, password, last, properties))
    (client.connack,) = [packet for packet in client.receive() if isinstance(packet, ConnAck)]
    return client


def lives(client: Client) -> bool:
    client.send(PingReq())
    return client.receive() == [PingResp()]


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize(("version", "code"), [(V31, 5), (V311, 5), (V5, NOT_AUTHORIZED)])
def test_another_user_does_not_get_the_session(
    brokers: Brokers, users: str, version: int, code: int, clean: bool
) -> None:
    """Any user could disconnect the clients of all others, read their queues, and act with their rights of %c."""
    broker = brokers(Config(access=Access(password_file=users)))
    alice = enter(broker, "alice")
    thief = enter(broker, "bob", version=version, clean=clean)

    assert ConnAck(False, code) == thief.connack
    assert thief.closed
    assert lives(alice)
    assert {CloseReason.CLIENT_ID_OF_OTHER_USER: 1} == closed(broker)


def test_a_session_without_a_connection_is_kept_for_its_user(brokers: Brokers, users: str) -> None:
    """Another user would get the messages that wait; or their user would not."""
    broker = brokers(Config(access=Access(password_file=users)))
    first = enter(broker, "alice")
    subscribe(first, "news", qos=1)
    first.drop()
    enter(broker, "bob", "publisher").send(Publish(b"news", b"for alice", 1, packet_id=1))
    broker.settle()

    assert NOT_AUTHORIZED == enter(broker, "bob").connack.code
    again = broker.connect("me", V5, clean_start=False, properties=LASTING, user="alice", password=b"alice")
    assert again.connack.session_present
    assert [b"for alice"] == payloads(again.receive())


@pytest.mark.parametrize(("first", "second"), [("alice", None), (None, "alice")])
def test_anonymous_clients_are_a_user_of_their_own(
    brokers: Brokers, users: str, first: str | None, second: str | None
) -> None:
    """Without any password one could take a user's session over; or a user that of a client without one."""
    broker = brokers(Config(access=Access(password_file=users, allow_anonymous=True)))
    here = enter(broker, first)

    assert NOT_AUTHORIZED == enter(broker, second).connack.code
    assert lives(here)
    assert enter(broker, first).connack.session_present


def test_an_id_is_free_when_its_session_has_ended(brokers: Brokers, users: str) -> None:
    """A device that was given to another user could never connect again."""
    broker = brokers(Config(access=Access(password_file=users)))
    enter(broker, "alice").drop()
    broker.settle()
    assert NOT_AUTHORIZED == enter(broker, "bob").connack.code
    broker.advance(101.0)

    assert ConnAck(False, 0, enter(broker, "bob").connack.properties) == enter(broker, "bob", "other").connack
    assert NOT_AUTHORIZED == enter(broker, "alice").connack.code


def test_a_name_that_nobody_verified_is_no_user(brokers: Brokers) -> None:
    """Without passwords a client that changes its user name would lose its session for nothing."""
    broker = brokers(Config())
    enter(broker, "alice").drop()
    broker.settle()

    assert enter(broker, "bob").connack.session_present


def test_ids_may_be_shared_by_all_users(brokers: Brokers, users: str) -> None:
    """Fleets whose devices change their user names would be locked out of their sessions."""
    broker = brokers(Config(access=Access(password_file=users, exclusive_client_ids=False)))
    alice = enter(broker, "alice")

    assert enter(broker, "bob").connack.session_present
    broker.settle()
    assert {CloseReason.SESSION_TAKEN_OVER: 1} == closed(broker)
    alice.receive()
    assert alice.closed


@pytest.mark.parametrize(("version", "code"), [(V311, 2), (V5, NOT_VALID)])
def test_a_rule_says_which_ids_a_user_may_have(brokers: Brokers, users: str, version: int, code: int) -> None:
    """A user could take ids that other users have not used yet, and with them what %c grants."""
    broker = brokers(Config(access=Access(password_file=users, client_id_rule="%u-*")))

    assert 0 == enter(broker, "bob", "bob-1", version).connack.code
    refused = enter(broker, "bob", "alice-1", version)
    assert (code, True) == (refused.connack.code, refused.closed)
    assert {CloseReason.CLIENT_ID_RULE: 1} == closed(broker)


@pytest.mark.parametrize(("rule", "starts"), [("%u", "bob"), ("dev/%u/*", "dev/bob/weir-")])
def test_an_id_that_the_broker_assigns_keeps_the_rule(brokers: Brokers, users: str, rule: str, starts: str) -> None:
    """Clients without an id of their own could not connect, or the next CONNECT with that id would be refused."""
    broker = brokers(Config(access=Access(password_file=users, client_id_rule=rule)))
    first = enter(broker, "bob", "")
    assigned = first.connack.properties[ASSIGNED_CLIENT_IDENTIFIER]

    assert isinstance(assigned, str) and assigned.startswith(starts)
    assert enter(broker, "bob", assigned).connack.session_present
