# Rounds: fairness among the ready streams, unauthenticated streams behind clients, and reading to the end.
import socket
from collections.abc import Callable

from broker.config.schema import Config, Delivery, Limits
from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, V311, ConnAck, Connect, Disconnect, PingReq, PingResp, Publish
from broker.net.loop import EVENTS, SLICE
from broker.net.rounds import UNAUTHENTICATED_AT_ONCE
from tests.inprocess import Broker, Client
from tests.protocol.talk import push

Brokers = Callable[..., Broker]

HIGH = 16 * 1024
SMALL = Delivery(high_watermark=HIGH, low_watermark=HIGH // 2)
ACKED = encode(Publish(b"t", b"", 1, packet_id=1), V311)
STEP = SLICE / 4  # so that a slice has room for a few looks at the clock


def turn(broker: Broker, *clients: Client) -> float:
    """One slice, after which *clients* read."""
    wait = broker.loop.turn()
    for client in clients:
        client.pull()
    return wait


def test_a_flood_does_not_keep_others_waiting(brokers: Brokers) -> None:
    """One client that sends as fast as it can would have the worker for itself (DESIGN section 7, rule 1)."""
    broker = brokers()
    flood, other = broker.connect("flood"), broker.connect("other")
    broker.settle()
    flood.send_bytes(ACKED * 9000)
    other.send(PingReq())
    broker.clock.step = STEP
    taken = broker.counters
    turn(broker, other)

    assert [PingResp()] == other.inbox
    assert 0 < taken.publishes_received < 9000
    broker.clock.step = 0.0
    broker.settle()
    assert 9000 == taken.publishes_received


def test_floods_share_the_worker_equally(brokers: Brokers) -> None:
    """Of two clients that send as fast as they can, the first would be served and the second wait."""
    broker = brokers(Config(limits=Limits(receive_maximum=65535)))
    floods = [broker.connect(f"flood{n}") for n in range(4)]
    for client in floods:
        client.send_bytes(ACKED * 8000)
    broker.clock.step = STEP
    for _ in range(6):  # the first read of each is a small one
        turn(broker, *floods)
    done = [len(client.inbox) for client in floods]

    assert min(done) > 0
    assert max(done) < 8000
    assert max(done) <= 2 * min(done)


def test_a_client_that_closes_after_a_silence_does_not_count_as_waiting_all_that_time(brokers: Brokers) -> None:
    """A client that closes its connection would raise the overload level, as if it had waited for a minute."""
    broker = brokers()
    clients = [broker.connect(f"c{n}") for n in range(3)]
    broker.advance(60.0)
    for client in clients:
        client.send_bytes(encode(PingReq(), V311))
        client.socket.shutdown(socket.SHUT_WR)
    broker.clock.step = STEP
    turn(broker, *clients)

    assert 0.0 < broker.reactor.take_lag() < 1.0


def test_input_that_waits_for_its_turn_is_known_to_be_unread(brokers: Brokers) -> None:
    """What clients acknowledge would count as late where their worker is behind (`store.hold`)."""
    broker = brokers()
    clients = [broker.connect(f"c{n}") for n in range(20)]
    broker.advance(60.0)
    began = broker.clock()
    for client in clients:
        client.send(PingReq())
    broker.clock.step = STEP
    for _ in range(3):
        turn(broker, *clients)
    assert broker.reactor.ready.count
    assert began <= broker.reactor.read_up_to() <= began + SLICE < broker.clock() - SLICE
    while broker.reactor.ready.count:
        turn(broker, *clients)

    assert broker.clock() - 2 * SLICE < broker.reactor.read_up_to() <= broker.clock()


def test_a_client_that_used_more_than_its_share_pays_in_the_next_rounds(brokers: Brokers) -> None:
    """A client with huge packets would get many times what others get."""
    broker = brokers(Config(limits=Limits(packet_bytes=8 << 20)))
    client = broker.connect("me")
    (stream,) = broker.streams()
    client.send(Publish(b"t", bytes(6 << 20)))
    client.send(PingReq())
    broker.clock.step = SLICE  # one round a slice
    while not broker.counters.publishes_received:
        turn(broker, client)
    debts = [stream.debt]
    while stream.debt:
        assert [] == client.inbox
        turn(broker, client)
        debts.append(stream.debt)
    broker.clock.step = 0.0
    broker.settle()

    assert len(debts) > 2
    assert debts == sorted(debts, reverse=True)
    assert [PingResp()] == client.inbox


def unauthenticated(broker: Broker, count: int) -> list[Client]:
    """Connections that have sent CONNECT, which is not served yet."""
    clients = [broker.open() for _ in range(count)]
    for number, client in enumerate(clients):
        client.send(Connect(V311, f"stranger{number}"))
    return clients


def test_unauthenticated_streams_do_not_keep_clients_waiting(brokers: Brokers) -> None:
    """When a fleet comes back, or thousands begin TLS handshakes, everybody else would wait for a round of them all."""
    broker = brokers()
    member = broker.connect("member")
    broker.settle()
    many = unauthenticated(broker, 100)
    member.send(PingReq())
    broker.clock.step = STEP
    turn(broker, member, *many)

    assert [PingResp()] == member.inbox
    assert broker.connected < 1 + len(many)
    broker.clock.step = 0.0
    broker.settle()
    assert all(client.inbox for client in many)


def test_unauthenticated_streams_do_not_hide_clients(brokers: Brokers) -> None:
    """The kernel would report the same unauthenticated streams with each poll, and clients only behind them all."""
    broker = brokers(connections=2 * EVENTS)
    member = broker.connect("member")
    many = unauthenticated(broker, 2 * EVENTS - 1)
    broker.clock.step = SLICE / 100
    for _ in range(3):
        broker.loop.turn()  # all of them are found, and few are served
    member.send(PingReq())
    broker.clock.step = SLICE  # one poll
    turn(broker, member)

    assert [PingResp()] == member.inbox
    assert broker.connected < len(many) / 2
    broker.clock.step = 0.0
    broker.settle()
    assert all(client.inbox for client in many)


def test_a_connect_that_comes_in_parts_is_read(brokers: Brokers) -> None:
    """A CONNECT that is larger than one read, or comes byte by byte, would lie unread for ever."""
    broker = brokers()
    client = broker.open(V5)
    connect = encode(Connect(V5, "me", user_name="u" * 60_000, password=b"p" * 60_000), V5)
    client.send_bytes(connect[:1])
    broker.settle()
    client.send_bytes(connect[1:])

    assert [ConnAck] == [type(packet) for packet in client.receive()]


def test_busy_clients_do_not_keep_unauthenticated_streams_out(brokers: Brokers) -> None:
    """Beside clients that send as fast as they can nobody could connect any more."""
    broker = brokers()
    floods = [broker.connect(f"flood{n}") for n in range(4)]
    broker.settle()
    many = unauthenticated(broker, 3 * UNAUTHENTICATED_AT_ONCE)
    for flood in floods:
        flood.send_bytes(ACKED * 9000)
    broker.clock.step = STEP
    seen = []
    for _ in range(3):
        turn(broker, *floods, *many)
        seen.append(broker.connected - len(floods))

    assert broker.counters.publishes_received < 4 * 9000
    assert [UNAUTHENTICATED_AT_ONCE, 2 * UNAUTHENTICATED_AT_ONCE, 3 * UNAUTHENTICATED_AT_ONCE] == seen


def test_the_bytes_of_both_directions_are_counted(brokers: Brokers) -> None:
    """$SYS/broker/bytes/... would be wrong."""
    broker = brokers()
    reactor = broker.reactor
    client = broker.connect("me")
    received, sent = reactor.bytes_received, reactor.bytes_sent
    client.send(PingReq(), Publish(b"t", bytes(300)))
    client.receive()

    assert (2 + 3 + 3 + 300, 2) == (reactor.bytes_received - received, reactor.bytes_sent - sent)


def test_the_input_budget_is_given_back_however_a_connection_ends(brokers: Brokers) -> None:
    """Reads would become small for good, or never."""
    broker = brokers(Config(delivery=SMALL))
    for end in (b"\xff\0" + bytes(3000), encode(Disconnect(), V311) + bytes(3000), b"\x30\x7fhalf"):
        client = broker.connect("me")
        client.send_bytes(encode(PingReq(), V311) * 500 + end)
        client.receive()
        client.drop()
    held = broker.connect("held")
    held.reading = False
    push(held, ACKED)
    assert broker.reactor.input.used > 0
    held.drop()

    assert 0 == broker.reactor.input.used


def test_a_large_packet_in_pieces_is_served_when_it_is_complete(brokers: Brokers) -> None:
    """A packet that is larger than one read, or cut at any byte, would be lost or split."""
    broker = brokers()
    client = broker.connect("me", V5)
    packets = encode(Publish(b"t", bytes(200_000), 1, packet_id=1), V5) + encode(PingReq(), V5)
    for start, stop in ((0, 1), (1, 2), (2, 3), (3, 100_000), (100_000, len(packets) - 1)):
        client.send_bytes(packets[start:stop])
        assert [] == [packet for packet in client.receive() if isinstance(packet, PingResp)]
    client.send_bytes(packets[-1:])

    assert [PingResp()] == client.receive()[-1:]
    assert 200_000 == broker.counters.publish_bytes_received
