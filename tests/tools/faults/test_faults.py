# A short run with faults, and what judges it: a judge that sees nothing would find everything well.
from pathlib import Path

import pytest

from broker.mqtt.packets import Publish
from tests.tools.faults.__main__ import report
from tests.tools.faults.client import Client
from tests.tools.faults.flow import Flow, RoamingFlow
from tests.tools.faults.plan import DEADLY, MOST_DEATHS, plan
from tests.tools.faults.relay import Ring
from tests.tools.faults.run import Run
from tests.tools.faults.troubles import Troubles
from tests.tools.fuzz.loop import Loop


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.faults
def test_whoever_dies_the_others_serve_on_and_nothing_is_lost(tmp_path: Path) -> None:
    """One process that is killed, or hangs, would cost the clients of others their messages."""
    outcome = Run(tmp_path, seed=4, workers=3, faults=4).go()

    print(report(outcome))  # with the seed, which a failure needs
    assert [] == outcome.failures
    assert outcome.figures["messages"] > 0


def test_a_plan_follows_from_its_seed_and_does_not_end_the_node() -> None:
    """A run could not be repeated, or would find a node that gave up, as it should."""
    assert plan(5, 3, 20) == plan(5, 3, 20) != plan(6, 3, 20)
    for seed in range(100):
        deadly = [one for one in plan(seed, 3, 20) if one.worker >= 0 and not 0.0 < one.stopped < DEADLY]
        assert len(deadly) <= MOST_DEATHS


class Unconnected(Client):
    def connect(self) -> None:
        self.up = True


class Judged:
    """A flow between two clients that are connected to nothing, at the processes 1 and 2."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.ring = Ring(self.loop)
        self.troubles = Troubles(self.loop, self.ring, lambda since: 0.0)
        self.publisher, self.subscriber = (Unconnected(self.loop, 0, name) for name in ("p", "s"))
        self.publisher.worker, self.subscriber.worker = 1, 2
        self.flow = Flow(self.loop, self.troubles, "t", 1, self.publisher, [self.subscriber])
        self.publisher.on_up()

    def send(self, *seconds_ago: float) -> list[bytes]:
        """Messages that were sent so long ago; as they would come."""
        found = []
        now = self.loop.now
        for seconds in seconds_ago:
            self.loop.now = now - seconds
            self.flow.send()
            found.append(f"1 {self.flow._number} {now - seconds!r}".encode())
        self.loop.now = now
        return found

    def take(self, *payloads: bytes, dup: bool = False) -> None:
        for payload in payloads:
            self.flow.take(self.subscriber, Publish(b"t", payload, 1, False, dup, 1))

    def close(self) -> None:
        self.ring.close()
        self.loop.close()

    def finish(self) -> list[str]:
        self.flow.finish()
        self.close()
        return [failure.partition(": ")[2] for failure in self.troubles.failures]


def test_what_comes_in_order_and_in_time_is_well() -> None:
    """Every run would fail."""
    judged = Judged()
    judged.take(*judged.send(0.05, 0.03, 0.01))

    assert [] == judged.finish()


def test_a_loss_is_seen() -> None:
    """Lost messages would go unnoticed: the last one, or one that another overtook."""
    judged = Judged()
    first, _second, third, _fourth = judged.send(0.04, 0.03, 0.02, 0.01)
    judged.take(first, third)

    assert ["t: (1, 2) and 0 more were overtaken by (1, 3)"] == judged.finish()[:1]
    assert "1 lost, (1, 4) the first" in judged.troubles.failures[1]


def test_what_comes_twice_is_seen_unless_it_says_so() -> None:
    """A message that is delivered twice would go unnoticed, or a lawful repetition be an alarm."""
    judged = Judged()
    (message,) = judged.send(0.01)
    judged.take(message)
    judged.take(message, dup=True)
    assert [] == judged.troubles.failures
    judged.take(message)

    assert ["t: (1, 1) came twice to s"] == judged.finish()


def test_a_gap_is_seen_unless_its_worker_was_in_trouble() -> None:
    """A broker that stalls would go unnoticed, or be blamed for a process that was stopped."""
    judged = Judged()
    (late,) = judged.send(0.4)
    judged.take(late)
    excused = Judged()
    trouble = excused.troubles.begin(2)
    excused.take(*excused.send(0.4))
    excused.troubles.over(trouble)

    assert "took 400 ms" in judged.finish()[0]
    assert [] == excused.finish()


def test_losing_a_connection_to_a_worker_that_is_well_is_seen() -> None:
    """A broker that throws clients out would have nothing to deliver to them, and look well."""
    judged = Judged()
    judged.subscriber.on_down(True)
    judged.close()

    assert "lost its connection to worker 2, which was well" in judged.troubles.failures[0]


@pytest.mark.parametrize("begun", [False, True])
def test_who_has_a_session_again_is_owed_what_is_sent_from_its_suback_on(begun: bool) -> None:
    """A message that came before the SUBACK would show those before it to be lost, or a loss after it be none.

    *begun*: by an attempt that failed, perhaps before it subscribed.
    """
    judged = Judged()
    client = judged.subscriber
    flow = judged.flow = RoamingFlow(judged.loop, judged.troubles, "t", judged.publisher, client)
    judged.publisher.on_up()
    client.on_greeted()
    client.on_up()
    client.left = True
    client.on_down(not begun)
    client.present = begun
    client.on_greeted()
    _before, early = judged.send(0.04, 0.03)
    judged.take(early)
    assert [] == judged.troubles.failures and client.certain != begun
    client.on_up()
    _lost, last = judged.send(0.02, 0.01)
    judged.take(last)

    assert flow.settled()
    assert ["t: (1, 3) and 0 more were overtaken by (1, 4)"] == judged.finish()
