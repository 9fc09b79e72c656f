# `weir dashboard`: composes the page that shows the cluster: where its Redis is, and whom to ask about clients.
import errno
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.options import NOT_SO, ConfigFile, Folder, Name, load_settings, refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from analytics.dashboard.page import Answer
    from broker.store.redis.address import RedisAddress
    from supervisor.folder import NodeFolder

PORT: Final = 8088
LOOK_AGAIN: Final = 0.5  # seconds
SILENT: Final = 6.0  # seconds without an answer; a worker has five for its part of one
NEEDS: Final = "the dashboard needs NiceGUI: `pip install 'weirmq[dashboard]'` installs it."


def dashboard(
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Listen here; whoever gets there may look.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="0 takes any free one.")] = PORT,
    name: Name = None,
    folder: Folder = None,
    config: ConfigFile = None,
    redis: Annotated[
        str | None, typer.Option("--redis", metavar="URL", help="The Redis of the cluster, if its node is not here.")
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", min=0, metavar="S", help="How long the node may take to be there.")
    ] = 0.0,
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Show the cluster in a browser: how overloaded it is, because of what and whom, and who pays.

    It goes on while the analysis (`weir analytics run`) does not run, and while Redis is away. Ctrl-C ends it.
    """
    import importlib.util

    if importlib.util.find_spec("nicegui") is None:
        refuse(NEEDS)
    from analytics.dashboard.reading import Nowhere, Reader
    from analytics.dashboard.serving import is_loopback, listen, serve
    from cli.control_client import chosen_node

    node = chosen_node(name, folder, config)
    settings = load_settings(config, None).config.redis
    find = _finder(redis or settings.url, node)
    deadline = time.monotonic() + wait
    while True:
        try:
            find()
            break
        except Nowhere as error:
            if time.monotonic() >= deadline:
                refuse(str(error), NOT_SO)
        time.sleep(LOOK_AGAIN)
    try:
        listener = listen(host, port)
    except OSError as error:
        refuse(_cannot_listen(host, port, error))
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"
    reader = Reader(find, settings.prefix, lambda: _records(_asked(node, name, folder, config)))

    def ready() -> None:
        typer.echo(f"The dashboard serves on {url} (Ctrl-C ends it).")
        if not is_loopback(host):
            typer.echo(f"weir: it has no password: whoever reaches {host} sees it.", err=True)
        if open_:
            import webbrowser

            webbrowser.open(url)

    def why(client: str) -> "list[Answer]":
        return _why(_asked(node, name, folder, config), client)

    serve(listener, reader, why, ready)


def _finder(url: str, node: "NodeFolder") -> "Callable[[], RedisAddress]":
    """What finds the Redis at *url*, or that of *node* if it is ""; Nowhere."""
    from analytics.dashboard.reading import Nowhere
    from broker.store.redis.address import RedisAddress
    from cli.control_client import runs
    from supervisor.redis_address import find_redis
    from supervisor.redis_server import RedisUnusable

    def named() -> RedisAddress:
        try:
            return find_redis(url).address
        except RedisUnusable as error:
            raise Nowhere(str(error)) from None

    def of_node() -> RedisAddress:
        if not runs(node):
            raise Nowhere(
                f"The node {node.name} is not running. `weir start --detach` starts one, "
                "--name or --folder finds another, and --redis URL a cluster elsewhere."
            )
        socket = node.path / "redis" / "redis.sock"
        if not socket.exists():
            raise Nowhere(f"The node {node.name} has no Redis of its own: name the one that it uses with --redis URL.")
        try:
            return find_redis(f"unix://{socket}").address
        except RedisUnusable as error:
            raise Nowhere(str(error)) from None

    return named if url else of_node


def _asked(node: "NodeFolder", name: str | None, folder: str | None, config: Path | None) -> "list[NodeFolder]":
    """Which nodes of this machine are asked: the one that was chosen, else all that run here."""
    from cli.control_client import runs
    from supervisor.folder import folders

    if name is not None or folder is not None or config is not None:
        return [node]
    return [one for one in folders() if runs(one)]


def _records(nodes: "list[NodeFolder]") -> list[dict[str, Any]]:
    """The last records of their workers, as far as they answer."""
    return [
        one["record"]
        for told in _ask(nodes, "top")
        if isinstance(told, dict)
        for one in told.get("workers", [])
        if one.get("record") is not None
    ]


def _why(nodes: "list[NodeFolder]", client: str) -> "list[Answer]":
    """What each node says of *client*; of those that know nothing, only if none knows it."""
    from analytics.dashboard.page import Answer
    from broker.insight.explain import explain

    if not nodes:
        here = f"No node runs on this machine: `weir why {quote(client)}` where its node is says more."
        return [Answer("", (here,), known=False)]
    answers = []
    for node, told in zip(nodes, _ask(nodes, "why", client=client), strict=True):
        if isinstance(told, str):
            answers.append(Answer(node.name, (told,), known=False))
        else:
            answers.append(Answer(node.name, tuple(explain(told)), known=True))
    return [one for one in answers if one.known] or answers


def _ask(nodes: "list[NodeFolder]", command: str, **arguments: object) -> list[Any]:
    """What each answers; a sentence, if it does not."""
    from contextlib import closing

    from cli.control_client import ControlClient, RequestFailed

    told: list[Any] = []
    for node in nodes:
        with closing(ControlClient(node, patience=SILENT)) as control:
            try:
                told.append(control.try_request(command, **arguments))
            except RequestFailed as error:
                told.append(str(error))
    return told


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use, perhaps by another dashboard: --port takes another, and --port 0 any."
    if error.errno == errno.EACCES:
        return f"port {port} of {host} is for root only: --port 8088 is not."
    return f"cannot listen on port {port} of {host}: {error.strerror or error}."
