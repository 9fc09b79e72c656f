import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.tenants import RIGHT as TENANT_RULES
from broker.config.values import (
    Brokers,
    Choice,
    ClientOptions,
    Duration,
    Flag,
    Hosts,
    Kind,
    Name,
    Number,
    Rates,
    Size,
    Tenants,
)

DURATION = Duration(0.0, 7 * 86400.0)
SIZE = Size(0, 1 << 30)
NUMBER = Number(1, 65535)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        *[(15, 15.0), (0.5, 0.5), ("15", 15.0), ("0.5", 0.5), ("500ms", 0.5), ("15s", 15.0), ("5m", 300.0)],
        *[("2h", 7200.0), ("7d", 604800.0), ("1.5h", 5400.0), ("10 s", 10.0), (0, 0.0)],
    ],
)
def test_durations_are_numbers_of_seconds_or_carry_a_unit(given: object, seconds: float) -> None:
    """A timeout would be another than the one that was written."""
    assert seconds == DURATION.take(given)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        *[(1024, 1024), ("1024", 1024), ("64KiB", 65536), ("1MB", 1_000_000), ("1MiB", 1048576), ("0.5KiB", 512)],
        *[("1 GiB", 1 << 30), ("7B", 7), (0, 0)],
    ],
)
def test_sizes_are_numbers_of_bytes_or_carry_a_unit(given: object, size: int) -> None:
    """A limit would be another than the one that was written; MB and MiB differ by 5 %."""
    assert size == SIZE.take(given)


@pytest.mark.parametrize(
    ("kind", "given"),
    [(DURATION, wrong) for wrong in ("", "s", "5 apples", "-1s", -1, "1e9", math.inf, math.nan, True, None, [5], "8d")]
    + [(SIZE, wrong) for wrong in ("", "1.5", 1.5, "1kb", "1TB", -1, True, None, "2GiB", math.inf)]
    + [(NUMBER, wrong) for wrong in ("", "1.0", 1.0, "0x10", 0, 65536, -1, True, None, "9" * 5000, "٣")]
    + [(Flag(), wrong) for wrong in ("", "yes", "True", 1, 0, None)]
    + [(Choice("text", "json"), wrong) for wrong in ("", "TEXT", 1, None)]
    + [(Name(), wrong) for wrong in ("", ".", "..", "a/b", "-x", "a b", "x" * 65, "ä", 5, None)]
    + [(Rates(False), wrong) for wrong in ("0/s", "100", 100, "1KiB/s", None, True, ["100:1"])]
    + [(Rates(True), wrong) for wrong in ("0B/s", "64KiB", 1024, "1TB/s")]
    + [(Tenants(), wrong) for wrong in ("users", "user:", 5, None, "client-prefix:\n")]
    + [
        (Brokers(), wrong)
        for wrong in ("kafka", ["kafka"], ["kafka:"], ["kafka:x"], ["kafka:70000"], [":9092"], 5, None)
    ]
    + [
        (ClientOptions(), wrong)
        for wrong in ("", "x", 5, None, [5], {"acks": 1}, {"sasl_plain_password": "x"}, {"ssl_x": 0.5})
    ]
    + [(Hosts(), wrong) for wrong in ("", [], [""], ["::1", 5], 5, None, "127.0.0.1,", "a b")],
)
def test_what_is_no_value_of_its_kind_is_refused_and_told_what_would_be_right(kind: Kind, given: object) -> None:
    """A bad value would be taken for something, or end in a traceback."""
    with pytest.raises(ValueError, match=r'^(a|true|text|up|"")'):
        kind.take(given)


@pytest.mark.parametrize(
    ("kind", "given", "sentence"),
    [
        (NUMBER, 0, "a whole number from 1 to 65535"),
        (Number(1, 1), 2, "1"),
        (DURATION, "8d", "a duration from 0s to 7d"),
        (Duration(0.1, 90.0), 0, "a duration from 100ms to 90s"),
        (SIZE, "2GiB", "a size from 0 to 1GiB"),
        (Choice("a", "b", "c"), "d", "a, b or c"),
        (Flag(), "on", "true or false"),
        (Rates(False), "0/s", '"", or of whole counts from 1 to 1099511627776'),
        (Rates(True), "64KiB", '"", or a rate such as "1MiB/s" or "4MiB:1,64MiB:60" (a size, and seconds)'),
        (Tenants(), "x", TENANT_RULES),
        (Hosts(), "", 'a list of addresses such as ["127.0.0.1", "::1"]'),
    ],
)
def test_a_refusal_names_the_range_in_the_units_that_people_write(kind: Kind, given: object, sentence: str) -> None:
    """The user would know that it is wrong, and not what would be right."""
    with pytest.raises(ValueError) as refused:
        kind.take(given)

    assert sentence == str(refused.value)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        *[(DURATION, 7200.0, '"2h"'), (DURATION, 90.0, '"90s"'), (DURATION, 0.25, '"250ms"'), (DURATION, 0.0, "0")],
        *[(SIZE, 2 << 20, '"2MiB"'), (SIZE, 1280 << 10, '"1280KiB"'), (SIZE, 1000, "1000"), (SIZE, 0, "0")],
    ],
)
def test_values_are_shown_in_the_unit_a_person_would_use(kind: Kind, value: float, text: str) -> None:
    """`weir config show` would speak of 604800 seconds."""
    assert text == kind.show(value)


@given(st.integers(0, 7 * 86400 * 1000).map(lambda milliseconds: milliseconds / 1000))
def test_a_duration_that_is_shown_can_be_read_again(seconds: float) -> None:
    """What `weir config show` prints could not be copied into a file."""
    assert math.isclose(seconds, DURATION.take(DURATION.show(seconds).strip('"')), rel_tol=1e-5)


@given(st.integers(0, 1 << 30))
def test_a_size_that_is_shown_can_be_read_again(size: int) -> None:
    """What `weir config show` prints could not be copied into a file."""
    assert size == SIZE.take(SIZE.show(size).strip('"'))


@given(st.text() | st.floats() | st.integers() | st.booleans() | st.none())
def test_nothing_that_can_be_written_makes_a_kind_fail_otherwise(given: object) -> None:
    """A strange value would end the start with a traceback instead of a sentence."""
    for kind in (DURATION, SIZE, NUMBER, Flag(), Choice("a", "b"), Hosts(), Rates(False), Rates(True), Tenants()):
        try:
            kind.take(given)
        except ValueError:
            pass
