# MQTT over WebSocket: a whole worker under trio, and a client that makes its frames by hand.
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, cast

import pytest
import trio
import trio.testing

from broker.config.schema import Config, Delivery, Limits, Listeners, WebSocket, WebSocketListener
from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, ConnAck, Connect, Disconnect, Packet, PingReq, PingResp, Publish, Subscribe, Wanted
from broker.mqtt.stream import PacketReader
from broker.net.listeners import listen
from broker.net.pauses import Pause
from broker.net.stream import CLOSED
from broker.net.transports.upgrade_tasks import UNDER_WAY, UpgradeTasks
from broker.net.transports.websocket import WebSocketLayer
from broker.reasons import CloseReason
from broker.worker import Worker
from tests.garbage import ours
from tests.inprocess import serve

HOST: Final = "127.0.0.1"
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
UPGRADE: Final = (
    "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{subprotocol}\r\n"
)
REQUEST: Final = UPGRADE.format(path="/mqtt", host=HOST, subprotocol="Sec-WebSocket-Protocol: mqtt\r\n").encode()
LARGE: Final = bytes(range(256)) * 2000
PATIENCE: Final = 10.0  # seconds for what takes milliseconds: a test that hangs should say where


def frame(opcode: int, payload: bytes = b"", *, last: bool = True, masked: bool = True) -> bytes:
    """A client's frame (RFC 6455, 5.2); the mask is all zeros, so the payload stays readable."""
    size = len(payload)
    mark = 0x80 if masked else 0
    head = bytes((opcode | (0x80 if last else 0),))
    if size < 126:
        head += bytes((mark | size,))
    elif size < 65536:
        head += bytes((mark | 126,)) + size.to_bytes(2, "big")
    else:
        head += bytes((mark | 127,)) + size.to_bytes(8, "big")
    return head + (bytes(4) if masked else b"") + payload


def mqtt(*packets: Packet) -> bytes:
    return b"".join(encode(packet, V5) for packet in packets)


class Browser:
    """A WebSocket client that sends exactly what a test wants."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.packets: list[Packet] = []
        self._reader = PacketReader(V5, 1 << 28)
        self._read = b""

    async def upgrade(self, path: str = "/mqtt", subprotocol: str | None = "mqtt") -> str:
        """The head of the answer."""
        wanted = f"Sec-WebSocket-Protocol: {subprotocol}\r\n" if subprotocol is not None else ""
        await self.stream.send_all(UPGRADE.format(path=path, host=HOST, subprotocol=wanted).encode())
        return await self.answer()

    async def answer(self) -> str:
        """The head of the answer to a request."""
        while b"\r\n\r\n" not in self._read:
            self._read += await self._more()
        head, self._read = self._read.split(b"\r\n\r\n", 1)
        return head.decode()

    async def say(self, *packets: Packet) -> None:
        await self.stream.send_all(frame(BINARY, mqtt(*packets)))

    async def frame(self) -> tuple[int, bytes]:
        """The next frame: (opcode, payload)."""
        head = await self._exactly(2)
        assert head[1] < 128, "a server must not mask (RFC 6455, 5.1)"
        size = head[1]
        if size == 126:
            size = int.from_bytes(await self._exactly(2), "big")
        elif size == 127:
            size = int.from_bytes(await self._exactly(8), "big")
        return head[0] & 0x0F, await self._exactly(size)

    async def hear(self) -> Packet:
        """The next packet of MQTT."""
        while not self.packets:
            opcode, payload = await self.frame()
            assert BINARY == opcode, (opcode, payload)
            self.packets += self._reader.feed(payload)
        return self.packets.pop(0)

    async def connect(self, client_id: str) -> None:
        assert "101" in await self.upgrade()
        await self.say(Connect(V5, client_id))
        assert isinstance(await self.hear(), ConnAck)

    async def rest(self) -> bytes:
        """All that still comes."""
        while True:
            data = await self.stream.receive_some()
            if not data:
                return self._read
            self._read += data

    async def _exactly(self, size: int) -> bytes:
        while len(self._read) < size:
            self._read += await self._more()
        data, self._read = self._read[:size], self._read[size:]
        return data

    async def _more(self) -> bytes:
        data = await self.stream.receive_some()
        if not data:
            raise EOFError
        return data


class Serving:
    """A worker with a WebSocket listener, and its port."""

    def __init__(self, config: Config) -> None:
        self.worker = Worker(config, 100)
        self.browsers: list[Browser] = []
        (listener,) = listen(WebSocketListener(host=(HOST,), port=0), config.delivery)
        self.worker.loop.listen(listener, self.worker.transports.by_name["ws"])
        self.port = listener.getsockname()[1]

    async def dial(self) -> Browser:
        browser = Browser(await trio.open_tcp_stream(HOST, self.port))
        self.browsers.append(browser)
        return browser

    async def connected(self, client_id: str) -> Browser:
        browser = await self.dial()
        await browser.connect(client_id)
        return browser

    def closed(self, reason: CloseReason) -> int:
        return self.worker.base.counters.closed_by_reason[reason.label]

    async def until_empty(self) -> None:
        """Until the broker has let go of all connections, as their clients have."""
        for browser in self.browsers:
            await trio.aclose_forcefully(browser.stream)
        await self.until_gone(0)

    async def until_gone(self, left: int) -> None:
        """Until the broker has let go of all connections but *left*."""
        while len(self.worker.reactor.streams()) > left:
            await trio.sleep(0.001)


@asynccontextmanager
async def serving(config: Config | None = None) -> AsyncIterator[Serving]:
    config = config or Config(listeners=with_websocket())
    served = Serving(config)
    stopping = trio.Event()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, served.worker, stopping)
            try:
                yield served
            finally:
                for browser in served.browsers:
                    await trio.aclose_forcefully(browser.stream)
                stopping.set()
    served.worker.close()
    assert 0 == served.worker.base.counters.internal_errors


def with_websocket() -> Listeners:
    return Listeners(ws=WebSocketListener(enabled=True))


async def test_packets_pass_both_ways() -> None:
    """Nothing would work over WebSocket."""
    async with serving() as served:
        browser = await served.dial()
        answer = await browser.upgrade()
        assert "Sec-WebSocket-Protocol: mqtt" in answer or "sec-websocket-protocol: mqtt" in answer
        await browser.say(Connect(V5, "b"), Subscribe(1, [Wanted(b"t", 0)]), Publish(b"t", b"x"), PingReq())
        assert isinstance(await browser.hear(), ConnAck)
        await browser.hear()
        assert {Publish, PingResp} == {type(await browser.hear()), type(await browser.hear())}


@pytest.mark.parametrize("cut", [1, 7, 1000])
async def test_packets_may_cross_the_boundaries_of_frames(cut: int) -> None:
    """A packet in two messages, or in fragments of one, would be malformed [MQTT-6.0.0-2]."""
    async with serving() as served:
        browser = await served.connected("b")
        data = mqtt(Subscribe(1, [Wanted(b"t", 0)]), Publish(b"t", b"x" * 3000))
        pieces = [data[at : at + cut] for at in range(0, len(data), cut)]
        half = len(pieces) // 2
        await browser.stream.send_all(b"".join(frame(BINARY, piece) for piece in pieces[:half]))
        fragments = [frame(BINARY, b"", last=False)]
        fragments += [frame(CONTINUATION, piece, last=False) for piece in pieces[half:]]
        await browser.stream.send_all(b"".join([*fragments, frame(CONTINUATION)]))

        await browser.hear()
        got = await browser.hear()
        assert isinstance(got, Publish) and b"x" * 3000 == got.payload


async def test_a_large_message_passes_both_ways() -> None:
    """What does not fit the kernel's buffers would be lost or stuck."""
    async with serving() as served:
        browser = await served.connected("b")
        await browser.say(Subscribe(1, [Wanted(b"t", 0)]))
        await browser.hear()
        for n in range(5):
            await browser.say(Publish(b"t", LARGE[n:]))
            got = await browser.hear()
            assert isinstance(got, Publish) and LARGE[n:] == got.payload


async def test_a_ping_is_answered_while_mqtt_is_busy() -> None:
    """Proxies and browsers would take the connection for dead."""
    async with serving() as served:
        browser = await served.connected("b")
        await browser.stream.send_all(frame(PING, b"there?"))
        assert (PONG, b"there?") == await browser.frame()


async def test_text_ends_the_connection() -> None:
    """A client that sends text would be misread [MQTT-6.0.0-1]."""
    async with serving() as served:
        browser = await served.connected("b")
        await browser.stream.send_all(frame(TEXT, b"hello"))
        last = await browser.hear()
        assert isinstance(last, Disconnect) and 0x82 == last.code
        assert (CLOSE, (1003).to_bytes(2, "big")) == await browser.frame()
        assert 1 == served.closed(CloseReason.WEBSOCKET_TEXT)


@pytest.mark.parametrize(
    ("path", "subprotocol", "status"),
    [("/", "mqtt", "404"), ("/mqtt/", "mqtt", "404"), ("/mqtt", None, "400"), ("/mqtt", "chat", "400")],
)
async def test_other_requests_are_refused_with_an_answer(path: str, subprotocol: str | None, status: str) -> None:
    """A wrong address would look like a broken network [MQTT-6.0.0-3]."""
    async with serving() as served:
        browser = await served.dial()
        assert f" {status} " in await browser.upgrade(path, subprotocol)
        await browser.rest()
        await served.until_empty()
        assert 1 == served.closed(CloseReason.WEBSOCKET_REFUSED)


@pytest.mark.parametrize("subprotocol", ["mqtt", "mqttv3.1", "chat, mqtt"])
async def test_all_subprotocols_of_mqtt_are_accepted(subprotocol: str) -> None:
    """Old clients, and those that speak several protocols, would be turned away [MQTT-6.0.0-4]."""
    async with serving() as served:
        browser = await served.dial()
        answer = await browser.upgrade("/mqtt?token=1", subprotocol)
        assert "101" in answer and subprotocol.split(", ")[-1] in answer


@pytest.mark.parametrize(
    "garbage",
    [
        mqtt(Connect(V5, "c")),
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        REQUEST.replace(b"Host: ", b"Host: \xe8"),
        b"no HTTP" + REQUEST,
    ],
)
async def test_bytes_that_are_not_a_request_are_refused(garbage: bytes) -> None:
    """MQTT without WebSocket, or a browser that just looks, would hold a connection until the deadline."""
    async with serving() as served:
        browser = await served.dial()
        await browser.stream.send_all(garbage)
        await browser.rest()
        await served.until_empty()
        assert 1 == served.closed(CloseReason.WEBSOCKET_REFUSED) + served.closed(CloseReason.WEBSOCKET_ERROR)


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff", frame(BINARY, b"x", masked=False), frame(3, b"x")])
async def test_bytes_that_are_not_a_frame_end_the_connection(garbage: bytes) -> None:
    """A client that sends anything but frames would be read for ever."""
    async with serving() as served:
        browser = await served.connected("b")
        await browser.stream.send_all(garbage)
        await browser.rest()
        await served.until_empty()
        assert 1 == served.closed(CloseReason.WEBSOCKET_ERROR)


async def test_a_message_that_is_too_large_ends_the_connection() -> None:
    """One client could have the broker collect any number of bytes."""
    config = Config(listeners=with_websocket(), websocket=WebSocket(message_bytes=1024))
    async with serving(config) as served:
        browser = await served.connected("b")
        await browser.stream.send_all(frame(BINARY, mqtt(Publish(b"t", bytes(2000)))))
        await browser.rest()
        await served.until_empty()
        assert 1 == served.closed(CloseReason.WEBSOCKET_ERROR)


async def test_empty_fragments_cost_no_memory() -> None:
    """One client could fill the memory with empty frames."""
    async with serving() as served:
        browser = await served.connected("b")
        (stream,) = served.worker.reactor.streams()
        await browser.stream.send_all(frame(BINARY, last=False) + frame(CONTINUATION, last=False) * 20_000)
        await browser.stream.send_all(frame(CONTINUATION, mqtt(PingReq())))
        assert isinstance(await browser.hear(), PingResp)
        assert stream.layer is not None and 0 == stream.layer.buffered


@pytest.mark.parametrize("cut", [1, 50, 10_000])
async def test_a_request_may_come_in_pieces_and_with_what_follows(cut: int) -> None:
    """A slow network, or a client that does not wait for the answer, would be turned away."""
    async with serving() as served:
        browser = await served.dial()
        said = REQUEST + frame(BINARY, mqtt(Connect(V5, "b"))) + frame(PING, b"?") + frame(BINARY, mqtt(PingReq()))
        for at in range(0, len(said), cut):
            await browser.stream.send_all(said[at : at + cut])
            await trio.testing.wait_all_tasks_blocked()
        assert "101" in await browser.answer()
        heard: dict[int, bytes] = {}
        while not heard.get(BINARY, b"").endswith(mqtt(PingResp())):
            opcode, payload = await browser.frame()
            heard[opcode] = heard.get(opcode, b"") + payload
        assert b"?" == heard[PONG]


async def test_a_request_without_end_is_refused() -> None:
    """One client could have the broker collect any number of bytes."""
    async with serving() as served:
        browser = await served.dial()
        await browser.stream.send_all(b"GET /mqtt HTTP/1.1\r\n" + b"Cookie: x\r\n" * 3000)
        assert b"" == await browser.rest()
        assert 1 == served.closed(CloseReason.WEBSOCKET_ERROR)


async def test_a_request_of_many_lines_is_refused() -> None:
    """16 KiB have room for thousands of headers, each of which is parsed while all other clients wait."""
    async with serving() as served:
        browser = await served.dial()
        await browser.stream.send_all(REQUEST[:-2] + b"a: b\r\n" * 200 + b"\r\n")
        assert b"" == await browser.rest()
        assert 1 == served.closed(CloseReason.WEBSOCKET_ERROR)


class Answered:
    """A layer of a connection that does not exist; it remembers what became of its request."""

    def __init__(self) -> None:
        self.became = ""

    def push(self, data: bytes) -> None:
        pass

    def accept(self) -> None:
        self.became = "accepted"

    def refuse(self, reason: CloseReason, detail: str) -> None:
        self.became = detail


async def test_so_many_requests_are_answered_at_once_and_the_others_wait() -> None:
    """A crowd that comes at once would have the worker do nothing else, and fill its memory with tasks."""
    async with serving() as served, trio.open_nursery() as nursery:
        tasks = UpgradeTasks(served.worker.reactor, "/mqtt", served.worker.base.internal_errors.report)
        nursery.start_soon(tasks.run)
        await trio.testing.wait_all_tasks_blocked(0.01)
        layers = [Answered() for _ in range(3 * UNDER_WAY)]
        started = [tasks.start(cast(WebSocketLayer, layer), REQUEST) for layer in layers]
        assert (UNDER_WAY, 2 * UNDER_WAY) == tasks.statistics()
        started[-1].cancel()
        assert (UNDER_WAY, 2 * UNDER_WAY - 1) == tasks.statistics()
        while tasks.statistics() != (0, 0):
            await trio.sleep(0.001)

        assert ["accepted"] * (3 * UNDER_WAY - 1) + [""] == [layer.became for layer in layers]
        assert 0 == served.worker.reactor.urgent_tasks
        nursery.cancel_scope.cancel()


async def test_a_client_that_closes_during_the_answer_is_not_an_internal_error() -> None:
    """Anybody could fill the log with tracebacks."""
    async with serving() as served:
        for ending in (b"", frame(CLOSE), frame(PING) * 100):
            browser = await served.dial()
            await browser.stream.send_all(REQUEST + ending)
            browser.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            await browser.stream.aclose()
        await served.until_empty()
        assert 3 == served.closed(CloseReason.PEER_RESET) + served.closed(CloseReason.PEER_CLOSED)


async def test_the_client_may_close_as_websocket_does() -> None:
    """A browser tab that is closed politely would be answered by a reset."""
    async with serving() as served:
        browser = await served.connected("b")
        await browser.stream.send_all(frame(CLOSE, (1001).to_bytes(2, "big")))
        assert (CLOSE, (1001).to_bytes(2, "big")) == await browser.frame()
        assert b"" == await browser.rest()
        await served.until_empty()
        assert 1 == served.closed(CloseReason.PEER_CLOSED)


async def test_packets_before_a_close_frame_are_served_and_none_behind_it() -> None:
    """The last messages of a page that is closed would be lost, or bytes be accepted that no client may send."""
    async with serving() as served:
        browser, other = await served.connected("b"), await served.connected("other")
        await other.say(Subscribe(1, [Wanted(b"#", 0)]))
        await other.hear()
        last, behind = mqtt(Publish(b"t", b"last")), mqtt(Publish(b"t", b"behind"))
        await browser.stream.send_all(frame(BINARY, last) + frame(CLOSE) + frame(BINARY, behind))
        await browser.rest()
        await served.until_gone(1)
        await other.say(PingReq())

        got = await other.hear()
        assert isinstance(got, Publish) and b"last" == got.payload
        assert isinstance(await other.hear(), PingResp)


@pytest.mark.parametrize(
    ("said", "answer"),
    [(b"", b""), ((5000).to_bytes(2, "big"), (1002).to_bytes(2, "big")), (b"\x03\xe8\xff", (1007).to_bytes(2, "big"))],
)
async def test_each_close_frame_is_answered(said: bytes, answer: bytes) -> None:
    """A client would wait for the close frame, or not learn its mistake (RFC 6455, 5.5.1)."""
    async with serving() as served:
        browser = await served.dial()
        await browser.upgrade()
        await browser.stream.send_all(frame(CLOSE, said))
        assert (CLOSE, answer) == await browser.frame()
        assert b"" == await browser.rest()


async def test_the_socket_is_shut_after_both_close_frames() -> None:
    """A client would see its connection break, or wait a second at the end of each (RFC 6455, 7.1.1)."""
    async with serving() as served:
        served.worker.reactor.linger = 2 * PATIENCE
        browser = await served.connected("b")
        await browser.say(Disconnect())
        assert (CLOSE, (1000).to_bytes(2, "big")) == await browser.frame()
        (stream,) = served.worker.reactor.streams()
        await browser.stream.send_all(frame(PING) + frame(BINARY, b"what?") + frame(CLOSE))
        assert b"" == await browser.rest()
        await served.until_gone(0)
        assert CLOSED == stream.state


@pytest.mark.parametrize("broken", [frame(TEXT, b"x"), frame(BINARY, b"x", masked=False)])
async def test_the_socket_is_shut_at_once_after_a_violation(broken: bytes) -> None:
    """The connection would wait until the deadline for a close frame that cannot be found (RFC 6455, 7.1.7)."""
    async with serving() as served:
        served.worker.reactor.linger = 2 * PATIENCE
        browser = await served.dial()
        await browser.upgrade()
        await browser.stream.send_all(broken)
        assert CLOSE == (await browser.frame())[0]
        assert b"" == await browser.rest()


async def test_the_last_packet_reaches_a_client_that_is_still_sending() -> None:
    """A reset would discard the reason of the close: here, a takeover."""
    async with serving() as served:
        browser = await served.connected("b")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_flood, browser)
            await served.connected("b")
            last = await browser.hear()
            assert isinstance(last, Disconnect) and 0x8E == last.code
            assert CLOSE == (await browser.frame())[0]
            nursery.cancel_scope.cancel()


async def _flood(browser: Browser) -> None:
    flood = frame(BINARY, mqtt(Publish(b"nobody", bytes(1000))) * 10)
    try:
        while True:
            await browser.stream.send_all(flood)
            await trio.sleep(0)
    except trio.BrokenResourceError:
        pass


async def test_a_client_that_vanishes_is_forgotten() -> None:
    """Tasks and descriptors of connections that broke would pile up."""
    async with serving() as served:
        for ending in (b"", b"GET /mq", UPGRADE[:60].encode(), b"\x82"):
            browser = await served.dial()
            if ending == b"\x82":
                await browser.connect("b")
            await browser.stream.send_all(ending or b"G")
            await browser.stream.aclose()
        await served.until_empty()
        assert 4 == served.closed(CloseReason.PEER_CLOSED) + served.closed(CloseReason.PEER_RESET)


async def test_a_client_that_is_gone_before_the_answer_is_not_an_internal_error() -> None:
    """Each would be an internal error, with its traceback in the log."""
    async with serving() as served:
        browser = await served.connected("b")
        sock = browser.stream.socket
        os.write(sock.fileno(), frame(BINARY, b"x", masked=False))
        served.worker.loop.turn()  # has read it, and trio had no turn to answer it
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        await served.until_empty()


async def test_connections_leave_no_cycles(garbage: list[object]) -> None:
    """Each WebSocket connection would stay in memory after its end, with all that trio-websocket has."""
    async with serving() as served:
        for ending in (b"", b"GET /mq", b"\xff\xff", frame(TEXT, b"t"), frame(CLOSE), mqtt(PingReq())):
            browser = await served.dial()
            if ending and ending[0] & 0x80:
                await browser.connect("b")
            await browser.stream.send_all(ending or b"G")
            await browser.stream.send_eof()
            try:
                await browser.rest()
            except trio.BrokenResourceError:
                pass
        await served.until_empty()
        await trio.testing.wait_all_tasks_blocked()

        assert [] == ours(garbage)


async def test_a_client_that_says_nothing_ends_at_the_deadline() -> None:
    """Half a request would hold a connection for ever."""
    config = Config(listeners=with_websocket(), limits=Limits(connect_timeout=0.5))
    async with serving(config) as served:
        half, idle = await served.dial(), await served.dial()
        await idle.upgrade()
        await half.stream.send_all(b"GET /mqtt HTTP/1.1\r\n")
        assert b"" == await half.rest()
        await idle.rest()
        await served.until_empty()
        assert 2 == served.closed(CloseReason.CONNECT_TIMEOUT)


async def test_a_reader_that_stops_costs_its_watermark() -> None:
    """A WebSocket client that does not read would cost memory without a bound."""
    delivery = Delivery(high_watermark=64 * 1024, low_watermark=32 * 1024)
    async with serving(Config(listeners=with_websocket(), delivery=delivery)) as served:
        slow, fast = await served.connected("slow"), await served.connected("fast")
        await slow.say(Subscribe(1, [Wanted(b"t", 0)]))
        await slow.hear()
        for _ in range(100):
            await fast.say(*[Publish(b"t", LARGE)])
        await fast.say(PingReq())
        await fast.hear()

        assert served.worker.outbound_budget.used < 64 * 1024 + 2 * len(LARGE)
        assert 0 < served.worker.base.counters.dropped_by_reason["not_writable"]


async def test_a_paused_publisher_is_not_read() -> None:
    """Back-pressure would end in the layer, where unread bytes would pile up."""
    async with serving() as served:
        browser = await served.connected("b")
        (stream,) = served.worker.reactor.streams()
        served.worker.reactor.pause(stream, Pause.FANOUT)
        flood = frame(BINARY, mqtt(Publish(b"nobody", bytes(60_000))))
        refused = 0
        while refused < 10:
            await trio.testing.wait_all_tasks_blocked()
            try:
                send_now(browser, flood)
            except BlockingIOError:
                refused += 1
        assert stream.layer is not None and stream.layer.buffered < 200_000


def send_now(browser: Browser, data: bytes) -> int:
    """Send what the kernel takes at once; return how many bytes."""
    sock: socket.socket = browser.stream.socket._sock  # type: ignore[attr-defined]  # trio's own send waits
    return sock.send(data)
