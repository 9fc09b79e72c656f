import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.schema import Overload
from broker.overload.level import STEP, Level, Resources, Signals, WorkerLevel

SETTINGS = Overload()


def looked(signals: Signals, now: float) -> Signals:
    signals.look(now)
    return signals


@given(st.lists(st.floats(0.0, 100.0), max_size=60))
def test_the_level_moves_as_written(worst: list[float]) -> None:
    """The closed loop that the gains were chosen in would not be the one that runs."""
    level = Level(SETTINGS)
    expected = before = 0.0

    for value in worst:
        moved = expected + 0.1 * min(4.0, max(-1.0, value - 1)) + 0.3 * min(3.0, max(-3.0, value - before))
        expected = min(10.0, max(0.0, moved))
        before = value
        assert expected == pytest.approx(level.step(value), abs=1e-9)
        assert 0.0 <= level.value <= 10.0


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True)))
def test_no_measurement_harms_the_level_for_longer_than_it_stands(values: list[float]) -> None:
    """A signal that lies would leave the level at something that is no number, or never let it come down."""
    signals, level = Signals(SETTINGS, "here"), Level(SETTINGS)
    now = 0.0
    for value in values:
        before = level.value
        signals.memory.measure(value, now)
        level.step(looked(signals, now).worst)
        assert abs(level.value - before) <= 1.3 + 1e-9
        now += STEP

    for _ in range(101):
        now += STEP
        signals.memory.measure(0.0, now)
        level.step(looked(signals, now).worst)

    assert 0.0 == level.value


def test_what_is_no_measurement_is_counted_and_what_cannot_be_is_nothing() -> None:
    """A sensor that broke would go unnoticed."""
    signals = Signals(SETTINGS, "here")

    signals.lag.measure(0.025, 0.0)
    signals.lag.measure(math.nan, 0.1)
    assert 0.5 == looked(signals, 0.1).worst
    signals.lag.measure(-1.0, 0.2)
    assert 0.0 == looked(signals, 0.2).worst
    signals.lag.measure(math.inf, 0.3)
    assert 100.0 == looked(signals, 0.3).worst
    assert 2 == signals.lag.nonsense


def test_a_signal_that_nobody_measures_any_more_is_let_go() -> None:
    """A gate that is gone, or a sensor that hangs, would hold the level up for good."""
    signals = Signals(SETTINGS, "here")
    signals.lag.measure(0.5, 0.0)

    assert (10.0, "lag", ("here",)) == (looked(signals, 1.0).worst, signals.worst_name, signals.contended)
    assert (0.0, "", ()) == (looked(signals, 1.01).worst, signals.worst_name, signals.contended)


def test_the_worst_signal_in_units_of_its_target_is_the_cause() -> None:
    """`weir why` would blame the memory for a slow store."""
    signals = Signals(SETTINGS, "here")
    store = signals.add_gate("store")
    signals.memory.measure(0.85, 0.0)
    signals.connect.measure(0.5, 0.0)
    store.measure(0.1, 0.0)

    assert (2.0, "store") == (looked(signals, 0.0).worst, signals.worst_name)
    others = {"lag": 0.0, "outbound": 0.0, "redis": 0.0, "topology": 0.0}
    assert {**others, "memory": 1.0, "connect": 0.5, "store": 2.0} == signals.values()
    signals.remove(store)
    assert (1.0, "memory") == (looked(signals, 0.0).worst, signals.worst_name)


def test_a_successor_keeps_its_signal_when_the_one_before_it_goes() -> None:
    """Of a worker that was replaced the end is heard after its successor has come: that one's load would be unseen."""
    signals = Signals(SETTINGS, "here")
    before = signals.add_gate("there")
    after = signals.add_gate("there")
    signals.remove(before)
    after.measure(0.1, 0.0)

    assert (2.0, "there") == (looked(signals, 0.0).worst, signals.worst_name)
    signals.remove(after)
    assert (0.0, "") == (looked(signals, 0.0).worst, signals.worst_name)


def test_the_cause_is_what_raised_the_level_until_it_has_fallen() -> None:
    """A level that falls for seconds after a worker stood still would be blamed on whatever is least idle then."""
    signals, level = Signals(SETTINGS, "here"), Level(SETTINGS)
    signals.add_gate("there")
    blamed = []
    for step in range(30):
        now = step * STEP
        signals.memory.measure(0.2, now)
        if 1 <= step < 4:
            signals.named("there").measure(10.0, now)
        elif step == 4:
            signals.remove(signals.named("there"))
        level.step(looked(signals, now).worst, signals.worst_name)
        blamed.append(level.cause)

    fallen = blamed.index("", 1)
    assert [""] + ["there"] * (fallen - 1) + [""] == blamed[: fallen + 1]
    assert fallen > 10
    assert (0.0, "") == (level.value, level.cause)
    assert 0.0 == signals.value("there")


def test_what_others_are_at_says_nothing_of_this_worker() -> None:
    """Clients of a worker that died could not come back to the others as long as those felt its loss."""
    signals = Signals(SETTINGS, "here")
    signals.add_gate("there").measure(10.0, 0.0)
    signals.connect.measure(20.0, 0.0)
    signals.lag.measure(0.1, 0.0)

    assert (100.0, 2.0) == (looked(signals, 0.0).worst, signals.worst_here)


def levels(signals: Signals, level: WorkerLevel, seconds: float, measured: dict[str, float]) -> list[float]:
    """The levels of so many *seconds*, in each of which the signals *measured* have these values."""
    found = []
    for step in range(round(seconds / STEP)):
        for name, value in measured.items():
            signals.named(name).measure(value, step * STEP)
        signals.look(step * STEP)
        level.step()
        found.append(level.value)
    return found


@pytest.mark.parametrize("part", ["", " store", " log"])
def test_a_worker_of_another_node_that_answers_nothing_raises_the_level_a_little(part: str) -> None:
    """A node that dies or is suspended would have all clients of the cluster throttled, and not those that need it."""
    signals = Signals(SETTINGS, "here/0")
    level = WorkerLevel(SETTINGS, signals)
    for name in (f"there/1{part}", f"here/1{part}"):
        signals.add_gate(name)

    assert 2.0 == levels(signals, level, 10.0, {f"there/1{part}": 10.0})[-1]
    assert (f"there/1{part}", 2, (f"there/1{part}",)) == (level.cause, level.shown, signals.contended)
    assert f"there/1{part}" == signals.worst_name
    assert 10.0 == levels(signals, level, 10.0, {f"there/1{part}": 10.0, f"here/1{part}": 10.0})[-1]
    assert f"here/1{part}" == level.cause
    falling = levels(signals, level, 20.0, {f"there/1{part}": 0.0, f"here/1{part}": 0.0})
    assert (0.0, "", 0) == (falling[-1], level.cause, level.shown)


def test_a_change_of_the_cluster_counts_for_one_level() -> None:
    """Each restart of a node would throttle clients of the others; or show nothing of the work that it brings."""
    signals = Signals(SETTINGS, "here/0")
    level = WorkerLevel(SETTINGS, signals)

    for nodes in (1, 100):
        assert pytest.approx(1.0) == levels(signals, level, 0.4, {"topology": nodes})[-1]
        assert 1.0 == levels(signals, level, 60.0, {"topology": nodes})[-1]
        assert ("topology", ()) == (level.cause, signals.contended)
        assert 0.0 == levels(signals, level, 1.0, {"topology": 0.0})[-1]


def test_a_resource_is_contended_from_its_target_until_well_below() -> None:
    """Clients would be held back and let on again with every measurement."""
    signals = Signals(SETTINGS, "here")
    store = signals.add_gate("store")
    seen = []
    for step, delay in enumerate([0.05, 0.051, 0.04, 0.0201, 0.019, 0.04, 0.06]):
        store.measure(delay, 0.1 * step)
        seen.append(looked(signals, 0.1 * step).contended)

    assert [(), ("store",), ("store",), ("store",), (), (), ("store",)] == seen


def test_clients_that_connect_slowly_make_nothing_contended_that_publishes_need() -> None:
    """A flood of CONNECTs would stop those who are here."""
    signals = Signals(SETTINGS, "here")
    signals.connect.measure(5.0, 0.0)

    assert (5.0, ()) == (looked(signals, 0.0).worst, signals.contended)


def test_resources_have_a_bit_each_and_what_nobody_here_needs_has_none() -> None:
    """A report about something unknown would hold somebody back, or fill the memory with names."""
    resources = Resources()
    store, peer = resources.bit("store"), resources.bit("weir/1")

    assert 0 == store & peer
    assert store == resources.bit("store")
    assert store | peer == resources.bits(("store", "other", "weir/1"))
    assert 0 == resources.bit("")


def test_a_target_of_nothing_is_refused() -> None:
    """Its signal would be infinitely bad."""
    with pytest.raises(ValueError, match="the target of lag must be above 0, not 0"):
        Signals(Overload(lag=0.0), "here")
