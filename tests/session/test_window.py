# The window: packet ids, and what is sent again when a connection ends.
from broker.mqtt.packets import PUBREL, V5, Ack, Publish
from broker.reasons import DropReason
from broker.session.message import RELEASED, Message
from broker.session.queue import INFLIGHT, MESSAGE, MessageBudget
from tests.session.receiver import NOW, Receiver, message, sent


def ids(receiver: Receiver) -> list[int]:
    return [packet.packet_id for packet in receiver.take() if isinstance(packet, Publish)]


def test_each_message_has_its_own_packet_id() -> None:
    """An acknowledgement would end the wrong exchange: ids are free, and what is new is no duplicate.

    [MQTT-2.2.1-4], [MQTT-4.3.2-1], [MQTT-4.3.2-2], [MQTT-4.3.3-1], [MQTT-4.3.3-2]
    """
    receiver = Receiver().connect().offer(message(b"a", 1), message(b"b", 2), message(b"c", 1))

    assert [sent(b"a", 1, 1), sent(b"b", 2, 2), sent(b"c", 1, 3)] == receiver.take()


def test_a_full_window_waits_for_acknowledgements() -> None:
    """A client would get more than its receive maximum, or stop getting anything.

    [MQTT-3.3.4-9], [MQTT-4.9.0-1], [MQTT-4.9.0-2]
    """
    receiver = Receiver(inflight=10).connect(window=2).offer(*[message(b"%d" % i, 1) for i in range(5)])
    assert [b"0", b"1"] == receiver.payloads()
    assert not receiver.session.ready()
    assert (2, 3) == (receiver.session.inflight(), receiver.session.waiting())

    assert receiver.session.puback(1, NOW)

    assert [sent(b"2", 1, 3)] == receiver.take()
    receiver.session.puback(2, NOW)
    receiver.session.puback(3, NOW)
    assert [b"3", b"4"] == receiver.acknowledge()
    assert receiver.session.ready()


def test_our_own_limit_bounds_the_window_of_a_generous_client() -> None:
    """A client that allows 65 535 messages would make us hold as many for it."""
    receiver = Receiver(inflight=2).connect(window=65535).offer(*[message(b"", 2) for _ in range(3)])

    assert [1, 2] == ids(receiver)


def large(qos: int = 1) -> Message:
    """10 000 bytes with all that it costs; of a budget of 400 000, one session may have three of these in flight."""
    return message(b"x" * (10_000 - 1 - MESSAGE - INFLIGHT), qos)


def test_one_session_has_a_part_of_the_budget_in_flight() -> None:
    """A client that takes large messages and acknowledges none costs a thousand of them, and others get nothing."""
    receiver = Receiver(budget=MessageBudget(400_000)).connect()
    session = receiver.session
    receiver.offer(large(), large(2))
    assert session.ready()
    receiver.offer(large(2), large(), large())
    assert not session.ready()
    assert [1, 2, 3] == ids(receiver)

    session.puback(1, NOW)
    assert [4] == ids(receiver)
    session.pubrec(2, 0, NOW)  # the client holds it: of ours, only its packet id is in use
    session.pubcomp(2, NOW)
    assert [5] == ids(receiver)
    session.pubrec(3, 0x80, NOW)
    assert session.ready()


def test_some_that_acknowledge_nothing_leave_room_for_another() -> None:
    """Clients that only take would keep all others from their messages."""
    budget = MessageBudget(1_000_000)
    for _ in range(8):
        receiver = Receiver(pending=0, budget=budget).connect()
        receiver.offer(*[message(b"x" * 100, 1) for _ in range(1000)])
    assert budget.limit // 2 < budget.used < budget.limit

    assert [b"a", b"b"] == Receiver(budget=budget).connect().offer(message(b"a", 1), message(b"b", 1)).payloads()


def test_no_more_is_in_flight_than_the_budget_and_a_message() -> None:
    """Each client within its share, a thousand of them would still take the memory of the machine."""
    budget = MessageBudget(1_000_000)
    for _ in range(300):
        receiver = Receiver(pending=0, budget=budget).connect()
        receiver.offer(*[message(b"x" * 100, 1) for _ in range(100)])

    assert budget.limit <= budget.used < budget.limit + 1000


def test_a_budget_that_is_used_up_sends_again_when_there_is_room() -> None:
    """Nobody acknowledges anything to a client that was sent nothing: it would wait for ever."""
    budget = MessageBudget(3000)
    empty, gone = [Receiver(expiry=60, budget=budget).offer(message(b"waits", 1)) for _ in range(2)]
    full = Receiver(budget=budget).connect().offer(message(b"x" * 3000, 1))
    assert [] == empty.connect().payloads() == gone.connect().payloads()
    gone.session.end()
    budget.retry(NOW)
    assert [] == empty.payloads()

    full.acknowledge()
    budget.retry(NOW)

    assert [b"waits"] == empty.acknowledge()
    assert [] == gone.payloads()
    assert 0 == budget.used


def test_the_bytes_in_flight_are_counted_anew_on_each_connection() -> None:
    """A client that comes back again and again would at last get nothing."""
    receiver = Receiver(expiry=60, budget=MessageBudget(400_000)).connect().offer(large(), large(2), large())
    receiver.session.pubrec(2, 0, NOW)
    for _ in range(3):
        assert receiver.connect().session.ready()

    receiver.offer(large(), large())

    assert [1, 3, 4] == ids(receiver)


def test_qos_0_needs_no_place_in_the_window() -> None:
    """A client that does not acknowledge would get no QoS 0 messages."""
    receiver = Receiver().connect(window=1).offer(message(b"a", 1), message(b"b", 1), message(b"c", 0))

    assert [b"a", b"c"] == receiver.payloads()


def test_packet_ids_begin_again_after_65535_and_skip_those_in_use() -> None:
    """A packet id of 0 or of another message would be sent after 65 535 messages [MQTT-2.2.1-4]."""
    receiver = Receiver().connect().offer(message(b"", 1), message(b"", 1))
    for packet_id in range(3, 65536):
        receiver.offer(message(b"", 1))
        receiver.session.puback(packet_id, NOW)
    receiver.take_bytes()

    receiver.session.puback(1, NOW)
    receiver.offer(message(b"", 1), message(b"", 1))

    assert [1, 3] == ids(receiver)


def test_the_last_id_is_skipped_when_in_use() -> None:
    """The search for a free packet id would leave the range at its end."""
    receiver = Receiver().connect()
    for packet_id in range(1, 65535):
        receiver.offer(message(b"", 1))
        receiver.session.puback(packet_id, NOW)
    receiver.offer(message(b"", 1), message(b"", 1))  # 65535 and 1
    receiver.session.puback(1, NOW)
    for packet_id in range(2, 65535):
        receiver.offer(message(b"", 1))
        receiver.session.puback(packet_id, NOW)
    receiver.take_bytes()

    receiver.offer(message(b"", 1))

    assert [1] == ids(receiver)


def test_what_was_not_acknowledged_is_sent_again() -> None:
    """A reconnect would lose messages, change their packet ids or their order, or hide that they are duplicates.

    [MQTT-4.4.0-1], [MQTT-4.6.0-1], [MQTT-3.3.1-1]; what is unacknowledged: [MQTT-4.3.2-3], [MQTT-4.3.3-3], and behind a
    PUBREC the PUBREL alone [MQTT-4.3.3-5], [MQTT-4.3.3-6].
    """
    receiver = Receiver(expiry=60).connect().offer(*[message(b"%d" % i, 1 + i % 2) for i in range(5)])
    receiver.take()
    receiver.session.puback(3, NOW)
    receiver.session.pubrec(2, 0, NOW)

    receiver.connect(V5)

    again = [sent(b"0", 1, 1, dup=True), sent(b"3", 2, 4, dup=True), sent(b"4", 1, 5, dup=True)]
    assert [again[0], Ack(PUBREL, 2), *again[1:]] == receiver.take()
    assert receiver.session.ready()


def test_what_is_sent_again_is_counted_again() -> None:
    """The traffic of a flapping client would not show in the counters."""
    receiver = Receiver(expiry=60).connect().offer(message(b"abc", 1), message(b"de", 2))
    receiver.session.pubrec(2, 0, NOW)
    receiver.connect()

    counters = receiver.counters
    assert (3, 8, 2) == (counters.publishes_sent, counters.publish_bytes_sent, counters.answers_sent)


def test_a_resume_respects_a_smaller_window() -> None:
    """A client that comes back with a smaller receive maximum would be sent more than it takes."""
    receiver = Receiver(expiry=60).connect().offer(*[message(b"%d" % i, 1) for i in range(4)])
    receiver.connect(window=1)
    assert [sent(b"0", 1, 1, dup=True)] == receiver.take()
    assert not receiver.session.ready()

    receiver.offer(message(b"new", 1))
    assert [] == receiver.take()

    receiver.session.puback(1, NOW)
    assert [sent(b"1", 1, 2, dup=True)] == receiver.take()
    receiver.session.puback(2, NOW)
    assert [b"2", b"3", b"new"] == receiver.acknowledge()


def test_an_acknowledged_qos_2_message_lets_a_resume_go_on() -> None:
    """A resume would stop behind a QoS 2 message for good."""
    receiver = Receiver(expiry=60).connect().offer(*[message(b"%d" % i, 2) for i in range(3)])
    receiver.connect(window=1)
    receiver.take()

    assert receiver.session.pubrec(1, 0x83, NOW)
    assert [sent(b"1", 2, 2, dup=True)] == receiver.take()
    receiver.session.pubrec(2, 0, NOW)
    assert [Ack(PUBREL, 2)] == receiver.take()
    assert receiver.session.pubcomp(2, NOW)
    assert [sent(b"2", 2, 3, dup=True)] == receiver.take()


def test_a_connection_that_ends_in_a_resume_loses_nothing() -> None:
    """A client that flaps would lose what had not been sent again yet, or get it out of order."""
    receiver = Receiver(expiry=60).connect().offer(*[message(b"%d" % i, 1) for i in range(5)])
    receiver.connect(window=2)
    receiver.session.puback(1, NOW)  # 2 and 3 are out again, 4 and 5 are not
    receiver.connect(window=1)
    receiver.session.detach()

    receiver.connect()

    assert [sent(b"%d" % i, 1, i + 1, dup=True) for i in range(1, 5)] == receiver.take()


def test_a_connection_that_ends_before_anything_was_sent_again_loses_nothing() -> None:
    """What is in flight would be lost when a connection is slow from its first byte."""
    receiver = Receiver(expiry=60).connect().offer(message(b"a", 1))
    receiver.connect(window=0)
    assert [] == receiver.take()
    assert 1 == receiver.session.inflight()

    assert [b"a"] == receiver.connect().payloads()


def test_a_resume_stops_when_the_outbox_is_full_and_goes_on_when_it_drains() -> None:
    """A large window would be written at once to a reader that takes nothing."""
    receiver = Receiver(expiry=60).connect().offer(*[message(b"x" * 100, 1) for _ in range(10)])
    receiver.connect(high=250)

    assert 300 < receiver.outbox.size < 400
    assert not receiver.session.writable()
    assert list(range(1, 11)) == ids(receiver)


def test_what_is_new_does_not_overtake_what_is_sent_again() -> None:
    """Messages would come out of order when a reader pauses in the middle of a resume."""
    receiver = Receiver(expiry=60).connect().offer(*[message(b"x" * 100, 1) for _ in range(10)])
    receiver.connect(high=250)
    receiver.outbox.sent(len(receiver.outbox.gather()), 0.0)  # writable again, and the session was not told yet
    assert not receiver.session.ready()
    receiver.offer(message(b"new", 1))
    receiver.session.pump(NOW)

    assert [*range(4, 11), 11] == ids(receiver)


def test_what_became_too_large_is_not_sent_again() -> None:
    """A client that comes back and takes less would be sent more than its maximum packet size [MQTT-3.1.2-24]."""
    receiver = Receiver(expiry=60).connect(V5).offer(message(b"x" * 100, 1), message(b"y", 1), message(b"z" * 100, 2))
    receiver.session.pubrec(3, 0, NOW)

    receiver.connect(V5, maximum_packet=50)

    assert [sent(b"y", 1, 2, dup=True), Ack(PUBREL, 3)] == receiver.take()
    assert 1 == receiver.dropped(DropReason.TOO_LARGE)
    assert 2 == receiver.session.inflight()


def test_what_just_fits_is_sent_again() -> None:
    """A message that the client takes would be lost by a reconnect."""
    large = message(b"x" * 100, 1)
    receiver = Receiver(expiry=60).connect(V5).offer(large)

    receiver.connect(V5, maximum_packet=large.length(V5, NOW))

    assert [sent(b"x" * 100, 1, 1, dup=True)] == receiver.take()


def test_what_is_released_counts_no_bytes() -> None:
    """Each reconnect would fill the window of a client that does not finish its QoS 2 exchanges."""
    assert 0 == RELEASED.size


def test_a_session_that_ends_counts_what_the_client_did_not_get() -> None:
    """Messages would vanish without a reason, or some that arrived would count as lost."""
    receiver = Receiver(expiry=60).connect().offer(*[message(b"", 2) for _ in range(5)])
    receiver.session.pubrec(1, 0, NOW)
    receiver.connect(window=2)  # 1 is released and 2 is out again, 3 to 5 are not
    receiver.offer(message(b"", 1))
    receiver.session.receive(7)

    assert 5 == receiver.session.end()

    assert 5 == receiver.dropped(DropReason.SESSION_ENDED)
    assert (0, 0, 0) == (receiver.session.inflight(), receiver.session.waiting(), receiver.session.unreleased())
    assert receiver.session.ended and receiver.session.outbox is None


def test_an_idle_session_ends_without_a_drop() -> None:
    """Every client that leaves would be counted as a loss."""
    receiver = Receiver().connect()

    assert 0 == receiver.session.end()
    assert 0 == receiver.dropped(DropReason.SESSION_ENDED)


def test_an_ended_session_takes_nothing() -> None:
    """A delivery that was under way would fill a session that nobody will read."""
    receiver = Receiver(expiry=60)
    receiver.session.end()
    receiver.offer(message(b"", 1))

    assert 0 == receiver.session.waiting()
    assert 1 == receiver.dropped(DropReason.SESSION_ENDED)
    assert 1 == receiver.counters.publishes_dropped
