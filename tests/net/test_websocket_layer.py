# What WebSocket costs the reactor and its other clients: a worker without trio.
from collections.abc import Callable
from typing import Final

import pytest

from broker.config.schema import Config, Delivery, Limits
from broker.mqtt.encode import encode
from broker.mqtt.packets import V311, Connect, Disconnect, PingReq, PingResp, Publish, Subscribe, Wanted
from broker.net.loop import SLICE
from broker.net.reactor import LINGER
from broker.net.stream import Stream
from broker.net.transports.frames import (
    BINARY,
    CLOSE,
    FRAMES_AT_ONCE,
    NORMAL,
    NOT_BINARY,
    PING,
    PONG,
    TEXT,
    close_frame,
    frame,
)
from broker.net.transports.tls import EMPTY_COST, RECORD_COST
from broker.net.transports.websocket import StartUpgrade, WebSocketLayer, WebSocketTransport
from broker.overload.quantum import FRAME_COST, LARGEST, UPGRADE_COST
from broker.reasons import CloseReason
from tests.inprocess import Broker, Client
from tests.net.tls import Authority, TlsSocket, shake, transport
from tests.tools.fuzz.key_updates import key_updates

Brokers = Callable[..., Broker]

REQUEST: Final = b"GET / HTTP/1.1\r\n\r\n"
ACCEPTED: Final = b"HTTP/1.1 101 Yes\r\n\r\n"
CONNACK: Final = b"\x82\x04\x20\x02\x00\x00"  # in its frame
EMPTY: Final = b"\x82\x80" + bytes(4)
LARGE: Final = 1 << 20
LARGE_PACKETS: Final = Config(
    limits=Limits(packet_bytes=5 * LARGE), delivery=Delivery(high_watermark=8 * LARGE, low_watermark=4 * LARGE)
)
MESSAGE_BYTES: Final = 1 << 30


class Answer:
    """Accepts a request, at once or when a test says so."""

    def __init__(self, layer: WebSocketLayer) -> None:
        self.cancelled = False
        self._layer = layer

    def accept(self) -> None:
        self._layer.push(ACCEPTED)
        self._layer.accept()

    def cancel(self) -> None:
        self.cancelled = True


def at_once(layer: WebSocketLayer, request: bytes) -> Answer:
    assert REQUEST == request
    answer = Answer(layer)
    answer.accept()
    return answer


class Later:
    """The requests that wait for their answers."""

    def __init__(self) -> None:
        self.waiting: list[Answer] = []

    def __call__(self, layer: WebSocketLayer, request: bytes) -> Answer:
        self.waiting.append(Answer(layer))
        return self.waiting[-1]


def said(opcode: int, payload: bytes = b"") -> bytes:
    """A client's frame, masked with zeros."""
    head = frame(opcode, payload)
    shown = len(head) - len(payload)
    return head[:1] + bytes((head[1] | 0x80,)) + head[2:shown] + bytes(4) + payload


def dial(broker: Broker, start: StartUpgrade = at_once) -> Client:
    """A client that has sent no request yet."""
    client = broker.open(transport=WebSocketTransport("ws", broker.reactor, None, MESSAGE_BYTES, start))
    client.reading = False
    return client


def connect(broker: Broker, client_id: str, *behind: bytes) -> tuple[Client, Stream]:
    """A client on a WebSocket that has its CONNACK, and its stream; it sends *behind* together with CONNECT."""
    client = dial(broker)
    client.send_bytes(REQUEST + said(BINARY, encode(Connect(V311, client_id), V311)) + b"".join(behind))
    broker.settle()
    assert ACCEPTED + CONNACK == client.socket.recv(len(ACCEPTED + CONNACK))
    return client, broker.streams()[-1]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def dial_wss(broker: Broker, authority: Authority) -> tuple[TlsSocket, WebSocketLayer]:
    """A client that has done its TLS handshake and sent no request yet, and its layer."""
    below = transport(broker, authority.server())
    client = broker.open(transport=WebSocketTransport("wss", broker.reactor, below, MESSAGE_BYTES, at_once))
    tls = shake(client, authority.trusted_by())
    client.reading = False
    layer = broker.streams()[-1].layer
    assert isinstance(layer, WebSocketLayer)
    return tls, layer


def upgraded(broker: Broker, authority: Authority) -> tuple[TlsSocket, WebSocketLayer]:
    """A client on wss whose request is accepted, and its layer."""
    tls, layer = dial_wss(broker, authority)
    tls.send(REQUEST)
    broker.settle()
    return tls, layer


def cost_of_reading(layer: WebSocketLayer) -> int:
    """The cost of one read, which brings no bytes of MQTT."""
    with pytest.raises(BlockingIOError):
        layer.recv(64 * 1024)
    return layer.cost


def drain(client: Client) -> bytes:
    """What the kernel has for *client*."""
    data = b""
    while True:
        try:
            piece = client.socket.recv(1 << 20)
        except BlockingIOError:
            return data
        if not piece:
            return data
        data += piece


def whole(data: bytes) -> list[tuple[int, bytes]]:
    """The frames that are all in *data*."""
    found = []
    while len(data) > 1:
        size = data[1] if data[1] < 126 else int.from_bytes(data[2:4] if data[1] == 126 else data[2:10], "big")
        end = size + (2 if data[1] < 126 else 4 if data[1] == 126 else 10)
        if end > len(data):
            break
        found.append((data[0] & 0x0F, data[end - size : end]))
        data = data[end:]
    return found


def heard(client: Client, before: bytes = b"") -> list[tuple[int, bytes]]:
    """The frames that are sent to *client*, which has read *before* already."""
    data = before
    while piece := drain(client):
        data += piece
        client.broker.settle()
    return whole(data)


def test_empty_frames_cost_units(brokers: Brokers) -> None:
    """A client that sends only empty frames would use the worker for free: they are work without bytes."""
    broker = brokers()
    client, stream = connect(broker, "me")
    others = [broker.connect(f"other{n}") for n in range(600)]
    client.socket.send(EMPTY * FRAMES_AT_ONCE)
    for other in others:
        other.send(PingReq())
    broker.clock.step = SLICE  # one turn of one client a slice
    broker.loop.turn()
    debt = stream.debt
    broker.clock.step = 0.0
    broker.settle()

    assert FRAMES_AT_ONCE * FRAME_COST // 4 < debt < FRAMES_AT_ONCE * FRAME_COST
    assert all([PingResp()] == other.inbox for other in others)


def test_the_records_below_a_request_cost_units(brokers: Brokers, authority: Authority) -> None:
    """A request of a byte in each TLS record would cost a client no more than a request in one record."""
    tls, layer = dial_wss(brokers(), authority)
    tls.raw.send(b"".join(tls.encrypt(REQUEST[n : n + 1]) for n in range(len(REQUEST))))

    assert UPGRADE_COST + RECORD_COST * (len(REQUEST) - 1) == cost_of_reading(layer)


def test_the_records_below_frames_cost_units(brokers: Brokers, authority: Authority) -> None:
    """With WebSocket on TLS, a client would send its bytes in small TLS records for free."""
    tls, layer = upgraded(brokers(), authority)
    tls.raw.send(b"".join(tls.encrypt(EMPTY) for _ in range(50)))

    assert FRAME_COST * 50 + RECORD_COST * 49 == cost_of_reading(layer)


def test_records_without_data_below_frames_cost_units(brokers: Brokers, authority: Authority) -> None:
    """With WebSocket on TLS, key updates would be free: they bring no frame."""
    tls, layer = upgraded(brokers(), authority)
    tls.raw.send(key_updates(tls.tls, tls._outgoing, 10))

    assert EMPTY_COST * 10 + RECORD_COST * 9 == cost_of_reading(layer)


def test_records_are_charged_once_for_frames_of_several_reads(brokers: Brokers, authority: Authority) -> None:
    """Frames that are left over from a read would be charged the TLS records of that read again."""
    tls, layer = upgraded(brokers(), authority)
    tls.raw.send(tls.encrypt(EMPTY * FRAMES_AT_ONCE) + tls.encrypt(EMPTY * 5))

    assert FRAME_COST * FRAMES_AT_ONCE + RECORD_COST == cost_of_reading(layer)
    assert FRAME_COST * 5 == cost_of_reading(layer)


def test_records_below_frames_are_paid_with_turns(brokers: Brokers, authority: Authority) -> None:
    """The layers would count TLS records below WebSocket, and the connection would not pay for them."""
    broker = brokers()
    tls, _ = upgraded(broker, authority)
    tls.send(said(BINARY, encode(Connect(V311, "me"), V311)))
    broker.settle()
    (stream,) = broker.streams()
    others = [broker.connect(f"other{n}") for n in range(600)]
    tls.raw.send(key_updates(tls.tls, tls._outgoing, 10))
    for other in others:
        other.send(PingReq())
    broker.clock.step = SLICE  # one turn of one client a slice
    broker.loop.turn()
    debt = stream.debt
    broker.clock.step = 0.0
    broker.settle()

    assert EMPTY_COST * 10 // 4 < debt < EMPTY_COST * 10 + RECORD_COST * 9
    assert all([PingResp()] == other.inbox for other in others)


def test_a_connection_beyond_the_rate_of_its_address_is_closed_before_its_request(brokers: Brokers) -> None:
    """An address could have the broker answer any number of requests without a CONNECT behind them."""
    broker = brokers(Config(limits=Limits(connects_per_second=1, connect_burst=2)))
    later = Later()
    clients = [dial(broker, later) for _ in range(4)]
    assert 2 == len(broker.streams())
    assert 2 == broker.counters.closed_by_reason[CloseReason.CONNECT_RATE.label]
    for client in clients[:2]:
        client.send_bytes(REQUEST)
    broker.settle()

    assert 2 == len(later.waiting)
    assert [b"", b""] == [client.socket.recv(1) for client in clients[2:]]  # the end


def test_a_ping_is_answered_between_the_frames_of_a_large_message(brokers: Brokers) -> None:
    """A pong within a frame would be taken for its payload."""
    broker = brokers(LARGE_PACKETS)
    client, _ = connect(broker, "me")
    client.send_bytes(said(BINARY, encode(Subscribe(1, [Wanted(b"t", 0)]), V311)))
    packet = encode(Publish(b"t", bytes(LARGE)), V311)
    client.send_bytes(said(BINARY, packet) + said(PING, b"there?"))
    broker.settle()
    frames = heard(client)

    assert [b"there?"] == [payload for opcode, payload in frames if opcode == PONG]
    assert packet == b"".join(payload for opcode, payload in frames if opcode == BINARY)[5:]


def test_a_client_that_pings_and_does_not_read_costs_the_pongs_of_one_read(brokers: Brokers) -> None:
    """A client that sends pings and never reads would cost memory without a bound (RFC 6455, 5.5.3)."""
    broker = brokers()
    client, stream = connect(broker, "me")
    layer = stream.layer
    assert isinstance(layer, WebSocketLayer)
    asked = 0
    while not layer.unsent or asked < 30_000:
        client.send_bytes(b"".join(said(PING, b"%0100d" % (asked + n)) for n in range(1000)))
        asked += 1000
        broker.settle()
    frames = heard(client)

    assert {PONG} == {opcode for opcode, _ in frames}
    assert len(frames) < asked
    assert b"%0100d" % (asked - 1) == frames[-1][1]
    client.send_bytes(said(BINARY, encode(PingReq(), V311)))
    broker.settle()
    assert [(BINARY, encode(PingResp(), V311))] == heard(client)


@pytest.mark.parametrize("before", [EMPTY, said(BINARY, encode(PingReq(), V311))], ids=["nothing owed", "an answer"])
@pytest.mark.parametrize(
    "last, code", [(said(BINARY, encode(Disconnect(), V311)), NORMAL), (said(TEXT, b"x"), NOT_BINARY)]
)
def test_a_close_frame_waits_for_room(brokers: Brokers, before: bytes, last: bytes, code: int) -> None:
    """A slow client would see an end without a close frame, which its library reports as a failure."""
    broker = brokers()
    client, stream = connect(broker, "me")
    with pytest.raises(BlockingIOError):
        while True:
            stream.sock.send(frame(PONG, b"") * 1000)
    for words in (before, last, EMPTY):
        client.send_bytes(words)
        broker.settle()

    assert (CLOSE, code.to_bytes(2, "big")) == heard(client)[-1]


def test_framed_bytes_stay_in_the_outbox_until_they_are_sent(brokers: Brokers) -> None:
    """The layer would be another buffer, which the watermarks do not see."""
    broker = brokers(LARGE_PACKETS)
    client, stream = connect(broker, "me")
    client.send_bytes(said(BINARY, encode(Subscribe(1, [Wanted(b"t", 0)]), V311)))
    publisher = broker.connect("publisher")
    publisher.send(Publish(b"t", bytes(4 * LARGE)))
    broker.settle()
    total = 5 + len(encode(Publish(b"t", bytes(4 * LARGE)), V311))
    owed = stream.outbox.size
    taken = drain(client)

    assert 0 < owed == total - sum(len(payload) for _, payload in whole(taken))
    broker.settle()
    assert total == sum(len(payload) for _, payload in heard(client, taken))
    assert 0 == stream.outbox.size


def test_a_client_that_does_not_answer_a_close_frame_is_closed_at_the_deadline(brokers: Brokers) -> None:
    """The client would keep a descriptor for ever."""
    broker = brokers()
    client, _ = connect(broker, "me", said(BINARY, encode(Disconnect(), V311)))
    assert [(CLOSE, close_frame(NORMAL)[2:])] == heard(client)
    assert 1 == len(broker.streams())
    broker.advance(LINGER + 0.1)

    assert [] == broker.streams()


def test_frames_that_are_left_over_are_parsed_in_the_next_rounds(brokers: Brokers) -> None:
    """A packet behind many small frames would wait until the client sends something else."""
    broker = brokers()
    client, stream = connect(broker, "me")
    client.send_bytes(EMPTY * 5 * FRAMES_AT_ONCE + said(BINARY, encode(PingReq(), V311)))
    broker.settle()

    assert [(BINARY, encode(PingResp(), V311))] == heard(client)
    assert stream.layer is not None and 0 == stream.layer.buffered


def test_a_stream_in_debt_is_not_read(brokers: Brokers) -> None:
    """The cost of frames would be counted and never paid."""
    broker = brokers()
    client, stream = connect(broker, "me")
    stream.debt = 10 * LARGEST
    client.socket.send(said(PING))
    broker.clock.step = SLICE  # one turn a slice
    broker.loop.turn()
    assert b"" == drain(client) and 9 * LARGEST == stream.debt
    broker.clock.step = 0.0
    broker.settle()

    assert [(PONG, b"")] == heard(client)


def test_bytes_before_the_answer_wait_in_the_kernel(brokers: Brokers) -> None:
    """A client that does not wait for its answer would be taken for one whose request has no end."""
    broker = brokers()
    later = Later()
    client = dial(broker, later)
    client.send_bytes(REQUEST)
    broker.settle()
    client.send_bytes(said(BINARY, encode(Connect(V311, "me"), V311)) + EMPTY * 5000)
    broker.settle()
    (stream,) = broker.streams()
    assert stream.layer is not None and stream.layer.buffered <= len(REQUEST)
    later.waiting[0].accept()
    broker.settle()

    assert ACCEPTED + CONNACK == drain(client)


def test_an_answer_after_the_end_is_dropped(brokers: Brokers) -> None:
    """Its task would go on for a connection that is gone, or fail."""
    broker = brokers()
    later = Later()
    late, gone = dial(broker, later), dial(broker, later)
    for client in (late, gone):
        client.send_bytes(REQUEST)
    broker.settle()
    first, second = later.waiting
    gone.drop()
    broker.advance(broker.config.limits.connect_timeout + 0.1)

    assert first.cancelled and second.cancelled
    first.accept()
    second.accept()
    broker.settle()
    assert b"" == late.socket.recv(100)
    assert 0 == broker.counters.internal_errors


def test_a_request_after_the_deadline_is_not_answered(brokers: Brokers) -> None:
    """A request that is complete after its deadline would start a task that never ends."""
    broker = brokers()
    later = Later()
    client = dial(broker, later)
    client.send_bytes(REQUEST[:-1])
    broker.advance(broker.config.limits.connect_timeout + 0.1)
    client.send_bytes(REQUEST[-1:])
    broker.settle()

    assert [] == later.waiting


@pytest.mark.parametrize("ending", [b"", said(CLOSE), said(PING)])
@pytest.mark.parametrize("asked", [REQUEST, REQUEST + said(BINARY, encode(Connect(V311, "me"), V311))])
def test_a_client_that_is_gone_before_the_answer_is_not_an_internal_error(
    brokers: Brokers, asked: bytes, ending: bytes
) -> None:
    """Anybody could fill the log with tracebacks."""
    broker = brokers()
    client = dial(broker)
    client.send_bytes(asked + ending)
    client.drop()

    assert [] == broker.streams()
    assert 0 == broker.counters.internal_errors


@pytest.mark.parametrize(
    "first, then",
    [
        (said(BINARY, encode(Disconnect(), V311)), frame(BINARY, b"no mask")),
        (said(TEXT, b"x"), said(BINARY, b"x") * 100),
        (said(TEXT, b"x"), said(CLOSE)),
    ],
)
def test_a_closing_connection_is_read_until_the_deadline(brokers: Brokers, first: bytes, then: bytes) -> None:
    """A reset would discard the last packet: a client may still send anything."""
    broker = brokers()
    client, _ = connect(broker, "me")
    client.send_bytes(first)
    broker.settle()
    for _ in range(3):
        client.send_bytes(then)
        broker.settle()

    assert 1 == len(broker.streams())
    assert CLOSE == heard(client)[-1][0]
