# Fixtures with real servers of Redis and a loop to speak to them.
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.redis_server import RedisServer
from tests.redis_servers import SERVERS, RunningRedis
from tests.store.loop import Loop


@pytest.fixture(params=SERVERS, ids=lambda server: ".".join(map(str, server.version)))
def every_server(request: pytest.FixtureRequest) -> RedisServer:
    """Each version that is installed, one after another."""
    server: RedisServer = request.param
    return server


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[Callable[..., RunningRedis]]:
    """A function that starts a server, `start_redis()`; it is ended after the test."""
    started: list[RunningRedis] = []

    def start(server: RedisServer | None = None, more: str = "", port: int = 0) -> RunningRedis:
        if server is None and not SERVERS:
            pytest.skip("there is no redis-server")
        started.append(RunningRedis(server or SERVERS[-1], tmp_path / f"redis{len(started)}", more, port))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()
