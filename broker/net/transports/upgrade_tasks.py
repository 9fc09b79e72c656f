# The tasks that answer WebSocket requests.
from collections.abc import Awaitable, Callable

import trio

from broker.net.reactor import Reactor
from broker.net.transports.websocket import UpgradeTask, WebSocketLayer


class UpgradeTasks:
    def __init__(self, reactor: Reactor, path: str, failed: Callable[[Exception], None]) -> None:
        """WebSocket requests have to be for *path*. *failed* is called with exceptions of our own code."""
        self._reactor = reactor
        self._path = path
        self._failed = failed
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Run the tasks that `start()` starts, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.sleep_forever()

    def start(self, layer: WebSocketLayer, request: bytes) -> UpgradeTask:
        """Start the task that answers *request*."""
        from broker.net.transports.upgrade import Upgrade  # trio-websocket costs memory that only its users should pay

        assert self._nursery is not None, "a request before run()"
        task = Upgrade(layer, request, self._path, self._failed)
        self._nursery.start_soon(self._answer, task.run)
        self._reactor.urgent_tasks += 1  # it takes several passes of trio's; none of them should wait for a whole turn
        return task

    async def _answer(self, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        finally:
            self._reactor.urgent_tasks -= 1
