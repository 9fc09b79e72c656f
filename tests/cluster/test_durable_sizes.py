# What a durable session takes while nothing happens: in Redis, and in the memory of its worker.
#
# Bytes are counted, not timed: by the allocator, and by the server for each of its keys. `python -m tests.tools.bench
# durable-sizes` measures whole processes.
import time
from collections.abc import Callable, Iterator

import pytest

from broker.mqtt.packets import PUBACK, Ack, Subscribe, Wanted
from broker.protocol.cold_sessions import COOL_AFTER
from broker.worker_id import WorkerId
from tests.cluster.durable_node import Durable
from tests.cluster.test_durable import payloads
from tests.innode import stored
from tests.inprocess import Broker, Client, Clock
from tests.redis_servers import RunningRedis
from tests.routing.test_memory import growth
from tests.tools.bench.stored_sessions import PAYLOAD, TOPIC, StoredSessions, redis_bytes, stored_sessions

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]
SESSIONS = 400
DEEP = 2_000  # messages
# Interpreted; less if compiled. With two filters, one of them with a wildcard, which take 1 000 of them:
ADOPTED = 250  # in Redis alone
LEFT = 4_000  # and what the worker has of its claim, and of the cost of its client
IDLE = 6_000  # and its connection
SERVED = 11_000  # and a queue, as it has got a message
COLD = 1_800  # the latter alone, some seconds later: it is kept for a bounded number of clients


@pytest.fixture
def sessions(redis: RunningRedis) -> Iterator[StoredSessions]:
    with stored_sessions(redis.address, "weir", time.time()) as sessions:
        yield sessions


@pytest.fixture
def node(redis: RunningRedis) -> Iterator[Durable]:
    made = Durable(redis)
    yield made
    made.worker.close()


def bytes_of(server: RunningRedis, pattern: str) -> int:
    with server.client() as client:
        return redis_bytes(client, pattern)


def test_an_idle_session_is_small_in_redis(redis: RunningRedis, sessions: StoredSessions) -> None:
    """A million of them would not fit into the server of a node: 450 bytes are the goal, with the table of keys."""
    sessions.write("device", SESSIONS)
    sessions.own("device", SESSIONS)

    record, owner = bytes_of(redis, "*:session:*") / SESSIONS, bytes_of(redis, "*:owner:*") / SESSIONS
    index = bytes_of(redis, "*:sessions:*") / SESSIONS
    assert record <= 210 and owner <= 120 and index <= 60, (record, owner, index)


def test_a_long_filter_takes_no_more_than_itself(start_redis: StartRedis) -> None:
    """Filters with a UUID in them would be kept in a table of their own, at twice the size of the session."""
    short, long = (bytes_of_record(start_redis(), b"x" * size) for size in (60, 200))

    assert 140 <= long - short <= 260, (short, long)


def bytes_of_record(redis: RunningRedis, filter: bytes) -> int:
    with redis.client() as client:
        client.hset("session", mapping={b"": b"12345678", b"\0": b"1800000000.123456", filter: b"\1"})
    return bytes_of(redis, "session")


def test_queues_are_small_in_redis(redis: RunningRedis, sessions: StoredSessions) -> None:
    """Absent clients would fill the server with what is beside their messages: 24 bytes for each are the goal."""
    sessions.write("one", 16, messages=1)
    one = bytes_of(redis, "*:queue:*") / 16
    sessions.write("deep", 1, messages=DEEP)
    deep = bytes_of(redis, "*:queue:*deep*") / DEEP - len(PAYLOAD) - len(TOPIC)

    assert one <= 260 and deep <= 23, (one, deep)


@pytest.mark.no_cover
@pytest.mark.usefixtures("traced")
def test_an_adopted_session_is_small_in_its_worker(redis: RunningRedis, sessions: StoredSessions) -> None:
    """The memory of a worker would bound how many clients may be away."""
    sessions.write("device", SESSIONS)
    sessions.leave()
    clock = Clock()
    identity = WorkerId("weir", 0, 2)
    broker = Broker(stored(), clock=clock, redis=redis.address, identity=identity, alone=True, wall=time.time)
    broker.answered = True
    durable = broker.worker.protocol.durable
    assert durable is not None
    ready: list[bool] = []

    def adopt() -> None:
        durable.when_ready(lambda: ready.append(True), clock.now)
        while not ready:
            broker.settle()

    broker.settle()
    grown = growth(adopt) / SESSIONS
    count = broker.session_count()
    broker.close()

    assert SESSIONS == count
    assert grown <= ADOPTED, grown


@pytest.mark.no_cover
@pytest.mark.usefixtures("traced")
def test_a_session_whose_client_has_left_is_small_in_its_worker(node: Durable) -> None:
    """What a connection needs would stay for as long as the session lasts."""

    def visits(count: int, prefix: str) -> None:
        for number in range(count):
            visit(node, f"{prefix}-{number:08}")

    visits(3, "warm")
    grown = growth(lambda: visits(SESSIONS // 4, "device")) / (SESSIONS // 4)

    assert grown <= LEFT, grown


@pytest.mark.no_cover
@pytest.mark.usefixtures("traced")
def test_a_session_whose_client_has_been_away_for_some_time_is_smaller(node: Durable) -> None:
    """Clients that are away for days would fill the memory of the worker."""

    def visits(count: int, prefix: str) -> None:
        for number in range(count):
            visit(node, f"{prefix}-{number:08}")
        node.worker.advance(COOL_AFTER + 1.0)

    visits(3, "warm")
    grown = growth(lambda: visits(SESSIONS // 4, "device")) / (SESSIONS // 4)

    assert grown <= COLD, grown


def visit(node: Durable, client_id: str) -> None:
    client = arrive(node, client_id)
    client.socket.close()
    node.worker.settle()
    node.worker.advance(0.3)


def arrive(node: Durable, client_id: str) -> Client:
    client = node.connect(client_id)
    client.send(Subscribe(1, [Wanted(filter % client_id.encode(), 1) for filter in (b"d/%s/command", b"d/%s/+")]))
    client.receive()
    return client


@pytest.mark.no_cover
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(("messages", "most"), [(0, IDLE), (1, SERVED)])
def test_a_connected_session_is_small_in_its_worker(node: Durable, messages: int, most: int) -> None:
    """The memory of a worker would bound how many clients may be connected: 8 KiB are the goal for an idle one."""
    here = [arrive(node, f"warm-{number:08}") for number in range(3)]

    def come() -> None:
        for number in range(SESSIONS // 4):
            client_id = f"device-{number:08}"
            here.append(arrive(node, client_id))
            if messages:
                node.publish(b"d/%s/command" % client_id.encode(), b"1")
                assert [(b"1", 1)] == [each[:2] for each in payloads(here[-1])]
                here[-1].send(Ack(PUBACK, 1))
        node.worker.advance(0.3)

    grown = growth(come) / (SESSIONS // 4)

    assert grown <= most, grown


def test_a_queue_is_there_only_while_there_is_something_to_remember(node: Durable) -> None:
    """Each idle session would take the memory of a queue."""

    def has_queue() -> bool:
        session = node.worker.session("client")
        assert session is not None
        return session.queue() is not None

    client = node.subscriber("client", b"a")
    assert not has_queue()
    node.publish(b"a", b"0")
    assert has_queue()
    assert [(b"0", 1)] == [each[:2] for each in payloads(client)]
    client.send(Ack(PUBACK, 1))
    node.worker.advance(0.3)
    client.socket.close()
    node.worker.settle()
    assert not has_queue()
    node.publish(b"a", b"1", b"2")
    assert has_queue()
    node.kill()
    assert has_queue()

    client = node.connect("client")
    assert [(b"1", 1), (b"2", 2)] == [each[:2] for each in payloads(client)]
    client.send(Ack(PUBACK, 1), Ack(PUBACK, 2))
    node.worker.advance(0.3)
    client.socket.close()
    node.worker.settle()
    assert not has_queue()
    node.kill()
    assert not has_queue()
    node.publish(b"a", b"3")

    assert [(b"3", 1)] == [each[:2] for each in payloads(node.connect("client"))]
