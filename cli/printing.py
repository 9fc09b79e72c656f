# How commands print: tables for people, JSON for programs.
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


def console() -> "Console":
    from rich.console import Console

    return Console()


def table_of(*columns: str, right: tuple[str, ...] = ()) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def counted(number: int, what: str) -> str:
    """So many of *what*, which is named in the singular and takes an s."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def print_json(what: object) -> None:
    import json

    typer.echo(json.dumps(what, indent=2))
