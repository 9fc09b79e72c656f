# WebSocket from outside: what is asked for, what frames may look like, and how it ends. Over TLS it is the same code.
from collections.abc import Callable, Iterator

import pytest

from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, Connect, Disconnect, Packet, PingReq, Publish, Subscribe, Wanted, Will
from tests.system.addresses import PATH, Address, Transport
from tests.system.processes import HOST, BrokerProcess, free_port
from tests.system.raw import RawClient
from tests.system.websocket import (
    ACCEPT,
    BINARY,
    CLOSE,
    CONTINUATION,
    NORMAL,
    NOT_BINARY,
    NOT_UTF_8,
    PING,
    PONG,
    PROTOCOL_ERROR,
    TEXT,
    TOO_LARGE,
    Frame,
    WebSocket,
    frame,
    opened,
    request,
)

Dial = Callable[..., RawClient]
StartWebSocket = Callable[..., tuple[BrokerProcess, Address]]
PING_REQUEST = encode(PingReq(), V5)


@pytest.fixture
def address(broker: BrokerProcess, addresses: dict[Transport, Address]) -> Address:
    return addresses["ws"]


@pytest.fixture
def websocket(address: Address) -> Iterator[WebSocket]:
    """One that was accepted, and said nothing yet."""
    made = opened(address)
    yield made
    made.close()


@pytest.fixture
def client(address: Address, websocket: WebSocket, name: str) -> RawClient:
    """A client on `websocket` that has its CONNACK."""
    made = RawClient(address.port, connection=websocket)
    made.connect(name)
    return made


@pytest.fixture
def subscriber(dial: Dial, name: str) -> RawClient:
    """A client on TCP that hears what is published to *name*."""
    made = dial()
    made.connect(f"{name}-subscriber")
    made.subscribe(name, qos=1)
    return made


@pytest.fixture
def start_websocket(start_weir: Callable[..., BrokerProcess], addresses: dict[Transport, Address]) -> StartWebSocket:
    """Starts one more Weir, with a WebSocket listener and these settings."""

    def start(settings: dict[str, object]) -> tuple[BrokerProcess, Address]:
        address = addresses["ws"]._replace(port=free_port())
        needed: dict[str, object] = {"listeners.ws.enabled": "true", "listeners.ws.port": address.port}
        return start_weir(needed | settings), address

    return start


def answer(address: Address, path: str = PATH, subprotocols: tuple[str, ...] = ("mqtt",)) -> WebSocket:
    """What a request gets; the connection is closed."""
    websocket = WebSocket(address, path, subprotocols)
    websocket.close()
    return websocket


# --- the request


@pytest.mark.parametrize(
    "asked, chosen",
    [(("mqtt",), "mqtt"), (("mqttv3.1",), "mqttv3.1"), (("chat", "mqtt"), "mqtt"), (("mqttv3.1", "mqtt"), "mqttv3.1")],
)
def test_the_subprotocol_is_chosen_and_named(address: Address, asked: tuple[str, ...], chosen: str) -> None:
    """A browser would close at once: it was promised a subprotocol that it asked for [MQTT-6.0.0-4]."""
    answered = answer(address, subprotocols=asked)

    assert (101, chosen) == (answered.status, answered.headers.get("sec-websocket-protocol"))
    assert ACCEPT == answered.headers["sec-websocket-accept"]


@pytest.mark.weir_only("takes any, and none")
@pytest.mark.parametrize("asked", [(), ("chat",), ("MQTT",)])
def test_a_request_without_our_subprotocol_is_refused(address: Address, asked: tuple[str, ...]) -> None:
    """A client that expects something else would get MQTT [MQTT-6.0.0-3]."""
    assert 400 == answer(address, subprotocols=asked).status


@pytest.mark.weir_only("takes any path")
@pytest.mark.parametrize("path", ["/", "/mqtt/", "/other", "/mqttx"])
def test_another_path_is_not_found(address: Address, path: str) -> None:
    """Whatever somebody asks this port for would be answered with MQTT."""
    assert 404 == answer(address, path).status


def test_a_query_does_not_change_the_path(address: Address) -> None:
    """Clients that append something to the path, as signed addresses do, could not come in."""
    assert 101 == answer(address, f"{PATH}?token=x").status


@pytest.mark.weir_only("it closes and logs otherwise")
@pytest.mark.parametrize(
    "said", [encode(Connect(V5, "lost"), V5), b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"]
)
def test_what_is_no_websocket_request_ends_with_one_line(start_websocket: StartWebSocket, said: bytes) -> None:
    """A client with the wrong port, or a scanner, would hang, or fill the log."""
    weir, address = start_websocket({})
    with address.plain() as wrong:
        said_by = f"{HOST}:{wrong.getsockname()[1]}"
        wrong.sendall(said)
        heard = b"".join(iter(lambda: wrong.recv(4096), b""))

    assert b"101" not in heard
    (line,) = weir.wait_for_log(f'"{said_by}"')
    assert '"websocket_' in line


@pytest.mark.weir_only("it waits for ever")
@pytest.mark.parametrize("begun", [b"", request()[:40], request()])
def test_a_request_that_stalls_ends_at_the_connect_deadline(start_websocket: StartWebSocket, begun: bytes) -> None:
    """Clients that never get as far as CONNECT would hold their descriptors for ever."""
    _, address = start_websocket({"limits.connect_timeout": "300ms"})
    stalled = RawClient(address.port, connection=address.plain())
    stalled.socket.sendall(begun)

    # HTTP's answer, if there is one, is no MQTT: only the end counts here.
    while stalled.socket.recv(4096):
        pass
    stalled.close()


# --- frames


def test_a_packet_may_be_cut_anyhow_over_frames(address: Address, websocket: WebSocket, name: str) -> None:
    """A client that does not know where packets end would be refused [MQTT-6.0.0-2]."""
    client = RawClient(address.port, connection=websocket)
    for byte in encode(Connect(V5, name), V5):
        websocket.send_frame(BINARY, bytes([byte]))

    assert b"\x20" == client.socket.recv(4096)[:1]


def test_a_frame_may_hold_many_packets(client: RawClient, websocket: WebSocket, name: str) -> None:
    """What follows the first packet of a frame would be lost, or the last, half of it, break the next frame
    [MQTT-6.0.0-2]."""
    packets: list[Packet] = [Subscribe(1, [Wanted(name.encode())])]
    packets += [Publish(name.encode(), b"%d" % n) for n in range(100)]
    data = b"".join(encode(packet, V5) for packet in packets)

    websocket.send_frame(BINARY, data[:-3])
    websocket.send_frame(BINARY, data[-3:])

    client.receive()
    assert [b"%d" % n for n in range(100)] == [client.take().payload for _ in range(100)]


def test_a_message_may_come_in_fragments(client: RawClient, websocket: WebSocket, name: str) -> None:
    """Clients whose library splits what is large would be thrown out (RFC 6455, 5.4)."""
    client.subscribe(name)
    data = encode(Publish(name.encode(), b"in three"), V5)

    websocket.send_frame(BINARY, data[:5], last=False)
    websocket.send_frame(PING, b"between")
    websocket.send_frame(CONTINUATION, data[5:7], last=False)
    websocket.send_frame(CONTINUATION, data[7:])

    assert Frame(PONG, b"between") == websocket.next_frame()
    assert b"in three" == client.take().payload


def test_empty_frames_mean_nothing(client: RawClient, websocket: WebSocket) -> None:
    """A frame without a byte in it would be taken for the end."""
    websocket.send_frame(BINARY, b"")
    websocket.send_frame(BINARY, b"", last=False)
    websocket.send_frame(CONTINUATION, b"")

    client.ping()


@pytest.mark.parametrize("payload", [b"", b"are you there?"])
def test_a_ping_is_answered(client: RawClient, websocket: WebSocket, payload: bytes) -> None:
    """Proxies and browsers would take the connection for dead (RFC 6455, 5.5.2)."""
    websocket.send_frame(PING, payload)

    assert Frame(PONG, payload) == websocket.next_frame()
    client.ping()


def test_large_messages_pass_both_ways(client: RawClient, name: str) -> None:
    """Frames of each kind of length, or what is more than a socket takes at once, would break."""
    client.subscribe(name)
    for size in (125 - 30, 200, 70_000, 900_000):
        client.publish(name, bytes(range(256)) * (size // 256) + b"x" * (size % 256))
        assert size == len(client.take().payload)


# --- what is refused


@pytest.mark.weir_only("closes without a code")
@pytest.mark.parametrize("payload", [encode(Publish(b"t", b"x"), V5), PING_REQUEST], ids=["text", "no UTF-8"])
def test_a_text_frame_ends_the_connection(client: RawClient, websocket: WebSocket, payload: bytes) -> None:
    """Bytes that a proxy or a browser may change on the way would be taken for MQTT [MQTT-6.0.0-1]."""
    websocket.send_frame(TEXT, payload)

    assert 0x82 == client.expect(Disconnect).code
    assert NOT_BINARY == websocket.answer_close()
    assert websocket.next_frame() is None


@pytest.mark.weir_only("closes without a code")
@pytest.mark.parametrize(
    "broken, code",
    [
        (frame(BINARY, PING_REQUEST, masked=False), PROTOCOL_ERROR),
        (frame(0x3, b""), PROTOCOL_ERROR),
        (frame(CONTINUATION, b"of nothing"), PROTOCOL_ERROR),
        (frame(PING, bytes(126)), PROTOCOL_ERROR),
        (b"\xc2\x80\x00\x00\x00\x00", PROTOCOL_ERROR),
        (frame(CLOSE, NORMAL.to_bytes(2, "big") + b"\xff"), NOT_UTF_8),
    ],
    ids=["unmasked", "reserved opcode", "continuation of nothing", "long ping", "reserved bit", "broken goodbye"],
)
def test_a_broken_frame_ends_the_connection(
    start_websocket: StartWebSocket, name: str, broken: bytes, code: int
) -> None:
    """What is no WebSocket would be served on, or its end look like the client's wish (RFC 6455, 5 and 8.1)."""
    weir, address = start_websocket({})
    websocket = opened(address)
    RawClient(address.port, connection=websocket).connect(name)

    websocket.raw.sendall(broken)

    assert code == websocket.answer_close()
    assert websocket.next_frame() is None
    websocket.close()
    (line,) = weir.wait_for_log(f'"websocket_error", "address": "{HOST}:{websocket.port}"')
    assert f'"{name}"' in line


@pytest.mark.weir_only("its limit is configured otherwise")
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_message_beyond_the_limit_is_refused(start_websocket: StartWebSocket, name: str, pieces: int) -> None:
    """One message, or one that never ends, could take all memory."""
    weir, address = start_websocket({"websocket.message_bytes": 10_000})
    websocket = opened(address)
    RawClient(address.port, connection=websocket).connect(name)

    message = encode(Publish(name.encode(), bytes(12_000)), V5)
    cut = len(message) // pieces
    for at in range(0, cut * pieces, cut):
        websocket.send_frame(CONTINUATION if at else BINARY, message[at : at + cut], last=False)

    assert TOO_LARGE == websocket.answer_close()
    assert websocket.next_frame() is None
    websocket.close()
    weir.wait_for_log("websocket_error")


# --- the end


def test_the_client_may_close(client: RawClient, websocket: WebSocket) -> None:
    """A browser that leaves the page would have to wait for a time-out (RFC 6455, 7.1)."""
    websocket.send_frame(CLOSE, NORMAL.to_bytes(2, "big"))

    closed = websocket.next_frame()
    assert closed is not None and NORMAL == closed.close_code
    assert websocket.next_frame() is None


@pytest.mark.parametrize("politely", [True, False])
def test_a_close_without_disconnect_fires_the_will(
    address: Address, websocket: WebSocket, subscriber: RawClient, name: str, politely: bool
) -> None:
    """A browser tab that is gone would be missed by nobody: WebSocket's goodbye is not MQTT's [MQTT-3.1.2-8]."""
    mortal = RawClient(address.port, connection=websocket)
    mortal.connect(name, will=Will(name.encode(), b"gone"))

    if politely:
        websocket.send_frame(CLOSE, NORMAL.to_bytes(2, "big"))
    else:
        websocket.close()

    assert b"gone" == subscriber.take().payload


@pytest.mark.weir_only("closes without a close frame")
def test_the_broker_closes_after_disconnect(client: RawClient, websocket: WebSocket) -> None:
    """The client's library would report a failure at each end: code 1006 instead of 1000."""
    client.send(Disconnect())

    assert NORMAL == websocket.answer_close()
    assert websocket.next_frame() is None
