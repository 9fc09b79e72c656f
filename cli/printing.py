# How commands print: tables, or JSON with --json.
#
# A list has one line for each of its rows, whatever the rows contain. In a terminal that is too narrow the columns that
# say least are left out, and then the first column, which names the row, is cut in its middle: names often differ at
# their ends. Output that goes to a file or a program has everything: it is as wide as it needs to be, unless COLUMNS
# is set.
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

UNBOUNDED: Final = 100_000  # characters: a topic has at most 65 535, and a table is as wide as its widest row
SHORTEST: Final = 12  # characters that a name is cut to at least


def console() -> "Console":
    from rich.console import Console

    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return Console()
    return Console(width=UNBOUNDED)


def list_of(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    screen: "Console",
    *,
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> "Table":
    """A table with one line for each of *rows*, whose cells are printable text without markup.

    While the table is wider than *screen*, columns are left out in the order of *spare*, then the first one is cut.
    """
    lines = [dict(zip(columns, row, strict=True)) for row in rows]
    shown, left_out = list(columns), list(spare)
    while True:
        table = _one_line_each(shown, lines, right)
        excess = _width(table, screen) - screen.width
        if excess <= 0:
            return table
        if not left_out:
            break
        shown.remove(left_out.pop(0))
    name = shown[0]
    width = max(SHORTEST, max(len(line[name]) for line in lines) - excess) if lines else SHORTEST
    return _one_line_each(shown, [{**line, name: shortened(line[name], width)} for line in lines], right)


def shortened(text: str, width: int) -> str:
    """*text*, cut in its middle to *width* characters."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def _one_line_each(columns: Sequence[str], lines: Sequence[Mapping[str, str]], right: Sequence[str]) -> "Table":
    from rich.text import Text

    table = table_of(*columns, right=tuple(right))
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    for line in lines:
        table.add_row(*[Text(line[column]) for column in columns])
    return table


def _width(table: "Table", screen: "Console") -> int:
    """The characters that *table* takes if nothing in it is cut."""
    from rich.measure import Measurement

    return Measurement.get(screen, screen.options.update(max_width=UNBOUNDED), table).maximum


def table_of(*columns: str, right: tuple[str, ...] = ()) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def print_facts(screen: "Console", facts: Iterable[tuple[str, str]]) -> None:
    """Print each label with its value, which may have markup, on a line."""
    table = table_of("", "")
    table.show_header = False
    for label, value in facts:
        table.add_row(label, value)
    screen.print(table)


def counted(number: int, what: str) -> str:
    """*number* and the noun *what*, with an s unless *number* is 1."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def print_json(what: object) -> None:
    import json

    typer.echo(json.dumps(what, indent=2))
