# How soon a durable session is served at another worker: after a CONNECT there, and after the death of its worker.
#
# The kernel deals connections to the two workers as it likes. So a client connects until it is accepted by the worker
# that it is to reach, and the time begins with its CONNECT. A connection to the same worker for a client id that nobody
# knows, right before, says what a CONNECT costs without a takeover. A session has so many messages in flight, which the
# client gets again and does not acknowledge, or waiting. A client may take its session over five times in ten seconds
# before it is delayed, so there are many.
#
# After a kill the time begins with the signal. The client connects at once, wherever the kernel sends it: to the worker
# that lives, which takes the session in Redis, or into the queue of the dead one, where it waits for the next worker.
# It connects again when it is refused, and is served when it has CONNACK with its session, and its first message. Each
# worker of a node is killed once: its supervisor waits longer after each further death.
import math
import os
import signal
import socket
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from broker.mqtt.encode import encode
from broker.mqtt.packets import PUBACK, V5, Ack, ConnAck, Connect, Properties, Publish
from broker.mqtt.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from broker.mqtt.stream import PacketReader
from tests.system import node
from tests.system.processes import HOST, PATIENCE, BrokerProcess
from tests.system.raw import LIMIT, RawClient
from tests.tools.bench.contenders import Bench
from tests.tools.bench.table import markdown, number
from tests.tools.fuzz.campaign import peers

SETTINGS: Final[Mapping[str, object]] = {
    "store.durability": "process",
    "limits.connects_per_second": 1_000_000,  # all clients come from one address
}
MESSAGES: Final = 1000  # of each session
PAYLOAD: Final = b"x" * 64
TOPIC: Final = "takeover"
BATCH: Final = 50  # publishes that wait for their PUBACK
EACH: Final = 4  # takeovers of one session
MOST_MS: Final = 5.0  # p99
KILLED_MOST_S: Final = 1.5
KILLS: Final = 10
PER_NODE: Final = 2  # kills: one of each worker
LONGEST: Final = 60.0  # seconds until a client is served


class Kind(NamedTuple):
    name: str
    receive_maximum: int  # how many of the messages are in flight


KINDS: Final = (Kind("in flight", MESSAGES), Kind("waiting", 1))


class Comer:
    """A client that does not acknowledge what it gets, on a connection to the worker that it asked for, if to any."""

    def __init__(self, port: int, worker: int = 0) -> None:
        """*worker*: the process id of the one to be accepted by; 0: whichever."""
        self._reader = PacketReader(V5, LIMIT)
        self.publishes = 0  # that it got
        while True:
            self.socket = socket.create_connection((HOST, port), timeout=PATIENCE)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not worker or self._accepted_by(worker):
                return
            self.socket.close()

    def _accepted_by(self, worker: int) -> bool:
        """Whether *worker* accepts it, and not the other one."""
        host, port = self.socket.getsockname()
        deadline = time.monotonic() + 0.05  # an idle worker accepts within a millisecond
        while time.monotonic() < deadline:
            with suppress(FileNotFoundError):  # it has just closed one that was listed
                if f"{host}:{port}" in peers(worker):
                    return True
        return False

    def connect(self, client_id: str, receive_maximum: int) -> tuple[ConnAck | None, float]:
        """CONNECT; what it is answered, or None if the connection ends, and the seconds until then."""
        properties: Properties = {SESSION_EXPIRY_INTERVAL: 3600, RECEIVE_MAXIMUM: receive_maximum}
        packet = encode(Connect(V5, client_id, False, properties=properties), V5)
        began = time.perf_counter()
        try:
            self.socket.sendall(packet)
            data = self.socket.recv(1 << 16)
        except ConnectionError:
            data = b""
        took = time.perf_counter() - began
        received = list(self._reader.feed(data))
        self.publishes = sum(isinstance(each, Publish) for each in received)
        return next((each for each in received if isinstance(each, ConnAck)), None), took

    def read(self, publishes: int) -> None:
        """Read until so many messages have come."""
        while self.publishes < publishes:
            data = self.socket.recv(1 << 20)
            assert data, "the broker closed the connection"
            self.publishes += sum(isinstance(each, Publish) for each in self._reader.feed(data))

    def close(self) -> None:
        self.socket.close()


def measure(bench: Bench, takeovers: int, kills: int, messages: int = MESSAGES) -> tuple[str, dict[str, Any]]:
    """Two tables, and every single time, of at least so many *takeovers* and *kills*."""
    results: dict[str, Any] = {}
    rows = []
    for kind in KINDS:
        with bench.weir(workers=2, more=SETTINGS) as weir:
            taken, new = _takeovers(weir, kind, math.ceil(takeovers / EACH), messages)
        results[kind.name] = {"takeover_ms": taken, "new_ms": new}
        figures = [percentile(each, of) for each in (new, taken) for of in (50, 99)]
        verdict = "fine" if figures[-1] <= MOST_MS else "missed"
        rows.append([f"{messages} {kind.name}", len(taken), *map(number, figures), MOST_MS, verdict])
        print(f"... {kind.name}: p99 {number(percentile(taken, 99))} ms", flush=True)
    header = ["takeover with messages", "takeovers", "new p50 ms", "new p99", "takeover p50 ms", "takeover p99"]
    table = markdown([*header, "at most", ""], rows)
    if not kills:
        return f"\n{table}", results
    served: list[float] = []
    while len(served) < kills:
        with bench.weir(workers=2, more=SETTINGS) as weir:
            served += [_killed(weir, victim, messages) for victim in range(PER_NODE)]
        print(f"... served {number(served[-2])} s and {number(served[-1])} s after a kill", flush=True)
    results["killed_s"] = served
    verdict = "fine" if max(served) <= KILLED_MOST_S else "missed"
    row = [len(served), number(statistics.median(served)), number(max(served)), KILLED_MOST_S, verdict]
    header = ["kills of its worker", "until the client is served: median s", "longest s", "at most", ""]
    return f"\n{table}\n\n{markdown(header, [row])}", results


def percentile(values: Sequence[float], percent: int) -> float:
    """The least value that *percent* % of *values* do not exceed."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def _takeovers(weir: BrokerProcess, kind: Kind, sessions: int, messages: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each takeover, and of a new session before each."""
    workers = _workers(weir)
    in_flight = min(kind.receive_maximum, messages)
    clients = [subscriber(weir, f"taken-{each}", in_flight, workers[0]) for each in range(sessions)]
    publish(weir, messages)
    for client in clients:
        client.read(in_flight)
    taken: list[float] = []
    new: list[float] = []
    for turn in range(EACH):
        for each, client in enumerate(clients):
            worker = workers[(turn + 1) % 2]
            new.append(_new(weir, f"new-{turn}-{each}", worker))
            comer = Comer(weir.port, worker)
            answer, seconds = comer.connect(f"taken-{each}", in_flight)
            assert answer is not None and answer.session_present, answer
            taken.append(1000 * seconds)
            comer.read(in_flight)
            client.close()
            clients[each] = comer
    for client in clients:
        client.close()
    return taken, new


def _new(weir: BrokerProcess, client_id: str, worker: int) -> float:
    comer = Comer(weir.port, worker)
    answer, seconds = comer.connect(client_id, MESSAGES)
    assert answer is not None and answer.code == 0 and not answer.session_present, answer
    comer.close()
    return 1000 * seconds


def _workers(weir: BrokerProcess) -> list[int]:
    assert weir.control is not None
    deadline = time.monotonic() + PATIENCE
    while not (node.serves(weir.control) and len(pids := node.worker_pids(weir.control)) == 2):
        assert time.monotonic() < deadline, "the node does not serve"
        time.sleep(0.05)
    return pids


def subscriber(weir: BrokerProcess, client_id: str, receive_maximum: int, worker: int = 0) -> Comer:
    """A client that has subscribed to TOPIC, and is at *worker*; 0: at any."""
    first = RawClient(weir.port, V5)
    first.connect(client_id, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 3600})
    first.subscribe(TOPIC, qos=1)
    comer = Comer(weir.port, worker)
    answer, _ = comer.connect(client_id, receive_maximum)
    first.close()
    assert answer is not None and answer.session_present, answer
    return comer


def publish(weir: BrokerProcess, count: int) -> None:
    """Publish *count* messages to TOPIC, each acknowledged."""
    publisher = RawClient(weir.port, V5)
    publisher.connect("publisher")
    for begun in range(0, count, BATCH):
        ids = range(begun + 1, min(begun + BATCH, count) + 1)
        publisher.socket.sendall(
            b"".join([encode(Publish(TOPIC.encode(), PAYLOAD, 1, packet_id=id), V5) for id in ids])
        )
        for id in ids:
            publisher.expect_ack(PUBACK, id)
    publisher.disconnect()


def _killed(weir: BrokerProcess, victim: int, messages: int) -> float:
    """Seconds from the death of the worker *victim*, 0 or 1, until its client is served."""
    client_id, worker = f"killed-{victim}", _workers(weir)[victim]
    client = subscriber(weir, client_id, messages, worker)
    publish(weir, messages)
    client.read(messages)
    os.kill(worker, signal.SIGKILL)
    began = time.monotonic()
    with suppress(ConnectionError):
        while client.socket.recv(1 << 20):  # until it sees that its connection is gone
            pass
    while True:
        client.close()
        client = Comer(weir.port)
        client.socket.settimeout(LONGEST)
        answer, _ = client.connect(client_id, messages)
        if answer is not None and answer.code == 0:
            break
        assert time.monotonic() < began + LONGEST, "the client is not served"
    assert answer.session_present, "its session was lost"
    client.read(1)
    took = time.monotonic() - began
    client.read(messages)
    client.socket.sendall(b"".join([encode(Ack(PUBACK, id), V5) for id in range(1, messages + 1)]))
    client.close()
    return took
