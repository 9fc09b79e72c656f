# The pages: built once per browser, and updated each second.
import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from analytics.dashboard import charts, words
from analytics.dashboard.client_nodes import Answer, ClientNodes
from analytics.dashboard.model import EPISODES, Board, lately
from analytics.dashboard.nodes import NodeBoard, WorkerBoard, heading, node_board, node_rows, pages, worker_board
from analytics.dashboard.parts import Notes, Sentence, Table, box, link, set_attributes, set_classes, set_options, text
from analytics.dashboard.reader import SPANS, Reader
from analytics.dashboard.session_card import SessionCard
from analytics.dashboard.stories import Story, stories
from analytics.dashboard.tables import LoadTables, beyond
from analytics.dashboard.values import NONE, Cell, Part, Row, Tile, all_nodes_page, client_page

EVERY: Final = 1.0  # seconds
ASK_EVERY: Final = 2.0  # seconds between requests to the nodes, while the page of a client is open
TITLE: Final = "Weir"
STYLE: Final = (Path(__file__).parent / "style.css").read_text()
# Runs before the first rendering: the theme that was chosen in this browser, otherwise that of the system.
THEME: Final = """
const chosen = localStorage.getItem("weir-theme");
if (chosen) document.documentElement.dataset.theme = chosen;
"""
TOGGLE: Final = """() => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("weir-theme", root.dataset.theme);
}"""
SEARCH: Final = """(event) => {
  event.preventDefault();
  const id = event.target.querySelector("input").value;
  if (id) location.href = "/client/" + encodeURIComponent(id);
}"""
LOGO: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32" aria-hidden="true">'
    '<rect width="32" height="32" rx="7" fill="#0b63b5"/>'
    '<path d="M5 12c3-3 6-3 9 0s6 3 9 0M5 19h9v6M17 19c3 0 4 2 4 6" fill="none" stroke="#fff" stroke-width="2.6" '
    'stroke-linecap="round" stroke-linejoin="round"/></svg>'
)


def head() -> None:
    """Add the HTML head of all pages."""
    ui.add_head_html(f"<script>{THEME}</script><style>{STYLE}</style>", shared=True)


def build_board(reader: Reader) -> None:
    """The page of the cluster."""
    _keep_showing(_BoardPage(reader))


def build_client(reader: Reader, nodes: ClientNodes, name: str, operates: bool, signs_in: bool) -> None:
    """The page of a client. *operates*: for an operator. *signs_in*: there is a token to become one."""
    page = _ClientPage(reader, nodes, name, operates, signs_in)
    page.show()
    ui.timer(EVERY, page.show)
    ui.timer(ASK_EVERY, page.ask, immediate=True)
    ui.timer(ASK_EVERY, page.session.ask, immediate=True)


def build_nodes(reader: Reader, number: int) -> None:
    """The page of all nodes; *number*: of the page."""
    _keep_showing(_NodesPage(reader, number))


def build_node(reader: Reader, name: str) -> None:
    """The page of a node."""
    _keep_showing(_NodePage(reader, name))


def build_worker(reader: Reader, node: str, worker: int) -> None:
    """The page of a worker."""
    _keep_showing(_WorkerPage(reader, node, worker))


def _keep_showing(page: "_BoardPage | _NodesPage | _NodePage | _WorkerPage") -> None:
    page.show()
    ui.timer(EVERY, page.show)


class _Top:
    """The header of every page."""

    def __init__(self) -> None:
        link("Skip to the content", "#main", "skip")
        with box("header", "top"):
            with box("a", "brand", href="/", aria_label="Weir: the cluster"):
                ui.html(LOGO, sanitize=False, tag="span")
                text("span", TITLE)
            self._summary = text("p", "", "summary")
            self._moment = text("p", "", "moment")
            with box("form", "ask", role="search").on("submit", js_handler=SEARCH):
                text("label", "Client", for_="ask-client")
                box("input", id="ask-client", name="client", placeholder="client id", autocomplete="off", type="search")
                text(
                    "button",
                    "Why?",
                    type="submit",
                    title="Why is this client slow or disconnected, or receives nothing?",
                )
            text("button", "Light / dark", "theme", type="button").on("click", js_handler=TOGGLE)
        self._trouble = Sentence("trouble", role="status")

    def show(self, board: Board) -> None:
        self._summary.text = board.summary
        self._moment.text = board.moment
        self._trouble.show(board.trouble)
        set_classes(self._trouble.element, "trouble" if board.trouble else "trouble gone")


class _BoardPage:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._span = 1
        self._top = _Top()
        with box("main", id="main", tabindex="-1"):
            text("h1", "Overload of the cluster", "unseen")
            self._empty = Sentence("nothing")
            with box("section", "hero", aria_label="Now") as self._hero:
                with box("div", "level-now"):
                    self._level = text("span", "0", "number")
                    with box("div", "of"):
                        text("span", "level of 10")
                        self._word = text("strong", "", role="status")
                    with box("div", "meter", aria_hidden="true"):
                        self._steps = [box("i") for _ in range(10)]
                with box("div", "because"):
                    self._sentences = [Sentence() for _ in range(4)]
            self._tiles = _Tiles()
            self._build_nodes()
            self._build_charts()
            with box("div", "pair uneven"):
                with box("section", "card", aria_labelledby="notes"):
                    text("h2", "What to watch", id="notes")
                    self._notes = Notes("Nothing stands out.")
                    self._notes_more = text("p", "", "fine")
                with box("section", "card", aria_labelledby="job"):
                    text("h2", "Analysis", id="job")
                    self._analysis = Sentence("job", role="status")
                    self._footnote = text("p", "", "fine")
            self._stories = _Stories("Incidents", "incidents")
            self._build_tables()

    def show(self) -> None:
        board = self._reader.board
        self._top.show(board)
        self._empty.show(board.empty)
        set_classes(self._empty.element, "nothing" if board.empty else "nothing gone")
        known = board.tone != "unknown"
        self._level.text = str(board.level) if known else NONE
        self._word.text = board.word
        set_classes(self._hero, f"hero {board.tone}")
        for number, step in enumerate(self._steps):
            set_classes(step, "on" if known and number < board.level else "off")
        for number, sentence in enumerate(self._sentences):
            sentence.show(board.sentences[number] if number < len(board.sentences) else ())
        self._tiles.show(board.tiles)
        self._nodes.show(board.nodes)
        self._nodes_more.show(board.nodes_more)
        set_classes(self._nodes_card, "card" if board.nodes else "card gone")
        self._show_charts(board)
        self._notes.show(board.notes, "" if board.current else "Warnings need an up-to-date analysis.")
        self._analysis.show(board.analysis)
        set_classes(self._analysis.element, "job" if board.analysing else "job off")
        self._footnote.text = board.footnote
        self._notes_more.text = board.notes_more
        self._stories.show(board.stories, board.stories_more, _no_stories(board))
        self._workers.show(board.workers)
        self._more.text = board.workers_more
        set_classes(self._workers_card, "card gone" if board.nodes else "card")
        self._tables.show(board.tables)

    def _build_nodes(self) -> None:
        with box("section", "card gone", aria_labelledby="nodes") as self._nodes_card:
            text("h2", "Nodes", id="nodes")
            self._nodes = Table("Nodes", NODES, "No node has reported.", "nodes")
            self._nodes_more = Sentence("fine")

    def _build_charts(self) -> None:
        with box("section", "card", aria_labelledby="time"):
            with box("div", "line"):
                text("h2", "Over time", id="time")
                with box("div", "ranges", role="group", aria_label="Time range"):
                    self._ranges = [
                        (span, text("button", name, type="button").on("click", self._chooser(span)))
                        for name, span in charts.RANGES.items()
                    ]
            self._no_windows = Sentence("fine gone")
            with box("div", "pair charts"):
                lines, marks = self._lines()
                with box("figure"):
                    text("figcaption", "Level, 0 to 10")
                    self._level_chart = ui.echart(charts.level_options(lines, marks), renderer="svg").classes("chart")
                with box("figure"):
                    text("figcaption", "Messages per second")
                    self._traffic_chart = ui.echart(charts.traffic_options(lines), renderer="svg").classes("chart")
            self._left_out = text("p", "", "fine")

    def _chooser(self, span: int) -> Callable[[], None]:
        def choose() -> None:
            self._span = span
            self._show_charts(self._reader.board)

        return choose

    def _lines(self) -> tuple[charts.Lines, tuple[tuple[float, float], ...]]:
        reader, now = self._reader, self._reader.now
        if self._span == 1:
            return charts.of_seconds(reader.live.seconds, now), reader.board.marks
        reader.want(self._span)
        windows = reader.windows[self._span]
        return charts.of_windows(windows, self._span, SPANS[self._span], now), reader.board.marks

    def _show_charts(self, board: Board) -> None:
        for span, button in self._ranges:
            set_attributes(button, aria_pressed="true" if span == self._span else "false")
        missing = self._span != 1 and not board.analysing
        self._no_windows.show("Longer time ranges need the analysis. " + board.analysis if missing else "")
        set_classes(self._no_windows.element, "fine" if missing else "fine gone")
        lines, marks = self._lines()
        others = words.plural(lines.left_out, "other node has", "other nodes have")
        drawn = f"The chart has the {charts.NODES} nodes with the highest levels; {others} no line."
        self._left_out.text = drawn if lines.left_out else ""
        set_options(self._level_chart, charts.level_options(lines, marks))
        set_options(self._traffic_chart, charts.traffic_options(lines))

    def _build_tables(self) -> None:
        with box("section", "card", aria_labelledby="workers") as self._workers_card:
            text("h2", "Workers", id="workers")
            self._workers = Table("Workers", WORKERS, "No worker has reported.", "workers")
            self._more = text("p", "", "fine")
        self._tables = _Tables("in the last minute", with_minute=True)


WORKERS: Final = (
    ("worker", ""),
    ("level", "mid"),
    ("cause", "cause"),
    ("clients", "right"),
    ("throttled", "right"),
    ("slow", "right"),
    ("credits", "right"),
    ("in/s", "right"),
    ("out/s", "right"),
    ("p99 ms", "right"),
    ("outbound", "right"),
)
CLIENTS: Final = (
    ("client", "wide"),
    ("of the cost", "right"),
    ("msg/s", "right"),
    ("bytes/s", "right"),
    ("throttled", "right"),
    ("last min", "right"),
)
TOPICS: Final = (
    ("topic", "wide"),
    ("of the cost", "right"),
    ("msg/s", "right"),
    ("bytes/s", "right"),
    ("last min", "right"),
)
REASONS: Final = (("reason", ""), ("meaning", "wide"), ("count", "right"))
HELD: Final = (("reason", ""), ("meaning", "wide"), ("total", "right"))


NODES: Final = (
    ("node", "wide"),
    ("level", "mid"),
    ("cause", "cause"),
    ("workers", "right"),
    ("clients", "right"),
    ("throttled", "right"),
    ("slow", "right"),
    ("in/s", "right"),
    ("out/s", "right"),
    ("p99 ms", "right"),
)
MEMBERS: Final = (("resource", "wide"), ("cause", ""), ("peak", "mid"), ("time", "right"))
SLOWED: Final = (("node", "wide"), ("throttled", "right"), ("for", "right"))
SIGNALS: Final = (("signal", ""), ("meaning", "wide"), ("of its target", "right"))
FIGURES: Final = (("figure", "wide"), ("value", "right"))


class _Tiles:
    """The five figures under the heading of a page."""

    def __init__(self) -> None:
        with box("dl", "tiles"):
            self._tiles = [_tile() for _ in range(5)]

    def show(self, tiles: Sequence[Tile]) -> None:
        for (label, value, unit, note), tile in zip(self._tiles, tiles, strict=True):
            label.text, value.text, unit.text, note.text = tile.label, tile.value, tile.unit, tile.note


class _Tables:
    """The tables of clients, topics and reasons; under each a sentence about what it leaves out."""

    def __init__(self, when: str, with_minute: bool) -> None:
        self._tables: list[tuple[Table, TextElement]] = []
        clients, topics = (CLIENTS, TOPICS) if with_minute else (CLIENTS[:-1], TOPICS[:-1])
        with box("div", "pair"):
            self._add("Clients by cost", "clients", clients, "No client publishes.")
            self._add("Topics by cost", "topics", topics, "No messages are published.")
        with box("div", "triple"):
            self._add(f"Dropped {when}", "dropped", REASONS, "Nothing was dropped.")
            self._add(f"Refused {when}", "refused", REASONS, "Nothing was refused.")
            self._add(f"Throttled {when}", "held", HELD, "No client was throttled.")

    def _add(self, title: str, name: str, columns: Sequence[tuple[str, str]], empty: str) -> None:
        with box("section", "card", aria_labelledby=name):
            text("h2", title, id=name)
            self._tables.append((Table(title, columns, empty, name), text("p", "", "fine")))

    def show(self, shown: LoadTables) -> None:
        in_order = (shown.clients, shown.topics, shown.dropped, shown.refused, shown.held)
        for (table, sentence), rows, left in zip(self._tables, in_order, shown.more, strict=True):
            table.show(rows)
            sentence.text = left


def _tile() -> tuple[TextElement, TextElement, TextElement, TextElement]:
    with box("div", "tile"):
        label = text("dt")
        with box("dd"):
            value, unit = text("strong"), text("span", "", "unit")
        return label, value, unit, text("dd", "", "note")


def _no_stories(board: Board) -> str:
    if board.analysing:
        return "None so far. An incident is a time span with a serious overload."
    return f"Incidents need the analysis. {board.analysis}"


class _Stories:
    """A list of incidents or episodes; each can be expanded."""

    def __init__(self, title: str, name: str) -> None:
        self._shown: dict[str, _StoryElement] = {}
        with box("section", "card", aria_labelledby=name):
            text("h2", title, id=name)
            self._list = box("div", "episodes")
            self._more = text("p", "", "fine")
            self._empty = Sentence("empty")

    def show(self, listed: Sequence[Story], more: str, empty: str) -> None:
        told = {story.key: story for story in listed}
        for key in self._shown.keys() - told.keys():
            self._shown.pop(key).element.delete()
        for number, story in enumerate(told.values()):
            if story.key not in self._shown:
                with self._list:
                    self._shown[story.key] = _StoryElement(story)
            shown = self._shown[story.key]
            if self._list.default_slot.children[number] is not shown.element:
                shown.element.move(self._list, target_index=number)
            shown.show(story)
        self._more.text = more
        self._empty.show(empty)
        set_classes(self._empty.element, "empty gone" if listed else "empty")


class _StoryElement:
    def __init__(self, story: Story) -> None:
        self._before: Story | None = None
        with box("details", "episode", data_episode=story.key) as self.element:
            with box("summary"):
                self._peak = text("span", "", "peak")
                with box("span", "when"):
                    self._when, self._lasted = text("span"), text("span", "", "fine")
                with box("span", "cause"):
                    self._cause, self._where = text("span"), text("span", "", "fine")
                self._culprit = text("span", "", "culprit")
            with box("div", "told"):
                self._story = box("div", "story")
                with box("div", "triple"):
                    columns = (("client", "wide"), ("of the cost", "right"))
                    self._clients = _small("Most costly clients", columns)
                    self._throttled = _small("Throttled clients", (("client", "wide"), ("for", "right")))
                    self._losses = _small("Dropped and refused", REASONS)
                with box("div", "pair") as self._wider:
                    with box("div"):
                        self._members = _small("Episodes", MEMBERS)
                        self._members_more = text("p", "", "fine")
                    with box("div"):
                        self._slowed = _small("Nodes with throttled clients", SLOWED)
                        self._slowed_more = text("p", "", "fine")

    def show(self, story: Story) -> None:
        if story == self._before:
            return
        before, self._before = self._before, story
        set_classes(self.element, f"episode {'open' if story.open else 'closed'}{' now' if story.current else ''}")
        set_attributes(
            self.element, data_start=f"{story.start:.0f}", data_end="" if story.end is None else f"{story.end:.0f}"
        )
        self._peak.text = f"peak {story.peak}"
        set_classes(self._peak, f"peak {story.tone}")
        self._when.text = story.when
        self._lasted.text = f"for {story.lasted} so far" if story.open else f"for {story.lasted}"
        self._cause.text, self._where.text = story.cause, story.where
        self._culprit.text = words.shown(story.culprit) if story.culprit else "no single client"
        if before is None or before.story != story.story:
            self._story.clear()
            with self._story:
                for sentence in story.story:
                    text("p", sentence)
        self._clients.show(story.clients)
        self._throttled.show(story.throttled)
        self._losses.show(story.losses)
        self._members.show(story.members)
        self._members_more.text = story.members_more
        self._slowed.show(story.slowed)
        self._slowed_more.text = story.slowed_more
        set_classes(self._wider, "pair" if len(story.members) > 1 or len(story.slowed) > 1 else "pair gone")


def _small(title: str, columns: Sequence[tuple[str, str]]) -> Table:
    with box("div"):
        text("h3", title)
        return Table(title, columns, "None.", "small")


class _NodesPage:
    """All nodes, PAGE of them at a time."""

    def __init__(self, reader: Reader, number: int) -> None:
        self._reader = reader
        self._number = number
        self._top = _Top()
        with box("main", id="main", tabindex="-1"):
            link("← The cluster", "/", "back")
            text("h1", "Nodes")
            with box("section", "card", aria_labelledby="nodes"):
                self._title = text("h2", "", id="nodes")
                self._table = Table("Nodes", NODES, "No node has reported.", "nodes")
                self._pages = Sentence("fine", "nav")

    def show(self) -> None:
        self._top.show(self._reader.board)
        rows = node_rows(self._reader.live, self._reader.board.at)
        listed, number, last = pages(rows, self._number)
        self._title.text = f"{words.plural(len(rows), 'node')}, those with the most trouble first"
        self._table.show(listed)
        parts = [Part(f"Page {number} of {last}. ")] if last > 1 else []
        if number > 1:
            parts += [Part("Previous", all_nodes_page(number - 1)), Part(" ")]
        if number < last:
            parts.append(Part("Next", all_nodes_page(number + 1)))
        self._pages.show(parts)


class _Heading:
    """The level of a node or a worker, and its cause."""

    def __init__(self, path: Sequence[Part], title: str) -> None:
        Sentence("back").show(path)
        text("h1", title)
        self._missing = Sentence("nothing")
        with box("section", "card state", aria_label="Now"):
            self._level = text("span", "", "level")
            self._sentence = text("p")

    def show(self, board: NodeBoard | WorkerBoard) -> None:
        self._missing.show(board.missing)
        set_classes(self._missing.element, "nothing" if board.missing else "nothing gone")
        self._level.text = NONE if board.tone == "unknown" else f"level {board.level}"
        set_classes(self._level, f"level-of {board.tone}")
        self._sentence.text = board.sentence


class _NodePage:
    def __init__(self, reader: Reader, name: str) -> None:
        self._reader = reader
        self._name = name
        self._top = _Top()
        with box("main", id="main", tabindex="-1"):
            self._heading = _Heading(heading(name), f"Node {words.shown(name)}")
            self._tiles = _Tiles()
            with box("section", "card", aria_labelledby="workers"):
                text("h2", "Workers", id="workers")
                self._workers = Table("Workers", WORKERS, "No worker has reported.", "workers")
                self._more = text("p", "", "fine")
            self._incidents = _Stories("Incidents that affect this node", "incidents")
            self._episodes = _Stories("Episodes of this node and its workers", "episodes")
            self._tables = _Tables("in the last minute", with_minute=False)

    def show(self) -> None:
        reader, name, overview = self._reader, self._name, self._reader.board
        reader.want_episodes(name)
        board = node_board(reader.live, name, overview.at)
        self._top.show(overview)
        self._heading.show(board)
        self._tiles.show(board.tiles)
        self._workers.show(board.workers)
        self._more.text = board.workers_more
        mine = [story for story in overview.stories if name in story.nodes]
        self._incidents.show(mine, overview.stories_more, _no_stories(overview))
        rows, number = reader.episodes.get(name, ((), 0))
        told = [*stories(rows, overview.known, overview.at)]
        empty = "None so far." if overview.analysing else _no_stories(overview)
        self._episodes.show(told, beyond(number, EPISODES, "episode"), empty)
        self._tables.show(board.tables)


class _WorkerPage:
    def __init__(self, reader: Reader, node: str, worker: int) -> None:
        self._reader = reader
        self._node = node
        self._worker = worker
        self._top = _Top()
        with box("main", id="main", tabindex="-1"):
            self._heading = _Heading(heading(node, worker), f"Worker {worker} of node {words.shown(node)}")
            with box("div", "pair"):
                with box("section", "card", aria_labelledby="signals"):
                    text("h2", "Signals", id="signals")
                    self._signals = Table("Signals", SIGNALS, "None.", "signals")
                    self._more = text("p", "", "fine")
                with box("section", "card", aria_labelledby="figures"):
                    text("h2", "Figures", id="figures")
                    self._figures = Table("Figures", FIGURES, "None.", "figures")
            self._tables = _Tables("in the last second", with_minute=False)

    def show(self) -> None:
        reader = self._reader
        board = worker_board(reader.live, self._node, self._worker, reader.board.at)
        self._top.show(reader.board)
        self._heading.show(board)
        self._signals.show(board.signals)
        self._more.text = board.signals_more
        self._figures.show(board.figures)
        self._tables.show(board.tables)


class _ClientPage:
    def __init__(self, reader: Reader, nodes: ClientNodes, name: str, operates: bool, signs_in: bool) -> None:
        self._reader = reader
        self._nodes = nodes
        self._name = name
        self._before: Sequence[Answer] | None = None
        self._top = _Top()
        with box("main", "client", id="main", tabindex="-1"):
            link("← The cluster", "/", "back")
            text("h1", words.shown(name))
            with box("section", "card", aria_labelledby="why"):
                text("h2", "Why", id="why")
                self._answers = box("div", "answers", role="status")
                with self._answers:
                    text("p", "Loading …", "fine")
            self.session = SessionCard(nodes, name, operates, signs_in)
            with box("section", "card", aria_labelledby="lately"):
                text("h2", "In the last 10 seconds", id="lately")
                self._lately = text("p")
            with box("section", "card", aria_labelledby="part"):
                text("h2", "Incidents in which this client was a culprit", id="part")
                self._part = Table("Incidents", (("time", "wide"), ("peak", "right"), ("cost", "right")), "None.")

    def show(self) -> None:
        board = self._reader.board
        self._top.show(board)
        self._lately.text = lately(self._reader.live, self._name, board.at)
        here = client_page(self._name)
        self._part.show(
            [
                Row(story.key, (Cell(story.when), Cell(f"peak {story.peak}"), row.cells[1]))
                for story in board.stories
                for row in story.clients
                if row.cells[0].href == here
            ]
        )

    async def ask(self) -> None:
        """Request a diagnosis from the nodes, while the page is open."""
        answers = await asyncio.to_thread(self._nodes.why, self._name)  # `run.io_bound` hides a cancellation
        if answers == self._before:
            return
        self._before = answers
        self._answers.clear()
        with self._answers:
            for answer in answers:
                if len(answers) > 1:
                    text("h3", f"Node {words.shown(answer.node)}")
                for paragraph in answer.paragraphs:
                    Sentence("" if answer.known else "fine").show(paragraph)
