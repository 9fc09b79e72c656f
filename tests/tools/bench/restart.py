# How soon a node serves that has many stored sessions: after a cold start, and a worker that was killed.
#
# The sessions are written as former workers would have left them, by the bytes that record.py and index.py describe, a
# million in some ten seconds. Publishers publish to one device after the other all the time, from before the cold start
# on and while a worker is killed, at a steady rate; they connect again when they have to. Then devices that they were
# answered for return, and must have each message: one that was acknowledged and is missing is a failure. The same times
# without sessions are those of the processes.
#
# A node serves when a publish is acknowledged: what matters to publishers is the longest time without any answer. Those
# of a worker that was killed are closed, so some of them always wait for its successor.
import os
import signal
import threading
import time
from collections.abc import Callable
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
from tests.tools.bench.cost import cpu_seconds, status_kib
from tests.tools.bench.durable_sizes import LONGEST, SETTINGS, node_of, redis_of, redis_pid
from tests.tools.bench.stored_sessions import EXPIRY, filters_of
from tests.tools.bench.table import markdown, number

CALL: Final = 2000  # sessions that are sent to Redis at once
PATIENCE: Final = 60.0  # seconds for an answer to a publish
RETURNING: Final = 1000  # devices that return, at most
PUBLISHERS: Final = 6  # so the successor of a worker that is killed gets some of them
PERIOD: Final = 0.02  # seconds between two publishes of one
FURTHER: Final = 200  # publishes that are acknowledged before something is done, and behind it


class Publisher(threading.Thread):
    """Publishes a message to one device after the other, and knows which of them were acknowledged."""

    def __init__(self, port: int, name: str, sessions: int, first: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[int, int] = {}  # messages by the number of their device
        self.longest = 0.0  # seconds from when a publish was due until it was answered, also over further connections
        self.stop = threading.Event()
        self._port = port
        self._name = name
        self._sessions = sessions
        self._device = first

    def run(self) -> None:
        client: RawClient | None = None
        due = time.monotonic()
        while not self.stop.is_set():
            try:
                if client is None:
                    client = RawClient(self._port, V311)
                    client.socket.settimeout(PATIENCE)
                    client.connect(self._name)
                client.send(Publish(topic_of(self._device), b"%d" % self._device, 1, packet_id=1))
                client.expect(Ack)
            except (OSError, AssertionError):
                client = None  # it is published again, over another connection
                time.sleep(0.01)
                continue
            self.longest = max(self.longest, time.monotonic() - due)
            self.acknowledged[self._device] = self.acknowledged.get(self._device, 0) + 1
            self._device = (self._device + 7919) % self._sessions
            due = max(due + PERIOD, time.monotonic() - PERIOD)
            time.sleep(max(0.0, due - time.monotonic()))


class Publishers:
    def __init__(self, port: int, sessions: int) -> None:
        firsts = range(0, sessions, -(-sessions // PUBLISHERS))
        self._all = [Publisher(port, f"publisher-{first}", sessions, first) for first in firsts]
        for each in self._all:
            each.start()

    def pause(self) -> float:
        """The longest time that one of them has waited since the last call, once each has been answered again."""
        before = [sum(each.acknowledged.values()) for each in self._all]
        _until(lambda: all(sum(p.acknowledged.values()) > n for p, n in zip(self._all, before, strict=True)))
        longest = max(each.longest for each in self._all)
        for each in self._all:
            each.longest = 0.0
        return longest

    def further(self) -> None:
        """Wait until more publishes have been acknowledged."""
        before = self.count()
        _until(lambda: self.count() > before + FURTHER)

    def count(self) -> int:
        return sum(sum(each.acknowledged.values()) for each in self._all)

    def end(self) -> dict[int, int]:
        """Messages that were acknowledged, by the number of their device."""
        for each in self._all:
            each.stop.set()
        found: dict[int, int] = {}
        for each in self._all:
            each.join()
            for device, count in each.acknowledged.items():
                found[device] = found.get(device, 0) + count
        return found


def client_id_of(device: int) -> str:
    return f"device-{device:08}"


def topic_of(device: int) -> bytes:
    return filters_of(client_id_of(device))[0]


def write_sessions(server: "redis.Redis", keys: Keys, node: str, workers: int, sessions: int, wall: float) -> None:
    """Store *sessions* with two filters each, of *workers* that have ended."""
    former = [b"%016x" % (shard + 1) for shard in range(workers)]  # no worker that was started is so small a number
    head = msgpack.packb((FORM, EXPIRY, None))
    connection = server.connection_pool.get_connection()
    try:
        for first in range(0, sessions, CALL):
            commands: list[bytes] = []
            values: list[list[bytes | str]] = [[] for _ in range(SLICES * workers)]
            for device in range(first, min(first + CALL, sessions)):
                client = client_id_of(device).encode()
                filters = filters_of(client.decode())
                slice, shard = keys.slice_of(client), device % workers
                records = keys.sessions(slice, former[shard]).records
                fields = [part for filter in filters for part in (filter, b"\1")]
                commands.append(packed("HSET", records + client, HEAD, head, LEFT, b"%.6f" % wall, *fields))
                values[slice * workers + shard] += [client, index_value(wall + EXPIRY, filters)]
            for at, entries in enumerate(values):
                if entries:
                    index = keys.sessions(at // workers, former[at % workers]).index
                    commands.append(packed("HSET", index, *entries))
            connection.send_packed_command(commands)  # type: ignore[no-untyped-call]
            for _ in commands:
                connection.read_response()
    finally:
        server.connection_pool.release(connection)
    for shard, incarnation in enumerate(former):
        server.hset(keys.durable_owners(node), incarnation, shard)


def measure(bench: Bench, workers: int, sessions: int) -> tuple[str, dict[str, Any]]:
    """A table, and the figures, of a node of *workers* with *sessions* stored sessions."""
    found: dict[str, float] = {}
    settings = {**SETTINGS, "limits.sessions": 2 * sessions}  # the publishers are some, too
    began = time.monotonic()
    with bench.weir(workers=workers, more=settings) as weir:
        found["start without sessions (s)"] = time.monotonic() - began
        empty, spent = _memory(weir, "VmRSS:"), _cpu(weir)
        found["worker killed, without sessions (s)"], replaced = _kill_one(weir)
        with redis.Redis(unix_socket_path=redis_of(bench, weir).path) as stored:
            began = time.monotonic()
            write_sessions(stored, Keys("weir"), node_of(weir), workers, sessions, time.time())
            found["writing them (s)"] = time.monotonic() - began
    publishers = Publishers(weir.port, sessions)
    began = time.monotonic()
    with bench.weir(workers=workers, more=settings, port=weir.port, patience=LONGEST) as weir:
        found["cold start, until all workers serve (s)"] = time.monotonic() - began
        found["cold start: CPU of the workers, for a session (us)"] = (_cpu(weir) - spent) / sessions * 1e6
        found["cold start: CPU of Redis, for a session (us)"] = (
            cpu_seconds(redis_pid(redis_of(bench, weir))) / sessions * 1e6
        )
        publishers.pause()
        found["cold start, until a publish of each client was acknowledged (s)"] = time.monotonic() - began
        found["workers, resident, for a session (bytes)"] = (_memory(weir, "VmRSS:") - empty) / sessions
        found["workers, resident at most since the start, for a session (bytes)"] = (
            _memory(weir, "VmHWM:") - empty
        ) / sessions
        publishers.further()
        found["longest pause of a publisher behind it (s)"] = publishers.pause()
        found["worker killed, until its successor serves (s)"], again = _kill_one(weir)
        found["replaced worker: its CPU, for a session (us)"] = (again - replaced) / (sessions / workers) * 1e6
        found["longest pause of a publisher then (s)"] = publishers.pause()
        publishers.further()
        found["longest pause of a publisher behind that (s)"] = publishers.pause()
        found["workers, resident at most, for a session (bytes)"] = (_memory(weir, "VmHWM:") - empty) / sessions
        acknowledged = publishers.end()
        found["publishes acknowledged"] = sum(acknowledged.values())
        began = time.monotonic()
        found["of them missing when their devices return"] = _missing(weir.port, acknowledged)
        returned = min(len(acknowledged), RETURNING)
        found["devices that returned, a second"] = returned / (time.monotonic() - began)
    rows = [[what, number(value)] for what, value in found.items()]
    return f"\n{markdown([f'{sessions} sessions, {workers} workers', 'measured'], rows)}", dict(found)


def _memory(weir: BrokerProcess, what: str) -> int:
    """Bytes of all workers: "VmRSS:", or the most there have been: "VmHWM:"."""
    assert weir.control is not None
    return 1024 * sum(status_kib(pid, what) for pid in nodes.worker_pids(weir.control))


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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
    devices = list(acknowledged)
    for device in devices[:: max(1, len(devices) // RETURNING)][:RETURNING]:
        count = acknowledged[device]
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
