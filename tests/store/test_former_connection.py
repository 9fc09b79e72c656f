# What was sent over a connection that has ended is not executed behind what is sent over the next one.
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.store.redis.address import RedisAddress
from broker.store.redis.pipeline import CommandPipeline
from supervisor.redis_server import RedisServer
from tests.redis_servers import RunningRedis
from tests.store.loop import Loop, SocketWire
from tests.store.test_pipeline import answer, ask

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]
Connect = Callable[..., "tuple[HalfOpen, CommandPipeline]"]


class HalfOpen(SocketWire):
    """Its connections end for the worker, and not for the server."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[socket.socket] = []

    def close(self) -> None:
        if self.sock is not None:
            self.left.append(self.sock)
        self.sock = None
        self.unsent = b""

    def end(self) -> None:
        for sock in self.left:
            sock.close()


@pytest.fixture
def connect(loop: Loop) -> Iterator[Connect]:
    wires: list[HalfOpen] = []

    def connected(address: RedisAddress, name: str = "weir-durable") -> tuple[HalfOpen, CommandPipeline]:
        wires.append(HalfOpen())
        loop.wires.append(wires[-1])
        commands = CommandPipeline(wires[-1], address, name, loop.log, ends_former=True)
        loop.ticking.append(commands)
        commands.start(loop.now())
        loop.ready(commands)
        return wires[-1], commands

    yield connected
    for wire in wires:
        wire.close()
        wire.end()


def again(loop: Loop, commands: CommandPipeline) -> None:
    """The connection ends for the worker, and is made again."""
    times = commands.times_ready
    commands.move(commands._address, loop.now())
    loop.until(lambda: commands.times_ready > times)


def names(redis: RunningRedis) -> list[str]:
    found = [str(each["name"]) for each in redis.client(decode_responses=True).client_list()]
    return sorted(name for name in found if name)


def test_the_server_ends_the_former_connection_first(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop, connect: Connect
) -> None:
    """A transaction would be carried out twice: it was sent again, as the server had not taken all of it yet."""
    redis = start_redis(every_server)
    wire, commands = connect(redis.address)
    told = ask(loop, commands, "MULTI"), ask(loop, commands, "RPUSH", "list", "once")
    loop.until(lambda: all(told))
    again(loop, commands)
    (former,) = wire.left
    former.setblocking(True)
    try:  # the rest comes late
        former.send(b"*1\r\n$4\r\nEXEC\r\n")
        assert b"" == former.recv(100)
    except ConnectionError:
        pass

    assert 0 == answer(loop, commands, "LLEN", "list")
    assert ["weir-durable"] == names(redis)


def test_a_connection_of_someone_else_stays(start_redis: StartRedis, loop: Loop, connect: Connect) -> None:
    """Ids begin anew with the server: the one of the former connection may be that of another client by now."""
    redis = start_redis()
    _, commands = connect(redis.address)
    _, other = connect(redis.address, "other")
    commands._former_id = other._former_id
    again(loop, commands)

    assert ["other", "weir-durable", "weir-durable"] == names(redis)
    assert b"there" == answer(loop, other, "ECHO", "there")


@pytest.mark.parametrize("forbidden", ["-client|kill", "-client|list", "-client|id"])
def test_where_that_is_forbidden_the_log_says_so_once(
    start_redis: StartRedis, loop: Loop, connect: Connect, forbidden: str
) -> None:
    """A worker would never store anything where it may not end connections."""
    redis = start_redis(more=f"user default on nopass ~* &* +@all {forbidden}\n")
    _, commands = connect(redis.address)
    for _ in range(3):
        again(loop, commands)

    assert b"there" == answer(loop, commands, "ECHO", "there")
    (said,) = loop.log.named("redis_former_connection_stays")
    assert "weir-durable" == said["connection"]
    assert "NOPERM" in str(said["detail"])


def test_a_connection_stays_when_the_password_is_another_one(
    start_redis: StartRedis, loop: Loop, connect: Connect
) -> None:
    """All workers would give up what is under way, and each change of a password would be an outage of the store."""
    redis = start_redis(more="user weir on >former >later ~* &* +@all\n")
    path = str(redis.socket)
    _, commands = connect(RedisAddress(path=path, user="weir", password="former"))
    told = ask(loop, commands, "SET", "key", "value")

    commands.move(RedisAddress(path=path, user="weir", password="later"), loop.now())

    loop.until(lambda: len(told) > 0)
    assert [(b"OK", None)] == told
    assert 1 == commands.times_ready
    with redis.client() as client:
        client.execute_command("ACL", "SETUSER", "weir", "<former")
        client.execute_command("CLIENT", "KILL", "USER", "weir")
    loop.until(lambda: commands.times_ready == 2)


@pytest.mark.parametrize("other", [{"db": 1}, {"path": "elsewhere"}, {"user": "weir", "db": 1}])
def test_only_the_password_may_differ(other: dict[str, Any]) -> None:
    """A worker would go on at the former server."""
    address, later = RedisAddress(path="here"), RedisAddress(path="here", user="u", password="p")
    assert later.differs_in_credentials(address)
    assert not address.differs_in_credentials(address)
    assert not RedisAddress(**{"path": "here", **other}).differs_in_credentials(address)
    tls = RedisAddress(host="127.0.0.1", port=1, tls=True, name="a", ca="b")
    assert RedisAddress(host="127.0.0.1", port=1, tls=True, name="a", ca="b", password="p").differs_in_credentials(tls)
    assert not RedisAddress(host="127.0.0.1", port=1, tls=True, name="b", ca="b").differs_in_credentials(tls)
