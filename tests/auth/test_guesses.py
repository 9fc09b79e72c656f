# The budgets of wrong passwords: who is refused, who never is, and how much is remembered.
import pytest

from broker.auth.guesses import PAIRS, PEACE, SITES, Budget, Guesses, Source
from broker.reasons import CloseReason

HOME = "192.0.2.1:5000"
NOW = 1000.0


def guess(guesses: Guesses, address: str, user: str, now: float = NOW, right: bool = False) -> CloseReason | None:
    """One guess, from its admission to its result."""
    source = Source(address, user)
    refused = guesses.refusal(source, now)
    if refused is None:
        guesses.begin(source, now)
        if right:
            guesses.give_back(source, now)
            guesses.right(source)
        else:
            guesses.wrong(source, now)
    return refused


def wrong(guesses: Guesses, count: int, address: str = HOME, user: str = "alice", now: float = NOW) -> int:
    """How many of *count* wrong guesses were checked."""
    return sum(1 for _ in range(count) if guess(guesses, address, user, now) is None)


def test_guesses_for_one_user_have_a_budget() -> None:
    """A password would be guessed as fast as the worker hashes."""
    guesses = Guesses(20, 50)
    assert 20 == wrong(guesses, 1000)
    assert CloseReason.GUESSES_OF_USER is guesses.refusal(Source(HOME, "alice"), NOW)
    assert guesses.refusal(Source(HOME, "bob"), NOW) is None

    assert 5 == wrong(guesses, 1000, now=NOW + 5.0)
    assert 20 == wrong(guesses, 1000, now=NOW + 100.0)


def test_guesses_from_one_address_have_a_budget() -> None:
    """An attacker would try one password on all users."""
    guesses = Guesses(20, 50)
    tried = [guess(guesses, HOME, f"user-{number}") for number in range(60)]

    assert [None] * 50 + [CloseReason.GUESSES_OF_ADDRESS] * 10 == tried
    assert guess(guesses, "192.0.2.2:5000", "user-1") is None
    assert 5 == sum(guess(guesses, HOME, f"user-{number}", NOW + 1.0) is None for number in range(60))


def test_right_passwords_cost_nothing() -> None:
    """A fleet behind a NAT would be locked out by its own clients."""
    guesses = Guesses(20, 50)

    assert [None] * 1000 == [guess(guesses, HOME, f"user-{number % 500}", right=True) for number in range(1000)]
    assert (0, 0, 0, 500) == guesses.statistics()


def test_a_user_is_not_locked_out_by_guesses_from_elsewhere() -> None:
    """Anybody could lock out any user by sending wrong passwords in its name."""
    guesses = Guesses(20, 50)
    guess(guesses, HOME, "alice", right=True)
    wrong(guesses, 1000, "198.51.100.1:1")
    assert CloseReason.GUESSES_OF_USER is guesses.refusal(Source("198.51.100.1:2", "alice"), NOW)

    assert guess(guesses, HOME, "alice", right=True) is None
    assert guess(guesses, "203.0.113.9:5000", "alice", right=True) is None  # an address that never failed


def test_a_user_is_not_locked_out_by_neighbours_once_it_was_right() -> None:
    """One broken device would lock out all others behind its NAT."""
    guesses = Guesses(20, 50)
    guess(guesses, HOME, "alice", right=True)
    for number in range(100):
        guess(guesses, HOME, f"other-{number}")

    assert CloseReason.GUESSES_OF_ADDRESS is guesses.refusal(Source(HOME, "bob"), NOW)
    assert guess(guesses, HOME, "alice", right=True) is None
    assert 20 == wrong(guesses, 1000)  # it has a budget of its own


def test_an_address_gets_one_guess_beyond_the_budget_of_a_user() -> None:
    """A user under attack would be lost to all who come from a new place, or the attacker get more than that."""
    guesses = Guesses(20, 50)
    wrong(guesses, 20)

    assert 1 == wrong(guesses, 10, "203.0.113.9:5000")
    assert 0 == wrong(guesses, 10, "203.0.113.9:5000", now=NOW + 0.5)


def test_guesses_beyond_a_budget_do_not_prolong_it() -> None:
    """A user would be locked out for hours by guesses from a thousand addresses."""
    guesses = Guesses(20, 50)
    for number in range(1000):
        wrong(guesses, 1, f"10.0.{number >> 8}.{number & 255}:1")
    assert 0 == wrong(guesses, 1, "10.0.0.0:1")

    assert 1 == wrong(guesses, 10, "10.0.0.0:1", now=NOW + 1.0)


def test_all_addresses_of_an_ipv6_site_get_one_such_guess() -> None:
    """Who has a /48 has 65 536 networks, and would get a guess with each of them."""
    guesses = Guesses(20, 50)
    wrong(guesses, 20)

    assert 1 == sum(wrong(guesses, 1, f"[2001:db8:7:{number:x}::1]:5000") for number in range(100))
    assert 1 == wrong(guesses, 1, "[2001:db8:8::1]:5000")


def test_with_more_failing_sites_than_are_remembered_a_new_one_proves_nothing() -> None:
    """An attacker with many addresses would have its failures forgotten and guess without end."""
    guesses = Guesses(20, 50)
    for number in range(SITES + 1):
        guess(guesses, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:1", f"user-{number}")
    wrong(guesses, 20)

    assert 0 == wrong(guesses, 1, "203.0.113.9:5000")
    assert SITES == guesses.statistics()[2]
    assert 1 == wrong(guesses, 1, "203.0.113.9:5000", now=NOW + PEACE)


def test_an_address_or_a_site_with_many_failures_waits_behind_others() -> None:
    """An attacker would be served as early as a client that never failed."""
    guesses = Guesses(20, 50)
    wrong(guesses, 4)
    assert not guesses.failing(Source(HOME, "bob"), NOW)
    wrong(guesses, 1)
    assert guesses.failing(Source(HOME, "bob"), NOW)
    assert not guesses.failing(Source(HOME, "bob"), NOW + 1.0)
    for number in range(50):
        guess(guesses, f"[2001:db8:7:{number:x}::1]:5000", f"user-{number}")

    assert guesses.failing(Source("[2001:db8:7:ffff::1]:5000", "bob"), NOW)
    assert not guesses.failing(Source("[2001:db8:8::1]:5000", "bob"), NOW)


@pytest.mark.parametrize(("per_user", "per_address", "checked"), [(0, 0, 1000), (0, 50, 50), (20, 0, 20)])
def test_a_limit_of_zero_is_none(per_user: int, per_address: int, checked: int) -> None:
    """A proxy with all clients behind it could not be used."""
    assert checked == wrong(Guesses(per_user, per_address), 1000)


def test_workers_share_the_budgets() -> None:
    """A node with more workers would have more guesses made."""
    assert 5 == wrong(Guesses(20, 50, workers=4), 1000)
    assert 3 == wrong(Guesses(20, 50, workers=64), 1000)  # or one mistake would lock out a user


def test_the_tables_are_bounded() -> None:
    """An attacker would fill the memory with user names and addresses."""
    budget = Budget(20.0, 1.0, limit=3)
    for key in "abcda":
        budget.take(key, NOW)
    assert (3, [1.0, 0.0, 1.0, 1.0]) == (budget.statistics(), [budget.debt(key, NOW) for key in "abcd"])

    guesses = Guesses(20, 50)
    for number in range(PAIRS + 1):
        guesses.right(Source(f"host-{number}:1", "alice"))
    assert PAIRS == guesses.statistics()[3]
    assert 80 > len(Source(HOME, "x" * 65_535).pair)


def test_a_guess_that_was_not_made_does_not_count() -> None:
    """A failure of Weir's own would lock out the user whose password it was."""
    budget = Budget(20.0, 1.0)
    budget.take("a", NOW)
    budget.take("a", NOW)
    budget.give_back("a", NOW)
    assert 1.0 == budget.debt("a", NOW)
    budget.give_back("a", NOW)
    budget.give_back("a", NOW)

    assert (0.0, 0) == (budget.debt("a", NOW), budget.statistics())
