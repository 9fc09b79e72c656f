# `weir dashboard`: starts the dashboard with the address of Redis and the nodes that answer questions about clients.
import errno
import threading
import time
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.options import NOT_SO, ConfigFile, Folder, Name, load_settings, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from analytics.dashboard.client_nodes import Answer, Found
    from broker.config.schema import Redis
    from broker.store.redis.address import RedisAddress
    from supervisor.folder import NodeFolder

PORT: Final = 8088
RETRY_EVERY: Final = 0.5  # seconds
TIMEOUT: Final = 6.0  # seconds for the reply of a node, whose workers have five seconds
COUNTS: Final = 2  # of queues at once: for each a node reads up to 10 000 messages, and everybody who looks may ask
LONG: Final = 60.0  # seconds for a purge, which a node works on page by page
NEEDS: Final = "the dashboard needs NiceGUI and msgspec: `pip install 'weirmq[dashboard]'` installs it."


def dashboard(
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Listen on this address. Beyond loopback it needs --allowed-host and --token-file."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="Port; 0 chooses a free one.")] = PORT,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name or address at which browsers reach the dashboard. Repeatable."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token that browsers must give, once.")
    ] = None,
    operator_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token of operators, who may also export and purge queues and drop sessions.",
        ),
    ] = None,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    redis: Annotated[
        str | None,
        typer.Option("--redis", metavar="URL", help="Redis of the cluster (default: that of the local node)."),
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", min=0, metavar="S", help="Wait up to S seconds for the node to start.")
    ] = 0.0,
    open_: Annotated[bool, typer.Option("--open", help="Open the dashboard in the browser.")] = False,
) -> None:
    """Show the overload of the cluster in a browser: level, cause, culprits and effects.

    The dashboard also works without the analysis (`weir analytics run`) and while Redis is unavailable.
    Ctrl-C stops it.
    """
    import importlib.util

    if any(importlib.util.find_spec(needed) is None for needed in ("nicegui", "msgspec")):
        refuse(NEEDS)
    from analytics.dashboard.access import is_loopback
    from analytics.dashboard.reader import Nowhere, Reader
    from analytics.dashboard.server import listen, serve
    from cli.control_client import chosen_node

    hosts, token = allowed_host or [], "" if token_file is None else _token(token_file)
    operator_token = "" if operator_token_file is None else _token(operator_token_file)
    if token and token == operator_token:
        refuse("--token-file and --operator-token-file have the same token: whoever may look could purge queues.")
    if not is_loopback(host) and not (hosts and token):
        refuse(
            f"on {host} other machines could read the dashboard: --allowed-host NAME says at which name browsers reach "
            "it, and --token-file FILE which token they must give."
        )
    node = chosen_node(name, folder, config)
    settings = load_settings(config, None).config.redis
    find = _finder(replace(settings, url=redis or settings.url), node)
    deadline = time.monotonic() + wait
    while True:
        try:
            find()
            break
        except Nowhere as error:
            if time.monotonic() >= deadline:
                refuse(str(error), NOT_SO)
        time.sleep(RETRY_EVERY)
    try:
        listener = listen(host, port)
    except OSError as error:
        refuse(_cannot_listen(host, port, error))
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"
    reader = Reader(find, settings.prefix, lambda: _records(_nodes_to_query(node, name, folder, config)))

    def ready() -> None:
        typer.echo(f"The dashboard serves on {url} (Ctrl-C stops it).")
        if open_:
            import webbrowser

            webbrowser.open(url)

    nodes = _Nodes(lambda: _nodes_to_query(node, name, folder, config))
    serve(listener, reader, nodes, ready, hosts, token, operator_token)


class _Nodes:
    """The ClientNodes of the dashboard: those that run here, or the chosen one."""

    def __init__(self, nodes: "Callable[[], list[NodeFolder]]") -> None:
        self._nodes = nodes
        self._counts = threading.BoundedSemaphore(COUNTS)

    def why(self, client: str) -> "list[Answer]":
        return _why(self._nodes(), client)

    def sessions(self, client: str) -> "list[Found]":
        return _sessions(self._nodes(), client)

    def queue(self, node: str, client: str) -> Any:
        return self._counted(node, "queue", client=client, first=1)

    def _counted(self, node: str, command: str, **arguments: object) -> Any:
        """The answer to *command*, for which a node reads messages: few pages may have it do that at once."""
        from analytics.dashboard.client_nodes import NodeRefused

        if not self._counts.acquire(blocking=False):
            raise NodeRefused("Other pages have what waits counted just now: count again in a moment.")
        try:
            return self._request(node, command, TIMEOUT, **arguments)
        finally:
            self._counts.release()

    def log(self, node: str, client: str) -> Any:
        return self._counted(node, "application", client=client)

    def purge(self, node: str, client: str) -> Any:
        return self._request(node, "queue_purge", LONG, client=client, filter="")

    def drop(self, node: str, client: str) -> None:
        self._request(node, "session_drop", TIMEOUT, client=client)

    def export(self, node: str, client: str) -> "Iterator[bytes]":
        from analytics.dashboard.client_nodes import NodeRefused
        from cli.control_client import RequestFailed
        from cli.queue_export import exported_pages, lines

        begun = False
        try:
            for messages in exported_pages(self._named(node), client, TIMEOUT):
                yield lines(messages)
                begun = True
        except RequestFailed as error:
            if not begun:
                raise NodeRefused(str(error)) from None
            yield lines([{"error": f"The export is not complete. {error}"}])

    def _named(self, name: str) -> "NodeFolder":
        from analytics.dashboard.client_nodes import NodeRefused

        for node in self._nodes():
            if node.name == name:
                return node
        raise NodeRefused("This node does not run on this machine any more.")

    def _request(self, node: str, command: str, patience: float, **arguments: object) -> Any:
        from contextlib import closing

        from analytics.dashboard.client_nodes import NodeRefused
        from cli.control_client import ControlClient, RequestFailed

        with closing(ControlClient(self._named(node), patience)) as control:
            try:
                return control.try_request(command, **arguments)
            except RequestFailed as error:
                raise NodeRefused(str(error)) from None


def _token(file: Path) -> str:
    """Return the token in *file*; exit if there is none that is long enough."""
    from analytics.dashboard.access import LEAST_TOKEN

    try:
        token = file.read_text().strip()
    except (OSError, ValueError) as error:
        refuse(f"cannot read the token file {file}: {getattr(error, 'strerror', None) or 'it is not a text'}.")
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable():
        refuse(
            f"the token in {file} must have at least {LEAST_TOKEN} letters and digits: "
            f"`openssl rand -hex 16 > {quote(str(file))}` makes one."
        )
    return token


def _finder(settings: "Redis", node: "NodeFolder") -> "Callable[[], RedisAddress]":
    """Return a function that finds the Redis of *settings*, or of *node* if they name none; it may raise Nowhere."""
    from analytics.dashboard.reader import Nowhere
    from broker.store.redis.address import RedisAddress
    from cli.control_client import runs
    from supervisor.redis_address import find_configured, find_redis
    from supervisor.redis_server import RedisUnusable

    def named() -> RedisAddress:
        try:
            return find_configured(settings).address
        except RedisUnusable as error:
            raise Nowhere(str(error)) from None

    def of_node() -> RedisAddress:
        if not runs(node):
            raise Nowhere(
                f"The node {node.name} is not running: `weir start --detach` starts one, "
                "--name or --folder chooses another, --redis URL shows a cluster on other machines."
            )
        socket = node.path / "redis" / "redis.sock"
        if not socket.exists():
            raise Nowhere(f"The node {node.name} has no embedded Redis: give the URL of its Redis with --redis.")
        try:
            return find_redis(f"unix://{socket}").address
        except RedisUnusable as error:
            raise Nowhere(str(error)) from None

    return named if settings.url else of_node


def _nodes_to_query(
    node: "NodeFolder", name: str | None, folder: str | None, config: Path | None
) -> "list[NodeFolder]":
    """Return the nodes to query: the chosen node, otherwise all nodes that run on this machine."""
    from cli.control_client import runs
    from supervisor.folder import folders

    if name is not None or folder is not None or config is not None:
        return [node]
    return [one for one in folders() if runs(one)]


def _records(nodes: "list[NodeFolder]") -> list[dict[str, Any]]:
    """Return the last records of all workers of the nodes that answer."""
    return [
        one["record"]
        for reply in _ask(nodes, "top")
        if isinstance(reply, dict)
        for one in reply.get("workers", [])
        if one.get("record") is not None
    ]


def _why(nodes: "list[NodeFolder]", client: str) -> "list[Answer]":
    """Return the replies of the nodes about *client*. Failures are returned only if no node knows the client."""
    from analytics.dashboard.client_nodes import Answer
    from broker.insight.explain import explain

    if not nodes:
        here = f"No node runs on this machine: use `weir why {quote(client)}` on the machine of the node."
        return [Answer("", (here,), known=False)]
    answers = []
    for node, reply in zip(nodes, _ask(nodes, "why", client=client), strict=True):
        if isinstance(reply, str):
            answers.append(Answer(node.name, (reply,), known=False))
        else:
            answers.append(Answer(node.name, tuple(explain(reply)), known=True))
    return [one for one in answers if one.known] or answers


def _sessions(nodes: "list[NodeFolder]", client: str) -> "list[Found]":
    """Return the session of *client* at each node that has one, or else what the nodes said."""
    from analytics.dashboard.client_nodes import Found

    if not nodes:
        here = f"No node runs on this machine: use `weir sessions show {quote(client)}` on the machine of the node."
        return [Found("", None, here)]
    found = [
        Found(node.name, None, reply) if isinstance(reply, str) else Found(node.name, reply)
        for node, reply in zip(nodes, _ask(nodes, "session", client=client), strict=True)
    ]
    return [one for one in found if one.session is not None] or found


def _ask(nodes: "list[NodeFolder]", command: str, **arguments: object) -> list[Any]:
    """Return the reply of each node, or a sentence if the request failed."""
    from contextlib import closing

    from cli.control_client import ControlClient, RequestFailed

    replies: list[Any] = []
    for node in nodes:
        with closing(ControlClient(node, patience=TIMEOUT)) as control:
            try:
                replies.append(control.try_request(command, **arguments))
            except RequestFailed as error:
                replies.append(str(error))
    return replies


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use, perhaps by another dashboard: choose another port with --port "
            "(--port 0: any free port)."
        )
    if error.errno == errno.EACCES:
        return f"port {port} of {host} needs root privileges: choose a port above 1023 with --port."
    return f"cannot listen on port {port} of {host}: {error.strerror or error}."
