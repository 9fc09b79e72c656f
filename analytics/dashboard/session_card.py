# The session on the page of a client: what is kept for the client, and buttons to copy it or to end it.
#
# What a session has is asked for while the page is open. What waits is counted by topic when the page opens, after a
# purge, and on request: a node reads up to 10 000 messages for that. With it comes the lag of an APPLICATION client,
# whose log is asked for its oldest unread record.
#
# Buttons are made for operators only (access.py). What cannot be brought back is done at the second click, which says
# how much will be gone.
import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from analytics.dashboard import words
from analytics.dashboard.access import SIGN_IN
from analytics.dashboard.client_nodes import ClientNodes, Found, NodeRefused
from analytics.dashboard.parts import Sentence, Table, box, link, set_attributes, set_classes, text
from analytics.dashboard.values import Cell, Part, Row
from broker.insight.explain import size, span

EXPORT: Final = "/export"
REASONS: Final = 6  # for which messages were dropped that are named
TOPICS: Final = (("topic", "wide"), ("messages", "right"), ("bytes", "right"))
FACTS: Final = ("state", "kept", "ends", "subscriptions", "waiting", "oldest", "in flight", "dropped")
LOG_FACTS: Final = ("log", "lag", "oldest in the log")  # of APPLICATION clients
SHARED: Final = (  # logs that an APPLICATION client shares; but for the second column, of all members together
    ("shared log", "wide"),
    ("it reads", "right"),
    ("connected", "right"),
    ("partitions read", "right"),
    ("lag", "right"),
    ("oldest", "right"),
)
ONLY_SHOWN: Final = (
    "`weir queue` and `weir sessions` export, purge and drop it; so does this page if the dashboard has an "
)


class SessionCard:
    def __init__(self, nodes: ClientNodes, client: str, operates: bool, signs_in: bool) -> None:
        """*operates*: the page is for an operator. *signs_in*: there is a token to become one."""
        self._nodes = nodes
        self._client = client
        self._operates = operates
        self._shown: dict[str, _Session] = {}
        self._problems: list[str] = []
        with box("section", "card", aria_labelledby="session"):
            text("h2", "Session", id="session")
            self._nothing = box("div", "answers", role="status")
            self._say(["Loading …"])
            self._list = box("div", "answers")
            if not operates:
                self._hint(signs_in)

    def _hint(self, signs_in: bool) -> None:
        hint = Sentence("fine")
        if signs_in:
            hint.show(
                (Part("To export or purge what waits, or to drop the session, "), Part("sign in", SIGN_IN), Part("."))
            )
        else:
            hint.show(ONLY_SHOWN + "`--operator-token-file`.")

    async def ask(self) -> None:
        """Ask the nodes for the session, and show it."""
        found = await asyncio.to_thread(self._nodes.sessions, self._client)
        self._show(found)
        for session in list(self._shown.values()):
            await session.look_once()

    def _show(self, found: Sequence[Found]) -> None:
        here = {one.node: one.session for one in found if one.session is not None}
        for node in self._shown.keys() - here.keys():
            if not self._shown[node].busy:
                self._shown.pop(node).element.delete()
        for node, session in here.items():
            if node not in self._shown:
                with self._list:
                    self._shown[node] = _Session(self._nodes, node, self._client, self._operates)
            self._shown[node].show(session, len(here) > 1)
        self._say(list(dict.fromkeys(_plain(one.problem) for one in found if one.session is None)))

    def _say(self, problems: list[str]) -> None:
        if problems != self._problems:
            self._problems = problems
            self._nothing.clear()
            with self._nothing:
                for problem in problems:
                    text("p", problem, "fine")


class _Session:
    """The session of a client at one node."""

    def __init__(self, nodes: ClientNodes, node: str, client: str, operates: bool) -> None:
        self._nodes = nodes
        self._node = node
        self._client = client
        self._waiting = 0
        self._looked = False
        self.busy = False  # something is being done that will say how it ended
        self._act: Callable[[], Awaitable[str]] | None = None  # what is to be confirmed
        self._facts: dict[str, Any] = {}
        self._has_log = False
        self._of_log: list[Any] = []
        with box("div", "session") as self.element:
            self._heading = text("h3", f"Node {words.shown(node)}", "gone")
            with box("dl", "facts"):
                for name in FACTS:
                    text("dt", name)
                    self._facts[name] = text("dd", "…")
                for name in LOG_FACTS:
                    named = text("dt", name, "gone")
                    self._facts[name] = text("dd", "…", "gone")
                    self._of_log += [named, self._facts[name]]
            self._topics = Table("What waits, by topic", TOPICS, "No message waits.", "waiting")
            self._counted = Sentence("fine")
            with box("div", "gone") as self._share:
                self._shared = Table("Shared logs", SHARED, "", "shared")
            with box("div", "actions"):
                self._button("Count again", self._look_again)
                if operates:
                    query = urlencode({"node": node, "client": client})
                    link("Export", f"{EXPORT}?{query}", "button")
                    self._button("Purge the queue …", self._ask_purge)
                    self._button("Drop the session …", self._ask_drop)
            with box("div", "confirm gone", role="group", aria_label="Confirm") as self._confirm:
                self._question = text("p")
                with box("div", "actions"):
                    self._yes = self._button("Yes", self._confirmed)
                    self._no = self._button("Cancel", self._cancel)
            self._result = Sentence("result", role="status")

    def _button(self, content: str, pressed: Callable[[], Any]) -> Any:
        return text("button", content, type="button").on("click", pressed)

    def show(self, session: Mapping[str, Any], several: bool) -> None:
        set_classes(self._heading, "" if several else "gone")
        self._waiting = session["waiting"]
        for name, content in _facts_of(session).items():
            self._facts[name].text = content
        if session["application"] and not self._has_log:
            self._has_log = True
            for one in self._of_log:
                set_classes(one, "")

    async def look_once(self) -> None:
        """Count what waits by topic, unless that was done."""
        if not self._looked:
            self._looked = True
            await self._look()

    async def _look_again(self) -> None:
        await self._alone(self._look)

    async def _look(self) -> str:
        try:
            queue = await asyncio.to_thread(self._nodes.queue, self._node, self._client)
        except NodeRefused as error:
            self._show_count((), "unknown", _plain(str(error)))
        else:
            self._show_count([_topic(one) for one in queue["topics"]], _oldest(queue), _counted(queue))
        if self._has_log:
            try:
                log = await asyncio.to_thread(self._nodes.log, self._node, self._client)
            except NodeRefused as error:
                self._show_log(_plain(str(error)), "unknown", "unknown")
            else:
                self._show_log(*_log(log))
                self._show_shared([_shared(one) for one in log.get("shared", ())])
        return ""

    def _show_log(self, *facts: str) -> None:
        if not self.element.is_deleted:
            for name, fact in zip(LOG_FACTS, facts, strict=True):
                self._facts[name].text = fact

    def _show_shared(self, rows: Sequence[Row]) -> None:
        if not self.element.is_deleted:
            self._shared.show(rows)
            set_classes(self._share, "" if rows else "gone")

    def _show_count(self, topics: Sequence[Row], oldest: str, sentence: str) -> None:
        if not self.element.is_deleted:  # somebody may have left the page
            self._topics.show(topics)
            self._facts["oldest"].text = oldest
            self._counted.show(sentence)

    def _ask_purge(self) -> None:
        many = _number(self._waiting, "message")
        self._ask(f"Remove all that waits, {many} as of now? It cannot be brought back.", "Purge", self._purge)

    def _ask_drop(self) -> None:
        many = _number(self._waiting, "message")
        self._ask(
            f"End the session, with its subscriptions and what waits, {many} as of now? A client that is connected is "
            "disconnected.",
            "Drop",
            self._drop,
        )

    def _ask(self, question: str, yes: str, act: Callable[[], Awaitable[str]]) -> None:
        self._act = act
        self._question.text = question
        self._yes.text = yes
        self._result.show("")
        set_classes(self._confirm, "confirm")
        self._no.run_method("focus")

    def _cancel(self) -> None:
        self._act = None
        set_classes(self._confirm, "confirm gone")

    async def _confirmed(self) -> None:
        act = self._act
        if act is not None and not self.busy:
            self._cancel()
            await self._alone(act)

    async def _alone(self, act: Callable[[], Awaitable[str]]) -> None:
        """Do *act*, unless something is being done, and show the sentence that it returns."""
        if self.busy:
            return
        self.busy = True
        set_attributes(self.element, aria_busy="true")
        said = "That failed: the log of the dashboard says why."
        try:
            said = await act()
        except NodeRefused as error:
            said = str(error)
        finally:
            self.busy = False
            if not self.element.is_deleted:
                set_attributes(self.element, aria_busy="false")
                self._result.show(_plain(said))

    async def _purge(self) -> str:
        removed = await asyncio.to_thread(self._nodes.purge, self._node, self._client)
        await self._look()
        return f"Removed {_number(removed['messages'], 'message')}, {size(removed['bytes'])}."

    async def _drop(self) -> str:
        await asyncio.to_thread(self._nodes.drop, self._node, self._client)
        return "The session has ended."


def _facts_of(session: Mapping[str, Any]) -> dict[str, str]:
    since = span(session["seconds"])
    connected = session["connected"]
    if connected:
        ends = f"{span(session['expiry'])} after the connection ends" if session["expiry"] else "with the connection"
    else:
        ends = f"in {span(session['expires_in'])}"
    where = "durable, in Redis" if session["durable"] else "in memory"
    return {
        "state": f"connected from {words.shown(session['address'])} for {since}" if connected else f"away for {since}",
        "kept": f"{where}, at worker {session['worker']}",
        "ends": ends,
        "subscriptions": str(session["subscriptions"]),
        "waiting": f"{_number(session['waiting'], 'message')}, {size(session['waiting_bytes'])}",
        "in flight": f"{_number(session['inflight'], 'message')} sent and not acknowledged",
        "dropped": _dropped(session["drops"]),
    }


def _dropped(drops: Mapping[str, int]) -> str:
    most = sorted(drops.items(), key=lambda one: (-one[1], one[0]))
    named = [f"{count} {words.shown(reason)}" for reason, count in most[:REASONS]]
    return ", ".join([*named, *(["others"] if len(most) > REASONS else [])]) or "none"


def _log(log: Mapping[str, Any]) -> tuple[str, str, str]:
    """The facts of LOG_FACTS."""
    trouble, lag = log["trouble"], log["lag"]
    where = log["topic"] or "none yet"
    behind = "unknown" if lag is None else f"{_number(lag, 'record')} not passed on, of up to 200 messages each"
    oldest = log.get("oldest")
    came = _came(oldest) if oldest is not None else "unknown" if lag is None or lag else "all is passed on"
    return words.shown(f"{where}: {trouble}" if trouble else where), behind, came


def _shared(one: Mapping[str, Any]) -> Row:
    """A log that the client shares."""
    name = f"$share/{one['name']}/{one['filter']}"
    group = one.get("group")
    trouble = one["trouble"] or one["waits"]
    reads = f"{len(one['reads'])} of {one['partitions']}"
    told = ["unknown"] * 3 + [""]
    if group:
        told = [f"{group['connected']} of {group['members']}", f"{len(group['reads'])} of {group['partitions']}"]
        told.append("unknown" if group["lag"] is None else _number(group["lag"], "record"))
        told.append("" if group["oldest"] is None else f"{span(group['oldest'])} ago")
    cells = (Cell(words.shown(name), "name", title=name), Cell(reads, title=trouble), *[Cell(each) for each in told])
    return Row(name, cells)


def _oldest(queue: Mapping[str, Any]) -> str:
    if queue["oldest"] is None:
        return "unknown" if queue["waiting"] else "none waits"
    return _came(queue["oldest"])


def _came(age: float) -> str:
    """When it came, *age* seconds ago."""
    return time.strftime("came %Y-%m-%d %H:%M:%S UTC", time.gmtime(time.time() - age))


def _topic(one: Mapping[str, Any]) -> Row:
    topic = one["topic"]
    return Row(
        topic,
        (Cell(words.shown(topic), "name", title=topic), Cell(str(one["messages"])), Cell(words.size(one["bytes"]))),
    )


def _counted(queue: Mapping[str, Any]) -> str:
    if not queue["topics"]:
        return ""
    which = "all that waited" if queue["complete"] else f"the first {_number(queue['examined'], 'message')}"
    inaccuracy = queue["inaccuracy"]
    most = f" A count may be too high by {inaccuracy}, as there are many topics." if inaccuracy else ""
    return f"At the last count these topics had the most messages of {which}.{most}"


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _plain(sentence: str) -> str:
    """Return *sentence*, which may quote what a client chose, without the signs of a command."""
    return sentence.replace("`", "'")
