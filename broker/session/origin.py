# Where a message comes from: the worker that is being served now; and what of it is for a session that moves.
#
# While a session moves from one worker to another, both are subscribed. Of each worker the messages up to a certain one
# are for the session at its old place, and those behind it for the one at its new place (mesh/takeovers.py).


from typing import Final

from broker.worker_id import WorkerId

NOWHERE: Final = WorkerId("", 0, 0)  # the origin in a worker that has no peers, as in tests


class Origin:
    """The worker whose messages are being delivered."""

    def __init__(self, here: WorkerId) -> None:
        self.here: Final = here
        self.worker = here


class TransferFilter:
    """What a session that moves takes: messages of those workers that are marked, or of the others."""

    def __init__(self, marked: bool) -> None:
        self._marked = marked
        self._workers: set[WorkerId] = set()

    def mark(self, worker: WorkerId) -> None:
        """All that *worker* sends from now on is for the new place."""
        self._workers.add(worker)

    def takes(self, worker: WorkerId) -> bool:
        """Whether a message from *worker* is for the session that has this filter."""
        return (worker in self._workers) == self._marked
