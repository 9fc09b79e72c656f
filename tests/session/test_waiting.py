# What waits for a reader, and what does not.
from broker.mqtt.packets import V5, Publish
from broker.mqtt.properties import MESSAGE_EXPIRY_INTERVAL
from broker.reasons import DropReason
from broker.session.queue import MESSAGE, QUEUED, MessageBudget
from tests.session.receiver import NOW, Receiver, message


def slow() -> Receiver:
    """Connected, and not writable."""
    receiver = Receiver(pending=2).connect(high=10)
    return receiver.offer(message(b"x" * 20, 0))


def test_qos_0_does_not_wait_for_a_slow_reader() -> None:
    """A slow reader would cost more the more is published to it."""
    receiver = slow().offer(message(b"lost", 0))

    assert 1 == receiver.dropped(DropReason.NOT_WRITABLE)
    assert [b"x" * 20] == receiver.payloads()


def test_qos_0_does_not_wait_for_an_absent_client() -> None:
    """A session that is away would be filled with messages that nobody promised it."""
    receiver = Receiver(expiry=60).offer(message(b"lost", 0))

    assert 1 == receiver.dropped(DropReason.OFFLINE_QOS0)
    assert [] == receiver.connect().take()


def test_a_slow_reader_gets_what_waited_when_it_reads_again() -> None:
    """QoS 1 and 2 would be lost, or come out of order, when a reader pauses."""
    receiver = slow().offer(message(b"a", 1), message(b"b", 2))
    assert 2 == receiver.session.waiting()

    assert [b"x" * 20, b"a", b"b"] == receiver.acknowledge()
    assert 0 == receiver.session.waiting()
    assert receiver.session._queue is None  # an empty one for each idle session would be most of what it costs


def test_what_comes_later_does_not_overtake_what_waits() -> None:
    """A message that finds room would be delivered before an older one [MQTT-4.6.0-6]."""
    receiver = slow().offer(message(b"a", 1))
    receiver.outbox.gather()
    receiver.outbox.sent(receiver.outbox.size, 0.0)  # writable again, and the session was not told yet
    receiver.offer(message(b"b", 1))
    receiver.session.pump(NOW)

    assert [b"a", b"b"] == receiver.payloads()


def test_a_slow_reader_that_is_not_persistent_holds_few() -> None:
    """A slow reader would cost a whole queue, or lose the oldest instead of the newest."""
    receiver = slow().offer(message(b"a", 1), message(b"b", 2))
    assert not receiver.session.has_room()

    receiver.offer(message(b"c", 1))

    assert 1 == receiver.dropped(DropReason.PENDING_FULL)
    assert [b"x" * 20, b"a", b"b"] == receiver.acknowledge()


def test_a_full_queue_lets_the_oldest_go() -> None:
    """A session that is away would hold stale messages and refuse new ones, or grow without end."""
    receiver = Receiver(expiry=60, pending=1, queue=3).offer(*[message(b"%d" % i, 1) for i in range(5)])

    assert receiver.session.has_room()
    assert 2 == receiver.dropped(DropReason.QUEUE_FULL)
    assert [b"2", b"3", b"4"] == receiver.connect().payloads()


def test_a_queue_is_bounded_in_bytes() -> None:
    """A few large messages would cost more than the limit says."""
    receiver = Receiver(expiry=60, queue_bytes=30).offer(*[message(b"%d" % i * 9, 1) for i in range(4)])

    assert 1 == receiver.dropped(DropReason.QUEUE_FULL)
    assert [b"1" * 9, b"2" * 9, b"3" * 9] == receiver.connect().payloads()


def test_bytes_that_left_the_queue_make_room() -> None:
    """A queue would shrink with every message that went through it."""
    receiver = Receiver(expiry=60, queue_bytes=30)
    for _ in range(3):
        receiver.offer(*[message(b"x" * 9, 1) for _ in range(3)])
        receiver.connect()
        receiver.acknowledge()
        receiver.session.detach()

    assert 0 == receiver.counters.publishes_dropped


def test_what_is_withheld_makes_room() -> None:
    """A queue and a window would keep a place for messages that their client may not read any more."""
    receiver = Receiver(expiry=60, queue_bytes=30).connect().offer(message(b"x" * 29, 1))
    receiver.session.detach()
    receiver.offer(*[message(b"x" * 9, 1) for _ in range(3)])

    assert 4 == receiver.session.withhold(lambda topic: False, NOW)

    receiver.offer(*[message(b"y" * 9, 1) for _ in range(3)])
    assert 0 == receiver.dropped(DropReason.QUEUE_FULL)
    receiver.connect()
    assert [b"y" * 9] * 3 == receiver.payloads()
    assert receiver.session.ready()  # exactly full


def test_a_message_larger_than_the_queue_does_not_wait() -> None:
    """The limit would hold for all messages but the last."""
    receiver = Receiver(expiry=60, queue_bytes=30).offer(message(b"x" * 100, 1), message(b"small", 1))

    assert 1 == receiver.dropped(DropReason.QUEUE_FULL)
    assert [b"small"] == receiver.connect().payloads()


def test_all_sessions_together_hold_no_more_than_their_budget() -> None:
    """Many sessions that are away would fill the memory, each within its own limits."""
    budget = MessageBudget(3 * (MESSAGE + QUEUED + 10) + 120)
    one, two = Receiver(expiry=60, budget=budget), Receiver(expiry=60, budget=budget)
    one.offer(message(b"x" * 9, 1), message(b"y" * 9, 1))
    two.offer(message(b"a" * 9, 1), message(b"b" * 9, 1))

    assert [0, 1] == [one.dropped(DropReason.QUEUE_FULL), two.dropped(DropReason.QUEUE_FULL)]
    assert 3 * (MESSAGE + QUEUED + 10) == budget.used
    assert [b"b" * 9] == two.connect().payloads()
    assert [b"x" * 9, b"y" * 9] == one.connect().acknowledge()


def test_what_no_longer_waits_is_given_back_to_the_budget() -> None:
    """The room for all sessions would shrink until nothing can wait."""
    budget = MessageBudget(1000)
    for leave in ("delivered", "expired", "ended", "refused"):
        receiver = Receiver(expiry=60, queue=2, queue_bytes=900, budget=budget)
        receiver.offer(*[message(b"x", 1, expires=NOW) for _ in range(3)])
        assert 2 * (MESSAGE + QUEUED + 2) == budget.used, leave
        if leave == "delivered":
            receiver.session.pump(NOW - 1)
            receiver.connect().acknowledge()
        elif leave == "expired":
            receiver.connect()
        elif leave == "refused":
            receiver.offer(message(b"x" * 901, 1))
        else:
            receiver.session.end()
        assert 0 == budget.used, leave


def test_a_queue_of_none_holds_none() -> None:
    """Zero would mean one, or no limit at all."""
    receiver = Receiver(expiry=60, queue=0).offer(message(b"a", 1))

    assert 1 == receiver.dropped(DropReason.QUEUE_FULL)
    assert [] == receiver.connect().payloads()
    assert [b"b"] == receiver.offer(message(b"b", 1)).payloads()


def test_a_backlog_leaves_as_fast_as_it_is_read() -> None:
    """A client that comes back would be written its whole queue at once."""
    receiver = Receiver(expiry=60).offer(*[message(b"x" * 100, 1) for _ in range(10)]).connect(high=250)
    assert (3, 7) == (receiver.session.inflight(), receiver.session.waiting())

    assert 10 == len(receiver.payloads())


def test_what_expired_while_it_waited_is_not_delivered() -> None:
    """A client would act on a message that its publisher declared stale [MQTT-3.3.2-5]."""
    receiver = Receiver(expiry=60).offer(
        message(b"stale", 1, expires=NOW - 5), message(b"just", 1, expires=NOW), message(b"fresh", 1, expires=NOW + 5)
    )

    assert [b"fresh"] == receiver.connect(V5).payloads()
    assert 2 == receiver.dropped(DropReason.EXPIRED)
    assert 1 == receiver.session.inflight()


def test_the_time_that_a_message_waited_is_taken_off_its_expiry() -> None:
    """Each stage would give a message its whole life again [MQTT-3.3.2-6]."""
    receiver = Receiver(expiry=60).offer(message(b"", 1, expires=NOW + 20), now=NOW - 40)
    packet = receiver.connect(V5).take()[0]

    assert isinstance(packet, Publish)
    assert {MESSAGE_EXPIRY_INTERVAL: 20} == packet.properties


def test_what_is_too_large_for_the_client_is_not_sent() -> None:
    """A client would have to close a connection on which it gets more than it takes [MQTT-3.1.2-24]."""
    fits = message(b"x" * 10, 0)
    size = fits.length(V5, NOW)
    receiver = Receiver().connect(V5, maximum_packet=size)

    receiver.offer(fits, message(b"y" * 11, 0), message(b"x" * 8, 1), message(b"y" * 9, 1), message(b"x" * 8, 2))

    assert [b"x" * 10, b"x" * 8, b"x" * 8] == receiver.payloads()
    assert 2 == receiver.dropped(DropReason.TOO_LARGE)
    assert 2 == receiver.session.inflight()


def test_a_session_without_a_connection_takes_no_step() -> None:
    """A timer or a late event would write to a connection that is gone."""
    receiver = Receiver(expiry=60).offer(message(b"a", 1))
    receiver.session.pump(NOW)

    assert 1 == receiver.session.waiting()
    assert not receiver.session.ready() and not receiver.session.writable()


def test_what_is_sent_is_counted() -> None:
    """$SYS would say that nothing happens."""
    counters = Receiver().connect().offer(message(b"abc", 0), message(b"de", 1)).counters

    assert (2, 5) == (counters.publishes_sent, counters.publish_bytes_sent)
