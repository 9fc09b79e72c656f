# `weir overload`: how overloaded a node is, by what, and what that means for clients; once, or as it goes.
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.options import AsJson, ConfigFile, Folder
from cli.printing import console, print_json

if TYPE_CHECKING:
    from supervisor.folder import NodeFolder

EVERY: Final = 1.0  # seconds: what is measured by the interval changes so often
SILENT: Final = 6.0  # seconds without an answer; a worker has five for its part of one

NodeName = Annotated[
    str | None, typer.Option("--node", "--name", metavar="NODE", help="Which node, if there are several here.")
]


def overload(
    node: NodeName = None,
    folder: Folder = None,
    config: ConfigFile = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on, each second, until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how overloaded a node is, by what, and whom it holds back. Exit code 1 if it does not run."""
    from cli.asking import Answers, chosen
    from cli.overload_view import screen

    where = chosen(node, folder, config)
    if watch:
        try:
            return _watch(where, as_json)
        except KeyboardInterrupt:
            raise typer.Exit from None
    told = Answers(where).ask("overload")
    if as_json:
        return print_json(told)
    shown = console()
    for part in screen(told):
        shown.print(part)


def _watch(node: "NodeFolder", as_json: bool) -> None:
    if as_json:
        return _watch_as_json(node)
    screen = console()
    if screen.is_terminal:
        return _watch_live(node)
    return _watch_by_lines(node)


def _watch_live(node: "NodeFolder") -> None:
    """One screen that changes."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from cli.overload_view import screen

    with Live(console=console(), auto_refresh=False) as live:
        for told, trouble in answers(node):
            below = Text(trouble, style="red") if trouble else Text("Ctrl-C ends this", style="dim")
            parts = [] if told is None else screen(told)
            live.update(Group(*parts, Text(), below), refresh=True)


def _watch_by_lines(node: "NodeFolder") -> None:
    """A line each second, and one when the node goes away and when it is back."""
    from cli.overload_view import line

    before = ""
    for told, trouble in answers(node):
        stamp = time.strftime("%H:%M:%S")
        if trouble and trouble != before:
            typer.echo(f"{stamp}  {trouble}")
        elif not trouble and told is not None:
            if before:
                typer.echo(f"{stamp}  The node {node.name} is back.")
            typer.echo(f"{stamp}  {line(told)}")
        before = trouble


def _watch_as_json(node: "NodeFolder") -> None:
    """An object on each line, also for a second without an answer."""
    import json

    for told, trouble in answers(node):
        typer.echo(json.dumps({"error": trouble} if trouble else told))


def answers(node: "NodeFolder") -> Iterator[tuple[Any, str]]:
    """Each second what the node tells, or told last, and "", or a sentence that says why it does not now.

    Ends the command if there is no answer at the first time.
    """
    from cli.asking import Answers, NoAnswer

    told = None
    while True:
        begun = time.monotonic()
        with closing(Answers(node, patience=SILENT)) as asking:
            trouble = ""
            if told is None:
                told = asking.ask("overload")
            else:
                try:
                    told = asking.try_to_ask("overload")
                except NoAnswer as error:
                    trouble = str(error)
        yield told, trouble
        time.sleep(max(0.0, begun + EVERY - time.monotonic()))
