# Lines to Redis on the reactor, beside clients.
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.net.dialling import Dialler
from broker.reasons import StoreFailure
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import DISCONNECTED, READY, packed
from broker.store.redis.pipeline import CallbackCommand, CommandPipeline
from tests.inprocess import Broker
from tests.redis_servers import PATIENCE, RunningRedis, free_port
from tests.store.loop import Lines

pytestmark = pytest.mark.system  # real servers

Brokers = Callable[..., Broker]


@pytest.fixture
def server(start_redis: Callable[..., RunningRedis]) -> RunningRedis:
    return start_redis(port=free_port())


class Asking:
    """A line on the reactor of *broker*."""

    def __init__(self, broker: Broker, address: RedisAddress) -> None:
        self.broker = broker
        self.log = Lines()
        self.failures: list[Exception] = []
        self.replies: list[object] = []
        self.dialler = Dialler(broker.reactor, self.failures.append)
        self.commands = CommandPipeline(self.dialler, address, "test", self.log)
        self.commands.start(broker.clock.now)

    def ask(self, *words: str | bytes | int) -> None:
        question = CallbackCommand(packed(*words), 5.0, lambda reply, failure: self.replies.append(failure or reply))
        self.commands.submit(question, self.broker.clock.now)

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, self.log.events
            self.broker.clock.looks = 0
            self.commands.tick(self.broker.clock.now)
            if self.broker.loop.turn() > 0.0:
                select.select([self.broker.loop], [], [], 0.05)
                self.broker.clock.now += 0.01


@pytest.mark.parametrize("path", [True, False])
def test_commands_are_answered_on_the_reactor(brokers: Brokers, server: RunningRedis, path: bool) -> None:
    """A worker could not ask Redis anything."""
    asking = Asking(brokers(), RedisAddress(path=str(server.socket)) if path else server.address)
    for number in range(100):
        asking.ask("ECHO", str(number))
    asking.until(lambda: len(asking.replies) == 100)

    assert [str(number).encode() for number in range(100)] == asking.replies
    assert [] == asking.failures


def test_replies_beyond_the_quantum_come_in_the_next_rounds(brokers: Brokers, server: RunningRedis) -> None:
    """The replies would be lost, or be served only when Redis sends something else."""
    broker = brokers()
    asking = Asking(broker, server.address)
    asking.until(lambda: asking.commands.state == READY)
    for _ in range(8000):  # 56 000 bytes: one read, and more than a quantum
        asking.ask("PING")
    server.pause()
    broker.settle()
    server.go_on()
    asking.until(lambda: len(asking.replies) == 8000)

    assert {b"PONG"} == set(asking.replies)


def test_a_connection_that_waits_for_its_round_is_unread(brokers: Brokers, server: RunningRedis) -> None:
    """A busy worker would take a reply that it has not looked at for one that has not come."""
    broker = brokers()
    asking = Asking(broker, server.address)
    asking.until(lambda: asking.commands.state == READY)
    (stream,) = [one for one in broker.reactor.table if one is not None and one.handler is not None]
    before = asking.dialler.unread()
    broker.reactor.enqueue(stream)  # as when the kernel reports input
    waiting = asking.dialler.unread()
    broker.settle()

    assert (False, True, False) == (before, waiting, asking.dialler.unread())


def test_an_exception_in_a_callback_costs_one_reply(brokers: Brokers, server: RunningRedis) -> None:
    """One failed callback would take the line down, or mix up the replies after it."""
    broker = brokers()
    asking = Asking(broker, server.address)
    asking.ask("ECHO", "before")

    def fail(reply: object, failure: StoreFailure | None) -> None:
        raise ZeroDivisionError

    asking.commands.submit(CallbackCommand(packed("ECHO", "mistake"), 5.0, fail), broker.clock.now)
    asking.ask("ECHO", "after")
    asking.until(lambda: len(asking.replies) == 2)

    assert [b"before", b"after"] == asking.replies
    assert [ZeroDivisionError] == [type(error) for error in asking.failures]


def test_a_refused_connection_is_tried_again(brokers: Brokers, server: RunningRedis) -> None:
    """A worker that starts before Redis, or outlives it, would never use it."""
    server.kill()
    asking = Asking(brokers(), server.address)
    asking.until(lambda: asking.commands.state == DISCONNECTED)
    server.start()
    asking.until(lambda: asking.commands.state == READY)
    server.kill()
    asking.ask("ECHO", "x")
    asking.until(lambda: asking.commands.state == DISCONNECTED)
    server.start()
    asking.ask("ECHO", "y")
    asking.until(lambda: len(asking.replies) == 2)

    assert [StoreFailure.LOST, b"y"] == asking.replies


def test_a_full_queue_of_a_unix_socket_is_tried_again(brokers: Brokers, tmp_path: Path) -> None:
    """The worker would take the connection for established and wait for ever."""
    path = tmp_path / "full.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as filling:
        listener.bind(str(path))
        listener.listen(0)
        filling.connect(str(path))
        asking = Asking(brokers(), RedisAddress(path=str(path)))
        asking.until(lambda: asking.commands.state == DISCONNECTED)

    assert [StoreFailure.UNREACHABLE.label] == [facts["reason"] for facts in asking.log.named("redis_unavailable")]


def test_the_connection_ends_with_the_reactor(brokers: Brokers, server: RunningRedis) -> None:
    """A worker that stops would leave a connection behind."""
    broker = brokers()
    asking = Asking(broker, server.address)
    asking.until(lambda: asking.commands.state == READY)
    asking.commands.stop(broker.clock.now)
    broker.settle()

    assert [] == broker.streams()
    assert float("inf") == asking.commands.tick(broker.clock.now + 1000)
