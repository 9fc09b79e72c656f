# What durable sessions take while nothing happens: bytes in Redis and in the worker, and how long a node takes to serve
# with many of them, after a cold start and after the death of its worker.
#
# The sessions of the restarts are written as a former worker would have left them (stored_sessions.py). Those whose
# bytes in the worker count are made by clients. Bytes in Redis are what the server says of each key, and the place of
# the key in its table; those in the worker are differences of resident memory. Times on a machine that others use as
# well say little: the CPU of each process does, of the worker without that of its start.
import os
import signal
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import redis

from broker.mqtt.packets import V311
from broker.protocol.cold_sessions import COOL_AFTER
from broker.store.redis.address import RedisAddress
from supervisor.redis_server import BINARY, PACKAGE, packaged
from tests.system.processes import BrokerProcess
from tests.system.raw import RawClient
from tests.tools.bench.contenders import Bench
from tests.tools.bench.cost import cpu_seconds, resident_kib_of
from tests.tools.bench.scale import descriptors
from tests.tools.bench.stored_sessions import PAYLOAD, TOPIC, filters_of, redis_bytes, stored_sessions
from tests.tools.bench.table import markdown, number

SETTINGS: Final[Mapping[str, object]] = {
    "store.durability": "process",
    "overload.enabled": "false",  # thousands of clients connect from one address
    "limits.connects_per_second": 1_000_000,
    "redis.memory": "8GiB",
}
LONGEST: Final = 600.0  # seconds until a node serves
DEEP: Final = 10_000  # messages of one queue
RECEIVERS: Final = 1_000  # absent subscribers of one publish
FURTHER: Final = 20  # publishes to them
COMERS: Final = 5_000  # clients that come one by one, subscribe and leave
HERE: Final = 2_000  # clients that are connected at once
COOLED: Final = COOL_AFTER + 5.0  # seconds until sessions whose clients have left are in Redis alone
PLACE: Final = 24  # bytes of a key in a table of Valkey's, at most: 7 share 64 bytes, in a table that is half full
RESTART: Final = 1_000_000  # sessions that the goals of a restart are for


class Goal(NamedTuple):
    what: str
    unit: str
    most: float


IDLE: Final = Goal("Redis: an idle session with 2 filters, and its owner", "bytes", 450)
ONE: Final = Goal("Redis: a queue of one message of 64 bytes", "bytes", 300)
EACH: Final = Goal("Redis: each message of a queue of 10 000, beside payload and topic", "bytes", 24)
SPREAD: Final = Goal("Redis: one publish to 1 000 absent subscribers, for each whose queue is there", "bytes", 40)
ABSENT: Final = Goal("worker: a session whose client has left", "bytes", 400)
ADOPTED: Final = Goal("worker: a session that was adopted", "bytes", 400)
CONNECTED: Final = Goal("worker: a connected session", "bytes", 8192)
COLD: Final = Goal("cold start, until it serves", "s", 15)
COLD_WORKER: Final = Goal("cold start: CPU of the worker, for a session", "us", COLD.most / RESTART * 1e6)
COLD_REDIS: Final = Goal("cold start: CPU of Redis, for a session", "us", COLD.most / RESTART * 1e6)
REPLACED: Final = Goal("replaced worker, until it serves", "s", 2)
REPLACED_WORKER: Final = Goal("replaced worker: its CPU, for a session", "us", REPLACED.most / RESTART * 1e6)
REPLACED_REDIS: Final = Goal("replaced worker: CPU of Redis, for a session", "us", REPLACED.most / RESTART * 1e6)


def node_of(weir: BrokerProcess) -> str:
    """The name of the node, and of its folder (`weir_command()`)."""
    return f"node-{weir.port}"


def redis_of(bench: Bench, weir: BrokerProcess) -> RedisAddress:
    return RedisAddress(path=str(bench.folder / node_of(weir) / "redis" / "redis.sock"))


def redis_pid(address: RedisAddress) -> int:
    with redis.Redis(unix_socket_path=address.path) as client:
        return int(client.info("server")["process_id"])


def measure(bench: Bench, sessions: int) -> tuple[str, dict[str, Any]]:
    """A table, and the figures, of a node of one worker with *sessions* stored sessions."""
    found: dict[Goal, float] = {}
    for program in packaged(PACKAGE, BINARY):  # not an older one of this machine
        os.environ["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    with bench.weir(more=SETTINGS) as weir:
        server = _redis(redis_of(bench, weir), node_of(weir), sessions, found)
    with bench.weir(more=SETTINGS) as weir:
        _absent(weir, min(COMERS, sessions), found)
    with bench.weir(more=SETTINGS) as weir:
        _connected(weir, min(HERE, sessions, descriptors()), found)
    with (
        bench.weir(more=SETTINGS) as weir,
        stored_sessions(redis_of(bench, weir), node_of(weir), time.time()) as stored,
    ):
        empty, starting = _resident(weir), cpu_seconds(weir.worker_pid)
        stored.write("device", sessions)
        stored.leave()
    began = time.monotonic()
    with bench.weir(more=SETTINGS, port=weir.port, patience=LONGEST) as weir:
        found[COLD] = time.monotonic() - began
        found[COLD_WORKER] = (cpu_seconds(weir.worker_pid) - starting) / sessions * 1e6
        found[COLD_REDIS] = cpu_seconds(redis_pid(redis_of(bench, weir))) / sessions * 1e6
        found[ADOPTED] = (_resident(weir) - empty) / sessions
        _replaced(weir, redis_pid(redis_of(bench, weir)), starting, sessions, found)
    rows = [[goal.what, number(value), goal.unit, number(goal.most)] for goal, value in found.items()]
    table = markdown([f"{sessions} sessions, {server}", "measured", "", "at most"], rows)
    return f"\n{table}", {goal.what: value for goal, value in found.items()}


def _resident(weir: BrokerProcess) -> int:
    return 1024 * resident_kib_of(weir.worker_pid)


def _redis(address: RedisAddress, node: str, sessions: int, found: dict[Goal, float]) -> str:
    """Returns the name and version of the server."""
    with stored_sessions(address, node, time.time()) as stored:
        stored.write("device", sessions)
        stored.own("device", sessions)
        few = max(1, sessions // 10)
        stored.write("one", few, messages=1)
        stored.write("deep", 1, messages=DEEP)
        stored.spread("spread-once", RECEIVERS, 1)
        stored.spread("spread-often", RECEIVERS, 1 + FURTHER)
    with redis.Redis(unix_socket_path=address.path) as client:
        idle = redis_bytes(client, "*:session:*:device-*") + redis_bytes(client, "*:owner:device-*")
        index = redis_bytes(client, "*:sessions:*") / (sessions + few + 1 + 2 * RECEIVERS)
        found[IDLE] = idle / sessions + index + 3 * PLACE  # that of the owner has a time, too
        found[ONE] = redis_bytes(client, "*:queue:*:one-*") / few + PLACE
        found[EACH] = redis_bytes(client, "*:queue:*:deep-*") / DEEP - len(PAYLOAD) - len(TOPIC)
        one, more = (redis_bytes(client, f"*:queue:*:{name}-*") for name in ("spread-once", "spread-often"))
        found[SPREAD] = (more - one) / RECEIVERS / FURTHER
        about = client.info("server")
        return f"Valkey {about['valkey_version']}" if "valkey_version" in about else f"Redis {about['redis_version']}"


def _absent(weir: BrokerProcess, clients: int, found: dict[Goal, float]) -> None:
    """Clients that come one by one, subscribe and leave. As many have come before them, and left the memory."""
    for each in range(clients):
        _visit(weir, "before", each)
    time.sleep(COOLED)
    before = _resident(weir)
    for each in range(clients):
        _visit(weir, "away", each)
    time.sleep(COOLED)
    found[ABSENT] = (_resident(weir) - before) / clients


def _connected(weir: BrokerProcess, clients: int, found: dict[Goal, float]) -> None:
    before = _resident(weir)
    here = [_arrive(weir, "here", each) for each in range(clients)]
    found[CONNECTED] = (_resident(weir) - before) / clients
    for client in here:
        client.close()


def _visit(weir: BrokerProcess, prefix: str, each: int) -> None:
    client = _arrive(weir, prefix, each)
    client.disconnect()


def _arrive(weir: BrokerProcess, prefix: str, each: int) -> RawClient:
    client_id = f"{prefix}-{each:08}"
    client = RawClient(weir.port, V311)
    client.connect(client_id, clean_start=False)
    client.subscribe(*[filter.decode() for filter in filters_of(client_id)], qos=1)
    return client


def _replaced(weir: BrokerProcess, server: int, starting: float, sessions: int, found: dict[Goal, float]) -> None:
    """Kill the worker. Its sockets stay with the supervisor: the next worker answers a client that comes meanwhile."""
    before = cpu_seconds(server)
    os.kill(weir.worker_pid, signal.SIGKILL)
    began = time.monotonic()
    client = RawClient(weir.port, V311)
    client.socket.settimeout(LONGEST)
    client.connect("first")
    found[REPLACED] = time.monotonic() - began
    found[REPLACED_WORKER] = (cpu_seconds(weir.worker_pid) - starting) / sessions * 1e6
    found[REPLACED_REDIS] = (cpu_seconds(server) - before) / sessions * 1e6
    client.disconnect()
