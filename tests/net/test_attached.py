# Streams that are no clients': served by handlers of their own, ahead of clients, and held to nothing that clients are.
import socket
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from broker.config.schema import Config, Delivery, Limits
from broker.delivery.outbox import OutboundBudget, Outbox
from broker.mqtt.encode import encode
from broker.mqtt.packets import V311, PingReq, PingResp, Publish, Subscribe, Wanted
from broker.net.loop import SLICE
from broker.net.reactor import Reactor
from broker.net.rounds import READS
from broker.net.sender import BULK
from broker.net.stream import LARGE_READ, OPEN, Stream
from broker.net.transports.layer import Layer
from broker.net.unfinished_input import UnfinishedInput
from broker.reasons import CloseReason
from tests.inprocess import Broker

Brokers = Callable[..., Broker]

WORD = 4
ANY = 1 << 30
COSTLY = 2200  # units


class Words:
    """Takes words of four bytes, one at a time."""

    def __init__(self, broker: Broker) -> None:
        ours, self.theirs = socket.socketpair()
        ours.setblocking(False)
        self.theirs.settimeout(5)
        self.taken: list[bytes] = []
        self.events: list[str] = []
        self.on_word: Callable[[], None] = lambda: None
        self._reactor = broker.reactor
        outbox = Outbox(ours.fileno(), ANY, ANY >> 1, OutboundBudget(ANY), self._reactor.dirty)
        self.stream = Stream(ours, "peer", outbox)
        self._attach()

    def _attach(self) -> None:
        self._reactor.attach(self.stream, self)

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        stream.needs = WORD
        if stream.left < WORD:
            return 0
        self.taken.append(stream.input[stream.position : stream.position + WORD])
        stream.position += WORD
        stream.left -= WORD
        self.on_word()
        return 1

    def drained(self, stream: Stream, now: float) -> None:
        self.events.append("drained")

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        self.events.append(reason.label)
        self._reactor.destroy(stream)


@pytest.fixture
def broker(brokers: Brokers) -> Broker:
    made = brokers(Config(limits=Limits(receive_maximum=65535), delivery=Delivery(slow_consumer_timeout=1)))
    made.settle()
    return made


@pytest.fixture
def words(broker: Broker) -> Iterator[Words]:
    made = Words(broker)
    yield made
    made.theirs.close()


def test_all_complete_input_is_served_and_the_rest_waits(broker: Broker, words: Words) -> None:
    """A handler would be called for input it cannot use, or not for the input that is left."""
    words.theirs.sendall(b"one two thr")
    broker.settle()
    assert [b"one ", b"two "] == words.taken

    words.theirs.sendall(b"ee")
    broker.settle()
    assert [b"one ", b"two ", b"thre"] == words.taken


def test_it_is_served_ahead_of_clients(broker: Broker, words: Words) -> None:
    """What clients wait for would be served behind all that they themselves send."""
    floods = [broker.connect(f"flood{n}") for n in range(4)]
    broker.settle()
    for flood in floods:
        flood.send_bytes(encode(Publish(b"t", b"", 1, packet_id=1), V311) * 9000)
    counters = broker.counters
    before: list[int] = []
    words.on_word = lambda: before.append(counters.publishes_received)
    broker.clock.step = SLICE
    broker.loop.turn()
    words.theirs.sendall(b"word")
    taken = counters.publishes_received
    broker.loop.turn()

    assert [taken] == before


class Everything(Words):
    """Takes all input at once, for COSTLY units."""

    cost = COSTLY

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        self.taken.append(stream.input[stream.position : stream.position + stream.left])
        stream.position += stream.left
        stream.left = 0
        self.on_word()
        return self.cost


@pytest.fixture
def peer(broker: Broker) -> Iterator[Everything]:
    made = Everything(broker)
    yield made
    made.theirs.close()


def test_it_is_read_more_than_once_in_a_round_of_many(broker: Broker, peer: Everything) -> None:
    """What another worker has accepted would wait for as many rounds, each with all clients of this one."""
    peer.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * LARGE_READ)
    clients = [broker.connect(f"client{n}") for n in range(100)]  # 4 000 units of the round for each
    broker.settle()
    peer.theirs.sendall(bytes(3 * LARGE_READ))
    for client in clients:
        client.send(PingReq())
    broker.clock.step = SLICE  # so a turn has one round
    broker.loop.turn()

    assert [LARGE_READ] * 3 == [len(one) for one in peer.taken]


def test_a_peer_that_sends_as_fast_as_it_is_read_leaves_clients_their_share(broker: Broker, peer: Everything) -> None:
    """While a long reply of Redis arrives, which uses no units before its end, clients would not be served at all."""
    peer.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * LARGE_READ)
    much = bytes(LARGE_READ)
    peer.cost = 0
    peer.on_word = lambda: peer.theirs.sendall(much) if len(peer.taken) < 3 * READS else None
    client = broker.connect("me")
    broker.settle()
    peer.theirs.sendall(much)
    client.send(PingReq())
    broker.clock.step = SLICE  # so a turn has one round
    broker.loop.turn()
    client.pull()

    assert READS == len(peer.taken)
    assert [PingResp()] == client.inbox
    broker.clock.step = 0.0
    broker.settle()
    assert 3 * READS == len(peer.taken)


def test_much_output_is_sent_ahead_of_much_output_of_clients(broker: Broker, words: Words) -> None:
    """What another worker's clients wait for would be sent behind a flood to hundreds of readers here."""
    readers = [broker.connect(f"reader{n}") for n in range(40)]
    for reader in readers:
        reader.send(Subscribe(1, [Wanted(b"much", 0)]))
        reader.receive()
    broker.connect("publisher").send(Publish(b"much", bytes(BULK)))
    broker.clock.step = SLICE / 4  # a few sends in a slice
    while not broker.counters.publishes_received:
        broker.loop.turn()
    broker.loop.turn()  # now all of it is known to be much
    words.stream.outbox.first = True
    words.stream.outbox.write(bytes(BULK + 1))
    broker.loop.turn()

    assert BULK < len(words.theirs.recv(2 * BULK))


def test_a_handler_with_costly_input_leaves_clients_their_share(broker: Broker, words: Words) -> None:
    """While Redis answers the CONNECTs of a storm, connected clients would not be served at all."""
    clients = [broker.connect(f"{n}") for n in range(3)]
    broker.settle()
    words.theirs.sendall(b"word" * 100)
    for client in clients:
        client.send(PingReq())
    words.on_word = partial(pass_time, broker, SLICE)
    broker.loop.turn()
    for client in clients:
        client.pull()

    assert [[PingResp()]] * 3 == [client.inbox for client in clients]
    assert 0 < len(words.taken) < 10


def pass_time(broker: Broker, seconds: float) -> None:
    broker.clock.now += seconds


def test_a_busy_handler_leaves_clients_their_share(broker: Broker, words: Words) -> None:
    """A peer that sends much would take the worker for itself."""
    client = broker.connect("me")
    broker.settle()
    words.theirs.sendall(b"word" * 10_000)
    client.send(PingReq())
    broker.clock.step = SLICE / 4
    broker.loop.turn()
    client.pull()

    assert [PingResp()] == client.inbox
    assert 0 < len(words.taken) < 10_000
    broker.clock.step = 0.0
    broker.settle()
    assert 10_000 == len(words.taken)


@pytest.mark.parametrize("said", [b"", b"wor", b"word"])
def test_its_end_is_reported_once_after_its_input(broker: Broker, words: Words, said: bytes) -> None:
    """What a worker sent before it died would be lost, or its death go unnoticed."""
    words.theirs.sendall(said)
    words.theirs.close()
    broker.settle()

    assert ["peer_closed"] == words.events
    assert [b"word"][: len(said) // WORD] == words.taken


def test_a_peer_that_is_gone_is_reported_when_something_is_sent(broker: Broker, words: Words) -> None:
    """The handler would wait for an answer for ever."""
    words.theirs.close()
    words.stream.outbox.write(b"hello")
    broker.settle()

    assert 1 == len(words.events)


def test_a_drained_outbox_is_reported_to_the_handler(broker: Broker, words: Words) -> None:
    """A handler that waits for room in the outbox would wait for ever."""
    words.stream.outbox.high = words.stream.outbox.low = 1 << 20
    words.stream.outbox.write(bytes(8 << 20))
    broker.settle()
    assert not words.stream.outbox.writable
    assert [] == words.events

    received = 0
    while received < 8 << 20:
        received += len(words.theirs.recv(1 << 20))
        broker.settle()

    assert ["drained"] == words.events
    assert words.stream.outbox.writable


def test_it_does_not_count_as_a_client(broker: Broker, words: Words) -> None:
    """A worker that disconnects its clients would end its link first, and $SYS would count bytes between workers."""
    reactor = broker.reactor
    words.theirs.sendall(b"word")
    words.stream.outbox.write(b"hello")
    broker.settle()

    assert b"hello" == words.theirs.recv(100)
    assert [] == reactor.streams()
    assert (0, 0) == (reactor.bytes_received, reactor.bytes_sent)


def test_one_that_reads_nothing_is_not_a_slow_consumer(broker: Broker, words: Words) -> None:
    """Another worker that is stopped for a while would lose what it was sent."""
    words.stream.outbox.write(bytes(8 << 20))
    for _ in range(4):
        broker.settle()
        broker.advance(1)

    assert words.stream.state == OPEN


def test_one_that_reads_nothing_is_not_shed(broker: Broker, words: Words) -> None:
    """When the outboxes of clients are over their budget, another worker would lose what it was sent."""
    words.stream.outbox.write(bytes(8 << 20))
    broker.settle()
    budget = broker.outbound_budget
    budget.used += budget.limit + 1
    broker.settle()

    assert words.stream.state == OPEN
    budget.used -= budget.limit + 1


def test_one_with_an_incomplete_packet_is_not_shed(broker: Broker, words: Words) -> None:
    """When clients send large packets slowly, another worker would be disconnected."""
    words.stream.needs = 1 << 20
    words.theirs.sendall(bytes(1000))
    broker.settle()
    reactor = broker.reactor

    assert UnfinishedInput().largest(reactor.table, broker.clock.now) is None


def test_it_ends_with_the_worker() -> None:
    """Its peer would wait for a worker that is gone."""
    broker = Broker()
    words = Words(broker)
    broker.loop.shut_down()

    assert b"" == words.theirs.recv(1)
    words.theirs.close()


class Tape(Layer):  # a compiled Layer has compiled subclasses only
    """The layer of a virtual stream: gives what it is fed, and takes what it has room for."""

    def __init__(self) -> None:
        super().__init__()
        self.fed: list[bytes] = []
        self.taken = b""
        self.room = ANY

    def feed(self, reactor: Reactor, stream: Stream, data: bytes) -> None:
        self.fed.append(data)
        self.more = True
        reactor.enqueue_first(stream)

    def recv(self, size: int) -> bytes:
        self.more = len(self.fed) > 1
        if not self.fed:
            raise BlockingIOError
        return self.fed.pop(0)

    def send(self, data: bytes | memoryview) -> int:
        count = min(self.room, len(data))
        self.taken += data[:count]
        self.room -= count
        return count

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


class VirtualWords(Words):
    """The words come by a tape; the socket would bring others."""

    def __init__(self, broker: Broker) -> None:
        self.tape = Tape()
        super().__init__(broker)

    def _attach(self) -> None:
        self.stream.virtual = True
        self.stream.layer = self.tape
        super()._attach()


@pytest.fixture
def virtual(broker: Broker) -> Iterator[VirtualWords]:
    made = VirtualWords(broker)
    yield made
    made.theirs.close()


@pytest.mark.interpreted  # Tape
def test_a_virtual_stream_is_served_what_its_layer_gives(broker: Broker, virtual: VirtualWords) -> None:
    """Bytes that come over something shared would not be served, or those of the lent socket would be."""
    virtual.theirs.sendall(b"none")
    virtual.tape.feed(broker.reactor, virtual.stream, b"one two thr")
    broker.settle()
    assert [b"one ", b"two "] == virtual.taken

    virtual.tape.feed(broker.reactor, virtual.stream, b"ee")
    broker.settle()
    assert [b"one ", b"two ", b"thre"] == virtual.taken


@pytest.mark.interpreted
def test_a_virtual_stream_that_waits_is_served_before_clients(broker: Broker, virtual: VirtualWords) -> None:
    """What clients wait for would be served behind all that they themselves send."""
    flood = broker.connect("flood")
    broker.settle()
    flood.send_bytes(encode(Publish(b"t", b"", 1, packet_id=1), V311) * 9000)
    broker.clock.step = SLICE
    broker.loop.turn()
    virtual.tape.feed(broker.reactor, virtual.stream, b"word")

    assert broker.reactor.ready.first() is virtual.stream


@pytest.mark.interpreted
def test_a_paused_virtual_stream_is_served_when_it_is_resumed(broker: Broker, virtual: VirtualWords) -> None:
    """A lane would stand still after the first large fan-out."""
    broker.reactor.pause(virtual.stream, 1)
    virtual.tape.feed(broker.reactor, virtual.stream, b"word")
    broker.settle()
    assert [] == virtual.taken

    broker.reactor.resume(virtual.stream, 1)
    broker.settle()
    assert [b"word"] == virtual.taken


@pytest.mark.interpreted
def test_a_virtual_stream_is_blocked_until_its_layer_has_room(broker: Broker, virtual: VirtualWords) -> None:
    """The loop would offer the bytes again and again: its lent socket can always be written to."""
    outbox, tape = virtual.stream.outbox, virtual.tape
    tape.room = 3
    outbox.write(b"abcdef")
    broker.settle()
    assert (b"abc", True) == (tape.taken, outbox.blocked)

    tape.room = ANY
    broker.reactor.unblock(virtual.stream)
    broker.settle()
    assert (b"abcdef", False, 0) == (tape.taken, outbox.blocked, outbox.size)


@pytest.mark.interpreted
def test_a_virtual_stream_gives_its_descriptor_back(broker: Broker, virtual: VirtualWords) -> None:
    """Each worker of another node that comes and goes would cost a descriptor."""
    fd = virtual.stream.fd
    broker.reactor.destroy(virtual.stream)

    assert None is broker.reactor.table[fd]
    assert -1 == virtual.stream.sock.fileno()
