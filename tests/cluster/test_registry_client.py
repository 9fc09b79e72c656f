# Whole workers whose sessions are registered in a real Redis.
import select
import time
from collections.abc import Callable, Iterator

import pytest

from broker.cluster.owner import Owner
from broker.cluster.registry_client import RegistryClient
from broker.cluster.takeover import OnTakeover, TakeoverRequests, TakeoverResult
from broker.config.schema import ClusterQuota, Config, Quotas
from broker.mqtt.packets import V5, V311, ConnAck, Connect, Disconnect, Properties, Publish, Will
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL
from broker.reasons import PauseReason
from broker.session.session import Session
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import READY
from broker.store.redis.keys import Keys
from broker.worker_id import WorkerId
from tests.inprocess import Broker, Client
from tests.protocol.talk import payloads, subscribe
from tests.redis_servers import PATIENCE, RunningRedis

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]
LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 60}
KEYS = Keys("weir")
DEAD, ALIVE = 1, 2


class Registered(Broker):
    """A worker that is registered. Its time stands still, unless it `flows`: nothing is late on a busy machine."""

    flows = False

    def __init__(
        self,
        address: RedisAddress,
        incarnation: int = ALIVE,
        *,
        alone: bool = False,
        others: TakeoverRequests | None = None,
        config: Config | None = None,
    ) -> None:
        identity = WorkerId("node", 0, incarnation)
        super().__init__(config, redis=address, identity=identity, alone=alone, neighbours=others)

    @property
    def registry_client(self) -> RegistryClient:
        registry_client = super().registry_client
        assert registry_client is not None
        return registry_client

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, "it does not come"
            before = time.monotonic()
            self.settle()
            select.select([self.loop], [], [], 0.01)
            if self.flows:
                self.clock.now += time.monotonic() - before

    def ready(self) -> None:
        self.until(lambda: self.registry_client.commands.state == READY)

    def told(self) -> None:
        """Until Redis knows all that it has to be told."""
        found = self.registry_client.registry.owned.statistics
        self.until(lambda: not (found().stale or found().ended or self.registry_client.commands.statistics.waiting))

    def arrive(self, client_id: str, version: int = V5, will: Will | None = None, **more: Properties) -> Client:
        """A client whose CONNECT is answered."""
        client = self.open(version)
        client.send(Connect(version, client_id, False, 0, None, None, will, more.get("properties", {})))
        self.until(lambda: bool(client.inbox) or client.closed)
        answer = client.inbox.pop(0)
        assert isinstance(answer, ConnAck)
        client.connack = answer
        return client


@pytest.fixture
def make(start_redis: StartRedis) -> Iterator[Callable[..., Registered]]:
    made: list[Registered] = []

    def start(server: RunningRedis, *arguments: int, **more: object) -> Registered:
        made.append(Registered(server.address, *arguments, **more))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def server(start_redis: StartRedis) -> RunningRedis:
    return start_redis()


Make = Callable[..., Registered]


def owner(server: RunningRedis, client_id: str) -> list[str]:
    with server.client() as client:
        return (client.get(KEYS.owner(client_id.encode())) or b"").decode().split()


def wills(server: RunningRedis) -> int:
    with server.client() as client:
        return sum(client.hlen(key) for key in client.scan_iter("weir:*wills*"))


def test_a_session_is_owned_from_connack_until_it_ends(server: RunningRedis, make: Make) -> None:
    """Two workers could have it, or Redis fill with owners that are gone."""
    broker = make(server)
    client = broker.arrive("me", will=Will(b"t", b"gone"))

    assert (0, False) == (client.connack.code, client.connack.session_present)
    assert [f"{ALIVE:016x}", "0", "node", "-"] == owner(server, "me")[1:]
    assert 1 == wills(server)
    client.send(Disconnect())
    broker.settle()
    broker.told()
    assert ([], 0) == (owner(server, "me"), wills(server))


def test_what_comes_behind_connect_waits_for_it(server: RunningRedis, make: Make) -> None:
    """A client may speak on before its CONNACK (4.9): what it said would be lost, or come first."""
    broker = make(server)
    broker.ready()
    client = broker.open(V5)
    client.send(Connect(V5, "me", True, 0), Disconnect())
    broker.until(lambda: client.closed)

    assert [0] == [packet.code for packet in client.inbox if isinstance(packet, ConnAck)]
    assert 1 == broker.counters.connects_accepted


def test_a_client_that_goes_while_redis_is_asked_leaves_nothing(server: RunningRedis, make: Make) -> None:
    """Each would cost a session, a connection and an owner for ever."""
    broker = make(server)
    broker.ready()
    server.pause()
    client = broker.open(V5)
    client.send(Connect(V5, "me", True, 0))
    broker.settle()
    client.drop()
    server.go_on()
    broker.until(lambda: broker.claims.counts.waiting == 0)
    broker.told()

    assert ([], 0) == (owner(server, "me"), broker.session_count())
    assert [] == broker.streams()


def test_a_will_that_was_taken_back_is_not_kept(server: RunningRedis, make: Make) -> None:
    """It would be published when the worker dies, for a client that said goodbye [MQTT-3.14.4-3]."""
    broker = make(server)
    client = broker.arrive("me", will=Will(b"t", b"gone"), properties=LASTING)
    assert 1 == wills(server)
    client.send(Disconnect())
    broker.settle()
    broker.told()

    assert 0 == wills(server)
    assert [] != owner(server, "me")


def test_the_wills_of_a_dead_worker_are_published_by_another(server: RunningRedis, make: Make) -> None:
    """Nobody would hear that the clients of a worker are gone [MQTT-3.1.2-8]."""
    dead, alive = make(server, DEAD), make(server, ALIVE)
    dead.arrive("gone", will=Will(b"wills", b"now"))
    dead.arrive("back", will=Will(b"wills", b"never"))
    dead.arrive("late", will=Will(b"wills", b"later", properties={WILL_DELAY_INTERVAL: 1}), properties=LASTING)
    watcher = alive.arrive("watcher")
    subscribe(watcher, "wills")
    alive.arrive("back")
    alive.flows = True
    alive.orphaned_wills.publish_wills_of(DEAD, alive.clock.now)
    alive.orphaned_wills.publish_wills_of(DEAD, alive.clock.now)
    alive.until(lambda: len(watcher.inbox) == 2)
    alive.until(alive.orphaned_wills.idle)

    assert [b"now", b"later"] == payloads(watcher.inbox)
    assert 0 == wills(server)


def test_who_has_a_session_that_is_elsewhere_closes_it(server: RunningRedis, make: Make) -> None:
    """After an outage two clients would act for one id [MQTT-3.1.4-3]."""
    broker = make(server)
    client = broker.arrive("me", properties=LASTING)
    with server.client() as redis:
        redis.set(KEYS.owner(b"me"), f"{1 << 52} {DEAD:016x} 1 elsewhere -")
    broker.registry_client.registry.owned.mark_all_stale()
    broker.until(lambda: client.closed)

    assert [0x8E] == [packet.code for packet in client.inbox if isinstance(packet, Disconnect)]
    assert 0 == broker.session_count()
    broker.told()
    assert str(1 << 52) == owner(server, "me")[0]


def test_without_redis_clients_come_in_unless_a_session_may_be_elsewhere(server: RunningRedis, make: Make) -> None:
    """A worker without Redis would serve nobody, or hide sessions behind empty ones."""
    broker = make(server)
    broker.ready()
    server.kill()
    broker.flows = True

    assert 0 == broker.arrive("one").connack.code
    assert 0x88 == broker.arrive("two", properties=LASTING).connack.code
    refused = broker.arrive("three", V311)
    assert (3, True) == (refused.connack.code, refused.closed)
    server.start()
    broker.ready()
    broker.flows = False
    assert 0 == broker.arrive("two", properties=LASTING).connack.code
    broker.told()
    assert [] != owner(server, "one")


def test_who_is_alone_does_not_wait_for_redis(server: RunningRedis, make: Make) -> None:
    """One worker would be slower for a Redis that it does not need, and stop with it."""
    broker = make(server, alone=True)
    server.pause()
    client = broker.connect("me", V5, will=Will(b"t", b"gone"), properties=LASTING)
    assert 0 == client.connack.code
    server.go_on()
    broker.ready()
    broker.told()

    assert ([f"{ALIVE:016x}"], 1) == (owner(server, "me")[1:2], wills(server))


def test_who_is_alone_gives_way_to_nobody_that_is_dead(server: RunningRedis, make: Make) -> None:
    """A clock that is turned back would have clients thrown out by those who had their sessions before."""
    with server.client() as redis:
        redis.set(KEYS.owner(b"me"), f"{1 << 52} {DEAD:016x} 0 node -")
    broker = make(server, alone=True)
    client = broker.connect("me", V5)
    broker.ready()
    broker.told()

    assert not client.closed
    assert [str((1 << 52) + 1), f"{ALIVE:016x}"] == owner(server, "me")[:2]


class Giving:
    """Another worker that has any session, and takes its time."""

    def __init__(self) -> None:
        self.broker: Registered | None = None
        self.then: OnTakeover | None = None

    def take_over(self, client_id: str, former: Owner, epoch: int, user: str, wanted: bool, then: OnTakeover) -> None:
        self.then = then

    def claim_within_node(self, client_id: str, epoch: int, user: str, wanted: bool, then: OnTakeover) -> None:
        raise NotImplementedError

    def claim_everywhere(self, client_id: str, epoch: int, user: str, wanted: bool, then: OnTakeover) -> None:
        raise NotImplementedError

    def give(self, client_id: str) -> None:
        assert self.broker is not None and self.then is not None
        given = Session(client_id, self.broker.session_lifecycle.limits, self.broker.counters)
        given.expiry = 60
        self.then(TakeoverResult(given))


def test_a_session_that_comes_for_a_client_that_is_gone_waits_for_it(server: RunningRedis, make: Make) -> None:
    """It would be lost, or stay for ever."""
    with server.client() as redis:
        redis.set(KEYS.owner(b"me"), f"1 {DEAD:016x} 1 node -")
    giving = Giving()
    broker = giving.broker = make(server, others=giving)
    client = broker.open(V5)
    client.send(Connect(V5, "me", False, 0, properties=LASTING))
    broker.until(lambda: giving.then is not None)
    client.drop()
    giving.give("me")

    assert 1 == broker.session_count()
    again = broker.arrive("me", properties=LASTING)
    assert again.connack.session_present
    again.drop()
    broker.clock.now += 61
    broker.settle()
    assert 0 == broker.session_count()


@pytest.mark.parametrize("alone", [True, False])
def test_only_who_shares_its_redis_asks_it_for_quotas(server: RunningRedis, make: Make, alone: bool) -> None:
    """A single worker would wait for Redis to be told what only it can know."""
    config = Config(quotas=Quotas(cluster=ClusterQuota(incoming_messages="1000:1", outgoing_messages="1000:1")))
    broker = make(server, alone=alone, config=config)
    broker.ready()
    client = broker.arrive("client")
    client.send(Publish(b"t", b"", 1, packet_id=1))
    broker.flows = True
    broker.until(lambda: bool(client.inbox))

    assert alone == (broker.counters.pauses_by_reason[PauseReason.QUOTA_ASKED.label] == 0)
    with server.client() as redis:
        assert alone == (list(redis.scan_iter("weir:*quota*")) == [])
