# Who sent a CONNECT: what the authenticator answers at once, and what it answers when a password was hashed elsewhere.
from collections.abc import Callable

import pytest

from broker.auth.authenticator import ACCEPTED, REFUSED, WAITING, Authenticator, AuthResult
from broker.auth.passwords import Passwords, hash_password, parse_passwords
from broker.mqtt.packets import V5, Connect
from broker.reasons import CloseReason

SALT = b"twelve bytes"
KEY = bytes(32)


def passwords(user: str, password: str) -> Passwords:
    return parse_passwords(f"{user}:{hash_password(password.encode(), SALT, 1)}\n", KEY)


def connect(user: str | None = "alice", password: bytes | None = b"right") -> Connect:
    return Connect(V5, "me", True, 0, user, password)


class Threads:
    """Work that was handed to another thread and is done when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], object], Callable[[object], None]]] = []

    def run(self, work: Callable[[], object], then: Callable[[object], None]) -> None:
        self.waiting.append((work, then))

    def finish(self, result: object = None) -> None:
        """Finish the oldest work, with its own result or with *result*."""
        work, then = self.waiting.pop(0)
        then(work() if result is None else result)


class Door:
    """An authenticator with its threads, and the results that it has given."""

    def __init__(self, *, anonymous: bool = False, certificate_user: bool = False) -> None:
        self.threads = Threads()
        self.results: list[AuthResult] = []
        self.authenticator = Authenticator(
            self.threads.run, passwords("alice", "right"), anonymous=anonymous, certificate_user=certificate_user
        )

    def knock(self, packet: Connect, identity: str = "") -> object:
        return self.authenticator.authenticate(identity, packet, self.results.append)

    def told(self) -> list[tuple[int, str | None, CloseReason | None]]:
        return [(one.kind, one.user, one.reason) for one in self.results]


def test_a_password_is_checked_elsewhere_and_then_remembered() -> None:
    """Hashing would stop the loop, or be paid again at each reconnect."""
    door = Door()
    assert door.knock(connect()) is not None
    assert [] == door.told()
    assert (1, 0) == door.authenticator.statistics()
    door.threads.finish()

    assert [(ACCEPTED, "alice", None)] == door.told()
    assert None is door.knock(connect())
    assert [(ACCEPTED, "alice", None)] * 2 == door.told()
    assert (0, 0) == door.authenticator.statistics()


def test_a_wrong_password_and_a_check_that_failed_are_refused() -> None:
    """A client would come in because hashing failed, or be told that its password is wrong."""
    door = Door()
    door.knock(connect(password=b"wrong"))
    door.knock(connect())
    door.threads.finish()
    door.threads.finish(OSError("no memory"))

    assert [
        (REFUSED, None, CloseReason.BAD_CREDENTIALS),
        (REFUSED, None, CloseReason.INTERNAL_ERROR),
    ] == door.told()


@pytest.mark.parametrize(
    ("anonymous", "result"), [(True, (ACCEPTED, None, None)), (False, (REFUSED, None, CloseReason.NOT_AUTHORIZED))]
)
def test_a_connect_without_a_user_name(anonymous: bool, result: tuple[int, str | None, CloseReason | None]) -> None:
    """`allow_anonymous` would mean nothing."""
    door = Door(anonymous=anonymous)

    assert None is door.knock(connect(user=None, password=None))
    assert [result] == door.told()


def test_a_certificate_names_the_user_only_where_that_is_configured() -> None:
    """A certificate would replace a password although nobody said that it may."""
    trusting, asking = Door(certificate_user=True), Door()
    trusting.knock(connect(user=None), identity="device")
    asking.knock(connect(user=None), identity="device")

    assert [(ACCEPTED, "device", None)] == trusting.told()
    assert [(REFUSED, None, CloseReason.NOT_AUTHORIZED)] == asking.told()


def test_more_checks_than_can_be_done_in_time_are_refused() -> None:
    """Work that nobody waits for would fill the memory."""
    door = Door()
    for _ in range(WAITING + 1):
        door.knock(connect())

    assert [(REFUSED, None, CloseReason.SERVER_BUSY)] == door.told()
    assert WAITING == len(door.threads.waiting)


def test_a_check_is_repeated_when_the_passwords_were_replaced_meanwhile() -> None:
    """The former password would open the door after it was taken away."""
    door = Door()
    door.knock(connect())
    door.authenticator.replace(passwords("alice", "new"))
    door.threads.finish()
    assert [] == door.told()
    door.threads.finish()

    assert [(REFUSED, None, CloseReason.BAD_CREDENTIALS)] == door.told()
