# When a transaction waits although it could be sent, and for how long.
import pytest

from broker.delivery.flushing import CALM, Flushing
from broker.delivery.outbox import Outbox
from broker.delivery.ring import Ring
from broker.store.durable.commit_delays import BEHIND, BUSY, GATHERED, LONGEST_HOLD, NEVER, Gathering, Holds
from broker.store.durable.writer import Mark, Writer

HOLD = 0.002
TOOK = 0.004  # seconds of a transaction


def writer() -> Mark:
    return Mark(b"", lambda: None, False)


def held(holds: Holds, now: float) -> Writer:
    made = writer()
    holds.add(made, now)
    return made


def test_each_hold_is_over_in_its_time() -> None:
    """What a quick client acknowledges would be stored, or what a slow one does not would not be, or twice."""
    holds = Holds(HOLD)
    first = held(holds, 10.0)
    assert holds.due() == 10.0 + HOLD
    second = held(holds, 10.001)

    assert [] == holds.take_due(10.0019)
    assert first.held and second.held and not holds.is_empty()
    assert [first] == holds.take_due(10.002)
    assert not first.held and holds.due() == 10.001 + HOLD
    assert [second] == holds.take_due(11.0)
    assert holds.is_empty() and holds.due() == NEVER


def test_what_comes_between_two_ticks_is_written_together() -> None:
    """A worker with much to do would send a transaction for each of its writers."""
    holds = Holds(HOLD)
    writers = [held(holds, 10.0), held(holds, 10.0001)]

    assert holds.due() == 10.0001 + HOLD
    assert [] == holds.take_due(10.0 + HOLD)
    assert writers == holds.take_due(10.0001 + HOLD)


@pytest.mark.parametrize("behind", [0.001, 1.0])
def test_a_hold_lasts_longer_while_reading_is_behind(behind: float) -> None:
    """What clients have acknowledged in time would be stored; or be held for as long as the worker is overloaded."""
    now = 10.0
    holds = Holds(HOLD, lambda: now - behind)
    late = held(holds, now)
    longest = min(BEHIND * behind, LONGEST_HOLD)
    now = 10.0 + HOLD + longest * 0.99
    assert [] == holds.take_due(now)
    now = 10.0 + HOLD + longest * 1.01

    assert [late] == holds.take_due(now)


def worked(share: float, hold: float = HOLD, longest: float = 0.0) -> Holds:
    """Of a worker that worked for *share* of the time lately, and holds outboxes for *longest* seconds at most."""
    dirty: Ring[Outbox] = Ring()
    flushing = Flushing(dirty, longest=longest, buffered=0.0, most=10)
    flushing.worked(share, 1.0)
    return Holds(hold, None, flushing.share, flushing.hold)


def duration(holds: Holds, now: float) -> float:
    """Seconds of a hold that begins now."""
    held(holds, now)
    assert [] == holds.take_due(now)
    return holds.due() - now


def test_a_hold_lasts_longer_by_the_time_that_outboxes_are_held() -> None:
    """A message would be stored that was not sent yet, so that no client could acknowledge it."""
    assert HOLD == pytest.approx(duration(worked(CALM, longest=0.005), 10.0))
    assert HOLD + 0.005 == pytest.approx(duration(worked(1.0, longest=0.005), 10.0))


def test_a_busy_worker_waits_for_clients_that_answer_a_little_later() -> None:
    """It would store and remove each of their messages, and has no time for that."""
    holds = worked(BUSY)
    for _ in range(10):
        holds.removed(0.008)
    longer = duration(holds, 10.0)

    assert HOLD + 0.004 < longer < HOLD + 0.008
    for _ in range(1000):
        holds.removed(0.008)
    holds.take_due(20.0)
    assert HOLD + LONGEST_HOLD == pytest.approx(duration(holds, 20.0))


def test_a_worker_with_time_stores_what_distant_clients_answer_late() -> None:
    """Their publishers would wait for a round trip of the subscriber."""
    holds = worked(BUSY * 0.99)
    for _ in range(1000):
        holds.removed(0.03)

    assert HOLD == pytest.approx(duration(holds, 10.0))


def test_clients_that_answer_much_later_make_holds_short_again() -> None:
    """A busy worker would hold messages, and answer their publishers later, although it saves nothing by it."""
    holds = worked(1.0)
    for _ in range(1000):
        holds.removed(0.03)
    for _ in range(1000):
        holds.removed(LONGEST_HOLD)

    assert HOLD == pytest.approx(duration(holds, 10.0))


def test_who_is_to_be_asked_at_once_is_whoever_is_behind() -> None:
    """Without `store.hold`, a worker that is behind would hold messages all the same."""
    holds = worked(1.0, 0.0, 0.005)
    holds.removed(0.03)
    late = held(holds, 10.0)

    assert [late] == holds.take_due(10.0)


def test_a_message_waits_for_others_for_as_long_as_the_last_transaction_took() -> None:
    """Each message for hundreds of queues would cost a command of each; or wait without an end."""
    gathering = Gathering()
    gathering.answered(TOOK, 10.0)
    gathering.message(True, 10.1)
    assert gathering.until == 10.1 + TOOK
    gathering.message(True, 10.101)  # the first one decides
    assert gathering.until == 10.1 + TOOK
    slow = Gathering()
    slow.answered(5.0, 10.0)
    slow.message(True, 10.0)

    assert slow.until == 10.0 + GATHERED


def test_a_publisher_that_waits_for_each_answer_is_not_held_up() -> None:
    """Its rate would be halved: nothing is to come while it waits."""
    gathering = Gathering()
    for number in range(3):
        gathering.message(False, 10.0 + number)
        assert gathering.until == 0.0
        gathering.sent()
        gathering.answered(TOOK, 10.0 + number + TOOK)
        gathering.go_on()

    assert gathering.until == 0.0


@pytest.mark.parametrize("waits", [False, True])
def test_publishers_that_were_answered_together_are_waited_for(waits: bool) -> None:
    """The first one of them would have a transaction of its own, each time. *waits*: a message has come before."""
    gathering = Gathering()
    gathering.message(False, 10.0)
    gathering.message(False, 10.0)
    gathering.sent()
    if waits:
        gathering.message(True, 10.0)
    gathering.answered(TOOK, 10.0 + TOOK)
    gathering.go_on()
    gathering.message(False, 10.0 + TOOK)
    assert gathering.until == 10.0 + TOOK + TOOK / 2
    gathering.until = 0.0
    gathering.message(False, 11.0)

    assert gathering.until == 0.0  # they do not come
