# Who knows that somebody is overloaded, and how soon: within a node, between nodes, and while Redis is away.
#
# Workers say in their logs which level they go by: all times are those of the lines, by the one clock of this machine.
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.redis_servers import HOST, RunningRedis, free_port
from tests.system import scene
from tests.system.processes import BrokerProcess
from tests.system.raw import RawClient
from tests.system.scene import StartWeir

pytestmark = [pytest.mark.weir_only("a matter of Weir's workers"), pytest.mark.slow]

HIGH = 2.0  # of the memory: more than there can be
LONG = 600.0  # seconds of an injection: longer than any of these tests
LAG = 60.0  # seconds: how late sockets are served on a busy machine is no signal here
AWAY = 10.0  # seconds that Redis is stopped
KNOWN = 0.2  # seconds until all know
WORKERS = (0, 1)
RAISED = 100  # times that a level is raised for another node to know


@pytest.fixture
def redis(start_redis: Callable[..., RunningRedis]) -> Iterator[RunningRedis]:
    """One for several nodes."""
    server = start_redis(port=free_port())
    yield server
    server.go_on()  # or the nodes could not end


def two_nodes(start_weir: StartWeir, redis: RunningRedis) -> list[BrokerProcess]:
    url = f"redis://{HOST}:{redis.address.port}"
    return [scene.begin(start_weir, redis__url=url, overload__lag=LAG) for _ in range(2)]


def know(weir: BrokerProcess, since: float, least: int = 2) -> list[float]:
    """Wait until all workers go by *least* or more; when (Unix time) each said so."""

    def found() -> list[float]:
        return [scene.reached(weir, worker, least, since) for worker in WORKERS]

    scene.until(lambda: max(found()) < math.inf, f"not all workers of {weir.port} know of level {least}")
    return found()


class Pair:
    """A client that publishes with QoS 1, and one that gets it, both of one node."""

    def __init__(self, weir: BrokerProcess) -> None:
        self._clients = [RawClient(weir.port) for _ in range(2)]
        self._publisher, self._subscriber = self._clients
        self._publisher.connect(f"publisher-{weir.port}")
        self._subscriber.connect(f"subscriber-{weir.port}")
        self._subscriber.subscribe(f"pair/{weir.port}", qos=1)
        self._topic = f"pair/{weir.port}"
        self._sent = 0

    def works(self) -> float:
        """One message goes all the way; the seconds that it took."""
        self._sent += 1
        payload = b"%d" % self._sent
        began = time.monotonic()
        self._publisher.publish(self._topic, payload, 1)
        assert payload == self._subscriber.take().payload
        return time.monotonic() - began

    def close(self) -> None:
        for client in self._clients:
            client.close()


def test_the_level_of_one_node_is_that_of_all(start_weir: StartWeir, redis: RunningRedis) -> None:
    """A cluster would protect only those of its workers that suffer already, or say wrong who does."""
    first, second = two_nodes(start_weir, redis)
    began = time.time()
    scene.inject(first, 1, "memory", HIGH, LONG)
    know(second, began)

    for line in scene.lines(second, "overload_level_changed"):
        caused = [line[key] for key in ("cause", "cause_node", "cause_worker")]
        assert ["memory", f"node-{first.port}", 1] == caused
        assert f"node-{second.port}" == line["node"]


def test_without_redis_each_node_goes_by_itself_and_then_together_again(
    start_weir: StartWeir, redis: RunningRedis
) -> None:
    """With Redis away nobody would be protected, or all be slowed down for ever by what was said last."""
    first, second = nodes = two_nodes(start_weir, redis)
    with closing(Pair(second)) as there:
        began = time.time()
        scene.inject(first, 0, "memory", HIGH, LONG)
        for weir in nodes:
            know(weir, began)
        away = time.time()
        redis.pause()
        until = time.monotonic() + AWAY
        scene.until(lambda: all(scene.calm(second, worker, away) < math.inf for worker in WORKERS), "it stays slow")
        while time.monotonic() < until:
            there.works()
            time.sleep(0.1)  # a load, not a wait
        levels = scene.levels(first)
        back = time.time()
        redis.go_on()
        know(second, back)

    assert [10, 10] == levels
    assert math.inf == min(scene.calm(first, worker, began) for worker in WORKERS)


@pytest.mark.faults
def test_a_level_is_known_to_another_node_at_once(start_weir: StartWeir, redis: RunningRedis) -> None:
    """Overload would be fought when it has done its harm."""
    first, second = two_nodes(start_weir, redis)
    late = []
    for worker in WORKERS * (RAISED // 2):
        began = time.time()
        scene.inject(first, worker, "memory", HIGH, 1.0)
        own = know(first, began)[worker]
        late += [when - own for when in know(second, began)]
        scene.until(lambda since=began: quiet(first, since) and quiet(second, since), "the level stays", 30)  # type: ignore[misc]

    print(f"known to another node after (s): {' '.join(f'{one:.3f}' for one in sorted(late))}")
    assert max(late) < KNOWN


def quiet(weir: BrokerProcess, since: float) -> bool:
    return all(scene.calm(weir, worker, since) < math.inf for worker in WORKERS)


@pytest.mark.faults
def test_a_slow_redis_does_not_carry_the_news_within_a_node(start_weir: StartWeir, redis: RunningRedis) -> None:
    """The news that Redis is slow would come by Redis."""
    url = f"redis://{HOST}:{redis.address.port}"
    weir = scene.begin(start_weir, redis__url=url, overload__lag=LAG)
    redis.pause()
    late = []
    for worker in WORKERS * 2:
        began = time.time()
        scene.inject(weir, worker, "memory", HIGH, 1.0)
        times = know(weir, began)
        late.append(times[1 - worker] - times[worker])
        scene.until(lambda since=began: quiet(weir, since), "the level stays", 30)  # type: ignore[misc]
    redis.go_on()

    print(f"known to the other worker after (s): {' '.join(f'{one:.3f}' for one in sorted(late))}")
    assert max(late) < KNOWN
