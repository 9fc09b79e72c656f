# The building blocks of pages: plain HTML elements whose text changes while the elements, and so the focus, remain.
#
# A page sets its whole content each second; only differences are sent to the browser. Values chosen by clients (client
# ids, topics) are always inserted as text, never as HTML.
from collections.abc import Iterable, Sequence
from typing import Any

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from analytics.dashboard.values import Cell, Note, Part, Row


def box(tag: str, kind: str = "", **attributes: str) -> ui.element:
    """Create a container element."""
    made = ui.element(tag)
    if kind:
        made.classes(kind)
    _set_attributes(made, attributes)
    return made


def text(tag: str, content: str = "", kind: str = "", **attributes: str) -> TextElement:
    """Create a text element."""
    made = TextElement(tag=tag, text=content)
    if kind:
        made.classes(kind)
    _set_attributes(made, attributes)
    return made


def link(content: str, href: str, kind: str = "") -> TextElement:
    return text("a", content, kind, href=href)


def set_attributes(element: ui.element, **attributes: str) -> None:
    """Set attributes of *element*; the browser is updated only if they differ."""
    if any(element.props.get(_attribute(name)) != value for name, value in attributes.items()):
        _set_attributes(element, attributes)
        element.update()


def _set_attributes(element: ui.element, attributes: dict[str, str]) -> None:
    for name, value in attributes.items():
        element.props[_attribute(name)] = value


def _attribute(name: str) -> str:
    """Return the HTML name of an attribute: aria_label is aria-label, for_ is for."""
    return name.rstrip("_").replace("_", "-")


def set_classes(element: ui.element, kind: str) -> None:
    """Set the CSS classes of *element* to exactly *kind*."""
    if set(element.classes) != set(kind.split()):
        element.classes(replace=kind)


class Sentence:
    """A paragraph with links, and with commands between `backticks`."""

    def __init__(self, kind: str = "", tag: str = "p", **attributes: str) -> None:
        self.element = box(tag, kind, **attributes)
        self._shape: list[str] = []
        self._parts: list[TextElement] = []

    def show(self, parts: Sequence[Part] | str) -> None:
        if isinstance(parts, str):
            parts = (Part(parts),)
        pieces = list(_pieces(parts))
        shape = [tag for tag, _, _ in pieces]
        if shape != self._shape:
            self._shape = shape
            self.element.clear()
            with self.element:
                self._parts = [text(tag) for tag in shape]
        for element, (tag, content, href) in zip(self._parts, pieces, strict=True):
            element.text = content
            if tag == "a":
                set_attributes(element, href=href)


def _pieces(parts: Sequence[Part]) -> Iterable[tuple[str, str, str]]:
    for part in parts:
        if part.href:
            yield "a", part.text, part.href
            continue
        for number, piece in enumerate(part.text.split("`")):
            if piece:
                yield ("code" if number % 2 else "span"), piece, ""


class Table:
    """A table whose rows are updated in place: a row is identified by its key."""

    def __init__(self, caption: str, columns: Sequence[tuple[str, str]], empty: str, kind: str = "") -> None:
        """*columns*: (title, class); *empty*: the text when there are no rows."""
        self._columns = columns
        self._rows: dict[str, tuple[ui.element, list[_Cell]]] = {}
        with box("div", "scroll", tabindex="0", role="region", aria_label=caption), box("table", kind):
            text("caption", caption, "unseen")
            with box("thead"), box("tr"):
                for title, of in columns:
                    text("th", title, of, scope="col")
            self._body = box("tbody")
        self._empty = text("p", empty, "empty")

    def show(self, rows: Sequence[Row]) -> None:
        rows = list({row.key: row for row in rows}.values())  # duplicate names in foreign data must not break the page
        for key in self._rows.keys() - {row.key for row in rows}:
            self._rows.pop(key)[0].delete()
        for number, row in enumerate(rows):
            if row.key not in self._rows:
                self._rows[row.key] = self._made()
            element, cells = self._rows[row.key]
            if self._body.default_slot.children[number] is not element:
                element.move(self._body, target_index=number)
            for shown, cell in zip(cells, row.cells, strict=True):
                shown.show(cell)
        set_classes(self._empty, "empty gone" if rows else "empty")

    def _made(self) -> "tuple[ui.element, list[_Cell]]":
        with self._body, box("tr") as row:
            return row, [_Cell(kind, first=not number) for number, (_, kind) in enumerate(self._columns)]


class _Cell:
    def __init__(self, kind: str, first: bool) -> None:
        self._kind = kind
        self._element = box("th", kind, scope="row") if first else box("td", kind)
        self._text: TextElement | None = None
        self._href = ""
        self._share: float | None = None

    def show(self, cell: Cell) -> None:
        if self._text is None or bool(self._href) != bool(cell.href):
            self._element.clear()
            with self._element:
                self._text = text("a" if cell.href else "span")
        self._href = cell.href
        self._text.text = cell.text
        if cell.href:
            set_attributes(self._text, href=cell.href)
        if cell.title and cell.title != cell.text:
            set_attributes(self._text, title=cell.title)
        set_classes(self._element, f"{self._kind} {cell.kind}{' bar' if cell.share is not None else ''}")
        if cell.share is not None and cell.share != self._share:
            self._share = cell.share
            self._element.style(replace=f"--share: {min(1.0, max(0.0, cell.share)):.1%}")


class Notes:
    """A list of sentences."""

    def __init__(self, empty: str) -> None:
        self._list = box("ul", "notes")
        self._empty = Sentence("empty")
        self._placeholder = empty
        self._shown: dict[str, tuple[ui.element, TextElement, Sentence]] = {}

    def show(self, notes: Sequence[Note], empty: str = "") -> None:
        for key in self._shown.keys() - {note.key for note in notes}:
            self._shown.pop(key)[0].delete()
        for note in notes:
            if note.key not in self._shown:
                with self._list, box("li") as item:
                    self._shown[note.key] = item, text("strong"), Sentence(tag="span")
            item, label, sentence = self._shown[note.key]
            set_classes(item, note.kind)
            label.text = "Soon: " if note.kind == "warning" else ""
            sentence.show(note.text)
        self._empty.show(empty or self._placeholder)
        set_classes(self._empty.element, "empty gone" if notes else "empty")


def set_options(element: Any, options: dict[str, Any]) -> None:
    """Set the options of a chart."""
    element.options.clear()
    element.options.update(options)
    element.update()
