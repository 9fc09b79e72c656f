import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.rate import MOST, Rate, RateError, Window, Windows, parse, slowest

NOW = 1000.0

RATES = st.dictionaries(st.integers(1, 100), st.integers(1, 1000), min_size=1, max_size=3).map(
    lambda windows: tuple(Window(most, seconds) for seconds, most in windows.items())
)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100:1", [(100, 1)]),
        ("100:1,5000:60", [(100, 1), (5000, 60)]),
        ("1000:1, 50000:60", [(1000, 1), (50000, 60)]),
        ("100/s", [(100, 1)]),
        ("5000/m,100/s", [(5000, 60), (100, 1)]),
        ("7/h,9/d", [(7, 3600), (9, 86400)]),
        (f"{MOST}:86400", [(MOST, 86400)]),
    ],
)
def test_a_rate_is_windows_that_all_hold(text: str, rate: list[tuple[int, int]]) -> None:
    """A quota would be another than the one that was written."""
    assert tuple(rate) == parse(text)


@pytest.mark.parametrize(
    ("text", "most"), [("1MiB/s", 1 << 20), ("64KB:1", 64_000), ("1.5KiB/s", 1536), ("700:1", 700), ("2GiB:1", 2 << 30)]
)
def test_rates_of_bytes_take_the_units_of_sizes(text: str, most: int) -> None:
    """MB and MiB differ by 5 %."""
    assert (Window(most, 1),) == parse(text, sizes=True)


@pytest.mark.parametrize("sizes", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        *["", ",", "100", "100:", ":1", "100:1,", "-1:1", "0:1", "0/s", "100:0", "1:86401", "1:1.5", "1.5:1", "100/x"],
        *["/s", "1e3:1", "٣:1", "100:1,50:1", "9" * 400, f"{MOST + 1}:1", "nan:1", "1kb/s", "1:" + "9" * 400],
        *["100:1;5:1", ",".join(f"1:{seconds}" for seconds in range(1, 10))],
    ],
)
def test_what_is_no_rate_is_refused_with_what_would_be_right(text: str, sizes: bool) -> None:
    """A quota of nothing, or for ever, would be in force; or the start would end with a traceback."""
    with pytest.raises(RateError) as refused:
        parse(text, sizes)

    assert str(refused.value) == f'"{text}" is not a rate: it must be {refused.value.right}.'
    assert refused.value.right.startswith(("a rate such as", "of ", "at most"))


def test_messages_are_not_counted_in_bytes() -> None:
    """A limit of 1KiB/s messages would be taken for one of 1024."""
    with pytest.raises(RateError):
        parse("1KiB/s")


@given(st.text())
def test_nothing_that_can_be_written_fails_otherwise(text: str) -> None:
    """A strange value would end the start with a traceback."""
    for sizes in (False, True):
        try:
            parse(text, sizes)
        except RateError:
            pass


def test_a_quiet_client_has_its_count_at_once_and_then_the_rate() -> None:
    """A burst after silence would be refused, or a flood let in."""
    windows = Windows(parse("10:1,60:60"), 0.0, 1.0, NOW)

    assert 10 == windows.room(True, NOW)
    windows.take(10, True, NOW)
    assert 0 == windows.room(True, NOW)
    assert 5 == windows.room(True, NOW + 0.5)
    windows.take(5, True, NOW + 0.5)
    assert 10 == windows.room(True, NOW + 1.5)  # of 46.5 that the minute has left
    windows.take(46, True, NOW + 10)
    assert windows.room(True, NOW + 12) < 10  # now the minute holds


@given(RATES, st.floats(0, 0.9), st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50), st.booleans()), max_size=60))
def test_no_stretch_of_time_sees_more_than_count_and_rate(
    rate: Rate, reserve: float, wishes: list[tuple[float, int, bool]]
) -> None:
    """A quota would be no bound."""
    windows = Windows(rate, reserve, 1.0, NOW)
    now = NOW
    taken: list[tuple[float, int]] = []
    for pause, amount, firm in wishes:
        now += pause
        if windows.room(firm, now) >= amount:
            windows.take(amount, firm, now)
            taken.append((now, amount))

    for first in range(len(taken)):
        for last in range(first, len(taken)):
            passed = sum(amount for _, amount in taken[first : last + 1])
            time = taken[last][0] - taken[first][0]
            assert all(passed <= window.most + time * window.most / window.seconds + 1e-6 for window in rate)


@given(RATES, st.floats(0, 0.9), st.integers(0, 1000), st.booleans(), st.data())
def test_at_the_time_that_is_told_there_is_room(
    rate: Rate, reserve: float, used: int, firm: bool, data: st.DataObject
) -> None:
    """A client that waits would be woken for nothing, or far too late."""
    windows = Windows(rate, reserve, 1.0, NOW)
    windows.take(used, True, NOW)
    amount = 1 if not firm else data.draw(st.integers(1, int(windows.capacity)))

    when = windows.when(amount, firm, NOW)

    if when > NOW:
        assert Windows.room(windows, firm, (NOW + when) / 2) < amount  # not so early
    assert windows.room(firm, when) >= amount
    assert when - NOW <= (used + amount) / slowest(rate) * 10 + 1e-3


@given(RATES, st.floats(0, 0.9), st.integers(0, 2000))
def test_what_is_kept_for_qos_1_and_2_is_there_whatever_qos_0_takes(rate: Rate, reserve: float, tries: int) -> None:
    """QoS 0 would crowd out what was promised; or a small quota would let no QoS 0 pass at all."""
    windows = Windows(rate, reserve, 1.0, NOW)
    assert windows.room(False, NOW) >= 1.0
    for _ in range(tries):
        if windows.room(False, NOW) < 1.0:
            break
        windows.take(1.0, False, NOW)

    kept = min(window.most for window in rate) * reserve
    assert windows.room(True, NOW) >= min(kept, windows.capacity - 1.0) - 1e-6


def test_another_rate_goes_on_with_what_was_left() -> None:
    """Changing a client's rate again and again would be a way around it."""
    windows = Windows(parse("100:1"), 0.0, 1.0, NOW)
    windows.take(95, True, NOW)

    larger = Windows(parse("1000:1"), 0.0, 1.0, NOW, windows)
    assert 5 == larger.room(True, NOW)
    larger = Windows(parse("1000:1"), 0.0, 1.0, NOW, Windows(parse("10:1"), 0.0, 1.0, NOW))
    assert 10 == larger.room(True, NOW)
    smaller = Windows(parse("3:1"), 0.0, 1.0, NOW, windows)
    assert 3 == smaller.room(True, NOW)
