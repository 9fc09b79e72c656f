# A load over WebSocket, with the other end in this test.
import socket
from collections.abc import Iterator

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, Event, Ping, Pong, RejectConnection, Request

from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, ConnAck, Connect, Packet
from broker.mqtt.stream import PacketReader
from cli.load.channel import Channel
from cli.load.client import UP
from cli.load.network import Network, now_us
from cli.load.publisher import Publisher
from cli.load.websocket import NoWebSocket, WebSocketChannel
from tests.load.talk import LARGEST, NOW, RUN, TOPIC

SMALL = 4096  # bytes that the kernel takes for us
LONG = 60_000  # bytes of a message


class Server:
    """The broker's end of the only connection of *network*, and a publisher that uses it."""

    def __init__(self) -> None:
        ours, self.socket = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        for one in (ours, self.socket):
            one.setblocking(False)
        self.websocket = WSConnection(ConnectionType.SERVER)
        self.network = Network(lambda: WebSocketChannel(Channel(ours), "broker:8083", "/mqtt"), timeout=5)
        self.publisher = Publisher(Connect(V5, "p"), 0, TOPIC, 0, bytes(LONG), RUN, 1, 0, 0)
        self.network.start(self.publisher, now_us())

    def turn(self) -> list[Event]:
        """Both sides do what there is to do once; what the load said."""
        self.network.turn(0.0)
        try:
            self.websocket.receive_data(self.socket.recv(1 << 20))
        except BlockingIOError:
            pass
        return list(self.websocket.events())

    def say(self, event: Event) -> None:
        self.socket.sendall(self.websocket.send(event))

    def connect(self) -> None:
        """Have the publisher up."""
        (request,) = self.turn()
        assert isinstance(request, Request) and ("/mqtt", ["mqtt"]) == (request.target, request.subprotocols)
        self.say(AcceptConnection(subprotocol="mqtt"))
        (connect,) = self.turn()
        assert isinstance(connect, BytesMessage)
        self.say(BytesMessage(encode(ConnAck(False), V5)))
        self.turn()
        assert UP == self.publisher.state


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.network.close()
    made.socket.close()


def test_what_the_kernel_has_no_room_for_is_sent_when_it_has(server: Server) -> None:
    """The end of a message would wait for the next one, which a full window never lets come."""
    server.connect()
    server.publisher.publish(1, NOW)
    server.network.send(server.publisher)
    assert server.network.full(server.publisher)

    reader, turns = PacketReader(V5, LARGEST), 0
    messages: list[Packet] = []
    while not messages and turns < 1000:
        turns += 1
        for event in server.turn():
            assert isinstance(event, BytesMessage)
            messages += reader.feed(bytes(event.data))

    assert 1 == len(messages)
    server.turn()
    assert not server.network.full(server.publisher)


def test_pings_of_websocket_are_answered(server: Server) -> None:
    """A proxy between would end the connection."""
    server.connect()
    server.say(Ping(payload=b"still there?"))

    assert [Pong(payload=b"still there?")] == server.turn()


def test_an_http_server_is_told_from_a_broker(server: Server) -> None:
    """A wrong path would look like a broker that hangs up."""
    server.turn()
    server.say(RejectConnection(status_code=404))
    server.turn()

    assert isinstance(server.network.failure, NoWebSocket)
    assert "HTTP status 404" == str(server.network.failure)
