# `weir top`: the activity of all nodes of this machine, live on a terminal, otherwise printed once.
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

EVERY: Final = 1.0  # seconds between two metrics records
LINES: Final = 60  # printed at most without a terminal

Answer = dict[str, Any]


class Order(StrEnum):
    """The order of clients and topics."""

    COST = "cost"
    MESSAGES = "messages"
    BYTES = "bytes"


BY_KEY: Final = {"c": Order.COST, "m": Order.MESSAGES, "b": Order.BYTES}


def top(
    by: Annotated[Order, typer.Option(help="Order of clients and topics.")] = Order.COST,
    node: NodeName = None,
    folder: Folder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the activity of nodes and workers, and the clients and topics that cost most.

    Updates live on a terminal, otherwise prints once. Without --node or --folder: all nodes of this machine whose
    folders are in the default place.
    """
    from cli.top_view import screen, together

    chosen = node, folder, config
    nodes = ask_all(*chosen)
    if not nodes:
        refuse(
            "No node is running on this machine. `weir start --detach` starts one; --folder names one elsewhere.",
            NOT_SO,
        )
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


def _live(
    shown: "Console", chosen: "tuple[str | None, str | None, Path | None]", nodes: list[Answer], by: Order
) -> None:
    """Show *nodes* and update them until the user presses q."""
    from rich.console import Group
    from rich.live import Live

    from cli.keyboard import Keyboard
    from cli.top_view import KEYS, screen

    with Live(console=shown, screen=True, auto_refresh=False) as live, Keyboard() as keyboard:
        while True:
            title = f"{heading(nodes, by)}   {KEYS}"
            live.update(Group(*screen(nodes, by.value, shown.height, title)), refresh=True)
            key = keyboard.wait(EVERY)
            if key == "q":
                return
            if key in BY_KEY:
                by = BY_KEY[key]
            elif not key:
                nodes = ask_all(*chosen)


def ask_all(name: str | None, folder: str | None, config: "Path | None") -> list[Answer]:
    """The answer of each chosen node, or an error sentence. Without a choice: all running nodes of this machine."""
    from cli.control_client import ControlClient, RequestFailed, chosen_node, runs
    from supervisor.folder import folders

    if name is None and folder is None and config is None:
        wanted = [one for one in folders() if runs(one)]
    else:
        wanted = [chosen_node(name, folder, config)]
    answer = []
    for one in wanted:
        with closing(ControlClient(one, patience=SILENT)) as control:
            try:
                answer.append(control.try_request("top"))
            except RequestFailed as error:
                answer.append({"node": one.name, "error": str(error)})
    return answer


def heading(nodes: list[Answer], by: Order) -> str:
    return f"weir top  {time.strftime('%H:%M:%S')}  {counted(len(nodes), 'node')}, by {by.value}"
