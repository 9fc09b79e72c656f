# What peers that are gone had told of their subscribers is withdrawn from the routes, page by page: it may be millions
# of filters.
from collections import deque
from typing import Final

from broker.cluster.full_sync import PAGE
from broker.routing.hash_set import HashSet
from broker.routing.neighbour import Neighbour
from broker.routing.routes import Routes
from broker.routing.shared import SharedGroup


class Withdrawal:
    """What *neighbour*, which is gone, has left in the routes: members of *groups*, and *filters*.

    *cold*: what its cold sessions wanted, which is not in the routes any more.
    """

    def __init__(
        self, neighbour: Neighbour, filters: dict[bytes, None], groups: list[SharedGroup], cold: HashSet | None
    ) -> None:
        self.neighbour = neighbour
        self.filters = filters
        self.groups = groups
        self.cold = cold


class Withdrawals:
    def __init__(self, routes: Routes) -> None:
        self.pending: Final[deque[Withdrawal]] = deque()  # read in every slice: an attribute, and no call
        self._routes = routes

    def add(
        self,
        neighbour: Neighbour,
        filters: dict[bytes, None],
        groups: list[SharedGroup],
        cold: HashSet | None = None,
    ) -> None:
        """Withdraw all of this, see `Withdrawal`."""
        self.pending.append(Withdrawal(neighbour, filters, groups, cold))

    def step(self) -> None:
        """Remove a page of what is left from the routes."""
        if self._remove_page(self.pending[0]):
            self.pending.popleft()

    def _remove_page(self, withdrawal: Withdrawal) -> bool:
        """True if nothing of *withdrawal* is left."""
        neighbour, filters, groups = withdrawal.neighbour, withdrawal.filters, withdrawal.groups
        for _ in range(min(PAGE, len(groups))):
            group = groups.pop()
            # Or the group has forgotten the peer itself.
            if neighbour in group.remote or not (len(group) or group.remote):
                self._routes.set_remote_members(group.share, group.filter, neighbour, 0, 0)
        for _ in range(min(PAGE, len(filters))):
            filter, _nothing = filters.popitem()
            self._routes.remove_neighbour(filter, neighbour)
        cold = withdrawal.cold
        if cold is not None and cold.forget(PAGE):
            withdrawal.cold = None
        return not (filters or groups or withdrawal.cold is not None)
