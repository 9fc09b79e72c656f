import pytest

from broker.auth.failures import FIRST, LONGEST, PEACE, Failures


def test_each_failure_of_an_address_is_answered_slower_up_to_a_bound() -> None:
    """Somebody could try a thousand passwords a second, or be kept waiting until we run out of sockets."""
    failures = Failures()
    waits = [failures.add("192.0.2.1:1000", 100.0) for _ in range(9)]

    assert [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, LONGEST, LONGEST, LONGEST] == pytest.approx(waits)


def test_an_address_is_not_slowed_by_others() -> None:
    """One attacker would make all other mistakes slow."""
    failures = Failures()
    for _ in range(5):
        failures.add("192.0.2.1:1000", 100.0)

    assert FIRST == failures.add("192.0.2.2:1000", 100.0)
    assert 0.1 * 2**5 == pytest.approx(failures.add("192.0.2.1:2000", 100.0))  # from another port


def test_peace_makes_forget() -> None:
    """Who mistyped a password last week would still wait for it today."""
    failures = Failures()
    failures.add("192.0.2.1:1", 100.0)
    assert 0.2 == failures.add("192.0.2.1:1", 100.0 + PEACE)

    assert FIRST == failures.add("192.0.2.1:1", 101.0 + 2 * PEACE)


def test_the_table_is_bounded_and_the_quiet_ones_go() -> None:
    """A network of attackers would fill our memory, or wipe out what we know of one of them."""
    failures = Failures(limit=3)
    for number in (1, 2, 3, 1, 4):
        failures.add(f"192.0.2.{number}:1", 100.0)

    assert 3 == failures.statistics()
    assert pytest.approx(0.4) == failures.add("192.0.2.1:1", 100.0)
    assert FIRST == failures.add("192.0.2.2:1", 100.0)


def test_those_at_peace_go() -> None:
    """What was an attack once would be held for ever."""
    failures = Failures()
    failures.add("192.0.2.1:1", 100.0)
    failures.add("192.0.2.2:1", 200.0)
    failures.forget(150.0 + PEACE)
    assert 1 == failures.statistics()
    failures.forget(250.0 + PEACE)

    assert 0 == failures.statistics()


def test_an_ipv6_network_counts_as_one_address() -> None:
    """Who has a /64 has 2**64 addresses to guess from."""
    failures = Failures()
    for host in ("2001:db8:1:2:3::1", "2001:db8:1:2:ffff::9"):
        failures.add(f"{host}:1883", 100.0)

    assert 1 == failures.statistics()
