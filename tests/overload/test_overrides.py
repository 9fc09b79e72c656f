import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.rate import RateError
from broker.overload.quotas.overrides import LONGEST, LONGEST_ID, Limit, OverrideError, Overrides, limit_from

NOW = 1000.0


def limit(client_id: str = "c", rate: str = "10/s", until: float = NOW + 60, exempt: bool = False) -> Limit:
    seconds = until - NOW
    return Limit(client_id, rate, exempt, until, seconds=seconds, by="jo", reason="floods since noon", made=1.7e9)


def test_a_limit_holds_until_its_end() -> None:
    """A limit that was set in a hurry would be there for ever, or not when it is needed."""
    table = Overrides()
    one = limit()
    table.set(one, NOW)

    assert one is table.get("c", NOW)
    assert one is table.get("c", NOW + 59.9)
    assert table.get("other", NOW) is None
    assert table.get("c", NOW + 60) is None
    assert [] == table.limits(NOW + 60)


def test_a_later_limit_takes_the_place_of_the_former() -> None:
    """To correct a mistake one would have to wait for its end."""
    table = Overrides()
    table.set(limit(), NOW)
    later = limit(rate="20/s", until=NOW + 600)
    table.set(later, NOW + 1)

    assert [later] == table.limits(NOW + 1)
    assert later is table.get("c", NOW + 599)


def test_the_next_to_end_is_listed_first() -> None:
    """`weir limit list` would show what matters least at the top."""
    table = Overrides()
    for name, seconds in (("a", 30), ("b", 10), ("c", 20)):
        table.set(limit(name, until=NOW + seconds), NOW)

    assert ["b", "c", "a"] == [one.client_id for one in table.limits(NOW)]
    assert ["c", "a"] == [one.client_id for one in table.limits(NOW + 10)]


def test_a_limit_ends_when_it_is_dropped() -> None:
    """A mistake would last for as long as it was meant to; or a drop say that it has done what it has not."""
    table = Overrides()
    one = limit("a")
    table.set(one, NOW)
    table.set(limit("b", until=NOW + 5), NOW)

    assert one is table.drop("a", NOW)
    assert None is table.get("a", NOW)
    assert None is table.drop("a", NOW)
    assert None is table.drop("b", NOW + 5)


def test_those_that_have_ended_are_told_once() -> None:
    """The log would not say that a limit has ended, or say it again and again."""
    table = Overrides()
    short = limit("short", until=NOW + 5)
    table.set(short, NOW)
    table.set(limit("long"), NOW)

    assert [] == table.forget_ended(NOW + 4.9)
    assert [short] == table.forget_ended(NOW + 5)
    assert [] == table.forget_ended(NOW + 5)
    assert ["long"] == [one.client_id for one in table.limits(NOW + 5)]


def test_a_limit_that_was_described_is_the_same_again() -> None:
    """A worker, or the node after a restart, would have another limit in force than the one that was set."""
    one = limit(rate="10:1, 50:60", exempt=True)
    again = limit_from(one.described(), one.until)

    assert one.described() == again.described()
    assert ("c", "10:1,50:60", True, NOW + 60) == (again.client_id, again.rate, again.exempt, again.until)
    assert (60.0, "jo", "floods since noon", 1.7e9) == (again.seconds, again.by, again.reason, again.made)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (limit(rate=""), "The limit of c changes nothing: give it a rate, or exempt it."),
        (limit(until=NOW), "The limit of c must end within 30 days."),
        (limit(until=NOW + LONGEST + 1), "The limit of c must end within 30 days."),
        (limit(until=float("inf")), "The limit of c must end within 30 days."),
        (limit(until=float("nan")), "The limit of c must end within 30 days."),
        (limit(""), "No limit can be set for '': a client id has 1 to 4096 bytes of UTF-8."),
        (limit("\ud800"), "No limit can be set for '\\ud800': a client id has 1 to 4096 bytes of UTF-8."),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(wrong: Limit, sentence: str) -> None:
    """It would be set, and do nothing, or never end."""
    table = Overrides()
    with pytest.raises(OverrideError) as refused:
        table.set(wrong, NOW)

    assert sentence == str(refused.value)
    assert [] == table.limits(NOW)


def test_a_client_id_that_would_not_fit_the_frames_is_refused() -> None:
    """A few limits with ids of 64 KiB would keep every worker from starting."""
    table = Overrides()
    table.set(limit("é" * (LONGEST_ID // 2)), NOW)
    with pytest.raises(OverrideError, match="1 to 4096 bytes"):
        table.set(limit("é" * (LONGEST_ID // 2) + "x"), NOW)


@pytest.mark.parametrize("reason", ["", "  ", "x" * 201, "\udfff"])
def test_a_limit_needs_a_reason(reason: str) -> None:
    """The audit would not say why."""
    with pytest.raises(OverrideError, match="needs a reason of 1 to 200 characters"):
        Overrides().set(Limit("c", "10/s", False, NOW + 1, seconds=1.0, by="jo", reason=reason, made=0.0), NOW)


def test_a_rate_that_is_none_is_refused() -> None:
    """The client would be let go without a limit."""
    with pytest.raises(RateError):
        limit(rate="0/s")


def test_the_table_is_bounded_and_drops_nobody() -> None:
    """A script that sets limits would use up the memory; or push out what others have decided."""
    table = Overrides(most=3)
    for name in "abc":
        table.set(limit(name), NOW)
    with pytest.raises(OverrideError, match="3 clients have a limit already"):
        table.set(limit("d"), NOW)

    table.set(limit("a", rate="1/s"), NOW)  # one that is there may be changed
    table.set(limit("d", until=NOW + 100), NOW + 60)  # and those that ended make room
    assert ["d"] == [one.client_id for one in table.limits(NOW + 60)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.1, 50), st.floats(0, 20)), max_size=30))
def test_nothing_holds_beyond_its_end(changes: list[tuple[str, float, float]]) -> None:
    """Whatever was set and replaced, a limit would hold for longer than somebody has said."""
    table = Overrides()
    now = NOW
    ends: dict[str, float] = {}
    for name, seconds, pause in changes:
        table.set(limit(name, until=now + seconds), now)
        ends[name] = now + seconds
        now += pause
        for client in "abc":
            assert (table.get(client, now) is not None) == (ends.get(client, 0.0) > now)
