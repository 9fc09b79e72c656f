# The values that pages are made of.
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

HIGHEST: Final = 10  # level
NONE: Final = "\N{EN DASH}"


@dataclass(frozen=True)
class Cell:
    text: str
    kind: str = ""  # a class of the style sheet
    href: str = ""
    share: float | None = None  # 0 to 1: a bar behind the text
    title: str = ""  # the full text, if *text* is shortened


@dataclass(frozen=True)
class Row:
    key: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Tile:
    label: str
    value: str
    unit: str
    note: str


@dataclass(frozen=True)
class Note:
    key: str
    kind: str  # "warning" or "fact"
    text: str


@dataclass(frozen=True)
class Part:
    """A part of a sentence: a text or a link."""

    text: str
    href: str = ""


def client_page(name: str) -> str:
    """Return the path of the page of a client."""
    return f"/client/{quote(name, safe='')}"


def node_page(name: str) -> str:
    """Return the path of the page of a node."""
    return f"/node/{quote(name, safe='')}"


def worker_page(node: str, worker: int) -> str:
    """Return the path of the page of a worker."""
    return f"/worker/{worker}/{quote(node, safe='')}"


def all_nodes_page(number: int = 1) -> str:
    """Return the path of a page of the list of all nodes."""
    return f"/nodes?page={number}" if number > 1 else "/nodes"
