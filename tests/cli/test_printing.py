# Lists of what clients have named: one line for each row, in a terminal of any width, and whole in a file.
import io

import pytest
from rich.console import Console

from cli.printing import UNBOUNDED, console, list_of, print_facts, shortened

COLUMNS = ("client", "user", "state", "waiting")
NAMES = ["device-" + "0" * 300 + "-a", "device-" + "0" * 300 + "-b", "[bold]short[/bold]"]
ROWS = [[name, "somebody", "connected 12m 30s", "10000"] for name in NAMES]


def printed(width: int) -> list[str]:
    screen = Console(file=io.StringIO(), width=width)
    screen.print(list_of(COLUMNS, ROWS, screen, right=("waiting",), spare=("state", "user")))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue().splitlines()


@pytest.mark.parametrize("width", (40, 80, 120))
def test_a_row_takes_one_line_and_its_name_can_be_told_from_others(width: int) -> None:
    """A long client id would fold the table over many lines, or two ids would look alike."""
    head, _, *rows = printed(width)

    assert 3 == len(rows)
    assert max(len(line.rstrip()) for line in (head, *rows)) <= width
    assert rows[0].startswith("device-0") and "-a " in rows[0] and "-b " in rows[1] and "…" in rows[0]
    assert rows[2].startswith("[bold]short[/bold] ")
    assert all(row.rstrip().endswith("10000") for row in rows)


def test_columns_are_left_out_before_names_are_cut() -> None:
    """A terminal would show what says least, and not what a session is called."""
    wide, narrow = printed(350), printed(330)

    assert all(title in wide[0] for title in COLUMNS) and NAMES[0] in wide[2]
    assert "state" not in narrow[0] and "user" in narrow[0] and NAMES[0] in narrow[2]


def test_a_file_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that reads the list would get cut names and not every column."""
    monkeypatch.delenv("COLUMNS", raising=False)

    assert UNBOUNDED == console().width
    monkeypatch.setenv("COLUMNS", "80")
    assert 80 == console().width


@pytest.mark.parametrize(
    ("text", "width", "cut"), [("abcdef", 6, "abcdef"), ("abcdef", 5, "ab…ef"), ("abcdef", 4, "ab…f")]
)
def test_a_name_is_cut_in_its_middle(text: str, width: int, cut: str) -> None:
    """What is cut would be longer than its column, or lose the end that tells it from others."""
    assert cut == shortened(text, width)


def test_facts_have_no_empty_head() -> None:
    """Each of them would begin with an empty line and a rule."""
    screen = Console(file=io.StringIO(), width=80)
    print_facts(screen, [("client", "a"), ("state", "connected")])

    assert isinstance(screen.file, io.StringIO)
    assert ["client  a", "state   connected"] == [line.rstrip() for line in screen.file.getvalue().splitlines()]
