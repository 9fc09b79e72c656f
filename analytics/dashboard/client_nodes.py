# What the page of a client asks the nodes, and has them do. The command `weir dashboard` knows how (cli/dashboard.py).
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class NodeRefused(Exception):
    """A node did not do what it was asked. The text is a sentence for the user."""


@dataclass(frozen=True)
class Answer:
    """The reply of a node about a client."""

    node: str
    paragraphs: tuple[str, ...]
    known: bool  # false: the only paragraph says why there is no information


@dataclass(frozen=True)
class Found:
    """The reply of a node about the session of a client, as `weir sessions show --json` prints it."""

    node: str
    session: Mapping[str, Any] | None  # None: there is none, or *problem*
    problem: str = ""


class ClientNodes(Protocol):
    """The nodes. Each method blocks for seconds at most, `purge()` for a minute."""

    def why(self, client: str) -> Sequence[Answer]:
        """Return what the nodes know about the limits of *client*."""
        ...

    def sessions(self, client: str) -> Sequence[Found]:
        """Return the session of *client* at each node that has one; otherwise what the nodes said."""
        ...

    def queue(self, node: str, client: str) -> Mapping[str, Any]:
        """Return what waits for *client* by topic, as `weir queue show --json` prints it. NodeRefused."""
        ...

    def log(self, node: str, client: str) -> Mapping[str, Any]:
        """Return where *client*, an APPLICATION client, is in its log, as `weir applications show --json` prints it.

        NodeRefused.
        """
        ...

    def purge(self, node: str, client: str) -> Mapping[str, Any]:
        """Remove what waits for *client*; return how many `messages` and `bytes`. NodeRefused."""
        ...

    def drop(self, node: str, client: str) -> None:
        """End the session of *client*. NodeRefused."""
        ...

    def export(self, node: str, client: str) -> Iterator[bytes]:
        """Yield what waits for *client* as JSON lines, as `weir queue export` writes them, page by page.

        NodeRefused: before the first page. Later the last line is an object with `error`.
        """
        ...
