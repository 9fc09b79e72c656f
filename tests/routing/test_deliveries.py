# Deliveries: what is done at once, what is done in pages, and what its source and its acknowledgement wait for.
from broker.delivery.outbox import OutboundBudget, Outbox
from broker.delivery.ring import Ring
from broker.metrics.counters import Counters
from broker.mqtt.packets import V5
from broker.routing.fanout import PAGE, Deliveries
from broker.session.message import Message
from broker.session.origin import NOWHERE, Origin
from broker.session.run import Run
from broker.worker_id import WorkerId
from tests.routing.party import Party
from tests.session.receiver import NOW, message

ELSEWHERE = WorkerId("node", 1, 7)


class Paused:
    def __init__(self) -> None:
        self.sources: list[Outbox] = []

    def pause(self, source: Outbox) -> None:
        self.sources.append(source)

    def resume(self, source: Outbox) -> None:
        self.sources.remove(source)


class Stage:
    """So many receivers of the topic "t", all of them one client's, and a source that publishes to it."""

    def __init__(self, receivers: int) -> None:
        self.party = Party()
        for n in range(receivers):
            self.party.subscribe("a", b"t", 1, share=b"%d" % n)
        self.paused = Paused()
        self.origin = Origin(NOWHERE)
        self.deliveries = Deliveries(self.paused, Counters(), lambda: NOW, self.origin, self.party.backlog)
        self.source = Outbox(0, 1 << 20, 1 << 20, OutboundBudget(1 << 20), Ring())
        self.route = self.party.routes.find(b"t")

    def publish(self) -> Message:
        published = message(b"x", 1, topic=b"t")
        completion = self.deliveries.deliver(self.route, published, None, self.source, NOW)
        assert completion is published.completion
        return published

    def received(self) -> int:
        return len(self.party.client("a").payloads())


def test_receivers_in_memory_are_done_at_once() -> None:
    """Each publish allocates a Completion, or pauses its publisher."""
    stage = Stage(3)

    assert stage.publish().completion is None
    assert 3 == stage.received()
    assert not stage.deliveries.unfinished and not stage.paused.sources


def test_a_publish_in_pages_is_done_with_its_last_page() -> None:
    """The acknowledgement overtakes the last delivery, or the next message of the publisher does [MQTT-4.6.0-5]."""
    stage = Stage(PAGE + 1)
    completion = stage.publish().completion
    assert completion is not None
    assert stage.deliveries.work(NOW)  # one page, as the time is over

    assert (1, [stage.source]) == (completion.pending, stage.paused.sources)
    assert PAGE == stage.received()
    assert stage.deliveries.work(NOW)
    assert not stage.deliveries.work(NOW)
    assert (0, []) == (completion.pending, stage.paused.sources)
    assert 1 == stage.received()


def test_a_page_that_fails_leaves_its_publisher_to_the_caller() -> None:
    """A publisher whose publish has failed goes on as if it had been delivered, or the page is tried for ever."""
    stage = Stage(PAGE + 1)
    completion = stage.publish().completion

    assert stage.source is stage.deliveries.abandon()
    assert not stage.deliveries.unfinished and completion is not None
    assert (1, [stage.source]) == (completion.pending, stage.paused.sources)  # until the caller closes the connection
    assert stage.deliveries.abandon() is None


def test_a_page_that_fails_does_not_stop_the_lane_of_a_worker() -> None:
    """One message that fails here ends all that comes from another worker, or its publisher waits for ever."""
    stage = Stage(0)
    for n in range(PAGE + 1):
        stage.party.subscribe(f"{n}", b"t")
    route = stage.party.routes.find(b"t")
    completion = stage.deliveries.deliver_crossed(route, message(b"x", 1, topic=b"t"), stage.source, NOW)
    assert [stage.source] == stage.paused.sources

    assert stage.deliveries.abandon() is None
    assert [] == stage.paused.sources
    assert completion is not None and 0 == completion.pending


def test_pages_are_delivered_as_coming_from_where_they_came_from() -> None:
    """A session that moves takes a message of another worker twice or not at all."""
    stage = Stage(PAGE + 1)
    data = message(b"x", topic=b"t").whole(V5, NOW)
    stage.origin.worker = ELSEWHERE
    stage.deliveries.deliver_run(stage.route, Run(data, V5, 1, b"t", 1, len(data)), None, stage.source, NOW)
    stage.origin.worker = NOWHERE
    (work,) = stage.deliveries.unfinished

    assert ELSEWHERE is work.origin
    stage.deliveries.work(NOW)
    assert NOWHERE is stage.origin.worker
