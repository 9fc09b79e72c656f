# Bans: whom they keep out, and what bounds them.

import pytest

from broker.auth.bans import Ban, BanError, Bans, ban_from

NOW = 1000.0


def ban(kind: str, value: str, seconds: float = 60.0) -> Ban:
    return Ban(kind, value, NOW + seconds, seconds=seconds, by="jo", reason="test", made=0.0)


def bans(*made: Ban) -> Bans:
    table = Bans()
    for one in made:
        table.check(one, NOW)
        table.set(one)
    return table


def test_a_ban_keeps_out_what_it_names_until_its_end() -> None:
    """A banned client would come in, or others be kept out with it."""
    table = bans(ban("client", "c"), ban("user", "u"), ban("pattern", "bot-*"), ban("address", "192.0.2.7"))
    found = [
        table.find(client_id, user, address, NOW)
        for client_id, user, address in [
            ("c", None, "203.0.113.1:1"),
            ("x", "u", "203.0.113.1:1"),
            ("bot-7", None, ""),
            ("x", None, "192.0.2.7:1"),
            ("u", "c", "192.0.2.8:1"),
            ("", None, "test:0"),
        ]
    ]

    kinds = ["" if one is None else one.kind for one in found]
    assert ["client", "user", "pattern", "address", "", ""] == kinds
    assert table.find("c", "u", "192.0.2.7:1", NOW + 60.0) is None
    assert 4 == len(table.forget_ended(NOW + 60.0))
    assert 0 == table.count


@pytest.mark.parametrize(
    ("network", "inside", "outside"),
    [
        ("192.0.2.0/24", "192.0.2.255:1", "192.0.3.1:1"),
        ("192.0.2.9/24", "[::ffff:192.0.2.1]:1", "[::ffff:192.0.3.1]:1"),
        ("2001:db8::/48", "[2001:db8:0:ffff::1]:1", "[2001:db8:1::1]:1"),
    ],
)
def test_an_address_is_a_network(network: str, inside: str, outside: str) -> None:
    """An attacker would come back from the next address of its network."""
    table = bans(ban("address", network), ban("address", "198.51.100.1"))

    assert table.find("", None, inside, NOW) is not None
    assert table.find("", None, outside, NOW) is None
    table.drop("address", ban("address", network).value)
    assert table.find("", None, inside, NOW) is None


def test_a_pattern_that_nearly_matches_is_not_tried_in_every_way() -> None:
    """A CONNECT with a long client id would keep the loop busy: a matcher that goes back would need years for these."""
    table = bans(*[ban("pattern", "*a" * 7 + "b*" + f"{number}") for number in range(100)])

    assert table.find("a" * 65_535, None, "", NOW) is None
    assert table.find("a" * 65_527 + "b99", None, "", NOW) is not None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("name", "x"),
        ("client", ""),
        ("client", "x" * 1025),
        ("client", "\ud800"),
        ("pattern", "*"),
        ("pattern", "a*" * 9),
        ("address", "host"),
        ("address", "0.0.0.0/0"),
    ],
)
def test_what_is_no_ban_is_refused(kind: str, value: str) -> None:
    """A slip would ban every client, or nobody."""
    with pytest.raises(BanError):
        ban(kind, value)


def test_bans_are_bounded_and_end() -> None:
    """Each CONNECT would take longer with each ban that was ever made."""
    table = Bans(most=3, patterns=1)
    for one in (ban("pattern", "a*"), ban("client", "b")):
        table.check(one, NOW)
        table.set(one)
    with pytest.raises(BanError, match="by pattern already"):
        table.check(ban("pattern", "c*"), NOW)
    table.set(ban("client", "c"))
    with pytest.raises(BanError, match="3 bans already"):
        table.check(ban("client", "d"), NOW)
    table.check(ban("client", "c", 5.0), NOW)  # it replaces one
    with pytest.raises(BanError, match="must end within 365 days"):
        table.check(ban("client", "c", 366 * 86_400.0), NOW)


def test_a_ban_is_the_same_after_a_journey() -> None:
    """A worker would apply another ban than the supervisor."""
    one = ban("address", "192.0.2.7/24")

    assert "192.0.2.0/24" == one.value
    assert one.described() == ban_from(one.described(), one.until).described()
