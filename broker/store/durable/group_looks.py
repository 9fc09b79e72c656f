# When the groups of APPLICATION clients at a worker are looked at (`ReadGroup.look()`).
#
# A look takes a microsecond or more, and there may be thousands of groups, most of them idle. So a group is looked at
#
# - at the end of the slice in which something was heard of it, or the client of a member has come or gone;
# - each LOOK seconds while a member may become stuck, or may be stuck no longer: it is watched. At most AT_ONCE groups
#   are looked at each time, and those that were looked at last come last;
# - each POLL seconds in any case, a few of them at a time, and has its members ask Redis for partitions: notices may be
#   lost, and an outbox can be filled by what no log has.
#
# Rejected: to be told by the outbox of a client when it is writable. It would cost each client of the node something
# with each message, and nothing tells that a client has not acknowledged in time.
from itertools import islice
from math import ceil, inf
from typing import Final

from broker.store.durable.shared_readers import ReadGroup

LOOK: Final = 0.05  # seconds between two looks at a group that is watched
AT_ONCE: Final = 512  # of them: about a millisecond
POLL: Final = 3.0  # seconds between two looks at any group


class GroupLooks:
    def __init__(self) -> None:
        self._soon: dict[ReadGroup, None] = {}
        self._watched: dict[ReadGroup, None] = {}
        self._look_at = -inf  # those that are watched, and not before
        self._to_poll: list[ReadGroup] = []  # in this round
        self._poll_at = -inf

    def soon(self, group: ReadGroup) -> None:
        """Look at *group* in the next `tick()`."""
        self._soon[group] = None

    def watch(self, group: ReadGroup) -> bool:
        """Look at *group* each LOOK seconds, until a look finds that there is no need; whether that is new."""
        if group in self._watched:
            return False
        self._watched[group] = None
        return True

    def forget(self, group: ReadGroup) -> None:
        """*group* has no member here any more."""
        self._soon.pop(group, None)
        self._watched.pop(group, None)

    def has_work(self) -> bool:
        """Whether `tick()` has something to do at once."""
        return len(self._soon) > 0

    def tick(self, groups: dict[bytes, ReadGroup], now: float) -> float:
        """Look at those of *groups* that are due; when the next will be."""
        if groups and now >= self._poll_at:
            self._poll_at = now + max(LOOK, POLL / len(groups))
            self._poll(groups)
        if self._watched and now >= self._look_at:
            self._look_at = now + LOOK
            for group in islice(self._watched, AT_ONCE):
                self._soon[group] = None
        soon, self._soon = self._soon, {}
        for group in soon:
            self._watched.pop(group, None)
            if group.look(now):
                self._watched[group] = None
        due = self._poll_at if groups else inf
        return min(due, self._look_at) if self._watched else due

    def _poll(self, groups: dict[bytes, ReadGroup]) -> None:
        if not self._to_poll:
            self._to_poll = list(groups.values())
        count = ceil(len(groups) * LOOK / POLL)
        for group in self._to_poll[-count:]:
            if group.members:
                group.due = True
                self._soon[group] = None
        del self._to_poll[-count:]
