# What was sent and is not acknowledged in time: it is sent again, or given up.
from broker.mqtt.packets import PUBREL, V311, Ack, Publish
from broker.reasons import DropReason
from broker.session.queue import INFLIGHT, MessageBudget
from broker.session.skipping import give_up, send_again
from tests.session.receiver import NOW, PLENTY, Receiver, message, sent


def test_what_is_not_acknowledged_is_sent_again_in_its_order() -> None:
    """The client would take it for new messages, or never get what it has lost."""
    receiver = Receiver(expiry=60).connect(V311)
    receiver.offer(message(b"1", 1), message(b"2", 2), message(b"3", 1), message(b"4", 2))
    receiver.take()
    assert receiver.session.puback(1, NOW)
    assert receiver.session.pubrec(2, 0, NOW)
    receiver.take()

    assert 3 == send_again(receiver.session, NOW)
    assert [Ack(PUBREL, 2), sent(b"3", 1, 3, dup=True), sent(b"4", 2, 4, dup=True)] == receiver.take()


def test_what_the_client_has_not_taken_yet_is_not_sent_a_third_time() -> None:
    """A client that reads slowly would never come to the end of it."""
    receiver = Receiver(expiry=60).connect(V311, high=64)
    receiver.offer(message(bytes(100), 1), message(bytes(100), 1))
    receiver.take()
    assert 2 == send_again(receiver.session, NOW)
    assert 0 == send_again(receiver.session, NOW)

    assert [1, 2] == [packet.packet_id for packet in receiver.take() if isinstance(packet, Publish)]


def test_what_is_given_up_is_counted_and_leaves_the_memory() -> None:
    """It would be kept for ever; or at QoS 2 its packet id be used for another message, which the client drops."""
    budget = MessageBudget(PLENTY)
    receiver = Receiver(expiry=60, budget=budget).connect(V311)
    receiver.offer(message(b"1", 1), message(b"2", 2), message(b"3", 2))
    receiver.take()
    assert receiver.session.pubrec(2, 0, NOW)
    receiver.take()

    assert 2 == give_up(receiver.session, DropReason.PACK_TIMEOUT, NOW)
    assert 2 == receiver.dropped(DropReason.PACK_TIMEOUT)
    assert [Ack(PUBREL, 3)] == receiver.take()
    assert 2 * INFLIGHT == budget.used
    assert not receiver.session.puback(1, NOW)
    assert 0 == give_up(receiver.session, DropReason.PACK_TIMEOUT, NOW), "only the client can free a packet id"
    for packet_id in (2, 3):
        assert receiver.session.pubcomp(packet_id, NOW)
    assert 0 == budget.used == receiver.session.inflight()
