# What a worker of a cluster of many nodes does for each thing that happens, and while nothing happens.
#
# Each kind of event is counted by itself, many of them at once as in a storm. An event is either told to all workers,
# by the one where it happens: that costs this one something for each of them; or it concerns one or two others, and
# must cost the same however many there are. Then a node costs in a second what happens in the cluster in that second.
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from broker.cluster.rendezvous import Place, settler_of
from broker.mqtt.packets import Publish, Subscribe, Unsubscribe, Wanted
from broker.overload.reports import Report
from broker.worker_id import WorkerId
from tests.tools.simulate.nodes.world import HERE, World

EVENTS: Final = 40  # of each kind, within STORM,
TOLD: Final = 5  # or so many that are told to all workers
STORM: Final = 2.0  # seconds
AFTER: Final = 3.0  # seconds until all that follows is done


@dataclass
class Cost:
    """*lines*: of the worker, for one event. *seconds*: of CPU, for one; 0.0: not measured."""

    lines: float
    seconds: float
    to_all: bool  # it is told to all workers


class Costs:
    def __init__(self, world: World, exact: bool = True) -> None:
        """*world*: a new one. *exact*: lines are counted, and seconds mean nothing; else the other way round."""
        self.world = world
        self.peers = len(world.papers)
        self.world.counted.exact = False
        self.world.join_all()
        self.world.run_for(AFTER)
        self.client = self.world.client("client")
        self.world.counted.exact = exact
        self.idle = self._measure(lambda: None, 1)  # for a second
        self.idle.lines /= STORM + AFTER
        self.idle.seconds /= STORM + AFTER

    def all(self) -> dict[str, Cost]:
        """By the kind of event."""
        return {
            "a report of another": self._each(self._report),
            "a filter elsewhere": self._each(self._subscribe_elsewhere),
            "a message from elsewhere": self._each(self._hear),
            "a takeover between others": self._each(self._take_over_elsewhere),
            "a filter here": self._each(self._subscribe_here, to_all=True),
            "a message for one other": self._each(self._publish),
            "a takeover from another": self._each(self._take_over),
            "a worker leaves and joins": self._each(self._replace),
        }

    def _each(self, event: Callable[[int], None], to_all: bool = False) -> Cost:
        """*event* some times, evenly within STORM."""
        world, events = self.world, TOLD if to_all else EVENTS

        def happen() -> None:
            for number in range(events):
                world.at(world.clock.now + number * STORM / events, partial(event, number))

        cost = self._measure(happen, events)
        idle = (STORM + AFTER) / events
        return Cost(cost.lines - idle * self.idle.lines, cost.seconds - idle * self.idle.seconds, to_all)

    def _measure(self, happen: Callable[[], None], events: int) -> Cost:
        counted = self.world.counted
        lines, seconds = counted.lines, counted.seconds
        happen()
        self.world.run_for(STORM + AFTER)
        return Cost((counted.lines - lines) / events, (counted.seconds - seconds) / events, False)

    # Kinds of events.

    def _report(self, number: int) -> None:
        """It comes by Redis, which is on paper here."""
        report = Report(self.world.any().worker, number + 1, 0.0, "", 0.0, ())
        with self.world.counted.counted():
            self.world.broker.worker.report_receiver.over_redis(report.encode(), self.world.clock.now)

    def _subscribe_elsewhere(self, number: int) -> None:
        self.world.any().subscribe(b"elsewhere/%d" % number)

    def _hear(self, number: int) -> None:
        self.world.any().publish(b"nobody/%d" % number, b"x")

    def _take_over_elsewhere(self, number: int) -> None:
        self.world.any().take_over_from(self.world.any().worker.incarnation)

    def _subscribe_here(self, number: int) -> None:
        topic = b"here/%d" % number
        self.client.post(Subscribe(number + 1, [Wanted(topic)]), Unsubscribe(number + 1001, [topic]))

    def _publish(self, number: int) -> None:
        holder = [paper for paper in self.world.papers.values() if paper.filters][number % 7]
        self.client.post(Publish(holder.filters[0], b"x", 1, packet_id=number + 1))

    def _take_over(self, number: int) -> None:
        self.world.take_over(self.world.any(), number, [])

    def _replace(self, number: int) -> None:
        former = self.world.any()
        self.world.leave(former)
        self.world.join(self.world.add(WorkerId(former.worker.node, former.worker.shard, self.world.incarnation())))


def settlers(nodes: int, workers: int) -> dict[Place, list[Place]]:
    """A node of *nodes* dies: the workers that settle its own, as each of those that live finds by itself."""
    live = [(f"n{node}", shard) for node in range(1, nodes) for shard in range(workers)]
    found: dict[Place, list[Place]] = {}
    for shard in range(workers):
        settler = settler_of((HERE, shard), live)
        assert settler is not None
        found.setdefault(settler, []).append((HERE, shard))
    return found
