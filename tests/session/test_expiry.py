# Messages in memory that have ended leave the queues of sessions and groups, although nobody reads them.
import pytest

from broker.protocol.message_expiry import MessageExpiry
from broker.reasons import DropReason
from broker.session.message import NEVER
from broker.session.queue import MessageBudget
from tests.session.receiver import NOW, PLENTY, Receiver, message

TTL = 600.0


class Time:
    def __init__(self, budget: MessageBudget) -> None:
        self.now = NOW
        self.expiry = MessageExpiry(budget)

    def pass_to(self, seconds: float) -> None:
        """*seconds* after NOW."""
        self.now = NOW + seconds
        self.expiry.run(self.now)


@pytest.fixture
def budget() -> MessageBudget:
    return MessageBudget(PLENTY, TTL)


@pytest.fixture
def time(budget: MessageBudget) -> Time:
    return Time(budget)


@pytest.mark.parametrize("connected", [True, False])
def test_what_has_ended_leaves_a_queue_that_nobody_reads(budget: MessageBudget, time: Time, connected: bool) -> None:
    """A message with an expiry of a second would take memory for as long as its session lasts."""
    receiver = Receiver(expiry=3600, budget=budget)
    if connected:
        receiver.connect(window=1).offer(message(b"in flight", 1))
    used = budget.used
    for number in range(10):
        receiver.offer(message(b"%d" % number, 1, expires=NOW + 5 if number % 2 else NEVER))
    time.pass_to(4.9)
    assert 10 == receiver.session.waiting()
    time.pass_to(6.1)
    assert (5, 5) == (receiver.session.waiting(), receiver.dropped(DropReason.EXPIRED))
    time.pass_to(TTL + 1.1)

    assert (0, 10) == (receiver.session.waiting(), receiver.dropped(DropReason.EXPIRED))
    assert (used, 0) == (budget.used, len(budget.expiry))


def test_a_message_keeps_its_own_expiry_for_its_client(budget: MessageBudget) -> None:
    """A client would be told that a message expires which its publisher gave no expiry [MQTT-3.3.2-6]."""
    receiver = Receiver(expiry=3600, budget=budget)
    receiver.offer(offered := message(b"x", 1))

    assert (NEVER, NOW + TTL) == (offered.expires, offered.ends)


def test_a_queue_that_drains_or_ends_leaves_the_schedule(budget: MessageBudget) -> None:
    """Each queue that ever was would be kept until its last message would have ended."""
    drained, ended, shed = [Receiver(expiry=3600, budget=budget, queue=queue) for queue in (9, 9, 0)]
    for receiver in (drained, ended, shed):
        receiver.offer(message(b"x", 1))
    assert 2 == len(budget.expiry)
    assert [b"x"] == drained.connect().acknowledge()
    ended.session.end()

    assert 0 == len(budget.expiry)


def test_what_moves_to_another_worker_does_not_begin_anew(budget: MessageBudget, time: Time) -> None:
    """A client that changes between two workers would keep messages for ever."""
    receiver = Receiver(expiry=3600, budget=budget)
    receiver.offer(message(b"x", 1))
    moved = receiver.session.take_waiting()
    assert 0 == len(budget.expiry)
    other = Receiver(expiry=3600, budget=budget)
    other.session.put_before(moved)
    time.pass_to(TTL + 1.1)

    assert (0, 1) == (other.session.waiting(), other.dropped(DropReason.EXPIRED))


def test_a_long_queue_is_not_looked_through_for_each_message(budget: MessageBudget, time: Time) -> None:
    """A client whose messages end one after the other could keep the worker busy."""
    receiver = Receiver(expiry=3600, budget=budget, queue=PLENTY)
    for number in range(20_000):
        receiver.offer(message(b"x", 1, expires=NOW + 1 + number / 1000))
    time.pass_to(2.1)
    left = receiver.session.waiting()
    time.pass_to(3.1)
    assert left == receiver.session.waiting()
    time.pass_to(30.0)

    assert 0 == receiver.session.waiting()


def test_many_queues_that_end_together_are_looked_through_in_several_passes(budget: MessageBudget, time: Time) -> None:
    """A worker would stop when the messages of a fleet end at once."""
    receivers = [Receiver(expiry=3600, budget=budget, queue=PLENTY) for _ in range(10)]
    for receiver in receivers:
        receiver.offer(*[message(b"x", 1, expires=NOW + 5) for _ in range(5_000)])
    time.pass_to(6.1)
    assert 4 == sum(receiver.session.waiting() == 0 for receiver in receivers)
    time.expiry.run(time.now)
    time.expiry.run(time.now)

    assert 0 == sum(receiver.session.waiting() for receiver in receivers)
