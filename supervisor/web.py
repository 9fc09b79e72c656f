# The admin port: /metrics for Prometheus, /health/live and /health/ready for init systems and load balancers.
#
# "Live" means that the supervisor's event loop runs, "ready" that every worker serves and that the node is not drained.
# A connection carries one request: a few scrapes a minute are no reason to keep connections open.
# At most CONNECTIONS are open, as each takes a descriptor of the supervisor. If one more comes, the connection that has
# been idle longest is dropped: a probe is answered while slow scrapers hold all others. An error at this port costs one
# connection or a moment, never the node.
import socket
from collections import OrderedDict
from typing import Any, Final

import h11
import structlog
import trio

from supervisor.metrics import CONTENT_TYPE, exposition
from supervisor.node import Node

READ: Final = 16 * 1024
TIMEOUT: Final = 5.0  # seconds for a request and its answer
CONNECTIONS: Final = 64  # open at once: some scrapers and probes
ACCEPT_AGAIN: Final = 0.1  # seconds until accepting is tried again after an error
PLAIN: Final = "text/plain; charset=utf-8"

Answer = tuple[int, str, bytes]  # status, content type, body


class OpenConnections:
    """The connections of the admin port, of which at most CONNECTIONS are open."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._open: OrderedDict[trio.CancelScope, None] = OrderedDict()  # the one idle longest first
        self._crowded = False  # a connection was dropped, and it is logged

    def make_room(self) -> None:
        """Drop the connection that has been idle longest if there is no room for one more."""
        if len(self._open) < CONNECTIONS:
            if len(self._open) < CONNECTIONS // 2:
                self._crowded = False
            return
        self._node.admin_connections_dropped += 1
        self._open.popitem(last=False)[0].cancel()
        if not self._crowded:
            self._crowded = True
            structlog.get_logger().warning("admin_connections_dropped", open=CONNECTIONS)

    async def serve(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        """Serve *stream*, whose *scope* was given to `add()`, until its deadline or until it is dropped."""
        try:
            async with stream:
                with scope:
                    await self._answer(stream, scope)
        except Exception as error:  # closing failed
            structlog.get_logger().error("admin_request_failed", exc_info=error)
        finally:
            self._open.pop(scope, None)

    def add(self) -> trio.CancelScope:
        """The scope of a new connection."""
        scope = trio.CancelScope(deadline=trio.current_time() + TIMEOUT)
        self._open[scope] = None
        return scope

    async def _answer(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            http = h11.Connection(h11.SERVER, max_incomplete_event_size=READ)
            request: Any = h11.NEED_DATA
            while request is h11.NEED_DATA:
                http.receive_data(await stream.receive_some(READ))
                request = http.next_event()
            if isinstance(request, h11.Request):
                if scope in self._open:
                    self._open.move_to_end(scope)
                await _send(http, request, stream, self._node)
        except (trio.BrokenResourceError, h11.RemoteProtocolError):
            pass  # not HTTP, or the connection is closed already
        except Exception as error:  # a bug: it costs this answer, and the node goes on
            structlog.get_logger().error("admin_request_failed", exc_info=error)


async def serve_web(listening: socket.socket, node: Node) -> None:
    """Serve the admin port at *listening*, a socket that listens, until cancelled."""
    await serve_listener(trio.SocketListener(trio.socket.from_stdlib_socket(listening)), node)


async def serve_listener(listener: trio.abc.Listener[trio.SocketStream], node: Node) -> None:
    """Serve what *listener* accepts. It is asked again after any error (accept(2) has a dozen)."""
    connections = OpenConnections(node)
    failed = False
    async with trio.open_nursery() as nursery:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if not failed:  # once for errors that follow each other
                    structlog.get_logger().warning("admin_accept_failed", error=error.strerror or str(error))
                failed = True
                await trio.sleep(ACCEPT_AGAIN)
                continue
            failed = False
            connections.make_room()
            nursery.start_soon(connections.serve, stream, connections.add())


async def _send(http: h11.Connection, request: h11.Request, stream: trio.SocketStream, node: Node) -> None:
    """Answer *request*, and end the connection."""
    status, kind, body = answer(request.method, request.target.partition(b"?")[0], node)
    headers = [("Content-Type", kind), ("Content-Length", str(len(body))), ("Connection", "close")]
    data = http.send(h11.Response(status_code=status, headers=headers)) or b""
    if request.method != b"HEAD":
        data += http.send(h11.Data(data=body)) or b""
    await stream.send_all(data)
    await stream.send_eof()


def answer(method: bytes, target: bytes, node: Node) -> Answer:
    """The answer to a request for *target*."""
    if method not in (b"GET", b"HEAD"):
        return 405, PLAIN, b"Only GET and HEAD.\n"
    if target == b"/metrics":
        return 200, CONTENT_TYPE, exposition(node)
    if target == b"/health/live":
        return 200, PLAIN, b"live\n"
    if target == b"/health/ready":
        if node.ready():
            return 200, PLAIN, b"ready\n"
        return 503, PLAIN, _why_not_ready(node)
    return 404, PLAIN, b"There is /metrics, /health/live and /health/ready.\n"


def _why_not_ready(node: Node) -> bytes:
    if node.stopping():
        return b"stopping\n"
    return b"draining\n" if node.drain.state else b"not all workers serve\n"
