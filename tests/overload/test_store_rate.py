# The store rate: when its gate closes and opens, and who goes on.
from broker.overload.store_rate import StoreRate
from tests.overload.protected import Protected


class Stored:
    """A store rate of *rate* messages a second, and what it asks for."""

    def __init__(self, rate: float) -> None:
        self.protected = Protected()
        self.looks: list[float] = []
        throttle = self.protected.protection.throttle
        self.rate = StoreRate(rate, "weir/0 store rate", throttle, self.protected.now, self.looks.append)

    def advance(self, seconds: float) -> float:
        self.protected.now += seconds
        return self.rate.tick(self.protected.now)

    def take(self, messages: int) -> bool:
        """A publish passes; whether the next one would pass."""
        self.rate.take(messages, self.protected.now)
        return not self.rate.gate.blocked


def test_the_gate_closes_beyond_the_rate_and_opens_when_that_is_paid() -> None:
    """More would be stored than the configuration allows; or nothing any more."""
    stored = Stored(10.0)
    assert stored.take(1) and stored.looks == []
    assert not stored.take(1)
    assert len(stored.looks) == 1  # else nothing would open it
    assert stored.advance(0.05) > stored.protected.now
    assert stored.rate.gate.blocked
    stored.advance(0.06)

    assert not stored.rate.gate.blocked


def test_a_publish_with_many_receivers_passes_whole_and_is_paid_for() -> None:
    """A fan-out that is larger than the rate would wait for ever, or be free."""
    stored = Stored(100.0)
    assert not stored.take(500)
    stored.advance(4.8)
    assert stored.rate.gate.blocked
    stored.advance(0.2)

    assert not stored.rate.gate.blocked


def test_what_nobody_stores_costs_nothing_and_idle_time_is_no_burst() -> None:
    """Traffic between clients in memory would close the gate; or a quiet night be followed by a flood."""
    stored = Stored(100.0)
    for _ in range(1000):
        assert stored.take(0)
    stored.advance(3600.0)

    assert stored.take(10)
    assert not stored.take(1)
