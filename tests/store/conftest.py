# Fixtures with real servers of Redis and a loop to speak to them.
from collections.abc import Iterator

import pytest

from supervisor.redis_server import RedisServer
from tests.redis_servers import SERVERS
from tests.store.loop import Loop


@pytest.fixture(params=SERVERS, ids=lambda server: ".".join(map(str, server.version)))
def every_server(request: pytest.FixtureRequest) -> RedisServer:
    """Each version that is installed, one after another."""
    server: RedisServer = request.param
    return server


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()
