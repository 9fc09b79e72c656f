# Who sent a CONNECT: what the authenticator answers at once, and what it answers when a password was hashed elsewhere.
from collections.abc import Callable

import pytest

from broker.auth.authenticator import ACCEPTED, REFUSED, Authenticator, AuthResult, PendingCheck
from broker.auth.check_queue import WAITING
from broker.auth.passwords import Passwords, hash_password, parse_passwords
from broker.config.schema import Access
from broker.metrics.counters import Counters
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

    def __init__(self, *, anonymous: bool = False, certificate_user: bool = False, file: bool = True) -> None:
        self.threads = Threads()
        self.results: list[AuthResult] = []
        self.later: list[Callable[[], None]] = []
        self.counters = Counters()
        self.now = 1000.0
        self.authenticator = Authenticator(
            Access(allow_anonymous=anonymous, certificate_user=certificate_user),
            passwords("alice", "right") if file else None,
            self.counters,
            self.threads.run,
            self.later.append,
            lambda: self.now,
        )

    def knock(self, packet: Connect, identity: str = "", address: str = "192.0.2.1:5000") -> PendingCheck | None:
        return self.authenticator.authenticate(identity, address, packet, self.results.append)

    def work(self, hashes: int = 1_000_000) -> int:
        """Finish up to *hashes* checks in the order in which they were begun, and all that follows; how many."""
        for done in range(hashes):
            while self.later:
                self.later.pop(0)()
            if not self.threads.waiting:
                return done
            self.threads.finish()
        return hashes

    def told(self) -> list[tuple[int, str | None, CloseReason | None]]:
        return [(one.kind, one.user, one.reason) for one in self.results]

    def reasons(self) -> dict[str, int]:
        labels = ["accepted" if one.reason is None else one.reason.label for one in self.results]
        return {label: labels.count(label) for label in dict.fromkeys(labels)}


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
    for _ in range(WAITING + 2):
        door.knock(connect())

    assert [(REFUSED, None, CloseReason.SERVER_BUSY)] == door.told()
    assert (WAITING + 1, 0) == door.authenticator.statistics()


def test_one_password_is_hashed_at_once() -> None:
    """Hashing would take the core from the loop that serves clients."""
    door = Door()
    for number in range(10):
        door.knock(connect(f"user-{number}"))

    assert 1 == len(door.threads.waiting)
    assert 10 == door.work()
    assert 10 == door.counters.passwords_hashed


def test_a_new_client_is_checked_among_the_first_in_a_flood_of_wrong_passwords() -> None:
    """400 wrong CONNECTs a second from one address would lock out everybody who is not verified yet."""
    door = Door()
    for number in range(400):
        door.knock(connect(f"user-{number}", b"wrong"))
    door.work(10)
    door.knock(connect(), address="198.51.100.1:5000")
    hashed = 0
    while ("accepted" not in door.reasons()) and door.work(1):
        hashed += 1

    assert hashed <= 3
    door.work()
    assert {"bad_user_name_or_password": 50, "guesses_of_address": 350} == {
        label: count for label, count in door.reasons().items() if label != "accepted"
    }


def test_of_a_thousand_guesses_at_once_for_one_user_few_are_hashed() -> None:
    """Parallel guesses would all be checked before the first of them is counted."""
    door = Door()
    for number in range(1000):
        door.knock(connect(password=b"%d" % number))

    assert 20 == door.work()
    assert {"bad_user_name_or_password": 20, "guesses_of_user": 980} == door.reasons()


def test_parallel_guesses_are_not_compared_with_a_remembered_password() -> None:
    """The right one among a thousand guesses would come in, as comparing it takes no hash and is not counted."""
    door = Door()
    door.knock(connect())
    door.work()
    for number in range(999):
        door.knock(connect(password=b"%d" % number), address="198.51.100.1:5000")
    door.knock(connect(), address="198.51.100.1:5000")
    assert ["accepted"] == list(door.reasons())
    door.work()

    assert {"accepted": 1, "bad_user_name_or_password": 20, "guesses_of_user": 980} == door.reasons()
    assert None is door.knock(connect())  # from where it was right it is not in anybody's way
    assert 2 == door.reasons()["accepted"]


def test_a_fleet_with_one_user_is_hashed_once() -> None:
    """A thousand devices that share a user would be taken for a thousand guesses."""
    door = Door()
    for number in range(1000):
        door.knock(connect(), address=f"10.0.{number % 200}.1:5000")

    assert 1 == door.work()
    assert {"accepted": 1000} == door.reasons()
    assert (0, 0) == door.authenticator.statistics()


def test_what_needs_no_hash_is_answered_a_few_at_a_time() -> None:
    """A thousand refusals in one go would stop the loop for tens of milliseconds."""
    door = Door()
    for number in range(1000):
        door.knock(connect(password=b"%d" % number))
    for _ in range(19):
        door.threads.finish()
    before = len(door.results)
    door.threads.finish()

    assert 1 < len(door.results) - before <= 17
    assert 1 == len(door.later)


def test_a_client_that_has_gone_costs_no_hash() -> None:
    """Passwords would be hashed for nobody, and those who wait be late."""
    door = Door()
    first, second = door.knock(connect(password=b"1")), door.knock(connect(password=b"2"))
    assert first is not None and second is not None
    door.authenticator.abandon(second)
    door.authenticator.abandon(first)
    assert 1 == door.work()

    assert [] == door.told()
    assert (0, 0) == door.authenticator.statistics()
    door.knock(connect())
    door.work()
    assert {"accepted": 1} == door.reasons()


def test_a_check_is_repeated_when_the_passwords_were_replaced_meanwhile() -> None:
    """The former password would open the door after it was taken away."""
    door = Door()
    door.knock(connect())
    door.authenticator.replace(passwords("alice", "new"))
    door.threads.finish()
    assert [] == door.told()
    door.threads.finish()

    assert [(REFUSED, None, CloseReason.BAD_CREDENTIALS)] == door.told()


def test_without_passwords_a_client_that_no_certificate_names_is_refused() -> None:
    """Where certificates name the users, an empty name would make a client anonymous on a public listener."""
    door = Door(certificate_user=True, file=False)
    door.knock(connect(user=None), identity="device")
    door.knock(connect(user=None), identity="")
    open_door = Door(anonymous=True, certificate_user=True, file=False)
    open_door.knock(connect(user=None), identity="")

    assert [(ACCEPTED, "device", None), (REFUSED, None, CloseReason.NOT_AUTHORIZED)] == door.told()
    assert [(ACCEPTED, None, None)] == open_door.told()
