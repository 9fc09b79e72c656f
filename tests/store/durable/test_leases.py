# What is saved of a partition of a shared log.
import pytest

from broker.store.durable.leases import EPOCH, ORIGINS, Lease, RecentTokens, first_saved
from broker.store.durable.tokens import OF_WILL, ORIGIN

GROUP = b"g" * 16
FIRST = b"0" * EPOCH


def token(origin: int, number: int) -> bytes:
    return origin.to_bytes(ORIGIN, "big") + number.to_bytes(8, "big")


def test_what_is_saved_is_what_the_next_member_goes_on_with() -> None:
    """It would be passed on twice, or not at all."""
    lease = Lease(GROUP, 3, FIRST + first_saved(7))
    lease.position.offset = 9
    lease.passed = 2
    assert lease.tokens.take(token(1, 5))

    other = Lease(GROUP, 3, lease.value())
    assert (9, 2) == (other.position.offset, other.passed)
    assert not other.tokens.take(token(1, 5))
    assert other.tokens.take(token(1, 6))


@pytest.mark.parametrize("saved", [b"", b"\x02" + bytes(50), first_saved(1)[:-1]])
def test_what_cannot_be_read_is_refused(saved: bytes) -> None:
    """A group would begin anywhere."""
    with pytest.raises(ValueError):
        Lease(GROUP, 0, FIRST + saved)


def test_a_publish_that_comes_again_is_known_by_its_number() -> None:
    """A QoS 2 publish that is sent again after a crash would come twice; or what follows it not at all."""
    tokens = RecentTokens()
    assert [True, True, False, False, True] == [tokens.take(token(1, number)) for number in (1, 2, 2, 1, 3)]
    assert tokens.take(token(2, 1))
    will = token(3, 0)[:ORIGIN] + OF_WILL

    assert [True, False] == [tokens.take(will), tokens.take(will)]


def test_origins_that_are_silent_are_forgotten_first() -> None:
    """What is saved would grow with each publisher that there ever was."""
    tokens = RecentTokens()
    for origin in range(ORIGINS):
        tokens.take(token(origin, 1))
    tokens.take(token(0, 2))
    tokens.take(token(ORIGINS, 1))

    assert ORIGINS == len(RecentTokens(tokens.encode()))
    assert not tokens.take(token(0, 2))
    assert tokens.take(token(1, 1))
