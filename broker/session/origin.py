# The worker that published the messages that are being delivered, and which of them a session that moves takes.
#
# While a session moves from one worker to another it is subscribed at both. Of the messages of each worker those before
# a mark are for the session at its old worker, and those after the mark for the session at its new one
# (cluster/takeover.py).
#
# A session that was taken from a worker that did not answer refuses messages of workers that may have to send earlier
# ones again (cluster/forced_takeovers.py): nobody answers what it refuses, so that comes again, too.
from typing import Final

from broker.delivery.completion import Completion
from broker.session.message import Message
from broker.worker_id import WorkerId

NOWHERE: Final = WorkerId("", 0, 0)  # the origin in a worker that has no peers, as in tests


class Origin:
    """The worker whose messages are being delivered: *here*, or a peer."""

    def __init__(self, here: WorkerId) -> None:
        self.here: Final = here
        self.worker = here


class TransferFilter:
    """Which messages a session that moves takes: those of the workers that have marked, or those of the others."""

    def __init__(self, marked: bool) -> None:
        self._marked = marked
        self._workers: set[WorkerId] = set()

    def mark(self, worker: WorkerId) -> None:
        """What *worker* sends from now on is for the session at its new worker."""
        self._workers.add(worker)

    def takes(self, worker: WorkerId) -> bool:
        """Whether a message from *worker* is for the session that has this filter."""
        return (worker in self._workers) == self._marked

    def refuses(self, message: Message, worker: WorkerId) -> bool:
        """Whether *message*, which came from *worker*, is not for the session."""
        return not self.takes(worker)


class LeavingFilter(TransferFilter):
    """Of a durable session at its old worker: it keeps the Completions of what it refuses, until the session has moved.

    If its new worker dies before, and the session stays, all that has to come again; so it has if a third worker takes
    the session.
    """

    def __init__(self) -> None:
        super().__init__(False)
        self._refused: list[Completion] = []

    def refuses(self, message: Message, worker: WorkerId) -> bool:
        if self.takes(worker):
            return False
        if message.qos:
            self._refused.append(message.hold())
        return True

    def take_refused(self) -> list[Completion]:
        """The publishes that were refused since the last call."""
        refused, self._refused = self._refused, []
        return refused


class ForcedFilter(TransferFilter):
    """For the messages of workers that have marked, and for QoS 0, which is in no order.

    It keeps the Completions of what it refuses, and never settles them.
    """

    def __init__(self) -> None:
        super().__init__(True)
        self._refused: dict[WorkerId, list[Completion]] = {}

    def refuses(self, message: Message, worker: WorkerId) -> bool:
        if not message.qos or self.takes(worker):
            return False
        self.keep(message, worker)
        return True

    def keep(self, message: Message, worker: WorkerId) -> None:
        """*message*, which came from *worker*, is refused."""
        self._refused.setdefault(worker, []).append(message.hold())

    def take_refused(self, worker: WorkerId) -> list[Completion]:
        """The publishes from *worker* that were refused since the last call: they have to come again."""
        return self._refused.pop(worker, [])

    def take_all_refused(self) -> list[Completion]:
        """The same from all workers."""
        refused, self._refused = self._refused, {}
        return [completion for each in refused.values() for completion in each]


class ClosedFilter(TransferFilter):
    """Of a session that is only in the routes: it takes nothing, and *forced* keeps the Completions."""

    def __init__(self, forced: ForcedFilter) -> None:
        super().__init__(True)
        self._forced = forced

    def refuses(self, message: Message, worker: WorkerId) -> bool:
        if message.qos:
            self._forced.keep(message, worker)
        return True
