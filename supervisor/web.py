# The admin port: /metrics for Prometheus, /health/live and /health/ready for init systems and load balancers.
#
# "Live" means that the supervisor's event loop runs, "ready" that every worker serves. A connection carries one
# request: a few scrapes a minute are no reason to keep connections open.
import socket
from typing import Any, Final

import h11
import structlog
import trio

from supervisor.metrics import CONTENT_TYPE, exposition
from supervisor.node import Node

READ: Final = 16 * 1024
TIMEOUT: Final = 5.0  # seconds for a request and its answer
CONCURRENT: Final = 16  # connections; further ones wait
PLAIN: Final = "text/plain; charset=utf-8"

Answer = tuple[int, str, bytes]  # status, content type, body


async def serve_web(listening: socket.socket, node: Node) -> None:
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    room = trio.CapacityLimiter(CONCURRENT)

    async def serve(stream: trio.SocketStream) -> None:
        async with stream, room:
            with trio.move_on_after(TIMEOUT):
                try:
                    await _serve_one(stream, node)
                except (trio.BrokenResourceError, h11.RemoteProtocolError):
                    pass  # not HTTP, or the connection is closed already
                except Exception as error:  # a bug: it costs this answer, and the node goes on
                    structlog.get_logger().error("admin_request_failed", exc_info=error)

    await trio.serve_listeners(serve, [listener])


async def _serve_one(stream: trio.SocketStream, node: Node) -> None:
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=READ)
    request: Any = h11.NEED_DATA
    while request is h11.NEED_DATA:
        http.receive_data(await stream.receive_some(READ))
        request = http.next_event()
    if not isinstance(request, h11.Request):
        return
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
        return 503, PLAIN, b"stopping\n" if node.stopping() else b"not all workers serve\n"
    return 404, PLAIN, b"There is /metrics, /health/live and /health/ready.\n"
