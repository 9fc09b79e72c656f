# Slices and rounds, the end of a connection, and what the reactor is told by the kernel.
import select
import socket
import time
from collections.abc import Callable
from functools import partial

import pytest

from broker.config.schema import Config, Delivery, Limits
from broker.delivery.flushing import PAUSE
from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, V311, ConnAck, Connect, Disconnect, PingReq, PingResp, Publish, Subscribe, Wanted
from broker.net.loop import EVENTS, SLICE
from broker.net.reactor import CALLS_AT_ONCE, LINGER
from broker.net.rounds import UNAUTHENTICATED_AT_ONCE
from broker.net.sender import BULK, SENDS_BETWEEN_BULK
from broker.reasons import CloseReason
from tests.inprocess import Broker, Client
from tests.protocol.talk import acks, closed, narrow, push

Brokers = Callable[..., Broker]

PINGS = 30_000
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


# Rounds.


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


def test_floods_share_the_worker_alike(brokers: Brokers) -> None:
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


def test_last_words_after_a_silence_have_not_waited_since_before_it(brokers: Brokers) -> None:
    """One client that says good-bye to a busy worker would raise the level, as if it had waited for a minute."""
    broker = brokers()
    clients = [broker.connect(f"c{n}") for n in range(3)]
    broker.advance(60.0)
    for client in clients:
        client.send_bytes(encode(PingReq(), V311))
        client.socket.shutdown(socket.SHUT_WR)
    broker.clock.step = STEP
    turn(broker, *clients)

    assert 0.0 < broker.reactor.take_lag() < 1.0


def test_who_used_more_than_its_share_pays_in_the_next_rounds(brokers: Brokers) -> None:
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


def strangers(broker: Broker, count: int) -> list[Client]:
    """Connections that have said who they are, and have not been let in yet."""
    clients = [broker.open() for _ in range(count)]
    for number, client in enumerate(clients):
        client.send(Connect(V311, f"stranger{number}"))
    return clients


def test_strangers_do_not_keep_those_who_are_in_waiting(brokers: Brokers) -> None:
    """When a fleet comes back, or thousands begin TLS handshakes, everybody else would wait for a round of them all."""
    broker = brokers()
    member = broker.connect("member")
    broker.settle()
    many = strangers(broker, 100)
    member.send(PingReq())
    broker.clock.step = STEP
    turn(broker, member, *many)

    assert [PingResp()] == member.inbox
    assert broker.connected < 1 + len(many)
    broker.clock.step = 0.0
    broker.settle()
    assert all(client.inbox for client in many)


def test_strangers_do_not_hide_who_is_in(brokers: Brokers) -> None:
    """The kernel would tell of the same strangers with each poll, and of who is in only behind them all."""
    broker = brokers(connections=2 * EVENTS)
    member = broker.connect("member")
    many = strangers(broker, 2 * EVENTS - 1)
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


def test_what_a_stranger_has_sent_in_parts_is_read(brokers: Brokers) -> None:
    """A CONNECT that is larger than one read, or comes byte by byte, would lie unread for ever."""
    broker = brokers()
    client = broker.open(V5)
    connect = encode(Connect(V5, "me", user_name="u" * 60_000, password=b"p" * 60_000), V5)
    client.send_bytes(connect[:1])
    broker.settle()
    client.send_bytes(connect[1:])

    assert [ConnAck] == [type(packet) for packet in client.receive()]


def test_who_is_in_does_not_keep_strangers_out(brokers: Brokers) -> None:
    """Beside clients that send as fast as they can nobody could connect any more."""
    broker = brokers()
    floods = [broker.connect(f"flood{n}") for n in range(4)]
    broker.settle()
    many = strangers(broker, 3 * UNAUTHENTICATED_AT_ONCE)
    for flood in floods:
        flood.send_bytes(ACKED * 9000)
    broker.clock.step = STEP
    seen = []
    for _ in range(3):
        turn(broker, *floods, *many)
        seen.append(broker.connected - len(floods))

    assert broker.counters.publishes_received < 4 * 9000
    assert [UNAUTHENTICATED_AT_ONCE, 2 * UNAUTHENTICATED_AT_ONCE, 3 * UNAUTHENTICATED_AT_ONCE] == seen


def test_what_threads_have_done_comes_a_little_at_a_time(brokers: Brokers) -> None:
    """A thousand handshakes that took their step would be one long slice."""
    broker = brokers()
    broker.settle()
    done: list[int] = []
    for number in range(3 * CALLS_AT_ONCE):
        broker.reactor.call(partial(done.append, number))
    broker.clock.step = SLICE  # one look for events a slice
    turn(broker)

    assert list(range(CALLS_AT_ONCE)) == done
    broker.clock.step = 0.0
    broker.settle()
    assert list(range(3 * CALLS_AT_ONCE)) == done


def test_a_slice_ends_though_there_is_more_to_do(brokers: Brokers) -> None:
    """A busy worker would never give way to its other tasks: signals, $SYS, the drain."""
    broker = brokers()
    clients = [broker.connect(f"client{n}") for n in range(40)]
    broker.settle()
    for client in clients:
        client.send(PingReq())
    broker.clock.step = STEP
    began = broker.clock.now
    wait = turn(broker, *clients)
    answered = sum(len(client.inbox) for client in clients)

    assert 0.0 == wait
    assert broker.clock.now - began < 2 * SLICE
    assert answered < len(clients)
    broker.clock.step = 0.0
    broker.settle()
    assert all([PingResp()] == client.inbox for client in clients)
    assert SLICE / 2 < broker.loop.statistics.longest_slice < 2 * SLICE


def test_what_is_written_in_a_slice_leaves_in_one_send(brokers: Brokers) -> None:
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


def test_who_is_owed_little_does_not_wait_for_those_who_are_owed_much(brokers: Brokers) -> None:
    """Beside a flood to two hundred readers each message of the others would leave behind megabytes."""
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


def test_who_is_owed_much_gets_on_beside_any_number_that_are_owed_little(brokers: Brokers) -> None:
    """Who is owed much would get nothing as long as others never cease to be owed a little."""
    broker = brokers()
    reader, publisher = broker.connect("reader"), broker.connect("publisher")
    subscribe(reader, b"much")
    others = [broker.connect(f"other{n}") for n in range(4 * SENDS_BETWEEN_BULK)]
    publisher.send(Publish(b"much", bytes(BULK)))
    broker.clock.step = STEP / 2
    for _ in range(20):
        for other in others:
            other.send(PingReq())
        turn(broker, reader)
        assert broker.reactor.dirty.count

    assert [Publish(b"much", bytes(BULK))] == reader.inbox


def test_the_bytes_of_both_directions_are_counted(brokers: Brokers) -> None:
    """$SYS/broker/bytes/... would be wrong."""
    broker = brokers()
    reactor = broker.reactor
    client = broker.connect("me")
    received, sent = reactor.bytes_received, reactor.bytes_sent
    client.send(PingReq(), Publish(b"t", bytes(300)))
    client.receive()

    assert (2 + 3 + 3 + 300, 2) == (reactor.bytes_received - received, reactor.bytes_sent - sent)


# Input that waits.


def test_the_sum_of_unread_input_returns_to_nothing(brokers: Brokers) -> None:
    """Reads would become small for good, or never: whatever became of the connections that the bytes came from."""
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


def test_a_large_packet_in_pieces_is_taken_when_it_is_whole(brokers: Brokers) -> None:
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


# Ends.


def test_the_last_words_survive_what_the_client_still_sends(brokers: Brokers) -> None:
    """TCP answers bytes for a closed socket with a reset, which throws away all that is still on its way."""
    broker = brokers()
    client = broker.dial(broker.listen(), V5)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.send(Connect(V5, "me"))
    until(broker, client, lambda: len(client.inbox) == 1)
    client.reading = False
    client.send(*[PingReq()] * PINGS)
    until(broker, client, lambda: broker.counters.packets_received == 1 + PINGS)
    assert 0 == broker.outbound_budget.used  # the kernel has all of it, more than the client takes
    client.send_bytes(b"\xff\0")
    until(broker, client, lambda: bool(closed(broker)))
    client.send_bytes(bytes(10_000))
    broker.settle()
    client.reading = True
    until(broker, client, lambda: client.closed)

    assert 1 + PINGS + 1 == len(client.inbox)
    assert isinstance(client.inbox[-1], Disconnect)


def until(broker: Broker, client: Client, condition: Callable[[], bool]) -> None:
    """Let *broker* work until *condition*. TCP may take a moment even on one machine."""
    while not condition():
        reads = [client.socket.fileno()] if client.reading else []
        assert select.select([broker.loop.fileno(), *reads], [], [], 5.0)[0]
        broker.settle()


@pytest.mark.parametrize("version", [V311, V5])
def test_the_last_words_reach_a_client_that_is_still_sending(brokers: Brokers, version: int) -> None:
    """A close with unread input is a reset, and a reset eats what was sent before it: the reason would be lost."""
    broker = brokers()
    client = broker.connect("me", version)
    client.send(PingReq())
    client.send_bytes(b"\xff\0" + bytes(2_000_000))
    said = client.receive()

    assert [PingResp] + [Disconnect] * (version == V5) == [type(packet) for packet in said]
    assert client.closed


def test_a_peer_that_never_closes_is_not_waited_for(brokers: Brokers) -> None:
    """A client could keep our descriptor for ever by ignoring the end."""
    broker = brokers()
    client = broker.connect("me")
    client.send(Disconnect())
    client.receive()
    assert 1 == len(broker.streams())
    broker.advance(LINGER + 0.1)

    assert [] == broker.streams()


def test_a_peer_that_never_reads_is_not_waited_for(brokers: Brokers) -> None:
    """What a closed client is still owed would stay in memory."""
    broker = brokers(Config(delivery=SMALL))
    client = broker.connect("me")
    client.reading = False
    push(client, ACKED)
    broker.lifecycle.stop(broker.clock.now)
    broker.settle()
    assert broker.outbound_budget.used > 0
    broker.advance(LINGER + 0.1)

    assert [] == broker.streams()
    assert 0 == broker.outbound_budget.used


@pytest.mark.parametrize("stopped", [False, True])
def test_half_an_end_costs_no_time(brokers: Brokers, stopped: bool) -> None:
    """A client that we do not read and that shut its side would have the worker turn in circles until it goes."""
    broker = brokers(Config(delivery=SMALL))
    client = broker.connect("me")
    client.reading = False
    taken = push(client, ACKED)
    client.socket.shutdown(socket.SHUT_WR)
    broker.clock.step = STEP  # a slice that turns in circles ends, too
    if stopped:
        broker.lifecycle.stop(broker.clock.now)
    began = broker.clock.now
    broker.settle()
    assert broker.clock.now - began < LINGER / 10  # it came to rest by itself
    if not stopped:
        assert {} == closed(broker)
        client.socket.recv(65536)  # writable for a moment, and blocked again
        broker.settle()
    broker.clock.step = 0.0
    client.reading = True
    client.receive()

    assert client.closed
    if not stopped:
        assert {CloseReason.PEER_CLOSED: 1} == closed(broker)
        assert taken // len(ACKED) == broker.counters.publishes_received


def test_half_an_end_does_not_cut_off_the_answers(brokers: Brokers) -> None:
    """A client that says it all, shuts its side and then reads would miss what it asked for."""
    broker = brokers()
    client = broker.connect("me")
    client.send_bytes(ACKED * 3)
    client.socket.shutdown(socket.SHUT_WR)

    assert [1, 1, 1] == acks(client.receive(), 4)
    assert client.closed


def test_a_reset_ends_a_connection(brokers: Brokers) -> None:
    """A client that went without reading what it was sent would stay connected."""
    broker = brokers()
    client = broker.connect("me")
    client.reading = False
    client.send(PingReq())
    broker.settle()
    client.drop()

    assert {CloseReason.PEER_RESET: 1} == closed(broker)
    assert 0 == broker.connected


def test_a_descriptor_that_is_used_again_is_another_connection(brokers: Brokers) -> None:
    """What was meant for a client that went would be sent to one that came."""
    broker = brokers()
    former = broker.connect("former", properties={})
    fd = broker.streams()[0].fd
    former.send(*[PingReq() for _ in range(50)])
    former.drop()
    later = broker.connect("later")

    assert [fd] == [stream.fd for stream in broker.streams()]
    assert [] == later.receive()


def test_who_is_asked_to_wake_returns_at_once(brokers: Brokers) -> None:
    """What other tasks publish, $SYS or a signal's good-bye, would wait for the next client to say something."""
    broker = brokers()
    client = broker.connect("me")
    narrow(broker)
    broker.settle()
    assert turn(broker) > 0.05
    (stream,) = broker.streams()
    stream.outbox.write(b"\xd0\0")
    broker.reactor.wake()
    turn(broker, client)

    assert [PingResp()] == client.inbox


# Messages that wait for more.


def test_while_messages_wait_for_more_several_come_with_one_look(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop would go round for each message of many quiet publishers, though their reader gets them together."""
    broker = brokers()
    reader = broker.connect("reader")
    reader.send(Subscribe(1, [Wanted(b"t", 0)]))
    publishers = [broker.connect(f"p{n}") for n in range(20)]
    clock = broker.clock
    taken = broker.counters
    sent = 0
    slept = []

    def publish() -> None:
        nonlocal sent
        clock.now += 0.0002
        publishers[sent % len(publishers)].send(Publish(b"t", b"%d" % sent, 0))
        sent += 1

    def sleep(seconds: float) -> None:
        assert sent == taken.publishes_received  # else there would be something to do
        slept.append(seconds)
        for _ in range(5):
            publish()

    monkeypatch.setattr(time, "sleep", sleep)
    clock.step = 0.00002  # which makes it a fifth of the time or so that it is busy
    for _ in range(500):
        publish()
        broker.loop.turn()
    clock.step = 0.0
    broker.advance(0.1)

    assert len(slept) > 100
    assert max(slept) <= PAUSE
    assert [b"%d" % n for n in range(sent)] == [
        packet.payload for packet in reader.inbox if isinstance(packet, Publish)
    ]
