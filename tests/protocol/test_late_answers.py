# Publishes whose receivers are not done at once: their answers leave later, in order.
#
# The late receiver of these tests is a fan-out in pages. The test lifts the pause of its publisher, so that the next
# publishes of the same connection are taken while it is under way, as they will be beside a durable queue.
from collections.abc import Callable

from broker.config.schema import Config, Limits
from broker.mqtt.packets import PUBACK, PUBREC, Ack, Packet, PingReq, PingResp, Publish, Subscribe, Wanted
from broker.net.loop import SLICE
from broker.net.pauses import Pause
from broker.net.stream import Stream
from broker.protocol.connection import Connection
from broker.routing.fanout import PAGE
from tests.inprocess import Broker, Client
from tests.protocol.talk import acks, closed, messages, payloads, subscribe

Brokers = Callable[..., Broker]


def crowd(broker: Broker) -> None:
    """One client that is many pages of receivers of the topic "crowd"."""
    client = broker.connect("crowd")
    for page in range(8):
        subscribe(client, *[f"$share/{page}-{n}/crowd" for n in range(PAGE)])


def late(packet_id: int, qos: int = 1) -> Publish:
    return Publish(b"crowd", b"late", qos, packet_id=packet_id)


def stream_of(broker: Broker, client_id: str) -> Stream:
    (found,) = [
        stream
        for stream in broker.reactor.streams()
        if isinstance(stream, Connection) and stream.session is not None and stream.session.client_id == client_id
    ]
    return found


def begin(broker: Broker, publisher: Client, *packets: Packet) -> None:
    """Send *packets*, the first of them a late one, and have all of them taken before the late one is done."""
    stream = stream_of(broker, "publisher")
    publisher.send(*packets)
    broker.clock.step = SLICE  # a page of a fan-out and no more in each slice
    wanted = broker.counters.publishes_received + len(messages(packets))
    while broker.counters.publishes_received < wanted and not stream.paused & Pause.ANSWERS:
        broker.loop.turn()
        broker.reactor.resume(stream, Pause.FANOUT)
    publisher.pull()


def finish(broker: Broker) -> None:
    broker.clock.step = 0.0
    broker.settle()


def test_answers_wait_for_those_before_them(brokers: Brokers) -> None:
    """A PUBACK overtakes that of an earlier publish [MQTT-4.6.0-2], [MQTT-4.6.0-3]."""
    broker = brokers()
    crowd(broker)
    publisher, other = broker.connect("publisher"), broker.connect("other")
    begin(broker, publisher, late(1), Publish(b"t", b"", 1, packet_id=2), Publish(b"t", b"", 2, packet_id=3))
    other.send(Publish(b"t", b"", 1, packet_id=1))
    broker.loop.turn()
    other.pull()
    publisher.pull()

    assert [Ack(PUBACK, 1)] == other.inbox
    assert [] == publisher.inbox
    finish(broker)
    publisher.send(Publish(b"t", b"", 1, packet_id=4))
    assert [Ack(PUBACK, 1), Ack(PUBACK, 2), Ack(PUBREC, 3), Ack(PUBACK, 4)] == publisher.receive()


def test_a_duplicate_is_answered_behind_what_it_repeats(brokers: Brokers) -> None:
    """A QoS 2 message that is sent again is acknowledged before its receivers are done with it."""
    broker = brokers()
    crowd(broker)
    publisher = broker.connect("publisher")
    begin(broker, publisher, late(1, 2), Publish(b"crowd", b"late", 2, dup=True, packet_id=1))

    assert [] == publisher.inbox
    finish(broker)
    assert [Ack(PUBREC, 1), Ack(PUBREC, 1)] == publisher.receive()


def test_a_publisher_that_leaves_is_not_answered(brokers: Brokers) -> None:
    """The answers are written to a closed connection, or to the next one of the client."""
    broker = brokers()
    crowd(broker)
    publisher = broker.connect("publisher")
    begin(broker, publisher, late(1), Publish(b"t", b"", 1, packet_id=2))
    publisher.socket.close()
    publisher.closed = True
    broker.loop.turn()
    assert 1 == len(closed(broker))
    later = broker.open()
    finish(broker)
    later = broker.connect("publisher")
    later.send(PingReq())

    assert [PingResp()] == later.receive()
    assert 0 == broker.outbound_budget.used


def test_a_publisher_with_too_many_late_answers_is_read_ahead_only(brokers: Brokers) -> None:
    """Answers pile up without a bound; or a client waits for an answer that waits for the client's acknowledgement."""
    broker = brokers(Config(limits=Limits(receive_maximum=3)))
    crowd(broker)
    publisher = broker.connect("publisher")
    publisher.send(Subscribe(1, [Wanted(b"mine", 1)]))
    publisher.receive()
    mine = [Publish(b"mine", b"%d" % n, 1, packet_id=n) for n in range(2, 6)]
    begin(broker, publisher, late(1), *mine, PingReq())
    stream = stream_of(broker, "publisher")
    assert Pause.ANSWERS == stream.paused & Pause.ANSWERS
    assert [b"2", b"3"] == payloads(publisher.inbox)
    assert PingResp() == publisher.inbox[-1]
    publisher.inbox.clear()
    publisher.send(Ack(PUBACK, 1), PingReq())
    for _ in range(3):
        broker.loop.turn()
    publisher.pull()

    assert [PingResp()] == publisher.inbox
    session = broker.store.find("publisher")
    assert session is not None and 1 == session.inflight()
    finish(broker)
    publisher.inbox.remove(PingResp())
    assert [1, 2, 3, 4, 5] == acks(publisher.inbox, PUBACK)
    assert [b"4", b"5"] == payloads(publisher.inbox)
    assert 0 == stream.paused
