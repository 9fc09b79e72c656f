from broker.config.schema import Overload
from broker.overload.credits import Account, Ledger
from broker.overload.wait_list import WaitList

SETTINGS = Overload()


def world() -> tuple[Ledger, WaitList]:
    ledger = Ledger(SETTINGS, 0.0)
    ledger.change(5.0, 0.0)  # a refill is 1500, the cap 7500
    return ledger, WaitList(SETTINGS, ledger)


def with_credits(credits: float) -> Account:
    return Account("", -credits)


def test_those_with_more_credits_go_first_and_among_equals_who_came_first() -> None:
    """Those who used up what they had would be served like those who send little."""
    _, waiting = world()
    for name, credits in (("poorer", 100.0), ("rich", 7000.0), ("middle", 3000.0), ("rich too", 7400.0)):
        waiting.add(name, with_credits(credits), 0.0, 0.0, 0.0)

    assert ["rich", "rich too", "middle", "poorer"] == waiting.wake(10, 0, 0.0)
    assert 0 == len(waiting)


def test_only_as_many_are_woken_as_there_is_room_for() -> None:
    """Thousands would be woken for one place, to wait again."""
    _, waiting = world()
    for number in range(10):
        waiting.add(number, with_credits(100.0), 0.0, 0.0, 0.0)

    assert [] == waiting.wake(0, 0, 0.0)
    assert [0, 1, 2] == waiting.wake(3, 3, 0.0)
    assert 7 == len(waiting)


def test_who_waits_for_credits_goes_when_it_has_them_or_when_there_is_room_for_all() -> None:
    """A client would stay stopped beside an idle resource, or be let on beside a full one."""
    _, waiting = world()
    waiting.add("first", with_credits(0.0), 0.0, 1.0, 0.0)
    waiting.add("second", with_credits(0.0), 0.0, 0.5, 0.0)

    assert [] == waiting.wake(10, 0, 0.4)
    assert ["second"] == waiting.wake(10, 0, 0.52)
    assert ["first"] == waiting.wake(10, 1, 0.6)


def test_idle_room_is_for_those_with_credits_first() -> None:
    """Who has none would take the place of who has."""
    _, waiting = world()
    waiting.add("poor", with_credits(0.0), 0.0, 9.0, 0.0)
    waiting.add("rich", with_credits(7000.0), 0.0, 0.0, 0.0)

    assert ["rich"] == waiting.wake(5, 1, 0.0)
    assert ["poor"] == waiting.wake(5, 1, 0.0)


def test_a_wait_ends_after_its_time_counted_from_its_first_moment() -> None:
    """A publish would wait for ever, each time it is tried in vain anew."""
    _, waiting = world()
    waiting.add("one", with_credits(0.0), 100.0, 200.0, 110.0)
    waiting.add("one", with_credits(0.0), 100.0, 0.0, 120.0)
    waiting.add("other", with_credits(0.0), 115.0, 0.0, 120.0)

    assert [] == waiting.expired(129.9)
    assert ["one"] == waiting.expired(130.1)
    assert ["other"] == waiting.wake(10, 10, 131.0)
    assert [] == waiting.expired(1000.0)


def test_who_leaves_is_woken_no_more() -> None:
    """A connection that is closed would be served."""
    _, waiting = world()
    waiting.add("one", with_credits(0.0), 0.0, 1.0, 0.0)
    waiting.add("two", with_credits(0.0), 0.0, 0.0, 0.0)

    assert [True, True, False] == [waiting.remove(name) for name in ("one", "two", "two")]
    assert [] == waiting.wake(10, 10, 2.0) + waiting.expired(100.0)
