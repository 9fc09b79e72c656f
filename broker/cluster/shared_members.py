# What the peers know of the shared subscriptions here: how many members there are, and how many could take a message.
#
# The publisher's worker chooses a worker by these numbers. Whether a member is writable changes with every message, so
# this is looked at from time to time, some subscriptions each time, and announced only when a number has changed.
# Messages that wait here for a shared subscription are passed on at the same pace to workers with ready members.
from typing import Final

from broker.cluster.announcements import Announcements
from broker.routing.routes import Routes
from broker.routing.shared import SharedGroup

AT_ONCE: Final = 64  # shared subscriptions


class SharedMembers:
    def __init__(self, routes: Routes, announcements: Announcements) -> None:
        self._routes = routes
        self._announcements = announcements
        self._round: list[SharedGroup] = []  # those still to be looked at in this round

    def look(self) -> None:
        """Look at some shared subscriptions; repeated calls reach all of them in turn."""
        for _ in range(AT_ONCE):
            if not self._round:
                self._round = [group for group in self._routes.shared_groups() if len(group) or group.waiting()]
                if len(self._round) <= AT_ONCE:
                    for group in self._round:
                        self._announce(group)
                    self._round = []
                    return
            self._announce(self._round.pop())

    def _announce(self, group: SharedGroup) -> None:
        """Tell the peers the numbers of *group* if they have changed."""
        group.check_members()
        group.retry_elsewhere()
        here = group.here()
        if here != group.announced:
            group.announced = here
            self._announcements.shared(group.share, group.filter, *here)
