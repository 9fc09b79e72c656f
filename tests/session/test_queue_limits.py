# Which limit holds for which session: `pending` while it is connected and not persistent, `queue` else.
import pytest

from broker.reasons import DropReason
from broker.session.limits import SessionLimits
from broker.session.queue import MessageBudget
from tests.session.receiver import PLENTY, Receiver, message


def slow(receiver: Receiver) -> Receiver:
    """A reader whose window is taken by one message."""
    return receiver.connect(window=1).offer(message(b"first", 1))


def test_the_limit_of_the_queue_does_not_cut_what_is_pending() -> None:
    """A broker that keeps nothing for those who are away would keep nothing for those who are there."""
    receiver = slow(Receiver(pending=5, queue=2)).offer(*[message(b"%d" % n, 1) for n in range(6)])

    assert 5 == receiver.session.waiting()
    assert 1 == receiver.dropped(DropReason.PENDING_FULL)
    assert 0 == receiver.dropped(DropReason.QUEUE_FULL)
    assert [b"first", b"0", b"1", b"2", b"3", b"4"] == receiver.acknowledge()


def test_the_limit_of_what_is_pending_does_not_cut_a_queue() -> None:
    """A session that was promised its messages would lose the newest of them as long as it is connected."""
    receiver = slow(Receiver(expiry=60, pending=2, queue=5)).offer(*[message(b"%d" % n, 1) for n in range(6)])

    assert 5 == receiver.session.waiting()
    assert 1 == receiver.dropped(DropReason.QUEUE_FULL)
    assert [b"first", b"1", b"2", b"3", b"4", b"5"] == receiver.acknowledge()


@pytest.mark.parametrize("expiry", [0, 60])
def test_a_queue_of_no_bytes_holds_nothing(expiry: int) -> None:
    """Zero bytes would mean one message of any size, for each of a million sessions."""
    receiver = Receiver(expiry=expiry, queue_bytes=0)
    receiver.connect(window=1).offer(message(b"sent", 1), message(b"late", 1))
    assert 0 == receiver.session.waiting()
    assert [b"sent"] == receiver.acknowledge()

    receiver.offer(message(b"again", 1))

    assert [b"again"] == receiver.acknowledge()
    assert 1 == receiver.dropped(DropReason.QUEUE_FULL)


def test_a_queue_of_no_bytes_does_not_narrow_the_window() -> None:
    """What may not wait may still be sent: a fleet without queues would get one message at a time."""
    receiver = Receiver(queue_bytes=0).connect(window=2)

    receiver.offer(message(b"one", 1), message(b"two", 1), message(b"late", 1))

    assert [b"one", b"two"] == receiver.acknowledge()
    assert 1 == receiver.dropped(DropReason.QUEUE_FULL)


def test_other_limits_apply_to_a_session_that_is_here() -> None:
    """A session would keep the limits of before a reload until it ends, perhaps for weeks."""
    receiver = slow(Receiver(expiry=60, queue=5, queue_bytes=PLENTY)).offer(*[message(b"%d" % n, 1) for n in range(5)])
    budget = MessageBudget(PLENTY)
    few = SessionLimits(inflight=9, pending=9, queue=2, queue_bytes=PLENTY, budget=budget)
    receiver.session.limit(few)
    assert (5, 2) == (receiver.session.waiting(), receiver.session.may_wait())
    receiver.offer(message(b"5", 1))
    assert 2 == receiver.session.waiting()
    receiver.session.limit(SessionLimits(inflight=9, pending=9, queue=2, queue_bytes=1, budget=budget))
    receiver.offer(message(b"6", 1))

    assert 0 == receiver.session.waiting()
    assert [b"first"] == receiver.acknowledge()
