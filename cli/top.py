# `weir top`: what all nodes of this machine do, live on a terminal, else once.
import time
from contextlib import closing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.options import NOT_SO, AsJson, ConfigFile, Folder, refuse
from cli.overload import SILENT, NodeName
from cli.printing import console, counted, print_json

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

EVERY: Final = 1.0  # seconds: there is a new record so often
LINES: Final = 60  # of what is printed once

Told = dict[str, Any]


class Order(StrEnum):
    """By what clients and topics are ordered."""

    COST = "cost"
    MESSAGES = "messages"
    BYTES = "bytes"


BY_KEY: Final = {"c": Order.COST, "m": Order.MESSAGES, "b": Order.BYTES}


def top(
    by: Annotated[Order, typer.Option(help="What clients and topics are ordered by.")] = Order.COST,
    node: NodeName = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what nodes and workers do, and which clients and topics cost most: live, or once if not on a terminal.

    Without --node or --folder: all nodes of this machine whose folders are in the usual place.
    """
    from cli.top_view import screen, together

    chosen = node, folder, config
    nodes = ask_all(*chosen)
    if not nodes:
        refuse("No node runs here: `weir start --detach` starts one, and --folder finds one elsewhere.", NOT_SO)
    if len(nodes) == 1 and "error" in nodes[0]:
        refuse(nodes[0]["error"], NOT_SO)
    if as_json:
        return print_json(together(nodes, by.value))
    shown = console()
    if not shown.is_terminal:
        for part in screen(nodes, by.value, LINES, heading(nodes, by)):
            shown.print(part)
        return
    try:
        _live(shown, chosen, nodes, by)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _live(shown: "Console", chosen: "tuple[str | None, str | None, Path | None]", nodes: list[Told], by: Order) -> None:
    """Show *nodes* and what becomes of them, until somebody presses q."""
    from rich.console import Group
    from rich.live import Live

    from cli.keys import Keys
    from cli.top_view import KEYS, screen

    with Live(console=shown, screen=True, auto_refresh=False) as live, Keys() as keys:
        while True:
            title = f"{heading(nodes, by)}   {KEYS}"
            live.update(Group(*screen(nodes, by.value, shown.height, title)), refresh=True)
            key = keys.wait(EVERY)
            if key == "q":
                return
            if key in BY_KEY:
                by = BY_KEY[key]
            elif not key:
                nodes = ask_all(*chosen)


def ask_all(name: str | None, folder: str | None, config: "Path | None") -> list[Told]:
    """What each of the chosen nodes tells, or why it does not; without a choice, all that run here."""
    from cli.asking import Answers, NoAnswer, chosen, runs
    from supervisor.folder import folders

    if name is None and folder is None and config is None:
        wanted = [one for one in folders() if runs(one)]
    else:
        wanted = [chosen(name, folder, config)]
    told = []
    for one in wanted:
        with closing(Answers(one, patience=SILENT)) as asking:
            try:
                told.append(asking.try_to_ask("top"))
            except NoAnswer as error:
                told.append({"node": one.name, "error": str(error)})
    return told


def heading(nodes: list[Told], by: Order) -> str:
    return f"weir top  {time.strftime('%H:%M:%S')}  {counted(len(nodes), 'node')}, by {by.value}"
