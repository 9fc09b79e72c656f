# The admin port: what it answers, and to what.
import errno
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
import trio
from structlog.testing import capture_logs

from broker.config.schema import Config
from supervisor.folder import NodeFolder
from supervisor.logfile import LogFile
from supervisor.node import Node
from supervisor.node_redis import NodeRedis
from supervisor.web import CONNECTIONS, answer, serve_listener, serve_web


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with one shard, whose worker has not started."""
    config, folder = Config(), NodeFolder("weir", str(tmp_path))
    redis = NodeRedis(config, folder, structlog.get_logger())
    return Node(config, folder, [[]], LogFile(), lambda: "", redis, lambda: None)


async def test_health_follows_the_workers(node: Node) -> None:
    """A load balancer would send clients to a node that does not serve, or none to one that does."""
    assert (200, b"live\n") == answer(b"GET", b"/health/live", node)[::2]
    assert (503, b"not all workers serve\n") == answer(b"GET", b"/health/ready", node)[::2]

    (shard,) = node.shards
    shard.process = process = shard.make()
    process.became_ready()
    assert (200, b"ready\n") == answer(b"GET", b"/health/ready", node)[::2]

    node.drain.begin(False, 0, "a test")
    assert (503, b"draining\n") == answer(b"GET", b"/health/ready", node)[::2]
    assert (200, b"live\n") == answer(b"GET", b"/health/live", node)[::2]
    node.drain.end("a test")
    assert (200, b"ready\n") == answer(b"GET", b"/health/ready", node)[::2]

    node.stop("a test")
    assert (503, b"stopping\n") == answer(b"GET", b"/health/ready", node)[::2]
    process.mark_dead()


def test_other_requests_are_refused(node: Node) -> None:
    """A wrong path or method would look like a node that is ready."""
    assert [405, 404] == [answer(b"POST", b"/metrics", node)[0], answer(b"GET", b"/", node)[0]]


@pytest.fixture
async def port(node: Node, nursery: trio.Nursery) -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        nursery.start_soon(serve_web, listening, node)
        yield listening.getsockname()[1]
        nursery.cancel_scope.cancel()


async def said(port: int, request: bytes) -> bytes:
    """All that the server sends in answer to *request*."""
    with trio.fail_after(10):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(request)
            return b"".join([data async for data in stream])


async def test_a_request_gets_its_answer_and_the_end_of_the_connection(port: int) -> None:
    """Prometheus would wait for more, or take a part for the whole."""
    head, _, body = (await said(port, b"GET /metrics?x=1 HTTP/1.1\r\nHost: weir\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert b"weir_ready 0.0\n" in body

    head, _, body = (await said(port, b"HEAD /metrics HTTP/1.1\r\nHost: weir\r\n\r\n")).partition(b"\r\n\r\n")
    assert (True, b"") == (head.startswith(b"HTTP/1.1 200 "), body)


@pytest.mark.parametrize(
    "request_bytes", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET " + b"x" * 100_000]
)
async def test_what_is_not_http_ends_its_connection_alone(port: int, request_bytes: bytes) -> None:
    """A client that speaks TLS to the port would end the supervisor, or fill the log with tracebacks."""
    with capture_logs() as lines:
        try:
            assert b"" == await said(port, request_bytes)
        except trio.BrokenResourceError:
            pass  # the kernel resets a connection that is closed with unread data
        after = await said(port, b"GET /health/live HTTP/1.1\r\nHost: weir\r\n\r\n")

    assert after.endswith(b"live\n")
    assert [] == lines


async def test_a_probe_is_answered_while_slow_scrapers_hold_all_connections(port: int, node: Node) -> None:
    """An init system would restart a node that works, because somebody opens connections and says nothing."""
    slow = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(CONNECTIONS)]
    for stream in slow:
        await stream.send_all(b"GET /metr")
    with trio.fail_after(3):  # less than the time that each of them has for its request
        after = await said(port, b"GET /health/live HTTP/1.1\r\nHost: weir\r\n\r\n")

    assert after.endswith(b"live\n")
    assert 1 == node.admin_connections_dropped
    for stream in slow:
        await stream.aclose()


class Broken(trio.abc.Listener[trio.SocketStream]):
    """Fails with each of *errors* before it accepts."""

    def __init__(self, listener: trio.SocketListener, errors: list[int]) -> None:
        self._listener = listener
        self._errors = errors

    async def accept(self) -> trio.SocketStream:
        await trio.lowlevel.checkpoint()
        if self._errors:
            raise OSError(self._errors.pop(), "a test")
        return await self._listener.accept()

    async def aclose(self) -> None:
        await self._listener.aclose()


async def test_an_error_of_accept_does_not_end_the_node(node: Node, nursery: trio.Nursery) -> None:
    """One reset connection, or one without a descriptor, would end the node and all clients with it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        errors = [errno.EPROTO, errno.EMFILE, errno.ECONNABORTED, errno.EPERM]
        with capture_logs() as lines:
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
            nursery.start_soon(serve_listener, Broken(listener, errors), node)
            after = await said(port, b"GET /health/live HTTP/1.1\r\nHost: weir\r\n\r\n")
        nursery.cancel_scope.cancel()

    assert after.endswith(b"live\n")
    assert ["admin_accept_failed"] == [line["event"] for line in lines]
