from hypothesis import given
from hypothesis import strategies as st

from broker.config.schema import Overload
from broker.config.values import KIB
from broker.overload.gate import EACH, Gate

SETTINGS = Overload(gate_bytes=64 * KIB)


def steady(gate: Gate, rate: int, latency: float, seconds: float, start: float = 0.0, batch: int = 1) -> float:
    """*rate* publishes a second go and are answered after *latency*, *batch* answers at a time; when it is over."""
    sent = answered = 0
    for step in range(int((seconds + latency) * 1000)):
        now = start + step / 1000
        due = int((now - start - latency) * rate + 0.001) // batch * batch
        if due > answered:
            gate.done(due - answered, 0, latency, now)
            answered = due
        more = min(int(seconds * rate), int((now - start + 0.001) * rate)) - sent
        if more > 0:
            gate.take(more, 0, now)
            sent += more
    gate.done(sent - answered, 0, latency, start + seconds + latency)
    return start + seconds + latency


def test_one_publish_always_passes_an_empty_gate() -> None:
    """A message larger than the gate would wait for ever."""
    gate = Gate(SETTINGS, "store", 1, 0.0)

    assert gate.fits(1, 1 << 30)
    gate.take(1, 1 << 30, 0.0)
    assert not gate.open
    assert not gate.fits(1, 0)
    gate.done(1, 1 << 30, 0.01, 0.01)
    assert gate.open


def test_short_publishes_pass_where_long_ones_fill_the_bytes_of_a_gate() -> None:
    """A modest client would wait for a round of all those that publish 64 KiB at a time; or nothing would bound it."""
    gate = Gate(SETTINGS, "store", 1, 0.0)
    gate.take(4, SETTINGS.gate_bytes, 0.0)

    assert not gate.open
    assert not gate.fits(1, EACH + 1)
    assert gate.fits(1, EACH)
    assert gate.fits(3, 3 * EACH)
    assert not gate.fits(100, 100)  # there are as many under way as may be
    gate.take(1, SETTINGS.gate_bytes // 8, 0.0)
    assert not gate.fits(1, EACH)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 40), st.integers(0, 20 * KIB), st.booleans(), st.floats(0.0, 0.5), st.floats(0.0, 2.0)
        ),
        max_size=80,
    )
)
def test_what_is_behind_a_gate_never_exceeds_its_bound(steps: list[tuple[int, int, bool, float, float]]) -> None:
    """A resource that stops would cost memory without end."""
    gate = Gate(SETTINGS, "store", 1, 0.0)
    under_way: list[int] = []
    now = 0.0
    for count, size, answered, wait, latency in steps:
        now += wait
        if answered and under_way:
            n = min(count, len(under_way))
            gate.done(n, sum(under_way[:n]), latency, now)
            del under_way[:n]
        for _ in range(count):
            if gate.fits(1, size):
                gate.take(1, size, now)
                under_way.append(size)
        assert (len(under_way), sum(under_way)) == (gate.count, gate.bytes)
        assert len(under_way) <= max(1, gate.count + gate.room())
        assert sum(under_way) <= SETTINGS.gate_bytes * 9 // 8 or len(under_way) == 1
        assert gate.open == (gate.room() > 0 and gate.bytes < SETTINGS.gate_bytes)
        assert gate.delay(now) >= 0.0


def test_a_gate_holds_what_its_resource_does_in_its_latency_and_100_ms() -> None:
    """A slow resource would be given too little to do, or a quick one more than it can do in time."""
    gate = Gate(SETTINGS, "store", 1, 0.0)
    steady(gate, 1000, 0.15, 3.0)

    assert 245 <= gate.room() <= 255
    assert 155 <= gate.idle_room() <= 157
    assert 20 == Gate(SETTINGS, "store", 1, 0.0).room()


def test_answers_in_batches_do_not_change_the_rate() -> None:
    """A second with one batch more than the last would double or halve what is let in."""
    rooms = set()
    gate = Gate(SETTINGS, "store", 1, 0.0)
    now = steady(gate, 1000, 0.02, 2.0, batch=1)
    for batch in (1, 100, 300):
        now = steady(gate, 1000, 0.02, 3.0, start=now, batch=batch)
        rooms.add(round(gate.room() / 120, 1))

    assert {1.0} == rooms


def test_a_pause_without_work_does_not_change_the_rate() -> None:
    """After a quiet minute a worker would have to begin from next to nothing."""
    gate = Gate(SETTINGS, "store", 1, 0.0)
    now = steady(gate, 1000, 0.02, 2.0)
    before = gate.room()

    gate.take(10, 0, now + 60.0)
    gate.done(10, 0, 0.02, now + 60.02)

    assert 0.9 * before < gate.room()


def test_a_resource_that_got_slower_has_a_smaller_gate_within_a_second() -> None:
    """What waits for it would be twice as much as it can do in time."""
    gate = Gate(SETTINGS, "store", 1, 0.0)
    now = steady(gate, 2000, 0.02, 2.0)
    steady(gate, 1000, 0.02, 1.0, start=now)

    assert 115 <= gate.room() <= 125


def test_the_signal_is_the_delay_beyond_what_the_resource_takes() -> None:
    """A store that is slow by nature would be taken for one that is overloaded."""
    gate = Gate(SETTINGS, "store", 1, 0.0)
    steady(gate, 1000, 0.15, 2.0)
    assert gate.delay(2.15) < 0.01
    gate.take(10, 0, 2.2)
    gate.done(10, 0, 0.35, 2.55)

    assert 0.15 < gate.delay(2.55) <= 0.2


def test_a_resource_that_stops_answering_shows_by_the_age_of_what_waits() -> None:
    """A store that hangs would look as if it had nothing to do."""
    gate = Gate(SETTINGS, "store", 1, 0.0)
    now = steady(gate, 1000, 0.02, 2.0)
    gate.take(1, 0, now + 1.0)

    assert 0.0 == gate.delay(now + 1.01)
    assert 0.9 < gate.delay(now + 2.0) <= 1.0
    gate.done(1, 0, 1.5, now + 2.5)
    assert 0.0 == gate.delay(now + 4.0)


def test_completions_told_in_bytes_are_as_good_as_those_told_one_by_one() -> None:
    """The gate of another worker, which says how many bytes it has processed, would never open."""
    gate = Gate(SETTINGS, "store", 1, 0.0)
    gate.take(10, 1000, 0.0)
    gate.take(10, 1000, 0.1)
    assert not gate.open

    gate.processed(500, 0.2)
    assert (15, 1500, True) == (gate.count, gate.bytes, gate.open)
    gate.processed(1500, 0.3)
    assert (5, 500) == (gate.count, gate.bytes)
    gate.processed(2000, 0.4)
    assert (0, 0) == (gate.count, gate.bytes)
    assert 0.0 == gate.delay(1.0)


def test_a_resource_that_is_connected_anew_is_measured_anew() -> None:
    """A store that moved next door would be judged by how far it was, and owe answers that never come."""
    gate = Gate(SETTINGS, "store", 1, 0.0)
    now = steady(gate, 1000, 0.15, 2.0)
    gate.take(100, 100, now)

    gate.reset(now)

    assert (0, 0, 20) == (gate.count, gate.bytes, gate.room())
    gate.take(1, 0, now)
    gate.done(1, 0, 0.5, now + 0.5)
    assert gate.delay(now + 0.5) < 0.1


def test_a_blocked_gate_is_closed_until_it_is_unblocked() -> None:
    """Publishes would go to a worker that has megabytes of other things to take, or never again."""
    gate = Gate(SETTINGS, "store", 1, 0.0)
    gate.block()
    assert (False, False) == (gate.open, gate.free)
    assert gate.calm  # its own work is as little as before
    gate.take(1, 10, 0.0)
    gate.done(1, 10, 0.001, 0.001)
    assert not gate.open
    gate.unblock()

    assert (True, True) == (gate.open, gate.free)


def test_a_gate_that_lets_in_turns_is_open_and_not_free() -> None:
    """A newcomer would pass those who wait, or nobody would pass."""
    gate = Gate(SETTINGS, "store", 1, 0.0)
    gate.let_in_turns(True)
    assert (True, False) == (gate.open, gate.free)
    gate.let_in_turns(False)

    assert gate.free
