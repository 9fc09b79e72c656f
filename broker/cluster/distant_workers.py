# The workers of other nodes, as the supervisor lists them: the mesh joins each of them, and parts from it.
from collections.abc import Callable, Iterable
from typing import Protocol

from broker.worker_id import WorkerId


class NodeMesh(Protocol):
    """What the mesh does for workers of other nodes."""

    def join_distant(self, worker: WorkerId) -> None:
        """Open lanes to *worker* of another node."""

    def leave(self, worker: WorkerId) -> None:
        """*worker* has ended, or its node has."""

    def expect_distant(self, workers: int) -> None:
        """So many workers of other nodes will be listed, and have subscribers that nobody can tell of until then."""


class DistantWorkers:
    def __init__(self, mesh: NodeMesh, changed: Callable[[int, float], None], clock: Callable[[], float]) -> None:
        """*changed* is called with a number of nodes that have joined or left, and the time (s)."""
        self._mesh = mesh
        self._changed = changed
        self._clock = clock
        self._joined: dict[WorkerId, None] = {}
        self._nodes: frozenset[str] | None = None  # None: none were listed yet

    def joined(self) -> list[WorkerId]:
        return list(self._joined)

    def set(self, workers: Iterable[WorkerId], expected: int) -> None:
        """*workers* are those of all other nodes that run. *expected*: see `NodeMesh.expect_distant()`.

        A worker that was replaced leaves before the next one of its shard joins. At no moment is less expected than
        there is to come: the mesh would take itself for complete, and this worker would serve too early.
        """
        listed = dict.fromkeys(workers)
        new = [worker for worker in listed if worker not in self._joined]
        self._mesh.expect_distant(expected + len(new))
        for gone in [worker for worker in self._joined if worker not in listed]:
            del self._joined[gone]
            self._mesh.leave(gone)
        for worker in new:
            self._joined[worker] = None
            self._mesh.join_distant(worker)
        if new:
            self._mesh.expect_distant(expected)
        self._note_nodes(frozenset([worker.node for worker in listed]))

    def _note_nodes(self, nodes: frozenset[str]) -> None:
        """Tell how many nodes have joined or left. The first list is what this worker finds: no node has joined it."""
        former, self._nodes = self._nodes, nodes
        if former is not None and former != nodes:
            self._changed(len(former ^ nodes), self._clock())
