# How commands print: tables, or JSON with --json.
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
    """*number* and the noun *what*, with an s unless *number* is 1."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def print_json(what: object) -> None:
    import json

    typer.echo(json.dumps(what, indent=2))
