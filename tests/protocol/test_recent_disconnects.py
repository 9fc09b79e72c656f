# How connections ended, as far as that is remembered.
from broker.protocol.recent_disconnects import (
    MAX_CLIENT_ID,
    MAX_CLIENTS,
    MAX_DETAIL,
    RecentDisconnect,
    RecentDisconnects,
)
from broker.reasons import CloseReason

GONE = RecentDisconnect(CloseReason.SLOW_CONSUMER, "", "192.0.2.1:5000", 10.0)
WRONG = RecentDisconnect(CloseReason.BAD_CREDENTIALS, "", "192.0.2.2:5000", 20.0)


def test_an_end_and_a_refusal_are_remembered_apart() -> None:
    """Anybody could hide why a client is gone by a CONNECT in its name."""
    disconnects = RecentDisconnects()
    disconnects.note_disconnect("phone", GONE)
    disconnects.note_refusal("phone", WRONG)

    assert (GONE, WRONG) == (disconnects.last_disconnect("phone"), disconnects.last_refusal("phone"))
    assert (None, None) == (disconnects.last_disconnect("other"), disconnects.last_refusal("other"))


def test_what_a_session_lost_is_remembered_with_the_end_of_its_connection() -> None:
    """What waited for a client would be gone without a word, as its session is."""
    disconnects = RecentDisconnects()
    disconnects.note_disconnect("phone", RecentDisconnect(CloseReason.PEER_CLOSED, "", "192.0.2.1:5000", 10.0))
    disconnects.note_undelivered("phone", 3)
    disconnects.note_undelivered("other", 3)

    ended = disconnects.last_disconnect("phone")
    assert ended is not None and 3 == ended.undelivered
    assert None is disconnects.last_disconnect("other")


def test_the_latest_of_each_kind_are_kept() -> None:
    """A fleet that comes and goes would fill the memory, or strangers push out what is known of clients."""
    disconnects = RecentDisconnects()
    disconnects.note_disconnect("phone", GONE)
    disconnects.note_refusal("first", WRONG)
    disconnects.note_refusal("second", WRONG)
    disconnects.note_refusal("first", WRONG)
    for number in range(MAX_CLIENTS - 1):
        disconnects.note_refusal(f"stranger-{number}", WRONG)

    assert (1, MAX_CLIENTS) == disconnects.statistics()
    assert GONE is disconnects.last_disconnect("phone")
    assert (WRONG, None) == (disconnects.last_refusal("first"), disconnects.last_refusal("second"))


def test_who_never_said_who_it_is_or_said_too_much_is_not_remembered() -> None:
    """A CONNECT with a name of 64 KiB would cost as much, thousands of times."""
    disconnects = RecentDisconnects()
    disconnects.note_refusal("", WRONG)
    disconnects.note_refusal("x" * (MAX_CLIENT_ID + 1), WRONG)
    disconnects.note_refusal("x" * MAX_CLIENT_ID, WRONG)

    assert (0, 1) == disconnects.statistics()
    assert MAX_DETAIL == len(RecentDisconnect(CloseReason.PROTOCOL_ERROR, "x" * 1000, "", 0.0).detail)
