# The tasks that answer WebSocket requests.
#
# A task takes a fraction of a millisecond in many small steps, and some ten kilobytes. A crowd that comes at once would
# have the worker do nothing else, so at most UNDER_WAY requests are answered at once; the others wait in the order of
# their arrival. A request whose connection is closed leaves the queue. Each connection waits with one request of
# at most REQUEST_BYTES (websocket.py) and no longer than its CONNECT deadline, so the limit of connections bounds the
# queue.
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from broker.net.reactor import Reactor
from broker.net.transports.websocket import UpgradeTask, WebSocketLayer

if TYPE_CHECKING:
    from broker.net.transports.upgrade import Upgrade

UNDER_WAY: Final = 16


class Request:
    """A request that waits, or is being answered."""

    def __init__(self, upgrade: "Upgrade", waiting: "OrderedDict[Request, None]") -> None:
        """*waiting*: the requests that wait."""
        self.upgrade = upgrade
        self._waiting = waiting

    def cancel(self) -> None:
        self._waiting.pop(self, None)
        self.upgrade.cancel()


class UpgradeTasks:
    def __init__(self, reactor: Reactor, path: str, failed: Callable[[Exception], None]) -> None:
        """WebSocket requests have to be for *path*. *failed* is called with exceptions of our own code."""
        self._reactor = reactor
        self._path = path
        self._failed = failed
        self._nursery: trio.Nursery | None = None
        self._under_way = 0
        self._waiting: OrderedDict[Request, None] = OrderedDict()  # the next one first

    async def run(self) -> None:
        """Run the tasks that `start()` starts, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.sleep_forever()

    def start(self, layer: WebSocketLayer, request: bytes) -> UpgradeTask:
        """Start the task that answers *request*, as soon as fewer than UNDER_WAY are under way."""
        from broker.net.transports.upgrade import Upgrade  # trio-websocket costs memory that only its users should pay

        waiting = Request(Upgrade(layer, request, self._path, self._failed), self._waiting)
        self._waiting[waiting] = None
        self._start_waiting()
        return waiting

    def statistics(self) -> tuple[int, int]:
        """(requests that are being answered, requests that wait)."""
        return self._under_way, len(self._waiting)

    def _start_waiting(self) -> None:
        assert self._nursery is not None, "a request before run()"
        while self._waiting and self._under_way < UNDER_WAY:
            request, _ = self._waiting.popitem(last=False)
            self._under_way += 1
            self._reactor.urgent_tasks += 1  # it takes several passes of trio's; none should wait for a whole turn
            self._nursery.start_soon(self._answer, request)

    async def _answer(self, request: Request) -> None:
        try:
            await request.upgrade.run()
        finally:
            self._reactor.urgent_tasks -= 1
            self._under_way -= 1
            self._start_waiting()
