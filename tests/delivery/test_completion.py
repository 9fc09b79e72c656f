# Answers that wait for receivers which are not done with a publish yet.
import pytest

from broker.delivery.completion import AnswerQueue, Completion
from broker.delivery.outbox import OutboundBudget, Outbox
from broker.delivery.ring import Ring
from broker.metrics.counters import Counters
from broker.metrics.latency import Latencies
from broker.session.message import NEVER, Message

PLENTY = 1 << 28
NOW = 1000.0


class Paused:
    """The connections that are paused, in the order in which they were."""

    def __init__(self) -> None:
        self.sources: list[Outbox] = []

    def pause(self, source: Outbox) -> None:
        self.sources.append(source)

    def resume(self, source: Outbox) -> None:
        self.sources.remove(source)


class Publisher:
    """A connection that publishes, and how its answers leave."""

    def __init__(self, limit: int = 100, paused: Paused | None = None) -> None:
        self.outbox = Outbox(0, PLENTY, PLENTY, OutboundBudget(PLENTY), Ring())
        self.counters = Counters()
        self.latencies = Latencies()
        self.paused = paused or Paused()
        self.queue = AnswerQueue(self.outbox, self.counters, self.latencies, limit, self.paused)

    def publish(self, answer: bytes, receivers: int) -> Completion:
        """Have *answer* wait for so many receivers."""
        message = publish()
        for _ in range(receivers):
            message.hold()
        self.queue.add(message.completion, answer, NOW - 1.0, NOW)
        return message.completion or Completion()

    def answers(self) -> bytes:
        """All that was written since the last call."""
        data = bytes(self.outbox.gather()) if self.outbox.size else b""
        if data:
            self.outbox.sent(len(data), 0.0)
        return data


def publish() -> Message:
    return Message(b"t", b"x", 1, False, b"", NEVER)


def test_a_message_without_late_receivers_has_no_completion() -> None:
    """Each publish to receivers in memory allocates an object more."""
    assert publish().completion is None
    assert publish().variant(0, False, b"").completion is None


def test_variants_hold_the_message_that_was_published() -> None:
    """A publish is acknowledged although a receiver at another QoS is not done with it."""
    message = publish()
    variant = message.variant(0, False, b"i")
    completion = variant.variant(0, True, b"").hold()

    assert completion is message.completion is message.hold() is variant.hold()
    assert 3 == completion.pending
    assert message is variant.as_published() is message.as_published()


def test_an_answer_leaves_with_its_last_receiver() -> None:
    """A publisher forgets a message that is not stored yet, or waits for one that is."""
    publisher = Publisher()
    completion = publisher.publish(b"1", 2)

    completion.settle(NOW)
    assert b"" == publisher.answers()
    completion.settle(NOW)
    assert b"1" == publisher.answers()
    assert 0 == publisher.queue.count


@pytest.mark.parametrize("told", ["before", "after"])
def test_a_connection_waits_for_a_receiver_that_needs_long(told: str) -> None:
    """A client would have a million sessions read again and again, while others wait for what it has begun."""
    publisher, message = Publisher(limit=2), publish()
    completion = message.hold()
    if told == "before":
        completion.needs_long()
    publisher.queue.add(completion, b"1", NOW, NOW)
    completion.needs_long()
    completion.needs_long()
    second = publisher.publish(b"2", 1)
    assert [publisher.outbox] == publisher.paused.sources
    second.settle(NOW)
    assert [publisher.outbox] == publisher.paused.sources
    completion.settle(NOW)
    assert [] == publisher.paused.sources
    assert b"12" == publisher.answers() and 0 == publisher.queue.long
    publisher.publish(b"3", 1)
    assert [] == publisher.paused.sources


def test_settling_more_often_than_held_is_an_error() -> None:
    """One receiver that settles twice has a publish acknowledged that another receiver lost."""
    publisher = Publisher()
    completion = publisher.publish(b"1", 1)
    completion.settle(NOW)

    with pytest.raises(ValueError, match="settled twice"):
        completion.settle(NOW)
    assert b"1" == publisher.answers()
    assert 0 == completion.pending


def test_answers_keep_the_order_of_their_publishes() -> None:
    """A PUBACK overtakes that of an earlier publish [MQTT-4.6.0-2]."""
    publisher = Publisher()
    first, second = publisher.publish(b"1", 1), publisher.publish(b"2", 1)
    publisher.publish(b"3", 0)  # done, as a publish that is refused is, or one to receivers in memory
    third = publisher.publish(b"4", 1)

    third.settle(NOW)
    second.settle(NOW)
    assert b"" == publisher.answers()
    first.settle(NOW)
    assert b"1234" == publisher.answers()
    publisher.publish(b"5", 0)
    assert b"5" == publisher.answers()


def test_a_receiver_that_is_done_before_the_answer_is_there_holds_nothing() -> None:
    """The answer of a publish whose receiver was quick never leaves."""
    publisher = Publisher()
    message = publish()
    message.hold().settle(NOW)
    publisher.queue.add(message.completion, b"1", NOW, NOW)

    assert b"1" == publisher.answers()


def test_connections_do_not_wait_for_each_other() -> None:
    """One publisher to a slow store delays the answers of all others."""
    one, two = Publisher(), Publisher()
    slow, quick = one.publish(b"1", 1), two.publish(b"2", 1)

    quick.settle(NOW)
    assert (b"", b"2") == (one.answers(), two.answers())
    slow.settle(NOW)
    assert (b"1", b"") == (one.answers(), two.answers())


def test_what_settles_after_the_connection_has_ended_changes_nothing() -> None:
    """Bytes are written to the outbox of a closed connection, and stay in the budget for ever."""
    publisher = Publisher()
    first, second = publisher.publish(b"1", 1), publisher.publish(b"2", 2)
    second.settle(NOW)
    publisher.queue.discard()

    assert first.queue is None is second.queue  # or each of them is a cycle with the queue
    first.settle(NOW)
    second.settle(NOW)
    assert 0 == publisher.queue.count == publisher.outbox.size


def test_a_full_queue_pauses_its_connection_until_half_of_it_has_left() -> None:
    """A client that publishes faster than a store stores fills the memory of the worker."""
    paused = Paused()
    publisher = Publisher(4, paused)
    completions = [publisher.publish(b"%d" % n, 1) for n in range(3)]
    assert [] == paused.sources
    completions.append(publisher.publish(b"3", 1))
    assert [publisher.outbox] == paused.sources
    completions += [publisher.publish(b"%d" % n, 1) for n in range(4, 6)]  # as the duplicates of a paused publish
    assert [publisher.outbox] == paused.sources

    for n, left in ((0, 1), (1, 1), (2, 1), (3, 0)):
        completions[n].settle(NOW)
        assert left == len(paused.sources)
    assert b"0123" == publisher.answers()


def test_late_answers_are_counted_when_they_leave() -> None:
    """An answer that never leaves is counted as sent, or the time that it waited is no part of the latency."""
    publisher = Publisher()
    completion = publisher.publish(b"1", 1)
    assert (0, 0) == (publisher.counters.answers_sent, publisher.latencies.count)
    completion.settle(NOW + 3.0)

    assert (1, 1) == (publisher.counters.answers_sent, publisher.latencies.count)
    assert 4.0 == pytest.approx(publisher.latencies.quantile(0.5), rel=0.02)
