# A node that is drained under load, and a node that dies with many clients: what the clients of the other node notice.
#
# The drain: half of the clients publish with QoS 1 and half have stored sessions, in pairs, all at the first of two
# nodes. A client goes where the server reference says, and a publisher sends again what was not acknowledged. At the
# end each message that was acknowledged has to be there.
#
# What clients of the second node notice is measured by pairs in processes of their own, from when a message was due:
# some with stored sessions, which need the store, and some without. Pairs in the process of the load would measure how
# late that process is itself, too: it connects hundreds of clients a second meanwhile.
#
# The death: many idle clients are at the first node, which is killed. All of them connect to the second node at once,
# while a pair is there. They are several processes, as each has a limit of descriptors.
#
# The load is one process that speaks bytes, as 20 000 messages a second are little beside what the nodes do with them.
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, Connect, Disconnect, Properties, Subscribe, Wanted
from broker.mqtt.properties import SERVER_REFERENCE, SESSION_EXPIRY_INTERVAL
from broker.mqtt.stream import PacketReader
from tests.redis_servers import SERVERS, RunningRedis
from tests.system import node
from tests.system.processes import HOST, BrokerProcess, free_port
from tests.system.raw import LIMIT
from tests.tools.bench.contenders import Bench, beside
from tests.tools.bench.hostile import RATE
from tests.tools.bench.scale import swarm
from tests.tools.bench.table import markdown, number

CLIENTS: Final = 2000
MESSAGES: Final = 20_000  # a second, in all
WITNESSES: Final = 20  # pairs of each kind at the other node,
EACH: Final = 1000  # with so many messages a second
BEFORE: Final = 3.0  # seconds of load before the drain, and after it
QUIET: Final = 20.0  # seconds at most until the last message has come
LONGEST: Final = 120.0  # seconds at most until the node is drained
MOST_P99_MS: Final = 50.0  # of the witnesses
START: Final = 60.0  # seconds at most until a node serves
TICK: Final = 0.01  # seconds
AGAIN: Final = 1.0  # seconds until a client that was refused connects again
SWARMS: Final = 4
DEATH_P99_MS: Final = 100.0
DEATH_LONGEST: Final = 60.0  # seconds until everybody is back
NUMBER: Final = struct.Struct(">12xQ")  # the payload
PUBACK: Final = 0x40
PUBLISH: Final = 0x30
CONNACK: Final = 0x20
DISCONNECT: Final = 0xE0
QUICK_SHARE: Final = 20


class Load:
    """All clients, in one loop."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.epoll = select.epoll()
        self.clients: dict[int, Client] = {}  # by descriptor
        self.waiting: deque[tuple[float, Client]] = deque()  # those that connect again, and when
        self.moved = 0  # by a server reference
        self.refused: dict[int, int] = {}  # ends without a server reference, by reason code
        self.longest_s = 0.0  # without a connection

    def turn(self, until: float) -> None:
        """Serve what is ready until *until*."""
        while (now := time.perf_counter()) < until:
            while self.waiting and self.waiting[0][0] <= now:
                self.waiting.popleft()[1].connect()
            for descriptor, _ in self.epoll.poll(min(until - now, TICK)):
                client = self.clients.get(descriptor)
                if client is not None:
                    client.readable()


class Client:
    def __init__(self, load: Load, name: str, port: int, properties: Properties) -> None:
        self.load = load
        self.port = port
        self.connected = False
        self._name = name
        self._properties = properties
        self._left = time.perf_counter()
        self._input = b""
        self.connect()

    def connect(self) -> None:
        self.socket = socket.create_connection((HOST, self.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.load.clients[self.socket.fileno()] = self
        self.load.epoll.register(self.socket.fileno(), select.EPOLLIN)
        self._input = b""
        self.write(encode(Connect(V5, self._name, False, properties=self._properties), V5))

    def write(self, data: bytes) -> None:
        with suppress(ConnectionError):  # the end is read
            self.socket.sendall(data)

    def readable(self) -> None:
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionError:
            data = b""
        if not data:
            self._leave(self._other(), AGAIN)
            return
        data = self._input + data
        position, size = 0, len(data)
        while position + 2 <= size:
            length, head = data[position + 1], 2
            if length & 0x80:
                if position + 3 > size:
                    break
                length, head = (length & 0x7F) | data[position + 2] << 7, 3
            end = position + head + length
            if end > size:
                break
            if not self._packet(data, position, position + head, end):
                return
            position = end
        self._input = data[position:]

    def _packet(self, data: bytes, start: int, body: int, end: int) -> bool:
        """Take a packet; false if the connection ends with it."""
        kind = data[start] & 0xF0
        if kind == PUBACK:
            self.acknowledged(int.from_bytes(data[body : body + 2], "big"))
        elif kind == PUBLISH:
            topic = int.from_bytes(data[body : body + 2], "big")
            at = body + 2 + topic
            self.write(b"\x40\x02" + data[at : at + 2])
            self.received(*NUMBER.unpack_from(data, end - NUMBER.size))
        elif kind in (CONNACK, DISCONNECT):
            (packet,) = PacketReader(V5, LIMIT).feed(data[start:end])
            code = packet.code  # type: ignore[union-attr]  # both have one
            if kind == CONNACK and code == 0:
                self.load.longest_s = max(self.load.longest_s, time.perf_counter() - self._left)
                self.connected = True
                self.welcome()
                return True
            place = packet.properties.get(SERVER_REFERENCE)  # type: ignore[union-attr]
            if isinstance(place, str):
                self.load.moved += 1
                self._leave(int(place.rpartition(":")[2]), 0.0)
            else:
                self.load.refused[code] = self.load.refused.get(code, 0) + 1
                self._leave(self.port, AGAIN)
            return False
        return True

    def _other(self) -> int:
        first, second = self.load.ports
        return second if self.port == first else first

    def _leave(self, port: int, pause: float) -> None:
        if self.connected:
            self._left = time.perf_counter()
        self.connected = False
        self.load.epoll.unregister(self.socket.fileno())
        del self.load.clients[self.socket.fileno()]
        self.socket.close()
        self.port = port
        if pause:
            self.load.waiting.append((time.perf_counter() + pause, self))
        else:
            self.connect()

    def close(self) -> None:
        self.write(encode(Disconnect(), V5))
        self.socket.close()

    def welcome(self) -> None:
        """CONNACK has come."""

    def acknowledged(self, packet_id: int) -> None:
        """PUBACK has come."""

    def received(self, number: int) -> None:
        """A message has come."""


class Subscriber(Client):
    def __init__(self, load: Load, number: int, port: int) -> None:
        self.topic = b"drain/%d" % number
        self.came: set[int] = set()
        self.doubled = 0
        self.subscribed = False
        super().__init__(load, f"subscriber-{number}", port, {SESSION_EXPIRY_INTERVAL: 3600})

    def welcome(self) -> None:
        if not self.subscribed:
            self.subscribed = True
            self.write(encode(Subscribe(1, [Wanted(self.topic, 1)]), V5))

    def received(self, number: int) -> None:
        self.doubled += number in self.came
        self.came.add(number)


class Publisher(Client):
    def __init__(self, load: Load, number: int, port: int) -> None:
        self.sent = 0
        self.acked: set[int] = set()
        self._open: dict[int, bytes] = {}  # what is not acknowledged, by number
        self._topic = b"drain/%d" % number
        super().__init__(load, f"publisher-{number}", port, {SESSION_EXPIRY_INTERVAL: 3600})

    def welcome(self) -> None:
        """Publish again what was not acknowledged [MQTT-4.4.0-1]."""
        if self._open:
            self.write(b"".join(bytes((data[0] | 8,)) + data[1:] for data in self._open.values()))

    def publish(self) -> None:
        self.sent += 1
        payload = NUMBER.pack(self.sent)
        packet_id = (self.sent - 1) % 65535 + 1
        topic = self._topic
        body = len(topic).to_bytes(2, "big") + topic + packet_id.to_bytes(2, "big") + b"\0" + payload
        self._open[packet_id] = data = b"\x32" + bytes((len(body),)) + body
        if self.connected:
            self.write(data)

    def acknowledged(self, packet_id: int) -> None:
        if self._open.pop(packet_id, None) is not None:
            base = (self.sent - packet_id) // 65535 * 65535
            self.acked.add(base + packet_id)

    def open(self) -> int:
        return len(self._open)


def measure(bench: Bench, clients: int, quick: bool) -> tuple[str, dict[str, Any]]:
    """Tables, and every single result. *clients* connect to the second node when the first one dies."""
    share = QUICK_SHARE if quick else 1
    with _nodes(bench, 1) as nodes:
        drained = _drain(bench, nodes, CLIENTS // share, MESSAGES // share)
    print("... the drain", flush=True)
    with _nodes(bench, 2) as nodes:
        died = _death(bench, nodes, clients)
    rows = [
        ["acknowledged", drained["acknowledged"], ""],
        ["of them lost", drained["lost"], 0],
        ["delivered twice", drained["doubled"], ""],
        ["seconds of the drain", number(drained["seconds"]), ""],
        ["clients that followed a reference", drained["moved"], ""],
        ["ends without one, by code", _codes(drained["refused"]), ""],
        ["longest without a connection, s", number(drained["longest_s"]), ""],
        ["p99 at the other node, ms", number(drained["p99_ms"]), MOST_P99_MS],
        ["p99 there of stored sessions, ms", number(drained["stored_p99_ms"]), MOST_P99_MS],
        ["both before the drain", f"{number(drained['p99_before_ms'])}, {number(drained['stored_p99_before_ms'])}", ""],
        ["processors that are busy", number(drained["busy"]), os.cpu_count()],
        ["of them with these clients", number(drained["own"]), ""],
    ]
    pair = died["pair"]
    death: list[list[object]] = [
        [clients, number(died["seconds"]), DEATH_LONGEST, number(pair["p99_us"] / 1e3), DEATH_P99_MS]
    ]
    header = ["reconnects after a death", "all back, s", "at most", "p99 of a pair, ms", "at most"]
    tables = f"{markdown(['drain', '', 'at most'], rows)}\n\n{markdown(header, death)}"
    return f"\n{tables}", {"drain": drained, "death": died}


@contextmanager
def _nodes(bench: Bench, workers: int) -> Iterator[list[BrokerProcess]]:
    """Two nodes that share a server, and say how clients reach them."""
    folder = Path(tempfile.mkdtemp(dir=bench.folder))
    server = RunningRedis(SERVERS[-1], folder / "redis")
    try:
        with ExitStack() as stack:
            nodes = []
            for _ in range(2):
                port = free_port()
                settings: dict[str, object] = {"redis.url": f"unix://{server.socket}"}
                settings |= {"limits.connects_per_second": 1_000_000, "store.durability": "process"}
                settings |= {"node.reference": f"{HOST}:{port}"}
                nodes.append(stack.enter_context(bench.weir(workers=workers, more=settings, port=port, patience=START)))
            yield nodes
    finally:
        server.end()
        shutil.rmtree(folder)


class Witnesses:
    """Pairs at a node, with stored sessions or without, whose delays are measured from `begin()` on."""

    def __init__(self, bench: Bench, weir: BrokerProcess, name: str, stored: bool) -> None:
        command = [str(bench.mqload), "--pubs", str(WITNESSES), "--qos", "1", "--rate", str(EACH), "--live", "--v5"]
        command += ["--prefix", f"{name}-{stored}", "--port", str(weir.port), "--maxsec", "300", "--count", "10000000"]
        if stored:
            command.append("--persistent")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stdout.readline(), "the witnesses cannot connect"

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> float:
        """The p99 in ms since `begin()`."""
        found: dict[str, Any] = json.loads(self._process.communicate()[0])
        return float(found["p99_us"]) / 1e3


@contextmanager
def _witnesses(bench: Bench, weir: BrokerProcess, name: str) -> Iterator[list[float]]:
    """The p99 in ms at *weir* within this scope, without stored sessions and with."""
    p99: list[float] = []
    both = [Witnesses(bench, weir, name, stored) for stored in (False, True)]
    for one in both:
        one.begin()
    yield p99
    p99 += [one.end() for one in both]


def _processor_seconds() -> float:
    """Of all processes of this machine since it was started."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _drain(bench: Bench, nodes: list[BrokerProcess], clients: int, rate: int) -> dict[str, Any]:
    first, second = nodes
    assert first.control is not None
    load = Load([first.port, second.port])
    pairs = clients // 2
    subscribers = [Subscriber(load, number, first.port) for number in range(pairs)]
    publishers = [Publisher(load, number, first.port) for number in range(pairs)]
    _until(load, lambda: all(one.connected for one in [*subscribers, *publishers]), LONGEST, "connect")
    with _witnesses(bench, second, "before") as before:
        _publish(load, publishers, rate, time.perf_counter() + BEFORE)
    name = node.status(first.control)["node"]
    with _witnesses(bench, second, "during") as during:
        began, used, own = time.perf_counter(), _processor_seconds(), time.process_time()
        node.ask(first.control, "drain", node=name, force=False)
        while node.ask(first.control, "drain_progress", node=name)["state"] != "drained":
            assert time.perf_counter() - began < LONGEST, "the node is not drained"
            _publish(load, publishers, rate, time.perf_counter() + 0.2)
        seconds = time.perf_counter() - began
        _publish(load, publishers, rate, time.perf_counter() + BEFORE)  # the last ones have been sent away, not let in
        elapsed = time.perf_counter() - began
        busy, own = (_processor_seconds() - used) / elapsed, (time.process_time() - own) / elapsed
    _until(load, lambda: not any(one.open() for one in publishers), QUIET, "acknowledge all")
    missing = [one.acked - other.came for one, other in zip(publishers, subscribers, strict=True)]
    deadline = time.perf_counter() + QUIET
    while any(missing) and time.perf_counter() < deadline:
        load.turn(time.perf_counter() + 0.2)
        missing = [one.acked - other.came for one, other in zip(publishers, subscribers, strict=True)]
    for client in list(load.clients.values()):
        client.close()
    return {
        "acknowledged": sum(len(one.acked) for one in publishers),
        "lost": sum(map(len, missing)),
        "doubled": sum(one.doubled for one in subscribers),
        "seconds": seconds,
        "moved": load.moved,
        "refused": load.refused,
        "longest_s": load.longest_s,
        "p99_ms": during[0],
        "stored_p99_ms": during[1],
        "p99_before_ms": before[0],
        "stored_p99_before_ms": before[1],
        "busy": busy,
        "own": own,
    }


def _publish(load: Load, publishers: list[Publisher], rate: int, until: float) -> None:
    """Have all *publishers* in turn publish *rate* messages a second."""
    began, sent = time.perf_counter(), 0
    while (now := time.perf_counter()) < until:
        due = int((now - began) * rate)
        while sent < due:
            publishers[sent % len(publishers)].publish()
            sent += 1
        load.turn(now + TICK)


def _until(load: Load, done: Any, seconds: float, what: str) -> None:
    deadline = time.perf_counter() + seconds
    while not done():
        assert time.perf_counter() < deadline, f"the clients do not {what}"
        load.turn(time.perf_counter() + TICK)


def _death(bench: Bench, nodes: list[BrokerProcess], clients: int) -> dict[str, Any]:
    first, second = nodes
    each = clients // SWARMS
    command = [str(bench.mqload), "--pubs", "1", "--qos", "1", "--rate", str(RATE), "--prefix", "pair"]
    command += ["--count", str(RATE * 5), "--port", str(second.port), "--maxsec", "120"]
    with ExitStack() as stack:
        _arrive(bench, stack, first, each)
        for pid in [first.pid, *node.worker_pids(_control(first))]:
            os.kill(pid, signal.SIGKILL)
        pair = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        seconds = _arrive(bench, stack, second, each)
        found: dict[str, Any] = json.loads(pair.communicate()[0])
    return {"seconds": seconds, "pair": found}


def _arrive(bench: Bench, stack: ExitStack, weir: BrokerProcess, each: int) -> float:
    """Seconds until SWARMS times *each* clients are connected, which stay."""
    began = time.monotonic()
    swarms = [
        stack.enter_context(beside(swarm(bench, weir, "idle", count=each, window=each, first=each * number)))
        for number in range(SWARMS)
    ]
    for one in swarms:
        assert one.stdout is not None and one.stdout.readline(), "not all clients could connect"
    return time.monotonic() - began


def _codes(refused: dict[int, int]) -> str:
    return ", ".join(f"0x{code:02X}: {count}" for code, count in sorted(refused.items())) or "none"


def _control(weir: BrokerProcess) -> Path:
    assert weir.control is not None
    return weir.control
