# A whole worker under trio, in trio's own time: start, $SYS, the drain.

import pytest
import trio
import trio.testing

from broker.config.drain import Drain
from broker.config.schema import Config, Sys, Tcp
from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, ConnAck, Connect, Disconnect, Packet, PingReq, PingResp, Publish, Subscribe, Wanted
from broker.mqtt.stream import PacketReader
from broker.net.listeners import listen
from broker.worker import Worker
from tests.inprocess import serve

HOST = "127.0.0.1"
LARGEST = 1 << 20


class Visitor:
    """A client on a trio stream."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._reader = PacketReader(V5, LARGEST)
        self._read: list[Packet] = []

    async def send(self, *packets: Packet) -> None:
        await self.stream.send_all(b"".join(encode(packet, V5) for packet in packets))

    async def receive(self) -> Packet | None:
        """The next packet, None at the end."""
        while not self._read:
            data = await self.stream.receive_some()
            if not data:
                return None
            self._read += self._reader.feed(data)
        return self._read.pop(0)

    async def uptime(self) -> tuple[int, bool]:
        """The next uptime that the broker tells, in seconds, and whether it was retained."""
        while True:
            packet = await self.receive()
            if isinstance(packet, Publish) and packet.topic == b"$SYS/broker/uptime":
                return int(packet.payload.split()[0]), packet.retain


def a_worker(config: Config) -> tuple[Worker, int]:
    """A worker in trio's time, and the port it listens on."""
    (listener,) = listen(Tcp(host=(HOST,), port=0), config.delivery)
    worker = Worker(config, 100, trio.current_time)
    worker.loop.listen(listener)
    return worker, listener.getsockname()[1]


async def visit(port: int, client_id: str) -> Visitor:
    visitor = Visitor(await trio.open_tcp_stream(HOST, port))
    await visitor.send(Connect(V5, client_id))
    assert isinstance(await visitor.receive(), ConnAck)
    return visitor


async def test_a_worker_serves_until_it_is_stopped(nursery: trio.Nursery) -> None:
    """Nobody would be served, or the end come without a word [0x8B], or never."""
    worker, port = a_worker(Config())
    stopping, stopped = trio.Event(), trio.Event()
    nursery.start_soon(_serve, worker, stopping, stopped)
    visitor = await visit(port, "me")
    async with visitor.stream:
        await visitor.send(PingReq())
        assert PingResp() == await visitor.receive()
        stopping.set()
        assert Disconnect(0x8B) == await visitor.receive()
        assert None is await visitor.receive()
    await stopped.wait()
    with pytest.raises(OSError):
        await trio.open_tcp_stream(HOST, port)


async def _serve(worker: Worker, stopping: trio.Event, stopped: trio.Event) -> None:
    await serve(worker, stopping)
    worker.close()
    stopped.set()


async def test_sys_is_published_again_and_again(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    """Dashboards would show nothing, or what was true at the start; a new one would wait for the next round."""
    autojump_clock.autojump_threshold = 0.01
    worker, port = a_worker(Config(sys=Sys(interval=10.0)))
    stopping, stopped = trio.Event(), trio.Event()
    nursery.start_soon(_serve, worker, stopping, stopped)
    visitor = await visit(port, "me")
    async with visitor.stream:
        await visitor.send(Subscribe(1, [Wanted(b"$SYS/broker/#")]))
        told = [await visitor.uptime() for _ in range(3)]
    stopping.set()

    assert [(0, True), (10, False), (20, False)] == told


async def test_sys_can_be_switched_off(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    """An interval of 0 would publish all the time, or not be taken for an answer."""
    worker, _ = a_worker(Config(sys=Sys(interval=0.0)))
    stopping, stopped = trio.Event(), trio.Event()
    nursery.start_soon(_serve, worker, stopping, stopped)
    await trio.sleep(60)
    stopping.set()
    await stopped.wait()

    assert 0 == worker.retained.statistics().count


async def test_timers_fire_though_nobody_says_anything(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """A worker that sleeps would not wake for what falls due: silent clients would stay."""
    autojump_clock.autojump_threshold = 0.01
    worker, port = a_worker(Config(sys=Sys(interval=0.0)))
    stopping, stopped = trio.Event(), trio.Event()
    nursery.start_soon(_serve, worker, stopping, stopped)
    stranger = Visitor(await trio.open_tcp_stream(HOST, port))
    began = trio.current_time()
    async with stranger.stream:
        with trio.fail_after(60):
            assert None is await stranger.receive()
        waited = trio.current_time() - began
    stopping.set()

    assert 5.0 <= waited < 6.0  # limits.connect_timeout, in trio's time


async def test_the_drain_has_an_end(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    """A client that never leaves would keep a stopped broker from ending."""
    autojump_clock.autojump_threshold = 0.01
    worker, port = a_worker(Config(drain=Drain(timeout=0.5)))
    stopping, stopped = trio.Event(), trio.Event()
    nursery.start_soon(_serve, worker, stopping, stopped)
    visitor = await visit(port, "me")
    async with visitor.stream:
        began = trio.current_time()
        stopping.set()
        await stopped.wait()

    assert trio.current_time() - began < 1.0
