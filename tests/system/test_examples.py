# The programs in deploy/examples do what their texts say.
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from broker.mqtt.packets import PUBACK, Publish
from broker.mqtt.properties import MESSAGE_EXPIRY_INTERVAL
from tests.system import node
from tests.system.nodes import Node, StartNode
from tests.system.processes import PATIENCE
from tests.system.raw import RawClient

pytestmark = pytest.mark.weir_only("a matter of Weir's kinds of clients")

EXAMPLE: Final = Path(__file__).parents[2] / "deploy" / "examples" / "analytics_service.py"
CLIENT: Final = "analytics-1"
SETTINGS: Final = {"application__clients": '[{client = "analytics-*"}]', "store__durability": "process"}
IN_HAND: Final = 5  # the receive maximum


class Service:
    """One run of the example."""

    def __init__(self, weir: Node, folder: Path, number: int, *options: str) -> None:
        self._output = folder / f"service-{number}.txt"
        command = [sys.executable, str(EXAMPLE), "--port", str(weir.port)]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--receive-maximum", str(IN_HAND), *options, "sensors/#"], stdout=output, stderr=output
            )

    def lines(self, event: str) -> list[dict[str, Any]]:
        found = self._output.read_text().splitlines()
        told = [json.loads(line) for line in found if line.startswith("{") and line.endswith("}")]
        return [line for line in told if line["event"] == event]

    def wait_for(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        deadline = time.monotonic() + PATIENCE
        while len(found := self.lines(event)) < count:
            assert time.monotonic() < deadline, f"{event} does not come: {self._output.read_text()}"
            assert self.process.poll() is None or len(self.lines(event)) >= count, self._output.read_text()
            time.sleep(0.01)  # a file tells nobody when it has grown
        return found

    def values(self) -> list[int]:
        return [int(line["value"]) for line in self.lines("done")]


Serve = Callable[..., Service]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    started: list[Service] = []

    def start(weir: Node, *options: str) -> Service:
        started.append(Service(weir, tmp_path, len(started), *options))
        return started[-1]

    yield start
    for service in started:
        service.process.kill()
        service.process.wait()


def publish(publisher: RawClient, numbers: range, expiry: int = 0, topics: int = 1) -> None:
    properties: Any = {MESSAGE_EXPIRY_INTERVAL: expiry} if expiry else {}
    for number in numbers:
        topic = b"sensors/%d" % (number % topics)
        publisher.send(Publish(topic, b"%d" % number, 1, packet_id=1 + number, properties=properties))
    for number in numbers:
        publisher.expect_ack(PUBACK, 1 + number)


def test_an_analytics_service_that_is_slow_and_is_killed_misses_nothing(start_node: StartNode, serve: Serve) -> None:
    """Who begins with the example would lose messages, or be given more than it can hold."""
    weir = start_node(2, **SETTINGS)
    slow = serve(weir, "--work", "0.05")
    assert [False] == [line["session_present"] for line in slow.wait_for("connected")]
    weir.wait_until(lambda: node.ask(weir.control, "client", client=CLIENT)["subscriptions"] == 2, "have subscriptions")
    publisher = weir.client("publisher")
    publish(publisher, range(40))
    slow.wait_for("done", 3)
    told = node.ask(weir.control, "client", client=CLIENT)
    assert ("application", True) == (told["kind"], 0 < told["inflight"] <= IN_HAND)
    os.kill(slow.process.pid, signal.SIGKILL)
    slow.process.wait()
    publish(publisher, range(40, 60))
    before = slow.values()

    quick = serve(weir)
    assert [True] == [line["session_present"] for line in quick.wait_for("connected")]
    quick.wait_for("done", 60 - len(before))
    weir.wait_until(lambda: node.ask(weir.control, "client", client=CLIENT)["inflight"] == 0, "have all acknowledged")
    after = quick.values()
    assert sorted(set(before + after)) == [*range(60)]
    assert after == [*range(after[0], 60)]
    assert len(before) - 1 <= after[0] <= len(before)  # what was done, and not acknowledged, may come again


def test_an_analytics_service_is_told_what_it_missed_and_ends_in_order(start_node: StartNode, serve: Serve) -> None:
    """Messages would be missing in the results, and nobody know; or what it has in hand be lost with its end."""
    weir = start_node(1, **SETTINGS)
    first = serve(weir, "--share", "")
    first.wait_for("connected")
    weir.wait_until(lambda: node.ask(weir.control, "client", client=CLIENT)["subscriptions"] == 2, "have subscriptions")
    first.process.terminate()
    assert 0 == first.process.wait(PATIENCE)
    publisher = weir.client("publisher")
    publish(publisher, range(3), expiry=1)
    publish(publisher, range(3, 5))
    time.sleep(1.1)  # the expiry is in seconds of the wall clock

    second = serve(weir, "--share", "")
    (gap,) = second.wait_for("gap")
    second.wait_for("done", 2)
    assert (3, {"expired": 3}) == (gap["count"], gap["reasons"])
    assert [3, 4] == second.values()


def test_what_a_service_does_not_do_in_time_is_done_by_another_one(start_node: StartNode, serve: Serve) -> None:
    """A service that hangs would hold up the work of all, or what it has in hand be lost."""
    weir = start_node(1, application__pack_timeout=1.0, **SETTINGS)
    services = [serve(weir, "--client", f"analytics-{number}") for number in (1, 2)]
    for number, service in enumerate(services, 1):
        service.wait_for("connected")
        name = f"analytics-{number}"
        weir.wait_until(partial(_subscribed, weir, name), f"have the subscriptions of {name}")
    hangs, other = services
    publisher = weir.client("publisher")
    publish(publisher, range(24), topics=24)
    weir.wait_until(lambda: len(hangs.values() + other.values()) == 24, "have all done")
    assert hangs.values()
    assert other.values()

    os.kill(hangs.process.pid, signal.SIGSTOP)
    publish(publisher, range(24, 48), topics=24)  # some of them are for the one that hangs
    weir.wait_until(lambda: not node.ask(weir.control, "client", client="analytics-1")["connected"], "give it up")
    publish(publisher, range(48, 148), topics=24)
    weir.wait_until(lambda: {*range(48, 148)} <= {*other.values()}, "have the other one do all that came later")
    os.kill(hangs.process.pid, signal.SIGCONT)
    weir.wait_until(lambda: {*hangs.values(), *other.values()} == {*range(148)}, "have all done at last")


def _subscribed(weir: Node, client: str) -> bool:
    return bool(node.ask(weir.control, "client", client=client)["subscriptions"] == 2)
