from dataclasses import replace
from pathlib import Path

import pytest

from broker.config.schema import Config, ConfigError, Cost, Overload
from broker.config.sources import from_assignments, load
from broker.overload.cost import Prices

NOWHERE = Path("/nowhere/weir.toml")


def loaded(*assignments: str) -> Overload:
    return load(None, {}, from_assignments(assignments), default_file=NOWHERE).config.overload


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        (
            "refill=50000,25000,12500,6000,3000,1500,750,350,350,360,20",
            "overload.refill = [50000, 25000, 12500, 6000, 3000, 1500, 750, 350, 350, 360, 20] in --set is not valid:"
            " it must be a table that does not rise: level 9 grants 360, level 8 350.",
        ),
        ("refill=9,8,7", "it must be a list of 11 whole numbers."),
        ("refill=9,8,7,6,5,4,3,2,1,1,0", "a list of 11 numbers, each a whole number from 1 to 1000000000."),
        ("refill=9,8,7,6,5,4,3,2,1,1,x", "a list of 11 numbers, each a whole number from 1 to 1000000000."),
        ("lag=0", "overload.lag = '0' in --set is not valid: it must be a duration from 1ms to 1m."),
        ("gate_delay=0", "overload.gate_delay = '0' in --set is not valid: it must be a duration from 1ms to 1m."),
        ("outbound_percent=0", "it must be a whole number from 1 to 100."),
        (
            "position_gain=0",
            "overload.position_gain = '0' in --set is not valid: it must be a number from 0.001 to 10.",
        ),
        ("position_gain=0.1s", "it must be a number from 0.001 to 10."),
        (
            "cap_least=50001",
            "overload.cap_least = 50001 in --set is not valid: it must be at most overload.cap (50000).",
        ),
        ("contended_until=1", "it must be less than overload.contended_from (1)."),
        ("gate_idle=101ms", "it must be at most overload.gate_room (0.1s)."),
        ("cost.publish=0", "it must be a whole number from 1 to 1000000."),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_would_be_right(assignment: str, sentence: str) -> None:
    """A table that rises would let clients send more the worse it gets; a target of 0 is always missed."""
    with pytest.raises(ConfigError) as refused:
        loaded(f"overload.{assignment}")

    assert sentence in str(refused.value)


def test_a_table_and_a_factor_are_taken_as_they_are_shown() -> None:
    """What `weir config show` prints could not be written back."""
    table = (90, 80, 70, 60, 50, 40, 30, 20, 10, 5, 5)
    written = "[" + ", ".join(map(str, table)) + "]"
    settings = loaded(f"overload.refill={written.strip('[]')}", "overload.trend_gain=0.25")

    assert (table, 0.25) == (settings.refill, settings.trend_gain)
    effective = {one.key: one.text for one in load(None, {}, (), default_file=NOWHERE).describe()}
    assert "[50000, 25000, 12500, 6000, 3000, 1500, 750, 350, 150, 60, 20]" == effective["overload.refill"]
    assert "0.3" == effective["overload.trend_gain"]
    assert Config().overload == loaded()


def test_each_part_of_a_publish_has_its_price() -> None:
    """Who makes the broker work would be charged as little as who does not."""
    prices = Prices(Cost())
    other = Prices(replace(Cost(), publish=1, bytes_per_credit=1, qos=7))

    assert 10 == prices.of(127, 0, False, 0)
    assert 10 + 2 == prices.of(256, 0, False, 0)
    assert 10 + 200 == prices.of(0, 200, False, 0)
    assert 3 * 20 == prices.stored(3)
    assert 10 + 10 + 2 * 5 == prices.of(0, 0, True, 2)
    assert 1 + 50 + 7 == other.of(50, 0, False, 1)
