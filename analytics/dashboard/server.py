# The HTTP server of the dashboard.
#
# The dashboard is read-only and has no password. By default it listens on loopback, and then accepts only requests
# whose Host header is a loopback name: other web pages cannot read it through a browser (DNS rebinding).
import signal
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from nicegui import Client, app, background_tasks, ui

from analytics.dashboard import page
from analytics.dashboard.page import LOGO, TITLE, AskWhy
from analytics.dashboard.reader import Reader

BACKLOG: Final = 128
ENDING: Final = 1  # seconds for open requests to finish when the server stops

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def serve(listener: socket.socket, reader: Reader, ask_why: AskWhy, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; call *ready* when the server accepts requests."""
    page.head()

    @ui.page("/", title=TITLE)
    def cluster() -> None:
        page.build_board(reader)

    @ui.page("/client/{name:path}", title=f"A client - {TITLE}")
    def client(name: str) -> None:
        page.build_client(reader, ask_why, name)

    def begin() -> None:
        background_tasks.create(reader.run(), name="reader")
        ready()

    app.on_startup(begin)
    app.on_shutdown(end_pages)
    served: Any = FastAPI(openapi_url=None)
    ui.run_with(served, title=TITLE, favicon=LOGO, tailwind=False, show_welcome_message=False, dark=False)
    if is_loopback(listener.getsockname()[0]):
        served = OnlyLocal(served)
    # uvicorn stops at these signals and raises them again for the previous handlers, which must not end the process.
    signal.signal(signal.SIGINT, _ignore)
    signal.signal(signal.SIGTERM, _ignore)
    config = uvicorn.Config(served, log_level="warning", timeout_graceful_shutdown=ENDING, ws_max_size=1 << 20)
    uvicorn.Server(config).run(sockets=[listener])


def end_pages() -> None:
    """Let the tasks that send to the pages end. NiceGUI then cancels all tasks.

    If a page changes at that moment, `asyncio.wait_for` of Python 3.11 ignores the cancellation; NiceGUI would wait
    for the task for 2 s and log an error.
    """
    for client in Client.instances.values():
        client.outbox.stop()


class OnlyLocal:
    """ASGI middleware that accepts only requests whose Host header is a loopback name or address."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and not _is_local(scope):
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008})
                return
            await send({"type": "http.response.start", "status": 421, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"This dashboard accepts requests to localhost only.\n"})
            return
        await self._inner(scope, receive, send)


def _is_local(scope: Scope) -> bool:
    host_header = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
    host = host_header.rpartition("]")[0].lstrip("[") if host_header.startswith("[") else host_header.partition(":")[0]
    return is_loopback(host.lower())


def _ignore(number: int, frame: FrameType | None) -> None:
    pass
