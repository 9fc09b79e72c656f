# The reference page of log events and reasons beside the code.
import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.overload.protection import EVENTS
from tests.insight.events_page import PAGE, written

ROOT: Final = Path(__file__).parents[2]
LEVELS: Final = ("info", "warning", "error")
ANY: Final = "**"  # fields that are not named at the call
GIVEN: Final = {"log_lines_suppressed": {*LEVELS}}  # an event whose level is chosen when it is logged


class Event:
    def __init__(self) -> None:
        self.levels: set[str] = set()
        self.fields: set[str] = set()


def in_code() -> dict[str, Event]:
    """By name: the events that the code logs, with their levels and the fields that are named at the call."""
    found: dict[str, Event] = {}
    for folder in ("broker", "supervisor", "cli", "analytics"):
        for path in (ROOT / folder).rglob("*.py"):
            for call in calls(ast.parse(path.read_text())):
                level, name, fields = call
                event = found.setdefault(name, Event())
                event.levels |= {level} if level else GIVEN[name]
                event.fields |= fields
    for name in EVENTS.values():
        event = found.setdefault(name, Event())
        event.levels.add("info")
        event.fields |= {"client", "reason"}
    return found


def calls(module: ast.Module) -> Iterator[tuple[str, str, set[str]]]:
    """(level, event, fields) of each call that logs an event by a literal name; level "": chosen at run time."""
    for node in ast.walk(module):
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
            continue
        name = node.args[0].value
        if isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
            level = node.func.attr
        elif (
            isinstance(node.func, ast.Call) and isinstance(node.func.func, ast.Name) and node.func.func.id == "getattr"
        ):
            level = ""
        else:
            continue
        if isinstance(name, str):
            fields = {keyword.arg or ANY for keyword in node.keywords}
            yield level, name, {"exception" if field == "exc_info" else field for field in fields}


def on_page() -> dict[str, Event]:
    """By name: the events of the page's tables."""
    found: dict[str, Event] = {}
    for line in PAGE.read_text().partition("## Reasons")[0].splitlines():
        if not line.startswith("| `"):
            continue
        name, level, fields, meaning, _ = [cell.strip() for cell in line.strip("|").split("|")]
        name = name.replace("†", "").strip(" `")
        assert name not in found and meaning.endswith("."), line
        event = found[name] = Event()
        event.levels = set(level.split(", "))
        event.fields = set(fields.replace("`", "").split())
    return found


def test_the_page_and_the_code_name_the_same_events() -> None:
    """An operator would look for an event that is not on the page, or for one that is never logged."""
    assert in_code().keys() == on_page().keys()


def test_the_page_has_the_level_and_the_fields_of_each_event() -> None:
    """A filter on a level or a field, made after the page, would find nothing."""
    page = on_page()
    for name, event in in_code().items():
        assert (name, event.levels) == (name, page[name].levels)
        named = event.fields - {ANY}
        assert named <= page[name].fields, name
        assert ANY in event.fields or named == page[name].fields, name


def test_the_page_has_the_reasons_of_the_code() -> None:
    """A reason in a log or a metric would have no meaning. `python -m tests.insight.events_page` writes the tables."""
    text = PAGE.read_text()
    assert text == written(text)
