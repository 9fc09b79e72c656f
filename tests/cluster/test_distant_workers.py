# Workers of other nodes, as the supervisor lists them and the mesh is told.
from broker.cluster.distant_workers import DistantWorkers
from broker.worker_id import WorkerId

A0, A1, B0 = WorkerId("a", 0, 1), WorkerId("a", 1, 2), WorkerId("b", 0, 3)
A0_AGAIN = WorkerId("a", 0, 4)


class Recorder:
    """What a mesh would be told, in order, and at each moment the workers that it waits for or knows."""

    def __init__(self) -> None:
        self.told: list[tuple[str, WorkerId]] = []
        self.known: set[WorkerId] = set()
        self.expected = 0
        self.least = 0
        self.changes: list[tuple[int, float]] = []

    def changed(self, nodes: int, now: float) -> None:
        self.changes.append((nodes, now))

    def join_distant(self, worker: WorkerId) -> None:
        assert worker not in self.known
        self.told.append(("join", worker))
        self.known.add(worker)
        self._look()

    def leave(self, worker: WorkerId) -> None:
        self.told.append(("leave", worker))
        self.known.remove(worker)
        self._look()

    def expect_distant(self, workers: int) -> None:
        self.expected = workers
        self._look()

    def _look(self) -> None:
        self.least = min(self.least, len(self.known) + self.expected)


def test_each_worker_is_joined_once_and_left_once() -> None:
    """Lanes would be opened anew at each change of the list, or never closed."""
    mesh = Recorder()
    workers = DistantWorkers(mesh, mesh.changed, lambda: 7.0)

    workers.set([A0, A1], 0)
    workers.set([A0, A1, B0], 0)
    workers.set([A0, A1, B0], 0)
    workers.set([B0, A1], 0)
    workers.set([], 0)

    assert [("join", A0), ("join", A1), ("join", B0), ("leave", A0), ("leave", A1), ("leave", B0)] == mesh.told
    assert [] == workers.joined()


def test_a_worker_that_was_replaced_leaves_before_its_successor_joins() -> None:
    """Two workers would be taken for one place, and what the former one has told would stay."""
    mesh = Recorder()
    workers = DistantWorkers(mesh, mesh.changed, lambda: 7.0)
    workers.set([A0], 0)

    workers.set([A0_AGAIN], 0)

    assert [("join", A0), ("leave", A0), ("join", A0_AGAIN)] == mesh.told


def test_a_worker_that_comes_back_is_joined_again() -> None:
    """A node that was cut off from Redis for longer than its lease would never be reached again."""
    mesh = Recorder()
    workers = DistantWorkers(mesh, mesh.changed, lambda: 7.0)
    for listed in ([A0], [], [A0]):
        workers.set(listed, 0)

    assert [("join", A0), ("leave", A0), ("join", A0)] == mesh.told


def test_at_no_moment_is_less_expected_than_there_is_to_come() -> None:
    """A worker that starts would serve before it knows what is subscribed to elsewhere, and lose publishes."""
    mesh = Recorder()
    workers = DistantWorkers(mesh, mesh.changed, lambda: 7.0)
    workers.set([A0, A1], 2)  # two shards have no worker yet
    mesh.least = 4

    workers.set([A0, A1, B0], 1)
    workers.set([A0, A1, B0, WorkerId("b", 1, 5)], 0)
    workers.set([A1, B0, WorkerId("b", 1, 5)], 1)

    assert 4 == mesh.least
    assert 1 == mesh.expected


def test_nodes_that_join_or_leave_are_told_and_workers_that_are_replaced_are_not() -> None:
    """The level would rise with each worker that starts, or with none of the nodes that do."""
    mesh = Recorder()
    workers = DistantWorkers(mesh, mesh.changed, lambda: 7.0)

    workers.set([A0, A1], 0)  # what this worker finds
    workers.set([A1], 1)
    workers.set([A0_AGAIN, A1], 0)
    assert [] == mesh.changes
    workers.set([A0_AGAIN, A1, B0], 0)
    assert [(1, 7.0)] == mesh.changes
    workers.set([], 0)
    assert [(1, 7.0), (2, 7.0)] == mesh.changes


def test_the_first_node_beside_one_that_was_alone_is_told() -> None:
    """Of a cluster of two nodes nothing would be seen as the second one starts."""
    mesh = Recorder()
    workers = DistantWorkers(mesh, mesh.changed, lambda: 7.0)

    workers.set([], 0)
    workers.set([B0], 0)

    assert [(1, 7.0)] == mesh.changes
