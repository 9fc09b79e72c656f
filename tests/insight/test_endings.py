# How connections ended, as far as that is remembered.
from broker.insight.endings import LONGEST_DETAIL, LONGEST_ID, REMEMBERED, Ending, Endings
from broker.reasons import CloseReason

GONE = Ending(CloseReason.SLOW_CONSUMER, "", "192.0.2.1:5000", 10.0)
WRONG = Ending(CloseReason.BAD_CREDENTIALS, "", "192.0.2.2:5000", 20.0)


def test_an_end_and_a_refusal_are_remembered_apart() -> None:
    """Anybody could hide why a client is gone by a CONNECT in its name."""
    endings = Endings()
    endings.note("phone", GONE, False)
    endings.note("phone", WRONG, True)

    assert (GONE, WRONG) == (endings.ended("phone"), endings.refused("phone"))
    assert (None, None) == (endings.ended("other"), endings.refused("other"))


def test_what_a_session_lost_is_remembered_with_the_end_of_its_connection() -> None:
    """What waited for a client would be gone without a word, as its session is."""
    endings = Endings()
    endings.note("phone", Ending(CloseReason.PEER_CLOSED, "", "192.0.2.1:5000", 10.0), False)
    endings.lose("phone", 3)
    endings.lose("other", 3)

    ended = endings.ended("phone")
    assert ended is not None and 3 == ended.undelivered
    assert None is endings.ended("other")


def test_the_latest_of_each_kind_are_kept() -> None:
    """A fleet that comes and goes would fill the memory, or strangers push out what is known of clients."""
    endings = Endings()
    endings.note("phone", GONE, False)
    endings.note("first", WRONG, True)
    endings.note("second", WRONG, True)
    endings.note("first", WRONG, True)
    for number in range(REMEMBERED - 1):
        endings.note(f"stranger-{number}", WRONG, True)

    assert (1, REMEMBERED) == endings.statistics()
    assert GONE is endings.ended("phone")
    assert (WRONG, None) == (endings.refused("first"), endings.refused("second"))


def test_who_never_said_who_it_is_or_said_too_much_is_not_remembered() -> None:
    """A CONNECT with a name of 64 KiB would cost as much, thousands of times."""
    endings = Endings()
    endings.note("", WRONG, True)
    endings.note("x" * (LONGEST_ID + 1), WRONG, True)
    endings.note("x" * LONGEST_ID, WRONG, True)

    assert (0, 1) == endings.statistics()
    assert LONGEST_DETAIL == len(Ending(CloseReason.PROTOCOL_ERROR, "x" * 1000, "", 0.0).detail)
