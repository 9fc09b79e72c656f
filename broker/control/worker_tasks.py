# The tasks of a worker, from its first slice to the end of its drain.
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from broker.cluster.departure import Departure
from broker.control.heartbeat import DRAINING, Heartbeat
from broker.control.session_hand_over import SessionHandOver
from broker.control.spin import spin
from broker.net.loop import Loop
from broker.net.reactor import LINGER
from broker.protocol.essentials import Essentials
from broker.protocol.lifecycle import ConnectionLifecycle

LEFT: Final = 0.01  # seconds between two looks whether all clients have left
RELEASE: Final = 1.0  # seconds that peers may take to let this worker end: less than its supervisor waits


class WorkerTasks:
    def __init__(
        self,
        base: Essentials,
        loop: Loop,
        lifecycle: ConnectionLifecycle,
        hand_over: SessionHandOver,
        departure: Departure,
        heartbeat: Heartbeat | None,
        settled: Callable[[], bool],
        after_slice: Callable[[], None],
        others: Sequence[Callable[[], Awaitable[None]]],
    ) -> None:
        """*settled*: whether Redis knows all it has to know of this worker. *others* are run beside the loop.

        *after_slice* is called after each slice of the loop.
        """
        self._loop = loop
        self._reactor = base.reactor
        self._lifecycle = lifecycle
        self._hand_over = hand_over
        self._departure = departure
        self._heartbeat = heartbeat
        self._clock = base.clock
        self._settled = settled
        self._after_slice = after_slice
        self._drain_timeout = base.config.drain.timeout
        self._others = others

    async def run(self, stopping: trio.Event, hands_over: Callable[[], bool]) -> None:
        """Serve until *stopping*. Then clients receive DISCONNECT 0x8B and have the drain timeout to leave.

        The sessions go to the other workers of the node meanwhile, if *hands_over* returns true. If not, the node
        stops, and its workers wait for each other: other nodes take over at once what all of them have stored, and
        publishers would wait for that as long as the slowest client takes to leave. At last the other workers publish
        nothing more for this one, and what they have published for it is confirmed.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spin, self._loop, self._heartbeat, self._clock, self._after_slice)
            for task in self._others:
                nursery.start_soon(task)
            await stopping.wait()
            if self._heartbeat is not None:
                self._heartbeat.enter(DRAINING, self._clock())
            self._loop.stop_listening()
            self._reactor.linger = max(LINGER, self._drain_timeout)
            self._lifecycle.stop(self._clock())
            self._reactor.wake()
            with trio.move_on_after(self._drain_timeout):
                if hands_over():
                    await self._hand_over.run()
                while self._reactor.streams() or not self._settled():
                    await trio.sleep(LEFT)
                if not hands_over():
                    self._departure.say_drained()
                    while not self._departure.drained():
                        await trio.sleep(LEFT)
            self._departure.say_leaving()
            with trio.move_on_after(RELEASE):
                while not (self._departure.may_leave() and self._settled()):
                    await trio.sleep(LEFT)
            nursery.cancel_scope.cancel()
