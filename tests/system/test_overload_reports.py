# What real nodes hear of each other's load, and what tests may have them believe of their own.
import json
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
import redis

from tests.redis_servers import HOST, RunningRedis, free_port
from tests.system import node
from tests.system.processes import PATIENCE, BrokerProcess

pytestmark = pytest.mark.weir_only("a matter of Weir's processes")

StartWeir = Callable[..., BrokerProcess]
REPORTS: Final = 500  # more than the workers tell by themselves while a test waits
CONNECTIONS: Final = 4  # of a worker to Redis: for commands, for reports, and for the lanes from and to other nodes
INJECTION: Final = {"worker": 0, "signal": "nonsense", "value": 2.5, "seconds": 1.0}
WRONG: Final[list[tuple[dict[str, object], str]]] = [
    ({"worker": -1}, "Worker -1 does not exist: this node has"),
    ({"worker": 300}, "Worker 300 does not exist"),
    ({"worker": "0"}, "worker = '0' of inject is not of the type int"),
    ({"signal": 7}, "signal = 7 of inject is not of the type str"),
    ({"value": 2}, "value = 2 of inject is not of the type float"),
    ({"value": float("nan")}, "value = nan of inject is not a finite number"),
    ({"value": float("-inf")}, "value = -inf"),
    ({"seconds": 0.0}, "seconds = 0.0 of inject must be above 0"),
    ({"seconds": 3601.0}, "at most 3600"),
    ({"seconds": float("nan")}, "seconds = nan"),
    ({"level": 10.0}, "no argument 'level'"),
    ({}, "'nonsense'"),  # the worker knows its signals
]


def control(weir: BrokerProcess) -> Any:
    assert weir.control is not None
    return weir.control


def heard(weirs: list[BrokerProcess]) -> list[int]:
    """Of each worker: the reports that came over Redis, with a valid seal or without, as of the last second."""
    workers = [worker for weir in weirs for worker in node.status(control(weir))["workers"]]
    counters = [worker["statistics"].get("counters", {}) for worker in workers]
    return [counted.get("reports_heard_redis", 0) + counted.get("redis_forged", 0) for counted in counters]


def each_hears(weirs: list[BrokerProcess], publisher: "redis.Redis") -> None:
    """Publish what nobody can read, and wait until each worker has heard it."""
    before = heard(weirs)
    for _ in range(REPORTS):
        publisher.publish("weir:overload:0", b"\xc1 no report")
    wait_until(lambda: all(now - then >= REPORTS for now, then in zip(heard(weirs), before, strict=True)))


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.05)  # between two looks at processes that are not ours


def test_every_worker_of_two_nodes_listens_again_when_redis_is_back(
    start_weir: StartWeir, start_redis: Callable[..., RunningRedis]
) -> None:
    """Some workers of a cluster would not know that it is overloaded, for ever after an outage."""
    server = start_redis(port=free_port())
    url = f"redis://{HOST}:{server.address.port}"
    weirs = [start_weir({"redis.url": url, "node.workers": 2, "log.format": "json"}) for _ in range(2)]
    with server.client() as publisher:
        each_hears(weirs, publisher)
        server.kill()
        server.start()
        for weir in weirs:
            weir.wait_for_log("redis_connected", since=2 * 2 * CONNECTIONS - 1)  # two workers, for the second time
        each_hears(weirs, publisher)


def test_a_node_listens_to_its_own_redis(start_weir: StartWeir) -> None:
    """Its workers would hear of each other by the mesh alone."""
    weir = start_weir({"node.workers": 2})
    with redis.Redis(unix_socket_path=str(control(weir).parent / "redis" / "redis.sock")) as publisher:
        each_hears([weir], publisher)


def test_nothing_is_injected_into_a_node_that_is_not_tested(start_weir: StartWeir) -> None:
    """Who may ask a node for its status by a program could have it hold all clients back."""
    weir = start_weir({}, environment={"WEIR_TEST": "yes"})

    answer = node.say(control(weir), request(INJECTION))

    assert {"ok": False, "error": answer["error"], "found": True} == answer
    assert "started with WEIR_TEST=1" in answer["error"]
    assert "signals_can_be_injected" not in weir.log_text()


def test_an_injection_that_is_none_is_told_what_is_wrong(start_weir: StartWeir) -> None:
    """A test would believe that it had injected something."""
    weir = start_weir({}, environment={"WEIR_TEST": "1"})
    assert "signals_can_be_injected" in weir.log_text()

    for wrong, said in WRONG:
        answer = node.say(control(weir), request({**INJECTION, **wrong}))
        assert False is answer["ok"]
        assert said in answer["error"]
    lacking = {name: value for name, value in INJECTION.items() if name != "seconds"}
    assert "lacks its argument seconds" in node.say(control(weir), request(lacking))["error"]


def request(arguments: dict[str, Any]) -> bytes:
    return json.dumps({"weir": 1, "command": "inject", **arguments}).encode() + b"\n"
