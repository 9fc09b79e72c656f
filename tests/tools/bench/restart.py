# How soon a node serves that has many stored sessions: after a cold start, and a worker that was killed.
#
# The sessions are written as two former workers would have left them, by the bytes that record.py and index.py
# describe, a million in some ten seconds. A publisher publishes to one device after the other all the time, also while
# the worker is killed, and connects again when it has to. Then the devices that it was answered for return, and must
# have each message: one that was acknowledged and is missing is a failure. The same times without sessions are those of
# the processes.
import os
import signal
import threading
import time
from typing import Any, Final

import msgpack
import redis

from broker.mqtt.packets import PUBACK, V311, Ack, Publish
from broker.store.durable.index import index_value
from broker.store.durable.stored_session import FORM, HEAD, LEFT
from broker.store.redis.connection import packed
from broker.store.redis.keys import SLICES, Keys
from tests.system import node as nodes
from tests.system.processes import BrokerProcess
from tests.system.raw import RawClient
from tests.tools.bench.contenders import Bench
from tests.tools.bench.cost import cpu_seconds, resident_kib_of
from tests.tools.bench.durable_sizes import LONGEST, SETTINGS, node_of, redis_of, redis_pid
from tests.tools.bench.stored_sessions import EXPIRY, filters_of
from tests.tools.bench.table import markdown, number

WORKERS: Final = 2
FORMER: Final = (b"0000000000000001", b"0000000000000002")  # no worker that was started has such small incarnations
CALL: Final = 2000  # sessions that are sent to Redis at once
PATIENCE: Final = 60.0  # seconds for an answer to a publish
RETURNING: Final = 1000  # devices that return, at most


class Publisher(threading.Thread):
    """Publishes a message to one device after the other, and knows which of them were acknowledged."""

    def __init__(self, port: int, sessions: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[int, int] = {}  # messages by the number of their device
        self.longest = 0.0  # seconds that an answer took
        self.stop = threading.Event()
        self._port = port
        self._sessions = sessions

    def run(self) -> None:
        client: RawClient | None = None
        device = 0
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                if client is None:
                    client = RawClient(self._port, V311)
                    client.socket.settimeout(PATIENCE)
                    client.connect("publisher")
                client.send(Publish(topic_of(device), b"%d" % device, 1, packet_id=1))
                client.expect(Ack)
            except (OSError, AssertionError):
                client = None  # it is published again, over another connection
                time.sleep(0.01)
                continue
            self.longest = max(self.longest, time.monotonic() - began)
            self.acknowledged[device] = self.acknowledged.get(device, 0) + 1
            device = (device + 7919) % self._sessions


def client_id_of(device: int) -> str:
    return f"device-{device:08}"


def topic_of(device: int) -> bytes:
    return filters_of(client_id_of(device))[0]


def write_sessions(server: "redis.Redis", keys: Keys, node: str, sessions: int, wall: float) -> None:
    """Store *sessions* with two filters each, of workers that have ended."""
    head = msgpack.packb((FORM, EXPIRY, None))
    connection = server.connection_pool.get_connection()
    try:
        for first in range(0, sessions, CALL):
            commands: list[bytes] = []
            values: list[list[bytes | str]] = [[] for _ in range(SLICES * WORKERS)]
            for device in range(first, min(first + CALL, sessions)):
                client = client_id_of(device).encode()
                filters = filters_of(client.decode())
                slice, shard = keys.slice_of(client), device % WORKERS
                records = keys.sessions(slice, FORMER[shard]).records
                fields = [part for filter in filters for part in (filter, b"\1")]
                commands.append(packed("HSET", records + client, HEAD, head, LEFT, b"%.6f" % wall, *fields))
                values[slice * WORKERS + shard] += [client, index_value(wall + EXPIRY, filters)]
            for at, entries in enumerate(values):
                if entries:
                    index = keys.sessions(at // WORKERS, FORMER[at % WORKERS]).index
                    commands.append(packed("HSET", index, *entries))
            connection.send_packed_command(commands)  # type: ignore[no-untyped-call]
            for _ in commands:
                connection.read_response()
    finally:
        server.connection_pool.release(connection)
    for shard, incarnation in enumerate(FORMER):
        server.hset(keys.durable_owners(node), incarnation, shard)


def measure(bench: Bench, sessions: int) -> tuple[str, dict[str, Any]]:
    """A table, and the figures, of a node of WORKERS workers with *sessions* stored sessions."""
    found: dict[str, float] = {}
    began = time.monotonic()
    with bench.weir(workers=WORKERS, more=SETTINGS) as weir:
        found["start without sessions (s)"] = time.monotonic() - began
        empty, spent = _resident(weir), _cpu(weir)
        found["worker killed, without sessions (s)"], replaced = _kill_one(weir)
        with redis.Redis(unix_socket_path=redis_of(bench, weir).path) as stored:
            began = time.monotonic()
            write_sessions(stored, Keys("weir"), node_of(weir), sessions, time.time())
            found["writing them (s)"] = time.monotonic() - began
    began = time.monotonic()
    with bench.weir(workers=WORKERS, more=SETTINGS, port=weir.port, patience=LONGEST) as weir:
        found["cold start, until all workers serve (s)"] = time.monotonic() - began
        found["cold start: CPU of the workers, for a session (us)"] = (_cpu(weir) - spent) / sessions * 1e6
        found["cold start: CPU of Redis, for a session (us)"] = (
            cpu_seconds(redis_pid(redis_of(bench, weir))) / sessions * 1e6
        )
        found["workers, resident, for a session (bytes)"] = (_resident(weir) - empty) / sessions
        publisher = Publisher(weir.port, sessions)
        publisher.start()
        _until(lambda: len(publisher.acknowledged) > 100)
        found["worker killed, until its successor serves (s)"], again = _kill_one(weir)
        found["replaced worker: its CPU, for a session (us)"] = (again - replaced) / (sessions / WORKERS) * 1e6
        after = len(publisher.acknowledged)
        _until(lambda: len(publisher.acknowledged) > after + 500)
        publisher.stop.set()
        publisher.join()
        found["longest wait of the publisher (s)"] = publisher.longest
        found["publishes acknowledged"] = sum(publisher.acknowledged.values())
        began = time.monotonic()
        found["of them missing when their devices return"] = _missing(weir.port, publisher.acknowledged)
        returned = min(len(publisher.acknowledged), RETURNING)
        found["devices that returned, a second"] = returned / (time.monotonic() - began)
    rows = [[what, number(value)] for what, value in found.items()]
    return f"\n{markdown([f'{sessions} sessions, {WORKERS} workers', 'measured'], rows)}", dict(found)


def _resident(weir: BrokerProcess) -> int:
    assert weir.control is not None
    return 1024 * sum(resident_kib_of(pid) for pid in nodes.worker_pids(weir.control))


def _until(done: Any) -> None:
    deadline = time.monotonic() + LONGEST
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _cpu(weir: BrokerProcess) -> float:
    assert weir.control is not None
    return sum(cpu_seconds(pid) for pid in nodes.worker_pids(weir.control))


def _kill_one(weir: BrokerProcess) -> tuple[float, float]:
    """Seconds from the death of a worker until the one that follows serves, and those of its CPU."""
    assert weir.control is not None
    control = weir.control
    victim, *others = nodes.worker_pids(control)
    before = weir.log_text().count("worker_ready")
    os.kill(victim, signal.SIGKILL)
    began = time.monotonic()
    _until(lambda: weir.log_text().count("worker_ready") > before)
    seconds = time.monotonic() - began
    (follower,) = set(nodes.worker_pids(control)) - set(others)
    return seconds, cpu_seconds(follower)


def _missing(port: int, acknowledged: dict[int, int]) -> int:
    """How many devices do not get all of their messages when they return."""
    missing = 0
    for device, count in list(acknowledged.items())[:RETURNING]:
        client = RawClient(port, V311)
        client.connect(client_id_of(device), clean_start=False)
        client.socket.settimeout(5.0)
        try:
            for _ in range(count):
                publish = client.expect(Publish)
                client.send(Ack(PUBACK, publish.packet_id))
        except TimeoutError:
            missing += 1
        client.close()  # some come twice, as they were published again
    return missing
