# The HTTP server of the dashboard.
#
# access.py decides which requests it answers, and which come from operators. For all others it is read-only.
import gc
import signal
import socket
from collections.abc import Callable, Collection
from itertools import chain
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from nicegui import Client, app, background_tasks, ui

from analytics.dashboard import page
from analytics.dashboard.access import OPERATOR, Access
from analytics.dashboard.client_nodes import ClientNodes, NodeRefused
from analytics.dashboard.page import LOGO, TITLE
from analytics.dashboard.reader import Reader
from analytics.dashboard.session_card import EXPORT

BACKLOG: Final = 128
# Seconds that a page may be silent. After more it loads itself anew, which closes what its reader has opened; with the
# 3 s that are usual, a browser on a busy machine does that now and then.
RECONNECT: Final = 15.0
GC_THRESHOLD: Final = 100_000  # objects: the records of all workers have no cycles, so collections are mostly wasted
ENDING: Final = 1  # seconds for open requests to finish when the server stops


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


def serve(
    listener: socket.socket,
    reader: Reader,
    nodes: ClientNodes,
    ready: Callable[[], None],
    hosts: Collection[str] = (),
    token: str = "",
    operator_token: str = "",
) -> None:
    """Serve until SIGINT or SIGTERM; call *ready* when the server accepts requests.

    *hosts*, *token*, *operator_token*: see Access.
    """
    gc.set_threshold(GC_THRESHOLD)
    page.head()

    @ui.page("/", title=TITLE)
    def cluster() -> None:
        page.build_board(reader)

    @ui.page("/nodes", title=f"Nodes - {TITLE}")
    def nodes_of_cluster(page_number: str = Query("", alias="page")) -> None:
        page.build_nodes(reader, int(page_number) if page_number.isdecimal() and len(page_number) < 6 else 1)

    @ui.page("/node/{name:path}", title=f"A node - {TITLE}")
    def node(name: str) -> None:
        page.build_node(reader, name)

    @ui.page("/worker/{number}/{name:path}", title=f"A worker - {TITLE}")
    def worker(number: str, name: str) -> None:
        page.build_worker(reader, name, int(number) if number.isdecimal() and len(number) < 6 else 0)

    @ui.page("/client/{name:path}", title=f"A client - {TITLE}")
    def client(name: str, request: Request) -> None:
        page.build_client(reader, nodes, name, request.scope[OPERATOR], operator_token != "")

    def begin() -> None:
        background_tasks.create(reader.run(), name="reader")
        ready()

    app.on_startup(begin)
    app.on_shutdown(end_pages)
    served: Any = FastAPI(openapi_url=None)

    def export_queue(request: Request, node: str, client: str) -> Response:
        return export(nodes, node, client, request.scope[OPERATOR])

    served.add_api_route(EXPORT, export_queue)
    ui.run_with(
        served,
        title=TITLE,
        favicon=LOGO,
        tailwind=False,
        show_welcome_message=False,
        dark=False,
        reconnect_timeout=RECONNECT,
    )
    served = Access(served, hosts, token, operator_token)
    # uvicorn stops at these signals and raises them again for the previous handlers, which must not end the process.
    signal.signal(signal.SIGINT, _ignore)
    signal.signal(signal.SIGTERM, _ignore)
    config = uvicorn.Config(served, log_level="warning", timeout_graceful_shutdown=ENDING, ws_max_size=1 << 20)
    uvicorn.Server(config).run(sockets=[listener])


def export(nodes: ClientNodes, node: str, client: str, operates: bool) -> Response:
    """Return what waits for *client* at *node* as a file to download, if an operator asks."""
    if not operates:
        return PlainTextResponse("Only operators may export what waits for a client.\n", 403)
    pages = nodes.export(node, client)
    try:
        first = next(pages, b"")
    except NodeRefused as error:
        return PlainTextResponse(f"{error}\n", 404)
    headers = {
        "content-disposition": 'attachment; filename="queue.jsonl"',  # without the client id, which may be anything
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
    }
    return StreamingResponse(chain([first], pages), media_type="application/x-ndjson", headers=headers)


def end_pages() -> None:
    """Let the tasks that send to the pages end. NiceGUI then cancels all tasks.

    If a page changes at that moment, `asyncio.wait_for` of Python 3.11 ignores the cancellation; NiceGUI would wait
    for the task for 2 s and log an error.
    """
    for client in Client.instances.values():
        client.outbox.stop()


def _ignore(number: int, frame: FrameType | None) -> None:
    pass
