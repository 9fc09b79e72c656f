from broker.mqtt.packets import V5, Ack, Publish
from broker.reasons import DropReason
from broker.session.queue import MessageBudget
from tests.session.receiver import NOW, PLENTY, Receiver, message


def mine(topic: bytes) -> bool:
    return topic != b"secret"


def test_what_may_not_be_read_any_more_is_neither_sent_nor_sent_again() -> None:
    """Who comes back under another name would get what waited for the former."""
    budget = MessageBudget(PLENTY)
    client = Receiver(expiry=100, budget=budget).connect(V5, window=2)
    for number, topic in enumerate((b"t", b"secret", b"t", b"secret", b"t")):
        client.offer(message(b"%d" % number, 1, topic=topic))
    assert [b"0", b"1"] == client.payloads()
    client.session.detach()

    assert 2 == client.session.withhold(mine, NOW)
    assert 2 == client.dropped(DropReason.MAY_NOT_READ)
    assert (2, 2) == (client.session.waiting(), budget.messages)
    client.connect(V5)
    assert [b"0", b"2", b"4"] == client.acknowledge()
    assert (0, 0, 0) == (client.session.inflight(), budget.messages, budget.used)


def test_an_exchange_is_finished_whatever_it_was_about() -> None:
    """A QoS 2 message that was received would stay half acknowledged for ever."""
    client = Receiver(expiry=100).connect(V5)
    client.offer(message(b"x", 2, topic=b"secret"))
    (published,) = client.take()
    assert isinstance(published, Publish)
    client.session.pubrec(published.packet_id, 0, 1000.0)
    client.take()
    client.session.detach()

    assert 0 == client.session.withhold(lambda topic: False, NOW)
    client.connect(V5)
    (again,) = client.take()
    assert isinstance(again, Ack)
    assert client.session.pubcomp(published.packet_id, 1000.0)


def test_a_session_of_which_nothing_is_left_has_its_whole_window() -> None:
    """What was withheld would count against what may be sent, for ever."""
    client = Receiver(expiry=100, queue_bytes=100).connect(V5)
    for _ in range(3):
        client.offer(message(b"x" * 60, 1, topic=b"secret"))
    client.session.detach()
    client.session.withhold(mine, NOW)
    client.connect(V5)

    assert client.session.ready()
    client.take()
    client.offer(message(b"y", 1))
    assert [b"y"] == client.payloads()
