# `weir overload`: shows how overloaded a node is, the cause, and the throttled clients, once or continuously.
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.options import AsJson, ConfigFile, Folder
from cli.printing import console, print_json

if TYPE_CHECKING:
    from supervisor.folder import NodeFolder

EVERY: Final = 1.0  # seconds: the interval of the measurements
SILENT: Final = 6.0  # seconds to wait for an answer; a worker has 5 s for its part of it

NodeName = Annotated[
    str | None, typer.Option("--node", "--name", metavar="NODE", help="Name of the node, if this machine has several.")
]


def overload(
    node: NodeName = None,
    folder: Folder = None,
    config: ConfigFile = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update each second until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the overload level of a node, its cause, and the throttled clients.

    Exit code 1 if the node is not running.
    """
    from cli.control_client import ControlClient, chosen_node
    from cli.overload_view import screen

    where = chosen_node(node, folder, config)
    if watch:
        try:
            return _watch(where, as_json)
        except KeyboardInterrupt:
            raise typer.Exit from None
    answer = ControlClient(where).request("overload")
    if as_json:
        return print_json(answer)
    shown = console()
    for part in screen(answer):
        shown.print(part)


def _watch(node: "NodeFolder", as_json: bool) -> None:
    if as_json:
        return _watch_as_json(node)
    screen = console()
    if screen.is_terminal:
        return _watch_live(node)
    return _watch_by_lines(node)


def _watch_live(node: "NodeFolder") -> None:
    """Show one screen and update it."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from cli.overload_view import screen

    with Live(console=console(), auto_refresh=False) as live:
        for answer, trouble in snapshots(node):
            below = Text(trouble, style="red") if trouble else Text("Ctrl-C to quit", style="dim")
            parts = [] if answer is None else screen(answer)
            live.update(Group(*parts, Text(), below), refresh=True)


def _watch_by_lines(node: "NodeFolder") -> None:
    """Print a line each second, and one when the node stops answering or answers again."""
    from cli.overload_view import line

    before = ""
    for answer, trouble in snapshots(node):
        stamp = time.strftime("%H:%M:%S")
        if trouble and trouble != before:
            typer.echo(f"{stamp}  {trouble}")
        elif not trouble and answer is not None:
            if before:
                typer.echo(f"{stamp}  The node {node.name} answers again.")
            typer.echo(f"{stamp}  {line(answer)}")
        before = trouble


def _watch_as_json(node: "NodeFolder") -> None:
    """Print a JSON object per second, also for a second without an answer."""
    import json

    for answer, trouble in snapshots(node):
        typer.echo(json.dumps({"error": trouble} if trouble else answer))


def snapshots(node: "NodeFolder") -> Iterator[tuple[Any, str]]:
    """Each second the latest snapshot of the node, with "" or a sentence that says why there is no newer one.

    If the first request fails, the command ends.
    """
    from cli.control_client import ControlClient, RequestFailed

    answer = None
    while True:
        begun = time.monotonic()
        with closing(ControlClient(node, patience=SILENT)) as control:
            trouble = ""
            if answer is None:
                answer = control.request("overload")
            else:
                try:
                    answer = control.try_request("overload")
                except RequestFailed as error:
                    trouble = str(error)
        yield answer, trouble
        time.sleep(max(0.0, begun + EVERY - time.monotonic()))
