import pytest

from broker.overload.quantum import DELIVERY_COST, LARGEST, PUBLISH_COST, ROUND, SMALLEST, Quantum


def learned(unit_seconds: float) -> Quantum:
    """A quantum after many rounds in which a unit took so long."""
    quantum = Quantum()
    for _ in range(400):
        quantum.measured(1000, 1000 * unit_seconds)
    return quantum


@pytest.mark.parametrize(
    ("unit_seconds", "ready"), [(50e-9, 30), (50e-9, 100), (1e-6, 30), (1e-6, 100), (5e-6, 30), (3e-6, 100)]
)
def test_a_round_keeps_its_time_whatever_the_number_of_connections(unit_seconds: float, ready: int) -> None:
    """With many busy connections, each would wait longer for its turn; SMALLEST is less than the share of any here."""
    round_seconds = learned(unit_seconds).of_round(ready) * ready * unit_seconds

    assert 0.8 * ROUND < round_seconds <= 1.01 * ROUND


def test_one_connection_cannot_have_a_round_for_itself() -> None:
    """A lone flood would hold the loop while others connect."""
    assert LARGEST == learned(1e-9).of_round(1) == learned(1e-9).of_round(0)


def test_everybody_gets_on() -> None:
    """With very many connections nobody would be served at all."""
    assert SMALLEST == learned(1e-3).of_round(100_000)


def test_a_visit_is_worth_its_while() -> None:
    """A worker that is late would get later, if it paid a visit for each publish that waits."""
    assert learned(1e-6).of_round(100_000) > 5 * (PUBLISH_COST + DELIVERY_COST)


def test_the_price_of_a_unit_follows_what_is_measured() -> None:
    """A machine that slows down would be given rounds that are too long; one odd round would change everything."""
    quantum = learned(1e-6)
    calm = quantum.of_round(10)

    quantum.measured(1000, 1000 * 2e-6)
    after_one = quantum.of_round(10)
    for _ in range(400):
        quantum.measured(1000, 1000 * 2e-6)

    assert calm // 2 <= quantum.of_round(10) <= calm // 2 + 10
    assert 0.9 * calm < after_one < calm


def test_a_round_without_work_teaches_nothing() -> None:
    """An idle worker would forget what a unit costs."""
    quantum = learned(1e-6)
    before = quantum.of_round(10)

    quantum.measured(0, 5.0)

    assert before == quantum.of_round(10)


def test_a_clock_that_does_not_see_a_round_is_survived() -> None:
    """The price of a unit would sink to nothing, and the worker divide by it."""
    quantum = Quantum()
    for _ in range(20_000):
        quantum.measured(100, 0.0)

    assert LARGEST == quantum.of_round(1)
