import pytest

from broker.overload import addresses
from broker.overload.addresses import Addresses, network

NOW = 1000.0


@pytest.mark.parametrize(
    ("peer", "same", "other"),
    [
        ("192.0.2.1:1883", "192.0.2.1:40000", "192.0.2.2:1883"),
        ("2001:db8:1:2::1:1883", "2001:db8:1:2:ffff::9:1", "2001:db8:1:3::1:1883"),
        ("::ffff:192.0.2.1:1883", "192.0.2.1:5", "::ffff:192.0.2.2:1883"),
        ("fe80::1%eth0:1883", "fe80::2%eth0:1883", "fe81::1%eth0:1883"),
        ("localhost:1", "localhost:2", "elsewhere:1"),
    ],
)
def test_a_host_of_ipv4_and_a_network_of_ipv6_are_one_address(peer: str, same: str, other: str) -> None:
    """A host of IPv6 would have as many addresses as it likes, or all clients of IPv4 would be one."""
    assert network(peer) == network(same)
    assert network(peer) != network(other)


def test_one_connection_too_many_is_found_and_one_fewer_is_not() -> None:
    """The limit would hold somebody back for the connections of others, or nobody."""
    table = Addresses(2, 0, 1)
    first, second = (table.arrive("a:1", NOW) for _ in range(2))
    other = table.arrive("b:1", NOW)

    assert first is second
    assert [False, False] == [table.crowded(first), table.crowded(other)]
    third = table.arrive("a:2", NOW)
    assert [True, False] == [table.crowded(third), table.crowded(other)]
    table.leave(third)
    assert not table.crowded(first)


def test_an_address_may_have_its_burst_at_once_and_then_its_rate() -> None:
    """A fleet that comes back would be refused, or a flood let in."""
    table = Addresses(0, 2, 3)
    address = table.arrive("a:1", NOW)

    assert [False] * 3 + [True] * 5 == [table.too_fast(address, NOW) for _ in range(8)]  # what is refused costs nothing
    assert [False, True] == [table.too_fast(address, NOW + 0.5) for _ in range(2)]
    assert [False] * 3 + [True] == [table.too_fast(address, NOW + 60) for _ in range(4)]


def test_limits_of_zero_are_none() -> None:
    """Who sets nothing would find clients refused."""
    table = Addresses(0, 0, 1)
    several = [table.arrive("a:1", NOW) for _ in range(5)]

    assert not table.limited
    assert not any(table.crowded(address) or table.too_fast(address, NOW) for address in several)


def test_without_a_rate_an_address_goes_with_its_last_connection() -> None:
    """The table would grow with every address that ever came."""
    table = Addresses(5, 0, 1)
    first, second = (table.arrive("a:1", NOW) for _ in range(2))
    table.leave(first)
    assert (1, 0) == table.statistics()
    table.leave(second)

    assert (0, 0) == table.statistics()


def test_an_address_is_remembered_until_its_bucket_is_full_again() -> None:
    """Who leaves would come back with a new burst; or never be forgotten."""
    table = Addresses(0, 1, 3)
    address = table.arrive("a:1", NOW)
    assert [False] * 3 == [table.too_fast(address, NOW) for _ in range(3)]
    table.leave(address)

    assert 0 == table.forget(NOW + 2.9, 10)
    again = table.arrive("a:2", NOW + 0.5)
    assert table.too_fast(again, NOW + 0.5)
    table.leave(again)
    assert 1 == table.forget(NOW + 3.1, 10)
    assert (0, 0) == table.statistics()


def test_an_address_that_is_back_is_not_forgotten() -> None:
    """Its connections would not be counted any more, and its leaving would be an error."""
    table = Addresses(1, 1, 1)
    table.leave(table.arrive("a:1", NOW))
    back = table.arrive("a:1", NOW)

    assert 0 == table.forget(NOW + 60, 10)
    assert back is table.arrive("a:1", NOW)
    assert table.crowded(back)
    table.leave(back)
    table.leave(back)
    assert 1 == table.forget(NOW + 60, 10)


def test_looking_for_what_can_be_forgotten_is_bounded() -> None:
    """A table of many addresses would hold the loop once a second."""
    table = Addresses(0, 1, 1)
    for name in range(10):
        table.leave(table.arrive(f"{name}:1", NOW))

    assert [4, 4, 2, 0] == [table.forget(NOW + 1, 4) for _ in range(4)]


def test_the_table_is_bounded() -> None:
    """A client with very many addresses would use up the memory."""
    table = Addresses(0, 1, 5)
    stays = table.arrive("stays:1", NOW)
    for name in range(addresses.MOST + 1000):
        address = table.arrive(f"{name}:1", NOW)
        table.too_fast(address, NOW)
        table.leave(address)

    assert (1, addresses.MOST + 1) == table.statistics()
    assert stays is table.arrive("stays:2", NOW)
