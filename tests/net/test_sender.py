# The sender: one send for each stream, and streams with much to send behind the others.
from collections.abc import Callable

from broker.mqtt.packets import PingReq, PingResp, Publish, Subscribe, Wanted
from broker.net.loop import SLICE
from broker.net.sender import BULK, LEAST, SENDS_BETWEEN_BULK
from tests.inprocess import Broker, Client

Brokers = Callable[..., Broker]

STEP = SLICE / 4  # so that a slice has room for a few looks at the clock


def turn(broker: Broker, *clients: Client) -> float:
    """One slice, after which *clients* read."""
    wait = broker.loop.turn()
    for client in clients:
        client.pull()
    return wait


def test_what_is_written_in_a_slice_is_sent_at_once(brokers: Brokers) -> None:
    """Each packet would cost a system call: a hundred answers come in one piece."""
    broker = brokers()
    client = broker.connect("me")
    client.send(*[PingReq() for _ in range(100)])
    client.reading = False
    broker.settle()

    assert b"\xd0\0" * 100 == client.socket.recv(65536)


def subscribe(client: Client, topic: bytes) -> None:
    client.send(Subscribe(1, [Wanted(topic, 0)]))
    client.receive()


def subscribers(broker: Broker, topic: bytes, count: int) -> list[Client]:
    clients = [broker.connect(f"{topic.decode()}{n}") for n in range(count)]
    for client in clients:
        subscribe(client, topic)
    return clients


def test_a_few_sends_follow_one_that_took_all_the_time(brokers: Brokers) -> None:
    """Who is woken by the first may take the processor, and the next ones would leave a pass of trio's later."""
    broker = brokers()
    readers = subscribers(broker, b"little", 2 * LEAST)
    broker.connect("publisher").send(Publish(b"little", b""))
    broker.clock.step = SLICE
    while not broker.counters.publishes_received:
        turn(broker)
    for reader in readers:
        reader.pull()

    assert LEAST == sum(len(reader.inbox) for reader in readers)
    broker.clock.step = 0.0
    assert all([Publish(b"little", b"")] == reader.receive() for reader in readers)


def test_streams_with_little_to_send_do_not_wait_for_those_with_much(brokers: Brokers) -> None:
    """Beside a flood to two hundred readers every other message would be sent behind megabytes."""
    broker = brokers()
    readers = [broker.connect(f"reader{n}") for n in range(40)]
    for reader in readers:
        subscribe(reader, b"much")
    modest, flood = broker.connect("modest"), broker.connect("flood")
    flood.send(Publish(b"much", bytes(BULK)))
    broker.clock.step = STEP
    while not broker.counters.publishes_received:
        turn(broker)
    modest.send(PingReq())
    turn(broker, modest, *readers)
    served = sum(len(reader.inbox) for reader in readers)

    assert [PingResp()] == modest.inbox
    assert served < len(readers) / 2
    broker.clock.step = 0.0
    broker.settle()
    assert all([Publish(b"much", bytes(BULK))] == reader.receive() for reader in readers)


def test_a_stream_with_much_to_send_is_sent_to_beside_any_number_with_little(brokers: Brokers) -> None:
    """A stream with much to send would get nothing as long as others always have a little."""
    broker = brokers()
    reader, publisher = broker.connect("reader"), broker.connect("publisher")
    subscribe(reader, b"much")
    subscribers(broker, b"little", 4 * SENDS_BETWEEN_BULK)
    publisher.send(Publish(b"much", bytes(BULK)))
    broker.clock.step = STEP / 2
    for _ in range(20):
        publisher.send(Publish(b"little", b""))
        turn(broker, reader)
        assert broker.reactor.dirty.count

    assert [Publish(b"much", bytes(BULK))] == reader.inbox
