# The clients of the analysis and of the dashboard at a Redis with TLS.
import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from analytics.connecting import connect
from analytics.dashboard.reader import client
from cli.analytics import find_logs
from supervisor.redis_address import find_redis
from tests.net.tls import Authority
from tests.redis_servers import HOST, RunningRedis, free_port, server_with_tls, tls_lines

pytestmark = pytest.mark.system  # real servers


def test_the_analysis_and_the_dashboard_speak_tls(start_redis: Callable[..., RunningRedis], tmp_path: Path) -> None:
    """They would ask without TLS, not know the authorities, or accept the certificate of another server."""
    authority = Authority(tmp_path)
    server, port = server_with_tls(), free_port()
    if server is None:
        pytest.skip("there is no redis-server with TLS")
    start_redis(server, tls_lines(port, authority.issue("localhost"), authority.file) + "databases 2\n")
    url = f"rediss://localhost:{port}/1"
    address = find_logs(url, None, None, None, None, [f"redis.ca={authority.file}"]).redis
    with connect(address) as job:
        assert job.ping()
    for wrong in (url, address.replace("localhost", HOST)):  # an unknown authority, another name
        with connect(wrong) as stranger, pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            stranger.ping()

    async def ask() -> bool:
        async with client(find_redis(url, authority.file).address) as dashboard:
            return bool(await dashboard.ping())

    assert asyncio.run(ask())
