# The dashboard as a server: the pages, the reader behind them, and who may ask.
#
# It shows, and changes nothing. It has no password, so it listens on loopback unless it is told otherwise, and there it
# answers only those who know it by a name of this machine: a page of somebody else cannot have a browser read it.
import signal
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from nicegui import app, background_tasks, ui

from analytics.dashboard import page
from analytics.dashboard.page import LOGO, TITLE, AskWhy
from analytics.dashboard.reading import Reader

BACKLOG: Final = 128
ENDING: Final = 1  # seconds that browsers have to take what is under way

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def listen(host: str, port: int) -> socket.socket:
    """The socket, listening. OSError."""
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
    """Until SIGINT or SIGTERM; *ready* is called when it serves."""
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
    served: Any = FastAPI(openapi_url=None)
    ui.run_with(served, title=TITLE, favicon=LOGO, tailwind=False, show_welcome_message=False, dark=False)
    if is_loopback(listener.getsockname()[0]):
        served = OnlyLocal(served)
    # uvicorn ends at these signals, and then has them happen again, for whoever was there before.
    signal.signal(signal.SIGINT, _nothing)
    signal.signal(signal.SIGTERM, _nothing)
    config = uvicorn.Config(served, log_level="warning", timeout_graceful_shutdown=ENDING, ws_max_size=1 << 20)
    uvicorn.Server(config).run(sockets=[listener])


class OnlyLocal:
    """Answers those who asked for this machine by its name or number; nobody else can know that it is here."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and not _asks_for_us(scope):
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008})
                return
            await send({"type": "http.response.start", "status": 421, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"This dashboard is only for its own machine.\n"})
            return
        await self._inner(scope, receive, send)


def _asks_for_us(scope: Scope) -> bool:
    named = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
    host = named.rpartition("]")[0].lstrip("[") if named.startswith("[") else named.partition(":")[0]
    return is_loopback(host.lower())


def _nothing(number: int, frame: FrameType | None) -> None:
    pass
